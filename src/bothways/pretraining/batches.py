"""batch(step): a store turned into micro-batches, as a function of the step alone.

B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import RLock

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.config import MaskOptions, PairOptions, Phase
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.model.batch import (
    IGNORE,
    ROUND_TARGETS,
    MaskedTargets,
    PretrainingBatch,
    flat_inputs,
    round_up,
)
from bothways.pretraining.masking import Vocabulary, mask_tokens, max_predictions
from bothways.pretraining.plan import (
    SPECIALS_IN_PAIR,
    Plan,
    check_documents,
    plan_epoch,
    truncation,
)
from bothways.randomness import Purpose, derived_seed


class PairBatches:
    """The batches of one phase.

    Step s reads instances s * batch to (s + 1) * batch of the epochs laid end to end. Its
    micro-batches do not depend on which process or thread makes them, or when.

    Args:
        store: the corpus.
        phase: length and batch sizes.
        pairs: how pairs are made.
        masking: how targets are drawn.
        seed: of the run.
        number: of the phase in the run; every phase draws its own pairs and masks.
        epoch_sizes: instances of the first epochs, if known from before; saves planning them again.

    Raises:
        StoreError: the corpus has fewer than two documents; later, an id beyond its vocabulary.
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
        check_documents(store)
        self.phase = phase
        self.epoch_sizes = list(epoch_sizes or [])
        self._store, self._pairs, self._masking = store, pairs, masking
        self._seed = derived_seed(seed, Purpose.PHASE, number)
        self._vocabulary = Vocabulary.of(store.tokenizer)
        self._cls, self._sep = store.tokenizer.cls_id, store.tokenizer.sep_id
        self._budget = max_predictions(phase.length, masking.rate)
        self._plans: dict[int, Plan] = {}
        self._lock = RLock()

    def plan(self, epoch: int) -> Plan:
        """The plan of an epoch; two are kept, as a batch may span a change of epoch."""
        with self._lock:
            if epoch not in self._plans:
                if len(self._plans) == 2:
                    del self._plans[min(self._plans)]
                self._plans[epoch] = plan_epoch(
                    self._store,
                    length=self.phase.length,
                    options=self._pairs,
                    seed=self._seed,
                    epoch=epoch,
                )
            return self._plans[epoch]

    def micro_batches(self, step: int) -> list[PretrainingBatch]:
        """The parts of a step's global batch, ``micro_batch`` sequences each."""
        return self._cut(*self._instances(step * self.phase.batch, self.phase.batch))

    def first(self, count: int) -> list[PretrainingBatch]:
        """The first instances of epoch 0 in micro-batches: ``count``, or as many as a pass has."""
        return self._cut(*self._instances(0, min(count, len(self.plan(0)))))

    def _cut(self, epoch: NDArray[np.int64], index: NDArray[np.int64]) -> list[PretrainingBatch]:
        size = self.phase.micro_batch
        return [
            self._make(epoch[at : at + size], index[at : at + size])
            for at in range(0, len(index), size)
        ]

    def _instances(self, start: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Epoch and plan row of instances start to start + count of the epochs laid end to end."""
        epochs, rows = [], []
        epoch = 0
        while count:
            size = self._size(epoch)
            if start < size:
                taken = self.plan(epoch).order[start : start + count]
                rows.append(taken)
                epochs.append(np.full(len(taken), epoch))
                count -= len(taken)
                start = size
            start -= size
            epoch += 1
        return np.concatenate(epochs), np.concatenate(rows)

    def _size(self, epoch: int) -> int:
        with self._lock:
            while len(self.epoch_sizes) <= epoch:
                self.epoch_sizes.append(len(self.plan(len(self.epoch_sizes))))
            return self.epoch_sizes[epoch]

    def _make(self, epoch: NDArray[np.int64], index: NDArray[np.int64]) -> PretrainingBatch:
        parts: list[NDArray[np.integer]] = []
        bounds, segments, random_next = [0], [], []
        cls, sep = np.array([self._cls]), np.array([self._sep])
        for of in np.unique(epoch):  # two where the batch spans a change of epoch
            rows = index[epoch == of]
            plan = self.plan(int(of))
            for a, b in self._texts(plan, int(of), rows):
                parts += [cls, a, sep, b, sep]
                segments += [len(a) + 2, len(b) + 1]
                bounds.append(bounds[-1] + len(a) + len(b) + SPECIALS_IN_PAIR)
            random_next.append(plan.random_next[rows])
        tokens = np.concatenate(parts).astype(np.int64)
        self._check_ids(tokens)
        edges = np.array(bounds, dtype=np.int64)
        shown, at, ids = mask_tokens(
            tokens,
            edges,
            self._vocabulary,
            self._masking,
            budget=self._budget,
            seed=self._seed,
            epoch=epoch,
            index=index,
        )
        segment_ids = np.repeat(np.tile([0, 1], len(index)), segments)
        return PretrainingBatch(
            flat_inputs(shown, segment_ids, edges, max_positions=self.phase.length),
            _targets(at, ids),
            torch.from_numpy(np.concatenate(random_next).astype(np.int64)),
        )

    def _check_ids(self, tokens: NDArray[np.int64]) -> None:
        """Opening a store checks everything but the ids."""
        if (highest := int(tokens.max())) >= len(self._vocabulary.special):
            raise StoreError(
                f"{self._store.folder}: id {highest} is beyond the vocabulary of "
                f"{len(self._vocabulary.special)} pieces; a shard was damaged after it was built. "
                f"`bothways doctor {self._store.folder}` names it; build the corpus again."
            )

    def _texts(
        self, plan: Plan, epoch: int, rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.integer], NDArray[np.integer]]]:
        """A and B of each instance, cut to fit."""
        a, b = self._store.sentence_bounds[plan.a[rows]], self._store.sentence_bounds[plan.b[rows]]
        front_a, end_a, front_b, end_b = truncation(
            a[:, 1] - a[:, 0],
            b[:, 1] - b[:, 0],
            self.phase.length - SPECIALS_IN_PAIR,
            seed=self._seed,
            epoch=epoch,
            index=rows,
        )
        starts_a, stops_a = (a[:, 0] + front_a).tolist(), (a[:, 1] - end_a).tolist()
        starts_b, stops_b = (b[:, 0] + front_b).tolist(), (b[:, 1] - end_b).tolist()
        for spans in zip(starts_a, stops_a, starts_b, stops_b, strict=True):
            yield (
                self._store.tokens_between(spans[0], spans[1]),
                self._store.tokens_between(spans[2], spans[3]),
            )


def _targets(at: NDArray[np.int64], ids: NDArray[np.int64]) -> MaskedTargets:
    padded = round_up(len(at), ROUND_TARGETS)
    places = np.zeros(padded, dtype=np.int64)
    targets = np.full(padded, IGNORE, dtype=np.int64)
    places[: len(at)], targets[: len(at)] = at, ids
    return MaskedTargets(torch.from_numpy(places), torch.from_numpy(targets), len(at))


def prefetch(
    batches: PairBatches, steps: range, *, ahead: int = 2
) -> Iterator[list[PretrainingBatch]]:
    """The micro-batches of each step, made by a thread while earlier ones are computed.

    Args:
        batches: of the phase.
        steps: in order.
        ahead: steps prepared in advance; 0 makes each when it is asked for.
    """
    if ahead == 0:
        yield from map(batches.micro_batches, steps)
        return
    with ThreadPoolExecutor(1) as thread:
        waiting: list[Future[list[PretrainingBatch]]] = []
        try:
            for step in steps:
                waiting.append(thread.submit(batches.micro_batches, step))
                if len(waiting) > ahead:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()
