"""Tokens and minutes as steps: estimated from all sequences, not from those that come first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from bothways.objectives.masked import MaskedLM
from bothways.pretraining import clock
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.options import PairOptions
from bothways.training.options import ClockOptions, PairKind
from bothways.training.ranks import SINGLE_PROCESS, Ranks
from pretraining_examples import memory_store, pair_batches, random_documents

KINDS: tuple[PairKind, ...] = get_args(PairKind)
_SECONDS_A_TOKEN, _SECONDS_AN_UPDATE = 0.001, 0.05


def real_tokens(source: PhaseBatches, step: int) -> int:
    return sum(int(batch.inputs.bounds[-1]) for batch in source.micro_batches(step))


Source = Callable[[int], PhaseBatches]


@pytest.fixture(scope="module")
def unusual() -> Source:
    """Short texts and long ones, with a first batch that is at least a fifth too long, in
    micro-batches of any size."""
    rng = np.random.default_rng(1)
    documents = [[int(n)] * int(rng.integers(2, 5)) for n in rng.choice([2, 3, 4, 30], 600)]
    store = memory_store(documents)
    for seed in range(100):
        source = pair_batches(store, length=64, batch=8, micro_batch=8, seed=seed)
        first = real_tokens(source, 0)
        if first > 1.2 * np.mean([real_tokens(source, step) for step in range(1, 40)]):
            return lambda size: pair_batches(store, length=64, batch=8, micro_batch=size, seed=seed)
    raise AssertionError("no such seed")


def steps(source: PhaseBatches, budget: ClockOptions, ranks: Ranks = SINGLE_PROCESS) -> int:
    source.phase = replace(source.phase, share=1.0)
    new: Any = _TimedTrainer
    found, _ = clock.count_steps(
        budget, [source], new, MaskedLM(), ranks, every=1, heldout=lambda: 0
    )
    return found


def test_a_clock_in_tokens_counts_all_sequences(unusual: Source) -> None:
    budget, source = 40_000, unusual(8)
    found = steps(source, ClockOptions(tokens=budget))
    read = sum(real_tokens(source, step) for step in range(found))
    assert read == pytest.approx(budget, rel=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_is_that_of_the_sequences(kind: PairKind) -> None:
    store = memory_store(random_documents(np.random.default_rng(2), 60))
    source = pair_batches(store, pairs=PairOptions(kind=kind), batch=10, micro_batch=10)
    size = len(source.instances(0))
    sizes = list(source.epoch_sizes)
    by_batches = sum(int(b.inputs.bounds[-1]) for b in source.first(size)) / size
    assert clock.sequence_tokens(source, least=0) == pytest.approx(by_batches, rel=0.02)
    assert clock.sequence_tokens(source) == pytest.approx(by_batches, rel=0.05)
    assert source.epoch_sizes[: len(sizes)] == sizes
    assert len(source.epoch_sizes) == 1, "later epochs are measured, not recorded with the run"


class _TimedTrainer:
    """Takes as long as its tokens and an update need, by a clock of its own."""

    now = 0.0

    def __init__(self, ranks: Ranks = SINGLE_PROCESS):
        self.ranks, self.model = ranks, SimpleNamespace(device=torch.device("cpu"))
        self.before_update: Callable[[], None] = lambda: None

    def step(self, _: int, batches: list[Any], __: Any) -> None:
        _TimedTrainer.now += _SECONDS_A_TOKEN * sum(int(b.inputs.bounds[-1]) for b in batches)
        self.before_update()
        _TimedTrainer.now += _SECONDS_AN_UPDATE


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "step_loss", lambda *_: None)
    now = SimpleNamespace(perf_counter=lambda: _TimedTrainer.now)
    monkeypatch.setattr(clock, "time", now)
    # The fewest micro-batches that are ever probed, as of large ones.
    monkeypatch.setattr(clock, "_PROBE_SECONDS", 0.0)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("micro_batch", [8, 5, 2])
def test_a_clock_in_minutes_counts_all_sequences(unusual: Source, micro_batch: int) -> None:
    source = unusual(micro_batch)
    found = steps(source, ClockOptions(minutes=1.0))
    spent = sum(
        _SECONDS_A_TOKEN * real_tokens(source, step) + _SECONDS_AN_UPDATE for step in range(found)
    )
    assert spent == pytest.approx(60.0, rel=0.03)


@pytest.mark.usefixtures("simulated")
def test_of_several_processes_the_one_with_most_sequences_decides(unusual: Source) -> None:
    """Eight sequences in micro-batches of three: 3 and 2 for the first process, 3 for the other."""
    source = unusual(3)
    mean = clock.sequence_tokens(source)
    trainer: Any = _TimedTrainer(_Two(0, 2))
    found = clock._probe(trainer, MaskedLM(), source, mean)
    assert found == pytest.approx(5 * mean * _SECONDS_A_TOKEN + _SECONDS_AN_UPDATE)


class _Two(Ranks):
    """The first of two processes that say nothing to each other."""

    def broadcast(self, value: Any) -> Any:
        return value
