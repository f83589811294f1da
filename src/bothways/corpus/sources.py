"""The inputs of a build, cut into units of work.

A unit is about a megabyte of whole lines (or rows), from one file or from many small ones. Only
line ends are examined to cut units, so the reading process is never the bottleneck. Where a unit
ends depends only on where it starts: a build can therefore resume from the :class:`Position` after
any unit and will cut the same units as if it had never stopped.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO

from bothways.corpus.options import CorpusConfig
from bothways.errors import InputError
from bothways.io.broken import corpus_line
from bothways.io.diagnostics import refuse_other_format
from bothways.io.layout import SAMPLE, Layout, look
from bothways.io.pipes import open_in_any_order
from bothways.io.records import INPUT_SUFFIXES, Kind, json_field, kind_of, parquet_batches
from bothways.io.text import (
    bytes_read,
    explain_read_errors,
    first_lines,
    list_files,
    open_text,
    text_stream,
)

UNIT_BYTES = 2**20
"""Approximate size of a unit in bytes of text; more only where a single line is longer."""

STDIN = "-"


@dataclass(frozen=True)
class Input:
    """One file to read, or standard input.

    Attributes:
        path: None for standard input.
        size: bytes on disk, 0 for standard input.
        modified: time of the last change in ns.
    """

    path: Path | None
    kind: Kind
    size: int
    modified: int

    @property
    def name(self) -> str:
        """The name used in messages."""
        return "standard input" if self.path is None else str(self.path)


@dataclass(frozen=True)
class Position:
    """A place in the inputs where a unit may start.

    Attributes:
        file: number of the input.
        offset: bytes of its text (decompressed), or rows, before this place.
        line: number of the line, or row, that starts here, from 1.
        in_document: whether the line before this place is not blank.
    """

    file: int = 0
    offset: int = 0
    line: int = 1
    in_document: bool = False


@dataclass(frozen=True)
class Block:
    """Whole lines, or rows, of one input.

    Attributes:
        file: number of the input.
        source: its name.
        kind: format of the data.
        first_line: number of the first line or row.
        continues: whether the lines before may belong to the same document.
        data: bytes of the lines; for Parquet, the text of each row.
        layout: of the whole file's lines.
    """

    file: int
    source: str
    kind: Kind
    first_line: int
    continues: bool
    data: bytes | list[bytes | None]
    layout: Layout = field(default_factory=Layout)

    @property
    def size(self) -> int:
        """Bytes of text."""
        if isinstance(self.data, bytes):
            return len(self.data)
        return sum(len(row or b"") for row in self.data)


@dataclass(frozen=True)
class Unit:
    """The work of one call to a worker.

    Attributes:
        blocks: in order.
        after: where the next unit starts.
        read: bytes on disk read so far.
        failure: the error that ended the reading too early, if any. It travels with the unit, so
            that the text before it is encoded, and kept, or found to be broken, first.
    """

    blocks: tuple[Block, ...]
    after: Position
    read: int
    failure: InputError | None = None


_Step = tuple[Block, Position, int]
"""A block, the position after it, and how many bytes of its file on disk were read."""


def list_inputs(
    patterns: Sequence[str], *, besides: str | None = None, stray: list[Path] | None = None
) -> list[Input]:
    """The inputs that match ``patterns``: standard input (``-``) first, then files by path.

    Args:
        patterns, besides, stray: see :func:`bothways.io.text.list_files`.

    Raises:
        InputError: a pattern matches nothing, or a file or folder cannot be read.
    """
    inputs = [Input(None, "text", 0, 0)] if STDIN in patterns else []
    named = [pattern for pattern in patterns if pattern != STDIN]
    if inputs and not named:
        return inputs
    for path in list_files(named, INPUT_SUFFIXES, besides=besides, stray=stray):
        with explain_read_errors(path):
            status = path.stat()
        inputs.append(Input(path, kind_of(path), status.st_size, status.st_mtime_ns))
    return inputs


def read_units(
    inputs: Sequence[Input], config: CorpusConfig, start: Position | None = None
) -> Iterator[Unit]:
    """Cut the inputs into units, from ``start`` on.

    A file that cannot be read ends the iteration; the last unit holds the error.
    """
    start = start or Position()
    blocks: list[Block] = []
    size = 0
    after = start
    before = sum(item.size for item in inputs[: start.file])
    read = before
    for number in range(start.file, len(inputs)):
        position = start if number == start.file else Position(number)
        try:
            for block, after, on_disk in _blocks(inputs[number], position, config):
                blocks.append(block)
                size += block.size
                read = before + on_disk
                if size >= UNIT_BYTES // 2:  # usually one block of a large file
                    yield Unit(tuple(blocks), after, read)
                    blocks, size = [], 0
        except InputError as error:
            yield Unit(tuple(blocks), after, read, failure=error)
            return
        before += inputs[number].size
        after = Position(number + 1)
    yield Unit(tuple(blocks), after, before)


def _blocks(item: Input, start: Position, config: CorpusConfig) -> Iterator[_Step]:
    if item.path is None:
        stdin = text_stream(sys.stdin.buffer, item.name, config.encoding)
        for block, after in _line_blocks(stdin, item, start, config):
            yield block, after, 0
        return
    finished_lines = start.line - 1

    def lines_read() -> int:
        return finished_lines

    if item.kind == "parquet":
        with explain_read_errors(item.path, lines_read), open_in_any_order(item.path) as table:
            yield from _row_blocks(table, item, start, config)
        return
    with open_text(item.path, lines_read, config.encoding) as (disk, file):
        for block, after in _line_blocks(file, item, start, config):
            finished_lines = after.line - 1
            yield block, after, bytes_read(disk)


# ------------------------------------------------------------------------------------------- lines


def _line_blocks(
    file: BufferedIOBase, item: Input, start: Position, config: CorpusConfig
) -> Iterator[tuple[Block, Position]]:
    """Cut a stream into blocks of whole lines: as many as fit into ``UNIT_BYTES``, at least one."""
    limit = corpus_line(config.max_line_mib)
    position = start
    layout, rest = _from_offset(file, item, start.offset, config)
    by_paragraph = item.kind == "text" and layout.joins(config.lines)
    while True:
        rest += file.read(max(0, UNIT_BYTES - len(rest)))
        full = len(rest) >= UNIT_BYTES
        cut = rest.rfind(b"\n", 0, UNIT_BYTES) + 1 if full else len(rest)
        if full and by_paragraph:  # whose lines belong together
            found = _BLANK.finditer(rest, 0, UNIT_BYTES)
            cut = max((blank.end() for blank in found), default=cut)
        while full and not cut:  # a line longer than a unit
            if not (cut := rest.find(b"\n") + 1):
                if len(rest) > limit.bytes + 2:
                    raise limit.error(item.name, position.line)
                more = file.read(UNIT_BYTES)
                rest += more
                cut = 0 if more else len(rest)
        if not rest:
            return
        data, rest = rest[:cut], rest[cut:]
        last = data[data.rfind(b"\n", 0, cut - 1) + 1 :]
        after = Position(
            position.file,
            position.offset + cut,
            position.line + data.count(b"\n"),
            bool(last.decode("utf-8", "replace").strip()),
        )
        within = config.documents == "blank" and position.in_document
        continues = position.offset > 0 and (config.documents == "file" or within)
        yield (
            Block(position.file, item.name, item.kind, position.line, continues, data, layout),
            after,
        )
        position = after


KEEP = "if it is meant as text, give --lines keep"
_BLANK = re.compile(rb"\n[ \t\r]*(?=\n)\n")


def _from_offset(
    file: BufferedIOBase, item: Input, offset: int, config: CorpusConfig
) -> tuple[Layout, bytes]:
    """The layout of a file, by its first lines whatever the offset; and what was read from the
    offset on, behind which the file goes on. A compressed file is decompressed up to there."""
    head = file.read(SAMPLE)
    lines = first_lines(head.decode("utf-8", "ignore"), cut=len(head) == SAMPLE)
    if item.kind == "json":
        layout = _of_records(filter(None, (_text_of(line, config) for line in lines)), config)
    else:
        layout = Layout()
        if config.lines != "keep":
            refuse_other_format(lines, item.name, KEEP)
            layout = look(lines)
    if offset > len(head) and file.seekable():
        file.seek(offset)
    else:
        left = max(0, offset - len(head))
        while left:
            left -= len(file.read(min(left, UNIT_BYTES)))
    return layout, head[offset:]


def _text_of(line: str, config: CorpusConfig) -> str:
    """The text in a JSON object; empty if there is none, which is said where it is read."""
    with suppress(ValueError):
        return json_field(line, config.text_field)
    return ""


def _of_records(texts: Iterable[str], config: CorpusConfig) -> Layout:
    """The layout of the texts in records."""
    lines: list[str] = []
    left = SAMPLE
    for text in texts:
        lines += (*text[:left].split("\n"), "")
        if (left := left - len(text)) <= 0:
            break
    return Layout() if config.lines == "keep" else look(lines)


# -------------------------------------------------------------------------------------------- rows


def _row_blocks(
    disk: BinaryIO, item: Input, start: Position, config: CorpusConfig
) -> Iterator[_Step]:
    assert item.path is not None
    position = start
    row = 0
    layout: Layout | None = None
    for batch, total in parquet_batches(disk, item.path, config.text_field):
        if layout is None:
            begun = (text for text in batch.to_pylist() if text is not None)
            layout = _of_records((text.decode("utf-8", "ignore") for text in begun), config)
        row += len(batch)
        if row <= start.offset:
            continue
        after = Position(position.file, row, row + 1)
        texts: list[bytes | None] = batch.to_pylist()
        yield (
            Block(position.file, item.name, item.kind, position.line, False, texts, layout),
            after,
            item.size * row // max(total, 1),
        )
        position = after
