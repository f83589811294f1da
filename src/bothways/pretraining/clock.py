"""How many steps the clock allows, decided before step 1."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bothways.errors import ConfigError
from bothways.model.batch import PretrainingBatch
from bothways.model.device import synchronize
from bothways.objectives.objective import PretrainingObjective
from bothways.pretraining.batches import PhaseBatches, prefetch
from bothways.training.options import ClockOptions, Phase
from bothways.training.ranks import Ranks
from bothways.training.trainer import Trainer, step_loss

EVALUATIONS = 20
"""Evaluations of a run, if the config does not set the interval."""
_EVALUATED = 0.2  # of a run's minutes, at most, if this leaves two evaluations
_PROBE_SECONDS, _MOST_PROBED = 3.0, 200  # of each phase; micro-batches
_MADE, _AT_ONCE = 256, 2**16  # sequences that are made for their special tokens; per lookup


def count_steps(
    clock: ClockOptions,
    sources: Sequence[PhaseBatches],
    new_trainer: Callable[[], Trainer[PretrainingBatch]],
    objective: PretrainingObjective,
    ranks: Ranks,
    *,
    every: int,
    heldout: Callable[[], int],
) -> tuple[int, int]:
    """Steps of a run, and its evaluations if no interval is set. Rank 0 decides; all processes must
    call this.

    Args:
        clock: the length of the run.
        sources: the batches of each phase.
        new_trainer: makes one that may be timed: of a copy of the model.
        objective: what is trained.
        ranks: the processes.
        every: steps between evaluations; 0: not set.
        heldout: how many held-out sequences there are.
    """
    phases, evaluations = [source.phase for source in sources], EVALUATIONS
    tokens, seconds = [0.0] * len(phases), [0.0] * len(phases)
    if clock.steps is None:
        means = ranks.run_on_rank0(lambda: [sequence_tokens(source) for source in sources])
        tokens = [phase.batch * mean for phase, mean in zip(phases, means, strict=True)]
    if clock.minutes is not None:
        seconds = ranks.broadcast(
            [
                _probe(new_trainer(), objective, source, mean)
                for source, mean in zip(sources, means, strict=True)
            ]
        )
        # Evaluations are forward passes: per sequence, about a third of a training step's work.
        evaluation = ranks.run_on_rank0(heldout) * seconds[0] / (phases[0].batch * 3)
        clock, seconds, evaluations = reserve_evaluations(clock, seconds, every, evaluation)
    return total_steps(clock, phases, step_tokens=tokens, step_seconds=seconds), evaluations


def reserve_evaluations(
    clock: ClockOptions, step_seconds: list[float], every: int, evaluation_seconds: float
) -> tuple[ClockOptions, list[float], int]:
    """Leave time for the evaluations of a run that is limited in minutes.

    Args:
        clock: with ``minutes``.
        step_seconds: of a training step, for each phase.
        every: steps between evaluations; 0 for :data:`EVALUATIONS` in the run, or fewer, beside
            the one before the first step.
        evaluation_seconds: of one evaluation.

    Returns:
        The minutes for training, the seconds per step, and the number of evaluations: either each
        step bears its share of an evaluation, or as many as take a fifth of the minutes are taken
        off them, with the one before the first step. If two take more, there are two, for which
        half of the minutes are kept at most.
    """
    assert clock.minutes is not None
    if every:
        return (
            clock,
            [seconds + evaluation_seconds / every for seconds in step_seconds],
            EVALUATIONS,
        )
    minutes = evaluation_seconds / 60
    most = clock.minutes * _EVALUATED / minutes - 1 if minutes else EVALUATIONS
    count = max(1, int(min(most, EVALUATIONS)))
    spent = min((count + 1) * minutes, clock.minutes / 2)
    return replace(clock, minutes=clock.minutes - spent), step_seconds, count


def sequence_tokens(source: PhaseBatches, *, least: int = 4096, most: int = 2**18) -> float:
    """Mean number of tokens of a phase's sequences, in the order of training from the first on.

    The lengths of sequences are known without reading them, but for their special tokens, whose
    number is taken from some that are made. A single batch may be off by a quarter.

    Args:
        source: of the phase.
        least, most: sequences to measure, if an epoch has fewer or more.
    """
    source = copy.copy(source)
    source.epoch_sizes = list(source.epoch_sizes)  # later epochs are no part of the run yet
    size = len(source.instances(0))
    text = _text_tokens(source, min(max(size, least), most))
    made = source.first(_MADE)
    lengths = np.concatenate([batch.inputs.lengths for batch in made])
    special = lengths.mean() - _text_tokens(source, len(lengths)).mean()
    return float(text.mean() + special)


def _text_tokens(source: PhaseBatches, count: int) -> NDArray[np.int64]:
    """Tokens of the first sequences of a phase, without the special ones; int64 [count]."""
    epochs, rows = source.locate(0, count)
    found = []
    for epoch in np.unique(epochs).tolist():
        of_epoch = rows[epochs == epoch]
        for start in range(0, len(of_epoch), _AT_ONCE):
            spans = source.text_spans(epoch, of_epoch[start : start + _AT_ONCE])
            firsts = np.flatnonzero(np.diff(spans.sequence, prepend=-1))
            found.append(np.add.reduceat(spans.stop - spans.start, firsts))
    return np.concatenate(found)


def _probe(
    trainer: Trainer[PretrainingBatch],
    objective: PretrainingObjective,
    source: PhaseBatches,
    mean: float,
) -> float:
    """Seconds of one step, measured by training a copy of the model on micro-batches.

    It trains for some seconds, with batches made by a thread as in the run: the first few
    micro-batches of a process are faster than the pace it can keep. Those micro-batches may be
    shorter or longer than others, so what is measured is the time that a token takes.

    Args:
        trainer: of the copy.
        objective, source: of the run.
        mean: tokens of a sequence (:func:`sequence_tokens`).
    """
    micro = copy.copy(source)
    micro.phase = replace(source.phase, batch=min(source.phase.batch, source.phase.micro_batch))
    device, ranks = trainer.model.device, trainer.ranks
    times: list[float] = []
    tokens: list[int] = []
    updates: list[float] = []  # of the weights, once a step whatever the number of micro-batches
    update_start = 0.0

    def note_update_start() -> None:
        nonlocal update_start
        synchronize(device)
        update_start = time.perf_counter()

    trainer.before_update = note_update_start
    last = _MOST_PROBED - 1
    start = time.perf_counter()
    for step, [batch] in enumerate(prefetch(micro, range(_MOST_PROBED), device=device)):
        loss = step_loss([batch], objective, ranks)
        trainer.step(step, [batch], loss)
        synchronize(device)
        now = time.perf_counter()
        times.append(now - start)
        tokens.append(int(batch.inputs.bounds[-1]))
        updates.append(now - update_start)
        start = now
        if step == 1:  # step 0 was the warm-up
            enough = 1 + math.ceil(_PROBE_SECONDS / times[1])
            last = min(last, max(3, ranks.broadcast(enough)))
        if step == last:
            break
    update = statistics.fmean(updates[1:])
    token = (statistics.fmean(times[1:]) - update) / statistics.fmean(tokens[1:])
    # The first process has the most sequences: micro-batches are dealt out in turn.
    size, batch_size = source.phase.micro_batch, source.phase.batch
    firsts = range(0, batch_size, size)[:: ranks.size]
    sequences = sum(min(size, batch_size - first) for first in firsts)
    return token * mean * sequences + update


def phase_steps(phases: Sequence[Phase], total: int) -> list[int]:
    """Steps of each phase: its share of ``total``, rounded so that the sum is ``total``."""
    shares = [math.fsum(p.share for p in phases[:i]) for i in range(len(phases) + 1)]
    bounds = [min(round(total * share), total) for share in shares]  # all need not be exactly 1
    bounds[-1] = total
    return [end - start for start, end in pairwise(bounds)]


def total_steps(
    clock: ClockOptions,
    phases: Sequence[Phase],
    *,
    step_tokens: Sequence[float],
    step_seconds: Sequence[float],
) -> int:
    """The clock's budget in optimizer steps.

    Args:
        clock: steps, tokens or minutes.
        phases: whose shares weigh the averages.
        step_tokens: mean real tokens per step, of each phase; used for a clock in tokens.
        step_seconds: measured seconds per step, of each phase; used for a clock in minutes.

    Raises:
        ConfigError: no clock was given, or its budget is less than a single step.
    """
    if clock.steps is not None:
        return clock.steps
    if clock.tokens is not None:
        budget, costs, unit = float(clock.tokens), step_tokens, "tokens"
    elif clock.minutes is not None:
        budget, costs, unit = clock.minutes * 60, step_seconds, "seconds"
    else:
        raise ConfigError(
            "clock: the length of the training is not set; give --minutes, --steps or --tokens, or "
            "the name of a recipe."
        )
    mean = sum(p.share * cost for p, cost in zip(phases, costs, strict=True))
    steps = int(budget / mean)
    if steps < 1:
        raise ConfigError(
            f"clock: {budget:g} {unit} is less than one step, which takes {mean:.3g}; raise the "
            "budget or reduce phases.batch."
        )
    return steps
