"""Micro-batches of a token store, as a function of the step alone.

B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import RLock
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.config import MaskOptions, PairOptions, Phase
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.model.batch import PretrainingBatch, flat_inputs, masked_targets
from bothways.pretraining.instances import (
    Instances,
    check_store,
    create_instances,
    training_order,
)
from bothways.pretraining.masking import Vocabulary, mask_tokens, max_predictions, next_tokens
from bothways.pretraining.sequences import TextSpans, find_spans, join_spans
from bothways.randomness import Purpose, derived_seed
from bothways.training.device import CPU
from bothways.training.prefetch import run_ahead

Ints = NDArray[np.int64]
EpochT = TypeVar("EpochT", int, Ints)


class PhaseBatches:
    """The batches of one phase.

    With the epochs laid end to end, step s reads instances s * batch to (s + 1) * batch. Its
    micro-batches do not depend on which process or thread makes them, or when.

    With ``masking.duplicates`` = n, epoch e reuses the pairs and masks of epoch e mod n, in its own
    order.

    Args:
        store: the corpus.
        phase: length and batch sizes.
        pairs: how sequences are made.
        masking: how targets are drawn.
        seed: of the run.
        number: of the phase in the run; every phase draws its own pairs and masks.
        epoch_sizes: how many instances the first epochs have, if known; saves creating those
            instances again.

    Raises:
        StoreError: the corpus cannot give such sequences; later, an id beyond its vocabulary.
    """

    def __init__(
        self,
        store: TokenStore,
        phase: Phase,
        *,
        pairs: PairOptions,
        masking: MaskOptions,
        seed: int,
        number: int = 0,
        epoch_sizes: list[int] | None = None,
    ):
        check_store(store, pairs.kind)
        self.phase = phase
        self.epoch_sizes = list(epoch_sizes or [])
        self._store, self._pairs, self._masking = store, pairs, masking
        self._seed = derived_seed(seed, Purpose.PHASE, number)
        self._vocabulary = Vocabulary.of(store.tokenizer, segmented=masking.segmented)
        self._budget = max_predictions(phase.length, masking.rate)
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
        return epoch % self._masking.duplicates if self._masking.duplicates else epoch

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
        if self._masking.left_to_right:
            shown, (at, ids) = tokens, next_tokens(tokens, bounds)
        else:
            shown, at, ids = mask_tokens(
                tokens,
                bounds,
                self._vocabulary,
                self._masking,
                budget=self._budget,
                seed=self._seed,
                epoch=self._source_epoch(epoch),
                index=index,
            )
        return PretrainingBatch(
            flat_inputs(shown, sequences.segments, bounds, max_positions=self.phase.length),
            masked_targets(at, ids),
            self._labels(by_epoch),
        )

    def _labels(self, by_epoch: list[tuple[int, Ints]]) -> torch.Tensor | None:
        per_epoch = [(self.instances(epoch).label, rows) for epoch, rows in by_epoch]
        labels = [label[rows] for label, rows in per_epoch if label is not None]
        return torch.from_numpy(np.concatenate(labels).astype(np.int64)) if labels else None

    def _check_ids(self, tokens: Ints) -> None:
        """Refuse ids beyond the vocabulary, the one thing that opening a store does not check."""
        if (highest := int(tokens.max())) >= len(self._vocabulary.special):
            raise StoreError(
                f"{self._store.folder}: id {highest} is beyond the vocabulary of "
                f"{len(self._vocabulary.special)} pieces; a shard was damaged after it was built. "
                f"`bothways doctor {self._store.folder}` names it; build the corpus again."
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
