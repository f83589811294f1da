"""Finding text files and streaming their lines: the one place that opens what users wrote.

Files are streamed, so a corpus may be larger than memory. Input that cannot be text (broken UTF-8,
NUL characters, lines of many megabytes, damaged archives) is refused with the file and line:
bytes that were repaired silently would end up in the vocabulary. What editors and systems leave in
text without meaning it is dropped: byte order marks at the start of any line (files are joined),
carriage returns at line ends, and 0x1A, which once ended files. Files whose only line ends are
carriage returns are read as having line feeds. A file is UTF-8 unless its byte order mark or the
option ``encoding`` says otherwise.
"""

from __future__ import annotations

import codecs
import contextlib
import glob
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import BufferedIOBase, BufferedReader, RawIOBase
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from bothways.errors import EncodingError, InputError, Place
from bothways.io.broken import TEXT, Broken, Limit, corpus_line
from bothways.io.diagnostics import binary_format, likely_encodings
from bothways.io.files import real_path
from bothways.io.pipes import open_file

COMPRESSED = (".gz", ".xz", ".zst")
"""File name endings of compressed files."""
SUFFIXES = (".txt", *(".txt" + ending for ending in COMPRESSED))
_RECORDS = tuple(
    name + ending
    for name in ".jsonl .ndjson .json .csv .tsv .yaml .yml .parquet .arrow".split()
    for ending in ("", *COMPRESSED)
)
REPLACEMENT = "\ufffd"
"""Stands for what cannot be decoded."""
SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs, which JSON may hold and no text may."""

# What systems and programs leave in folders: copies and settings that are no one's text. (Names
# that begin with a period, such as .git, ._a.txt and .ipynb_checkpoints, are hidden.)
_STRAY = ("__MACOSX", "$RECYCLE.BIN", "System Volume Information", "@eaDir", "lost+found")
# Text by its name, vocabulary by its neighbours: the files of a tokenizer in a folder of texts.
_VOCABULARIES = ("vocab.txt", "merges.txt")
_BESIDE_VOCABULARIES = ("tokenizer.json", "tokenizer_config.json", "config.json", "corpus.json")

_NO_TEXT = re.compile("[\ufeff\r\x1a]")
_SAMPLE = 2**16
_NOT_FEW = 10
"""Lines; that many that are not UTF-8, and most of a file's, are no damage."""
_BLOCK, _LARGE_BLOCK = 2**16, 2**22


def list_files(
    patterns: Sequence[str],
    suffixes: Sequence[str] = SUFFIXES,
    *,
    besides: str | None = None,
    stray: list[Path] | None = None,
) -> list[Path]:
    """The text files that match ``patterns``, sorted by path, without duplicates.

    Args:
        patterns: files (any name), folders (searched at every depth, links included), or globs
            (``**`` matches folders). The vocab.txt of a tokenizer or model counts only if named.
        suffixes: endings of the file names to look for in folders, in any case.
        besides: a folder whose files are left out: the output, of an earlier run.
        stray: takes the files that are left out in folders: hidden ones and those with other
            endings. Hidden folders and those of systems (``__MACOSX``) are not looked into.

    Raises:
        InputError: a pattern matches nothing, or a folder cannot be read.
    """
    if not patterns:
        raise InputError("no text files were given; name files, folders or globs.")
    found: set[Path] = set()
    stray = [] if stray is None else stray
    for pattern in patterns:
        files = _matches(pattern, tuple(suffixes), stray)
        if not files:
            raise InputError(
                f"{pattern!r} matches no text file. Give a file, a folder with files named "
                f"{', '.join('*' + suffix for suffix in suffixes)}, or a glob in quotes."
            )
        found.update(files)
    if besides is not None:
        out = real_path(Path(besides))
        found = {file for file in found if out not in real_path(file).parents}
        stray[:] = [file for file in stray if out not in real_path(file).parents]
    # Links may lead to a file on several ways; it is read once.
    return sorted({real_path(file): file for file in sorted(found, reverse=True)}.values())


def read_lines(
    path: Path,
    *,
    encoding: str = "",
    limit: Limit | None = None,
    broken: Broken | None = None,
    escape: bool = False,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, str]]:
    """Stream a file's lines.

    Args:
        path: plain text, or compressed if its name ends in ``.gz``, ``.xz`` or ``.zst``.
        encoding: of the file. Default: that of its byte order mark, else UTF-8.
        limit: longest line accepted; never more than this is held. Default: 10 MiB.
        broken: what to do with lines that cannot be read; stop, if not given.
        escape: for readers that leave out rows, not lines: bytes that are not UTF-8 are halves of
            surrogate pairs in the line, as in PEP 383.
        on_read: called from time to time with the number of bytes on disk read so far.

    Yields:
        Line number from 1, and the text without its line end and without byte order marks.

    Raises:
        InputError: with file and line: what cannot be decoded, a NUL character, a line that is too
            long, a truncated or damaged archive, a binary file, a file that cannot be read.
    """
    number = 0  # of lines that were read, for the message about a damaged archive
    with open_text(path, lambda: number, encoding) as (disk, file):
        blocks = _decode_blocks(file, path, limit or corpus_line(10.0), broken or Broken(), escape)
        for number, lines in blocks:  # noqa: B007
            yield from lines
            if on_read:
                on_read(bytes_read(disk))


@contextlib.contextmanager
def open_text(
    path: Path, lines_read: Callable[[], int] = lambda: 0, encoding: str = ""
) -> Iterator[tuple[BinaryIO, BufferedIOBase]]:
    """The file on disk, and its text as UTF-8: decompressed, with line feeds as line ends.

    Args:
        path: plain text, or compressed if its name ends so.
        lines_read: how many lines were read so far, for the message about a damaged archive.
        encoding: of the file. Default: that of its byte order mark, else UTF-8, unchecked.

    Raises:
        InputError: it cannot be read, is damaged, or is no text.
    """
    with (
        explain_read_errors(path, lines_read),
        open_file(path) as disk,
        decompressed(path, disk) as file,
    ):
        yield disk, text_stream(file, path, encoding)


_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def text_stream(
    file: BinaryIO | BufferedIOBase, source: str | Path, encoding: str = ""
) -> BufferedIOBase:
    """The text of an open file as UTF-8, with line feeds as line ends.

    Args:
        file: decompressed.
        source: named in messages.
        encoding: of the file. Default: that of its byte order mark, else UTF-8, unchecked.

    Raises:
        InputError: it is no plain text, such as a PDF or a page of HTML; or Python has no such
            encoding.
    """
    if not hasattr(file, "peek"):
        file = BufferedReader(cast(RawIOBase, file), _SAMPLE)
    head: bytes = cast(BufferedReader, file).peek(_SAMPLE)
    if (binary := binary_format(head)) is not None:
        raise InputError(f"this is {binary}, not text.", place=Place(source))
    encoding = encoding or next((name for m, name in _MARKS.items() if head.startswith(m)), "")
    if not encoding and head.count(0) > len(head) / 8:
        likely = " or ".join(likely_encodings(head))
        raise EncodingError(
            f"holds NUL bytes; it looks like {likely}.", place=Place(source, 1), option="encoding"
        )
    if encoding.lower() not in ("", "utf-8", "utf8"):
        file = BufferedReader(_Chunks(_recoded(file, encoding, source)), _SAMPLE)
        head = file.peek(_SAMPLE)
    if b"\r" in head[:-1] and b"\n" not in head:
        chunks = iter(partial(file.read, _SAMPLE), b"")
        return BufferedReader(_Chunks(chunk.replace(b"\r", b"\n") for chunk in chunks))
    return cast(BufferedIOBase, file)


def _recoded(file: Any, encoding: str, source: str | Path) -> Iterator[bytes]:
    """The content of a file in another encoding as UTF-8."""
    try:
        decoder = codecs.getincrementaldecoder(encoding)()
    except LookupError:
        raise InputError(
            f"Python has no encoding {encoding!r}.", place=Place(source), option="encoding"
        ) from None
    line, data = 1, b"\n"
    while data:
        data = file.read(_SAMPLE)
        try:
            text = decoder.decode(data, not data)
        except UnicodeError as error:
            start, given = getattr(error, "start", 0), getattr(error, "object", b"")
            raise EncodingError(
                f"the file is not {encoding} ({error}).",
                place=Place(source, line + given.count(b"\n", 0, start)),
                option="encoding",
            ) from None
        line += text.count("\n")
        yield text.encode("utf-8", "surrogatepass")


class _Chunks(RawIOBase):
    """Bytes of an iterator as a file."""

    def __init__(self, chunks: Iterator[bytes]):
        self._chunks, self._ready = filter(None, chunks), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._ready = self._ready or next(self._chunks, b"")
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def read_whole(path: Path, *, as_it_is: bool = False, encoding: str = "") -> str:
    """The text of a file: one that is read into memory, such as JSON.

    Args:
        path: the file.
        encoding: as for :func:`read_lines`.
        as_it_is: drop a byte order mark at its start only.

    Raises:
        InputError: what :func:`read_lines` refuses, but for its length.
    """
    with open_text(path, encoding=encoding) as (_, file):
        data = file.read()
    try:
        text = data.decode()
    except UnicodeDecodeError:  # of which line
        limit = Limit(float(len(data)), "")
        text = "\n".join(t for _, t in decode_lines(data.split(b"\n"), path, 1, limit, Broken()))
    return text.removeprefix("\ufeff") if as_it_is else "\n".join(lines_of(text))


def beginning(path: Path, encoding: str = "") -> str:
    """The beginning of a file's text, without byte order marks and what cannot be decoded; empty if
    there is none."""
    try:
        with open_text(path, encoding=encoding) as (_, file):
            return file.read(_SAMPLE).decode("utf-8", errors="ignore").lstrip("\ufeff")
    except InputError:
        return ""


def beginning_lines(path: Path, encoding: str = "") -> list[str]:
    """The lines of :func:`beginning`."""
    text = beginning(path, encoding)
    return first_lines(text, cut=len(text.encode()) > _SAMPLE - 8)


def first_lines(text: str, *, cut: bool) -> list[str]:
    """The lines of the beginning of a text, without the last one if that was cut, and others are
    whole."""
    lines = text.split("\n")
    return lines[:-1] if cut and len(lines) > 1 else lines


def ending(path: Path) -> str:
    """The end of a file's name, in small letters, which says its format. A pipe, which nobody can
    rename, may be called ``63`` by a shell; its content says whether it is JSON or lines."""
    if (suffix := path.suffix.lower()) or not path.is_fifo():
        return suffix
    return ".jsonl" if beginning(path).lstrip().startswith(("{", "[{")) else ".txt"


def bytes_read(disk: BinaryIO) -> int:
    """How many bytes of a file were read; 0 for a pipe, which does not report it."""
    return disk.tell() if disk.seekable() else 0


def refuse_records(path: Path, remedy: str) -> None:
    """Refuse a file of records where text is read, as their syntax would be taken for text.

    Args:
        path: the file.
        remedy: ends the message.

    Raises:
        InputError: by its name, the file holds records.
    """
    if path.name.lower().endswith(_RECORDS):
        raise InputError(
            f"this holds records, and their syntax would be read as text too; {remedy}.",
            place=Place(path),
        )


def read_texts(
    path: Path, broken: Broken | None = None, encoding: str = ""
) -> Iterator[tuple[int, str]]:
    """:func:`read_lines` for a file whose lines hold texts to label, to search for an answer or to
    embed."""
    return read_lines(path, encoding=encoding, limit=TEXT, broken=broken)


def decode_texts(file: BinaryIO, source: str) -> Iterator[tuple[int, str]]:
    """:func:`read_texts` for an open file; ``source`` names it in messages."""
    blocks = _decode_blocks(text_stream(file, source), source, TEXT, Broken())
    return chain.from_iterable(lines for _, lines in blocks)


def _decode_blocks(
    file: BufferedIOBase, source: str | Path, limit: Limit, broken: Broken, escape: bool = False
) -> Iterator[tuple[int, Iterable[tuple[int, str]]]]:
    """The number of the last line of each block, and its lines with their numbers."""
    number, rest, ended = 1, b"", False
    while not ended:
        data = file.read(min(max(_BLOCK, len(rest)), _LARGE_BLOCK))
        block, ended = rest + data, not data
        cut = len(block) if ended else block.rfind(b"\n") + 1
        if not cut and len(block) > limit.bytes + 2:
            while (more := file.readline(_BLOCK)) and not more.endswith(b"\n"):
                pass
            cut = len(block)
        if cut:
            lines = _block_lines(block[:cut], source, number, limit, broken, escape)
            number += block.count(b"\n", 0, cut) or 1
            yield number - 1, lines
        rest = block[cut:]


def _block_lines(
    block: bytes, source: str | Path, number: int, limit: Limit, broken: Broken, escape: bool
) -> Iterable[tuple[int, str]]:
    """The lines of a block; decoded one by one only if it cannot be decoded as a whole."""
    body = block.removesuffix(b"\n")
    if len(body) <= limit.bytes and b"\0" not in body and b"\x1a" not in body:
        with contextlib.suppress(UnicodeDecodeError):
            return enumerate(lines_of(body.decode()), number)
    lines = body.split(b"\n")
    found = decode_lines(lines, source, number, limit, broken, escape=escape)
    if b"\x1a" in body:  # alone on a line it is no line
        found = ((n, line) for n, line in found if line or b"\x1a" not in lines[n - number])
    return found


@contextlib.contextmanager
def explain_read_errors(path: Path, lines_read: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn an error met while opening or reading ``path`` into an :class:`InputError`.

    Args:
        path: the file.
        lines_read: how many lines were read so far, for the message about a damaged archive.
    """
    try:
        yield
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if getattr(error, "errno", None) is None:  # also how pyarrow reports broken zst
            problem = f"the compressed file is truncated or damaged after line {lines_read()} "
            problem += f"({error}); copy or compress it again."
        else:
            problem = f"cannot be read: {getattr(error, 'strerror', '') or error}."
        raise InputError(problem, place=Place(path)) from error


def decompressed(path: Path, disk: BufferedReader) -> BufferedIOBase:
    """The decompressed content of the open file ``disk``, by the ending of its name."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=disk)
    if suffix == ".xz":
        return lzma.LZMAFile(disk)
    if suffix == ".zst":
        # The standard library has no zst before Python 3.14; Arrow, a dependency anyway, has it.
        import pyarrow as pa  # of the extra data

        return BufferedReader(pa.CompressedInputStream(pa.PythonFile(disk, "r"), "zstd"))
    return disk


def _matches(pattern: str, suffixes: tuple[str, ...], stray: list[Path]) -> list[Path]:
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
        files.extend(_files_under(path, suffixes, stray) if path.is_dir() else [path])
    return [file for file in files if not _is_vocabulary(file)]


def _files_under(folder: Path, suffixes: tuple[str, ...], stray: list[Path]) -> list[Path]:
    def refuse(error: OSError) -> NoReturn:
        with explain_read_errors(Path(error.filename or folder)):
            raise error

    files: list[Path] = []
    visited: set[str] = set()  # links may lead in circles
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if (real := os.path.realpath(parent)) in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not _is_stray(name))
        for path in (Path(parent, name) for name in sorted(names)):
            is_text = path.name.lower().endswith(suffixes) and not _is_stray(path.name)
            is_device = path.exists() and not path.is_file()  # or a pipe
            (files if is_text and not is_device else stray).append(path)
    return files


def _is_stray(name: str) -> bool:
    return name.startswith(".") or name in _STRAY


def stray_notes(stray: Sequence[Path]) -> list[str]:
    """A sentence about files that :func:`list_files` left out, if there are any."""
    what = "files are left out, which are hidden or have other endings, such as"
    return [f"{len(stray):,} {what} {stray[0]} (name a file to read it)"] if stray else []


def _is_vocabulary(file: Path) -> bool:
    return file.name in _VOCABULARIES and any(
        file.with_name(name).exists() for name in _BESIDE_VOCABULARIES
    )


def decode_lines(
    lines: Sequence[bytes],
    source: str | Path,
    first: int,
    limit: Limit,
    broken: Broken,
    *,
    escape: bool = False,
) -> Iterator[tuple[int, str]]:
    """Decode lines one by one, and drop what is no text at their ends.

    Args:
        lines: following each other, without line feeds.
        source: the file, for messages.
        first: number of the first line.
        limit: longest line accepted.
        broken: what to do with lines that cannot be read.
        escape: as for :func:`read_lines`.

    Raises:
        InputError: a line is too long; or it is not UTF-8 or has a NUL, and nothing is replaced.
    """
    for number, line in enumerate(lines, first):
        body, error = line.rstrip(b"\r"), None
        if len(body) > limit.bytes and broken.action != "skip":
            raise limit.error(source, number)
        text = body.decode("utf-8", "replace")
        if len(body) > limit.bytes:
            error = limit.error(source, number)
        elif REPLACEMENT in text and not _is_utf8(body):
            error = _not_utf8(body, lines, Place(source, number))
        elif "\0" in text:
            problem = "holds a NUL character; the file is damaged, or no text."
            error = InputError(problem, place=Place(source, number))
        if error is not None and broken.action == "skip" and not error.whole:
            if escape:
                yield number, without_marks(line.decode("utf-8", "surrogateescape"))
            else:
                broken.leave_out(error)
            continue
        if error is not None and (error.whole or broken.action != "replace"):
            raise error if error.whole else broken.refusal(error)
        yield number, without_marks(replace_broken(text, body, source, number, broken))


def replace_broken(
    text: str, original: bytes, source: str | Path, number: int, broken: Broken
) -> str:
    """Put U+FFFD for what no text may hold, and count all that the original has not.

    Args:
        text: decoded, with U+FFFD for what could not be.
        original: its bytes.
        source, number: file and line.
        broken: counts.
    """
    if "\0" in text or SURROGATES.search(text):
        text = SURROGATES.sub(REPLACEMENT, text.replace("\0", REPLACEMENT))
    if REPLACEMENT in text:
        replaced = text.count(REPLACEMENT) - original.count(REPLACEMENT.encode())
        if replaced:
            broken.replaced(source, number, replaced)
    return text


def without_marks(line: str) -> str:
    """A line without byte order marks before it, and without carriage returns and 0x1A."""
    return line.lstrip("\ufeff\x1a").rstrip("\r\x1a")


def lines_of(text: str) -> list[str]:
    """The lines of a text, as :func:`read_lines` gives them."""
    lines = text.split("\n")
    return [without_marks(line) for line in lines] if _NO_TEXT.search(text) else lines


def _not_utf8(body: bytes, around: Sequence[bytes], place: Place) -> InputError:
    """The error for a line that is not UTF-8, with the encodings that the file may have."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        problem = f"byte 0x{body[error.start]:02x} is not UTF-8"
    broken = [line for line in around if not _is_utf8(line)]
    if len(broken) < sum(not line.isascii() for line in around) / 2:
        return EncodingError(f"{problem}; the line is damaged.", place=place)
    names = likely_encodings(b"\n".join(broken)[:_SAMPLE])
    looks = f"; the file looks like {' or '.join(names)}" if names else ""
    found = EncodingError(f"{problem}{looks}.", place=place, option="encoding")
    found.whole = len(broken) >= _NOT_FEW and len(broken) > sum(map(bool, around)) / 2
    return found


def _is_utf8(line: bytes) -> bool:
    try:
        return line.decode() is not None
    except UnicodeDecodeError:
        return False
