"""Words in columns: CoNLL files, CoNLL-U, and tables with a word in each row.

A line holds a word and its tag; a blank line ends a sentence, and one that begins with -DOCSTART-
a document. Columns are separated by tabs if the first line with a word has one, otherwise by
spaces; so in a file with tabs a word may be a space (KLUE gives each character a line).

CoNLL-U is recognised by its name or its ten columns. A table is a CSV file, or one whose first
line names a column of words and one of tags; a column such as ``sentence_id`` numbers sentences.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from bothways.errors import InputError, Place
from bothways.io.annotations.spans import SpanText
from bothways.io.csv_files import encloses_fields
from bothways.io.diagnostics import other_format
from bothways.io.lines import listed
from bothways.io.rows import JSON, Item, shown, table_suffix
from bothways.io.terminal import counted
from bothways.io.text import beginning, read_lines

TABLE, COLUMNS = "csv", "conll"
DOCUMENT = "-DOCSTART-"
TAG = re.compile("O|[BIESLUMW]-.+")
"""A tag of a scheme."""
_COMMENT = re.compile(r"#+\s")
_LANGUAGE = re.compile(r"[a-z]{2,3}:(?=\S)")
_CONLLU = 10  # columns
_LOOKED_AT = 500  # rows
_SPACES = re.compile("[ \t]+")
_SAMPLE = 1000  # lines
_LISTS = ("['", '["')  # how Python and NumPy print a list of words

# Names of columns, in small letters alone.
_WORDS = ("word", "words", "token", "tokens", "form")
_TAGS = ("tag", "tags", "nertag", "nertags", "ner", "label", "labels", "pos", "postag", "upos")
_SENTENCES = ("sentence", "sentenceid", "sentid", "sentenceidx", "sentencenumber")
_DOCUMENTS = ("docid", "doc", "document", "documentid")

Row = tuple[int, Sequence[str] | None]
"""The line of a row and its columns: none in a blank line, None where a document begins."""


@dataclass(frozen=True)
class ConllFormat:
    """Which columns are read.

    Attributes:
        word: column of the words, from 0; negative: from the last column.
        tag: column of the tags, counted likewise.
        comment: how lines to leave out begin; empty: there are none.
    """

    word: int = 0
    tag: int = -1
    comment: str = ""

    @property
    def is_default(self) -> bool:
        """Whether no columns were named, so that the file itself may say where they are."""
        return (self.word, self.tag) == (0, -1)


@dataclass
class TaggedFile:
    """A file with tags for its words, or spans of its texts.

    Attributes:
        format: one of :data:`bothways.io.annotations.tagged.NAMES`.
        words: of each sentence, at least one.
        lines: the line of each word, from 1.
        tags: of each word, as written; None if the file has no such column.
        documents: the number of each sentence's document, not decreasing.
        separator: between columns.
        texts: of a file with running texts, which has no sentences.
        remarks: how the file was read, as sentences.
    """

    format: str
    words: list[list[str]] = field(default_factory=list)
    lines: list[list[int]] = field(default_factory=list)
    tags: list[list[str]] | None = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    separator: str = "\t"
    texts: list[SpanText] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(
        self, words: list[str], lines: list[int], tags: list[str] | None, document: int
    ) -> None:
        """Add a sentence, if it has words."""
        if words:
            self.words.append(words)
            self.lines.append(lines)
            self.documents.append(document)
            if tags is None:
                self.tags = None
            elif self.tags is not None:
                self.tags.append(tags)

    def all_tags(self) -> set[str]:
        """The different tags."""
        return {tag for tags in self.tags or () for tag in tags}

    def place_of_tag(self, path: Path, tag: str) -> Place:
        """The first line that has a tag."""
        for tags, lines in zip(self.tags or (), self.lines, strict=True):
            if tag in tags:
                return Place(path, lines[tags.index(tag)])
        return Place(path)


@dataclass(frozen=True)
class _Columns:
    """Where the words, tags, sentences and documents of a file are; None: nowhere."""

    word: int
    tag: int | None
    sentence: int | None = None
    document: int | None = None


def has_word_columns(path: Path, encoding: str = "") -> bool:
    """Whether the first line of a file names columns for words and tags."""
    first = beginning(path, encoding).partition("\n")[0]
    return _named_columns(re.split("[\t,;|]", first)) is not None


def _named_columns(header: Sequence[str]) -> _Columns | None:
    """The columns that a line names; None if it names none of words, or none of tags."""
    plain = [re.sub("[^a-z]", "", name.lower()) for name in header]
    word, tag, sentence, document = (
        next((plain.index(name) for name in names if name in plain), None)
        for names in (_WORDS, _TAGS, _SENTENCES, _DOCUMENTS)
    )
    return None if word is None or tag is None else _Columns(word, tag, sentence, document)


def read_conll(
    path: Path, layout: ConllFormat, *, labelled: bool, encoding: str = ""
) -> TaggedFile:
    """Read a file of words in columns.

    Args:
        path: plain or compressed text.
        layout: its columns.
        labelled: the tags are needed; if not, the file may lack their column.
        encoding: of the file. Default: that of its byte order mark, else UTF-8.

    Raises:
        InputError: a line with another number of columns, an empty word or tag, no sentences;
            with file and line.
    """
    lines = [*read_lines(path, encoding=encoding)]
    marks = (DOCUMENT, layout.comment or "# ")
    first = next((line for _, line in lines if line.strip() and not line.startswith(marks)), "")
    if other_format(first) == "JSON":
        raise InputError("this is JSON; name the file .json or .jsonl.", place=Place(path))
    fields = first.split("\t")
    is_conllu = path.name.lower().endswith(".conllu") or (
        len(fields) == _CONLLU and fields[0] in ("1", "1-2", "0.1")
    )
    found = TaggedFile(COLUMNS, separator="\t" if len(fields) > 1 else " ")
    if is_conllu and layout.is_default:
        layout = ConllFormat(1, 3, "#")
        found.remarks.append("it is CoNLL-U: words in FORM (1), tags in UPOS (3)")

    def rows() -> Iterator[Row]:
        found_rows = _rows_of_lines(
            path, lines, found.separator, "#" if is_conllu else layout.comment
        )
        if not is_conllu:
            return iter(found_rows)
        # Ranges (2-3) and empty nodes (4.1) are no words.
        return (row for row in found_rows if not row[1] or row[1][0].isdecimal())

    number, values = next((row for row in rows() if row[1]), (0, None))
    if not values:
        raise InputError("has no sentences; it needs one word per line.", place=Place(path))
    named = _named_columns(values) if layout.is_default else None  # with spaces between them
    columns = named or _numbered_columns(values, layout, Place(path, number), labelled=labelled)
    every = rows() if named is None else (row for row in rows() if row[0] != number)
    _collect(path, every, columns, layout, found, labelled=labelled)
    return found


def _rows_of_lines(
    path: Path, lines: Sequence[tuple[int, str]], separator: str, comment: str
) -> Iterable[Row]:
    marks = next((n for n, (_, line) in enumerate(lines) if '"' in line), None)
    quoted = separator == "\t" and marks is not None
    quoted = quoted and encloses_fields([line for _, line in lines[marks:][:_SAMPLE]])
    begins, marked = True, (DOCUMENT, comment or DOCUMENT)
    for number, line in lines:
        if not line.strip():
            begins = True
            yield number, ()
            continue
        if line.startswith(marked):
            if line.startswith((DOCUMENT, "# newdoc")):
                yield number, None
            continue
        if separator == " ":
            values = _SPACES.split(line.strip(" \t"))  # a no-break space is a word, not a separator
        elif quoted and '"' in line:
            (values,) = csv.reader([line], delimiter="\t")
        else:
            values = line.split("\t")
        if begins and line[0] == "#" and _COMMENT.match(line) and not _is_tag(values[-1]):
            raise InputError(
                f"the line begins with {line[:20]!r}: is it a comment, or a word?",
                place=Place(path, number),
                option="tagging_comment",
            )
        begins = False
        yield number, values


def _is_tag(value: str) -> bool:
    return value.isupper() or value == "#" or TAG.fullmatch(value) is not None


def read_word_rows(
    path: Path, items: Iterable[Item], layout: ConllFormat, *, labelled: bool
) -> TaggedFile:
    """Read a table with a word and its tag in each row: CSV, a sheet, Parquet or JSON.

    A sentence ends where its column says so, or at a blank line or row of CSV and sheets.

    Args:
        path: the file.
        items: its rows.
        layout, labelled: as for :func:`read_conll`.

    Raises:
        InputError: a row cannot be read, or no column is named for words or tags.
    """
    found, items = TaggedFile(TABLE), iter(items)
    place, item = next(items, (Place(path), {}))
    names = [*item]
    columns = _named_columns(names) if layout.is_default else None
    if columns is not None:
        read = {"words in": columns.word, "tags in": columns.tag, "sentences by": columns.sentence}
        said = [f"{what} {names[n]!r}" for what, n in read.items() if n is not None]
        found.remarks.append(", ".join(said))
    elif layout.is_default:
        raise InputError(
            f"expected columns named word and tag, found {listed(names)}.",
            place=Place(path, 1),
            option="tagging_word",
        )
    else:
        columns = _numbered_columns(names, layout, place, labelled=labelled)
    in_lines = table_suffix(path) not in JSON
    rows = _rows_of_items(chain([(place, item)], items), names, columns, in_lines=in_lines)
    _collect(path, rows, columns, layout, found, labelled=labelled)
    return found


def _rows_of_items(
    items: Iterable[Item], names: Sequence[str], columns: _Columns, *, in_lines: bool
) -> Iterator[Row]:
    """The rows of a table, with a blank one before each sentence that a column numbers, and a
    document's beginning where its column changes. An empty cell is the one above.

    Raises:
        InputError: a sentence goes on after others.
    """
    last, document, sentence = 0, "", ""
    seen: dict[str, int] = {}
    for place, item in items:
        if not isinstance(item, dict):
            raise InputError(f"expected an object, found {shown(item)}.", place=place)
        number = place.row or last + 1
        if in_lines and 0 < last < number - 1:
            yield number, ()
        last = number
        values = ["" if value is None else str(value) for value in map(item.get, names)]
        value = "" if columns.document is None else values[columns.document].strip()
        if value not in ("", "nan", document):
            document, sentence, seen = value, "", {}
            yield number, None
        value = "" if columns.sentence is None else values[columns.sentence].strip()
        if value not in ("", "nan", sentence):
            if seen.get(value):
                raise InputError(
                    f"sentence {value!r} goes on, and others stand between; sort the rows.",
                    place=place,
                )
            sentence, seen = value, {} if value in seen else seen  # numbered anew
            seen[value] = len(seen)
            yield number, ()
        yield number, values


def are_word_rows(item: object) -> bool:
    """Whether an object has a word and its tag."""
    if not isinstance(item, dict) or (columns := _named_columns([*item])) is None:
        return False
    return not isinstance([*item.values()][columns.word], list | dict)


def _collect(
    path: Path,
    rows: Iterable[Row],
    columns: _Columns,
    layout: ConllFormat,
    found: TaggedFile,
    *,
    labelled: bool,
) -> None:
    """Add the sentences of rows to a file."""
    sample: list[Sequence[str]] = []
    words, lines, tags, document = list[str](), list[int](), list[str](), 0
    for number, values in rows:
        if not values:
            found.add(words, lines, tags, document)
            words, lines, tags = [], [], []
            document += values is None
            continue
        if len(sample) < _LOOKED_AT:
            sample.append(values)
        if len(values) != len(sample[0]):
            raise InputError(
                f"expected {counted(len(sample[0]), 'column')} as in the lines before, found "
                f"{len(values)}: {listed(values, 6)}.",
                place=Place(path, number),
                option="tagging_comment" if values[0].startswith("#") else None,
            )
        word = values[columns.word]
        tag = "" if columns.tag is None else values[columns.tag].strip()
        problem = "" if word else "the word is empty."
        if labelled and tag in ("", "_"):  # as CoNLL-U says that there is none
            problem = problem or f"the tag is {tag or 'empty'}."
        if "\n" in word or word.startswith(_LISTS):
            problem = f"expected one word per row, found {word[:40]!r}."
        if problem:
            raise InputError(problem, place=Place(path, number))
        words.append(word.strip(" ") or word)
        lines.append(number)
        tags.append(tag)
    found.add(words, lines, tags, document)
    if not found.words:
        raise InputError("has no sentences; it needs one word per line.", place=Place(path))
    if columns.tag is None:
        found.tags = None
    if layout.is_default:
        _check_columns(path, found, sample, columns, labelled=labelled)


def _numbered_columns(
    first: Sequence[str], layout: ConllFormat, place: Place, *, labelled: bool
) -> _Columns:
    width = len(first)
    word, tag = (n + width if n < 0 else n for n in (layout.word, layout.tag))
    has_tag = 0 <= tag < width and tag != word
    name = "" if has_tag or not labelled else "tag"
    if name := name if 0 <= word < width else "word":
        raise InputError(
            f"has {counted(width, 'column')}, so there is no column {getattr(layout, name)} for "
            f"the {name}: {listed(first, 6)}.",
            place=place,
            option=f"tagging_{name}",
        )
    return _Columns(word, tag if has_tag else None)


def _check_columns(
    path: Path,
    found: TaggedFile,
    sample: Sequence[Sequence[str]],
    columns: _Columns,
    *,
    labelled: bool,
) -> None:
    """Refuse columns that hold something else than words and tags, and note other tags."""
    words = [word for sentence in found.words for word in sentence]
    tags, place, width = found.all_tags(), Place(path, found.lines[0][0]), len(sample[0])
    are_tags = all(map(TAG.fullmatch, words)) and any("-" in word for word in words)
    if len(words) > 1 and width > 1 and (are_tags or all(map(str.isdecimal, words))):
        problem = f"the column of words holds {'tags' if are_tags else 'numbers'}."
        raise InputError(problem, place=place, option="tagging_word")
    languages = {match[0] if (match := _LANGUAGE.match(word)) else "" for word in words}
    if len(words) > 2 and len(languages) == 1 and languages != {""}:
        raise InputError(
            f"every word begins with {languages.pop()!r}, as in WikiANN; take it out.", place=place
        )
    single = all(len(sentence) == 1 for sentence in found.words)
    least = 2 if labelled or len(words) > 1 else 1
    ends = {row[-1] for row in sample}
    if single and found.separator == " " and width > least and not any(map(_is_tag, ends)):
        raise InputError("expected a word in each line, found running text.", place=place)
    for column in range(width) if labelled else ():
        values = {row[column].strip() for row in sample} - {"O"}
        is_read = column in (columns.word, columns.tag)
        if is_read or not values or not all(map(TAG.fullmatch, values)):
            continue
        what = f"column {column} has tags, too, such as {max(sorted(values), key=len)!r}"
        if len(tags) == 1 or not all(map(TAG.fullmatch, tags)):
            raise InputError(
                f"the last column has {max(sorted(tags), key=len)[:40]!r}, and {what}; name one.",
                place=place,
                option="tagging_tag",
            )
        found.remarks.append(
            f"{what}; those of the last column are read (tagging_tag names another)"
        )
