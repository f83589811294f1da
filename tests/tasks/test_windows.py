"""Windows cover a text, overlap as asked, and each piece is read where it has the most context."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, processors

from bothways.errors import LengthError
from bothways.tasks.windows import (
    Reading,
    Window,
    best_window,
    cut_windows,
    encode_windows,
)
from bothways.tokenization.tokenizer import Tokenizer
from pretraining_examples import TOKENIZER

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


@given(PIECES, ROOM)
def test_each_window_is_best_for_consecutive_pieces(pieces: int, room: int) -> None:
    """Of windows that overlap by half; embeddings take them as slices."""
    windows = cut_windows(pieces, room, max(1, room // 2))
    found = best_window(windows, pieces).tolist()
    assert found == sorted(found)
    if pieces:
        assert set(found) == set(range(len(windows)))


def test_no_room() -> None:
    with pytest.raises(LengthError, match="room for 0"):
        cut_windows(3, 0, 2)


def test_of_windows_with_the_same_context_the_longer_one_is_read() -> None:
    # Piece 3 is the last but one of both; the second window shows more of the text.
    assert best_window([(0, 5), (2, 12)], 12)[3] == 1
    assert best_window([(2, 12), (0, 5)], 12)[3] == 0


def test_how_texts_were_read_adds_up() -> None:
    nothing, some = Reading(), Reading(5, 2, 7, 1, 1, 90, 4)
    assert nothing + some == some
    assert some + Reading(1, 0, 0, 0, 0, 10, 2) == Reading(6, 2, 7, 1, 1, 100, 6)


def test_how_texts_were_read_is_counted() -> None:
    examples = encode_windows(TOKENIZER, ["w1 w2", "w1 what w3 w4 w5 w6"], None, length=6)
    assert len(examples) == 3
    assert Reading.of(TOKENIZER, examples, empty=1) == Reading(
        texts=2, several=1, windows=2, cut=0, empty=1, tokens=4 + 6 + 6, unknown=1
    )


def test_without_a_piece_for_it_nothing_is_unknown() -> None:
    ids = {piece: i for i, piece in enumerate(["<s>", "</s>", *"abc"])}
    library = tokenizers.Tokenizer(models.BPE(ids, []))
    library.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    tokenizer = Tokenizer(library)
    assert tokenizer.unk_id is None
    examples = encode_windows(tokenizer, ["abba", "c"], None, length=8)
    assert Reading.of(tokenizer, examples) == Reading(texts=2, tokens=6 + 3)
