"""The streams of the command line, and output that cannot hold every character.

Only the program calls :func:`show_every_character`, which changes the streams of the process.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys

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


def show_every_character() -> None:
    """Make stdout and stderr show what their encoding lacks, instead of raising an error.

    Finished work must not end in a UnicodeEncodeError because its table has a frame. Frames become
    ASCII, other characters escapes such as ``\\u2192``, which are legible and lose nothing. A
    treatment of errors that the user chose (``PYTHONIOENCODING=ascii:replace``) stays.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper) or stream.errors != "strict":
            continue
        if stream is sys.stdout and codecs.lookup(stream.encoding).name != "utf-8":
            # Worker processes print lines too, and have streams of their own.
            os.environ["PYTHONIOENCODING"] = f"{stream.encoding}:backslashreplace"
        codecs.register_error("bothways-shown", _shown)
        stream.reconfigure(errors="bothways-shown")


def _shown(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\u2500" <= character <= "\u257f":
        shown = "-" if character in _ACROSS else "|" if character in _DOWN else "+"
    else:
        shown = character.encode("ascii", "backslashreplace").decode()
    return shown, error.start + 1


# All of C0 and C1 but tab and line feed, and what turns the direction of text round.
_INVISIBLE = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")


def visible(text: str) -> str:
    """A text without what a terminal would obey: escapes such as ``\\x1b`` stand for control
    characters. Names of files and weights, labels and texts come from anywhere."""
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
