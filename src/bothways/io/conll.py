"""CoNLL files: one word per line with its columns, a blank line after each sentence.

Columns are separated by tabs if the first line with a word has one, otherwise by spaces and tabs;
so in a file with tabs a word may be a space (KLUE gives each character a line of its own). A line
of only spaces and tabs ends a sentence; a line that begins with -DOCSTART- ends a document. Where
all quotation marks are those of a CSV writer, they are read as such.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bothways.errors import InputError
from bothways.io.delimited import quoted_as_csv
from bothways.io.lines import listed, text_lines

DOCUMENT = "-DOCSTART-"


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


@dataclass(frozen=True)
class ConllFile:
    """The sentences of a file.

    Attributes:
        words: of each sentence, at least one.
        lines: the line of each word, from 1.
        tags: of each word, as written; None if the file has no such column.
        documents: the number of each sentence's document, not decreasing.
        separator: between columns.
    """

    words: list[list[str]]
    lines: list[list[int]]
    tags: list[list[str]] | None
    documents: list[int]
    separator: str


_RUNNING_TEXT = (
    "one word per line is expected, with blank lines between sentences. Running text is tagged by "
    "`bothways predict MODEL < FILE`"
)


@dataclass
class _SentenceCollector:
    """The sentences of a file read so far, and the words of the current one."""

    words: list[list[str]] = field(default_factory=list)
    lines: list[list[int]] = field(default_factory=list)
    tags: list[list[str]] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    document: int = 0
    current: list[tuple[str, int, str]] = field(default_factory=list)

    def end_sentence(self) -> None:
        if self.current:
            words, lines, tags = zip(*self.current, strict=True)
            self.words.append([*words])
            self.lines.append([*lines])
            self.tags.append([*tags])
            self.documents.append(self.document)
            self.current = []


def read_conll(path: Path, layout: ConllFormat, *, labelled: bool) -> ConllFile:
    """Read a file.

    Args:
        path: plain or compressed text.
        layout: its columns.
        labelled: the tags are needed; if not, the file may lack their column.

    Raises:
        InputError: a line without the column, an empty word or tag, no sentences, NULs, broken
            UTF-8; file and line are named.
    """
    collected, separator, columns = _SentenceCollector(), " ", 0
    lines = list(_content_lines(path, layout))
    quoted = _quoted_by_line([line for _, line in lines])
    for number, line in lines:
        if not line.strip(" \t"):
            collected.end_sentence()
            continue
        if re.match(rf"{DOCUMENT}[ \t]|{DOCUMENT}$", line):
            collected.end_sentence()
            collected.document += 1
            continue
        if not columns:
            separator = "\t" if "\t" in line else " "
        values = line.split("\t") if separator == "\t" else re.split("[ \t]+", line.strip(" \t"))
        if quoted and separator == "\t":
            values = next(csv.reader([line], delimiter="\t"))
        columns = columns or len(values)
        collected.current.append(
            _word_and_tag(values, columns, layout, path, number, labelled=labelled)
        )
    collected.end_sentence()
    if not collected.words:
        raise InputError("has no sentences; it needs one word per line.", path=path)
    has_tags = _column_numbers(columns, layout)[1] is not None
    if not labelled and _looks_like_text(collected, columns):
        raise InputError(f"{_RUNNING_TEXT}.", path=path)
    return ConllFile(
        collected.words,
        collected.lines,
        collected.tags if has_tags else None,
        collected.documents,
        separator,
    )


def _quoted_by_line(lines: list[str]) -> bool:
    """Whether a CSV writer wrote the file, so that the word ``"`` is ``\"\"\"\"``."""
    return all(line.count('"') % 2 == 0 for line in lines) and quoted_as_csv(lines)


def _looks_like_text(collected: _SentenceCollector, columns: int) -> bool:
    """Whether lines of several words were taken for words with further columns.

    Several lines of two columns are sentences of one word, such as ``Yes UH``.
    """
    last_column = {tag for tags in collected.tags for tag in tags}
    single = all(len(words) == 1 for words in collected.words)
    tagged = any(tag == "O" or "-" in tag for tag in last_column)
    return single and not tagged and columns > (1 if len(collected.words) == 1 else 2)


def _content_lines(path: Path, layout: ConllFormat) -> Iterator[tuple[int, str]]:
    """The lines that are not comments, with their numbers."""
    for number, line in text_lines(path):
        if not (layout.comment and line.startswith(layout.comment)):
            yield number, line


def _column_numbers(columns: int, layout: ConllFormat) -> tuple[int | None, int | None]:
    """The columns of word and tag, from 0; None if there is no such column."""
    word, tag = (i + columns if i < 0 else i for i in (layout.word, layout.tag))
    return (
        word if 0 <= word < columns else None,
        tag if 0 <= tag < columns and tag != word else None,
    )


def _word_and_tag(
    values: list[str],
    columns: int,
    layout: ConllFormat,
    path: Path,
    number: int,
    *,
    labelled: bool,
) -> tuple[str, int, str]:
    """Word, line number and tag of a line."""
    word, tag = _column_numbers(columns, layout)
    if len(values) != columns or word is None or (labelled and tag is None):
        problem = (
            f"but the lines before have {columns} (a comment? task.tagging.comment names how such "
            "lines begin)"
        )
        if not labelled:
            problem += f"; {_RUNNING_TEXT}"
        if len(values) == columns:
            name, column = ("word", layout.word) if word is None else ("tag", layout.tag)
            problem = f"so there is no column {column} for the {name} (task.tagging.{name})"
        raise InputError(
            f"has {len(values)} column{'s' * (len(values) > 1)}, {problem}: {listed(values, 6)}.",
            path=path,
            line=number,
        )
    if not values[word] or (labelled and not values[tag or 0].strip()):
        name = "word" if not values[word] else "tag"
        raise InputError(f"the {name} is empty.", path=path, line=number)
    return values[word], number, "" if tag is None else values[tag].strip()
