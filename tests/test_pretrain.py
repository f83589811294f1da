"""Pre-training end to end: it learns, is continued exactly, and refuses what it should."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bothways.config import (
    CheckpointOptions,
    ClockOptions,
    CorpusConfig,
    EvaluateOptions,
    MaskOptions,
    ModelConfig,
    OptimizerOptions,
    PairKind,
    PairOptions,
    Phase,
    PretrainConfig,
    SizeOptions,
)
from bothways.corpus.build import build_corpus
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, DiskError, ModelError, RunError, StoreError
from bothways.model.folder import load_model, save_model
from bothways.model.heads import Bert
from bothways.model.weight_files import WEIGHTS
from bothways.pretraining import clock
from bothways.pretraining import record as recording
from bothways.pretraining import run as module
from bothways.pretraining.evaluation import evaluation_batches
from bothways.pretraining.record import draw_curves, log_window
from bothways.pretraining.run import PretrainResult, pretrain
from bothways.pretraining.start import starting_model
from bothways.tokenization import Tokenizer
from bothways.training.engine import Trainer
from bothways.training.monitor import METRICS, Monitor, read_metrics
from bothways.training.runfolder import LOCK, read_run
from bothways.verbs import evaluate_pretraining
from pretraining_examples import memory_store, small_disk

Make = Callable[..., PretrainConfig]
STEPS = 30
ALWAYS = CheckpointOptions(minutes=1e-9)  # after every step
NEVER = CheckpointOptions(minutes=1e9)


@pytest.fixture(scope="module")
def make(tiny_corpus: Path) -> Make:
    """A recipe of two phases and two micro-batches a step, seconds long."""

    def config(run: Path, **changes: Any) -> PretrainConfig:
        base = PretrainConfig(
            corpus=str(tiny_corpus),
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


@pytest.fixture(scope="module")
def unbroken(make: Make, tmp_path_factory: pytest.TempPathFactory) -> PretrainResult:
    """A run that was never stopped. Read only."""
    return pretrain(make(tmp_path_factory.mktemp("unbroken") / "run"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, unbroken: PretrainResult) -> None:
    """Plots and flushes take longer than these runs; ``unbroken`` has had them by now."""
    assert (unbroken.run / "curves.png").exists()
    monkeypatch.setattr(module, "draw_curves", lambda _: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def weights(run: Path) -> bytes:
    return (run / "model" / WEIGHTS).read_bytes()


def records(run: Path) -> list[dict[str, Any]]:
    """What was recorded, but for the speed."""
    found = read_metrics(run / METRICS)
    speed = ("tokens_per_second", "loader_wait")
    return [{k: v for k, v in r.items() if k not in speed} for r in found]


@contextlib.contextmanager
def after_step(number: int, action: Callable[[], None]) -> Iterator[None]:
    """Do something when the step of this number (from 0) has been computed."""
    step = Trainer.step

    def watched(self: Any, now: int, *args: Any) -> dict[str, float]:
        stats = step(self, now, *args)
        if now == number:
            action()
        return stats

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", watched)
        yield


class StoppedError(Exception):
    """Stands for whatever ends a process."""


def stop() -> None:
    raise StoppedError


# ------------------------------------------------------------------------------------- the result


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


def test_what_is_in_the_run_folder(unbroken: PretrainResult) -> None:
    names = {p.name for p in unbroken.run.iterdir()}
    assert names - {LOCK} == {
        "run.json",
        METRICS,
        "checkpoints",
        "curves.png",
        "model",
        "tensorboard",
    }
    assert (unbroken.run / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert [p.name for p in (unbroken.run / "checkpoints").iterdir()] == [f"step-{STEPS}"]
    assert any((unbroken.run / "tensorboard").iterdir())
    record = read_run(unbroken.run)
    assert record["resolved"] == {
        "device": "cpu",
        "precision": "fp32",
        "reason": "fp32: requested",
        "kernels": "fast",
        "steps": STEPS,
        "threads": 1,
        "processes": 1,
    }


def test_the_model_is_the_one_that_was_measured(unbroken: PretrainResult, make: Make) -> None:
    loaded = load_model(unbroken.model)
    assert loaded.model.masked_lm is not None
    assert loaded.model.next_sentence is not None
    assert loaded.about["steps"] == STEPS
    config = make(unbroken.run)
    store = TokenStore.open(config.corpus, "heldout")
    batches = evaluation_batches(store, 24, 20, config, micro_batch=8)
    assert [b.inputs.sequences for b in batches] == [8, 8, 4]
    assert module.measure(loaded.model, batches, torch.float32) == unbroken.heldout


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
    ids = torch.tensor([encoded.tokens])
    with torch.no_grad():
        hidden = loaded.model.encoder.forward_padded(ids)
        ours = loaded.model.masked_lm_logits(hidden[0][torch.arange(ids.shape[1])])
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
    assert weights(pretrain(make(tmp_path / "run", recompute=True)).run) == weights(unbroken.run)


# ----------------------------------------------------------------------- other kinds of sequences


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
    assert (result.heldout.pairs is not None) == (kind == "order")
    shown: dict[str, Any] = {}
    monkeypatch.setattr(recording, "plot_panels", lambda _, panels: shown.update(panels))
    draw_curves(result.run)
    expected = ["masked-LM loss (nats)", "masked-LM accuracy"]
    assert list(shown) == expected + ["sentence-order accuracy"] * (kind == "order")
    # The folder is one of a model with those heads, and no untrained one.
    loaded = load_model(result.model)
    assert loaded.model.masked_lm is not None
    assert (loaded.model.next_sentence is not None) == (kind == "order")
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
    assert ("; sentence-order accuracy " in said) == (kind == "order")


def test_documents_of_one_sentence(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = memory_store([[1 + n % 7] for n in range(40)])
    monkeypatch.setattr(module, "open_corpus", lambda _: lone)
    monkeypatch.setattr(module, "heldout_batches", lambda *_: [])
    single = {"pairs": PairOptions(kind="single"), "clock": ClockOptions(steps=2)}
    assert pretrain(make(tmp_path / "run", **single)).steps == 2
    with pytest.raises(StoreError, match=r"--pairs\.kind single"):
        pretrain(make(tmp_path / "other", pairs=PairOptions(kind="order")))


def test_left_to_right(make: Make, tmp_path: Path) -> None:
    ltr = {"pairs": PairOptions(kind="single"), "masking": MaskOptions(kind="left_to_right")}
    result = pretrain(make(tmp_path / "run", clock=ClockOptions(steps=3), **ltr))
    assert result.heldout is not None
    assert result.heldout.causal
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
    assert load_model(pretrain(config).model).model.next_sentence is None


@pytest.mark.parametrize(("share", "shown"), [(0.01, False), (0.2, True)])
def test_waiting_for_the_loader_is_shown_only_where_it_costs(
    share: float, shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Monitor(tmp_path, 1, "pretrain") as watch:
        log_window(watch, 1, {"loss": 2.0, "loader_wait": share})
    assert ("loader_wait" in capsys.readouterr().out) == shown
    assert read_metrics(tmp_path / METRICS) == [{"step": 1, "loss": 2.0, "loader_wait": share}]


# ------------------------------------------------------------------------------------- continuing


@pytest.mark.parametrize("number", [0, 21, 22, 29])
def test_continued_after_a_crash(
    unbroken: PretrainResult,
    make: Make,
    tmp_path: Path,
    number: int,
) -> None:
    config = make(tmp_path / "run", checkpoint=ALWAYS)
    with after_step(number, stop), pytest.raises(StoppedError):
        pretrain(config)
    result = pretrain(config)
    assert weights(result.run) == weights(unbroken.run)
    assert records(result.run) == records(unbroken.run), "no record is lost or twice there"
    assert result.heldout == unbroken.heldout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_saves_first(
    unbroken: PretrainResult,
    make: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    before = signal.getsignal(number)
    config = make(tmp_path / "run")
    with after_step(14, lambda: os.kill(os.getpid(), number)), pytest.raises(KeyboardInterrupt):
        pretrain(config)
    assert "interrupted after step 15" in capsys.readouterr().out
    assert signal.getsignal(number) == before
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-15"]
    result = pretrain(config)
    out = capsys.readouterr().out
    assert "continuing after step 15" in out
    assert "bits may differ" not in out
    assert weights(result.run) == weights(unbroken.run)
    assert records(result.run) == records(unbroken.run)


def test_a_second_interrupt_stops_at_once(make: Make, tmp_path: Path) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with after_step(3, twice), pytest.raises(KeyboardInterrupt):
        pretrain(make(tmp_path / "run"))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_second_sigterm_changes_nothing(make: Make, tmp_path: Path) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    with after_step(3, twice), pytest.raises(KeyboardInterrupt):
        pretrain(make(tmp_path / "run"))
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-4"]


def test_a_damaged_checkpoint_is_passed_over(
    unbroken: PretrainResult,
    make: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = make(tmp_path / "run", checkpoint=ALWAYS)
    with after_step(25, stop), pytest.raises(StoppedError):
        pretrain(config)
    with (tmp_path / "run" / "checkpoints" / "step-25" / WEIGHTS).open("r+b") as file:
        file.truncate(1000)
    result = pretrain(config)
    out = capsys.readouterr().out
    assert "skipping checkpoint step-25, which is damaged" in out
    assert "continuing after step 24" in out
    assert weights(result.run) == weights(unbroken.run)
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        (checkpoint / "training.json").write_text("{}")
    with pytest.raises(RunError, match="none of the 2 checkpoints is intact"):
        pretrain(config)


def test_a_finished_run_stays_as_it_is(
    unbroken: PretrainResult, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(unbroken.run, tmp_path / "run")
    monkeypatch.setattr(Trainer, "step", lambda *_: pytest.fail("trained again"))
    result = pretrain(make(folder))
    assert result.heldout == unbroken.heldout
    assert weights(folder) == weights(unbroken.run)
    assert records(folder) == records(unbroken.run)


def test_other_numerics_are_taken_said_and_recorded(
    unbroken: PretrainResult,
    make: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = make(tmp_path / "run")
    with (
        after_step(27, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        pytest.raises(KeyboardInterrupt),
    ):
        pretrain(config)
    result = pretrain(replace(config, precision="bf16", threads=2))
    out = " ".join(capsys.readouterr().out.split())
    assert "30 steps; bf16: requested; 2 threads" in out
    assert "bits may differ from step 29: threads: 1 -> 2" in out
    assert "bits may differ from step 29: precision: fp32 -> bf16" in out
    (noted,) = read_run(result.run)["changes"]
    assert noted["from_step"] == 29
    assert sorted(noted["changes"]) == ["precision: fp32 -> bf16", "threads: 1 -> 2"]
    assert weights(result.run) != weights(unbroken.run), "bf16 was really used"


def test_numerics_changed_before_the_first_checkpoint_are_recorded(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make(tmp_path / "run", clock=ClockOptions(steps=3))
    with pytest.raises(StoppedError), after_step(1, stop):
        pretrain(config)
    result = pretrain(replace(config, threads=2))
    assert "bits may differ from step 1: threads: 1 -> 2" in " ".join(
        capsys.readouterr().out.split()
    )
    (noted,) = read_run(result.run)["changes"]
    assert noted == {**noted, "from_step": 1, "changes": ["threads: 1 -> 2"]}


def test_plain_kernels_give_other_dropout_masks_and_say_so(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    result = pretrain(replace(make(tmp_path / "run"), kernels="plain"))
    assert read_run(result.run)["resolved"]["kernels"] == "plain"
    assert weights(result.run) != weights(unbroken.run), "the plain forms were really used"


def test_a_full_disk_ends_the_run_and_loses_nothing(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 2000) as disk:
        config = make(disk / "run", checkpoint=ALWAYS)

        def fill() -> None:
            (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - 40_000))

        with (
            after_step(20, fill),
            pytest.raises(DiskError, match=r"No space left.*run the same command again"),
        ):
            pretrain(config)
        (disk / "ballast").unlink()
        result = pretrain(config)
        assert weights(result.run) == weights(unbroken.run)
        assert records(result.run) == records(unbroken.run)


# ------------------------------------------------------------------------------ clocks and options


def test_a_clock_in_tokens(make: Make, tmp_path: Path) -> None:
    result = pretrain(make(tmp_path / "run", clock=ClockOptions(tokens=4000)))
    # 16 pairs of up to 24 tokens three times in four, else 8 of up to 32.
    assert int(4000 / (0.75 * 16 * 24 + 0.25 * 8 * 32)) <= result.steps <= 24
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
    with pytest.raises(ConfigError, match=r"--clock\.steps"):
        pretrain(make(tmp_path / "run", clock=ClockOptions()))
    assert not (tmp_path / "run").exists()


def test_another_recipe_is_refused(unbroken: PretrainResult, make: Make) -> None:
    with pytest.raises(RunError, match=r"optimizer\.lr: 0\.02 in the folder, 0\.5 requested"):
        pretrain(make(unbroken.run, optimizer=OptimizerOptions(lr=0.5, warmup=0.1)))


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


def test_another_corpus_is_refused(
    unbroken: PretrainResult, make: Make, build: Callable[..., Path]
) -> None:
    other = build("other", 0, 30, heldout=0.2)
    with pytest.raises(RunError, match=r"input\.corpus: .* in the folder, .* requested"):
        pretrain(make(unbroken.run, corpus=str(other)))


def test_one_document_is_refused_before_anything_is_written(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open_corpus", lambda _: memory_store([[4, 5, 6]]))
    with pytest.raises(StoreError, match="at least 2"):
        pretrain(make(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


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


# ----------------------------------------------------------------------------------------- --start


def starting(config: PretrainConfig) -> Bert:
    return starting_model(config, TokenStore.open(config.corpus))


def test_starting_from_a_model_goes_on_from_its_weights(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    config = make(tmp_path / "run", start=str(unbroken.model), clock=ClockOptions(steps=3))
    state, theirs = starting(config).state_dict(), load_model(unbroken.model).model.state_dict()
    assert all(torch.equal(state[name], theirs[name]) for name in theirs)
    result = pretrain(config)
    first = records(result.run)[0]
    assert unbroken.heldout is not None
    assert first["heldout_mlm_loss"] == pytest.approx(unbroken.heldout.mlm_loss)
    assert read_run(result.run)["recipe"]["input.start"]
    assert weights(result.run) != weights(unbroken.run)


def test_heads_that_are_missing_are_drawn(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    loaded = load_model(unbroken.model)
    loaded.model.masked_lm = loaded.model.next_sentence = None
    save_model(tmp_path / "bare", loaded.model, loaded.tokenizer)
    config = make(tmp_path / "run", start=str(tmp_path / "bare"), clock=ClockOptions(steps=2))
    model, other = starting(config), starting(replace(config, seed=1))
    assert model.masked_lm is not None
    assert model.next_sentence is not None
    assert other.masked_lm is not None
    dense, output = model.masked_lm.dense.weight, model.next_sentence.output.weight
    assert not torch.equal(dense[:2], output), "the two heads have numbers of their own"
    assert not torch.equal(dense, other.masked_lm.dense.weight)
    fresh = Bert(model.config, pretraining=True, seed=0)
    assert fresh.masked_lm is not None
    assert torch.equal(dense, fresh.masked_lm.dense.weight), "drawn as for a new model"
    assert (pretrain(config).model / WEIGHTS).exists()


@pytest.mark.parametrize("head", [{"classes": 3}, {"tags": 3}, {"spans": True}])
def test_a_task_head_is_left_behind(
    make: Make, tmp_path: Path, tiny_tokenizer: Tokenizer, head: dict[str, Any]
) -> None:
    shape = ModelConfig(tiny_tokenizer.vocab_size, 1, 16, 2, 32, positions=64)
    save_model(tmp_path / "tuned", Bert(shape, **head), tiny_tokenizer)
    config = make(tmp_path / "run", start=str(tmp_path / "tuned"), clock=ClockOptions(steps=1))
    model = load_model(pretrain(config).model).model
    assert model.task_head is None
    assert model.masked_lm is not None


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, (0.3, 0.2)),
        ({"dropout": 0.0}, (0.0, 0.2)),
        ({"dropout": 0.0, "attention_dropout": 0.1}, (0.0, 0.1)),
    ],
)
def test_the_dropout_of_a_start_is_its_own_or_that_of_the_options(
    given: dict[str, float],
    used: tuple[float, float],
    make: Make,
    tmp_path: Path,
    tiny_tokenizer: Tokenizer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = ModelConfig(tiny_tokenizer.vocab_size, 1, 16, 2, 32, positions=64)
    shape = replace(shape, dropout=0.3, attention_dropout=0.2)
    save_model(tmp_path / "start", Bert(shape, pretraining=True), tiny_tokenizer)
    config = make(
        tmp_path / "run",
        start=str(tmp_path / "start"),
        model=SizeOptions(**given),
        clock=ClockOptions(steps=1),
    )
    layer = starting(config).encoder.layers[0]
    assert (layer.attention._probability, layer._probability) == used[::-1]
    result = pretrain(config)
    theirs = load_model(result.model).model.config
    assert (theirs.dropout, theirs.attention_dropout) == used
    said = f"dropout {used[0]:g}, of attention weights {used[1]:g}"
    assert said in capsys.readouterr().out
    recipe = read_run(result.run)["recipe"]
    assert (recipe["model.dropout"], recipe["model.attention_dropout"]) == used
    assert not {"model.size", "model.layers", "model.init"} & recipe.keys(), "they had no effect"
    pretrain(replace(config, model=replace(config.model, size="base")))  # the same run


def test_starting_from_an_older_weights_file(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    old = shutil.copytree(unbroken.model, tmp_path / "old")
    torch.save(load_file(old / WEIGHTS), old / "pytorch_model.bin")
    (old / WEIGHTS).unlink()
    result = pretrain(make(tmp_path / "run", start=str(old), clock=ClockOptions(steps=1)))
    assert read_run(result.run)["recipe"]["input.start"]


def test_starting_from_other_weights_is_another_run(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    model = shutil.copytree(unbroken.model, tmp_path / "model")
    config = make(tmp_path / "run", start=str(model), clock=ClockOptions(steps=1))
    pretrain(config)
    shutil.copy(unbroken.run / "checkpoints" / f"step-{STEPS}" / "config.json", model)
    pretrain(config)  # nothing that counts has changed
    loaded = load_model(model)
    save_model(model, Bert(loaded.model.config, pretraining=True, seed=8), loaded.tokenizer)
    with pytest.raises(RunError, match=r"input\.start"):
        pretrain(config)


def test_starting_from_what_does_not_fit_is_refused(
    make: Make, tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    def saved(name: str, tokenizer: Tokenizer, positions: int) -> str:
        shape = ModelConfig(tokenizer.vocab_size, 1, 16, 2, 32, positions=positions)
        save_model(tmp_path / name, Bert(shape), tokenizer)
        return str(tmp_path / name)

    other = Tokenizer.from_pieces([*tiny_tokenizer.pieces, "extra"])
    with pytest.raises(StoreError, match="built with another vocabulary"):
        pretrain(make(tmp_path / "run", start=saved("other", other, 64)))
    with pytest.raises(ConfigError, match="length 32 is over the 30 positions"):
        pretrain(make(tmp_path / "run", start=saved("short", tiny_tokenizer, 30)))
    with pytest.raises(ModelError, match="does not exist"):
        pretrain(make(tmp_path / "run", start=str(tmp_path / "nowhere")))
    assert not (tmp_path / "run").exists()


def test_pairs_need_a_start_with_two_segments(
    make: Make, tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    shape = ModelConfig(tiny_tokenizer.vocab_size, 1, 16, 2, 32, positions=64, segments=1)
    save_model(tmp_path / "one", Bert(shape), tiny_tokenizer)
    config = make(tmp_path / "run", start=str(tmp_path / "one"), clock=ClockOptions(steps=1))
    with pytest.raises(ConfigError, match=r"one distinguishes no segments .*--pairs\.kind full or"):
        pretrain(config)
    assert not (tmp_path / "run").exists()
    assert pretrain(replace(config, pairs=PairOptions(kind="full"))).steps == 1


def test_a_task_head_is_dropped(make: Make, tmp_path: Path, tiny_tokenizer: Tokenizer) -> None:
    shape = ModelConfig(tiny_tokenizer.vocab_size, 1, 16, 2, 32, positions=64)
    save_model(tmp_path / "task", Bert(shape, classes=3), tiny_tokenizer)
    config = make(tmp_path / "run", start=str(tmp_path / "task"), clock=ClockOptions(steps=1))
    names = json.loads((pretrain(config).model / "config.json").read_text())
    assert names["architectures"] == ["BertForPreTraining"]


def test_there_are_no_curves_before_the_first_record(tmp_path: Path) -> None:
    """Ctrl-C, or a checkpoint, in a run without held-out text."""
    (tmp_path / "metrics.jsonl").touch()
    draw_curves(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
