"""Overlapping windows over texts longer than the encoder (as in the original run_squad.py).

A piece in several windows is read in the one with the most context around it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bothways.errors import LengthError

Window = tuple[int, int]
"""First piece, and the piece after the last."""


def cut_windows(pieces: int, room: int, stride: int) -> list[Window]:
    """Windows that cover all pieces of a text, in order.

    Args:
        pieces: how many the text has; an empty text has one empty window.
        room: how many pieces a window holds.
        stride: pieces from the start of a window to the start of the next, at least 1; windows do
            not overlap if it is ``room`` or more.

    Raises:
        LengthError: no room.
    """
    if room < 1:
        raise LengthError(
            f"a window has room for {room} pieces of the text; it needs at least 1. Choose a "
            "greater length."
        )
    starts = range(0, max(0, pieces - room) + min(stride, room), min(stride, room))
    return [(start, min(start + room, pieces)) for start in starts]


def best_window(windows: Sequence[Window], pieces: int) -> NDArray[np.int64]:
    """For each piece the window in which it has the most context.

    The context is the smaller number of pieces to its left and to its right, plus a hundredth of
    the window's length; the first of equally good windows wins.

    Args:
        windows: from :func:`cut_windows`.
        pieces: how many the text has.

    Returns:
        int64 [pieces]; the number of each piece's window.
    """
    best = np.zeros(pieces, dtype=np.int64)
    if len(windows) == 1:
        return best
    best_context = np.full(pieces, -1.0)
    for number, (start, end) in enumerate(windows):
        left = np.arange(end - start)
        right = left[::-1]
        context = np.minimum(left, right) + 0.01 * (end - start)
        better = context > best_context[start:end]
        best_context[start:end][better] = context[better]
        best[start:end][better] = number
    return best
