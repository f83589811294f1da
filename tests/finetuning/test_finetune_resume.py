"""Fine-tuning that is continued: after an interruption, with more seeds, with other files."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import RunError
from bothways.finetuning import finetune as jobs
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig, RunSeeds
from bothways.model import device, inference
from bothways.tasks.task import Task
from bothways.training.options import SavingOptions
from bothways.training.trainer import Trainer
from finetuning_examples import (
    assert_same,
    start_model,
    weights,
    word_config,
    word_files,
    word_task,
)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return word_files(tmp_path_factory.mktemp("data"))


@pytest.fixture
def config(start: Path, data: Path, tmp_path: Path) -> FinetuneConfig:
    return word_config(start, data, tmp_path / "run")


def test_finished_seeds_are_kept_and_seeds_can_be_added(
    config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = finetune(config)
    trained = []
    train_seed = jobs.train_seed

    def watched(*args: object) -> object:
        trained.append(args[-1])
        return train_seed(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(jobs, "train_seed", watched)
    again = finetune(config)
    assert again == first
    assert again.table() == first.table()
    assert trained == []
    assert "seed 0: finished before" in capsys.readouterr().out
    more = finetune(dataclasses.replace(config, seeds=(0, 5)))
    assert trained == [RunSeeds(5)]
    assert more.seeds[0] == first.seeds[0]
    assert not math.isnan(more.std())
    capsys.readouterr()
    finetune(dataclasses.replace(config, seeds=(5,)))
    assert "not part of this result: seed-0; to include them" in capsys.readouterr().out


def test_files_to_measure_and_predict_may_be_added_and_changed(
    config: FinetuneConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No weight depends on them, so finished seeds are kept, and their models predict."""
    labelled, unlabelled = tmp_path / "labelled.tsv", tmp_path / "unlabelled.tsv"
    word_task(tmp_path, 30, 5, "labelled.tsv")
    word_task(tmp_path, 10, 6, "unlabelled.tsv")
    files = {"measure": (str(labelled),), "predict": (str(unlabelled),)}
    more = dataclasses.replace(config, task=dataclasses.replace(config.task, **files))
    less = dataclasses.replace(config, task=dataclasses.replace(config.task, test=None))
    whole = finetune(dataclasses.replace(more, run=str(tmp_path / "whole")))
    first = finetune(less)
    seed, expected = first.best.folder, whole.best.folder
    assert not (seed / "test_predictions.tsv").exists()

    monkeypatch.setattr(jobs, "train_seed", None)
    capsys.readouterr()
    assert finetune(more).best.further == whole.best.further
    shown = capsys.readouterr().out
    assert "seed 0: predicts test, labelled, unlabelled, added or changed" in shown
    for name in ("test", "labelled", "unlabelled"):
        file = f"{name}_predictions.tsv"
        assert (seed / file).read_bytes() == (expected / file).read_bytes()
    records = [json.loads((folder / "metrics.json").read_text()) for folder in (seed, expected)]
    assert {name for name in records[0] if records[0][name] != records[1][name]} <= {"seconds"}
    report = json.loads((Path(config.run) / "report.json").read_text())
    assert report["seeds"][0]["further"] == records[1]["further"]

    def times() -> dict[str, int]:
        # The model's card has the scores of the files that are asked for.
        return {p.name: p.stat().st_mtime_ns for p in seed.iterdir() if p.name != "model"}

    before = times()
    assert finetune(more).best.further == whole.best.further
    assert finetune(less).best.further == {}
    assert finetune(more).best.further == whole.best.further
    assert times() == before
    cards = [(folder / "model/README.md").read_text() for folder in (seed, expected)]
    assert cards[0].split("## Scores")[1] == cards[1].split("## Scores")[1]
    assert "| labelled |" in cards[0]  # of one seed
    word_task(tmp_path, 20, 7, "labelled.tsv")
    capsys.readouterr()
    assert finetune(more).best.further != whole.best.further
    assert "seed 0: predicts labelled, added" in capsys.readouterr().out
    # What was removed is written again.
    (seed / "test_predictions.tsv").unlink()
    finetune(more)
    assert "seed 0: predicts test, " in capsys.readouterr().out
    assert (seed / "test_predictions.tsv").read_bytes() == (
        expected / "test_predictions.tsv"
    ).read_bytes()
    # A file that is no longer measured is predicted once, and has no scores any more.
    only = {"measure": (), "predict": (str(labelled), str(unlabelled))}
    predicting = dataclasses.replace(config, task=dataclasses.replace(config.task, **only))
    capsys.readouterr()
    finetune(predicting)
    assert "seed 0: predicts labelled, added" in capsys.readouterr().out
    finetune(predicting)
    assert "predicts" not in capsys.readouterr().out
    assert "labelled" not in json.loads((seed / "metrics.json").read_text())["further"]
    finetune(more)
    shutil.rmtree(first.best.model)
    assert finetune(more).scores == first.scores, "nothing to predict"
    word_task(tmp_path, 20, 8, "labelled.tsv")
    with pytest.raises(RunError, match="model is missing, and labelled cannot be predicted"):
        finetune(more)


def test_predictions_of_another_file_do_not_stay_for_an_earlier_one(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interruption between writing predictions and recording whose they are."""

    def predicting(day: str) -> FinetuneConfig:
        files = tuple(str(tmp_path / day / name) for name in ("one.tsv", "two.tsv"))
        return dataclasses.replace(config, task=dataclasses.replace(config.task, predict=files))

    for number, day in enumerate(("monday", "tuesday")):
        (tmp_path / day).mkdir()
        word_task(tmp_path / day, 10, number, "one.tsv")
        word_task(tmp_path / day, 12, number + 5, "two.tsv")
    seed = finetune(predicting("monday")).best.folder
    expected = (seed / "one_predictions.tsv").read_bytes()

    def interrupted(self: Any, path: Path, *_: Any) -> None:
        if path.name == "two_predictions.tsv":
            raise KeyboardInterrupt
        write(self, path, *_)

    write = Task.write
    with monkeypatch.context() as patch:
        patch.setattr(Task, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            finetune(predicting("tuesday"))
    assert (seed / "one_predictions.tsv").read_bytes() != expected
    finetune(predicting("monday"))
    assert (seed / "one_predictions.tsv").read_bytes() == expected


@pytest.mark.parametrize("moment", ["step", "save", "scores"])
def test_an_interrupted_seed_ends_the_same(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    finetune(dataclasses.replace(config, run=str(tmp_path / "unbroken")))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    place = {
        "step": (Trainer, "step"),
        "save": (jobs, "save_model"),
        "scores": (Task, "write"),
    }[moment]
    with monkeypatch.context() as patch:
        patch.setattr(*place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            finetune(config)
    assert not (Path(config.run) / "seed-0" / "metrics.json").exists()
    finetune(config)
    assert_same(weights(config.run), weights(tmp_path / "unbroken"))
    names = [
        {p.relative_to(root).as_posix() for p in root.rglob("*")}
        for root in (Path(config.run), tmp_path / "unbroken")
    ]
    assert names[0] == names[1]


def test_a_signal_lets_it_finish_and_save_a_step(
    config: FinetuneConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The 2nd step of 4, and then the last one, after which dev is still to be measured."""
    config, step = dataclasses.replace(config, checkpoint=SavingOptions(60.0)), Trainer.step
    finetune(dataclasses.replace(config, run=str(tmp_path / "unbroken")))
    handler = signal.getsignal(signal.SIGTERM)
    for number in (1, 3):

        def signalled(self: Any, now: int, *args: Any, at: int = number) -> Any:
            if now == at:
                os.kill(os.getpid(), signal.SIGTERM)
            return step(self, now, *args)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", signalled)
            with pytest.raises(KeyboardInterrupt):
                finetune(config)
        assert signal.getsignal(signal.SIGTERM) is handler
        out = capsys.readouterr().out
        assert f"interrupted after step {number + 1}; the state is saved in " in out
    finetune(config)
    assert "continuing after step 4 of 4" in capsys.readouterr().out
    assert_same(weights(config.run), weights(tmp_path / "unbroken"))


@pytest.mark.parametrize("rounds", [True, False])
def test_a_timer_does_not_change_bits(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: bool
) -> None:
    """The same command, when another program is busy: what was measured first holds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runs = [tmp_path / "first", tmp_path / "second"]
    for run, other in zip(runs, (rounds, not rounds), strict=True):
        seconds = [1.0, 0.1 if other else 9.0]
        for place in (device, inference):
            monkeypatch.setattr(place, "least_seconds", lambda *_, own=seconds: own)
        inference.onednn_pays.cache_clear()
        finetune(dataclasses.replace(config, precision="auto", run=str(run)))
    inference.onednn_pays.cache_clear()
    assert_same(weights(runs[0]), weights(runs[1]))
    records = [json.loads((run / "run.json").read_text())["resolved"] for run in runs]
    assert records[0] == records[1]
    assert records[0]["precision"] == ("bf16" if rounds else "fp32")
    assert records[0]["transposed_gradients"] is rounds
    for file in ("dev_predictions.tsv", "test_predictions.tsv"):
        one, two = ((run / "seed-0" / file).read_bytes() for run in runs)
        assert one == two


def test_a_damaged_record_is_no_finished_seed(
    config: FinetuneConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    first = finetune(config)
    path = Path(config.run) / "seed-0" / "metrics.json"
    path.write_text(path.read_text()[:50])
    capsys.readouterr()
    assert finetune(config).scores == first.scores
    shown = capsys.readouterr().out
    assert f"{path} is damaged (" in shown
    assert "seed 0 is trained again" in shown


def test_a_record_that_cannot_be_read_is_not_trained_over(
    config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    finetune(config)
    path = Path(config.run) / "seed-0" / "metrics.json"
    before = (path.parent / "model" / "model.safetensors").read_bytes()
    read_text = Path.read_text

    def failing(self: Path, *args: Any, **options: Any) -> str:
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read_text(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", failing)
        with pytest.raises(RunError, match=r"metrics.json cannot be read \(Permission denied\)"):
            finetune(config)
    assert (path.parent / "model" / "model.safetensors").read_bytes() == before


def test_a_checkpoint_that_cannot_be_read_is_kept(
    config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = dataclasses.replace(config, checkpoint=SavingOptions(0.0))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "save_model", interrupt)
        with pytest.raises(KeyboardInterrupt):
            finetune(always)
    kept = next((Path(config.run) / "seed-0" / "checkpoints").iterdir())
    before = {path.name: path.read_bytes() for path in kept.iterdir()}

    def failing(_: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("bothways.training.checkpoint.sha256", failing)
        with pytest.raises(RunError, match=r"cannot be read \(Input/output error\)"):
            finetune(always)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
