"""Trying out a phase of pre-training: seconds and memory of its micro-batches.

A deep network is not built. Layers are alike, so time and memory are straight lines in their
number, and two shallow networks of the asked width tell both. Each is trained by the real step, in
turn, on a micro-batch cut down to about a second's work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bothways.config import ModelConfig, PretrainConfig
from bothways.model.batch import PretrainingBatch
from bothways.model.cost import training_cost
from bothways.model.heads import Bert
from bothways.pretraining.objective import PAIR_TASKS, pretraining_loss
from bothways.training.engine import Trainer

# Depths that are tried; a network of few layers is tried itself.
_DEPTHS, _FEW = (1, 3), 4
# Floating-point operations of a step that is timed, about; timed steps.
_OPERATIONS, _ROUNDS = 4e11, 6


@dataclass(frozen=True)
class Probe:
    """What a phase costs, at the number of layers asked for.

    Attributes:
        token_seconds: forward and backward pass, for each real token.
        update_seconds: the optimizer's update.
        kept: bytes that a whole micro-batch's forward pass keeps for its backward pass.
        kept_recomputing: the same with ``--recompute``, and one layer that is computed again.
    """

    token_seconds: float
    update_seconds: float
    kept: float
    kept_recomputing: float


def probe(
    config: PretrainConfig,
    shape: ModelConfig,
    whole: PretrainingBatch,
    parts: Sequence[PretrainingBatch],
    dtype: torch.dtype,
) -> Probe:
    """Measure a phase.

    Args:
        config: optimizer, kernels, kind of pairs, recomputing.
        shape: the network asked for.
        whole: a micro-batch as the run will have it; its memory is measured.
        parts: smaller ones of the same phase (:func:`probe_sequences`); these are timed.
        dtype: arithmetic of the layers.
    """
    depths = (shape.layers,) if shape.layers <= _FEW else _DEPTHS
    tried = [_Network(config, replace(shape, layers=depth), dtype) for depth in depths]

    def at_depth(values: Sequence[float]) -> float:
        first, last = values[0], values[-1]
        if len(values) == 1:
            return first
        return first + (last - first) / (depths[-1] - depths[0]) * (shape.layers - depths[0])

    kept, recomputing = (
        at_depth([network.kept(whole, recompute=recompute) for network in tried])
        for recompute in (False, True)
    )
    # The last layer keeps little, as few tokens are read: the others have it all.
    layer = (kept - recomputing) / max(1, shape.layers - 1)
    for part in parts:  # a first time is slower
        for network in tried:
            network.step(part)
    rows = [
        [network.step(parts[i % len(parts)]) for network in tried]
        for i in range(max(_ROUNDS, len(parts)))
    ]
    return Probe(
        token_seconds=at_depth(_medians([[own.token_seconds for own in row] for row in rows])),
        update_seconds=at_depth(_medians([[own.update_seconds for own in row] for row in rows])),
        kept=kept,
        kept_recomputing=recomputing + layer,
    )


def probe_sequences(shape: ModelConfig, *, length: float, targets: float, most: int) -> int:
    """How many sequences make a step of about a second on a small machine, at most ``most``."""
    deepest = replace(shape, layers=shape.layers if shape.layers <= _FEW else _DEPTHS[-1])
    cost = training_cost(deepest, length=max(1, round(length)), targets=targets).matrix * length
    return max(1, min(most, round(_OPERATIONS / cost)))


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


@dataclass(frozen=True)
class _Seconds:
    token_seconds: float
    update_seconds: float


class _Network:
    """A shallow network in training."""

    def __init__(self, config: PretrainConfig, shape: ModelConfig, dtype: torch.dtype):
        self.config, self.dtype = config, dtype
        self.model = Bert(shape, pretraining=True)
        if config.pairs.kind not in PAIR_TASKS:
            self.model.next_sentence = None
        self.model.shared.fast = config.kernels == "fast"
        self.trainer: Trainer[PretrainingBatch] = Trainer(
            self.model, config.optimizer, total_steps=1000, seed=0, dtype=dtype
        )
        self.updating = 0.0
        self.trainer.optimizer.register_step_pre_hook(self._note_update)
        self.steps = 0

    def _note_update(self, *_: object) -> None:
        self.updating = time.perf_counter()

    def step(self, part: PretrainingBatch) -> _Seconds:
        """Train on a micro-batch."""
        self.model.shared.recompute = self.config.recompute
        start = time.perf_counter()
        self.trainer.step(self.steps, [part], pretraining_loss([part], self.config.pairs.kind))
        end = time.perf_counter()
        self.steps += 1
        tokens = int(part.inputs.bounds[-1])
        return _Seconds((self.updating - start) / tokens, end - self.updating)

    def kept(self, part: PretrainingBatch, *, recompute: bool) -> float:
        """Bytes of tensors that a forward pass keeps for the backward pass."""
        self.model.shared.recompute = recompute
        own = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
        sizes: dict[int, int] = {}

        def count(x: Tensor) -> Tensor:
            storage = x.untyped_storage()
            if storage.data_ptr() not in own:
                sizes[storage.data_ptr()] = storage.nbytes()
            return x

        self.model.train()
        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            loss = pretraining_loss([part], self.config.pairs.kind)
            value, _ = loss(self.model, part, self.dtype)
        del value
        return float(sum(sizes.values()))
