"""The learning rate as a function of the step, and a clock that becomes steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from bothways.config import ClockOptions, OptimizerOptions, Phase
from bothways.errors import ConfigError


def learning_rate(step: int, total: int, options: OptimizerOptions) -> float:
    """Linear warm-up from 0, then linear decay to 0 at ``total``, as the original computes it.

    Args:
        step: from 0; the rate used *for* this step. The original's step 0 has rate 0 and trains
            nothing, so warm-up here starts at 1 / (warm-up steps) instead.
        total: all steps of the run.
        options: peak rate and share of warm-up.
    """
    warmup = math.ceil(options.warmup * total - 1e-9)  # 0.07 * 100 is just above 7
    if step < warmup:
        return options.lr * (step + 1) / warmup
    return options.lr * (total - step) / total


def phase_steps(phases: Sequence[Phase], total: int) -> list[int]:
    """Steps of each phase: shares of ``total``, rounded so that they add up to it."""
    bounds = [round(total * sum(p.share for p in phases[:i])) for i in range(len(phases) + 1)]
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
        step_tokens: mean real tokens of a step, each phase; read for a clock in tokens.
        step_seconds: measured seconds of a step, each phase; read for a clock in minutes.

    Raises:
        ConfigError: no clock was given, or it is too short for a single step.
    """
    if clock.steps is not None:
        return clock.steps
    if clock.tokens is not None:
        budget, costs, unit = float(clock.tokens), step_tokens, "tokens"
    elif clock.minutes is not None:
        budget, costs, unit = clock.minutes * 60, step_seconds, "seconds"
    else:
        raise ConfigError(
            "clock: nothing says how long to train; give --clock.steps, --clock.tokens or "
            "--clock.minutes."
        )
    mean = sum(p.share * cost for p, cost in zip(phases, costs, strict=True))
    steps = int(budget / mean)
    if steps < 1:
        raise ConfigError(
            f"clock: {budget:g} {unit} are less than one step, which takes {mean:.3g}; raise the "
            "budget or make phases.batch smaller."
        )
    return steps
