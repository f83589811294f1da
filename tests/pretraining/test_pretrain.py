"""Pre-training end to end: it learns, records what it did, and refuses what it should."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, StoreError
from bothways.model.batch import PretrainingBatch, collate
from bothways.model.engine import load_network, network_of
from bothways.objectives.masked import MaskedLM
from bothways.pretraining import clock
from bothways.pretraining import pretrain as module
from bothways.pretraining import record as recording
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.evaluation import (
    count_heldout,
    evaluate_pretraining,
    evaluation_batches,
    heldout_batches,
)
from bothways.pretraining.options import (
    CheckpointOptions,
    EvaluateOptions,
    MaskOptions,
    PairOptions,
)
from bothways.pretraining.pretrain import PretrainResult, pretrain
from bothways.pretraining.record import Records, draw_curves
from bothways.runtime.folder import load_model
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training import fit
from bothways.training.checkpoint import Checkpoint
from bothways.training.monitor import METRICS, read_metrics
from bothways.training.options import ClockOptions, OptimizerOptions, PairKind
from bothways.training.ranks import Ranks
from bothways.training.runfolder import read_run
from bothways.training.trainer import Trainer
from pretrain_runs import (
    ALWAYS,
    STEPS,
    Make,
    StoppedError,
    after_step,
    records,
    short_recipe,
    stop,
    watching,
    weights,
)
from pretraining_examples import memory_store, pair_batches, random_documents, small_model


@pytest.fixture(scope="module")
def make(tiny_corpus: Path) -> Make:
    return short_recipe(tiny_corpus)


@pytest.fixture(scope="module")
def unbroken(make: Make, tmp_path_factory: pytest.TempPathFactory) -> PretrainResult:
    """A run that was never stopped. Read only."""
    return pretrain(make(tmp_path_factory.mktemp("unbroken") / "run"))


def test_it_learns(unbroken: PretrainResult) -> None:
    found = records(unbroken.run)
    train = [r for r in read_metrics(unbroken.run / METRICS) if "mlm_loss" in r]
    heldout = [r for r in found if "heldout_mlm_loss" in r]
    assert [r["step"] for r in train] == list(range(1, STEPS + 1))
    assert [r["step"] for r in heldout] == [0, 20, 30]
    assert train[0]["mlm_loss"] > 4.5, "about the log of the vocabulary at first"
    assert heldout[-1]["heldout_mlm_loss"] < heldout[0]["heldout_mlm_loss"] - 0.5
    for record in train:
        assert record["loss"] == pytest.approx(record["mlm_loss"] + record["nsp_loss"])
        assert 0 <= record["loader_wait"] <= 1
    assert train[0]["lr"] == pytest.approx(2e-2 / 3)
    assert max(r["lr"] for r in train) <= 2e-2
    assert unbroken.heldout is not None
    assert unbroken.heldout.sequences == 20
    assert unbroken.heldout.record() == {
        k: v for k, v in heldout[-1].items() if k.startswith("heldout")
    }


@pytest.mark.usefixtures("drawn")
def test_curves_of_a_run_are_drawn(unbroken: PretrainResult, tmp_path: Path) -> None:
    shutil.copy(unbroken.run / METRICS, tmp_path)
    draw_curves(tmp_path, MaskedLM().terms)
    assert int.from_bytes((tmp_path / "curves.png").read_bytes()[16:20], "big") > 1000  # wide


def test_the_model_is_the_one_that_was_measured(unbroken: PretrainResult, make: Make) -> None:
    loaded = load_model(unbroken.model)
    assert network_of(loaded).masked_lm is not None
    assert network_of(loaded).next_sentence is not None
    assert loaded.about["steps"] == STEPS
    config = make(unbroken.run)
    store = TokenStore.open(config.corpus, "heldout")
    batches = evaluation_batches(store, 24, 20, config, micro_batch=8)
    assert [b.inputs.sequences for b in batches] == [8, 8, 4]
    same = evaluation_batches(store, 24, 20, replace(config, seed=1), micro_batch=8)
    for ours, theirs in zip(batches, same, strict=True):
        assert torch.equal(ours.inputs.tokens, theirs.inputs.tokens), "whatever the run's seed"
    assert (
        module.measure(network_of(loaded), batches, torch.float32, MaskedLM()) == unbroken.heldout
    )


def test_transformers_loads_it(unbroken: PretrainResult) -> None:
    transformers = pytest.importorskip("transformers")
    theirs, report = transformers.BertForPreTraining.from_pretrained(
        unbroken.model, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    loaded = load_model(unbroken.model)
    encoded = loaded.tokenizer.encode_batch(["The baker sold the bread."])[0]
    ids = torch.tensor([encoded.ids])
    with torch.no_grad():
        inputs = collate([encoded.ids], [encoded.segments], max_positions=len(encoded.ids))
        hidden = network_of(loaded).encoder(inputs)[: len(encoded.ids)]
        ours = network_of(loaded).masked_lm_logits(hidden)
        logits = theirs.eval()(ids).prediction_logits[0]
    assert torch.allclose(logits, ours[:, : logits.shape[1]], atol=1e-5)


def test_the_same_seed_gives_the_same_model(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    assert weights(pretrain(make(tmp_path / "again")).run) == weights(unbroken.run)
    short = ClockOptions(steps=2)
    one = pretrain(make(tmp_path / "one", clock=short))
    other = pretrain(make(tmp_path / "other", clock=short, seed=1))
    assert weights(one.run) != weights(other.run)


def test_layers_computed_again_change_no_bit(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    """Two micro-batches a step, so that the masks of the second must not move either."""
    recomputing = []
    with watching(lambda trainer, *_: recomputing.append(trainer.model.shared.recompute)):
        again = pretrain(make(tmp_path / "run", recompute=True))
    assert recomputing == [True] * STEPS
    assert weights(again.run) == weights(unbroken.run)


def test_the_run_reads_the_batches_of_its_seed_and_phases(make: Make, tmp_path: Path) -> None:
    read: dict[int, list[PretrainingBatch]] = {}
    config = make(tmp_path / "run", seed=5, clock=ClockOptions(steps=4))  # the second phase: step 3
    with watching(lambda _, step, micro_batches, __: read.update({step: micro_batches})):
        pretrain(config)
    store = TokenStore.open(config.corpus)
    for number, step in enumerate((0, 3)):
        phase, options = config.phases[number], {"pairs": config.pairs, "masking": config.masking}
        source = PhaseBatches(store, phase, **options, seed=5, number=number)  # type: ignore[arg-type]
        for ours, expected in zip(read[step], source.micro_batches(0), strict=True):
            assert torch.equal(ours.inputs.tokens, expected.inputs.tokens)


def test_checkpoints_are_minutes_apart(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock on which a minute passes at each look: one a step, and one after each save."""
    minutes, saved = count(step=60), []
    clock = SimpleNamespace(monotonic=lambda: next(minutes), perf_counter=time.perf_counter)
    monkeypatch.setattr(fit, "time", clock)
    monkeypatch.setattr(Checkpoint, "save", lambda _, step: saved.append(step))
    pretrain(
        make(
            tmp_path / "run",
            clock=ClockOptions(steps=8),
            checkpoint=CheckpointOptions(minutes=2.5),
        )
    )
    assert saved == [3, 6, 8]


@pytest.mark.parametrize("kind", ["order", "full", "single"])
def test_other_kinds_of_sequences(
    make: Make, tmp_path: Path, kind: PairKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    config = make(
        tmp_path / "run",
        pairs=PairOptions(kind=kind),
        masking=MaskOptions(kind="words", duplicates=2),
        clock=ClockOptions(steps=6),
        checkpoint=ALWAYS,
    )
    with after_step(3, stop), pytest.raises(StoppedError):
        pretrain(config)
    result = pretrain(config)
    whole = pretrain(replace(config, run=str(tmp_path / "whole")))
    assert weights(result.run) == weights(whole.run)
    assert records(result.run) == records(whole.run)
    names = {name for record in records(result.run) for name in record}
    second = "sop_loss" if kind == "order" else None
    assert {n for n in names if n.endswith("_loss") and "heldout" not in n} == {
        "mlm_loss",
        *([second] if second else []),
    }
    assert result.heldout is not None
    assert (result.heldout.second is not None) == (kind == "order")
    shown: dict[str, Any] = {}
    monkeypatch.setattr(recording, "plot_panels", lambda _, panels: shown.update(panels))
    draw_curves(result.run, MaskedLM(kind).terms)
    expected = ["masked-LM loss (nats)", "masked-LM accuracy"]
    assert list(shown) == expected + ["sentence-order accuracy"] * (kind == "order")
    # The folder is one of a model with those heads, and no untrained one.
    loaded = load_model(result.model)
    assert network_of(loaded).masked_lm is not None
    assert (network_of(loaded).next_sentence is not None) == (kind == "order")
    assert (loaded.about["pairs"], loaded.about["masking"]) == (kind, "words")
    named = json.loads((result.model / "config.json").read_text())["architectures"]
    assert named == ["BertForPreTraining" if kind == "order" else "BertForMaskedLM"]
    _, report = getattr(transformers, named[0]).from_pretrained(
        result.model, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    said = evaluate_pretraining(loaded, config.corpus, sequences=20)
    assert (" sequences, " in said) == (kind != "order")
    if kind != "order":  # what the folder records cannot give it a head
        again = load_model(result.model)
        again.about = {**loaded.about, "pairs": "next"}
        scores = evaluate_pretraining(again, config.corpus, sequences=20)
        assert scores == said or kind == "full"
    assert ("; sentence-order accuracy " in said) == (kind == "order")
    if kind == "order":
        accuracy = float(said.partition("sentence-order accuracy ")[2].partition("%")[0]) / 100
        count = int(said.partition(" pairs, ")[0].rpartition(" ")[2])
        error = math.sqrt(accuracy * (1 - accuracy) / count)
        assert f"(standard error {error:.2%})" in said


def test_left_to_right(make: Make, tmp_path: Path) -> None:
    ltr = {"pairs": PairOptions(kind="single"), "objective": "left_to_right"}
    result = pretrain(make(tmp_path / "run", clock=ClockOptions(steps=3), **ltr))
    assert result.heldout is not None
    assert result.heldout.sentence().startswith("held-out left-to-right")
    said = evaluate_pretraining(load_model(result.model), make(result.run).corpus, sequences=20)
    assert "held-out left-to-right perplexity" in said
    assert "masked" not in said


def test_start_without_pairs_drops_their_head(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    config = make(
        tmp_path / "run",
        start=str(unbroken.model),
        pairs=PairOptions(kind="full"),
        clock=ClockOptions(steps=1),
    )
    assert load_network(pretrain(config).model).next_sentence is None


def test_a_record_is_the_mean_of_its_steps(make: Make, tmp_path: Path) -> None:
    steps = {"clock": ClockOptions(steps=7)}
    single = pretrain(make(tmp_path / "single", **steps, log_every=1))
    several = pretrain(make(tmp_path / "several", **steps, log_every=3))

    def losses(run: Path) -> dict[int, list[float]]:
        names = ("loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
        kept = [r for r in read_metrics(run / METRICS) if "mlm_loss" in r]
        return {r["step"]: [r[name] for name in names] for r in kept}

    one, three = losses(single.run), losses(several.run)
    assert list(one) == [1, 2, 3, 4, 5, 6, 7]
    assert list(three) == [3, 6, 7]
    for last, first in ((3, 1), (6, 4), (7, 7)):
        mean = np.mean([one[step] for step in range(first, last + 1)], axis=0)
        assert three[last] == pytest.approx(mean.tolist(), rel=1e-4)


def test_speed_is_real_tokens_in_the_time_of_training() -> None:
    store = memory_store(random_documents(np.random.default_rng(0), 30))
    batches = pair_batches(store, batch=10, micro_batch=2).micro_batches(0)
    tokens = sum(int(batch.inputs.bounds[-1]) for batch in batches)
    assert tokens < sum(len(batch.inputs.tokens) for batch in batches), "there is padding"
    records, clock = Records(small_model(), MaskedLM(), torch.float32, Ranks()), fit.Clock()
    for _ in range(2):
        clock.seconds += 3
        clock.waited += 1
        stats: Any = {"mlm_loss": torch.tensor(2.0)}
        step: Any = SimpleNamespace(stats=stats, batches=batches, clock=clock)
        records.add(step)
    record = records.close(step)
    assert record["tokens_per_second"] == pytest.approx(2 * tokens / 6)
    assert record["loader_wait"] == pytest.approx(2 / 6)


def test_the_clock_stands_still_while_the_body_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(fit, "time", SimpleNamespace(perf_counter=lambda: now))
    clock = fit.Clock()
    for waiting in (True, False):
        now += 100
        with clock.running(waiting=waiting):
            now += 3
    assert (clock.seconds, clock.waited) == (6, 3)


def test_a_clock_in_tokens(make: Make, tmp_path: Path) -> None:
    config = make(tmp_path / "run", clock=ClockOptions(tokens=4000))
    store, tokens = TokenStore.open(config.corpus), []
    for number, phase in enumerate(config.phases):
        options = {"pairs": config.pairs, "masking": config.masking, "number": number}
        source = PhaseBatches(store, phase, **options, seed=config.seed)  # type: ignore[arg-type]
        tokens.append(phase.batch * clock.sequence_tokens(source))
    assert pretrain(config).steps == int(4000 / (0.75 * tokens[0] + 0.25 * tokens[1]))
    with pytest.raises(ConfigError, match="less than one step"):
        pretrain(make(tmp_path / "short", clock=ClockOptions(tokens=10)))
    assert not (tmp_path / "short").exists()


# A step takes half a second here, and an evaluation 20 / 16 / 3 of that: 0.21 seconds.
@pytest.mark.parametrize(("every", "steps"), [(20, 117), (0, 111)])
def test_a_clock_in_minutes_is_decided_once(
    every: int, steps: int, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(
        tmp_path / "run",
        clock=ClockOptions(minutes=1.0),
        checkpoint=ALWAYS,
        evaluate=EvaluateOptions(every=every, sequences=20),
    )
    monkeypatch.setattr(clock, "_probe", lambda *_: 0.5)
    with after_step(1, stop), pytest.raises(StoppedError):
        pretrain(config)
    assert read_run(tmp_path / "run")["resolved"]["steps"] == steps
    monkeypatch.setattr(clock, "_probe", lambda *_: pytest.fail("probed twice"))
    with after_step(3, stop), pytest.raises(StoppedError):
        pretrain(config)


def test_time_is_kept_for_the_sequences_that_are_held_out(
    make: Make, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_probe", lambda *_: 0.05)
    store, steps = TokenStore.open(tiny_corpus), {}
    for asked in (20, 1000, 100_000):
        evaluate = EvaluateOptions(sequences=asked)
        config = make(tmp_path / str(asked), clock=ClockOptions(minutes=1.0), evaluate=evaluate)
        batches = heldout_batches(config, store, print)
        assert count_heldout(config, store) == sum(len(b.inputs.bounds) - 1 for b in batches)
        with after_step(1, stop), pytest.raises(StoppedError):
            pretrain(config)
        steps[asked] = read_run(tmp_path / str(asked))["resolved"]["steps"]
    assert steps[20] > steps[1000] == steps[100_000], "the corpus holds out fewer than 1,000"


@pytest.mark.parametrize(
    ("seconds", "count", "left"),
    [
        (0.0, 20, 1.0),
        (0.1, 20, 57.9 / 60),
        (3.0, 3, 0.8),
        (4.0, 2, 0.8),
        (13.0, 1, 34 / 60),
        (60.0, 1, 0.5),
    ],
)
def test_evaluations_take_a_fifth_of_the_minutes_or_there_is_one(
    seconds: float, count: int, left: float
) -> None:
    minute = ClockOptions(minutes=1.0)
    training, _, evaluations = clock.reserve_evaluations(minute, [1.0], 0, seconds)
    assert evaluations == count
    assert training.minutes == pytest.approx(left)


def test_a_step_has_many_micro_batches_and_one_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks when it is read: a micro-batch takes one tick, and so does an update."""
    ticks = count()
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    store = memory_store([[9, 9]] * 30)  # of which each two are a full sequence
    pairs = PairOptions(kind="full")
    source = pair_batches(store, length=22, batch=10, micro_batch=2, pairs=pairs)
    trainer: Trainer[PretrainingBatch] = Trainer(
        small_model(), OptimizerOptions(), total_steps=9, seed=0, dtype=torch.float32
    )
    mean = clock.sequence_tokens(source)
    assert clock._probe(trainer, MaskedLM(), source, mean) == 5 + 1


def test_the_probe_leaves_no_trace(make: Make, tmp_path: Path) -> None:
    # The same steps by minutes and by count: the probe must not have trained or drawn anything.
    timed = pretrain(make(tmp_path / "timed", clock=ClockOptions(minutes=0.005)))
    counted = pretrain(make(tmp_path / "counted", clock=ClockOptions(steps=timed.steps)))
    assert weights(timed.run) == weights(counted.run)


def test_missing_things_are_named(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--corpus"):
        pretrain(make(tmp_path / "run", corpus=""))
    with pytest.raises(ConfigError, match="--run"):
        pretrain(replace(make(tmp_path), run=""))
    with pytest.raises(ConfigError, match=r"give --minutes, --steps or --tokens"):
        pretrain(make(tmp_path / "run", clock=ClockOptions()))
    assert not (tmp_path / "run").exists()


@pytest.fixture
def build(
    tiny_documents: list[list[str]], tiny_tokenizer_folder: Path, tmp_path: Path
) -> Callable[..., Path]:
    """Build a corpus of some of the tiny documents."""

    def corpus(name: str, first: int, last: int, **options: Any) -> Path:
        text = tmp_path / f"{name}.txt"
        text.write_text("\n\n".join("\n".join(d) for d in tiny_documents[first:last]) + "\n")
        options.setdefault("tokenizer", str(tiny_tokenizer_folder))
        out = tmp_path / name
        build_corpus(CorpusConfig(files=(str(text),), out=str(out), **options))
        return out

    return corpus


def test_without_a_held_out_part_it_says_so(
    make: Make,
    build: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    all_of_it = build("all", 0, 30, heldout=0.0)
    config = make(tmp_path / "run", corpus=str(all_of_it), clock=ClockOptions(steps=2))
    assert pretrain(config).heldout is None
    assert "no held-out evaluation: no document in the held-out part" in capsys.readouterr().out
    # Another corpus can be measured on instead, all of it if it has no held-out part.
    measured = replace(
        config,
        run=str(tmp_path / "measured"),
        evaluate=EvaluateOptions(corpus=str(build("second", 30, 60, heldout=0.0)), sequences=5),
    )
    heldout = pretrain(measured).heldout
    assert heldout is not None
    assert heldout.sequences == 5


def test_measuring_with_another_vocabulary_is_refused(
    make: Make, build: Callable[..., Path], tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    Tokenizer.from_pieces([*tiny_tokenizer.pieces, "extra"]).save(tmp_path / "vocabulary")
    other = build("other", 0, 20, tokenizer=str(tmp_path / "vocabulary"))
    with pytest.raises(StoreError, match="another vocabulary"):
        pretrain(make(tmp_path / "run", evaluate=EvaluateOptions(corpus=str(other))))
