"""Sentence boundaries, on the ``sentencex`` library (rules for some 300 languages)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
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
_ODD_SPACE = re.compile(f"[{''.join(map(chr, _PLAIN_SPACES.keys() - {ord(' ')}))}]")


def check_language(language: str) -> None:
    """Refuse what is not a language code: the library would quietly split it as English.

    Raises:
        ConfigError: not in the form of a code.
    """
    if not _LANGUAGE.fullmatch(language):
        raise ConfigError(
            f"language is {language!r}; give a code of two or three small letters, such as en, ko."
        )


def split_paragraphs(
    paragraphs: Sequence[str], *, sentences: Literal["split", "line"], language: str
) -> list[list[str]]:
    """The sentences of each paragraph, in order.

    Args:
        paragraphs: lines of text; a sentence never goes over a line end.
        sentences: find boundaries in each paragraph, or take it as one sentence.
        language: ISO 639 code; one without rules of its own is split like its nearest relative.

    Returns:
        Sentences without space around them; none is empty.
    """
    if sentences == "line":
        return [[stripped] if (stripped := text.strip()) else [] for text in paragraphs]
    return [
        [stripped for part in _split(text, language) if (stripped := part.strip())]
        for text in paragraphs
    ]


def _split(line: str, language: str) -> list[str]:
    """Pieces that add up to ``line``."""
    plain = line.translate(_PLAIN_SPACES) if _ODD_SPACE.search(line) else line
    if len(line) <= WINDOW:
        found: list[str] = sentencex.segment(language, plain)
        return found if plain is line else _cut(line, found)
    pieces: list[str] = []
    start = 0
    while start < len(line):
        window = plain[start : start + WINDOW]
        found = sentencex.segment(language, window)
        if start + len(window) < len(line):
            # The last sentence may go on after the window: leave it to the next one. A sentence
            # as long as the window is cut, between words where there are any.
            found = found[:-1] or [window[: window.rfind(" ") + 1 or len(window)]]
        pieces += _cut(line[start:], found)
        start += sum(map(len, found))
    return pieces


def _cut(text: str, like: list[str]) -> list[str]:
    """Pieces of ``text`` as long as those of ``like``."""
    ends = list(accumulate(map(len, like)))
    return [text[end - len(piece) : end] for end, piece in zip(ends, like, strict=True)]
