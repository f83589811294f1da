"""Pieces whose offsets end inside a character, as a reader sees it, extended to its end."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def whole_characters(
    offsets: Sequence[tuple[int, int]], segments: Sequence[int], texts: Sequence[str]
) -> list[tuple[int, int]]:
    """Extend offsets to the end of decomposed characters.

    Where the library composed characters, a token ends after the first code point of each.

    Args:
        offsets: of an encoding's tokens, start and end in the text of their segment.
        segments: of the tokens.
        texts: of the segments.
    """
    following = [*offsets[1:], (0, 0)]
    extended = []
    for (start, end), (limit, _), segment in zip(offsets, following, segments, strict=True):
        text = texts[segment]
        limit = limit if limit >= end else len(text)
        while start < end < limit and _continues(text, end):
            end += 1
        extended.append((start, end))
    return extended


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


def include_trailing_marks(text: str, starts: NDArray[Any], ends: NDArray[Any]) -> None:
    """Extend pieces, in place, over the combining marks that follow their last character.

    Normalisation strips such marks; without them, the text of an answer or entity would end in the
    middle of a decomposed letter.
    """
    if text.isascii():
        return
    for mark in (i for i, c in enumerate(text) if unicodedata.category(c)[0] == "M"):
        # Several pieces may be parts of the character before the mark.
        first, after = (int(np.searchsorted(ends, mark, side=side)) for side in ("left", "right"))
        if first < after and (after == len(starts) or starts[after] > mark):
            ends[first:after] = mark + 1
