"""Tables with a word and its tag in each row: CSV and TSV with a line of names, spreadsheets,
Parquet, and objects of JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from bothways.errors import InputError
from bothways.io.column_forms import (
    COUNT_NAMES,
    DOCUMENT_NAMES,
    END_NAMES,
    LOOKED_AT,
    NUMBER_NAMES,
    SENTENCE_NAMES,
    START_NAMES,
    TAG,
    TAG_NAMES,
    WORD_NAMES,
    column_of,
    names_columns,
    refuse_numbers_of_sentences,
)
from bothways.io.conll import (
    LONG_SENTENCE,
    ConllFile,
    ConllFormat,
    SentenceCollector,
    column_numbers,
)
from bothways.io.delimited import Record, delimited_records
from bothways.io.lines import Layout, column_name, listed
from bothways.io.text import beginning


def has_word_columns(path: Path) -> bool:
    """Whether the first line of a file names columns for words and tags."""
    first = next(
        (line for line in beginning(path).lstrip("\ufeff").split("\n") if line.strip()), ""
    )
    header = re.split("[\t,;|]", first.strip("\r"))
    return names_columns([name.strip(' "') for name in header])


@dataclass(frozen=True)
class _WordColumns:
    """Where the words, tags and sentences of a file with a word a row are, by number.

    Attributes:
        word, tag, sentence, document: the columns; None: there is none.
        named_by_line: 1 if the first line names columns, 0 if it is a word already.
        shown: the columns in words.
    """

    word: int
    tag: int | None
    sentence: int | None
    document: int | None
    named_by_line: int
    shown: str


def _word_columns(
    path: Path, header: list[str], line: int, layout: ConllFormat, *, labelled: bool
) -> _WordColumns:
    """The columns by the names in the first line, or by the numbers of a layout.

    Raises:
        InputError: there are no such columns.
    """
    word, tag = column_of(header, WORD_NAMES), column_of(header, TAG_NAMES)
    sentence, skipped = column_of(header, SENTENCE_NAMES), 1
    by_number = (layout.word, layout.tag) != (0, -1)
    of_texts = word is None or header[word].lower() == "text"
    if of_texts and None not in (column_of(header, START_NAMES), column_of(header, END_NAMES)):
        raise InputError(
            f"its rows are spans, not words; its columns are {listed(header)}. Write texts with "
            'their spans: {"text": ..., "spans": [{"start": 0, "end": 4, "label": "PER"}]}.',
            path=path,
            line=line,
        )
    named = not by_number and word is not None and (tag is not None or not labelled)
    if not named:
        looks_tagged = header[-1] == "O" or re.match("[BIESLU][-_]", header[-1]) is not None
        if not by_number and not (looks_tagged and len(header) > 1):
            missing = "words" if word is None else "tags"
            raise InputError(
                f"the first line names no column of {missing}; its columns are {listed(header)}. "
                "Call them word, tag and sentence_id, or give their numbers, from 0, as "
                "task.tagging.word and task.tagging.tag.",
                path=path,
                line=line,
            )
        word, tag = column_numbers(len(header), layout)
        if looks_tagged:
            sentence, skipped = None, 0
    if word is None or (labelled and tag is None):
        raise InputError(
            f"has {len(header)} columns; task.tagging.word is {layout.word} and task.tagging.tag "
            f"{layout.tag}.",
            path=path,
        )
    shown = f"words in {header[word]!r}" if named else f"words in column {word}"
    if tag is not None:
        shown += f", tags in {header[tag]!r}" if named else f", tags in {tag}"
    if sentence is not None:
        shown += f", sentences by {header[sentence]!r}"
    document = column_of(header, DOCUMENT_NAMES) if skipped else None
    document = None if document in (word, tag, sentence) else document
    return _WordColumns(word, tag, sentence, document, skipped, shown)


def read_word_rows(path: Path, layout: ConllFormat, *, labelled: bool) -> ConllFile:
    """Read a CSV or TSV file with a word and its tag in each row.

    A sentence ends where the value of the column of sentences changes; where it has none it goes
    on, as it is written on the first row only in many files. Without such a column, blank lines
    end sentences.

    Args:
        path: the file.
        layout: columns of words and tags by number, if they are not named so that they are known.
        labelled: the tags are needed.

    Raises:
        InputError: a row that cannot be read, or no such columns.
    """
    _, records = delimited_records(path, (), Layout(header=True))
    return word_rows(path, list(records), layout, labelled=labelled)


def _with_tags_of_a_scheme(
    columns: _WordColumns, header: list[str], table: Sequence[Sequence[str]]
) -> _WordColumns:
    """Of several columns whose names are those of tags, the one that has a scheme's, if the first
    has none; said as it is."""
    table = [row for row in table[1:] if len(row) == len(header)]
    if not (columns.named_by_line and columns.tag is not None and table):
        return columns
    plain = [re.sub("[^a-z]", "", name.lower()) for name in header]
    named = [n for n, name in enumerate(plain) if name in TAG_NAMES and n != columns.word]

    def follows(column: int) -> bool:
        tags = {row[column].strip() for row in table} - {""}
        return len(tags) > 1 and all(map(TAG.fullmatch, tags))

    others = [n for n in named if n != columns.tag and follows(n)]
    if columns.tag not in named or follows(columns.tag) or not others:
        return columns
    before, now = f"tags in {header[columns.tag]!r}", f"tags in {header[others[0]]!r}"
    shown = columns.shown.replace(before, f"{now} (not in {header[columns.tag]!r})")
    return replace(columns, tag=others[0], shown=shown)


def have_words(items: Sequence[object]) -> bool:
    """Whether objects have a word each, and a tag or the number of its sentence."""
    return bool(items) and all(isinstance(item, dict) and _has_word(item) for item in items)


def _has_word(item: dict[str, Any]) -> bool:
    names = [*item]
    word = column_of(names, tuple(name for name in WORD_NAMES if name != "text"))
    others = {column_of(names, TAG_NAMES), column_of(names, SENTENCE_NAMES)} - {None, word}
    if word is None or not others or any(isinstance(v, list | dict) for v in item.values()):
        return False
    return len(str(item[names[word]] or "").split()) < 2


def words_of_objects(
    path: Path, items: Sequence[tuple[int, dict[str, Any]]], layout: ConllFormat, *, labelled: bool
) -> ConllFile:
    """:func:`read_word_rows` for rows that are objects, as spreadsheets and JSON have them.

    Raises:
        InputError: as there.
    """
    names = [*items[0][1]]
    rows = [(items[0][0] - 1, names, "")]
    for number, item in items:
        values = ["" if item.get(name) is None else str(item[name]) for name in names]
        rows.append((number, values, ""))
    return word_rows(path, rows, layout, labelled=labelled)


@dataclass
class _Ends:
    """Where sentences and documents of a table end, told row by row.

    Attributes:
        columns: of the table.
        numbered: the column that counts the words of each sentence; None if there is none.
        document, sentence: what the columns of these held last.
        place: the number of the last word.
        expected: the line of the next row, if no blank line is before it.
        seen: the sentences of the document.
        again: how many have the number of one that came before another.
    """

    columns: _WordColumns
    numbered: int | None
    document: str = ""
    sentence: str = ""
    place: int = -1
    expected: int = 0
    seen: set[str] = field(default_factory=set)
    again: int = 0

    def before(self, values: Sequence[str], number: int, raw: str) -> str:
        """What ends before a row: a ``document``, a ``sentence``, or nothing."""
        blank = number > self.expected > 0
        self.expected = number + raw.count("\n") + 1
        of_document = self.columns.document
        text = "" if of_document is None else values[of_document].strip()
        ended = "document" if text not in ("", self.document) else ""
        if ended:
            self.document, self.sentence, self.place = text, "", -1
            self.seen.clear()
        if self._ends_sentence(values, blank=blank):
            ended = ended or "sentence"
        return ended

    def _ends_sentence(self, values: Sequence[str], *, blank: bool) -> bool:
        if self.columns.sentence is not None:
            value = values[self.columns.sentence].strip()
            if not value or value.lower() == "nan" or value == self.sentence:
                return False
            self.sentence, self.again = value, self.again + (value in self.seen)
            self.seen.add(value)
            return True
        if self.numbered is not None:
            last, self.place = self.place, int(values[self.numbered])
            return self.place <= last
        return blank

    def notes(self, header: Sequence[str]) -> list[str]:
        """As sentences."""
        notes = []
        if self.numbered is not None:
            notes.append(f"a sentence begins where the numbers in {header[self.numbered]!r} do")
        if self.again:
            notes.append(
                f"{self.again:,} sentences have an id that came before; each run of one is a "
                "sentence of its own (if their rows are out of order, sort them)"
            )
        return notes


def word_rows(
    path: Path, rows: Sequence[Record], layout: ConllFormat, *, labelled: bool
) -> ConllFile:
    """:func:`read_word_rows` for rows that were taken apart, that of the names first."""
    header = [column_name(name) for name in rows[0][1]]
    columns = _word_columns(path, header, rows[0][0], layout, labelled=labelled)
    if (layout.word, layout.tag) == (0, -1):
        begun = [values for _, values, _ in rows[: LOOKED_AT + 1]]
        columns = _with_tags_of_a_scheme(columns, header, begun)
        named = bool(columns.named_by_line)
        refuse_numbers_of_sentences(path, begun[named:], ",", named=named)
    word, tag, sentence = columns.word, columns.tag, columns.sentence
    rows = rows[columns.named_by_line :]
    collected, blank = SentenceCollector(), 0
    by_number = None if sentence is not None else _numbers_of_words(header, rows, (word, tag))
    ends = _Ends(columns, by_number)
    for number, values, raw in rows:
        _refuse_ragged(values, header, path, number)
        if ended := ends.before(values, number, raw):
            collected.end_sentence()
            collected.document += ended == "document"
        own = "" if tag is None else values[tag].strip()
        if not values[word].strip() and own in ("", "O"):
            blank += 1
            if sentence is None and not own:
                collected.end_sentence()
            continue
        _refuse_no_word(values[word], own, path, number, labelled=labelled)
        collected.current.append((values[word], number, own))
    remarks = [f"it has a word per row: {columns.shown}", *ends.notes(header)]
    if blank:
        remarks.append(f"{blank:,} rows without a word are left out")
    collected.end_sentence()
    if len(collected.words) == 1 and len(collected.words[0]) > LONG_SENTENCE:
        remarks.append(
            "it has no column of sentences and no blank lines, so it is one sentence; a column "
            "sentence_id tells them apart"
        )
    if not collected.words:
        raise InputError("has no words.", path=path)
    _refuse_texts_as_words(collected.words, path)
    return ConllFile(
        collected.words,
        collected.lines,
        None if tag is None else collected.tags,
        collected.documents,
        "\t",
        tuple(remarks),
    )


def _numbers_of_words(
    header: Sequence[str], rows: Sequence[Record], others: Sequence[int | None]
) -> int | None:
    """The column that counts the words of each sentence, from 0 or 1; None if there is none."""
    column = column_of([*header], NUMBER_NAMES)
    least = 1 if column is not None else 2  # or a column of marks, 0 and 1
    column = column_of([*header], COUNT_NAMES) if column is None else column
    cells = [values[column] for _, values, _ in rows if column is not None and len(values) > column]
    if column is None or column in others or not (cells and all(map(str.isdecimal, cells))):
        return None
    numbers = [*map(int, cells)]
    steps = [*pairwise(numbers)]
    counts = numbers[0] < 2 and all(b == a + 1 or b < 2 for a, b in steps)
    begins = any(b < 2 and b <= a for a, b in steps)
    return column if counts and begins and max(numbers) >= least else None


def _refuse_ragged(values: Sequence[str], header: Sequence[str], path: Path, line: int) -> None:
    if len(values) != len(header):
        raise InputError(
            f"has {len(values)} columns where line 1 has {len(header)}: {listed(values, 6)}.",
            path=path,
            line=line,
        )


def _refuse_texts_as_words(sentences: Sequence[Sequence[str]], path: Path) -> None:
    """Refuse rows most of which hold several words, as those of texts with labels do."""
    words = [*islice((word for sentence in sentences for word in sentence), LOOKED_AT)]
    several = [word for word in words if len(word.split()) > 1]
    if 2 * len(several) > len(words):
        raise InputError(
            f"its rows hold texts, such as {several[0][:40]!r}, and a row is one word here; labels "
            "of whole texts want another --kind, tags of words a word a row.",
            path=path,
        )


def _refuse_no_word(text: str, tags: str, path: Path, line: int, *, labelled: bool) -> None:
    """Refuse a row that is no word with its tag: a part is empty, or it is a text with all of its
    tags or spans, or several rows by a quotation mark."""
    if not text.strip() or (labelled and not tags):
        name = "word" if not text.strip() else "tag"
        remedy = "" if name == "word" else "; write O for a word of no entity"
        raise InputError(f"the {name} is empty{remedy}.", path=path, line=line)
    if "\n" in text:
        raise InputError(
            f"a word holds a line break, {text[:40]!r}; a quotation mark that is a word is written "
            '"""" in such a file (sed \'s/^",/"""",/\' OLD > NEW, where words stand first).',
            path=path,
            line=line,
        )
    words = len(text.split())
    if words > 1 and words == len(re.split(r"[\s,]+", tags)) and _TAG_LIST.search(tags):
        raise InputError(
            f"a row holds a sentence with {words} tags, {tags[:40]!r}, not a word; write a word a "
            'row, or {"tokens": [...], "tags": [...]} per line in a .jsonl file.',
            path=path,
            line=line,
        )
    if tags.startswith(("[", "{")) and tags.endswith(("]", "}")):
        raise InputError(
            f"the tag is {tags[:40]!r}: rows of this file are texts with a list of annotations, "
            "not words. Export them as JSON.",
            path=path,
            line=line,
        )


_TAG_LIST = re.compile(r"(^|[\s,])(O|[BIESLUMW][-_][^\s,]+)([\s,]|$)")
