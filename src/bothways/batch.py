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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways import arrays
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
        positions: int64 [T]; position in the sequence, from 0.
        bounds: int64 [B + 1]; sequence b is ``tokens[bounds[b]:bounds[b + 1]]``.
    """

    tokens: NDArray[np.int64]
    segments: NDArray[np.int64]
    positions: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @property
    def sequences(self) -> int:
        """B."""
        return len(self.bounds) - 1

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """int64 [B]."""
        return self.bounds[1:] - self.bounds[:-1]

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.lengths.max(initial=0))

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
    """Build a :class:`Batch` from arrays without a tail; adds positions and the tail.

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
    lengths = bounds[1:] - bounds[:-1]
    if not len(lengths) or lengths.min() < 1:
        what = f"sequence {int(lengths.argmin())} of the batch" if len(lengths) else "the batch"
        raise InputError(f"{what} has no tokens; encode texts with their [CLS] and [SEP].")
    if lengths.max() > max_positions:
        b = int(lengths.argmax())
        raise LengthError(
            f"sequence {b} of the batch has {lengths[b]} tokens; this encoder has positions for "
            f"{max_positions}. Truncate it when encoding (max_length={max_positions}) or split it."
        )
    total = int(bounds[-1])
    padded = round_up(total, ROUND_TOKENS)

    def tail(values: NDArray[np.integer]) -> NDArray[np.int64]:
        out = np.zeros(padded, dtype=np.int64)
        out[:total] = values
        return out

    positions = np.arange(total) - np.repeat(bounds[:-1], lengths)
    return Batch(tail(tokens), tail(segments), tail(positions), bounds.astype(np.int64))


def collate(
    tokens: Sequence[Sequence[int]], segments: Sequence[Sequence[int]], *, max_positions: int
) -> Batch:
    """Build a :class:`Batch` from lists of ids, one list per sequence."""
    bounds = arrays.bounds([len(row) for row in tokens])
    flat_tokens = np.fromiter((t for row in tokens for t in row), np.int64, int(bounds[-1]))
    flat_segments = np.fromiter((s for row in segments for s in row), np.int64, int(bounds[-1]))
    return flat_batch(flat_tokens, flat_segments, bounds, max_positions=max_positions)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple not below ``value``, and at least one multiple."""
    return max(1, -(-value // multiple)) * multiple
