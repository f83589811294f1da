"""From the bytes of a block to its documents, as lists of paragraphs (non-blank lines)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import NoReturn

from bothways.corpus.options import CorpusConfig
from bothways.corpus.sources import Block
from bothways.errors import InputError
from bothways.io.records import SURROGATES, json_field
from bothways.io.text import BOM, REPLACE_BROKEN, REPLACEMENT, decode_line, line_too_long

LISTED = 20
"""How many broken lines are listed; all are counted."""

Document = tuple[bool, list[str]]
"""Whether it continues the previous document, and its paragraphs, stripped."""


@dataclass
class BrokenLines:
    """Lines that were repaired or left out, in the order of the text.

    Attributes:
        lines: number of lines or rows.
        characters: number of characters replaced by U+FFFD.
        left_out: JSON lines and rows without a text.
        first: [source, line, what was done] of the first ``LISTED``.
    """

    lines: int = 0
    characters: int = 0
    left_out: int = 0
    first: list[tuple[str, int, str]] = field(default_factory=list)

    def replaced(self, source: str, line: int, characters: int) -> None:
        """Count a line in which ``characters`` characters were replaced."""
        self.characters += characters
        self._note(source, line, f"{characters} replaced by U+FFFD")

    def skipped(self, source: str, line: int, reason: str) -> None:
        """Count a JSON line or row that was left out."""
        self.left_out += 1
        self._note(source, line, f"left out: {reason}")

    def add(self, other: BrokenLines) -> None:
        """Add the counts of the text that follows."""
        self.lines += other.lines
        self.characters += other.characters
        self.left_out += other.left_out
        self.first = (self.first + other.first)[:LISTED]

    def _note(self, source: str, line: int, what: str) -> None:
        self.lines += 1
        if len(self.first) < LISTED:
            # Names of files that are not UTF-8 have surrogates, which no report can hold.
            shown = source.encode("utf-8", "backslashreplace").decode()
            self.first.append((shown, line, what))


def read_documents(block: Block, config: CorpusConfig, broken: BrokenLines) -> list[Document]:
    """The documents of a block.

    Args:
        block: whole lines or rows.
        config: ``documents``, ``text_field``, ``broken`` and ``max_line_mib`` are used here.
        broken: counts what was replaced or left out.

    Raises:
        InputError: with file and line: broken text where ``config.broken`` is ``stop``, or a line
            that is too long.
    """
    return _BlockReader(block, config, broken).documents()


class _BlockReader:
    """Reads one block."""

    def __init__(self, block: Block, config: CorpusConfig, broken: BrokenLines):
        self.block = block
        self.config = config
        self.broken = broken
        self.limit = int(config.max_line_mib * 2**20)

    def documents(self) -> list[Document]:
        if isinstance(self.block.data, list):
            rows = enumerate(self.block.data, self.block.first_line)
            texts = [self._row(row, number) for number, row in rows]
        elif self.block.kind == "json":
            lines = enumerate(self._lines(self.block.data), self.block.first_line)
            texts = [self._record(line, number) for number, line in lines if line.strip()]
        else:
            return self._text_documents(self.block.data)
        documents = [_paragraphs(text.split("\n")) for text in texts if text is not None]
        return [(False, paragraphs) for paragraphs in documents if paragraphs]

    def _text_documents(self, data: bytes) -> list[Document]:
        lines = [line.strip() for line in self._lines(data)]
        if self.config.documents == "file":
            paragraphs = [line for line in lines if line]
            documents = [paragraphs] if paragraphs else []
            continues = self.block.continues
        else:
            documents = [list(group) for has_text, group in groupby(lines, bool) if has_text]
            continues = self.block.continues and bool(lines and lines[0])
        return [(continues and i == 0, paragraphs) for i, paragraphs in enumerate(documents)]

    # ------------------------------------------------------------------------------------- lines

    def _lines(self, data: bytes) -> list[str]:
        """The block's lines; decoded one by one only if the block as a whole cannot be."""
        data = data.removesuffix(b"\n")
        if len(data) <= self.limit:
            mark = len(BOM) if self.block.first_line == 1 and data.startswith(BOM) else 0
            try:
                text = data[mark:].decode()
            except UnicodeDecodeError:
                pass
            else:
                if "\0" not in text:
                    lines = text.split("\n")
                    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines
        numbered = enumerate(data.split(b"\n"), self.block.first_line)
        return [self._line(line, number) for number, line in numbered]

    def _line(self, line: bytes, number: int) -> str:
        try:
            source, limit = self.block.source, self.limit
            return decode_line(line, source, number, limit, remedy=REPLACE_BROKEN)
        except InputError:
            if self.config.broken == "stop" or len(line) > self.limit + 1:
                raise
        body = line.removesuffix(b"\r").removeprefix(BOM if number == 1 else b"")
        return self._replace_broken(body.decode("utf-8", "replace"), line, number)

    def _replace_broken(self, text: str, original: bytes, number: int) -> str:
        """Replace characters that cannot be text, and count all U+FFFD not in the original."""
        text = SURROGATES.sub(REPLACEMENT, text.replace("\0", REPLACEMENT))
        replaced = text.count(REPLACEMENT) - original.count(REPLACEMENT.encode())
        self.broken.replaced(self.block.source, number, replaced)
        return text

    # ------------------------------------------------------------------------ JSON lines and rows

    def _record(self, line: str, number: int) -> str | None:
        name = self.config.text_field
        try:
            text = json_field(line, name)
        except ValueError as error:
            return self._leave_out(number, str(error))
        if "\0" not in text and not SURROGATES.search(text):
            return text
        if self.config.broken == "stop":
            self._refuse(number, f"field {name!r} has a NUL character or half a surrogate pair")
        return self._replace_broken(text, b"", number)

    def _row(self, row: bytes | None, number: int) -> str | None:
        if row is None:
            return self._leave_out(number, f"column {self.config.text_field!r} is null")
        if len(row.removesuffix(b"\r")) > self.limit:
            raise line_too_long(self.block.source, number, self.limit)
        try:
            text = row.decode()
        except UnicodeDecodeError as error:
            if self.config.broken == "stop":
                self._refuse(number, f"the text is not UTF-8 at byte {error.start}")
            return self._replace_broken(row.decode("utf-8", "replace"), row, number)
        if "\0" in text:
            if self.config.broken == "stop":
                self._refuse(number, "the text has a NUL character")
            return self._replace_broken(text, row, number)
        return text

    def _leave_out(self, number: int, reason: str) -> str | None:
        if self.config.broken == "stop":
            self._refuse(number, reason)
        self.broken.skipped(self.block.source, number, reason)
        return None

    def _refuse(self, number: int, reason: str) -> NoReturn:
        raise InputError(
            f"{reason}. Repair it, or build with --broken replace, which leaves such lines out and "
            "replaces broken characters.",
            path=self.block.source,
            line=number,
        )


def _paragraphs(lines: list[str]) -> list[str]:
    return [stripped for line in lines if (stripped := line.strip())]
