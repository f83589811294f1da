"""Sentence splitting with the ``sentencex`` library (rules for some 300 languages)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import sentencex

from bothways.errors import ConfigError

# Characters passed to the library at once. Its time grows with the square of the number of opening
# quotes in the text. The window keeps the time for a line of megabytes linear, and does not affect
# paragraphs of ordinary length.
WINDOW = 10_000

AUTO = "auto"
"""In place of a language: it is recognised."""
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*")

# The library assumes that every space is one byte long and panics on a wider one before a full
# stop. It is given plain spaces; the boundaries it finds are then applied to the original text.
_LAST_SPACE = 0x3000
_PLAIN_SPACES = {code: " " for code in range(_LAST_SPACE + 1) if chr(code).isspace()}
_ODD_SPACE = re.compile(f"[{''.join(map(chr, _PLAIN_SPACES.keys() - {ord(' ')}))}]")


def check_language(language: str) -> None:
    """Refuse anything but a language code: the library would silently split it as English.

    Raises:
        ConfigError: ``language`` does not have the form of a code.
    """
    if not _LANGUAGE.fullmatch(language):
        raise ConfigError(
            f"language is {language!r}; give a code of two or three lower-case letters, such as "
            "en or ko."
        )


def split_paragraphs(
    paragraphs: Sequence[str], *, sentences: Literal["split", "line"], language: str
) -> list[list[str]]:
    """The sentences of each paragraph, in order.

    Args:
        paragraphs: lines of text; a sentence never spans two lines.
        sentences: ``split`` to find boundaries in each paragraph, ``line`` to keep it whole.
        language: ISO 639 code; one without rules of its own is split like its nearest relative.

    Returns:
        Stripped sentences; none is empty.
    """
    if sentences == "line":
        return [[stripped] if (stripped := text.strip()) else [] for text in paragraphs]
    return [
        [stripped for part in _split(text, language) if (stripped := part.strip())]
        for text in paragraphs
    ]


def _split(line: str, language: str) -> list[str]:
    """Consecutive pieces of ``line``, one per sentence."""
    plain = line.translate(_PLAIN_SPACES) if _ODD_SPACE.search(line) else line
    if len(line) <= WINDOW:
        sentences: list[str] = sentencex.segment(language, plain)
        return sentences if plain is line else _cut(line, sentences)
    pieces: list[str] = []
    start = 0
    while start < len(line):
        window = plain[start : start + WINDOW]
        sentences = sentencex.segment(language, window)
        if start + len(window) < len(line):
            # The last sentence may continue after the window, so the next window starts with it. A
            # sentence as long as the window is cut, between words if possible.
            sentences = sentences[:-1] or [window[: window.rfind(" ") + 1 or len(window)]]
        pieces += _cut(line[start : start + WINDOW], sentences)
        start += sum(map(len, sentences))
    return pieces


def _cut(text: str, like: list[str]) -> list[str]:
    """Pieces of ``text`` as long as those of ``like``."""
    ends = list(accumulate(map(len, like)))
    return [text[end - len(piece) : end] for end, piece in zip(ends, like, strict=True)]
