"""From the bytes of a block to its documents, as lists of paragraphs (non-blank lines)."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from bothways.corpus.options import CorpusConfig
from bothways.corpus.sources import Block
from bothways.io.broken import Broken, corpus_line
from bothways.io.oddities.layout import joined
from bothways.io.records import column_text, record_text
from bothways.io.text import decode_line, lines_of

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
    return _BlockReader(block, config, broken).documents()


class _BlockReader:
    """Reads one block."""

    def __init__(self, block: Block, config: CorpusConfig, broken: Broken):
        self.block = block
        self.config = config
        self.broken = broken
        self.limit = corpus_line(config.max_line_mib)

    def documents(self) -> list[Document]:
        source, field = self.block.source, self.config.text_field
        if isinstance(self.block.data, list):
            rows = enumerate(self.block.data, self.block.first_line)
            texts = [
                column_text(row, field, source, number, self.limit, self.broken)
                for number, row in rows
            ]
        elif self.block.kind == "json":
            lines = enumerate(self._lines(self.block.data), self.block.first_line)
            texts = [
                record_text(line, field, source, number, self.broken)
                for number, line in lines
                if line.strip()
            ]
        else:
            return self._text_documents(self.block.data)
        documents = [self._of_record(text) for text in texts if text is not None]
        return [(False, paragraphs) for paragraphs in documents if paragraphs]

    def _of_record(self, text: str) -> list[str]:
        lines = text.split("\n")
        if self.block.layout.joins(self.config.lines):
            return _paragraphs([*joined(lines, self.block.layout)])
        return _paragraphs(lines)

    def _text_documents(self, data: bytes) -> list[Document]:
        if self.block.layout.joins(self.config.lines):
            lines = list(joined(self._lines(data), self.block.layout))
        else:
            lines = [line.strip() for line in self._lines(data)]
        if self.config.documents == "line":
            return [(False, [line]) for line in lines if line]
        if self.config.documents == "file":
            paragraphs = [line for line in lines if line]
            documents = [paragraphs] if paragraphs else []
            continues = self.block.continues
        else:
            documents = [list(group) for has_text, group in groupby(lines, bool) if has_text]
            continues = self.block.continues and bool(lines and lines[0])
        return [(continues and i == 0, paragraphs) for i, paragraphs in enumerate(documents)]

    def _lines(self, data: bytes) -> list[str]:
        """The block's lines; decoded one by one only if the block as a whole cannot be."""
        data = data.removesuffix(b"\n")
        if len(data) <= self.limit.bytes:
            try:
                text = data.decode()
            except UnicodeDecodeError:
                pass
            else:
                if "\0" not in text:
                    return lines_of(text)
        numbered = enumerate(data.split(b"\n"), self.block.first_line)
        source = Path(self.block.source)
        return [
            decode_line(line, source, number, self.limit, self.broken) for number, line in numbered
        ]


def _paragraphs(lines: list[str]) -> list[str]:
    return [stripped for line in lines if (stripped := line.strip())]
