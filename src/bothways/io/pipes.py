"""Opening files that may be pipes: ``<(gzip -dc texts.gz)``, ``/dev/stdin``, FIFOs.

A pipe gives its bytes once, and readers look at the beginning of a file before they read it. A pipe
is therefore copied to a temporary file, which is opened in its place.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from io import BufferedReader
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.folder_files import is_there, refuse_no_file

_SPOOLED: dict[tuple[int, int], Any] = {}
"""Copies of pipes that were opened, by device and number."""


def open_file(path: Path) -> BufferedReader:
    """A file, or a pipe from the first byte that was written to it.

    Raises:
        InputError: it is a folder or a device, which would be read without end.
        OSError: it cannot be opened, or does not exist.
    """
    if not path.is_fifo():
        if is_there(path) and not _is_terminal(path):
            refuse_no_file(path)
        return path.open("rb")
    about = path.stat()
    key = about.st_dev, about.st_ino
    # The first time, a writer is waited for; later, one is asked for that writes anew.
    descriptor = os.open(path, os.O_RDONLY | (os.O_NONBLOCK if key in _SPOOLED else 0))
    with open(descriptor, "rb", buffering=0) as pipe:  # noqa: PTH123
        begun = pipe.read(1) if key in _SPOOLED else None
        if begun != b"":  # None: its writer has not written yet
            os.set_blocking(descriptor, True)
            _SPOOLED[key] = kept = tempfile.NamedTemporaryFile()  # noqa: SIM115
            kept.write(begun or b"")
            shutil.copyfileobj(pipe, kept)
            kept.flush()
    return Path(_SPOOLED[key].name).open("rb")


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
