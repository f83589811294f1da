"""Keyed draws: reproducible, independent of their order, and random enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.randomness import (
    Purpose,
    below,
    bits,
    derived_seed,
    permutation,
    permutation_in_parts,
    uniform,
)

KEYS = st.integers(0, 2**40)


def test_the_numbers_never_change() -> None:
    # Every plan, mask and initial weight of runs made before depends on these.
    assert int(bits(0, Purpose.MASK)) == 14_088_303_825_752_290_935
    assert bits(7, Purpose.SPLIT, 3, [0, 1]).tolist() == [
        10_594_627_824_613_623_030,
        7_692_663_383_100_474_539,
    ]
    assert derived_seed(-1, Purpose.DROPOUT, 5) == 4_036_394_746_625_024_798
    assert permutation(6, 1, Purpose.SHUFFLE, 0).tolist() == [0, 4, 1, 3, 5, 2]


@given(st.integers(-(2**70), 2**70), st.lists(KEYS, min_size=1, max_size=5), KEYS)
def test_vectors_equal_single_draws(seed: int, keys: list[int], other: int) -> None:
    together = bits(seed, Purpose.MASK, other, np.array(keys))
    alone = [int(bits(seed, Purpose.MASK, other, key)) for key in keys]
    assert together.tolist() == alone


def test_counters_broadcast_to_a_grid() -> None:
    grid = bits(1, Purpose.MASK, np.arange(3)[:, None], np.arange(4))
    assert grid.shape == (3, 4)
    assert len(np.unique(grid)) == 12
    assert grid[2, 1] == bits(1, Purpose.MASK, 2, 1)
    assert grid[2, 1] != bits(1, Purpose.MASK, 1, 2), "the order of counters counts"


def test_every_part_of_the_key_counts() -> None:
    keys = [
        (0, Purpose.MASK, 0),
        (1, Purpose.MASK, 0),
        (0, Purpose.REPLACE, 0),
        (0, Purpose.MASK, 1),
        (0, Purpose.MASK, 0, 0),
        (0, Purpose.MASK),
    ]
    assert len({int(bits(*key)) for key in keys}) == len(keys)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_purposes_are_uniform_and_unrelated(purpose: Purpose) -> None:
    count = 20_000
    mine = uniform(5, purpose, np.arange(count))
    assert mine.min() >= 0
    assert mine.max() < 1
    assert abs(mine.mean() - 0.5) < 4 / np.sqrt(12 * count)
    for other in Purpose:
        if other is not purpose:
            theirs = uniform(5, other, np.arange(count))
            assert abs(np.corrcoef(mine, theirs)[0, 1]) < 5 / np.sqrt(count)


def test_neighbouring_keys_are_unrelated() -> None:
    count = 50_000
    for draws in (
        uniform(3, Purpose.MASK, 2, np.arange(count)),
        uniform(3, Purpose.MASK, np.arange(count), 2),
        np.array([float(uniform(seed, Purpose.MASK, 1)) for seed in range(5000)]),
    ):
        pairs = np.corrcoef(draws[1:], draws[:-1])[0, 1]
        assert abs(pairs) < 5 / np.sqrt(len(draws))


def test_every_bit_is_fair() -> None:
    words = bits(9, Purpose.SPLIT, 0, np.arange(20_000))
    ones = (words[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(ones.mean(axis=0) - 0.5).max() < 5 / (2 * np.sqrt(20_000))


@given(st.integers(1, 2**32 - 1), KEYS)
def test_below_stays_below(limit: int, key: int) -> None:
    assert 0 <= int(below(limit, 0, Purpose.SPLIT, key)) < limit


def test_below_is_even() -> None:
    counts = np.bincount(below(7, 0, Purpose.SPLIT, np.arange(70_000)), minlength=7)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 30  # chi-square of 6 degrees, p < 1e-4
    limits = np.array([1, 10, 100])
    assert (below(limits, 0, Purpose.SPLIT, np.arange(3)) < limits).all()


def test_permutations() -> None:
    first = permutation(1000, 4, Purpose.SHUFFLE, 0)
    assert sorted(first.tolist()) == list(range(1000))
    assert first.tolist() == permutation(1000, 4, Purpose.SHUFFLE, 0).tolist()
    assert (first == permutation(1000, 4, Purpose.SHUFFLE, 1)).sum() < 10
    assert permutation(0, 4, Purpose.SHUFFLE).tolist() == []
    places = np.array([permutation(4, 4, Purpose.SHUFFLE, i).argmin() for i in range(4000)])
    assert np.abs(np.bincount(places, minlength=4) - 1000).max() < 4 * np.sqrt(750)


def test_the_keys_of_a_shuffle_are_a_bijection() -> None:
    """An order is that of 64-bit keys, and a key is a bijection of its index, under each seed and
    epoch: there are no ties, whatever the size, and 10^12 is like any other. Sampled."""
    rng = np.random.default_rng(0)
    index = np.unique(np.concatenate([rng.integers(0, 10**12, 50_000), 10**12 - np.arange(1, 99)]))
    golden, *factors = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
    with np.errstate(over="ignore"):
        for epoch in (0, 1):
            found = bits(3, Purpose.SHUFFLE, epoch, index)
            assert len(np.unique(found)) == len(index)
            for shift, factor in zip((31, 27), reversed(factors), strict=True):
                found = _unshift(found, shift) * np.uint64(pow(factor, -1, 2**64))
            found = _unshift(found, 30) - np.uint64(golden)
            found -= bits(3, Purpose.SHUFFLE, epoch) * np.uint64(golden)
            assert (found == index).all()


def _unshift(word: np.ndarray[Any, np.dtype[np.uint64]], shift: int) -> Any:
    """The x of x ^ (x >> shift)."""
    found = word
    for _ in range(64 // shift):
        found = word ^ (found >> np.uint64(shift))
    return found


@pytest.mark.parametrize("rows", [1, 999, 4096, 10_000, 20_000])
def test_an_order_in_parts_is_the_same(rows: int) -> None:
    size = 10_000 if rows > 1 else 50
    parts = list(permutation_in_parts(size, 4, Purpose.SHUFFLE, 3, rows=rows))
    assert len(parts) == -(-size // rows)
    assert max(map(len, parts)) < 1.2 * rows + 5, "a part needs the memory of a part"
    assert (np.concatenate(parts) == permutation(size, 4, Purpose.SHUFFLE, 3)).all()


def test_an_order_of_nothing_has_no_parts() -> None:
    assert list(permutation_in_parts(0, 4, Purpose.SHUFFLE)) == []


def test_derived_seeds_fit_torch() -> None:
    seeds = [derived_seed(2**64 - 1, Purpose.DROPOUT, i) for i in range(1000)]
    assert len(set(seeds)) == 1000
    assert min(seeds) >= 0
    assert max(seeds) < 2**63
