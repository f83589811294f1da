"""Pieces whose offsets end inside a character, as a reader sees it, extended to its end."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def whole_characters(offsets: Sequence[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Extend offsets to the end of decomposed characters.

    Where the library composed characters, a token ends after the first code point of each.

    Args:
        offsets: of the tokens of a text, start and end.
        text: the text.
    """
    if text.isascii():
        return [*offsets]
    extended = []
    limit = following = len(text)
    for start, end in reversed(offsets):
        if following >= end:  # else it is of the same character, and ends where that one does
            limit = following
        stop = end
        while start < stop < limit and _continues(text, stop):
            stop += 1
        extended.append((start, stop))
        following = start
    return extended[::-1]


def _continues(text: str, at: int) -> bool:
    """Whether a mark, or a vowel or final consonant of decomposed Hangul, stands here, or after
    invisible characters that normalisation drops."""
    while at < len(text) and text[at] >= "\u0300":
        category = unicodedata.category(text[at])
        if category[0] == "M" or "\u1160" <= text[at] <= "\u11ff":
            return True
        if category != "Cf":
            break
        at += 1
    return False


def fit_to_characters(text: str, starts: NDArray[Any], ends: NDArray[Any]) -> None:
    """Make offsets, in place, those of whole visible characters: without the space before a word
    that some tokenizers count as its piece's, and with the marks after its last character."""
    while len(inside := np.flatnonzero(starts + 1 < ends)):
        spaces = inside[[text[start].isspace() for start in starts[inside].tolist()]]
        if not len(spaces):
            break
        starts[spaces] += 1
    if not text.isascii():
        places = list(zip(starts.tolist(), ends.tolist(), strict=True))
        ends[:] = [end for _, end in whole_characters(places, text)]
