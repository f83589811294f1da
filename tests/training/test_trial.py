"""What would fail at the first save fails before the first step, and nothing is left of the try."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bothways.errors import RunError
from bothways.finetuning import seed as epochs
from bothways.finetuning import seed as run_seed
from bothways.io.files import reserve_space
from bothways.pretraining import pretrain as pretraining
from bothways.runtime.stored import WEIGHTS
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.checkpoint import try_save
from bothways.training.trainer import Trainer
from pretraining_examples import small_disk
from small_world import World, run


def test_nothing_is_left_of_a_trial(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "step-1"
    with try_save(path) as trial:
        (trial.folder / "file").write_text("")
        assert trial.folder.parent == path.parent
    assert list(tmp_path.iterdir()) == []
    path.mkdir(parents=True)
    (path.parent / ".partial-trial-step-1").mkdir()  # of a process that was killed
    told = r"step-1 could not be saved \(ZeroDivisionError: a b\)"
    with pytest.raises(RunError, match=told), try_save(path):
        raise ZeroDivisionError("a\n  b")
    assert list(path.parent.iterdir()) == [path]


def test_too_little_memory_is_not_explained_away(tmp_path: Path) -> None:
    with pytest.raises(MemoryError), try_save(tmp_path / "x"):
        raise MemoryError


def test_space_is_reserved(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 200) as disk:
        (disk / "file").touch()
        reserve_space(disk / "file", 100_000)
        with pytest.raises(OSError, match=r"No space left on device"):
            reserve_space(disk / "file", 300_000)


def test_a_file_system_that_cannot_reserve_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    (tmp_path / "file").touch()
    reserve_space(tmp_path / "file", 100)


# -------------------------------------------------------------------------------------- of a verb


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("world"))
    made.build()
    return made


def unserialisable(*_: Any) -> dict[str, Any]:
    return {"made_by": object()}


def unsaved(*_: Any, **__: Any) -> None:
    raise RuntimeError("the library cannot save\nthis vocabulary")


@pytest.fixture
def no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "step", lambda *_: pytest.fail("a step was trained"))


def assert_one_error(
    capsys: pytest.CaptureFixture[str], argv: list[str | Path], *parts: str
) -> None:
    capsys.readouterr()
    assert run(*argv) == 1
    error = capsys.readouterr().err
    assert error.startswith("bothways: error: ")
    assert error.count("error:") == 1
    assert "Traceback" not in error
    for part in parts:
        assert part in " ".join(error.split())


FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "JSON": (pretraining, "_about", unserialisable, "TypeError"),
    "tokenizer": (Tokenizer, "save", unsaved, "the library cannot save this vocabulary"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("no_step")
def test_pretraining_does_not_begin(
    fault: str,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target, name, replacement, told = FAULTS[fault]
    monkeypatch.setattr(target, name, replacement)
    out = tmp_path / "run"
    step = f"{out / 'checkpoints' / 'step-1'} could not be saved"
    assert_one_error(capsys, world.pretrain(out=out), step, told, "no step was trained")
    assert not (out / "checkpoints").exists()


def test_what_failed_before_the_first_step_can_be_run_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = world.pretrain(out=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "save", unsaved)
        assert run(*argv) == 1
    assert run(*argv) == 0
    model = tmp_path / "run" / "model" / WEIGHTS
    assert model.read_bytes() == (world.model / WEIGHTS).read_bytes()


@pytest.mark.parametrize("name", ["checkpoints", "snapshots", "curves.png"])
@pytest.mark.usefixtures("no_step")
def test_pretraining_does_not_begin_where_something_is_in_the_way(
    name: str, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    argv = [*world.pretrain(out=out), "--snapshots", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tokenizer, "save", unsaved)
        assert run(*argv) == 1  # makes the run folder
    if name == "curves.png":
        (out / name).mkdir()
    else:
        (out / name).write_text("in the way")
    assert_one_error(capsys, argv, str(out / name), "cannot be written")


@pytest.mark.usefixtures("no_step")
def test_pretraining_does_not_begin_on_a_full_disk(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file would fit, and so would the model alone."""
    argv = [*world.pretrain(out=tmp_path / "disk" / "run"), "--model.hidden", "32"]
    with small_disk(tmp_path / "disk", 250):
        assert_one_error(capsys, argv, "step-1: cannot be written: No space left on device for 0.")


def test_a_disk_that_is_too_small_for_the_whole_run_is_told(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*world.pretrain(out=tmp_path / "disk" / "run"), "--checkpoint.keep", "50"]
    with small_disk(tmp_path / "disk", 2000):
        assert run(*argv) == 0
        assert "the run may need" in capsys.readouterr().out
        assert run(*argv, "--run", str(tmp_path / "other")) == 0
        assert "the run may need" not in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["JSON", "tokenizer", "labels"])
@pytest.mark.usefixtures("no_step")
def test_finetuning_does_not_begin(
    fault: str,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = tmp_path / "run" / "seed-0"
    about = run_seed._about
    told = [str(seed / "model")]
    if fault == "JSON":
        monkeypatch.setattr(run_seed, "_about", unserialisable)
    elif fault == "tokenizer":
        monkeypatch.setattr(Tokenizer, "save", unsaved)
    else:
        same = {"labels": ["yes", "yes"]}
        monkeypatch.setattr(run_seed, "_about", lambda *args: {**about(*args), **same})
        told = ["give each output a distinct label"]
    assert_one_error(capsys, world.finetune(out=tmp_path / "run"), *told)
    assert not any(path.name.startswith(".partial") for path in seed.iterdir())


@pytest.mark.usefixtures("no_step")
def test_finetuning_does_not_begin_if_the_model_does_not_fit(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        told = "model: cannot be written: No space left on device for 0."
        assert_one_error(capsys, world.finetune(out=disk / "run"), told)


def test_finetuning_tells_if_a_checkpoint_would_not_fit(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Training may well end before one is due."""
    assert run(*world.finetune(out=tmp_path / "run")) == 0
    assert "a checkpoint, written every" not in capsys.readouterr().out
    free = SimpleNamespace(free=90_000)  # holds the model
    monkeypatch.setattr(epochs.shutil, "disk_usage", lambda _: free)
    assert run(*world.finetune(out=tmp_path / "again")) == 0
    assert "a checkpoint, written every 5 minutes" in capsys.readouterr().out
