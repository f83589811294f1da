"""Texts longer than the encoder, by windows that overlap (as in the original run_squad.py).

A piece that stands in several windows is read in the one that shows the most around it.
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
        pieces: of the text; a text without any has one window, which is empty.
        room: pieces that a window takes.
        stride: pieces from the start of a window to that of the next, at least 1; above ``room``,
            windows follow each other without overlap.

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

    That is the smaller of the pieces to its left and to its right, plus a hundredth of the window's
    length; the first window where several are equal.

    Args:
        windows: as :func:`cut_windows` gives them.
        pieces: of the text.

    Returns:
        int64 [pieces]; numbers of windows.
    """
    best = np.full(pieces, -1.0)
    found = np.zeros(pieces, dtype=np.int64)
    if len(windows) == 1:
        return found
    for number, (start, end) in enumerate(windows):
        left = np.arange(end - start)
        context = np.minimum(left, left[::-1]) + 0.01 * (end - start)
        better = context > best[start:end]
        best[start:end][better] = context[better]
        found[start:end][better] = number
    return found
