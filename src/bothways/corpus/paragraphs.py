"""From the bytes of a block to its documents, as lists of paragraphs (non-blank lines)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from bothways.corpus.options import CorpusConfig
from bothways.corpus.sources import Block
from bothways.io.broken import Broken, Limit, corpus_line
from bothways.io.layout import joined
from bothways.io.records import column_text, record_text
from bothways.io.text import decode_lines, lines_of

Document = tuple[bool, list[str]]
"""Whether it continues the previous document, and its paragraphs, stripped."""


def read_documents(block: Block, config: CorpusConfig, broken: Broken) -> list[Document]:
    """The documents of a block.

    Args:
        block: whole lines or rows.
        config: ``documents``, ``lines``, ``text_field`` and ``max_line_mib`` are used here.
        broken: what to do with broken lines, and what was done.

    Raises:
        InputError: with file and line: broken text where ``broken`` stops, or a line
            that is too long.
    """
    limit = corpus_line(config.max_line_mib)
    source, field = block.source, config.text_field
    if isinstance(block.data, list):
        rows = enumerate(block.data, block.first_line)
        texts = [column_text(row, field, source, number, limit, broken) for number, row in rows]
    elif block.kind == "json":
        lines = enumerate(_lines(block.data, block, limit, broken), block.first_line)
        texts = [
            record_text(line, field, source, number, broken)
            for number, line in lines
            if line.strip()
        ]
    else:
        return _text_documents(_lines(block.data, block, limit, broken), block, config)
    documents = [_of_record(text, block, config) for text in texts if text is not None]
    return [(False, paragraphs) for paragraphs in documents if paragraphs]


def _of_record(text: str, block: Block, config: CorpusConfig) -> list[str]:
    lines: Iterable[str] = text.split("\n")
    if block.layout.joins(config.lines):
        lines = joined(lines, block.layout)
    return [stripped for line in lines if (stripped := line.strip())]


def _text_documents(lines: list[str], block: Block, config: CorpusConfig) -> list[Document]:
    if block.layout.joins(config.lines):
        lines = list(joined(lines, block.layout))
    else:
        lines = [line.strip() for line in lines]
    if config.documents == "line":
        return [(False, [line]) for line in lines if line]
    if config.documents == "file":
        paragraphs = [line for line in lines if line]
        documents = [paragraphs] if paragraphs else []
        continues = block.continues
    else:
        documents = [list(group) for has_text, group in groupby(lines, bool) if has_text]
        continues = block.continues and bool(lines and lines[0])
    return [(continues and i == 0, paragraphs) for i, paragraphs in enumerate(documents)]


def _lines(data: bytes, block: Block, limit: Limit, broken: Broken) -> list[str]:
    """The block's lines; decoded one by one only if the block as a whole cannot be."""
    data = data.removesuffix(b"\n")
    if len(data) <= limit.bytes:
        with suppress(UnicodeDecodeError):
            if "\0" not in (text := data.decode()):
                return lines_of(text)
    found = decode_lines(data.split(b"\n"), Path(block.source), block.first_line, limit, broken)
    return [line for _, line in found]


def _paragraphs(lines: list[str]) -> list[str]:
    return [stripped for line in lines if (stripped := line.strip())]
