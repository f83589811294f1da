"""Documents from text files: which files, which lines, where a document ends.

Files are streamed, so a corpus may be larger than memory; only one document is held at a time.
Whatever cannot be text (broken UTF-8, NUL characters, lines of many megabytes, damaged archives)
is refused with the file and line, because silently mended bytes end up in the vocabulary.
"""

from __future__ import annotations

import glob
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn

from bothways.errors import InputError

SUFFIXES = (".txt", ".txt.gz", ".txt.xz")
LONGEST_TEXT_MIB = 1.0
"""Limit of one text to label or to embed: a novel. Encoding takes a hundred times its size."""

_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_LINES_PER_REPORT = 1000


def list_files(patterns: Sequence[str]) -> list[Path]:
    """The text files that ``patterns`` name, sorted by path, each once.

    Args:
        patterns: files (any name), folders (searched at every depth for names ending in
            ``.txt``, ``.txt.gz`` or ``.txt.xz``), or globs (``**`` matches folders).

    Raises:
        InputError: a pattern that finds nothing, or a folder that cannot be read.
    """
    if not patterns:
        raise InputError("no text files were given; name files, folders or globs.")
    found: set[Path] = set()
    for pattern in patterns:
        files = _matches(pattern)
        if not files:
            raise InputError(
                f"{pattern!r} finds no text file. Give a file, a folder with files named "
                f"{', '.join('*' + suffix for suffix in SUFFIXES)}, or a glob in quotes."
            )
        found.update(files)
    return sorted(found)


def read_lines(
    path: Path,
    *,
    max_line_mib: float = 10.0,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, str]]:
    """Stream a file's lines.

    Args:
        path: plain text, or compressed if its name ends in ``.gz`` or ``.xz``.
        max_line_mib: longest line accepted, in MiB of UTF-8; never more than this is held.
        on_read: called now and then with the bytes of the file on disk read so far.

    Yields:
        Line number from 1, and the text without its line end (LF or CRLF) and without a byte
        order mark.

    Raises:
        InputError: with file and line: broken UTF-8, a NUL character, a line that is too long,
            a truncated or damaged archive, a file that cannot be read.
    """
    number = 0
    try:
        with path.open("rb") as disk, _decompressed(path, disk) as file:
            for number, text in lines_of(file, path, max_line_mib=max_line_mib):
                yield number, text
                if on_read and number % _LINES_PER_REPORT == 0:
                    on_read(disk.tell())
            if on_read:
                on_read(disk.tell())
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"the compressed file is truncated or damaged after line {number} ({error}); "
            "copy or compress it again.",
            path=path,
        ) from error
    except OSError as error:
        _refuse_unreadable(path, error)


def lines_of(
    file: BinaryIO | BufferedIOBase, source: str | Path, *, max_line_mib: float
) -> Iterator[tuple[int, str]]:
    """:func:`read_lines` for a file that is open; ``source`` names it in messages."""
    limit = int(max_line_mib * 2**20)
    # Two more than the limit: room for CRLF.
    for number, line in enumerate(iter(partial(file.readline, limit + 2), b""), start=1):
        yield number, _decode(line, source, number, limit)


def read_documents(
    path: Path,
    *,
    documents: Literal["blank", "file"],
    max_line_mib: float = 10.0,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[list[str]]:
    """Stream a file's documents, each a list of lines that are not blank.

    Args:
        path: see :func:`read_lines`.
        documents: a document ends at blank lines, or at the end of the file.
        max_line_mib: see :func:`read_lines`.
        on_read: see :func:`read_lines`.

    Raises:
        InputError: see :func:`read_lines`.
    """
    lines: list[str] = []
    for _, line in read_lines(path, max_line_mib=max_line_mib, on_read=on_read):
        if line.strip():
            lines.append(line)
        elif lines and documents == "blank":
            yield lines
            lines = []
    if lines:
        yield lines


def _matches(pattern: str) -> list[Path]:
    if not pattern:
        return []
    path = Path(pattern)
    # A name that exists is meant literally, even if it has brackets in it. Path.glob would not do
    # for the others: it takes no absolute pattern.
    names = [pattern] if path.exists() else glob.glob(pattern, recursive=True)  # noqa: PTH207
    files: list[Path] = []
    for path in map(Path, names):
        files.extend(_text_files_under(path) if path.is_dir() else [path])
    return files


def _text_files_under(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> NoReturn:
        _refuse_unreadable(Path(error.filename or folder), error)

    return [
        Path(parent, name)
        for parent, _, names in os.walk(folder, onerror=refuse)
        for name in names
        if name.endswith(SUFFIXES)
    ]


def _decompressed(path: Path, disk: BufferedReader) -> BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=disk)
    if path.suffix == ".xz":
        return lzma.LZMAFile(disk)
    return disk


def _decode(line: bytes, path: str | Path, number: int, limit: int) -> str:
    """Text of one line as read, line end included."""
    body = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(body) > limit:
        raise InputError(
            f"the line is longer than {limit / 2**20:g} MiB, so this is most likely not text. "
            "Remove the line or the file, or break the line up (`bothways corpus` takes longer "
            "ones with --max_line_mib).",
            path=path,
            line=number,
        )
    if number == 1:
        if body.startswith(_UTF16_BOMS):
            raise InputError(
                "the file is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW",
                path=path,
                line=number,
            )
        body = body.removeprefix(_BOM)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = error.start + (len(_BOM) if number == 1 and line.startswith(_BOM) else 0)
        raise InputError(
            f"not UTF-8: byte 0x{body[error.start]:02x} at byte {offset} of the line (from 0). "
            "Remove the line, or convert the file from its own encoding, for instance: "
            "iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW",
            path=path,
            line=number,
        ) from error
    if "\0" in text:
        raise InputError(
            f"NUL character at character {text.index(chr(0))} of the line (from 0), so this is "
            "most likely not text. Remove the file, or the characters: tr -d '\\000' < OLD > NEW",
            path=path,
            line=number,
        )
    return text


def _refuse_unreadable(path: Path, error: OSError) -> NoReturn:
    raise InputError(
        f"cannot be read: {error.strerror or error}. Check that it exists and its permissions.",
        path=path,
    ) from error
