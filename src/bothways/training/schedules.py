"""The learning rate as a function of the step, and the length of a run in steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from bothways.errors import ConfigError
from bothways.training.options import ClockOptions, OptimizerOptions, Phase


def learning_rate(step: int, total: int, options: OptimizerOptions) -> float:
    """Linear warm-up, then linear decay to 0 at ``total``, as in the original code.

    With W warm-up steps, the rate is ``lr * (step + 1) / W`` up to the peak ``lr`` at step W - 1,
    and from step W on ``lr * (total - step) / total``. The decay is the line from ``lr`` at step 0,
    so right after the peak the rate drops to ``(1 - warmup) * lr``.

    The original's warm-up is ``lr * step / W``, whose first step has rate 0 and trains nothing;
    here it starts at ``lr / W``.

    Args:
        step: from 0.
        total: steps of the run.
        options: the peak rate ``lr`` and ``warmup``, a fraction of all steps.
    """
    warmup = math.ceil(options.warmup * total - 1e-9)  # 0.07 * 100 is slightly above 7
    if step < warmup:
        return options.lr * (step + 1) / warmup
    return options.lr * (total - step) / total


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
            "clock: the length of the training is not set; give --clock.steps, --clock.tokens or "
            "--clock.minutes."
        )
    mean = sum(p.share * cost for p, cost in zip(phases, costs, strict=True))
    steps = int(budget / mean)
    if steps < 1:
        raise ConfigError(
            f"clock: {budget:g} {unit} is less than one step, which takes {mean:.3g}; raise the "
            "budget or reduce phases.batch."
        )
    return steps
