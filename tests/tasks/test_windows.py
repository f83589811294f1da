"""Windows cover a text, overlap as asked, and each piece is read where it has the most context."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import LengthError
from bothways.tasks.windows import Window, best_window, cut_windows

PIECES, ROOM, STRIDE = st.integers(0, 300), st.integers(1, 60), st.integers(1, 80)


def slowly(windows: list[Window], piece: int) -> int:
    """The definition, a window at a time."""
    best, found = None, -1
    for number, (start, end) in enumerate(windows):
        if start <= piece < end:
            context = min(piece - start, end - 1 - piece) + 0.01 * (end - start)
            if best is None or context > best:
                best, found = context, number
    return found


@pytest.mark.parametrize(
    ("pieces", "room", "stride", "windows"),
    [
        (0, 5, 2, [(0, 0)]),
        (5, 5, 2, [(0, 5)]),
        (6, 5, 2, [(0, 5), (2, 6)]),
        (9, 5, 2, [(0, 5), (2, 7), (4, 9)]),
        (10, 5, 2, [(0, 5), (2, 7), (4, 9), (6, 10)]),
        (11, 5, 9, [(0, 5), (5, 10), (10, 11)]),
        (10, 5, 5, [(0, 5), (5, 10)]),
    ],
)
def test_where_windows_are(pieces: int, room: int, stride: int, windows: list[Window]) -> None:
    assert cut_windows(pieces, room, stride) == windows


@given(PIECES, ROOM, STRIDE)
def test_windows_cover_everything_and_none_is_in_vain(pieces: int, room: int, stride: int) -> None:
    windows = cut_windows(pieces, room, stride)
    assert windows[0][0] == 0
    assert windows[-1][1] == pieces
    assert all(end - start == room for start, end in windows[:-1])
    assert windows[-1][1] - windows[-1][0] <= room
    for (start, end), (after, last) in pairwise(windows):
        assert after - start == min(stride, room)
        assert after <= end < last, "a gap, or a window that shows nothing new"


@given(PIECES, ROOM, STRIDE)
def test_each_piece_in_its_best_window(pieces: int, room: int, stride: int) -> None:
    windows = cut_windows(pieces, room, stride)
    found = best_window(windows, pieces)
    assert found.dtype == np.int64
    assert found.tolist() == [slowly(windows, piece) for piece in range(pieces)]


def test_no_room() -> None:
    with pytest.raises(LengthError, match="room for 0"):
        cut_windows(3, 0, 2)


def test_of_windows_with_the_same_context_the_longer_one_is_read() -> None:
    # Piece 4 is the last but one of both; the second window shows more of the text.
    assert best_window([(0, 5), (3, 12)], 12)[4] == 1
    assert best_window([(3, 12), (0, 5)], 12)[4] == 0
