"""Micro-batches of a token store, as a function of the step alone.

B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import RLock
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.model.batch import PretrainingBatch, flat_inputs, masked_targets
from bothways.model.device import CPU
from bothways.objectives.kinds import make_objective
from bothways.objectives.objective import Draw, PretrainingObjective
from bothways.pretraining.instances import (
    Instances,
    check_store,
    create_instances,
    texts_of,
    training_order,
)
from bothways.pretraining.options import OBJECTIVE, MaskOptions, PairOptions
from bothways.randomness import Purpose, bits, derived_seed
from bothways.tokenization.template import WrappedSpans
from bothways.training.fit import run_ahead
from bothways.training.options import PairKind, Phase

# --------------------------------------------------------------------------------
# Instances as sequences: which tokens of the store, cut to fit, with their special tokens.
#
# B sequences, S spans of text, T tokens. A span is the text between two special tokens: A or B of a
# pair, or one document's share of a ``full`` sequence.

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TextSpans:
    """The text of sequences; special tokens stand around each span.

    Attributes:
        start, stop: int64 [S]; the span's tokens in the store's split, after cutting.
        sequence: int64 [S]; the sequence it belongs to, increasing.
        part: int64 [S]; 0, or 1 for the second text of a pair.
        cut_front, cut_end: int64 [S]; how many tokens were cut.
    """

    start: Ints
    stop: Ints
    sequence: Ints
    part: Ints
    cut_front: Ints
    cut_end: Ints

    @property
    def pairs(self) -> bool:
        """Whether the sequences are pairs."""
        return bool(self.part.any())

    def append(self, other: TextSpans) -> TextSpans:
        """These sequences followed by others."""
        shift = self.sequence[-1] + 1 if len(self.sequence) else 0
        first, second = vars(self), {**vars(other), "sequence": other.sequence + shift}
        return TextSpans(**{name: np.concatenate([first[name], second[name]]) for name in first})


def find_spans(
    store: TokenStore,
    instances: Instances,
    rows: Ints,
    *,
    kind: PairKind,
    length: int,
    seed: int,
    epoch: int,
) -> TextSpans:
    """The text of some instances, cut to fit.

    Args:
        store: the corpus the instances were made from.
        instances: of an epoch.
        rows: int64 [B]; which of them.
        kind: of the instances.
        length: tokens of a sequence, special tokens included.
        seed: of the phase.
        epoch: of the instances.
    """
    bounds = store.sentence_bounds
    max_tokens = store.tokenizer.template.room(length, texts_of(kind))
    a = bounds[instances.a[rows]]
    b = np.zeros_like(a) if instances.b is None else bounds[instances.b[rows]]
    cut = truncation(
        a[:, 1] - a[:, 0], b[:, 1] - b[:, 0], max_tokens, seed=seed, epoch=epoch, index=rows
    )
    if kind == "full":
        return _split_at_documents(store, instances.a[rows], cut[0], cut[1])
    number = np.arange(len(rows))
    if instances.b is None:
        return _cut_spans(a[:, 0], a[:, 1], number, np.zeros_like(number), cut[0], cut[1])
    return _cut_spans(
        np.stack([a[:, 0], b[:, 0]], 1).ravel(),
        np.stack([a[:, 1], b[:, 1]], 1).ravel(),
        np.repeat(number, 2),
        np.tile([0, 1], len(rows)),
        np.stack([cut[0], cut[2]], 1).ravel(),
        np.stack([cut[1], cut[3]], 1).ravel(),
    )


def _cut_spans(
    first: Ints, end: Ints, sequence: Ints, part: Ints, cut_front: Ints, cut_end: Ints
) -> TextSpans:
    return TextSpans(first + cut_front, end - cut_end, sequence, part, cut_front, cut_end)


def _split_at_documents(store: TokenStore, a: Ints, cut_front: Ints, cut_end: Ints) -> TextSpans:
    """The spans of ``full`` sequences: one for each document that a sequence crosses.

    A sentence too long for a sequence is alone in it, and nothing else is ever cut.
    """
    borders = store.document_bounds
    first = np.searchsorted(borders, a[:, 0], side="right")  # the first border inside
    count = np.searchsorted(borders, a[:, 1], side="left") - first + 1
    sequence = np.repeat(np.arange(len(a)), count)
    which = np.arange(len(sequence)) - np.repeat(np.cumsum(count) - count, count)
    border = first[sequence] + which
    starts = np.where(which == 0, a[sequence, 0], borders[border - 1])
    last = which == count[sequence] - 1
    stops = np.where(last, a[sequence, 1], borders[np.minimum(border, len(borders) - 1)])
    tokens = store.sentence_bounds
    none = np.zeros_like(sequence)
    # A sequence that is cut has one span only, so the cuts are that span's.
    return _cut_spans(
        tokens[starts], tokens[stops], sequence, none, cut_front[sequence], cut_end[sequence]
    )


def join_spans(store: TokenStore, spans: TextSpans) -> WrappedSpans:
    """The spans as sequences, with special tokens: for BERT [CLS] span [SEP] span [SEP] ..."""
    edges = zip(spans.start.tolist(), spans.stop.tolist(), strict=True)
    text = np.concatenate([store.tokens_between(*edge) for edge in edges])
    return store.tokenizer.template.wrap_spans(
        text, spans.stop - spans.start, spans.sequence, pairs=spans.pairs
    )


def truncation(
    a: Ints, b: Ints, max_tokens: int, *, seed: int, epoch: int, index: Ints
) -> tuple[Ints, ...]:
    """How many tokens to drop from each end so that pairs fit.

    The original drops one token at a time from the longer segment (from B when they are equal),
    from its front or its end with even chance. So the lengths decide how many tokens each segment
    loses, and the number dropped from its front is binomial.

    Args:
        a: int64 [B]; tokens of A.
        b: int64 [B]; tokens of B; 0 if there is no B.
        max_tokens: limit for both together.
        seed: of the phase.
        epoch: of the instances.
        index: int64 [B]; the instances' rows in their epoch.

    Returns:
        int64 [B] each: dropped from A's front, A's end, B's front, B's end.
    """
    excess = np.maximum(a + b - max_tokens, 0)
    from_longer = np.minimum(excess, np.abs(a - b))  # until both are equally long
    rest = excess - from_longer  # then from B and A in turn
    drop_a = np.where(a > b, from_longer, 0) + rest // 2
    drop_b = np.where(a > b, 0, from_longer) + (rest + 1) // 2
    front_a = _coin_flips(drop_a, seed, Purpose.TRUNCATE_A, epoch, index)
    front_b = _coin_flips(drop_b, seed, Purpose.TRUNCATE_B, epoch, index)
    return front_a, drop_a - front_a, front_b, drop_b - front_b


def _coin_flips(count: Ints, seed: int, purpose: Purpose, epoch: int, index: Ints) -> Ints:
    """The number of heads among ``count`` flips, for each instance; 64 flips per random word."""
    heads = np.zeros_like(count)
    for word in range(-(-int(count.max(initial=0)) // 64)):
        unfinished = np.flatnonzero(count > 64 * word)
        flips = np.minimum(count[unfinished] - 64 * word, 64).astype(np.uint64)
        flipped = bits(seed, purpose, epoch, index[unfinished], word) >> (64 - flips)
        heads[unfinished] += np.bitwise_count(flipped)
    return heads


EpochT = TypeVar("EpochT", int, Ints)


class PhaseBatches:
    """The batches of one phase.

    With the epochs laid end to end, step s reads instances s * batch to (s + 1) * batch. Its
    micro-batches do not depend on which process or thread makes them, or when.

    With ``masking_duplicates`` = n, epoch e reuses the pairs and masks of epoch e mod n, in its own
    order.

    Args:
        store: the corpus.
        phase: length and batch sizes.
        pairs: how sequences are made.
        masking: how targets are drawn.
        objective: chooses the targets; default: BERT's.
        seed: of the run.
        number: of the phase in the run; every phase draws its own pairs and masks.
        epoch_sizes: how many instances the first epochs have, if known; saves creating those
            instances again.

    Raises:
        StoreError: the corpus cannot give such sequences; later, an id beyond its vocabulary.
        ModelError: its tokenizer has no form for pairs, or no piece that hides tokens.
    """

    def __init__(
        self,
        store: TokenStore,
        phase: Phase,
        *,
        pairs: PairOptions,
        masking: MaskOptions,
        seed: int,
        objective: PretrainingObjective | None = None,
        number: int = 0,
        epoch_sizes: list[int] | None = None,
    ):
        check_store(store, pairs.kind)
        self.phase = phase
        self.epoch_sizes = list(epoch_sizes or [])
        self._store, self._pairs, self._duplicates = store, pairs, masking.duplicates
        self._seed = derived_seed(seed, Purpose.PHASE, number)
        objective = objective or make_objective(OBJECTIVE, pairs.kind)
        self._choose = objective.targets(store.tokenizer, masking, phase.length)
        self._instances: dict[int, Instances] = {}
        self._orders: dict[int, Ints] = {}
        self._lock = RLock()

    def instances(self, epoch: int) -> Instances:
        """The instances of an epoch; those of two are cached, as a batch may span two epochs."""
        source = self._source_epoch(epoch)
        with self._lock:
            if source not in self._instances:
                if len(self._instances) == 2:
                    del self._instances[next(iter(self._instances))]
                self._instances[source] = create_instances(
                    self._store,
                    length=self.phase.length,
                    options=self._pairs,
                    seed=self._seed,
                    epoch=source,
                )
            return self._instances[source]

    def order(self, epoch: int) -> Ints:
        """The rows of an epoch's instances in the order of training; two orders are cached."""
        with self._lock:
            if epoch not in self._orders:
                if len(self._orders) == 2:
                    del self._orders[next(iter(self._orders))]
                size = self._epoch_size(epoch)
                self._orders[epoch] = training_order(size, seed=self._seed, epoch=epoch)
            return self._orders[epoch]

    def text_spans(self, epoch: int, rows: Ints) -> TextSpans:
        """The text of some instances of an epoch.

        Args:
            epoch: of the instances.
            rows: int64 [B]; which of the epoch's instances.
        """
        return find_spans(
            self._store,
            self.instances(epoch),
            rows,
            kind=self._pairs.kind,
            length=self.phase.length,
            seed=self._seed,
            epoch=self._source_epoch(epoch),
        )

    def locate(self, start: int, count: int) -> tuple[Ints, Ints]:
        """Where instances ``start`` to ``start + count`` of the epochs laid end to end are.

        Returns:
            Their epochs, and their rows among the epoch's instances; int64 [count] each.
        """
        epochs, rows = [], []
        epoch = 0
        while count:
            size = self._epoch_size(epoch)
            if start < size:
                taken = self.order(epoch)[start : start + count]
                rows.append(taken)
                epochs.append(np.full(len(taken), epoch))
                count -= len(taken)
                start = size
            start -= size
            epoch += 1
        return np.concatenate(epochs), np.concatenate(rows)

    def micro_batches(self, step: int, share: slice = slice(None)) -> list[PretrainingBatch]:
        """The micro-batches of a step's global batch.

        Args:
            step: from 0.
            share: which of the micro-batches; only these are made.
        """
        return self._make_batches(*self.locate(step * self.phase.batch, self.phase.batch), share)

    def first(self, count: int) -> list[PretrainingBatch]:
        """Micro-batches of the first ``count`` instances of epoch 0, or of all if it has fewer."""
        return self._make_batches(*self.locate(0, min(count, len(self.instances(0)))))

    def _source_epoch(self, epoch: EpochT) -> EpochT:
        """The epoch whose pairs and masks an epoch uses; works on arrays of epochs too."""
        return epoch % self._duplicates if self._duplicates else epoch

    def _epoch_size(self, epoch: int) -> int:
        source = self._source_epoch(epoch)
        with self._lock:
            while len(self.epoch_sizes) <= source:
                self.epoch_sizes.append(len(self.instances(len(self.epoch_sizes))))
            return self.epoch_sizes[source]

    def _make_batches(
        self, epoch: Ints, index: Ints, share: slice = slice(None)
    ) -> list[PretrainingBatch]:
        size = self.phase.micro_batch
        return [
            self._make_batch(epoch[start : start + size], index[start : start + size])
            for start in range(0, len(index), size)[share]
        ]

    def _make_batch(self, epoch: Ints, index: Ints) -> PretrainingBatch:
        # The epochs increase: there is one, or two if the batch spans the end of an epoch.
        by_epoch = [(int(e), index[epoch == e]) for e in np.unique(epoch)]
        spans, *later_spans = [self.text_spans(e, rows) for e, rows in by_epoch]
        for later in later_spans:
            spans = spans.append(later)
        sequences = join_spans(self._store, spans)
        tokens, bounds = sequences.tokens, sequences.bounds
        self._check_ids(tokens)
        draw = Draw(self._seed, self._source_epoch(epoch), index)
        targets = self._choose(tokens, bounds, draw)
        return PretrainingBatch(
            flat_inputs(targets.shown, sequences.segments, bounds, max_positions=self.phase.length),
            masked_targets(targets.positions, targets.ids),
            self._labels(by_epoch),
            tuple(map(torch.from_numpy, targets.reads)),
        )

    def _labels(self, by_epoch: list[tuple[int, Ints]]) -> torch.Tensor | None:
        per_epoch = [(self.instances(epoch).label, rows) for epoch, rows in by_epoch]
        labels = [label[rows] for label, rows in per_epoch if label is not None]
        return torch.from_numpy(np.concatenate(labels).astype(np.int64)) if labels else None

    def _check_ids(self, tokens: Ints) -> None:
        """Refuse ids beyond the vocabulary, the one thing that opening a store does not check."""
        size = self._store.tokenizer.vocab_size
        if (highest := int(tokens.max())) >= size:
            raise StoreError(
                f"{self._store.folder}: id {highest} is beyond the vocabulary of {size} pieces; "
                "a shard was damaged after it was built. "
                f"`bothways info {self._store.folder} --check` names it; build the corpus again."
            )


def prefetch(
    batches: PhaseBatches,
    steps: range,
    *,
    ahead: int = 2,
    share: slice = slice(None),
    device: torch.device = CPU,
) -> Iterator[list[PretrainingBatch]]:
    """The micro-batches of each step, prepared by a thread while earlier steps are computed.

    Args:
        batches: of the phase.
        steps: in order.
        ahead: steps prepared in advance; 0 makes each when it is requested.
        share: which of a step's micro-batches.
        device: the thread moves them there as well.
    """

    def make(step: int) -> list[PretrainingBatch]:
        made = batches.micro_batches(step, share)
        return made if device.type == "cpu" else [batch.to(device) for batch in made]

    yield from run_ahead(make, steps, ahead=ahead, device=device)
