"""CoNLL files: a word a line with its columns, a blank line after each sentence.

Columns are parted by tabs, if the first line with a word has one, and otherwise by spaces and tabs;
so in a file with tabs a word may be a space (KLUE gives each character a line of its own). A line
of spaces and tabs alone ends a sentence, one that begins with -DOCSTART- ends a document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bothways.config import Scheme, TaggingOptions
from bothways.errors import InputError
from bothways.tasks.readers import listed, text_lines
from bothways.tasks.schemes import breaks, find_scheme

DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True)
class Sentences:
    """The sentences of a file.

    Attributes:
        path: the file.
        words: of each sentence, at least one.
        lines: the line of each word, from 1.
        tags: of each word, as written; None where the file was read without.
        shown: the tags that stand in a file read without labels, as they are; None if it has no
            such column. For writing predictions beside them.
        documents: the number of each sentence's document, not decreasing.
        scheme: of the tags; None where there are none.
        separator: between columns.
        broken: tags that break the scheme, read as conlleval reads them.
    """

    path: Path
    words: list[list[str]] = field(default_factory=list)
    lines: list[list[int]] = field(default_factory=list)
    tags: list[list[str]] | None = None
    shown: list[list[str]] | None = None
    documents: list[int] = field(default_factory=list)
    scheme: Scheme | None = None
    separator: str = " "
    broken: int = 0

    def __len__(self) -> int:
        return len(self.words)

    @property
    def has_documents(self) -> bool:
        """-DOCSTART- lines say where documents begin."""
        return bool(self.documents) and self.documents[-1] > 0


@dataclass
class _Reading:
    """A file being read: its sentences so far, and the one under way."""

    words: list[list[str]] = field(default_factory=list)
    lines: list[list[int]] = field(default_factory=list)
    tags: list[list[str]] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    document: int = 0
    own: list[tuple[str, int, str]] = field(default_factory=list)

    def end(self) -> None:
        if self.own:
            words, lines, tags = zip(*self.own, strict=True)
            self.words.append([*words])
            self.lines.append([*lines])
            self.tags.append([*tags])
            self.documents.append(self.document)
            self.own = []


def read_sentences(path: Path, options: TaggingOptions, *, labelled: bool) -> Sentences:
    """Read a file, and find or check the scheme of its tags.

    Args:
        path: plain or compressed text.
        options: columns, scheme, what to do with tags that break it.
        labelled: tags are needed; without it the file may lack their column.

    Raises:
        InputError: a line without the column, an empty word or tag, a tag that breaks the scheme,
            no sentences, NULs, broken UTF-8; file and line are named.
    """
    read, separator, columns = _Reading(), " ", 0
    for number, line in _content(path, options):
        if not line.strip(" \t"):
            read.end()
            continue
        if re.match(rf"{DOCUMENT}[ \t]|{DOCUMENT}$", line):
            read.end()
            read.document += 1
            continue
        if not columns:
            separator = "\t" if "\t" in line else " "
        values = line.split("\t") if separator == "\t" else re.split("[ \t]+", line.strip(" \t"))
        columns = columns or len(values)
        read.own.append(_word_and_tag(values, columns, options, path, number, labelled=labelled))
    read.end()
    if not read.words:
        raise InputError("holds no sentence; it needs a word a line.", path=path)
    tagged = _places(columns, options)[1] is not None
    found = Sentences(
        path,
        read.words,
        read.lines,
        tags=read.tags if labelled else None,
        shown=read.tags if tagged and not labelled else None,
        documents=read.documents,
        separator=separator,
    )
    return _with_scheme(found, options) if labelled else found


def _content(path: Path, options: TaggingOptions) -> Iterator[tuple[int, str]]:
    for number, line in text_lines(path):
        if not (options.comment and line.startswith(options.comment)):
            yield number, line


def _places(columns: int, options: TaggingOptions) -> tuple[int | None, int | None]:
    """The columns of word and tag, from 0; None where there is no such column."""
    word, tag = (at + columns if at < 0 else at for at in (options.word, options.tag))
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
    word, tag = _places(columns, options)
    if len(values) != columns or word is None or (labelled and tag is None):
        wanted = f"where the lines before have {columns}"
        if len(values) == columns:
            name, at = ("word", options.word) if word is None else ("tag", options.tag)
            wanted = f"so there is no column {at} for the {name} (task.tagging.{name})"
        raise InputError(
            f"has {len(values)} column{'s' * (len(values) > 1)}, {wanted}: {listed(values, 6)}.",
            path=path,
            line=number,
        )
    if not values[word] or (labelled and not values[tag or 0].strip()):
        what = "word" if not values[word] else "tag"
        raise InputError(f"the {what} is empty.", path=path, line=number)
    return values[word], number, "" if tag is None else values[tag].strip()


def _with_scheme(found: Sentences, options: TaggingOptions) -> Sentences:
    """The same with its scheme, and with the tags that break it counted."""
    assert found.tags is not None
    scheme: Scheme = find_scheme(found.tags) if options.scheme == "auto" else options.scheme
    broken = 0
    for tags, lines in zip(found.tags, found.lines, strict=True):
        wrong = breaks(tags, scheme)
        broken += len(wrong)
        if wrong and options.broken == "refuse":
            at = wrong[0]
            before = f"after {tags[at - 1]!r}" if at else "at the start of a sentence"
            how = "which most of the file is in" if options.scheme == "auto" else "as asked for"
            raise InputError(
                f"the tag {tags[at]!r} {before} breaks the scheme {scheme.upper()}, {how} "
                "(task.tagging.scheme). Mend it, name the scheme, or set task.tagging.broken to "
                "repair, which reads such tags as conlleval does.",
                path=found.path,
                line=lines[at],
            )
    return replace(found, scheme=scheme, broken=broken)
