"""What is decided before step 1: precision, and the number of steps that a clock stands for."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from bothways.config import PretrainConfig
from bothways.model.batch import PretrainingBatch
from bothways.model.heads import Bert
from bothways.pretraining.batches import PairBatches, prefetch
from bothways.pretraining.objective import pretraining_loss
from bothways.training.device import synchronize
from bothways.training.engine import Trainer
from bothways.training.precision import DTYPES, choose_precision
from bothways.training.ranks import Ranks
from bothways.training.schedules import total_steps

EVALUATIONS = 20
"""Evaluations of a run, where the config leaves the interval open."""
_PROBE_SECONDS, _MOST_PROBED = 3.0, 200  # of each phase; micro-batches


def resolve_clock(
    config: PretrainConfig, model: Bert, sources: Sequence[PairBatches], ranks: Ranks
) -> dict[str, Any]:
    """Precision and steps, for run.json; by probes of rank 0, in which all processes take part."""
    precision = ranks.run_on_rank0(lambda: choose_precision(config.precision, model.device))
    steps = _count_steps(config, model, sources, DTYPES[precision.name], ranks)
    return {"precision": precision.name, "reason": precision.reason, "steps": steps}


def _count_steps(
    config: PretrainConfig,
    model: Bert,
    sources: Sequence[PairBatches],
    dtype: torch.dtype,
    ranks: Ranks,
) -> int:
    clock, phases = config.clock, config.phases
    tokens, seconds = [0.0] * len(phases), [0.0] * len(phases)
    if clock.tokens is not None:
        tokens = [
            float(sum(b.inputs.bounds[-1] for b in source.micro_batches(0))) for source in sources
        ]
    if clock.minutes is not None:
        seconds = ranks.broadcast(
            [_probe(config, model, source, dtype, ranks) for source in sources]
        )
        # Evaluations are forward passes, about a third of a step's work for each sequence.
        evaluation = config.evaluate.sequences / phases[0].batch * seconds[0] / 3
        if config.evaluate.every:
            seconds = [own + evaluation / config.evaluate.every for own in seconds]
        else:
            spent = min(EVALUATIONS * evaluation / 60, clock.minutes * 0.5)
            clock = replace(clock, minutes=clock.minutes - spent)
    return total_steps(clock, phases, step_tokens=tokens, step_seconds=seconds)


def _probe(
    config: PretrainConfig, model: Bert, source: PairBatches, dtype: torch.dtype, ranks: Ranks
) -> float:
    """Seconds of one step, from micro-batches trained on a copy of the model.

    Some seconds of them, made by a thread beside the training as in the run: the first few of a
    process are faster than what it keeps up.
    """
    micro = copy.copy(source)
    micro.phase = replace(source.phase, batch=min(source.phase.batch, source.phase.micro_batch))
    trainer: Trainer[PretrainingBatch] = Trainer(
        copy.deepcopy(model),
        PretrainConfig().optimizer,
        total_steps=1000,
        seed=0,
        dtype=dtype,
        ranks=ranks,
        parallel=config.parallel,
    )
    times: list[float] = []
    last = _MOST_PROBED - 1
    start = time.perf_counter()
    for step, [batch] in enumerate(prefetch(micro, range(_MOST_PROBED), device=model.device)):
        loss = pretraining_loss([batch], config.pairs.kind, ranks)
        trainer.step(step, [batch], loss)
        synchronize(model.device)
        now = time.perf_counter()
        times.append(now - start)
        start = now
        if step == 1:  # the first one warms up
            enough = 1 + math.ceil(_PROBE_SECONDS / times[1])
            last = min(last, max(3, ranks.broadcast(enough)))
        if step == last:
            break
    parts = math.ceil(source.phase.batch / source.phase.micro_batch / ranks.size)
    return statistics.fmean(times[1:]) * parts
