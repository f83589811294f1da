"""CoNLL files: one word per line with its columns, a blank line after each sentence.

Columns are separated by tabs if the first line with a word has one, otherwise by spaces and tabs;
so in a file with tabs a word may be a space (KLUE gives each character a line of its own). A line
of only spaces and tabs ends a sentence; a line that begins with -DOCSTART- ends a document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bothways.errors import InputError
from bothways.io.lines import listed, text_lines
from bothways.tasks.options import Scheme, TaggingOptions
from bothways.tasks.schemes import OUTSIDE, find_scheme, parse_tag, scheme_violations, standard_tag

DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True)
class Sentences:
    """The sentences of a file.

    Attributes:
        path: the file.
        words: of each sentence, at least one.
        lines: the line of each word, from 1.
        tags: of each word, those of entities in the letters of BIOES; None if the file was read
            without tags.
        unchecked_tags: the tag column of a file read without labels, as it is, to be written next
            to predictions; None if the file has no such column.
        documents: the number of each sentence's document, not decreasing.
        scheme: of the tags; None if there are none.
        separator: between columns.
        broken: how many tags break the scheme; they are read as by conlleval.
    """

    path: Path
    words: list[list[str]] = field(default_factory=list)
    lines: list[list[int]] = field(default_factory=list)
    tags: list[list[str]] | None = None
    unchecked_tags: list[list[str]] | None = None
    documents: list[int] = field(default_factory=list)
    scheme: Scheme | None = None
    separator: str = " "
    broken: int = 0

    def __len__(self) -> int:
        return len(self.words)

    @property
    def has_documents(self) -> bool:
        """Whether -DOCSTART- lines mark where documents begin."""
        return bool(self.documents) and self.documents[-1] > 0


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


def read_sentences(path: Path, options: TaggingOptions, *, labelled: bool) -> Sentences:
    """Read a file, and find or check the scheme of its tags.

    Args:
        path: plain or compressed text.
        options: columns, scheme, what to do with tags that break it.
        labelled: the tags are needed; if not, the file may lack their column.

    Raises:
        InputError: a line without the column, an empty word or tag, a tag that breaks the scheme,
            no sentences, NULs, broken UTF-8; file and line are named.
    """
    collected, separator, columns = _SentenceCollector(), " ", 0
    for number, line in _content_lines(path, options):
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
        columns = columns or len(values)
        collected.current.append(
            _word_and_tag(values, columns, options, path, number, labelled=labelled)
        )
    collected.end_sentence()
    if not collected.words:
        raise InputError("has no sentences; it needs one word per line.", path=path)
    has_tags = _column_numbers(columns, options)[1] is not None
    if not labelled and _looks_like_text(collected, columns):
        raise InputError(f"{_RUNNING_TEXT}.", path=path)
    sentences = Sentences(
        path,
        collected.words,
        collected.lines,
        tags=collected.tags if labelled else None,
        unchecked_tags=collected.tags if has_tags and not labelled else None,
        documents=collected.documents,
        separator=separator,
    )
    return _with_scheme(sentences, options) if labelled else sentences


def _looks_like_text(collected: _SentenceCollector, columns: int) -> bool:
    """Whether lines of several words were taken for words with further columns.

    Several lines of two columns are sentences of one word, such as ``Yes UH``.
    """
    last_column = {tag for tags in collected.tags for tag in tags}
    single = all(len(words) == 1 for words in collected.words)
    tagged = any(tag == "O" or "-" in tag for tag in last_column)
    return single and not tagged and columns > (1 if len(collected.words) == 1 else 2)


def _content_lines(path: Path, options: TaggingOptions) -> Iterator[tuple[int, str]]:
    """The lines that are not comments, with their numbers."""
    for number, line in text_lines(path):
        if not (options.comment and line.startswith(options.comment)):
            yield number, line


def _column_numbers(columns: int, options: TaggingOptions) -> tuple[int | None, int | None]:
    """The columns of word and tag, from 0; None if there is no such column."""
    word, tag = (i + columns if i < 0 else i for i in (options.word, options.tag))
    return (
        word if 0 <= word < columns else None,
        tag if 0 <= tag < columns and tag != word else None,
    )


def _word_and_tag(
    values: list[str],
    columns: int,
    options: TaggingOptions,
    path: Path,
    number: int,
    *,
    labelled: bool,
) -> tuple[str, int, str]:
    """Word, line number and tag of a line."""
    word, tag = _column_numbers(columns, options)
    if len(values) != columns or word is None or (labelled and tag is None):
        problem = (
            f"but the lines before have {columns} (a comment? task.tagging.comment names how such "
            "lines begin)"
        )
        if not labelled:
            problem += f"; {_RUNNING_TEXT}"
        if len(values) == columns:
            name, column = ("word", options.word) if word is None else ("tag", options.tag)
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


def _with_scheme(sentences: Sentences, options: TaggingOptions) -> Sentences:
    """The same sentences with the scheme of their tags, and a count of the tags that break it."""
    assert sentences.tags is not None
    scheme: Scheme = find_scheme(sentences.tags) if options.scheme == "auto" else options.scheme
    if scheme == "none":
        return replace(sentences, scheme=scheme)
    _refuse_unknown_prefixes(sentences)
    broken = 0
    for tags, lines in zip(sentences.tags, sentences.lines, strict=True):
        breaking = scheme_violations(tags, scheme)
        broken += len(breaking)
        if breaking and options.broken == "refuse":
            word = breaking[0]
            before = f"after {tags[word - 1]!r}" if word else "at the start of a sentence"
            origin = "which most of the file uses" if options.scheme == "auto" else "as requested"
            raise InputError(
                f"the tag {tags[word]!r} {before} breaks the scheme {scheme.upper()}, {origin} "
                "(task.tagging.scheme). Correct it, name the scheme, or set task.tagging.broken to "
                "repair, which reads such tags as conlleval does.",
                path=sentences.path,
                line=lines[word],
            )
    standard = [[standard_tag(tag) for tag in tags] for tags in sentences.tags]
    return replace(sentences, tags=standard, scheme=scheme, broken=broken)


def _refuse_unknown_prefixes(sentences: Sentences) -> None:
    """Refuse tags that would count as outside of entities although they are not O."""
    assert sentences.tags is not None
    for tags, lines in zip(sentences.tags, sentences.lines, strict=True):
        for tag, line in zip(tags, lines, strict=True):
            if tag != OUTSIDE and parse_tag(tag)[0] == OUTSIDE:
                raise InputError(
                    f"the tag {tag!r} has no prefix that says where its entity begins; the known "
                    "ones are B, I, E and S, and L, U and M for E, S and I. Correct it, or set "
                    "task.tagging.scheme to none if the tags are independent labels.",
                    path=sentences.path,
                    line=line,
                )
