"""A run of fine-tuning that is interrupted goes on from its checkpoint, and ends the same."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bothways.config.fields import to_dict
from bothways.errors import DiskError
from bothways.finetuning import finetune as epochs
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.training import checkpoint, fit
from bothways.training.checkpoint import CHECKPOINTS as FOLDER
from bothways.training.checkpoint import Checkpoint
from bothways.training.options import SavingOptions
from bothways.training.trainer import Trainer
from finetuning_examples import FAST, start_model, word_config, word_files

STEPS, EPOCHS = 12, 3  # of an epoch, and how many


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    start = start_model(tmp_path_factory.mktemp("start"))
    data = word_files(tmp_path_factory.mktemp("data"))
    config = word_config(start, data, tmp_path_factory.mktemp("run") / "unbroken")
    return dataclasses.replace(config, epochs=EPOCHS, batch_size=16, checkpoint=SavingOptions(0.0))


@pytest.fixture
def config(base: FinetuneConfig, tmp_path: Path) -> FinetuneConfig:
    return dataclasses.replace(base, run=str(tmp_path / "run"))


@pytest.fixture(scope="module")
def unbroken(base: FinetuneConfig) -> dict[str, Any]:
    finetune(base)
    return contents(base)


def test_a_checkpoint_is_due_some_minutes_after_the_last(
    config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes pass with steps alone; an epoch ends with the 12th."""
    now, saved, step = 1000.0, [], Trainer.step

    def slow(*args: Any) -> Any:
        nonlocal now
        now += 60
        return step(*args)

    monkeypatch.setattr(
        fit, "time", SimpleNamespace(monotonic=lambda: now, perf_counter=lambda: now)
    )
    monkeypatch.setattr(Trainer, "step", slow)
    monkeypatch.setattr(Checkpoint, "save", lambda _, step: saved.append(step))
    finetune(dataclasses.replace(config, epochs=1, checkpoint=SavingOptions(2.5)))
    assert saved == [3, 6, 9, 12]


def test_a_finished_seed_keeps_no_checkpoint(config: FinetuneConfig) -> None:
    """Its process was killed after the scores were written."""
    finetune(config)
    left = Path(config.run) / "seed-0" / FOLDER
    (left / "step-3").mkdir(parents=True)
    (left / "step-3" / "state").write_text("")
    finetune(config)
    assert not left.exists()


def contents(config: FinetuneConfig) -> dict[str, Any]:
    """All that a run leaves, but for times."""
    folder = Path(config.run) / "seed-0"
    found: dict[str, Any] = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    scores = json.loads(found.pop("metrics.json"))
    assert scores.pop("seconds") > 0
    found["scores"] = scores
    return found


def interrupted(config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C in the step that follows so many."""
    steps, step = [], Trainer.step

    def counted(*args: Any) -> Any:
        if len(steps) == after:
            raise KeyboardInterrupt
        steps.append(args[1])
        return step(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", counted)
        with pytest.raises(KeyboardInterrupt):
            finetune(config)


def steps_of(config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Train to the end; the steps that it took."""
    steps, step = [], Trainer.step

    def noted(*args: Any) -> Any:
        steps.append(args[1])
        return step(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", noted)
        finetune(config)
    return steps


@pytest.mark.parametrize(
    "moments", [(1,), (5,), (STEPS - 1,), (STEPS,), (STEPS + 1,), (3, 4, 12), (EPOCHS * STEPS - 1,)]
)
def test_it_goes_on_to_the_bit(
    config: FinetuneConfig,
    unbroken: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    moments: tuple[int, ...],
) -> None:
    for moment in moments:
        interrupted(config, monkeypatch, moment)
    done = sum(moments)
    assert steps_of(config, monkeypatch) == list(range(done, EPOCHS * STEPS))
    epoch = min(done // STEPS + 1, EPOCHS)
    told = f"seed 0: continuing after step {done} of 36, from its checkpoint in epoch {epoch} of 3"
    assert told in capsys.readouterr().out
    assert contents(config) == unbroken


@pytest.mark.parametrize("records", [1, 5])
def test_a_checkpoint_between_records(
    config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, records: int
) -> None:
    """Records are averages over several steps; a checkpoint does not wait for the next one."""
    monkeypatch.setattr(epochs, "_RECORDS", records)
    whole = dataclasses.replace(config, run=str(tmp_path / "whole"), checkpoint=SavingOptions(60.0))
    finetune(whole)
    for steps in (4, 5, 4, 14):
        interrupted(config, monkeypatch, steps)
    assert steps_of(config, monkeypatch) == list(range(27, EPOCHS * STEPS))
    assert contents(config) == contents(whole)


@pytest.mark.parametrize("epoch", [1, EPOCHS])
@pytest.mark.parametrize("moment", ["predicting", "after the record"])
def test_trained_epochs_are_kept_if_measuring_them_is_interrupted(
    config: FinetuneConfig,
    unbroken: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    epoch: int,
    moment: str,
) -> None:
    place = (epochs.Seed, "predict_dev") if moment == "predicting" else (epochs, "record_epoch")
    measured, measure = [], getattr(*place)

    def broken(*args: Any) -> Any:
        measured.append(args)
        if len(measured) < epoch:
            return measure(*args)
        if moment != "predicting":
            measure(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*place, broken)
        with pytest.raises(KeyboardInterrupt):
            finetune(config)
    assert steps_of(config, monkeypatch) == list(range(epoch * STEPS, EPOCHS * STEPS))
    assert contents(config) == unbroken


@pytest.mark.parametrize(
    "changes",
    [
        {"kernels": "plain"},
        *(
            {"optimizer": dataclasses.replace(FAST, optimizer=name)}
            for name in ("lamb", "adafactor")
        ),
        {"precision": "bf16"},
        {"optimizer": dataclasses.replace(FAST, weight_decay=0.3)},  # of rows that are not used
        {"lstm": 8},
    ],
)
def test_every_kind_of_state_is_in_it(
    config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: Any
) -> None:
    config = dataclasses.replace(config, epochs=2, **changes)
    whole = dataclasses.replace(config, run=str(tmp_path / "whole"), checkpoint=SavingOptions(60.0))
    finetune(whole)
    interrupted(config, monkeypatch, 7)
    interrupted(config, monkeypatch, 9)
    assert steps_of(config, monkeypatch) == list(range(16, 24))
    assert contents(config) == contents(whole)


def test_a_kill_costs_what_came_after_the_checkpoint(
    config: FinetuneConfig, unbroken: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import json, os, signal, sys
from bothways.config.fields import from_dict
from bothways.finetuning.options import FinetuneConfig
from bothways.training.checkpoint import Checkpoint
from bothways.finetuning.finetune import finetune
save, saved = Checkpoint.save, []
def killed(*args):
    if len(saved) == 15:  # of step 14: one save more after measuring dev
        os.kill(os.getpid(), signal.SIGKILL)
    saved.append(args)
    return save(*args)
Checkpoint.save = killed
finetune(from_dict(FinetuneConfig, json.loads(sys.argv[1])))
"""
    words = [sys.executable, "-c", code, json.dumps(to_dict(config))]
    done = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert steps_of(config, monkeypatch)[0] == 14
    assert contents(config) == unbroken


@pytest.mark.parametrize("harm", ["cut", "gone", "manifest"])
def test_a_damaged_one_is_named_and_the_run_starts_again(
    config: FinetuneConfig,
    unbroken: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    harm: str,
) -> None:
    interrupted(config, monkeypatch, 5)
    (folder,) = (Path(config.run) / "seed-0" / FOLDER).iterdir()
    state = folder / "training.safetensors"
    if harm == "cut":
        state.write_bytes(state.read_bytes()[:-100])
    elif harm == "gone":
        state.unlink()
    else:
        (folder / "training.json").write_text("{")
    assert steps_of(config, monkeypatch)[0] == 0
    shown = capsys.readouterr().out
    assert f"seed 0: skipping checkpoint step-5, which is damaged: {folder}" in shown
    assert contents(config) == unbroken


@pytest.mark.parametrize("changes", [{"seeds": (1,)}, {"epochs": EPOCHS + 1}])
def test_one_of_another_run_is_named_and_kept_but_not_used(
    config: FinetuneConfig,
    unbroken: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    changes: dict[str, Any],
) -> None:
    other = dataclasses.replace(config, run=str(tmp_path / "other"), **changes)
    interrupted(other, monkeypatch, 5)
    interrupted(config, monkeypatch, 7)
    (theirs,) = (tmp_path / "other").glob(f"seed-*/{FOLDER}")
    folder = Path(config.run) / "seed-0"
    shutil.rmtree(folder / FOLDER)
    shutil.copytree(theirs, folder / FOLDER)
    capsys.readouterr()
    assert steps_of(config, monkeypatch)[0] == 0
    out = capsys.readouterr().out
    assert "seed 0: skipping checkpoint step-5, which is not this run's: it " in out
    found = contents(config)
    kept = [name for name in found if name.startswith(f"{FOLDER}/.foreign-step-5/")]
    assert [found.pop(name) for name in kept] == [
        path.read_bytes() for path in sorted(theirs.rglob("*.*")) if path.is_file()
    ]
    assert found == unbroken


def test_a_full_disk_leaves_the_one_before(
    config: FinetuneConfig, unbroken: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, write = [], checkpoint.write_tensors

    def full(*args: Any) -> None:
        if len(writes) == 6:
            raise OSError(28, "No space left on device")
        writes.append(args)
        write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full)
        with pytest.raises(DiskError, match=FOLDER):
            finetune(config)
    assert steps_of(config, monkeypatch)[0] == 6
    assert contents(config) == unbroken


def test_the_steps_are_what_this_file_thinks(base: FinetuneConfig) -> None:
    assert epochs._RECORDS >= EPOCHS * STEPS, "a record every step"
    assert -(-192 // base.batch_size) == STEPS
