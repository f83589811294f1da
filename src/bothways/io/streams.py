"""The streams of the command line, and output that cannot hold every character.

Only the program calls :func:`show_every_character`, which changes the streams of the process.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import sys
from typing import Any

# Box-drawing characters that are a line in one direction only; the others are corners or crossings.
_ACROSS = frozenset("─━┄┅┈┉╌╍═╴╶╸╺╼╾")
_DOWN = frozenset("│┃┆┇┊┋╎╏║╵╷╹╻╽╿")


def open_closed_streams() -> None:
    """Put the null device where a stream of the process is closed (``>&-``), so that no file of
    ours takes its number.

    What is printed to a closed stdout is an error, as on a full disk; a closed stderr loses what it
    is told, as was asked for, and a closed stdin is empty.
    """
    for number, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),  # so that writing fails
        (2, "stderr", os.O_WRONLY),
    ):
        if getattr(sys, name) is not None:
            continue
        place = os.open(os.devnull, flags)  # the lowest number that is free
        setattr(sys, name, os.fdopen(place, "w" if number else "r", encoding="utf-8"))


class _Lasting(io.RawIOBase):
    """A stream that a terminal or a log is behind: what cannot be written any more, as the terminal
    is gone or the disk is full, is lost, and nothing else is.

    Args:
        number: of the file.
    """

    def __init__(self, number: int):
        self._number = number

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            return os.write(self._number, data)
        return len(data)


def keep_on_without_stderr() -> None:
    """Let work go on where what is said of it cannot be written (a terminal that was closed, a full
    disk): notes and progress are not what was asked for."""
    stream = sys.stderr
    if stream is not sys.__stderr__ or not isinstance(stream, io.TextIOWrapper):
        return  # of another program, or of a test
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Lasting(stream.fileno())),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )


def show_every_character() -> None:
    """Make stdout and stderr show what their encoding lacks, instead of raising an error.

    Finished work must not end in a UnicodeEncodeError because its table has a frame. Frames become
    ASCII, other characters escapes such as ``\\u2192``, which are legible and lose nothing. A
    treatment of errors that the user chose (``PYTHONIOENCODING=ascii:replace``) stays.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper) or stream.errors not in _HANDLERS:
            continue
        if stream is sys.stdout and codecs.lookup(stream.encoding).name != "utf-8":
            # Worker processes print lines too, and have streams of their own.
            os.environ["PYTHONIOENCODING"] = f"{stream.encoding}:backslashreplace"
        name, handler = _HANDLERS[stream.errors]
        codecs.register_error(name, handler)
        stream.reconfigure(errors=name)


def _shown(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\u2500" <= character <= "\u257f":
        shown = "-" if character in _ACROSS else "|" if character in _DOWN else "+"
    else:
        shown = character.encode("ascii", "backslashreplace").decode()
    return shown, error.start + 1


def _shown_or_raw(error: UnicodeError) -> tuple[str | bytes, int]:
    """As ``surrogateescape`` does it, bytes of an argument or a file name are written as they
    are."""
    if isinstance(error, UnicodeEncodeError):
        code = ord(error.object[error.start])
        if 0xDC80 <= code <= 0xDCFF:
            return bytes([code - 0xDC00]), error.start + 1
    return _shown(error)


# By the treatment of errors that a stream has by default.
_HANDLERS = {
    "strict": ("bothways-shown", _shown),
    "surrogateescape": ("bothways-shown-or-raw", _shown_or_raw),
}


# All of C0 and C1 but tab and line feed, and what turns the direction of text round.
_INVISIBLE = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")


def visible(text: str) -> str:
    """A text without what a terminal would obey: escapes such as ``\\x1b`` stand for control
    characters. Names of files and weights, labels and texts come from anywhere."""
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
