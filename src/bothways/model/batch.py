"""The flat batch: tokens of all sequences laid end to end, no padding between them.

B sequences, T tokens, M masked positions.

Training, fine-tuning and inference use this one form. ``T`` and ``M`` are rounded up by a tail that
no sequence owns (``bounds[B] <= T``; targets there are :data:`IGNORE`), so that shapes repeat:
compiled graphs need it, and on a CPU a matrix kernel for a new ``T`` costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import InputError, LengthError

IGNORE = -100
ROUND_TOKENS = 64
ROUND_TARGETS = 32


@dataclass(frozen=True)
class Inputs:
    """What the encoder reads.

    Attributes:
        tokens: int64 [T]; the tail holds id 0.
        segments: int64 [T]; 0 for the first text and its specials, 1 for the second.
        positions: int64 [T]; place in the sequence, from 0.
        bounds: int64 [B + 1]; sequence b is ``tokens[bounds[b]:bounds[b + 1]]``. On the CPU.
        causal: a token sees itself and those before it, not those after.
    """

    tokens: Tensor
    segments: Tensor
    positions: Tensor
    bounds: NDArray[np.int64]
    causal: bool = False

    @property
    def sequences(self) -> int:
        """B."""
        return len(self.bounds) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64 [B], on the CPU."""
        return np.diff(self.bounds)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: a host integer, so that kernels need not wait for it."""
        return int(self.lengths.max(initial=0))

    @property
    def starts(self) -> Tensor:
        """int64 [B]; where each sequence's [CLS] is, on the tokens' device."""
        return torch.from_numpy(self.bounds[:-1]).to(self.tokens.device)

    def to(self, device: torch.device | str) -> Inputs:
        """The same batch on another device."""
        return Inputs(
            self.tokens.to(device),
            self.segments.to(device),
            self.positions.to(device),
            self.bounds,
            self.causal,
        )


@dataclass(frozen=True)
class MaskedTargets:
    """Targets of the language model.

    Attributes:
        at: int64 [M]; places in the flat batch, increasing; the tail points at 0.
        ids: int64 [M]; the original ids there, or left to right the next ones; the tail is
            :data:`IGNORE`.
        count: how many of them are real.
    """

    at: Tensor
    ids: Tensor
    count: int


@dataclass(frozen=True)
class PretrainingBatch:
    """One micro-batch of pre-training.

    Attributes:
        inputs: the sequences, masked.
        masked: targets of the language model.
        random_next: int64 [B]; 0 = the second segment follows, 1 = it is random (the original's
            labels), or for sentence order 1 = the segments have changed places; None for sequences
            of one segment, which have no second loss.
    """

    inputs: Inputs
    masked: MaskedTargets
    random_next: Tensor | None


def flat_inputs(
    tokens: NDArray[np.integer],
    segments: NDArray[np.integer],
    bounds: NDArray[np.int64],
    *,
    max_positions: int,
    causal: bool = False,
) -> Inputs:
    """Build :class:`Inputs` from arrays of the real tokens, adding positions and the tail.

    Args:
        tokens: int [bounds[B]].
        segments: int [bounds[B]].
        bounds: int64 [B + 1], from 0.
        max_positions: the encoder's limit.
        causal: see :class:`Inputs`.

    Raises:
        LengthError: a sequence is longer than ``max_positions`` (named, with its length).
        InputError: a sequence has no tokens (its [CLS] would be another sequence's), or there is
            no sequence.
    """
    lengths = np.diff(bounds)
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

    def tail(values: NDArray[np.integer]) -> Tensor:
        out = np.zeros(padded, dtype=np.int64)
        out[:total] = values
        return torch.from_numpy(out)

    positions = np.arange(total) - np.repeat(bounds[:-1], lengths)
    edges = bounds.astype(np.int64)
    return Inputs(tail(tokens), tail(segments), tail(positions), edges, causal)


def masked_targets(at: NDArray[np.int64], ids: NDArray[np.int64]) -> MaskedTargets:
    """Targets with their tail, from increasing places int64 [M] and the ids wanted there."""
    padded = round_up(len(at), ROUND_TARGETS)
    places = np.zeros(padded, dtype=np.int64)
    targets = np.full(padded, IGNORE, dtype=np.int64)
    places[: len(at)], targets[: len(at)] = at, ids
    return MaskedTargets(torch.from_numpy(places), torch.from_numpy(targets), len(at))


def collate(
    tokens: Sequence[Sequence[int]], segments: Sequence[Sequence[int]], *, max_positions: int
) -> Inputs:
    """Build :class:`Inputs` from lists of ids, one a sequence."""
    bounds = np.cumsum([0, *map(len, tokens)]).astype(np.int64)
    flat_tokens = np.fromiter((t for row in tokens for t in row), np.int64, int(bounds[-1]))
    flat_segments = np.fromiter((s for row in segments for s in row), np.int64, int(bounds[-1]))
    return flat_inputs(flat_tokens, flat_segments, bounds, max_positions=max_positions)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple not below ``value``, and at least one multiple."""
    return max(1, -(-value // multiple)) * multiple
