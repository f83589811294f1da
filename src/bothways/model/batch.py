"""The flat batch: tokens of all sequences laid end to end, no padding between them.

B sequences, T tokens, M masked positions.

Training, fine-tuning and inference use this one form. ``T`` and ``M`` are rounded up by a tail that
no sequence owns (``bounds[B] <= T``; targets there are :data:`IGNORE`), so that shapes repeat:
compiled graphs need it, and on a CPU a matrix kernel for a new ``T`` costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import InputError, LengthError

IGNORE = -100
ROUND_TOKENS = 64
ROUND_TARGETS = 32


@dataclass(frozen=True)
class Spans:
    """Neighbouring rows that belong together, as a GPU's kernels take them.

    Attributes:
        ends: int32 [S + 1], from 0; span s is rows ``ends[s]:ends[s + 1]``.
        longest: rows of the longest; a host integer.
    """

    ends: Tensor
    longest: int

    @classmethod
    def of(cls, ends: NDArray[np.int64], device: torch.device) -> Spans:
        """From int64 [S + 1]."""
        return cls(
            move(torch.from_numpy(ends.astype(np.int32)), device), int(np.diff(ends).max(initial=0))
        )


@dataclass(frozen=True)
class Inputs:
    """What the encoder reads.

    Attributes:
        tokens: int64 [T]; the tail holds id 0.
        segments: int64 [T]; 0 for the first text and its specials, 1 for the second.
        positions: int64 [T]; place in the sequence, from 0.
        bounds: int64 [B + 1]; sequence b is ``tokens[bounds[b]:bounds[b + 1]]``. On the CPU.
    """

    tokens: Tensor
    segments: Tensor
    positions: Tensor
    bounds: NDArray[np.int64]

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

    @cached_property
    def starts(self) -> Tensor:
        """int64 [B]; where each sequence's [CLS] is, on the tokens' device."""
        return move(torch.from_numpy(self.bounds[:-1]), self.tokens.device)

    @cached_property
    def lasts(self) -> Tensor:
        """int64 [B]; where each sequence's last token is, on the tokens' device."""
        return move(torch.from_numpy(self.bounds[1:] - 1), self.tokens.device)

    @cached_property
    def spans(self) -> Spans:
        """The sequences, with the tail as one more, on the tokens' device.

        Kernels leave rows that no span owns undefined, and their gradients too.
        """
        total = len(self.tokens)
        ends = self.bounds if self.bounds[-1] == total else np.append(self.bounds, total)
        return Spans.of(ends, self.tokens.device)

    def to(self, device: torch.device | str) -> Inputs:
        """The same batch on another device, with all that a GPU's kernels ask for."""
        moved = Inputs(
            move(self.tokens, device),
            move(self.segments, device),
            move(self.positions, device),
            self.bounds,
        )
        _ = moved.spans, moved.starts  # made by whoever moves it, which may be a helper thread
        return moved


@dataclass(frozen=True)
class Reads:
    """The places of a flat batch whose last hidden state is read, each once.

    Attributes:
        places: int64 [at most N], increasing; on the CPU.
        at: int64 [N]; the same, with a tail that shows place 0, on the batch's device.
        rows: int64 each; the rows among the N of every set of places that was asked for.
        spans: the rows of each span of :attr:`Inputs.spans`, for kernels.
    """

    places: NDArray[np.int64]
    at: Tensor
    rows: tuple[Tensor, ...]
    spans: Spans

    @classmethod
    def of(cls, inputs: Inputs, *asked: Tensor) -> Reads:
        """Merge sets of places, int64 each, in any order."""
        device = inputs.tokens.device
        places, back = np.unique(torch.cat(asked).cpu().numpy(), return_inverse=True)
        padded = np.zeros(round_up(len(places), ROUND_TARGETS), np.int64)
        padded[: len(places)] = places
        # The tail's rows go with the last span: nobody reads what comes of them.
        ends = np.searchsorted(places, inputs.bounds)
        if inputs.bounds[-1] < len(inputs.tokens):
            ends = np.append(ends, len(padded))
        ends[-1] = len(padded)
        cuts = np.cumsum([len(own) for own in asked])[:-1]
        rows = tuple(move(torch.from_numpy(own), device) for own in np.split(back, cuts))
        return cls(places, move(torch.from_numpy(padded), device), rows, Spans.of(ends, device))


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

    def to(self, device: torch.device | str) -> MaskedTargets:
        """The same on another device."""
        return MaskedTargets(move(self.at, device), move(self.ids, device), self.count)


@dataclass(frozen=True)
class PretrainingBatch:
    """One micro-batch of pre-training.

    Attributes:
        inputs: the sequences, masked.
        masked: targets of the language model.
        random_next: int64 [B]; 0 = the second segment follows, 1 = it is random (the original's
            labels), or for sentence order 1 = the segments have changed places; None for sequences
            of one segment, which have no second loss.
        found: what is read, for a batch that was moved: found before, for on a GPU the places could
            only be waited for.
    """

    inputs: Inputs
    masked: MaskedTargets
    random_next: Tensor | None
    found: Reads | None = None

    @property
    def reads(self) -> Reads:
        """The places that the losses read: first the masked ones, then each [CLS] for pairs."""
        return self.found or self._find_reads(self.inputs)

    def to(self, device: torch.device | str) -> PretrainingBatch:
        """The same on another device, with all that a GPU's kernels ask for."""
        inputs, pairs = self.inputs.to(device), self.random_next
        labels = None if pairs is None else move(pairs, device)
        return PretrainingBatch(inputs, self.masked.to(device), labels, self._find_reads(inputs))

    def _find_reads(self, inputs: Inputs) -> Reads:
        starts = [] if self.random_next is None else [self.inputs.starts]
        return Reads.of(inputs, self.masked.at, *starts)


def flat_inputs(
    tokens: NDArray[np.integer],
    segments: NDArray[np.integer],
    bounds: NDArray[np.int64],
    *,
    max_positions: int,
) -> Inputs:
    """Build :class:`Inputs` from arrays of the real tokens, adding positions and the tail.

    Args:
        tokens: int [bounds[B]].
        segments: int [bounds[B]].
        bounds: int64 [B + 1], from 0.
        max_positions: the encoder's limit.

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
    return Inputs(tail(tokens), tail(segments), tail(positions), edges)


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


def move(x: Tensor, device: torch.device | str) -> Tensor:
    """A tensor on another device; to a GPU through pinned memory, without waiting for it."""
    if torch.device(device).type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple not below ``value``, and at least one multiple."""
    return max(1, -(-value // multiple)) * multiple
