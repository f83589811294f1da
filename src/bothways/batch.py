"""The flat batch: tokens of all sequences laid end to end, no padding between them.

B sequences, T tokens; of a task: N items, R rows of outputs.

Training, fine-tuning and inference all use this form, in NumPy here, and for torch with the same
fields in :mod:`bothways.model.batch`. An index into the T tokens is called a flat position. ``T``
is rounded up by a tail that belongs to no sequence (``bounds[B] <= T``), so that shapes repeat:
compiled graphs need that, and on a CPU preparing a matrix kernel for a new ``T`` costs more than
the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InputError, LengthError

IGNORE = -100
"""A target that does not count."""
ROUND_TOKENS = 64
ROUND_TARGETS = 32


@dataclass(frozen=True)
class Batch:
    """The encoder's input.

    Attributes:
        tokens: int64 [T]; the tail holds id 0.
        segments: int64 [T]; 0 for the first text and its specials, 1 for the second.
        bounds: int64 [B + 1]; sequence b is ``tokens[bounds[b]:bounds[b + 1]]``.
    """

    tokens: NDArray[np.int64]
    segments: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @property
    def sequences(self) -> int:
        """B."""
        return len(self.bounds) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64 [B]."""
        return self.bounds[1:] - self.bounds[:-1]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths.tolist(), default=0)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Position in the sequence, from 0, int64 [T]."""
        total = int(self.bounds[-1])
        places = np.zeros(len(self.tokens), np.int64)
        places[:total] = np.arange(total) - np.repeat(self.bounds[:-1], self.lengths)
        return places

    def table_rows(self, offset: int) -> NDArray[np.int64]:
        """The row of the position table for each token, int64 [T], where a sequence's first has
        the row ``offset``.

        The row before that is of padding (RoBERTa's), which is not counted, wherever it stands: its
        piece may be in a text.
        """
        if not offset:
            return self.positions
        pads = self.tokens == offset - 1
        counted = pads.cumsum()
        before = np.append(0, counted)[self.bounds]
        sequence = np.searchsorted(self.bounds, np.arange(len(pads)), side="right") - 1
        return np.where(pads, offset - 1, self.positions + offset - (counted - before[sequence]))


@dataclass(frozen=True)
class TaskBatch:
    """Some items as the encoder and a task head read them.

    Attributes:
        inputs: their sequences.
        read_positions: int64 [R]; the flat positions of the tokens read.
        bounds: int64 [N + 1]; item n has the rows ``bounds[n]:bounds[n + 1]``.
        targets: for each row a class, int64 [R], a score, float32 [R], or several scores or
            labels (1 or 0), float32 [R, C]; or for each item and output the target row, counted
            from the item's first row, int64 [N, C]. Empty if there are none.
    """

    inputs: Batch
    read_positions: NDArray[np.int64]
    bounds: NDArray[np.int64]
    targets: NDArray[Any]


def flat_batch(
    tokens: NDArray[np.integer],
    segments: NDArray[np.integer],
    bounds: NDArray[np.int64],
    *,
    max_positions: int,
) -> Batch:
    """Build a :class:`Batch` from arrays without a tail, which is added.

    Args:
        tokens: int [bounds[B]].
        segments: int [bounds[B]].
        bounds: int64 [B + 1], from 0.
        max_positions: the encoder's limit.

    Raises:
        LengthError: a sequence is longer than ``max_positions``; the message gives its index and
            length.
        InputError: a sequence has no tokens (its first token would be another sequence's), or there
            are no sequences.
    """
    total = int(bounds[-1])
    padded = round_up(total, ROUND_TOKENS)

    def tail(values: NDArray[np.integer]) -> NDArray[np.int64]:
        out = np.zeros(padded, dtype=np.int64)
        out[:total] = values
        return out

    _check_sizes((bounds[1:] - bounds[:-1]).tolist(), max_positions)
    return Batch(tail(tokens), tail(segments), bounds)


def collate(
    tokens: Sequence[Sequence[int]], segments: Sequence[Sequence[int]], *, max_positions: int
) -> Batch:
    """Build a :class:`Batch` from lists of ids, one list per sequence.

    Raises:
        LengthError: as :func:`flat_batch`.
        InputError: too, and if a sequence has not as many segments as tokens.
    """
    sizes = [*map(len, tokens)]
    if [*map(len, segments)] != sizes:
        raise InputError("each token needs a segment: give lists of the same lengths.")
    _check_sizes(sizes, max_positions)
    ends = [0, *accumulate(sizes)]
    tail = [0] * (round_up(ends[-1], ROUND_TOKENS) - ends[-1])
    ids, kinds = (np.array([*chain(*rows), *tail], np.int64) for rows in (tokens, segments))
    return Batch(ids, kinds, np.array(ends, np.int64))


def _check_sizes(sizes: list[int], max_positions: int) -> None:
    if min(sizes, default=0) < 1:
        what = f"sequence {sizes.index(min(sizes))} of the batch" if sizes else "the batch"
        raise InputError(f"{what} has no tokens; encode texts with their [CLS] and [SEP].")
    if (longest := max(sizes)) > max_positions:
        raise LengthError(
            f"sequence {sizes.index(longest)} of the batch has {longest} tokens; this encoder has "
            f"positions for {max_positions}. Truncate it when encoding "
            f"(max_length={max_positions}) or split it."
        )


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple not below ``value``, and at least one multiple."""
    return max(1, -(-value // multiple)) * multiple
