"""Encodings of the command line: output that cannot hold every character, arguments in UTF-8.

Only the program calls :func:`show_every_character`, which changes the streams of the process.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import os
import sys
from typing import Any, TypeVar

T = TypeVar("T")

TEXT_OPTIONS = frozenset(
    {
        *("texts", "text_a", "text_b", "question", "context", "choices"),
        *("label", "labels", "columns", "text_field"),
    }
)
"""Options whose values are text or names in a file; most others may be paths."""

# Box-drawing characters that are a line in one direction only; the others are corners or crossings.
_ACROSS = frozenset("─━┄┅┈┉╌╍═╴╶╸╺╼╾")
_DOWN = frozenset("│┃┆┇┊┋╎╏║╵╷╹╻╽╿")


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


def with_decoded_texts(config: T) -> T:
    """Options of the command line with their texts decoded from UTF-8.

    Where the locale's encoding is another (``LC_ALL=C`` with ``PYTHONUTF8=0``), Python hands over
    each of an argument's bytes as half a character. Paths stay as they are, which is how the system
    takes them.
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    changes: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            found: Any = with_decoded_texts(value)
        elif item.name in TEXT_OPTIONS:
            found = _decoded(value)
        else:
            continue
        if found != value:
            changes[item.name] = found
    return dataclasses.replace(config, **changes) if changes else config


def _decoded(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_decoded, value))
    if isinstance(value, str) and any("\udc80" <= character <= "\udcff" for character in value):
        try:
            return os.fsencode(value).decode("utf-8")
        except UnicodeError:  # no UTF-8; whoever reads the text says so
            return value
    return value
