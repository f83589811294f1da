"""Pre-training that was stopped, killed or ran out of disk continues to the same bits."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import DiskError, RunError
from bothways.model import device as precision
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.pretrain import PretrainResult, pretrain
from bothways.runtime.stored import WEIGHTS
from bothways.training.options import ClockOptions, OptimizerOptions
from bothways.training.runfolder import read_run
from bothways.training.trainer import Trainer
from pretrain_runs import (
    ALWAYS,
    Make,
    StoppedError,
    after_step,
    records,
    short_recipe,
    stop,
    weights,
)
from pretraining_examples import small_disk


@pytest.fixture(scope="module")
def make(tiny_corpus: Path) -> Make:
    return short_recipe(tiny_corpus)


@pytest.fixture(scope="module")
def unbroken(make: Make, tmp_path_factory: pytest.TempPathFactory) -> PretrainResult:
    """A run that was never stopped. Read only."""
    return pretrain(make(tmp_path_factory.mktemp("unbroken") / "run"))


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


def test_records_of_several_steps_are_whole_after_a_stop(make: Make, tmp_path: Path) -> None:
    """The first record after it averages the steps before it, too."""
    whole = pretrain(make(tmp_path / "whole", log_every=6))
    config = make(tmp_path / "run", log_every=6, checkpoint=ALWAYS)
    for number in (9, 12, 15):
        with after_step(number, stop), pytest.raises(StoppedError):
            pretrain(config)
    result = pretrain(config)
    assert [r["step"] for r in records(whole.run) if "loss" in r] == [6, 12, 18, 24, 30]
    assert records(result.run) == records(whole.run)


def test_precision_is_that_of_the_beginning_and_says_so(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The measurement that chose it may have been made on another machine."""
    config = make(tmp_path / "run", precision="auto", clock=ClockOptions(steps=3))
    with after_step(1, stop), pytest.raises(StoppedError):
        pretrain(config)
    first = capsys.readouterr().out
    assert "matrix products are" in first
    pretrain(config)
    again = capsys.readouterr().out
    assert "matrix products are" not in again
    precision = read_run(tmp_path / "run")["resolved"]["precision"]
    assert f"3 steps; {precision}: as when the run began; 1 thread" in again


def test_the_layout_of_gradients_is_that_of_the_beginning(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was measured once, and may come out otherwise another day."""
    used = []
    real = Trainer.step

    def seen(self: Trainer[Any], *arguments: Any) -> Any:
        used.append(self.model.shared.transposes)
        return real(self, *arguments)

    monkeypatch.setattr(Trainer, "step", seen)
    config = make(tmp_path / "run", precision="bf16", clock=ClockOptions(steps=3))
    monkeypatch.setattr(precision, "transposing_pays", lambda _: True)
    with after_step(1, stop), pytest.raises(StoppedError):
        pretrain(config)
    monkeypatch.setattr(precision, "transposing_pays", lambda _: False)
    pretrain(config)
    assert len(used) >= 3
    assert all(used)
    assert read_run(tmp_path / "run")["resolved"]["transposed_gradients"] is True


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
    assert len(list((result.run / "checkpoints").iterdir())) == config.checkpoint.keep
    assert "continuing after step 24" in out
    assert weights(result.run) == weights(unbroken.run)
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        (checkpoint / "training.json").write_text("{}")
    with pytest.raises(RunError, match="none of the 2 checkpoints is intact"):
        pretrain(config)


def stopped(config: PretrainConfig, number: int) -> Path:
    """A run with checkpoints that ended after this step (from 0); its checkpoints."""
    with after_step(number, stop), pytest.raises(StoppedError):
        pretrain(config)
    return Path(config.run) / "checkpoints"


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"optimizer": OptimizerOptions(lr=1e-2, warmup=0.1)},
        {"clock": ClockOptions(steps=31)},
    ],
)
def test_a_checkpoint_of_another_run_is_not_continued(
    unbroken: PretrainResult,
    make: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
) -> None:
    theirs = stopped(make(tmp_path / "other", checkpoint=ALWAYS, **changes), 23)
    config = make(tmp_path / "run", checkpoint=ALWAYS)
    ours = stopped(config, 15)
    shutil.copytree(theirs / "step-23", ours / "step-23")  # under its own name
    shutil.rmtree(ours / "step-14")
    capsys.readouterr()
    result = pretrain(config)
    out = " ".join(capsys.readouterr().out.split())
    assert "step-23, which is not this run's: it is step 23 of another run;" in out
    assert "continuing after step 15" in out
    assert weights(result.run) == weights(unbroken.run)
    assert records(result.run) == records(unbroken.run)
    assert (ours / ".foreign-step-23" / WEIGHTS).exists()


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


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_stops_a_run_that_does_not_ignore_it(
    ignored: bool,
    unbroken: PretrainResult,
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make(tmp_path / "run")
    closed: list[int] = []
    monkeypatch.setattr(os, "isatty", lambda stream: stream == 2)  # stdout is a file
    monkeypatch.setattr(os, "dup2", lambda _, stream: closed.append(stream))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with after_step(3, lambda: os.kill(os.getpid(), signal.SIGHUP)):
            if ignored:
                pretrain(config)
            else:
                with pytest.raises(KeyboardInterrupt):
                    pretrain(config)
        assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if ignored else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert closed == ([] if ignored else [2]), "what cannot be written to"
    if not ignored:
        assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step-4"]
        pretrain(config)
    assert weights(tmp_path / "run") == weights(unbroken.run)


def test_going_back_to_the_first_numerics_is_recorded(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make(tmp_path / "run", clock=ClockOptions(steps=5), checkpoint=ALWAYS)
    for step, threads in ((1, 1), (2, 2), (3, 1)):
        with pytest.raises(StoppedError), after_step(step, stop):
            pretrain(replace(config, threads=threads))
    assert "as when the run started again, from step 3" in capsys.readouterr().out
    result = pretrain(replace(config, threads=2))
    noted = [(c["from_step"], c["changes"]) for c in read_run(result.run)["changes"]]
    assert noted == [(2, ["threads: 1 -> 2"]), (3, []), (4, ["threads: 1 -> 2"])]


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
