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
import functools
import glob
import gzip
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import SEEK_SET, BufferedIOBase, BufferedReader, RawIOBase
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from bothways.errors import EncodingError, InputError, Place
from bothways.io.broken import TEXT, Broken, Limit, corpus_line
from bothways.io.diagnostics import binary_format, is_page, likely_encodings
from bothways.io.files import PARTIAL, real_path
from bothways.io.pipes import open_file

COMPRESSED = (".gz", ".xz", ".zst")
"""File name endings of compressed files."""
SUFFIXES = (".txt", *(".txt" + ending for ending in COMPRESSED))
_TEMPORARY = (PARTIAL, ".units-")
_RECORDS = tuple(
    name + ending
    for name in (".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".arrow")
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

_NO_TEXT_BEFORE = "\ufeff\x1a"
_NO_TEXT_AFTER = "\r\x1a"
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
        stray: takes the files that are left out in folders: those that systems and programs make,
            hidden ones (``._a.txt``, ``.git``, ``.ipynb_checkpoints``) and ``__MACOSX``; and those
            with other endings, but for what lies beside a vocabulary.

    Raises:
        InputError: a pattern matches nothing, or a folder cannot be read.
    """
    if not patterns:
        raise InputError("no text files were given; name files, folders or globs.")
    found: set[Path] = set()
    for pattern in patterns:
        passed: list[Path] = []
        files = _matches(pattern, tuple(suffixes), passed)
        if stray is not None:
            stray += passed
        if not files:
            held = sorted({f"*{path.suffix}" for path in passed if path.suffix})
            others = f" (the folder holds {', '.join(held[:4])})" if held else ""
            raise InputError(
                f"{pattern!r} matches no text file{others}. Give a file, a folder with files named "
                f"{', '.join('*' + suffix for suffix in suffixes)}, or a glob in quotes."
            )
        found.update(files)
    if besides is not None:
        out = real_path(Path(besides))
        found = {file for file in found if out not in real_path(file).parents}
        if stray is not None:
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
    if is_page(head):
        raise InputError("this is a page of HTML, not its text.", place=Place(source))
    encoding = encoding or next((name for m, name in _MARKS.items() if head.startswith(m)), "")
    if not encoding and head.count(0) > len(head) / 8:
        likely = " or ".join(likely_encodings(head))
        raise EncodingError(
            f"holds NUL bytes; it looks like {likely}.", place=Place(source, 1), option="encoding"
        )
    if encoding.lower() not in ("", "utf-8", "utf8"):
        file = BufferedReader(_Recoded(cast(BufferedReader, file), encoding, source), _SAMPLE)
        head = file.peek(_SAMPLE)
    if b"\r" in head[:-1] and b"\n" not in head:
        return BufferedReader(_LineFeeds(cast(BufferedReader, file)))
    return cast(BufferedIOBase, file)


class _Recoded(RawIOBase):
    """A file in another encoding as UTF-8."""

    def __init__(self, file: BufferedReader, encoding: str, source: str | Path):
        try:
            self._decoder = codecs.getincrementaldecoder(encoding)()
        except LookupError:
            raise InputError(
                f"Python has no encoding {encoding!r}.", place=Place(source), option="encoding"
            ) from None
        self._file, self._encoding, self._source = file, encoding, source
        self._lines, self._ready = 1, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = None
        while not self._ready and data != b"":
            data = self._file.read(_SAMPLE)
            try:
                text = self._decoder.decode(data, not data)
            except UnicodeError as error:
                start, given = getattr(error, "start", 0), getattr(error, "object", b"")
                place = Place(self._source, self._lines + given.count(b"\n", 0, start))
                raise EncodingError(
                    f"the file is not {self._encoding} ({error}).", place=place, option="encoding"
                ) from None
            self._lines += text.count("\n")
            self._ready = text.encode("utf-8", "surrogatepass")
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


class _LineFeeds(RawIOBase):
    """A file whose carriage returns are line feeds, as they end its lines."""

    def __init__(self, file: BufferedReader):
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer)).replace(b"\r", b"\n")
        buffer[: len(data)] = data
        return len(data)


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
    except UnicodeDecodeError as error:
        start = data.rfind(b"\n", 0, error.start) + 1
        line, number = data[start:].split(b"\n", 1)[0], data.count(b"\n", 0, start) + 1
        decode_line(line, path, number, Limit(float(len(data)), ""), Broken())
        raise  # not reached: the line cannot be decoded
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


def holds_records(path: Path, *, also: tuple[str, ...] = ()) -> bool:
    """Whether a file holds records, by its name; ``also`` are further endings of such names."""
    return path.name.lower().endswith((*_RECORDS, *also))


def refuse_records(path: Path, remedy: str, *, also: tuple[str, ...] = ()) -> None:
    """Refuse a file of records where text is read, as their syntax would be taken for text.

    Args:
        path: the file.
        remedy: ends the message.
        also: further endings of the names of such files.

    Raises:
        InputError: by its name, the file holds records.
    """
    if holds_records(path, also=also):
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
    return _single_lines(body, source, number, limit, broken, escape)


def _single_lines(
    body: bytes, source: str | Path, number: int, limit: Limit, broken: Broken, escape: bool
) -> Iterator[tuple[int, str]]:
    for place, line in enumerate(body.split(b"\n"), number):
        try:
            text = decode_line(line, source, place, limit, broken)
        except InputError as error:
            if broken.action != "skip" or (isinstance(error, EncodingError) and error.whole):
                raise
            if escape:
                yield place, without_marks(line.decode("utf-8", "surrogateescape"))
            else:
                broken.leave_out(error)
            continue
        if text or b"\x1a" not in line:  # alone on a line it is no line
            yield place, text


@contextlib.contextmanager
def explain_read_errors(path: Path, lines_read: Callable[[], int] = lambda: 0) -> Iterator[None]:
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
        found = [Path(parent, name) for name in names if name.lower().endswith(suffixes)]
        inside = Path(parent).relative_to(folder).parts
        if not any(map(_is_stray, inside)) and not set(names) & {*_BESIDE_VOCABULARIES}:
            others = (n for n in names if not (_is_stray(n) or n.lower().endswith(suffixes)))
            paths = [Path(parent, name) for name in sorted(others)]
            stray += [path for path in paths if not _is_device(path)]
        for path in found:
            left_out = any(_is_stray(name) for name in (*inside, path.name)) or _is_device(path)
            (stray if left_out else files).append(path)
    return files


def _is_device(path: Path) -> bool:
    """A pipe, socket or device, which would be read without end."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False  # what it is will be said when it is opened
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _is_stray(name: str) -> bool:
    return name.startswith(".") or name in _STRAY


def stray_notes(stray: Sequence[Path], suffixes: Sequence[str] = SUFFIXES) -> list[str]:
    """Sentences about files that :func:`list_files` left out."""
    ends = tuple(suffixes)
    hidden = [path for path in stray if path.name.lower().endswith(ends)]
    others = [path for path in stray if not path.name.lower().endswith(ends)]
    whose = (
        (hidden, "hidden files, or files of the system's own,"),
        (others, "files whose names do not end as those of texts do"),
    )
    return [
        f"{len(found):,} {what} are left out, such as {found[0]} (name a file to read it)"
        for found, what in whose
        if found
    ]


def _is_vocabulary(file: Path) -> bool:
    return file.name in _VOCABULARIES and any(
        file.with_name(name).exists() for name in _BESIDE_VOCABULARIES
    )


def decode_line(line: bytes, source: str | Path, number: int, limit: Limit, broken: Broken) -> str:
    """Decode one line, and drop what is no text at its ends.

    Args:
        line: as read, with its line end.
        source: the file, for messages.
        number: of the line, from 1.
        limit: longest line accepted.
        broken: whether characters that cannot be decoded are replaced and counted.

    Raises:
        InputError: the line is too long; or it is not UTF-8 or has a NUL, and nothing is replaced.
    """
    body = line.removesuffix(b"\n").rstrip(b"\r")
    if len(body) > limit.bytes:
        raise limit.error(source, number)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        found = _not_utf8(error, source, number)
        if found.whole:
            raise found from error
        if broken.action != "replace":
            raise broken.with_remedy(found) from error
        text = body.decode("utf-8", "replace")
    if "\0" in text and broken.action != "replace":
        raise broken.with_remedy(
            InputError(
                "holds a NUL character; the file is damaged, or no text.",
                place=Place(source, number),
            )
        )
    return without_marks(replace_broken(text, body, source, number, broken))


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
    return line.lstrip(_NO_TEXT_BEFORE).rstrip(_NO_TEXT_AFTER)


def lines_of(text: str) -> list[str]:
    """The lines of a text, as :func:`read_lines` gives them."""
    lines = text.split("\n")
    return [without_marks(line) for line in lines] if _NO_TEXT.search(text) else lines


def _not_utf8(error: UnicodeDecodeError, source: str | Path, number: int) -> EncodingError:
    """The error for a line that is not UTF-8, with the encodings that the file may have."""
    line: bytes = error.object
    problem = f"byte 0x{line[error.start]:02x} is not UTF-8"
    lines = _first_lines(source)
    broken = [line for line in lines if not _is_utf8(line)] or [line]
    if len(broken) < sum(not line.isascii() for line in lines) / 2:
        return EncodingError(f"{problem}; the line is damaged.", place=Place(source, number))
    names = likely_encodings(b"\n".join(broken)[:_SAMPLE])
    looks = f"; the file looks like {' or '.join(names)}" if names else ""
    found = EncodingError(f"{problem}{looks}.", place=Place(source, number), option="encoding")
    found.whole = len(broken) >= _NOT_FEW and len(broken) > len(lines) / 2
    return found


def _first_lines(source: str | Path) -> list[bytes]:
    """The first lines of a file that are not blank."""
    if isinstance(source, Path):
        with contextlib.suppress(OSError):
            about = source.stat()
            return _lines_of(source, about.st_size, about.st_mtime_ns)
    return []


@functools.lru_cache(maxsize=4)  # each line that is not UTF-8 asks
def _lines_of(path: Path, *_: int) -> list[bytes]:
    """Of a file, which is another one if its size or time is."""
    return [line for line in _sample(path).split(b"\n")[:-1] if line.strip()]


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _sample(path: Path) -> bytes:
    """The first bytes of a file's text; none of what can be read only once."""
    if not path.is_file():
        return b""
    with contextlib.suppress(InputError, OSError), open_text(path) as (_, file):
        return file.read(_SAMPLE)
    return b""


def _damaged_error(path: Path, error: Exception, lines: int) -> InputError:
    return InputError(
        f"the compressed file is truncated or damaged after line {lines} ({error}); "
        "copy or compress it again.",
        place=Place(path),
    )


def _unreadable_error(path: Path, error: OSError) -> InputError:
    if str(path) == "-":
        return InputError(
            "no file has this name; standard input is /dev/stdin where a file is expected, or is "
            "read line by line where no file is named.",
            place=Place(path),
        )
    return InputError(
        f"cannot be read: {error.strerror or error}. Check that it exists and its permissions.",
        place=Place(path),
    )
