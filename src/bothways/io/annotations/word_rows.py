"""Tables with a word and its tag in each row: CSV and TSV with a line of names, spreadsheets,
Parquet, and objects of JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.annotations.column_forms import (
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
    columns_of,
    names_columns,
    refuse_numbers_of_sentences,
)
from bothways.io.annotations.conll import (
    ConllFile,
    ConllFormat,
    SentenceCollector,
    column_numbers,
)
from bothways.io.broken import Broken
from bothways.io.delimited import delimited_records, remove_above, title_above
from bothways.io.fields import Record
from bothways.io.frames import NoValue
from bothways.io.lines import Layout, column_name, listed
from bothways.io.terminal import counted
from bothways.io.text import beginning
from bothways.io.text_columns import TEXT_NAMES

_EMPTY = " \t\r\n"
"""What may stand in an empty cell; a no-break space is a word."""


def has_word_columns(path: Path) -> bool:
    """Whether the first line of a file names columns for words and tags."""
    lines = enumerate(beginning(path).split("\n"), start=1)
    begun = [(number, line.strip("\r")) for number, line in lines if line.strip()][:LOOKED_AT]
    while len(begun) > 1 and begun[0][1].startswith("#") and not _names_words(begun[0][1]):
        begun.pop(0)  # a comment
    named = title_above(begun[:-1]) or (begun[0][0] if begun else 0)
    return any(_names_words(line) for number, line in begun if number == named)


def _names_words(line: str) -> bool:
    return names_columns([name.strip(' "') for name in re.split("[\t,;|]", line)])


@dataclass(frozen=True)
class _WordColumns:
    """Where the words, tags and sentences of a file with a word a row are, by number.

    Attributes:
        word, tag, sentence, document: the columns; None: there is none.
        header: the first line.
        is_word: the first line has a word already, and names nothing.
        by_name: words and tags are found by the names in the first line.
        passed_over: a column that is named as tags are, in place of which another is read.
    """

    word: int
    tag: int | None
    sentence: int | None
    document: int | None
    header: Sequence[str]
    is_word: bool
    by_name: bool
    passed_over: int | None = None

    @property
    def shown(self) -> str:
        """The columns in words."""
        shown = f"words in {self._called(self.word)}"
        if self.tag is not None:
            shown += f", tags in {self._called(self.tag)}"
        if self.passed_over is not None:
            shown += f" (not in {self._called(self.passed_over)})"
        if self.sentence is not None:
            shown += f", sentences by {self.header[self.sentence]!r}"
        return shown

    def _called(self, column: int) -> str:
        return repr(self.header[column]) if self.by_name else f"column {column}"


def _word_columns(
    path: Path, header: list[str], line: int, layout: ConllFormat, *, labelled: bool
) -> _WordColumns:
    """The columns by the names in the first line, or by the numbers of a layout.

    Raises:
        InputError: there are no such columns.
    """
    word, tag = column_of(header, WORD_NAMES), column_of(header, TAG_NAMES)
    _refuse_spans(header, word)
    by_name = layout.is_default and word is not None and (tag is not None or not labelled)
    is_word = not by_name and TAG.fullmatch(header[-1]) is not None
    if not by_name:
        if layout.is_default and not (is_word and len(header) > 1):
            missing = "words" if word is None else "tags"
            raise InputError(
                f"the first line names no column of {missing}; its columns are {listed(header)}. "
                "Call them word, tag and sentence_id, or give their numbers, from 0, as "
                "task.tagging.word and task.tagging.tag.",
                place=Place(path, line),
            )
        word, tag = column_numbers(len(header), layout)
    if word is None or (labelled and tag is None):
        raise InputError(
            f"has {len(header)} columns; task.tagging.word is {layout.word} and task.tagging.tag "
            f"{layout.tag}.",
            place=Place(path),
        )
    sentence = None if is_word else column_of(header, SENTENCE_NAMES)
    document = None if is_word else column_of(header, DOCUMENT_NAMES)
    document = None if document in (word, tag, sentence) else document
    return _WordColumns(word, tag, sentence, document, header, is_word, by_name)


def _refuse_spans(header: Sequence[str], word: int | None) -> None:
    """Refuse a table that has texts with the places of spans in them."""
    is_text = word is None or header[word].lower() == "text"
    if is_text and None not in (column_of(header, START_NAMES), column_of(header, END_NAMES)):
        raise InputError(
            f"its rows are spans, not words; its columns are {listed(header)}. Write texts with "
            'their spans: {"text": ..., "spans": [{"start": 0, "end": 4, "label": "PER"}]}.'
        )


def _with_tags_of_a_scheme(columns: _WordColumns, table: Sequence[Sequence[str]]) -> _WordColumns:
    """Of several columns that are named as tags are, the first that has those of a scheme, if that
    which was found has none."""
    table = [row for row in table if len(row) == len(columns.header)]

    def follows(column: int) -> bool:
        tags = {row[column].strip() for row in table} - {""}
        return len(tags) > 1 and all(map(TAG.fullmatch, tags))

    if not columns.by_name or columns.tag is None or follows(columns.tag):
        return columns
    named = {*columns_of(columns.header, TAG_NAMES)} - {columns.word, columns.tag}
    other = next((n for n in sorted(named) if follows(n)), None)
    return columns if other is None else replace(columns, tag=other, passed_over=columns.tag)


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
    broken = Broken()
    _, records = delimited_records(path, (), Layout(header=True), broken)
    found = word_rows(path, list(records), layout, labelled=labelled)
    return replace(found, remarks=(*broken.remarks, *found.remarks))


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
    names = [*dict.fromkeys(name for _, item in items for name in item)]
    rows = [(items[0][0] - 1, names, "")]
    for number, item in items:
        rows.append((number, [_as_cell(item.get(name)) for name in names], ""))
    return word_rows(path, rows, layout, labelled=labelled)


def _as_cell(value: Any) -> str:
    if isinstance(value, NoValue):
        return value
    return "" if value is None else str(value)


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

    @property
    def remarks(self) -> list[str]:
        """As sentences."""
        remarks, header = [], self.columns.header
        if self.numbered is not None:
            remarks.append(f"a sentence begins where the numbers in {header[self.numbered]!r} do")
        if self.again:
            remarks.append(
                f"{counted(self.again, 'sentence')} with an id that came before: each run of one "
                "is a sentence of its own (if their rows are out of order, sort them)"
            )
        return remarks


def word_rows(
    path: Path, rows: Sequence[Record], layout: ConllFormat, *, labelled: bool
) -> ConllFile:
    """:func:`read_word_rows` for rows that were taken apart, that of the names first."""
    first = rows[0][0]
    header = [column_name(name) for name in rows[0][1]]
    try:
        columns = _word_columns(path, header, first, layout, labelled=labelled)
    except InputError as error:
        line = title_above([(number, raw) for number, _, raw in rows[:LOOKED_AT] if raw])
        if line is not None:
            error.problem = remove_above(line)
        elif problem := _sentence_a_row(header, rows[1:2]):
            error.problem = problem
        error.place = error.place or Place(path, first)
        raise
    rows = rows if columns.is_word else rows[1:]
    if layout.is_default:
        begun = [values for _, values, _ in rows[:LOOKED_AT]]
        columns = _with_tags_of_a_scheme(columns, begun)
        if columns.is_word:
            refuse_numbers_of_sentences(path, begun, ",")
    word, tag = columns.word, columns.tag
    collected, without_word = SentenceCollector(), 0
    by_number = None if columns.sentence is not None else _numbers_of_words(rows, columns)
    ends = _Ends(columns, by_number)
    for number, values, raw in rows:
        try:
            _refuse_ragged(values, header, first)
            if ended := ends.before(values, number, raw):
                collected.end_sentence()
                collected.document += ended == "document"
            _refuse_no_value(values, header, [word, tag] if labelled else [word])
            own = "" if tag is None else values[tag].strip()
            if not values[word].strip(_EMPTY) and own in ("", "O"):
                without_word += 1
                if columns.sentence is None and not own:
                    collected.end_sentence()
                continue
            _refuse_lists(values, columns)
            _refuse_no_word(values[word], own, labelled=labelled)
        except InputError as error:
            error.place = error.place or Place(path, number)
            raise
        collected.current.append((values[word], number, own))
    collected.end_sentence()
    of_texts = tag is None and header[word].casefold() in TEXT_NAMES and not columns.is_word
    _refuse_texts_as_words(collected.words, path, most=not of_texts)
    remarks = [f"it has a word per row: {columns.shown}", *ends.remarks]
    if without_word:
        remarks.append(f"{without_word:,} rows without a word are left out")
    return collected.file(
        path,
        "\t",
        remarks,
        has_tags=tag is not None,
        without_ends="no column of sentences, such as sentence_id, and no blank lines",
    )


def _numbers_of_words(rows: Sequence[Record], columns: _WordColumns) -> int | None:
    """The column that counts the words of each sentence, from 0 or 1; None if there is none."""
    column, least = column_of(columns.header, NUMBER_NAMES), 1
    if column is None:  # or a column of marks, 0 and 1
        column, least = column_of(columns.header, COUNT_NAMES), 2
    others = (columns.word, columns.tag)
    cells = [values[column] for _, values, _ in rows if column is not None and len(values) > column]
    if column is None or column in others or not (cells and all(map(str.isdecimal, cells))):
        return None
    numbers = [*map(int, cells)]
    steps = [*pairwise(numbers)]
    counts = numbers[0] < 2 and all(b == a + 1 or b < 2 for a, b in steps)
    begins = any(b < 2 and b <= a for a, b in steps)
    return column if counts and begins and max(numbers) >= least else None


def _refuse_ragged(values: Sequence[str], header: Sequence[str], first: int) -> None:
    if len(values) != len(header):
        raise InputError(
            f"has {len(values)} columns where line {first} has {len(header)}: {listed(values, 6)}."
        )


def _refuse_no_value(
    values: Sequence[str], header: Sequence[str], needed: Sequence[int | None]
) -> None:
    for column in needed:
        if column is not None and isinstance(value := values[column], NoValue):
            raise InputError(f"column {header[column]!r} {value.problem}.")


def _refuse_texts_as_words(sentences: Sequence[Sequence[str]], path: Path, *, most: bool) -> None:
    """Refuse rows that hold several words, as those of texts with labels do: if most of them do, or
    one."""
    words = [*islice((word for sentence in sentences for word in sentence), LOOKED_AT)]
    several = [word for word in words if len(word.split()) > 1]
    if several and (2 * len(several) > len(words) or not most):
        raise InputError(
            f"its rows hold texts, such as {several[0][:40]!r}, and a row is one word here; for "
            "labels of whole texts choose another --kind, for tags of words write a word per row.",
            place=Place(path),
        )


def _sentence_a_row(header: Sequence[str], rows: Sequence[Record]) -> str:
    """What is wrong with a table that has the text of a sentence and a list of its tags in each
    row, and what to do; empty if it is none."""
    tag = column_of(header, TAG_NAMES)
    if tag is None or not rows or len(rows[0][1]) != len(header):
        return ""
    cells = rows[0][1]
    tags = re.findall(r"'([^']*)'", cells[tag]) if cells[tag].startswith("['") else []
    fitting = [n for n, cell in enumerate(cells) if n != tag and 1 < len(cell.split()) == len(tags)]
    text = next((n for n in fitting if not any(map(str.isdigit, cells[n]))), None)
    if text is None:
        return ""
    return (
        f"a row holds a sentence in {header[text]!r} and a list of its tags in {header[tag]!r}; "
        'write an object for each: python3 -c "import ast, csv, json, sys; [print(json.dumps({'
        f"'tokens': r['{header[text]}'].split(), 'tags': ast.literal_eval(r['{header[tag]}'])"
        '})) for r in csv.DictReader(sys.stdin)]" < OLD > NEW.jsonl.'
    )


def _refuse_lists(values: Sequence[str], columns: _WordColumns) -> None:
    """Refuse a row that holds the words and the tags of a sentence as lists."""
    word, tag = columns.word, columns.tag
    if tag is None or columns.is_word:
        return
    cells = [values[column].strip() for column in (word, tag)]
    if all(cell.startswith("[") and cell.endswith("]") and len(cell) > 2 for cell in cells):
        raise InputError(
            f"a row holds lists of words and of tags, {cells[1][:40]!r}; write an object for each: "
            'python3 -c "import ast, csv, json, sys; [print(json.dumps({'
            f"'tokens': ast.literal_eval(r['{columns.header[word]}']), "
            f"'tags': ast.literal_eval(r['{columns.header[tag]}'])"
            '})) for r in csv.DictReader(sys.stdin)]" < OLD > NEW.jsonl.'
        )


def _refuse_no_word(text: str, tags: str, *, labelled: bool) -> None:
    """Refuse a row that is no word with its tag: a part is empty, or it is a text with all of its
    tags or spans, or several rows by a quotation mark."""
    if (no_word := not text.strip(_EMPTY)) or (labelled and not tags):
        name = "word" if no_word else "tag"
        remedy = "" if name == "word" else "; write O for a word of no entity"
        raise InputError(f"the {name} is empty{remedy}.")
    if "\n" in text:
        raise InputError(
            f"a word holds a line break, {text[:40]!r}; a quotation mark that is a word is written "
            '"""" in such a file (sed \'s/^",/"""",/\' OLD > NEW, where words stand first).'
        )
    words, parts = len(text.split()), re.split(r"[\s,]+", tags)
    if 1 < words == len(parts) and any(map(TAG.fullmatch, parts)):
        raise InputError(
            f"a row holds a sentence with {words} tags, {tags[:40]!r}, not a word; write a word "
            'per row, or {"tokens": [...], "tags": [...]} per line in a .jsonl file.'
        )
    if tags.startswith(("[", "{")) and tags.endswith(("]", "}")):
        raise InputError(
            f"the tag is {tags[:40]!r}: rows of this file are texts with a list of annotations, "
            "not words. Export them as JSON."
        )
