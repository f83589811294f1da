"""Pre-training runs of seconds, and ways to stop them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bothways.families.options import SizeOptions
from bothways.pretraining.options import CheckpointOptions, EvaluateOptions, PretrainConfig
from bothways.runtime.stored import WEIGHTS
from bothways.training.monitor import METRICS, read_metrics
from bothways.training.options import ClockOptions, OptimizerOptions, Phase
from bothways.training.trainer import Trainer

Make = Callable[..., PretrainConfig]
STEPS = 30
ALWAYS = CheckpointOptions(minutes=1e-9)  # after every step
NEVER = CheckpointOptions(minutes=1e9)


def short_recipe(corpus: Path) -> Make:
    """A function that makes recipes of two phases and two micro-batches a step, seconds long."""

    def config(run: Path, **changes: Any) -> PretrainConfig:
        base = PretrainConfig(
            corpus=str(corpus),
            run=str(run),
            model=SizeOptions(
                size="tiny", layers=1, hidden=16, heads=2, intermediate=32, positions=64
            ),
            clock=ClockOptions(steps=STEPS),
            phases=(
                Phase(length=24, share=0.75, batch=16, micro_batch=8),
                Phase(length=32, share=0.25, batch=8, micro_batch=4),
            ),
            optimizer=OptimizerOptions(lr=2e-2, warmup=0.1),
            precision="fp32",
            threads=1,
            evaluate=EvaluateOptions(every=20, sequences=20),
            checkpoint=NEVER,
            log_every=1,
        )
        return replace(base, **changes)

    return config


def weights(run: Path) -> bytes:
    return (run / "model" / WEIGHTS).read_bytes()


def records(run: Path) -> list[dict[str, Any]]:
    """What was recorded, but for the speed."""
    found = read_metrics(run / METRICS)
    speed = ("tokens_per_second", "loader_wait")
    return [{k: v for k, v in r.items() if k not in speed} for r in found]


@contextlib.contextmanager
def watching(action: Callable[..., object]) -> Iterator[None]:
    """Call ``action`` after each step, with the trainer and the arguments of the step."""
    step = Trainer.step

    def watched(self: Any, *args: Any) -> dict[str, float]:
        stats = step(self, *args)
        action(self, *args)
        return stats

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", watched)
        yield


def after_step(number: int, action: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Do something when the step of this number (from 0) has been computed."""
    return watching(lambda _, now, *__: action() if now == number else None)


class StoppedError(Exception):
    """Stands for whatever ends a process."""


def stop() -> None:
    raise StoppedError
