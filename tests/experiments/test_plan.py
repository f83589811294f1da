"""`bothways plan`: what it counts, and what it says of memory, disk and time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, StoreError
from bothways.experiments import plan as module
from bothways.experiments.options import PlanConfig
from bothways.experiments.plan import Forecast, Probe, plan
from bothways.families.options import SizeOptions
from bothways.model.flops import training_cost
from bothways.model.folder import save_model
from bothways.objectives.replaced import ReplacedTokens, generator_shape
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.options import (
    CheckpointOptions,
    EvaluateOptions,
    MaskOptions,
    PairOptions,
    PretrainConfig,
)
from bothways.pretraining.pretrain import pretrain
from bothways.training.options import ClockOptions, Phase
from model_examples import small_bert, small_config, small_tokenizer

SMALL = SizeOptions(layers=2, hidden=16, heads=2, intermediate=32, positions=64)


PHASES = (
    Phase(length=24, share=0.75, batch=16, micro_batch=8),
    Phase(length=32, share=0.25, batch=8, micro_batch=8),
)


def config(**changes: Any) -> PlanConfig:
    base = PlanConfig(
        model=SMALL,
        phases=PHASES,
        precision="fp32",
        threads=1,
        vocab_size=300,
        evaluate=EvaluateOptions(sequences=8),
    )
    return replace(base, **changes)


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose speed and memory are known: 1 ms a token, 0.1 s an update."""
    monkeypatch.setattr(
        module,
        "probe",
        lambda config, *_: Probe(1e-3, 0.1, *((5e8, 3e8) if config.recompute else (2e9, 2e9))),
    )
    monkeypatch.setattr(module, "_resident_bytes", lambda: 10**9)


@pytest.mark.usefixtures("still")
def test_weights_are_those_of_the_network() -> None:
    for size, count in (("base", 110_106_428), ("large", 336_226_108)):
        found = plan(config(model=SizeOptions(size=size), vocab_size=30_522))  # type: ignore[arg-type]
        assert sum(found.parameters.values()) == count
        padded = count + (30_528 - 30_522) * found.model.hidden
        assert (found.weights, found.gradients, found.moments) == (
            4 * padded,
            4 * padded,
            8 * padded,
        )
    alone = plan(config(pairs=PairOptions(kind="full")))
    assert "pair head" not in alone.parameters


@pytest.mark.usefixtures("still")
def test_hours_add_up() -> None:
    found = plan(config(clock=ClockOptions(steps=100)))
    first, second = found.phases
    assert (first.steps, second.steps) == (75, 25)
    assert first.step_seconds == pytest.approx(16 * 24 * 1e-3 + 0.1)
    assert first.tokens_per_second == pytest.approx(16 * 24 / first.step_seconds)
    assert found.tokens == 75 * 16 * 24 + 25 * 8 * 32
    measuring = 21 * 8 * first.step_seconds / 16 / 3 / 3600
    assert found.evaluation_hours == pytest.approx(measuring)
    training = (75 * first.step_seconds + 25 * second.step_seconds) / 3600
    assert found.hours == pytest.approx(training + measuring)
    assert found.operations == pytest.approx(
        75 * 16 * 24 * first.operations + 25 * 8 * 32 * second.operations
    )


@pytest.mark.usefixtures("still")
def test_a_clock_in_minutes_gives_the_hours_asked_for() -> None:
    found = plan(config(clock=ClockOptions(minutes=30.0)))
    assert found.hours == pytest.approx(0.5, rel=0.01)
    often = replace(config().evaluate, every=10)
    found = plan(config(clock=ClockOptions(minutes=30.0), evaluate=often))
    assert found.hours == pytest.approx(0.5, rel=0.01)
    tokens = plan(config(clock=ClockOptions(tokens=100_000)))
    assert tokens.tokens == pytest.approx(100_000, rel=0.01)


@pytest.mark.usefixtures("still")
def test_memory_adds_gradients_where_they_meet_activations() -> None:
    """In plain layers that is where there are several micro-batches; compiled layers keep the
    memory of their activations."""
    plain = config(kernels="plain")
    several, one = plan(plain).phases
    sizes = plan(plain)
    assert several.peak - one.peak == sizes.gradients
    embedding = 320 * 16 * 4
    tensors = sizes.process + sizes.weights + sizes.moments + 2e9
    assert one.peak == tensors + embedding + 400 * 2**20, "libraries take some"
    assert one.peak - plan(replace(plain, recompute=True)).phases[1].peak == 1.5e9
    half = plan(replace(plain, precision="bf16")).phases[1]
    assert half.peak - one.peak == embedding / 2 + 400 * 2**20  # a cast of that gradient
    compiled = plan(config()).phases
    held = sizes.gradients + 400 * 2**20
    assert compiled[1].peak == tensors + held
    assert compiled[0].peak == tensors + held + embedding, "one that is added to the others"
    rounded = plan(config(precision="bf16")).phases
    copies = sizes.weights / 2 + 400 * 2**20
    assert rounded[1].peak - compiled[1].peak == copies - sizes.gradients / 2
    assert rounded[0].peak - compiled[0].peak == copies - embedding / 2
    # Recomputing, they hold the memory of a single layer, which is less than that of all inputs.
    beginning = 5e8 + embedding
    ending = 3e8 + sizes.gradients
    recomputing = plan(config(recompute=True)).phases[1]
    assert recomputing.peak == tensors - 2e9 + max(beginning, ending) + 400 * 2**20


def test_real_lengths_are_read_from_the_corpus(tiny_corpus: Path) -> None:
    """And the clock says how often it is read."""
    found = plan(config(corpus=str(tiny_corpus), clock=ClockOptions(steps=40)))
    store = TokenStore.open(tiny_corpus)
    assert found.model.vocab_size == store.tokenizer.vocab_size
    settings = {"pairs": PairOptions(), "masking": MaskOptions(), "seed": 0}
    for number, phase in enumerate(found.phases):
        source = PhaseBatches(store, PHASES[number], number=number, **settings)  # type: ignore[arg-type]
        lengths = np.concatenate([part.inputs.lengths for part in source.first(512)])
        assert phase.sequence_tokens == pytest.approx(lengths.mean())
        assert phase.sequence_tokens < phase.length
        assert phase.steps is not None
        assert phase.epochs == pytest.approx(phase.steps * phase.batch / len(source.instances(0)))
        assert phase.tokens_per_second > 0
        assert phase.activations > 0


def test_what_pre_training_would_refuse_is_refused(tiny_corpus: Path, tmp_path: Path) -> None:
    other = small_tokenizer(97)
    save_model(tmp_path / "m", small_bert(small_config((1, 32, 4, 64, 97))), other)
    with pytest.raises(StoreError, match="was built with another vocabulary than"):
        plan(config(corpus=str(tiny_corpus), start=str(tmp_path / "m")))
    with pytest.raises(ConfigError, match="positions of"):
        plan(config(start=str(tmp_path / "m"), phases=(Phase(length=512, share=1.0),)))
    with pytest.raises(ConfigError, match="snapshots: step 50 is beyond this run's 20 steps"):
        plan(config(clock=ClockOptions(steps=20), snapshots=(5, 50)))


def test_deep_networks_are_lines_through_shallow_ones() -> None:
    """Bytes kept are exact: two depths foretell a third."""
    phases = (Phase(length=32, batch=8, micro_batch=8),)

    def kept(layers: int) -> tuple[float, float]:
        shape = replace(SMALL, layers=layers)
        runs = [plan(config(model=shape, phases=phases, recompute=r)) for r in (False, True)]
        return runs[0].phases[0].activations, runs[1].phases[0].activations

    four, six = kept(4), kept(6)  # the first is tried itself
    ten = kept(10)
    assert ten[0] - six[0] == pytest.approx(2 * (six[0] - four[0]))
    assert six[1] < six[0]
    assert ten[0] - six[0] > 3 * (ten[1] - six[1])


@pytest.mark.usefixtures("still")
def test_disk_holds_the_checkpoints_kept_and_each_snapshot() -> None:
    found = plan(config(checkpoint=CheckpointOptions(keep=3), snapshots=(1, 2)))
    assert found.disk == 4 * found.checkpoint + 3 * found.model_folder


def test_disk_is_what_a_run_leaves(tiny_corpus: Path, tmp_path: Path) -> None:
    shape = SizeOptions(layers=2, hidden=64, heads=2, intermediate=256, positions=64)
    asked: dict[str, Any] = {
        "corpus": str(tiny_corpus), "model": shape, "clock": ClockOptions(steps=2),
        "phases": (Phase(length=24, batch=4, micro_batch=4),),
        "checkpoint": CheckpointOptions(minutes=1e9, keep=1), "precision": "fp32", "threads": 1,
        "evaluate": EvaluateOptions(every=2, sequences=8),
    }  # fmt: skip
    run = tmp_path / "run"
    pretrain(PretrainConfig(**asked, run=str(run)))
    found: Forecast = plan(PlanConfig(**asked))

    def size(folder: Path, *names: str) -> int:
        return sum((folder / name).stat().st_size for name in names)

    model = size(run / "model", "model.safetensors")
    state = size(run / "checkpoints" / "step-2", "model.safetensors", "training.safetensors")
    assert found.model_folder == pytest.approx(model, rel=0.03)
    assert found.checkpoint == pytest.approx(state, rel=0.03)


@pytest.mark.usefixtures("still")
def test_a_generator_of_replaced_tokens_is_counted() -> None:
    electra = replace(SMALL, family="electra")
    found = plan(
        config(
            model=electra,
            pairs=PairOptions(kind="full"),
            objective=["replaced", "size=0.5"],
        )
    )
    phase, shape = found.phases[0], electra.resolve(300)
    targets = 4  # of 24 tokens, 22 of a text
    small = generator_shape(shape, size=0.5)
    cost = ReplacedTokens(size=0.5).operations(shape, 24, targets)
    assert phase.operations == pytest.approx(cost.matrix, rel=0.02)
    assert phase.operations > cost.matrix - training_cost(small, length=24, targets=4).matrix


def on_h100(size: Any, *phases: Phase, **changes: Any) -> Forecast:
    return plan(PlanConfig(model=SizeOptions(size=size), device="h100", phases=phases, **changes))


@pytest.mark.parametrize(
    ("size", "batch", "length", "tokens_per_second", "mebibytes"),
    [
        ("base", 256, 128, 566_249, 11_736),
        ("base", 64, 512, 515_039, 11_714),
        ("mini", 256, 128, 3_055_335, None),
    ],
)
def test_an_h100_computed_is_the_one_measured(
    size: str, batch: int, length: int, tokens_per_second: int, mebibytes: int | None
) -> None:
    """benchmarks/2026-11-26-h100.md. The first and the last gave the table its two constants."""
    phase = on_h100(size, Phase(length=length, batch=batch, micro_batch=batch)).phases[0]
    assert phase.tokens_per_second == pytest.approx(tokens_per_second, rel=0.05)
    if mebibytes:
        assert phase.peak == pytest.approx(mebibytes * 2**20, rel=0.1)


def test_what_a_rank_sends_does_not_grow_with_their_number() -> None:
    phase = Phase(length=128, batch=256, micro_batch=2)
    steps = ClockOptions(steps=1000)
    eight, many = (on_h100("base", phase, ranks=n, clock=steps) for n in (8, 64))
    sharded = on_h100("base", phase, ranks=64, clock=steps, parallel="fsdp")
    sent = [found.phases[0].sent for found in (eight, many, sharded)]
    assert sent[1] == 2 * 63 / 64 * many.weights
    layers = 4 * many.parameters["layers"]
    # Two rounds: layers gathered twice, the rest once, and all gradients scattered.
    assert sent[2] == pytest.approx(2 * 63 / 64 * (2 * many.weights + layers))
    assert sent[0] < sent[1] < 1.2 * sent[0]
    assert sharded.phases[0].peak < many.phases[0].peak / 2
    assert 1 < eight.hours / many.hours < 8  # type: ignore[operator]
