"""Keyed (counter-based) random numbers: a draw depends on its key, not on earlier draws.

Everything that affects a result is drawn as ``f(seed, purpose, counters...)``: the same instance
gets the same mask in the same epoch whatever the number of workers, the order of work, or the
step at which a run was resumed. All draws are vectorised integer hashes (the SplitMix64 finaliser,
Steele et al. 2014, applied once per key part); counters broadcast like NumPy arrays.

The purposes are the members of :class:`Purpose`; a new kind of draw gets a new member, so that no
two kinds share their numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_IN_CACHE = 2**14  # words that are computed at once
_KEYS_AT_ONCE = 2**16
_ROWS_SORTED = 2**23  # with their keys and their order 200 MB
_PASSES = 256


class Purpose(StrEnum):
    """What a draw is for; part of its key."""

    PHASE = "phase"
    SHORT = "short sequence"
    TARGET = "target length"
    SPLIT = "split point"
    RANDOM_NEXT = "random next"
    RANDOM_DOCUMENT = "random document"
    RANDOM_START = "random start"
    TRUNCATE_A = "truncate A from the front"
    TRUNCATE_B = "truncate B from the front"
    SWAP = "swap A and B"
    SHUFFLE = "shuffle"
    MASK = "mask position"
    REPLACE = "mask, keep or replace"
    RANDOM_WORD = "random word"
    DROPOUT = "dropout"
    WEIGHTS = "initial weights"
    HEAD = "initial head"
    RECURRENT = "initial recurrent layers"
    DEMO = "demo data"
    GENERATOR = "initial generator"
    REPLACED = "proposed token"


def bits(seed: int, purpose: Purpose, *counters: ArrayLike) -> Words:
    """64 random bits per key.

    Args:
        seed: any Python integer; taken modulo 2**64.
        purpose: what the draw is for.
        counters: non-negative integers or integer arrays that broadcast together.

    Returns:
        uint64, of the counters' broadcast shape.
    """
    with np.errstate(over="ignore"):
        word = _mix(np.uint64(seed % 2**64) + _purpose_word(purpose))
        for counter in counters:
            word = _mix(word * _GOLDEN + np.asarray(counter).astype(np.uint64) + _GOLDEN)
    return np.asarray(word, dtype=np.uint64)


def uniform(seed: int, purpose: Purpose, *counters: ArrayLike) -> NDArray[np.float64]:
    """A float64 in [0, 1) with 53 random bits per key."""
    high = bits(seed, purpose, *counters) >> np.uint64(11)
    return np.asarray(high.astype(np.float64) * 2.0**-53)


def below(limit: ArrayLike, seed: int, purpose: Purpose, *counters: ArrayLike) -> NDArray[np.int64]:
    """An integer in [0, limit) per key; ``limit`` is below 2**32 and broadcasts too.

    The multiply-and-shift reduction deviates from uniform by less than limit / 2**32.
    """
    high = bits(seed, purpose, *counters) >> np.uint64(32)
    scaled = high * np.asarray(limit).astype(np.uint64)
    return np.asarray((scaled >> np.uint64(32)).astype(np.int64))


def permutation(size: int, seed: int, purpose: Purpose, *counters: int) -> NDArray[np.int64]:
    """A random permutation of the integers below ``size``."""
    keys = bits(seed, purpose, *counters, np.arange(size))
    return np.argsort(keys, kind="stable")


def permutation_in_parts(
    size: int, seed: int, purpose: Purpose, *counters: int, rows: int = 0
) -> Iterator[NDArray[np.int64]]:
    """:func:`permutation`, in parts of about ``rows`` integers, in the memory of one part.

    A part is a range of keys. Each takes a pass over all keys, which are computed again: they are
    a bijection of the integers, so none stands in two parts and there are no ties. Without
    ``rows``, a part takes 200 MB, or a 256th of what all would.
    """
    rows = rows or max(_ROWS_SORTED, -(-size // _PASSES))
    parts = -(-size // rows)
    width = -(-(2**64) // max(parts, 1))
    for part in range(parts):
        least, most = part * width, min((part + 1) * width, 2**64) - 1
        found, keys_found = [], []
        for start in range(0, size, _KEYS_AT_ONCE):
            numbers = np.arange(start, min(start + _KEYS_AT_ONCE, size))
            keys = bits(seed, purpose, *counters, numbers)
            own = np.flatnonzero((keys >= np.uint64(least)) & (keys <= np.uint64(most)))
            found.append(numbers[own])
            keys_found.append(keys[own])
        yield np.concatenate(found)[np.argsort(np.concatenate(keys_found))]


def derived_seed(seed: int, purpose: Purpose, *counters: int) -> int:
    """A 63-bit seed for a generator that needs one (``torch.Generator.manual_seed``)."""
    return int(bits(seed, purpose, *counters)) >> 1


def element_words(size: int, key_0: int, key_1: int) -> NDArray[np.uint32]:
    """32 random bits for each of ``size`` elements under two 32-bit keys.

    A shorter hash than :func:`bits`, for many draws of which each matters little (dropout): three
    rounds of xor-shift and multiply (constants of Wellons' triple32). The first key moves the
    counter; the second, after the first round, makes other words of the same counters. The compiled
    loops compute the same words (:func:`bothways.model.kernels.loops.random_word`).
    """
    words = np.arange(size, dtype=np.uint32)
    for start in range(0, size, _IN_CACHE):
        x = words[start : start + _IN_CACHE]
        shifted = np.empty_like(x)
        x += np.uint32(key_0)
        x ^= np.right_shift(x, 17, out=shifted)
        x *= np.uint32(0xED5AD4BB)
        x ^= np.uint32(key_1)
        x ^= np.right_shift(x, 11, out=shifted)
        x *= np.uint32(0xAC4C1B51)
        x ^= np.right_shift(x, 15, out=shifted)
        x *= np.uint32(0x31848BAB)
        x ^= np.right_shift(x, 14, out=shifted)
    return words


def _mix(word: Any) -> Any:
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return word ^ (word >> np.uint64(31))


_PURPOSE_WORDS = {
    purpose: np.uint64(
        int.from_bytes(hashlib.blake2b(purpose.value.encode(), digest_size=8).digest(), "little")
    )
    for purpose in Purpose
}


def _purpose_word(purpose: Purpose) -> np.uint64:
    return _PURPOSE_WORDS[purpose]
