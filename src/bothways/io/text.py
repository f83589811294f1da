"""Finding text files and streaming their lines.

Files are streamed, so a corpus may be larger than memory. Input that cannot be text (broken UTF-8,
NUL characters, lines of many megabytes, damaged archives) is refused with the file and line:
bytes that were repaired silently would end up in the vocabulary.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import BinaryIO, NoReturn

import pyarrow as pa

from bothways.errors import InputError
from bothways.io.files import PARTIAL

COMPRESSED = (".gz", ".xz", ".zst")
"""File name endings of compressed files."""
SUFFIXES = (".txt", *(".txt" + ending for ending in COMPRESSED))
_TEMPORARY = (PARTIAL, ".units-")
_RECORDS = tuple(
    name + ending
    for name in (".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".arrow")
    for ending in ("", *COMPRESSED)
)
LONGEST_TEXT_MIB = 1.0
"""Limit for a line that a model is to label, embed or search for an answer: a novel. Encoding it
takes a hundred times its size."""
_BREAK_UP = ", the limit for a text that a model reads. Break it up, or remove it."
REPLACEMENT = "\ufffd"
"""Stands for what cannot be decoded."""
REPLACE_BROKEN = ". Or give --broken replace, which puts U+FFFD for such bytes and characters."
_NO_TEXT = (
    ", so this is most likely not text. Remove the line or the file, or break the line up "
    "(`bothways vocab`, `vocab extend` and `corpus` accept longer ones with --max_line_mib)."
)

# Text by its name, vocabulary by its neighbours: the files of a tokenizer in a folder of texts.
_VOCABULARIES = ("vocab.txt", "merges.txt")
_BESIDE_VOCABULARIES = ("tokenizer.json", "tokenizer_config.json", "config.json", "corpus.json")

BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_LINES_PER_REPORT = 1000


def list_files(
    patterns: Sequence[str], suffixes: Sequence[str] = SUFFIXES, *, besides: str | None = None
) -> list[Path]:
    """The text files that match ``patterns``, sorted by path, without duplicates.

    Args:
        patterns: files (any name), folders (searched at every depth, links included), or globs
            (``**`` matches folders). The vocab.txt of a tokenizer or model counts only if named.
        suffixes: endings of the file names to look for in folders, in any case.
        besides: a folder whose files are left out: the output, of an earlier run.

    Raises:
        InputError: a pattern matches nothing, or a folder cannot be read.
    """
    if not patterns:
        raise InputError("no text files were given; name files, folders or globs.")
    found: set[Path] = set()
    for pattern in patterns:
        files = _matches(pattern, tuple(suffixes))
        if not files:
            raise InputError(
                f"{pattern!r} matches no text file. Give a file, a folder with files named "
                f"{', '.join('*' + suffix for suffix in suffixes)}, or a glob in quotes."
            )
        found.update(files)
    if besides is not None:
        out = Path(besides).resolve()
        found = {file for file in found if out not in file.resolve().parents}
    # Links may lead to a file on several ways; it is read once.
    return sorted({os.path.realpath(file): file for file in sorted(found, reverse=True)}.values())


def read_lines(
    path: Path,
    *,
    max_line_mib: float = 10.0,
    on_read: Callable[[int], None] | None = None,
    too_long: str = _NO_TEXT,
    on_broken: Callable[[], None] | None = None,
    remedy: str = "",
) -> Iterator[tuple[int, str]]:
    """Stream a file's lines.

    Args:
        path: plain text, or compressed if its name ends in ``.gz``, ``.xz`` or ``.zst``.
        max_line_mib: longest line accepted, in MiB of UTF-8; never more than this is held.
        on_read: called from time to time with the number of bytes on disk read so far.
        too_long: the end of the message about a line that is too long: the reason and the remedy.
        on_broken: called for each line with broken UTF-8 or NUL characters, which become U+FFFD; if
            not given, such a line is an error.
        remedy: ends the message about such a line.

    Yields:
        Line number from 1, and the text without its line end (LF or CRLF) and without a byte
        order mark.

    Raises:
        InputError: with file and line: broken UTF-8, a NUL character, a line that is too long,
            a truncated or damaged archive, a file that cannot be read.
    """
    number = 0
    with (
        explain_read_errors(path, lambda: number),
        path.open("rb") as disk,
        decompressed(path, disk) as file,
    ):
        limit = int(max_line_mib * 2**20)
        for number, text in _decode_lines(
            file, path, limit, too_long, on_broken=on_broken, remedy=remedy
        ):
            yield number, text
            if on_read and number % _LINES_PER_REPORT == 0:
                on_read(bytes_read(disk))
        if on_read:
            on_read(bytes_read(disk))


def bytes_read(disk: BinaryIO) -> int:
    """How many bytes of a file were read; 0 for a pipe, which does not report it."""
    return disk.tell() if disk.seekable() else 0


def refuse_records(path: Path, remedy: str, *, also: tuple[str, ...] = ()) -> None:
    """Refuse a file of records where text is read, as their syntax would be taken for text.

    Args:
        path: the file.
        remedy: ends the message.
        also: further endings of the names of such files.

    Raises:
        InputError: by its name, the file holds records.
    """
    if path.name.lower().endswith((*_RECORDS, *also)):
        raise InputError(
            f"this holds records, and their syntax would be read as text too; {remedy}.", path=path
        )


def read_texts(path: Path) -> Iterator[tuple[int, str]]:
    """:func:`read_lines` for a file whose lines hold texts to label, to search for an answer or to
    embed."""
    return read_lines(path, max_line_mib=LONGEST_TEXT_MIB, too_long=_BREAK_UP)


def decode_texts(file: BinaryIO, source: str) -> Iterator[tuple[int, str]]:
    """:func:`read_texts` for an open file; ``source`` names it in messages."""
    return _decode_lines(file, source, int(LONGEST_TEXT_MIB * 2**20), _BREAK_UP)


def _decode_lines(
    file: BinaryIO | BufferedIOBase,
    source: str | Path,
    limit: int,
    too_long: str,
    *,
    on_broken: Callable[[], None] | None = None,
    remedy: str = "",
) -> Iterator[tuple[int, str]]:
    # Two bytes more than the limit leave room for CRLF.
    for number, line in enumerate(iter(partial(file.readline, limit + 2), b""), start=1):
        try:
            yield number, decode_line(line, source, number, limit, too_long, remedy)
        except InputError:
            utf16 = number == 1 and line.startswith(UTF16_BOMS)
            if on_broken is None or utf16 or len(line) > limit + 1:
                raise
            on_broken()
            yield number, replace_broken(line, number)


def replace_broken(line: bytes, number: int) -> str:
    """A line's text with U+FFFD for broken UTF-8 and NUL characters."""
    body = line.removesuffix(b"\n").removesuffix(b"\r").removeprefix(BOM if number == 1 else b"")
    return body.decode("utf-8", "replace").replace("\0", REPLACEMENT)


@contextlib.contextmanager
def explain_read_errors(path: Path, lines_read: Callable[[], int]) -> Iterator[None]:
    """Turn an error met while opening or reading ``path`` into an :class:`InputError`.

    Args:
        path: the file.
        lines_read: how many lines were read so far, for the message about a damaged archive.
    """
    try:
        yield
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged_error(path, error, lines_read()) from error
    except OSError as error:
        if error.errno is None:  # how pyarrow reports broken zst
            raise _damaged_error(path, error, lines_read()) from error
        raise _unreadable_error(path, error) from error


def decompressed(path: Path, disk: BufferedReader) -> BufferedIOBase:
    """The decompressed content of the open file ``disk``, by the ending of its name."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=disk)
    if suffix == ".xz":
        return lzma.LZMAFile(disk)
    if suffix == ".zst":
        # The standard library has no zst before Python 3.14; Arrow, a dependency anyway, has it.
        return BufferedReader(pa.CompressedInputStream(pa.PythonFile(disk, "r"), "zstd"))
    return disk


def _matches(pattern: str, suffixes: tuple[str, ...]) -> list[Path]:
    if not pattern:
        return []
    # A name that exists is meant literally, even if it has brackets in it. Path.glob is no
    # alternative for the others because it does not accept absolute patterns.
    if Path(pattern).is_file():
        return [Path(pattern)]
    literal = Path(pattern).exists()
    names = [pattern] if literal else glob.glob(pattern, recursive=True)  # noqa: PTH207
    files: list[Path] = []
    for path in map(Path, names):
        files.extend(_files_under(path, suffixes) if path.is_dir() else [path])
    return [file for file in files if not _is_vocabulary(file)]


def _files_under(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    def refuse(error: OSError) -> NoReturn:
        raise _unreadable_error(Path(error.filename or folder), error) from error

    files: list[Path] = []
    visited: set[str] = set()  # links may lead in circles
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if (real := os.path.realpath(parent)) in visited:
            folders.clear()
            continue
        visited.add(real)
        # Temporary folders that a killed command left behind are not input.
        folders[:] = sorted(name for name in folders if not name.startswith(_TEMPORARY))
        files += [Path(parent, name) for name in names if name.lower().endswith(suffixes)]
    return files


def _is_vocabulary(file: Path) -> bool:
    return file.name in _VOCABULARIES and any(
        file.with_name(name).exists() for name in _BESIDE_VOCABULARIES
    )


def decode_line(
    line: bytes,
    path: str | Path,
    number: int,
    limit: int,
    too_long: str = _NO_TEXT,
    remedy: str = "",
) -> str:
    """Decode one line.

    Args:
        line: as read, with its line end.
        path: the file, for messages.
        number: of the line, from 1.
        limit: longest line accepted, in bytes.
        too_long, remedy: as for :func:`read_lines`.

    Raises:
        InputError: the line is too long, is not UTF-8, or has a NUL character.
    """
    body = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(body) > limit:
        raise line_too_long(path, number, limit, too_long)
    if number == 1:
        if body.startswith(UTF16_BOMS):
            raise utf16_error(path)
        body = body.removeprefix(BOM)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = error.start + (len(BOM) if number == 1 and line.startswith(BOM) else 0)
        raise InputError(
            f"not UTF-8: byte 0x{body[error.start]:02x} at byte {offset} of the line (from 0). "
            "Remove the line; or, if the whole file is in another encoding, convert it, such as "
            f"by iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW{remedy}",
            path=path,
            line=number,
        ) from error
    if "\0" in text:
        raise InputError(
            f"NUL character at character {text.index(chr(0))} of the line (from 0), so this is "
            "most likely not text. Remove the file, or the characters: "
            f"tr -d '\\000' < OLD > NEW{remedy}",
            path=path,
            line=number,
        )
    return text


def line_too_long(
    path: str | Path, number: int, limit: int, too_long: str = _NO_TEXT
) -> InputError:
    """The error for a line of more than ``limit`` bytes."""
    return InputError(
        f"the line is longer than {limit / 2**20:g} MiB{too_long}", path=path, line=number
    )


def utf16_error(path: str | Path) -> InputError:
    """The error for a file that starts with one of ``UTF16_BOMS``."""
    return InputError(
        "the file is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW",
        path=path,
        line=1,
    )


def _damaged_error(path: Path, error: Exception, lines: int) -> InputError:
    return InputError(
        f"the compressed file is truncated or damaged after line {lines} ({error}); "
        "copy or compress it again.",
        path=path,
    )


def _unreadable_error(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot be read: {error.strerror or error}. Check that it exists and its permissions.",
        path=path,
    )
