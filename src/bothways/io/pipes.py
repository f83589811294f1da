"""Opening files that may be pipes: ``<(gzip -dc texts.gz)``, ``/dev/stdin``, FIFOs.

A pipe gives its bytes once, and readers look at the beginning of a file before they read it. What
was read of a pipe is therefore kept in a temporary file without a name, and every opening begins at
the first byte. What was never opened by a second reader has been streamed all the same.
"""

from __future__ import annotations

import os
import select
import tempfile
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.folder_files import is_there, refuse_no_file

_SECONDS = 5
"""Until a pipe that nobody has opened to write is given up."""


def open_file(path: Path) -> BufferedReader:
    """A file, or a pipe from the first byte that was written to it.

    Raises:
        InputError: it is a folder, a device, or a named pipe that nobody writes to, all of which
            would be read or waited for without end.
        OSError: it cannot be opened, or does not exist.
    """
    if not path.is_fifo():
        if is_there(path) and not _is_terminal(path):
            refuse_no_file(path)
        return path.open("rb")
    about = path.stat()
    key = about.st_dev, about.st_ino
    known = _PIPES.get(key)
    if known is None:
        _PIPES[key] = known = _Pipe(path)
    else:
        known.look_again()
    return BufferedReader(_PipeReader(known))


def open_in_any_order(path: Path) -> BufferedReader:
    """A file of a format that is not read from the first byte to the last, such as Parquet.

    Raises:
        InputError: it is a pipe, or what :func:`open_file` refuses.
        OSError: it cannot be opened, or does not exist.
    """
    if path.is_fifo():
        raise InputError(
            "is a pipe, and files of this format are not read from the first byte to the last; "
            "write it to a file, and name that.",
            place=Place(path),
        )
    return open_file(path)


def _is_terminal(path: Path) -> bool:
    """Whether a path such as /dev/stdin is of a terminal."""
    if not path.is_char_device():
        return False
    with path.open("rb") as device:
        return device.isatty()


class _Pipe:
    """A pipe, and what was read of it.

    Raises:
        InputError, OSError: as :func:`open_file`.
    """

    def __init__(self, path: Path):
        self._open = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._kept = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the pipe may be opened)
        self._size, self._ended = 0, False
        try:
            if not select.select([self._open], [], [], _SECONDS)[0] and not self._has_writer():
                raise InputError(
                    "is a named pipe, and nobody writes to it; give a file, or start the program "
                    "that writes first.",
                    place=Place(path),
                )
        except BaseException:
            os.close(self._open)
            self._kept.close()
            raise
        os.set_blocking(self._open, True)

    def read(self, position: int, count: int) -> bytes:
        """At most ``count`` bytes from a position that was reached before; none at the end."""
        if position < self._size:
            return os.pread(self._kept.fileno(), min(count, self._size - position), position)
        if self._ended:
            return b""
        data = os.read(self._open, count)
        if data:
            self._keep(data)
        else:  # it stays open: what someone else writes would be lost if it were closed meanwhile
            self._ended = True
            os.set_blocking(self._open, False)
        return data

    def look_again(self) -> None:
        """Begin anew if the pipe had ended and someone else has written to it since."""
        before = self._size
        if not self._ended or not self._has_writer():
            return
        new = os.pread(self._kept.fileno(), 1, before)
        self._size, self._ended = 0, False
        self._kept.truncate(0)
        self._keep(new)
        os.set_blocking(self._open, True)

    def _has_writer(self) -> bool:
        """Whether someone has the pipe open to write; a byte that is there is kept."""
        try:
            data = os.read(self._open, 1)
        except BlockingIOError:  # there is someone, who has nothing to say yet
            return True
        self._keep(data)
        return bool(data)

    def _keep(self, data: bytes) -> None:
        self._kept.seek(self._size)
        self._kept.write(data)
        self._kept.flush()
        self._size += len(data)


_PIPES: dict[tuple[int, int], _Pipe] = {}
"""Pipes that were opened, by device and number."""


class _PipeReader(RawIOBase):
    """A pipe read from its beginning."""

    def __init__(self, pipe: _Pipe):
        self._pipe, self._position = pipe, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._pipe.read(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
