"""Measures a phase of pre-training: seconds and memory of its micro-batches.

A deep network is not built. All layers cost the same, so time and memory are linear in their
number, and two shallow networks of the requested width determine both lines. The two take turns in
being trained with the real training step, on a micro-batch reduced to about a second's work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bothways.families.config import ModelConfig
from bothways.model.batch import PretrainingBatch
from bothways.model.device import ChosenPrecision
from bothways.model.flops import training_cost
from bothways.objectives.objective import pretraining_loss
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.start import new_model, objective_of
from bothways.training.trainer import Trainer

# Depths that are measured; a network of few layers is measured itself.
_DEPTHS, _FEW = (1, 3), 4
# Approximate floating-point operations of a timed step; number of timed steps.
_OPERATIONS, _ROUNDS = 4e11, 6


@dataclass(frozen=True)
class Probe:
    """The cost of a phase, at the requested number of layers.

    Attributes:
        token_seconds: forward and backward pass, per token, without padding.
        update_seconds: the optimizer's update.
        activations: bytes that the forward pass of a full micro-batch keeps for its backward pass.
        activations_recomputing: the same with ``--recompute``, including the one layer that is
            being recomputed.
        layer: bytes of ``activations`` that one layer keeps.
    """

    token_seconds: float
    update_seconds: float
    activations: float
    activations_recomputing: float
    layer: float


def probe(
    config: PretrainConfig,
    shape: ModelConfig,
    micro_batch: PretrainingBatch,
    timed: Sequence[PretrainingBatch],
    precision: ChosenPrecision,
) -> Probe:
    """Measure a phase.

    Args:
        config: optimizer, kernels, kind of pairs, recomputing.
        shape: the requested network.
        micro_batch: one as the run will have it; its memory is measured.
        timed: smaller micro-batches of the same phase (:func:`probe_sequences`); these are timed.
        precision: arithmetic of the layers.
    """
    depths = (shape.layers,) if shape.layers <= _FEW else _DEPTHS
    networks = [_Network(config, shape.at_depth(depth), precision) for depth in depths]

    def at_depth(values: Sequence[float]) -> float:
        """Extrapolate from a value per measured network."""
        first, last = values[0], values[-1]
        if len(values) == 1:
            return first
        return first + (last - first) / (depths[-1] - depths[0]) * (shape.layers - depths[0])

    activations, recomputing = (
        at_depth([network.activations(micro_batch, recompute=recompute) for network in networks])
        for recompute in (False, True)
    )
    # The last layer keeps little, because few positions are computed: divide among the others.
    layer = (activations - recomputing) / max(1, shape.layers - 1)
    for batch in timed:  # warm-up
        for network in networks:
            network.step(batch)
    rounds = [
        [network.step(timed[i % len(timed)]) for network in networks]
        for i in range(max(_ROUNDS, len(timed)))
    ]
    return Probe(
        token_seconds=at_depth(_medians([[t.token_seconds for t in row] for row in rounds])),
        update_seconds=at_depth(_medians([[t.update_seconds for t in row] for row in rounds])),
        activations=activations,
        activations_recomputing=recomputing + layer,
        layer=layer,
    )


def probe_sequences(shape: ModelConfig, *, length: float, targets: float, most: int) -> int:
    """The sequences for a step of about a second on a small machine, at most ``most``."""
    deepest = shape.at_depth(shape.layers if shape.layers <= _FEW else _DEPTHS[-1])
    cost = training_cost(deepest, length=max(1, round(length)), targets=targets).matrix * length
    return max(1, min(most, round(_OPERATIONS / cost)))


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


@dataclass(frozen=True)
class _Seconds:
    token_seconds: float
    update_seconds: float


class _Network:
    """A shallow network and its trainer."""

    def __init__(self, config: PretrainConfig, shape: ModelConfig, precision: ChosenPrecision):
        self.config, self.dtype = config, precision.dtype
        self.model = new_model(config, shape)
        self.model.shared.fast = config.kernels == "fast"
        self.model.shared.transposes = precision.transposes
        self.trainer: Trainer[PretrainingBatch] = Trainer(
            self.model, config.optimizer, total_steps=1000, seed=0, dtype=self.dtype
        )
        self.update_start = 0.0
        self.trainer.optimizer.register_step_pre_hook(self._note_update_start)
        self.steps = 0

    def _note_update_start(self, *_: object) -> None:
        self.update_start = time.perf_counter()

    def step(self, batch: PretrainingBatch) -> _Seconds:
        """Train on a micro-batch."""
        self.model.shared.recompute = self.config.recompute
        start = time.perf_counter()
        self.trainer.step(self.steps, [batch], pretraining_loss([batch], objective_of(self.config)))
        end = time.perf_counter()
        self.steps += 1
        tokens = int(batch.inputs.bounds[-1])
        return _Seconds((self.update_start - start) / tokens, end - self.update_start)

    def activations(self, batch: PretrainingBatch, *, recompute: bool) -> float:
        """Bytes of tensors that a forward pass keeps for the backward pass."""
        self.model.shared.recompute = recompute
        weights = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
        sizes: dict[int, int] = {}

        def count(x: Tensor) -> Tensor:
            at = x.untyped_storage().data_ptr()
            if at not in weights:
                sizes[at] = x.untyped_storage().nbytes()
            return x.detach()  # itself, it could keep alive the graph that keeps it

        self.model.train()
        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            loss = pretraining_loss([batch], objective_of(self.config))
            value, _ = loss(self.model, batch, self.dtype)
        in_frames = self.model.shared.pool.kept
        del value
        return float(sum(sizes.values()) + in_frames)
