"""Checkpoints: whole, checksummed, rotated, and found again whatever was damaged."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from bothways.api.doctor import _diagnose_checkpoint
from bothways.errors import DiskError, RunError
from bothways.model import weight_files
from bothways.model.engine import network_of
from bothways.model.folder import write_model_files
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.training import checkpoint as module
from bothways.training.checkpoint import (
    Checkpoint,
    UnusableError,
    check_checkpoint,
    checkpoints,
)
from bothways.training.optimizer import Optimizer
from bothways.training.options import OptimizerOptions
from bothways.training.trainer import Trainer
from pretraining_examples import TOKENIZER, small_disk, small_model

FILES = (
    "model.safetensors",
    "training.safetensors",
    "training.json",
    "config.json",
    "bothways.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
)


RUN = "the run"


class Training:
    """A model that moves, with its checkpoints."""

    def __init__(self, folder: Path, seed: int = 3, name: Any = "adam"):
        self.folder, self.sizes, self.said = folder, list[int](), list[str]()
        self.use(small_model(seed=seed), name)

    def use(self, model: EncoderModel, name: Any = "adam") -> None:
        self.model, options = model, OptimizerOptions(optimizer=name)
        self.trainer: Trainer[Any] = Trainer(
            model, options, total_steps=100, seed=0, dtype=torch.float32
        )
        self.optimizer = self.trainer.optimizer

    def state(self) -> dict[str, Any]:
        return {"sizes": self.sizes}

    def restore_part(self, state: Mapping[str, Any]) -> None:
        self.sizes = list(state["sizes"])

    def move(self) -> None:
        for i, parameter in enumerate(self.model.parameters()):
            generator = torch.Generator().manual_seed(i)
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        # Rows that only round the vocabulary up are never trained and never saved.
        tokens = self.model.embedding_VH
        assert tokens.grad is not None
        tokens.grad[self.model.config.vocab_size :] = 0
        self.optimizer.step()

    def checkpoints(self, keep: int = 2, run: str = RUN) -> Checkpoint:
        def write(folder: Path, model: EncoderModel, step: int, write: Any) -> None:  # noqa: ARG001
            write_model_files(folder, model, TOKENIZER, {"made_by": "test", "seed": 5}, write)

        part: Any = SimpleNamespace(state=self.state, restore=self.restore_part)
        options: Any = {"run": run, "keep": keep, "write_model": write}
        return Checkpoint(self.folder, self.trainer, [part], **options)

    def save(self, step: int, *, keep: int = 2, run: str = RUN) -> None:
        self.sizes = [step]
        self.checkpoints(keep, run).save(step)

    def restore(self) -> int:
        return self.checkpoints().restore(self.said.append)


def problem(path: Path) -> str:
    """Why a checkpoint is damaged; empty if it is intact."""
    try:
        check_checkpoint(path)
    except UnusableError as error:
        return str(error)
    return ""


def states(model: EncoderModel, optimizer: Optimizer) -> list[torch.Tensor]:
    found = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        entry = optimizer.state[parameter]
        found += [entry[key].clone() for key in ("step", "exp_avg", "exp_avg_sq")]
    return found


def assert_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert [bool(torch.equal(a, b)) for a, b in zip(one, other, strict=True)] == [True] * len(one)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, list[torch.Tensor]]]:
    """Checkpoints after 4 and 8 steps, and what was in memory then. Read only."""
    training = Training(tmp_path_factory.mktemp("state") / "checkpoints")
    kept = {}
    for step in (4, 8):
        training.move()
        training.save(step)
        kept[step] = states(training.model, training.optimizer)
    return training.folder, kept


@pytest.mark.parametrize("name", ["radam", "lamb", "sgd", "adafactor", "adamax"])
def test_other_optimizers_go_on_alike(tmp_path: Path, name: Any) -> None:
    unbroken = Training(tmp_path, name=name)
    for _ in range(2):
        unbroken.move()
    unbroken.save(2)
    resumed = Training(tmp_path, seed=9, name=name)
    assert resumed.restore() == 2
    for training in (unbroken, resumed):
        training.move()
    ended = [[p.detach() for p in t.model.parameters()] for t in (unbroken, resumed)]
    assert_equal(*ended)
    adam = Training(tmp_path)
    for _ in range(3):
        adam.move()
    assert not torch.equal(adam.model.embedding_VH, resumed.model.embedding_VH)


@pytest.fixture
def damaged(two: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(two[0], tmp_path / "checkpoints")


def test_everything_comes_back(two: tuple[Path, dict[int, list[torch.Tensor]]]) -> None:
    folder, kept = two
    training = Training(folder, seed=9)
    restored = training.restore()
    assert (restored, training.sizes) == (8, [8])
    assert_equal(states(training.model, training.optimizer), kept[8])
    assert training.said == []
    # ... and training goes on alike.
    other = Training(folder)
    other.move(), other.move(), other.move()
    training.move()
    assert_equal(states(training.model, training.optimizer), states(other.model, other.optimizer))


def test_a_checkpoint_is_a_model_folder(two: tuple[Path, Any]) -> None:
    folder, kept = two
    assert names(folder / "step-8") == sorted(FILES)
    loaded = load_model(folder / "step-8")
    assert loaded.about["made_by"] == "test"
    parameters = [p.detach() for p in network_of(loaded).parameters()]
    assert_equal(parameters, kept[8][: len(parameters)])


def test_without_checkpoints_nothing_is_restored(tmp_path: Path) -> None:
    assert Training(tmp_path / "none").restore() == 0
    assert checkpoints(tmp_path / "none") == []


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [cut, empty, flip, remove])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_newest_is_named_and_passed_over(
    two: tuple[Path, dict[int, list[torch.Tensor]]],
    damaged: Path,
    name: str,
    damage: Callable[[Path], None],
) -> None:
    damage(damaged / "step-8" / name)
    assert str(damaged / "step-8" / name) in problem(damaged / "step-8")
    training = Training(damaged)
    restored = training.restore()
    assert restored == 4
    assert_equal(states(training.model, training.optimizer), two[1][4])
    assert len(training.said) == 1
    assert "skipping checkpoint step-8, which is damaged" in training.said[0]
    assert name in training.said[0]


@pytest.mark.parametrize("name", ["training.json", "training.safetensors"])
def test_one_that_cannot_be_read_may_be_intact(
    damaged: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def failing(self: Path, *args: Any, **options: Any) -> Any:
        if self == damaged / "step-8" / name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(self, *args, **options)

    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(RunError, match=rf"step-8/{name} cannot be read \(Input/output error\)"):
        Training(damaged).restore()
    assert "cannot be read" in _diagnose_checkpoint(damaged / "step-8")[0]


@pytest.mark.parametrize("content", ["[]", "3", "null", '{"sha256": 3}', '{"digest": ""}'])
def test_a_manifest_of_something_else(damaged: Path, content: str) -> None:
    (damaged / "step-8" / "training.json").write_text(content)
    assert "training.json" in problem(damaged / "step-8")


def test_sound_files_of_another_network_are_passed_over(damaged: Path, tmp_path: Path) -> None:
    # Checksums cannot see this; loading does.
    other = Training(tmp_path / "other")
    other.use(EncoderModel(small_model().config, classes=2))
    other.save(9)
    shutil.copytree(other.folder / "step-9", damaged / "step-9")
    training = Training(damaged)
    restored = training.restore()
    assert restored == 8
    assert "step-9, which is damaged" in training.said[0]


@pytest.mark.parametrize("name", ["step-9", "step-6", "step-2"])  # newest, between, oldest
def test_one_of_another_run_is_named_passed_over_and_kept(
    two: tuple[Path, dict[int, list[torch.Tensor]]], damaged: Path, tmp_path: Path, name: str
) -> None:
    other = Training(tmp_path / "other", seed=8)
    other.save(int(name[5:]), run="another run")
    shutil.copytree(other.folder / name, damaged / name)
    theirs = {path.name: path.read_bytes() for path in (damaged / name).iterdir()}
    training = Training(damaged)
    restored = training.restore()
    assert restored == 8
    assert_equal(states(training.model, training.optimizer), two[1][8])
    (said,) = training.said
    assert said == (
        f"skipping checkpoint {name}, which is not this run's: it is step {name[5:]} of another "
        "run; move it back there"
    )
    training.save(10, keep=1)
    assert names(damaged) == [f".foreign-{name}", "step-10"]
    kept = {path.name: path.read_bytes() for path in (damaged / f".foreign-{name}").iterdir()}
    assert kept == theirs
    shutil.copytree(other.folder / name, damaged / name)
    training.restore()
    assert names(damaged) == [f".foreign-{name}", f".foreign-{name}-2", "step-10"]


@pytest.mark.parametrize(("old", "new"), [("step-8", "step-12"), ("step-8", "step-6")])
def test_one_of_another_step_is_passed_over(damaged: Path, old: str, new: str) -> None:
    (damaged / old).rename(damaged / new)
    assert "name it step-8 again" in problem(damaged / new)
    training = Training(damaged)
    restored = training.restore()
    assert restored == 4
    (said,) = training.said
    assert "by its training.json it is step 8; if it is this run's, name it step-8 again" in said
    assert names(damaged) == [f".foreign-{new}", "step-4"]
    (damaged / f".foreign-{new}").rename(damaged / "step-8")
    again = training.restore()
    assert again == 8


def test_only_foreign_ones_are_an_error(damaged: Path) -> None:
    (damaged / "step-8").rename(damaged / "step-12")
    flip(damaged / "step-4" / "model.safetensors")
    with pytest.raises(RunError) as refused:
        Training(damaged).restore()
    told = str(refused.value)
    assert "none of the 2 checkpoints is intact and of this run" in told
    assert "step-12: by its training.json it is step 8" in told
    assert "name it step-8 again" in told
    assert names(damaged) == ["step-12", "step-4"], "as they were"


def test_none_sound_is_an_error(damaged: Path) -> None:
    flip(damaged / "step-4" / "model.safetensors")
    remove(damaged / "step-8" / "training.json")
    training = Training(damaged)
    with pytest.raises(RunError, match=r"none of the 2 checkpoints is intact.*--start"):
        training.restore()
    assert len(training.said) == 2


def test_leftovers_of_a_kill_are_no_checkpoints(damaged: Path) -> None:
    shutil.copytree(damaged / "step-8", damaged / ".partial-step-12")
    training = Training(damaged)
    restored = training.restore()
    assert restored == 8
    assert names(damaged) == ["step-4", "step-8"], "they are cleared away"


def test_rotation(tmp_path: Path) -> None:
    training = Training(tmp_path / "checkpoints")
    for step in (8, 9, 10, 100):
        training.save(step, keep=3)
    assert [p.name for p in checkpoints(training.folder)] == ["step-100", "step-10", "step-9"]
    assert names(training.folder) == ["step-10", "step-100", "step-9"]


@pytest.mark.parametrize("step", [6, 12])  # before and after the one that is damaged
@pytest.mark.parametrize("keep", [0, 1, 2])
def test_damaged_ones_never_push_out_sound_ones(damaged: Path, keep: int, step: int) -> None:
    flip(damaged / "step-8" / "model.safetensors")
    training = Training(damaged)
    training.restore()
    training.move()
    training.save(step, keep=keep)
    expected = [f"step-{step}", "step-4"] if keep == 2 else [f"step-{step}"]
    assert names(damaged) == sorted(expected)
    restored = training.restore()
    assert restored == step


def test_too_little_memory_is_no_damage(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    monkeypatch.setattr(module, "load_network", load)
    with pytest.raises(RuntimeError, match="allocate memory"):
        Training(damaged).restore()
    assert names(damaged) == ["step-4", "step-8"]


def test_a_damaged_one_is_passed_over_once(damaged: Path) -> None:
    for _ in range(2):  # the second was damaged after an interruption right after the first
        shutil.copytree(damaged / "step-4", damaged / "step-8", dirs_exist_ok=True)
        flip(damaged / "step-8" / "model.safetensors")
        training = Training(damaged)
        training.restore()
        assert len(training.said) == 1
    training = Training(damaged)
    restored = training.restore()
    assert (restored, training.said) == (4, [])


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def unwritten(*_: Any, **__: Any) -> None:
    raise SafetensorError('IoError(Os { code: 28, kind: StorageFull, message: "No space left" })')


@pytest.mark.parametrize(
    ("target", "name", "fault"),
    [
        (os, "fsync", no_space),
        (weight_files, "save_file", no_space),
        (weight_files, "save_file", unwritten),
        (Path, "rename", no_space),
    ],
)
def test_a_refused_write_leaves_the_others_alone(
    damaged: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: Any,
    name: str,
    fault: Callable[..., None],
) -> None:
    training = Training(damaged)
    training.restore()
    with monkeypatch.context() as patch:
        patch.setattr(target, name, fault)
        with pytest.raises(DiskError, match=r"step-12.*cannot be written.*No space left"):
            training.save(12)
    assert names(damaged) == ["step-4", "step-8"]
    assert all(problem(damaged / n) == "" for n in names(damaged))
    training.save(12)
    assert names(damaged) == ["step-12", "step-8"]


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 400) as disk:
        training = Training(disk / "checkpoints")
        training.move()
        training.save(1)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(disk).free - 60_000))
        with pytest.raises(DiskError, match=r"step-2.*No space left.*MiB free"):
            training.save(2)
        assert names(training.folder) == ["step-1"]
        assert problem(training.folder / "step-1") == ""
        ballast.unlink()
        training.save(2)
        assert problem(training.folder / "step-2") == ""
