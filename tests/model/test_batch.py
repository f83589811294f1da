"""The flat batch."""

from __future__ import annotations

import numpy as np
import pytest

from bothways.batch import ROUND_TOKENS, round_up
from bothways.errors import InputError, LengthError
from bothways.model.batch import collate, flat_inputs


def test_collate_lays_sequences_end_to_end_with_positions_and_a_zero_tail() -> None:
    inputs = collate([[5, 6, 7], [8], [9, 10]], [[0, 0, 1], [0], [0, 1]], max_positions=4)
    assert inputs.tokens.tolist() == [5, 6, 7, 8, 9, 10] + [0] * 58
    assert inputs.segments.tolist() == [0, 0, 1, 0, 0, 1] + [0] * 58
    assert inputs.positions.tolist() == [0, 1, 2, 0, 0, 1] + [0] * 58
    assert inputs.bounds.tolist() == [0, 3, 4, 6]
    assert inputs.starts.tolist() == [0, 3, 4]
    assert (inputs.sequences, inputs.longest, inputs.lengths.tolist()) == (3, 3, [3, 1, 2])


@pytest.mark.parametrize(("total", "expected"), [(1, 64), (64, 64), (65, 128), (128, 128)])
def test_the_flat_length_is_rounded_up(total: int, expected: int) -> None:
    inputs = collate([[1] * total], [[0] * total], max_positions=200)
    assert len(inputs.tokens) == len(inputs.positions) == len(inputs.segments) == expected
    assert expected % ROUND_TOKENS == 0


def test_round_up_gives_at_least_one_multiple() -> None:
    assert [round_up(n, 32) for n in (0, 1, 32, 33)] == [32, 32, 32, 64]


def test_flat_inputs_takes_narrow_integers() -> None:
    tokens = np.array([60_000, 3], dtype=np.uint16)
    inputs = flat_inputs(tokens, np.array([0, 1], np.uint8), np.array([0, 2]), max_positions=2)
    assert inputs.tokens[:2].tolist() == [60_000, 3]
    assert inputs.tokens.dtype == inputs.segments.dtype == inputs.positions.dtype


def test_a_sequence_over_the_limit_is_named_with_its_length() -> None:
    with pytest.raises(LengthError, match=r"sequence 1 .* 5 tokens.*positions for 4"):
        collate([[1], [1] * 5], [[0], [0] * 5], max_positions=4)


def test_exactly_the_limit_is_accepted() -> None:
    assert collate([[1] * 4], [[0] * 4], max_positions=4).longest == 4


def test_an_empty_sequence_is_refused_as_it_has_no_cls() -> None:
    with pytest.raises(InputError, match=r"sequence 1 .* no tokens"):
        collate([[1], [], [2]], [[0], [], [0]], max_positions=4)


def test_a_batch_without_sequences_is_refused() -> None:
    with pytest.raises(InputError, match="the batch has no tokens"):
        collate([], [], max_positions=4)
