"""The flat batch for torch: as in :mod:`bothways.batch`, and what training adds to it.

B sequences, T tokens, M masked positions. ``M`` is rounded up as ``T`` is; targets of the tail are
:data:`bothways.batch.IGNORE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bothways import batch
from bothways.batch import IGNORE, ROUND_TARGETS, Batch, TaskBatch, flat_batch, round_up


@dataclass(frozen=True)
class VarlenBounds:
    """Consecutive runs of rows in the form that variable-length attention kernels take.

    Attributes:
        cu_seqlens: int32 [S + 1], from 0; span s is rows ``cu_seqlens[s]:cu_seqlens[s + 1]``.
        max_seqlen: rows of the longest span; a host integer.
    """

    cu_seqlens: Tensor
    max_seqlen: int

    @classmethod
    def of(cls, bounds: NDArray[np.int64], device: torch.device) -> VarlenBounds:
        """From int64 [S + 1] on the CPU."""
        cu_seqlens = move(torch.from_numpy(bounds.astype(np.int32)), device)
        return cls(cu_seqlens, int(np.diff(bounds).max(initial=0)))


@dataclass(frozen=True)
class Inputs:
    """The encoder's input.

    Attributes:
        tokens: int64 [T]; the tail holds id 0.
        segments: int64 [T]; 0 for the first text and its specials, 1 for the second.
        positions: int64 [T]; position in the sequence, from 0.
        bounds: int64 [B + 1]; sequence b is ``tokens[bounds[b]:bounds[b + 1]]``. On the CPU.
        embedded: token embeddings to use in place of the table's, [T, E], without a tail; None.
    """

    tokens: Tensor
    segments: Tensor
    positions: Tensor
    bounds: NDArray[np.int64]
    embedded: Tensor | None = None

    @classmethod
    def of(cls, batch: Batch) -> Inputs:
        """The same batch as tensors, which share its memory."""
        return cls(
            torch.from_numpy(batch.tokens),
            torch.from_numpy(batch.segments),
            torch.from_numpy(batch.positions),
            batch.bounds,
        )

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
        """Tokens of the longest sequence; a host integer, so reading it never waits for a GPU."""
        return int(self.lengths.max(initial=0))

    def table_rows(self, offset: int) -> Tensor:
        """As :meth:`bothways.batch.Batch.table_rows`; nothing is read back from a GPU."""
        if not offset:
            return self.positions
        pads = self.tokens == offset - 1
        if pads.device.type == "cpu" and not pads.any():
            return self.positions + offset
        counted = F.pad(pads.cumsum(0), (1, 0))
        ends = self.spans.cu_seqlens[1:]
        places = torch.arange(len(pads), dtype=ends.dtype, device=ends.device)
        sequence = torch.searchsorted(ends, places, right=True)
        before = counted[self.spans.cu_seqlens[sequence]]
        return torch.where(pads, offset - 1, self.positions + offset - (counted[1:] - before))

    @cached_property
    def starts(self) -> Tensor:
        """int64 [B]; flat position of each sequence's [CLS], on the tokens' device."""
        return move(torch.from_numpy(self.bounds[:-1]), self.tokens.device)

    @cached_property
    def lasts(self) -> Tensor:
        """int64 [B]; flat position of each sequence's last token, on the tokens' device."""
        return move(torch.from_numpy(self.bounds[1:] - 1), self.tokens.device)

    @cached_property
    def spans(self) -> VarlenBounds:
        """The sequences, with the tail as one more, on the tokens' device.

        Kernels leave rows outside all spans undefined, and their gradients too.
        """
        total = len(self.tokens)
        bounds = self.bounds if self.bounds[-1] == total else np.append(self.bounds, total)
        return VarlenBounds.of(bounds, self.tokens.device)

    def to(self, device: torch.device | str) -> Inputs:
        """The same batch on another device, with the indices that GPU kernels need."""
        moved = Inputs(
            move(self.tokens, device),
            move(self.segments, device),
            move(self.positions, device),
            self.bounds,
        )
        _ = moved.spans, moved.starts  # cached now: the caller may be a prefetching thread
        return moved


@dataclass(frozen=True)
class SelectedPositions:
    """The flat positions at which the last layer is computed, without duplicates.

    Attributes:
        unique: int64 [at most N], increasing; on the CPU.
        positions: int64 [N]; the same on the batch's device, with a tail of zeros.
        rows: int64 each; for every requested set of positions, its rows among the N.
        spans: which of the N rows lie in which span of :attr:`Inputs.spans`.
    """

    unique: NDArray[np.int64]
    positions: Tensor
    rows: tuple[Tensor, ...]
    spans: VarlenBounds

    @classmethod
    def of(cls, inputs: Inputs, *requested: Tensor) -> SelectedPositions:
        """Merge sets of flat positions, int64 each, in any order."""
        device = inputs.tokens.device
        unique, inverse = np.unique(torch.cat(requested).cpu().numpy(), return_inverse=True)
        padded = np.zeros(round_up(len(unique), ROUND_TARGETS), np.int64)
        padded[: len(unique)] = unique
        # The last span takes in the tail's rows; their results are never used.
        bounds = np.searchsorted(unique, inputs.bounds)
        if inputs.bounds[-1] < len(inputs.tokens):
            bounds = np.append(bounds, len(padded))
        bounds[-1] = len(padded)
        cuts = np.cumsum([len(positions) for positions in requested])[:-1]
        rows = tuple(move(torch.from_numpy(part), device) for part in np.split(inverse, cuts))
        return cls(
            unique, move(torch.from_numpy(padded), device), rows, VarlenBounds.of(bounds, device)
        )


@dataclass(frozen=True)
class TokenTargets:
    """Targets of the language model.

    Attributes:
        positions: int64 [M]; flat positions, increasing; the tail is 0.
        ids: int64 [M]; the original ids at these positions, or left to right the next ones; the
            tail is :data:`IGNORE`.
        count: how many of them are real.
    """

    positions: Tensor
    ids: Tensor
    count: int

    def to(self, device: torch.device | str) -> TokenTargets:
        """The same on another device."""
        return TokenTargets(move(self.positions, device), move(self.ids, device), self.count)


@dataclass(frozen=True)
class PretrainingBatch:
    """One micro-batch of pre-training.

    Attributes:
        inputs: the sequences, masked.
        masked: targets of the language model.
        random_next: int64 [B]; 0 = the second segment follows, 1 = it is random (the original's
            labels), or for sentence order 1 = the segments are swapped; None for sequences of one
            segment, which have no second loss.
        reads: int64 each; sets of further flat positions that the objective reads.
        precomputed: the selection, for a batch that :meth:`to` made. Computing it on a GPU would
            wait for the positions.
    """

    inputs: Inputs
    masked: TokenTargets
    random_next: Tensor | None
    reads: tuple[Tensor, ...] = ()
    precomputed: SelectedPositions | None = None

    @property
    def selected(self) -> SelectedPositions:
        """The positions that the losses need: the targets, for pairs every [CLS], then
        the sets of ``reads``."""
        return self.precomputed or self._select(self.inputs)

    def to(self, device: torch.device | str) -> PretrainingBatch:
        """The same on another device, with the indices that GPU kernels need."""
        inputs, pairs = self.inputs.to(device), self.random_next
        labels = None if pairs is None else move(pairs, device)
        reads = tuple(move(read, device) for read in self.reads)
        return PretrainingBatch(inputs, self.masked.to(device), labels, reads, self._select(inputs))

    def _select(self, inputs: Inputs) -> SelectedPositions:
        starts = [] if self.random_next is None else [self.inputs.starts]
        return SelectedPositions.of(inputs, self.masked.positions, *starts, *self.reads)


@dataclass(frozen=True)
class TaskInputs:
    """A :class:`bothways.batch.TaskBatch` for torch.

    Attributes:
        inputs: the sequences.
        read_positions: int64 [R]; the flat positions of the tokens read.
        bounds: int64 [N + 1], on the CPU; item n has the rows ``bounds[n]:bounds[n + 1]``.
        targets: int64 or float32 [R], float32 [R, C], or int64 [N, C].
        selected: ``read_positions`` prepared for the encoder, once the batch is on its device; None
            if every token is read.
    """

    inputs: Inputs
    read_positions: Tensor
    bounds: NDArray[np.int64]
    targets: Tensor
    selected: SelectedPositions | None = None

    @classmethod
    def of(cls, batch: TaskBatch) -> TaskInputs:
        """The same batch as tensors, which share its memory."""
        return cls(
            Inputs.of(batch.inputs),
            torch.from_numpy(batch.read_positions),
            batch.bounds,
            torch.from_numpy(batch.targets),
        )

    @property
    def reads_all(self) -> bool:
        """Whether the head reads every token."""
        return len(self.read_positions) == int(self.inputs.bounds[-1])

    def to(self, device: torch.device | str) -> TaskInputs:
        """The same batch on another device, with everything that GPU kernels need."""
        inputs = self.inputs.to(device)
        selected = None if self.reads_all else SelectedPositions.of(inputs, self.read_positions)
        return TaskInputs(
            inputs,
            move(self.read_positions, device),
            self.bounds,
            move(self.targets, device),
            selected,
        )


def flat_inputs(
    tokens: NDArray[np.integer],
    segments: NDArray[np.integer],
    bounds: NDArray[np.int64],
    *,
    max_positions: int,
) -> Inputs:
    """:func:`bothways.batch.flat_batch` as tensors."""
    return Inputs.of(flat_batch(tokens, segments, bounds, max_positions=max_positions))


def masked_targets(at: NDArray[np.int64], ids: NDArray[np.int64]) -> TokenTargets:
    """Add the tail to increasing flat positions, int64 [M], and the ids to predict there."""
    padded = round_up(len(at), ROUND_TARGETS)
    positions = np.zeros(padded, dtype=np.int64)
    targets = np.full(padded, IGNORE, dtype=np.int64)
    positions[: len(at)], targets[: len(at)] = at, ids
    return TokenTargets(torch.from_numpy(positions), torch.from_numpy(targets), len(at))


def collate(
    tokens: Sequence[Sequence[int]], segments: Sequence[Sequence[int]], *, max_positions: int
) -> Inputs:
    """:func:`bothways.batch.collate` as tensors."""
    return Inputs.of(batch.collate(tokens, segments, max_positions=max_positions))


def move(x: Tensor, device: torch.device | str) -> Tensor:
    """A tensor on another device; to a GPU through pinned memory, without waiting for it."""
    if torch.device(device).type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def item_means(x_RC: Tensor, bounds: NDArray[np.int64]) -> Tensor:
    """The mean of each item's rows, [R, C] -> [N, C]; item n has the rows ``bounds[n]`` to
    ``bounds[n + 1]``, at least one."""
    counts = torch.from_numpy(np.diff(bounds))
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts).to(x_RC.device)
    sums = x_RC.new_zeros(len(counts), x_RC.shape[1]).index_add(0, owner, x_RC)
    return sums / counts.to(x_RC.device)[:, None]
