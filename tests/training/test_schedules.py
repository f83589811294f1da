"""Learning rates, phases and clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import ConfigError
from bothways.pretraining.clock import phase_steps, total_steps
from bothways.training.optimizer import learning_rate
from bothways.training.options import ClockOptions, OptimizerOptions, Phase


def rates(total: int, warmup: float) -> list[float]:
    options = OptimizerOptions(lr=2.0, warmup=warmup)
    return [learning_rate(step, total, options) for step in range(total)]


def test_the_shape() -> None:
    curve = rates(100, 0.1)
    # Rises by tenths to the peak, then falls as the original's: as if it had fallen from step 0.
    assert curve[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert curve[10:] == pytest.approx([2.0 * (100 - i) / 100 for i in range(10, 100)])
    assert curve[99] == pytest.approx(0.02), "the last step trains; zero comes after it"


def test_without_warmup_and_with_nothing_else() -> None:
    assert rates(4, 0.0) == pytest.approx([2.0, 1.5, 1.0, 0.5])
    assert rates(4, 1.0) == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert rates(1, 0.01) == [2.0]


def test_warmup_is_not_a_step_longer_by_rounding() -> None:
    assert rates(100, 0.07)[6] == pytest.approx(2.0)  # 0.07 * 100 is 7.000000000000001
    assert rates(100, 0.071)[6] == pytest.approx(2.0 * 7 / 8)


@given(st.integers(1, 500), st.floats(0, 1))
def test_always_above_zero_and_one_peak(total: int, warmup: float) -> None:
    curve = np.array(rates(total, warmup))
    assert curve.min() > 0
    assert curve.max() <= 2.0
    peak = int(curve.argmax())
    assert (np.diff(curve[: peak + 1]) > 0).all()
    assert (np.diff(curve[peak:]) < 0).all()


@pytest.mark.parametrize("warmup", [0.0, 0.25])
def test_other_schedules_are_those_of_transformers(warmup: float) -> None:
    """The warm-up begins one step later there, with a rate of 0."""
    transformers = pytest.importorskip("transformers")
    total, W = 80, int(80 * warmup)
    parameter = torch.nn.Parameter(torch.zeros(1))

    def theirs(name: str, **given: Any) -> Callable[[int], float]:
        optimizer = torch.optim.SGD([parameter], lr=2.0)
        made = getattr(transformers, f"get_{name}")(optimizer, num_warmup_steps=W, **given)
        curve: Callable[[int], float] = made.lr_lambdas[0]
        return curve

    decay = {"num_decay_steps": 16, "num_training_steps": total, "decay_type": "linear"}
    expected = {
        "cosine": theirs("cosine_schedule_with_warmup", num_training_steps=total),
        "constant": theirs("constant_schedule_with_warmup"),
        "trapezoid": theirs("wsd_schedule", **decay),
    }
    if W:
        later = theirs("inverse_sqrt_schedule")
        expected["inverse_sqrt"] = lambda step: later(step + 1)
    for name, curve in expected.items():
        options = OptimizerOptions(lr=2.0, warmup=warmup, schedule=name)  # type: ignore[arg-type]
        found = [learning_rate(step, total, options) for step in range(total)]
        assert found[:W] == pytest.approx([2.0 * (step + 1) / W for step in range(W)])
        assert found[W:] == pytest.approx([2.0 * curve(step) for step in range(W, total)]), name
        assert min(found) > 0


def test_noams_rate() -> None:
    """Vaswani et al. 2017, equation 3, of a peak 1 / sqrt(hidden * warm-up steps)."""
    hidden, W = 64, 20
    options = OptimizerOptions(lr=(hidden * W) ** -0.5, warmup=0.2, schedule="inverse_sqrt")
    for step in range(1, 101):
        expected = hidden**-0.5 * min(step**-0.5, step * W**-1.5)
        assert learning_rate(step - 1, 100, options) == pytest.approx(expected)


@given(
    st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
    st.integers(1, 10**6),
)
def test_phases_add_up(weights: list[float], total: int) -> None:
    phases = [Phase(share=w / sum(weights)) for w in weights]
    steps = phase_steps(phases, total)
    assert sum(steps) == total
    assert min(steps) >= 0
    for phase, count in zip(phases, steps, strict=True):
        assert abs(count - phase.share * total) <= 1


def test_nine_tenths_and_the_rest() -> None:
    phases = (Phase(share=0.9), Phase(share=0.1))
    assert phase_steps(phases, 1000) == [900, 100]
    assert phase_steps(phases, 1) == [1, 0]
    # Shares given with few digits add up to almost 1; the steps still to all of them.
    assert sum(phase_steps((Phase(share=0.333333),) * 3, 10**6)) == 10**6
    # A millionth more than 1 is accepted too; no phase goes backwards.
    beyond = (Phase(share=0.5), Phase(share=0.5000009), Phase(share=0.0))
    assert phase_steps(beyond, 10**7) == [5_000_000, 5_000_000, 0]
    assert phase_steps((Phase(share=0.7), Phase(share=0.2), Phase(share=0.1)), 10) == [7, 2, 1]


TWO = (Phase(length=128, share=0.9), Phase(length=512, share=0.1))


def clock(**given: float) -> int:
    return total_steps(
        ClockOptions(**given),  # type: ignore[arg-type]
        TWO,
        step_tokens=[1000.0, 2000.0],
        step_seconds=[0.5, 5.5],
    )


def test_clocks() -> None:
    assert clock(steps=17) == 17
    assert clock(tokens=110_000) == 100  # 1100 a step, on average
    assert clock(tokens=110_000 - 1) == 99
    assert clock(minutes=1) == 60  # a second a step, on average
    # The phases' own costs add up to the budget.
    steps = phase_steps(TWO, clock(minutes=10))
    assert steps[0] * 0.5 + steps[1] * 5.5 == pytest.approx(600)


def test_clocks_that_give_no_step() -> None:
    with pytest.raises(ConfigError, match=r"1000 tokens is less than one step, which takes 1.1e"):
        clock(tokens=1000)
    with pytest.raises(ConfigError, match="less than one step"):
        clock(minutes=0.01)
    with pytest.raises(ConfigError, match=r"give --minutes, --steps or --tokens"):
        clock()
