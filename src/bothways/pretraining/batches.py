"""batch(step): a store turned into micro-batches, as a function of the step alone.

B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import RLock

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.config import MaskOptions, PairOptions, Phase
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.model.batch import (
    PretrainingBatch,
    flat_inputs,
    masked_targets,
)
from bothways.pretraining.masking import Vocabulary, mask_tokens, max_predictions, next_tokens
from bothways.pretraining.plan import Plan, check_store, plan_epoch, training_order
from bothways.pretraining.sequences import Pieces, find_pieces, lay_out
from bothways.randomness import Purpose, derived_seed
from bothways.training.device import CPU
from bothways.training.prefetch import run_ahead

Ints = NDArray[np.int64]


class PairBatches:
    """The batches of one phase.

    Step s reads instances s * batch to (s + 1) * batch of the epochs laid end to end. Its
    micro-batches do not depend on which process or thread makes them, or when.

    With ``masking.duplicates`` = n, epoch e has the pairs and masks of epoch e mod n, in an order
    of its own.

    Args:
        store: the corpus.
        phase: length and batch sizes.
        pairs: how sequences are made.
        masking: how targets are drawn.
        seed: of the run.
        number: of the phase in the run; every phase draws its own pairs and masks.
        epoch_sizes: instances of the first epochs, if known from before; saves planning them again.

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
        self._plans: dict[int, Plan] = {}
        self._orders: dict[int, Ints] = {}
        self._lock = RLock()

    def plan(self, epoch: int) -> Plan:
        """The plan of an epoch; two are kept, as a batch may span a change of epoch."""
        drawn = self._drawn(epoch)
        with self._lock:
            if drawn not in self._plans:
                if len(self._plans) == 2:
                    del self._plans[next(iter(self._plans))]
                self._plans[drawn] = plan_epoch(
                    self._store,
                    length=self.phase.length,
                    options=self._pairs,
                    seed=self._seed,
                    epoch=drawn,
                )
            return self._plans[drawn]

    def order(self, epoch: int) -> Ints:
        """The rows of an epoch's plan in the order of training; two are kept."""
        with self._lock:
            if epoch not in self._orders:
                if len(self._orders) == 2:
                    del self._orders[next(iter(self._orders))]
                size = self._size(epoch)
                self._orders[epoch] = training_order(size, seed=self._seed, epoch=epoch)
            return self._orders[epoch]

    def pieces(self, epoch: int, rows: Ints) -> Pieces:
        """The text of some instances of an epoch.

        Args:
            epoch: of the instances.
            rows: int64 [B]; rows of the epoch's plan.
        """
        return find_pieces(
            self._store,
            self.plan(epoch),
            rows,
            kind=self._pairs.kind,
            length=self.phase.length,
            seed=self._seed,
            epoch=self._drawn(epoch),
        )

    def instances(self, start: int, count: int) -> tuple[Ints, Ints]:
        """Epoch and plan row of instances ``start`` to ``start + count`` of the epochs laid end to
        end, int64 [count] each."""
        epochs, rows = [], []
        epoch = 0
        while count:
            size = self._size(epoch)
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
        """The parts of a step's global batch, ``micro_batch`` sequences each.

        Args:
            step: from 0.
            share: which of the parts; only these are made.
        """
        return self._cut(*self.instances(step * self.phase.batch, self.phase.batch), share)

    def first(self, count: int) -> list[PretrainingBatch]:
        """The first instances of epoch 0 in micro-batches: ``count``, or as many as a pass has."""
        return self._cut(*self.instances(0, min(count, len(self.plan(0)))))

    def _drawn(self, epoch: int) -> int:
        """The epoch whose pairs and masks an epoch has."""
        return epoch % self._masking.duplicates if self._masking.duplicates else epoch

    def _cut(self, epoch: Ints, index: Ints, share: slice = slice(None)) -> list[PretrainingBatch]:
        size = self.phase.micro_batch
        return [
            self._make(epoch[at : at + size], index[at : at + size])
            for at in range(0, len(index), size)[share]
        ]

    def _size(self, epoch: int) -> int:
        drawn = self._drawn(epoch)
        with self._lock:
            while len(self.epoch_sizes) <= drawn:
                self.epoch_sizes.append(len(self.plan(len(self.epoch_sizes))))
            return self.epoch_sizes[drawn]

    def _make(self, epoch: Ints, index: Ints) -> PretrainingBatch:
        # The epochs increase, and there are two where the batch spans a change of epoch.
        parts = [(int(of), index[epoch == of]) for of in np.unique(epoch)]
        pieces, *others = [self.pieces(*part) for part in parts]
        for other in others:
            pieces = pieces.then(other)
        made = lay_out(self._store, pieces)
        self._check_ids(made.tokens)
        if self._masking.left_to_right:
            shown, (at, ids) = made.tokens, next_tokens(made.tokens, made.bounds)
        else:
            shown, at, ids = mask_tokens(
                made.tokens,
                made.bounds,
                self._vocabulary,
                self._masking,
                budget=self._budget,
                seed=self._seed,
                epoch=epoch % self._masking.duplicates if self._masking.duplicates else epoch,
                index=index,
            )
        limit = self.phase.length
        return PretrainingBatch(
            flat_inputs(shown, made.segments, made.bounds, max_positions=limit),
            masked_targets(at, ids),
            self._labels(parts),
        )

    def _labels(self, parts: list[tuple[int, Ints]]) -> torch.Tensor | None:
        found = [(self.plan(epoch).label, rows) for epoch, rows in parts]
        labels = [label[rows] for label, rows in found if label is not None]
        return torch.from_numpy(np.concatenate(labels).astype(np.int64)) if labels else None

    def _check_ids(self, tokens: Ints) -> None:
        """Opening a store checks everything but the ids."""
        if (highest := int(tokens.max())) >= len(self._vocabulary.special):
            raise StoreError(
                f"{self._store.folder}: id {highest} is beyond the vocabulary of "
                f"{len(self._vocabulary.special)} pieces; a shard was damaged after it was built. "
                f"`bothways doctor {self._store.folder}` names it; build the corpus again."
            )


def prefetch(
    batches: PairBatches,
    steps: range,
    *,
    ahead: int = 2,
    share: slice = slice(None),
    device: torch.device = CPU,
) -> Iterator[list[PretrainingBatch]]:
    """The micro-batches of each step, made by a thread while earlier ones are computed.

    Args:
        batches: of the phase.
        steps: in order.
        ahead: steps prepared in advance; 0 makes each when it is asked for.
        share: which of a step's micro-batches.
        device: where they are put, by the thread too.
    """

    def make(step: int) -> list[PretrainingBatch]:
        made = batches.micro_batches(step, share)
        return made if device.type == "cpu" else [batch.to(device) for batch in made]

    yield from run_ahead(make, steps, ahead=ahead, device=device)
