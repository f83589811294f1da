"""Sentence boundaries, on the ``sentencex`` library (rules for some 300 languages)."""

from __future__ import annotations

import re
from typing import Literal

import sentencex

from bothways.errors import ConfigError

# Characters handed to the library at once. Its time grows with the square of the number of
# opening quotes in the text; a window keeps a line of megabytes linear and never touches a
# paragraph of ordinary length.
WINDOW = 10_000

_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*")

# The library takes every space for one byte long and panics on a wide one before a full stop. It
# is shown plain spaces; the boundaries it finds are then cut from the text as it is.
_LAST_SPACE = 0x3000
_PLAIN_SPACES = {code: " " for code in range(_LAST_SPACE + 1) if chr(code).isspace()}


def check_language(language: str) -> None:
    """Refuse what is not a language code: the library would quietly split it as English.

    Raises:
        ConfigError: not in the form of a code.
    """
    if not _LANGUAGE.fullmatch(language):
        raise ConfigError(
            f"language is {language!r}; give a code of two or three small letters, such as en, ko."
        )


def split_lines(
    lines: list[str], *, sentences: Literal["split", "line"], language: str
) -> list[str]:
    """The sentences of a document, in order.

    Args:
        lines: the document's lines; a sentence never goes over a line end.
        sentences: find boundaries in each line, or take it as one sentence.
        language: ISO 639 code; one without rules of its own is split like its nearest relative.

    Returns:
        Sentences without space around them; none is empty.
    """
    if sentences == "split":
        parts = [part for line in lines for part in _split(line, language)]
    else:
        parts = lines
    return [stripped for part in parts if (stripped := part.strip())]


def _split(line: str, language: str) -> list[str]:
    """Pieces that add up to ``line``."""
    plain = line.translate(_PLAIN_SPACES)
    pieces: list[str] = []
    start = 0
    while start < len(line):
        window = plain[start : start + WINDOW]
        found = [len(sentence) for sentence in sentencex.segment(language, window)]
        if start + len(window) < len(line):
            # The last sentence may go on after the window: leave it to the next one. A sentence
            # as long as the window is cut, between words where there are any.
            found = found[:-1] or [window.rfind(" ") + 1 or len(window)]
        for length in found:
            pieces.append(line[start : start + length])
            start += length
    return pieces
