"""CoNLL files: one word per line with its columns, a blank line after each sentence.

Columns are separated by tabs if the first line with a word has one, otherwise by spaces and tabs;
so in a file with tabs a word may be a space (KLUE gives each character a line of its own). A line
of only spaces and tabs ends a sentence; a line that begins with -DOCSTART- ends a document. Where
all quotation marks are those of a CSV writer, they are read as such.

CoNLL-U is recognised by its name or its numbered words. A CSV file, or a TSV file with a line of
column names, has one word per row (:mod:`bothways.io.annotations.word_rows`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path

from bothways.errors import InputError, Place
from bothways.io.annotations.column_forms import (
    LOOKED_AT,
    TAG,
    names_columns,
    refuse_numbers_of_sentences,
    refuse_other_forms,
)
from bothways.io.fields import fields_of, quoted_as_csv
from bothways.io.lines import INVISIBLE, listed, text_lines
from bothways.io.terminal import counted

DOCUMENT = "-DOCSTART-"
_DOCUMENT = re.compile(rf"{DOCUMENT}(?:[ \t]|$)")


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
        """Whether no columns were named, so that the file itself may tell where they are."""
        return (self.word, self.tag) == (0, -1)


@dataclass(frozen=True)
class ConllFile:
    """The sentences of a file.

    Attributes:
        words: of each sentence, at least one.
        lines: the line of each word, from 1.
        tags: of each word, as written; None if the file has no such column.
        documents: the number of each sentence's document, not decreasing.
        separator: between columns.
        remarks: what was recognised or left out, as sentences.
    """

    words: list[list[str]]
    lines: list[list[int]]
    tags: list[list[str]] | None
    documents: list[int]
    separator: str
    remarks: tuple[str, ...] = ()


_LONG_SENTENCE = 200
"""Words beyond which a file without the ends of sentences is told."""
_RUNNING_TEXT = (
    "one word per line is expected, with blank lines between sentences. Running text is tagged by "
    "`bothways predict MODEL < FILE`"
)


@dataclass
class SentenceCollector:
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

    def file(
        self, path: Path, separator: str, remarks: list[str], *, has_tags: bool, without_ends: str
    ) -> ConllFile:
        """All sentences, after the last line.

        Args:
            path: the file.
            separator: between its columns.
            remarks: on how it was read.
            has_tags: whether it has a column of tags.
            without_ends: what it lacks if all is one sentence, for a remark.

        Raises:
            InputError: there is no sentence.
        """
        self.end_sentence()
        if not self.words:
            raise InputError("has no sentences; it needs one word per line.", place=Place(path))
        if len(self.words) == 1 and len(self.words[0]) > _LONG_SENTENCE:
            remarks = [*remarks, f"it has {without_ends}, so it is one sentence"]
        return ConllFile(
            self.words,
            self.lines,
            self.tags if has_tags else None,
            self.documents,
            separator,
            tuple(remarks),
        )


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
    lines = text_lines(path)
    lines, remarks = _with_tabs(lines)
    if _is_conllu(path, [line for _, line in lines]):
        return _read_conllu(path, lines, layout, labelled=labelled)
    by_default = layout.is_default
    if by_default:
        refuse_other_forms(path, [line for _, line in lines], labelled=labelled)
    lines, layout = _prepared(path, lines, layout, remarks, labelled=labelled)
    collected, separator = SentenceCollector(), _separator(lines)
    rows = _Rows(lines, separator, _quoted_by_line([line for _, line in lines]))
    ends: Counter[str] = Counter()
    for number, line in lines:
        if _is_blank(line):
            collected.end_sentence()
            continue
        if _DOCUMENT.match(line):
            collected.end_sentence()
            collected.document += 1
            continue
        if rows.width > 1 and _END.fullmatch(line.strip()):
            collected.end_sentence()
            ends[line.strip()] += 1
            continue
        try:
            values = rows.values(line, labelled=labelled)
            word, tag = _word_and_tag(values, rows.width, layout, labelled=labelled)
        except InputError as error:
            error.place = error.place or Place(path, number)
            raise
        collected.current.append((word, number, tag))
    collected.end_sentence()
    for mark, count in ends.items():
        remarks.append(f"{count:,} lines {mark!r} end sentences")
    if rows.spaced:
        remarks.append(
            f"{counted(rows.spaced, 'line')} with spaces where the first has tabs between columns"
        )
    if labelled and by_default:
        _refuse_tags_first(collected, path)
        _refuse_texts(collected, path)
        remarks += _check_last_column(collected, lines, separator, path, word=layout.word)
    _refuse_running_text(collected, rows.width, separator, path, labelled=labelled)
    return collected.file(
        path,
        separator,
        remarks,
        has_tags=column_numbers(rows.width, layout)[1] is not None,
        without_ends="no blank lines, which end sentences",
    )


def _fields(line: str, separator: str, *, quoted: bool = False) -> list[str]:
    """The columns of a line."""
    if separator == " ":
        return re.split("[ \t]+", line.strip(" \t"))
    return fields_of(line, "\t") if quoted else line.split("\t")


_ODD_SPACES = {
    "\u3000": "wide spaces (U+3000)",
    "\u00a0": "no-break spaces (U+00A0)",
    "\u2003": "em spaces (U+2003)",
}


def _with_tabs(lines: list[tuple[int, str]]) -> tuple[list[tuple[int, str]], list[str]]:
    """Lines with tabs in place of odd spaces between columns, and a remark on it."""
    if not (odd := _odd_space([line for _, line in lines])):
        return lines, []
    tabs = [(number, re.sub(f"{odd}+", "\t", line.strip(odd))) for number, line in lines]
    return tabs, [f"its columns are separated by {_ODD_SPACES[odd]}, and are read as by tabs"]


def _odd_space(lines: Sequence[str]) -> str:
    """What stands between the columns of every line in place of tabs and spaces; empty if these
    do."""
    words = [line for line in lines[:LOOKED_AT] if _has_word(line)]
    if any(re.search("[ \t]", line.strip(" \t")) for line in words):
        return ""
    return next((s for s in _ODD_SPACES if words and all(s in w.strip(s) for w in words)), "")


@dataclass
class _Rows:
    """The lines of words of a file, as columns.

    Attributes:
        lines: of the file.
        separator: between columns.
        quoted: whether quotation marks may stand around them.
        width: how many columns the first line with a word has.
        spaced: lines with spaces where the first has tabs.
    """

    lines: Sequence[tuple[int, str]]
    separator: str
    quoted: bool
    width: int = 0
    spaced: int = 0

    def values(self, line: str, *, labelled: bool) -> list[str]:
        """The columns of a line.

        Raises:
            InputError: it has another number of them than the first, or is a title above them.
        """
        values = _fields(line, self.separator, quoted=self.quoted)
        first = not self.width
        self.width = self.width or len(values)
        if len(values) != self.width and self.separator == "\t" and line[0] != "#":
            by_spaces = _fields(line, " ")
            if len(by_spaces) == self.width:
                values, self.spaced = by_spaces, self.spaced + 1
        shown = f"has {len(values)} column{'s' * (len(values) != 1)}"
        if len(values) != self.width:
            remedy = self._without_title() or self._remedy(values)
            if not labelled:
                remedy += f". If its lines are no words, {_RUNNING_TEXT}"
            problem = (
                f"{shown}, but the lines before have {self.width}: {listed(values, 6)}; {remedy}."
            )
            raise InputError(problem)
        if first and labelled and len(values) == 1 and (remedy := self._without_title()):
            problem = f"{shown}, but the lines below have more: {listed(values)}; {remedy}."
            raise InputError(problem)
        return values

    def _without_title(self) -> str:
        """How to remove a title, if there is one above."""
        line = self._below_title()
        removed = f"what is above line {line} seems to be a title; remove it: tail -n +{line}"
        return f"{removed} OLD > NEW" if line else ""

    def _below_title(self) -> int:
        """The line after a title, which has another number of columns than those below; 0: there
        is none."""
        rows = [(number, line) for number, line in self.lines if _has_word(line)]
        widths = [len(_fields(line, self.separator, quoted=self.quoted)) for _, line in rows]
        (usual, times), *_ = Counter(widths).most_common(1)
        start = widths.index(usual)
        tagged = any(TAG.fullmatch(line.split()[-1]) for _, line in rows[:start])
        above = 0 < start <= _TITLE and not tagged and times >= 0.9 * (len(widths) - start)
        return rows[start][0] if above and self.width != usual and times > start else 0

    def _remedy(self, values: Sequence[str]) -> str:
        if mark := _COMMENT.match(values[0]):
            return (
                f"if it is a comment, name how such lines begin: --task.tagging.comment {mark[0]!r}"
            )
        if len(values) == 1:
            return "a word has its tag behind it in the same line (O for a word of no entity)"
        between = " -F '\\t'" if self.separator == "\t" else ""
        return (
            "where all words stand first and all tags last in their lines, keep these columns: "
            f"awk{between} 'NF > 1 {{print $1 \"\\t\" $NF}} NF < 2' OLD > NEW"
        )


_TITLE = 5  # lines
_COMMENT = re.compile(r"#+|%+|//|;+")


_END = re.compile(r"[<\[]?/?EOS[>\]]?|</?s>|[-=_*~]{3,}", re.IGNORECASE)
"""A line that stands for a blank one, as MeCab and others write it."""


def _prepared(
    path: Path,
    lines: list[tuple[int, str]],
    layout: ConllFormat,
    remarks: list[str],
    *,
    labelled: bool,
) -> tuple[list[tuple[int, str]], ConllFormat]:
    """The lines that hold words or end sentences, and their columns; adds to the remarks."""
    by_default = layout.is_default
    if layout.comment:
        lines = [(n, line) for n, line in lines if not line.startswith(layout.comment)]
    elif mark := _comments_before_sentences(lines):
        shown = mark.replace("\t", " ")
        remarks.append(f"each sentence begins with a line of {shown!r}, which is read as a comment")
        lines = _without_comments(lines, mark)
    if by_default and len(lines) > 1 and names_columns(lines[0][1].split()):
        remarks.append(f"line {lines[0][0]} names the columns and is left out")
        lines = lines[1:]
    if labelled and _end_in_tabs(lines):
        remarks.append("each line ends in a tab, which is left out")
        lines = [(number, line.removesuffix("\t")) for number, line in lines]
    if by_default and _numbers_words(lines, 3 if labelled else 2):
        layout = ConllFormat(1, layout.tag, layout.comment)
        remarks.append("its first column numbers the words, which are read from column 1")
        lines = _divided_at_ones(lines, remarks)
    elif by_default and labelled:
        refuse_numbers_of_sentences(path, _words_of(lines), _separator(lines))
    return lines, layout


def _is_blank(line: str) -> bool:
    """Whether a line shows nothing and has no columns; in a file with tabs a space is a word."""
    return not line.strip(" \t") or not ("\t" in line or line.strip(INVISIBLE).strip())


def _has_word(line: str) -> bool:
    return not (_is_blank(line) or line.startswith(DOCUMENT))


def _first_column(line: str) -> str:
    return re.split("[ \t]", line.strip(" \t"), maxsplit=1)[0]


def _separator(lines: Sequence[tuple[int, str]]) -> str:
    """What separates columns: tabs, if the first line with a word has one, or else spaces."""
    first = next((line for _, line in lines if _has_word(line)), "")
    return "\t" if "\t" in first else " "


def _words_of(lines: Sequence[tuple[int, str]]) -> list[list[str]]:
    """The columns of the first lines with words."""
    separator = _separator(lines)
    rows = (line for _, line in lines if _has_word(line))
    return [_fields(line, separator) for line in islice(rows, LOOKED_AT)]


def _end_in_tabs(lines: Sequence[tuple[int, str]]) -> bool:
    """Whether each line with a word ends in a tab, behind which there is nothing."""
    rows = _words_of(lines)
    return bool(rows) and all(len(row) > 2 and not row[-1].strip() for row in rows)


def _numbers_words(lines: Sequence[tuple[int, str]], columns: int) -> bool:
    """Whether the first of so many columns or more counts words, in each sentence or on and on."""
    table = _words_of(lines)
    if not all(len(row) >= columns and row[0].isdecimal() for row in table):
        return False
    if columns == 2 and all(TAG.fullmatch(row[1]) for row in table):
        return False  # words that are numbers, with tags that nobody needs
    first = last = None
    begins, rows = True, 0
    for _, line in lines:
        if not _has_word(line):
            begins = True
            continue
        if not (text := _first_column(line)).isdecimal():
            return False
        number, rows = int(text), rows + 1
        first = number if first is None else first
        goes_on = last is not None and number == last + 1
        again = number == first and last is not None and last > first
        if first > 1 or not (goes_on or again or (begins and number == first)):
            return False
        last, begins = number, False
    return rows > 1


def _divided_at_ones(lines: list[tuple[int, str]], remarks: list[str]) -> list[tuple[int, str]]:
    """Lines that number words, with a blank one where the numbers begin again without."""
    found: list[tuple[int, str]] = []
    last = -1
    for number, line in lines:
        if (first := _first_column(line)).isdecimal():
            if int(first) <= last:
                found.append((number, ""))
            last = int(first)
        else:
            last = -1
        found.append((number, line))
    if more := len(found) - len(lines):
        remarks.append(f"{counted(more, 'sentence')} without a blank line before: numbers begin")
    return found


def _check_last_column(
    collected: SentenceCollector,
    lines: Sequence[tuple[int, str]],
    separator: str,
    path: Path,
    *,
    word: int,
) -> list[str]:
    """Refuse the last column as that of the tags where it says nothing or has numbers, and another
    has tags; a remark where both have tags."""
    found = {tag for tags in collected.tags for tag in tags}
    numbers, said = all(map(_NUMBER.fullmatch, found)), len(found) > 1
    rows = (line for _, line in lines if _has_word(line))
    # Where it says nothing, all rows: tags may come late in the other column.
    table = [_fields(row, separator) for row in (islice(rows, LOOKED_AT) if said else rows)]
    if not table:
        return []
    width = min(map(len, table))
    if word and width > _CONLLU_COLUMNS:
        raise InputError(
            f"its words are numbered and have {width} columns, as in CoNLL-2009; name those of the "
            f"words and of the tags, from 0: --task.tagging.word {word} --task.tagging.tag 4 (the "
            "part of speech there).",
            place=Place(path),
        )
    for column in range(word + 1, width - 1):
        header = len(table) > 2 and TAG.fullmatch(table[0][column].strip()) is None
        tags = {row[column].strip() for row in table[header:]}
        if len(tags) < 2 or not all(map(TAG.fullmatch, tags)):
            continue
        if numbers or not said:
            what = f"{'numbers such as ' if said else ''}{min(found)!r}"
            raise InputError(
                f"every word has {what} in the last column, and tags stand in column {column}, "
                f"such as {_longest(tags)!r}; name the columns, from 0: "
                f"--task.tagging.word {word} --task.tagging.tag {column}.",
                place=Place(path),
            )
        follows = all(map(TAG.fullmatch, found))
        if header and follows:
            continue
        if not (follows or _may_be_tags(found)):
            named = (
                f"line {lines[0][0]} seems to name the columns; remove it. And " if header else ""
            )
            last, such = (_longest(one)[:40] for one in (found, tags))
            raise InputError(
                f"{named}the last column has {last!r}, and column {column} tags such as {such!r}; "
                f"name the columns, from 0: --task.tagging.word {word} --task.tagging.tag {column} "
                f"(the last is {width - 1}).",
                place=Place(path),
            )
        return [
            f"tags stand in column {column}, too, such as {_longest(tags)!r}; "
            "those of the last column are read (task.tagging.tag names another)"
        ]
    if not said and found <= {"_", "-"} and width > word + 2:
        column = 3 if width == _CONLLU_COLUMNS else width - 2
        raise InputError(
            f"every word has {found.pop()!r} in the last column; name the columns, from 0: "
            f"--task.tagging.word {word} --task.tagging.tag {column}.",
            place=Place(path),
        )
    return []


def _longest(tags: Iterable[str]) -> str:
    """A tag as an example: that of O says least."""
    return max(sorted(tags), key=len)


def _may_be_tags(tags: set[str]) -> bool:
    """Whether they may be a scheme's in another spelling, or such as ``NNP`` and ``.``."""
    spelt = all(TAG.fullmatch(tag.upper()) for tag in tags)
    return spelt or (any(map(str.isalpha, tags)) and all(map(_IN_CAPITALS.fullmatch, tags)))


_IN_CAPITALS = re.compile(r"[A-Z][A-Z0-9$:+_-]*|[^\w\s]+")
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?")


def _refuse_tags_first(collected: SentenceCollector, path: Path) -> None:
    words = {word for sentence in collected.words for word in sentence}
    tags = {tag for sentence in collected.tags for tag in sentence}
    if len(words) > 1 and all(map(TAG.fullmatch, words)) and not all(map(TAG.fullmatch, tags)):
        raise InputError(
            f"the first column has tags, such as {_longest(words)!r}; name the "
            "columns, from 0: --task.tagging.word 1 --task.tagging.tag 0.",
            place=Place(path),
        )
    every = [word for sentence in collected.words for word in sentence]
    as_tags = [word for word in every if TAG.fullmatch(word)]
    strict = next(filter(re.compile("[BIES]-[A-Z]{2,}").match, as_tags), "")
    if strict and 4 * len(as_tags) >= len(every):
        raise InputError(
            f"among its words are tags, such as {strict!r}, as where lines of words and of tags "
            "take turns; write a word and its tag in each line.",
            place=Place(path),
        )


def _refuse_texts(collected: SentenceCollector, path: Path) -> None:
    """Refuse a last column that holds texts, as where labels and texts stand in lines."""
    tags = [tag for own in collected.tags for tag in own]
    texts = [tag for tag in tags if " " in tag and not TAG.fullmatch(tag)]
    differ = 2 * len(set(texts)) > len(texts)  # as types of entities do not
    if differ and 2 * len(texts) > len(tags):
        raise InputError(
            f"the last column holds texts, such as {texts[0][:40]!r}, and no tags; for labels of "
            "whole texts choose another --kind, for tags write a word and its tag in each line.",
            place=Place(path),
        )


def _comments_before_sentences(lines: list[tuple[int, str]]) -> str:
    """How the lines begin, such as ``# id 17``, that every sentence begins with, and that would be
    words; empty if there are none."""
    # Such a line that is all of a sentence is its word: alone says that there is one, ends that the
    # last sentence has one line so far.
    first, alone, begins, ends = [], False, True, False
    found = next((re.match("#+[ \t]", line) for _, line in lines if line.strip(" \t")), None)
    mark = found[0] if found else ""
    for (_, line), (_, after) in pairwise([*lines, (0, "")]):
        if not line.strip(" \t"):
            alone |= begins is False and ends
            begins = True
        elif begins:
            first.append(_is_comment(line, after, mark))
            begins, ends = False, True
        else:
            ends = False
    return mark if all(first) and first and not alone and not ends else ""


def _without_comments(lines: list[tuple[int, str]], mark: str) -> list[tuple[int, str]]:
    """Lines without the comments before a sentence's words; within it their mark is a word."""
    found, begins = [], True
    for (number, line), (_, after) in pairwise([*lines, (0, "")]):
        if not (begins and _is_comment(line, after, mark)):
            found.append((number, line))
            begins = not line.strip(" \t")
    return found


def _is_comment(line: str, after: str, mark: str) -> bool:
    """Whether a line with a mark is none of a word and its tag, like the line after it."""
    if not (mark and line.startswith(mark)):
        return False
    words = line.split()
    return TAG.fullmatch(words[-1]) is None or len(words) != len(after.split())


_CONLLU_ID = re.compile(r"[0-9]+(?:[-.][0-9]+)?")
_CONLLU_COLUMNS = 10


def _is_conllu(path: Path, lines: list[str]) -> bool:
    """Whether a file is CoNLL-U: by its name, or as all its words have ten columns and a number."""
    if path.name.lower().endswith((".conllu", ".conllup")):
        return True
    words = [line.split("\t") for line in lines[:LOOKED_AT] if line.strip() and line[0] != "#"]
    return (
        len(words) > 0
        and words[0][0] in ("1", "1-2", "0.1")
        and all(len(w) == _CONLLU_COLUMNS and _CONLLU_ID.fullmatch(w[0]) for w in words)
    )


def _read_conllu(
    path: Path, lines: list[tuple[int, str]], layout: ConllFormat, *, labelled: bool
) -> ConllFile:
    """Universal Dependencies: word in FORM, tag in UPOS, unless other columns are named. Ranges
    (``2-3``) and empty nodes (``4.1``) are no words; ``# newdoc`` begins a document."""
    if layout.is_default:
        layout, names = _conllu_columns(path, lines, labelled=labelled)
    else:
        names = f"column {layout.word}, tags in column {layout.tag}"
    collected, columns, ranges, empty, restarted = SentenceCollector(), 0, 0, 0, 0
    for number, line in lines:
        if not line.strip():
            collected.end_sentence()
        elif line.startswith("#"):
            if re.match(r"#\s*newdoc", line):
                collected.end_sentence()
                collected.document += 1
        else:
            values = line.split("\t")
            columns = columns or len(values)
            try:
                _refuse_no_conllu_line(values)
                if values[0] == "1" and collected.current:
                    collected.end_sentence()
                    restarted += 1
                if "-" in values[0] or "." in values[0]:
                    ranges += "-" in values[0]
                    empty += "." in values[0]
                    continue
                word, tag = _word_and_tag(values, columns, layout, labelled=labelled)
                if labelled and tag == "_":
                    raise InputError(
                        f"the tag of {word!r} is _, which is how CoNLL-U says that there is none; "
                        "task.tagging.tag names the column of the tags, from 0 (UPOS 3, XPOS 4)."
                    )
            except InputError as error:
                error.place = error.place or Place(path, number)
                raise
            collected.current.append((word, number, tag))
    remarks = [f"it is CoNLL-U: words in {names}"]
    if restarted:
        remarks.append(
            f"{counted(restarted, 'sentence')} without a blank line before: numbers begin"
        )
    if ranges or empty:
        remarks.append(f"{ranges:,} ranges and {empty:,} empty nodes are no words and left out")
    return collected.file(
        path,
        "\t",
        remarks,
        has_tags=column_numbers(columns, layout)[1] is not None,
        without_ends="no blank lines, which end sentences",
    )


def _refuse_no_conllu_line(values: Sequence[str]) -> None:
    if re.match(rf"{_CONLLU_ID.pattern} +\S", values[0]):
        raise InputError(
            "its columns are separated by spaces, in CoNLL-U by tabs: sed '/^#/! s/  */"
            "\\t/g' OLD > NEW."
        )
    if not _CONLLU_ID.fullmatch(values[0]):
        raise InputError(
            f"begins with {values[0][:20]!r}, but CoNLL-U numbers the words of a sentence; "
            "name the file .conll if it has other columns."
        )


def _conllu_columns(
    path: Path, lines: list[tuple[int, str]], *, labelled: bool
) -> tuple[ConllFormat, str]:
    """FORM and UPOS, where they are: CoNLL-U Plus names its columns in the first line.

    Raises:
        InputError: it does, and has no FORM, or no UPOS where tags are needed.
    """
    number, first = lines[0] if lines else (1, "")
    named = re.match(r"#\s*global\.columns\s*=\s*(.*)", first)
    columns = named[1].split() if named else ["ID", "FORM", "LEMMA", "UPOS"]
    missing = [name for name in ("FORM", "UPOS")[: 1 + labelled] if name not in columns]
    if missing:
        raise InputError(
            f"its columns are {listed(columns)}, and none is {missing[0]}; name them, from 0: "
            f"--task.tagging.word {columns.index('FORM') if 'FORM' in columns else 1} "
            f"--task.tagging.tag {len(columns) - 1}.",
            place=Place(path, number),
        )
    word = columns.index("FORM")
    tag = columns.index("UPOS") if "UPOS" in columns else len(columns)
    tags = f", tags in UPOS ({tag})" if "UPOS" in columns else ""
    return ConllFormat(word, tag), f"FORM ({word}){tags}"


def _quoted_by_line(lines: list[str]) -> bool:
    """Whether a CSV writer wrote the file, so that the word ``"`` is ``\"\"\"\"``."""
    return all(line.count('"') % 2 == 0 for line in lines) and quoted_as_csv(lines)


def _refuse_running_text(
    collected: SentenceCollector, columns: int, separator: str, path: Path, *, labelled: bool
) -> None:
    """Refuse lines of text, which were taken for words with further columns."""
    if separator == "\t" and columns >= _CONLLU_COLUMNS:
        return
    if labelled:
        alone = sum(map(len, collected.words)) == 1 and not _may_be_tags({*collected.tags[0]})
        is_text = alone and _looks_like_text(collected, columns)
    else:
        as_lines = separator == " " and _all_ends_differ(collected)
        is_text = as_lines or _looks_like_text(collected, columns)
    if is_text:
        raise InputError(f"{_RUNNING_TEXT}.", place=Place(path))


def _all_ends_differ(collected: SentenceCollector) -> bool:
    """Whether each of several lines has another value with small letters in the last column, as
    lines of text do, where tags repeat."""
    ends = [tag for tags in collected.tags for tag in tags]
    different = len(ends) == len(set(ends)) > 1 and not any(map(TAG.fullmatch, ends))
    return different and all(tag != tag.upper() for tag in ends)


def _looks_like_text(collected: SentenceCollector, columns: int) -> bool:
    """Whether lines of several words were taken for words with further columns.

    Several lines of two columns are sentences of one word, such as ``Yes UH``.
    """
    last_column = {tag for tags in collected.tags for tag in tags}
    single = all(len(words) == 1 for words in collected.words)
    tagged = any(tag == "O" or "-" in tag for tag in last_column)
    return single and not tagged and columns > (1 if len(collected.words) == 1 else 2)


def column_numbers(columns: int, layout: ConllFormat) -> tuple[int | None, int | None]:
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
    *,
    labelled: bool,
) -> tuple[str, str]:
    """Word and tag of a line."""
    word, tag = column_numbers(columns, layout)
    if len(values) != columns:
        raise InputError(
            f"has {len(values)} column{'s' * (len(values) > 1)}, but the lines before have "
            f"{columns}: {listed(values, 6)}."
        )
    if word is None or (labelled and tag is None):
        name, column = ("word", layout.word) if word is None else ("tag", layout.tag)
        problem = f"so there is no column {column} for the {name} (task.tagging.{name})"
        if values[0].startswith("#"):
            problem += " (a comment? task.tagging.comment names how such lines begin)"
        if columns == 1 and (other := re.search(r"[,;|]|\s", values[0])):
            problem += (
                f"; {other[0]!r} separates no columns here: name the file .csv, or write tabs"
            )
        raise InputError(
            f"has {len(values)} column{'s' * (len(values) > 1)}, {problem}: {listed(values, 6)}."
        )
    if not values[word] or (labelled and not values[tag or 0].strip()):
        name = "word" if not values[word] else "tag"
        remedy = "; write O for a word of no entity"
        if name == "word":
            remedy = "; if lines begin with a tab, remove it: sed 's/^\\t//' OLD > NEW" * (not word)
        raise InputError(f"the {name} is empty{remedy}.")
    if labelled and tag is not None:
        _refuse_several(values[word], values[tag])
    # A word may be a space (KLUE), but none has spaces at its ends.
    own = values[word].strip(" ") or values[word]
    return own, "" if tag is None else values[tag].strip()


_LAST_TAG = re.compile(r"\S+\s+(?:O|[BIESLUMW]-\S+)")


def _refuse_several(word: str, tag: str) -> None:
    """Refuse a row of tab-separated columns that holds words and tags of several words."""
    tags = tag.split()
    of_scheme = sum(TAG.fullmatch(one) is not None for one in tags)
    if of_scheme > 1 and len(word.split()) == len(tags) < 2 * of_scheme:
        raise InputError(
            f"holds a sentence with {len(tags)} tags, {tag[:40]!r}; write a word and its tag in "
            "each line, and a blank line after each sentence."
        )
    if _LAST_TAG.fullmatch(tag) and not TAG.fullmatch(tags[0]):
        raise InputError(
            f"the tag {tag[:40]!r} holds a space and another word's tag; part the columns of all "
            "lines by tabs, each word on its own line."
        )
