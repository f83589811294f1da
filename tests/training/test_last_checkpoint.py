"""The checkpoints of a training as its loop sees them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bothways.errors import DiskError
from bothways.io.files import reserve_space
from bothways.training import checkpoint as module
from bothways.training.checkpoint import (
    Checkpoint,
    check_checkpoint,
    check_space,
    rehearse,
    remove_checkpoints,
)
from bothways.training.options import OptimizerOptions
from bothways.training.trainer import Trainer
from pretraining_examples import small_disk, small_model

KEY = {"seed": "seed 0", "precision": "fp32", "kernels": "fast"}


class Averages:
    """A part with tensors and values."""

    def __init__(self) -> None:
        self.order, self.values = list[int](), torch.zeros(0)

    def state(self) -> dict[str, Any]:
        return {"order": self.order, "averages": self.values}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.order, self.values = state["order"], state["averages"]


class Short:
    """A training with one checkpoint."""

    def __init__(self, folder: Path, seed: int = 3, run: str = "mine", **key: str):
        self.trainer: Trainer[Any] = Trainer(
            small_model(seed=seed),
            OptimizerOptions(),
            total_steps=10,
            seed=0,
            dtype=torch.float32,
        )
        self.part, self.said = Averages(), list[str]()
        self.checkpoint = Checkpoint(folder, self.trainer, [self.part], run=run, key={**KEY, **key})

    def restore(self) -> int:
        return self.checkpoint.restore(self.said.append, or_start_again=True)

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for _, tensor in self.checkpoint._trained()]


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_tensors_of_another_shape_are_named(tmp_path: Path) -> None:
    Short(tmp_path).checkpoint.save(1)
    other = Short(tmp_path)
    name, parameter = next(iter(other.trainer.model.named_parameters()))
    other.trainer.optimizer.state[parameter]["exp_avg"] = torch.zeros(3)
    assert other.restore() == 0
    assert f"{name}/exp_avg is missing or not of shape (3,)" in other.said[0]


@pytest.mark.parametrize("existed", [True, False])
def test_a_rehearsal_leaves_nothing(tmp_path: Path, existed: bool) -> None:
    path = tmp_path / "run" / "step-1"
    if existed:
        (path.parent / ".partial-trial-step-1").mkdir(parents=True)
        (path.parent / ".partial-trial-step-1" / "left by a kill").touch()

    def write(folder: Path, write: Any) -> None:
        assert (folder.parent, list(folder.iterdir())) == (path.parent, [])
        write({"a": torch.zeros(3)}, folder / "file")

    assert rehearse(path, write) == 12
    assert files(tmp_path) == (["run"] if existed else [])
    with pytest.raises(KeyError):
        rehearse(path, lambda *_: {}["x"])
    assert files(tmp_path) == (["run"] if existed else [])


def test_space_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    assert module.shutil is shutil
    check_space(tmp_path, 2**20, 2**20, said.append)
    assert said == []
    check_space(tmp_path, 2**20, 2**21, said.append)
    assert "may need 2 MiB" in said[0]
    with pytest.raises(DiskError, match=r"No space left on device for 2\.0 MiB"):
        check_space(tmp_path, 2**21, 0, said.append)


def test_space_is_reserved(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 200) as disk:
        (disk / "file").touch()
        reserve_space(disk / "file", 100_000)
        with pytest.raises(OSError, match="No space left on device"):
            reserve_space(disk / "file", 300_000)


def test_a_file_system_that_cannot_reserve_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    (tmp_path / "file").touch()
    reserve_space(tmp_path / "file", 100)


def test_the_only_checkpoint_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    one = Short(folder)
    assert one.restore() == 0
    one.part.order, one.part.values = [2, 1], torch.arange(3.0)
    assert one.checkpoint.rehearse() == sum(t.nbytes for t in one.tensors()) + 3 * 4
    assert files(tmp_path) == []
    for step in (4, 5):
        one.checkpoint.save(step)
    assert [path.name for path in folder.iterdir()] == ["step-5"]
    check_checkpoint(folder / "step-5", "mine")
    other = Short(folder, seed=5)
    assert other.restore() == 5
    assert other.said == []
    assert (other.part.order, other.part.values.tolist()) == ([2, 1], [0, 1, 2])
    for a, b in zip(one.tensors(), other.tensors(), strict=True):
        assert torch.equal(a, b)
    remove_checkpoints(folder)
    assert files(tmp_path) == []


def test_one_of_another_arithmetic_is_named_and_removed(tmp_path: Path) -> None:
    Short(tmp_path).checkpoint.save(5)
    changed = Short(tmp_path, kernels="plain", precision="bf16")
    assert changed.restore() == 0
    assert "it was made with another precision, kernels" in changed.said[0]
    changed.checkpoint.save(6)
    assert [path.name for path in tmp_path.iterdir()] == ["step-6"]


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ({"run": "theirs"}, "it is step 5 of another run; move it back there"),
        ({"seed": "seed 1"}, "it was made with another seed"),
    ],
)
def test_one_of_another_training_is_kept(tmp_path: Path, theirs: dict[str, Any], told: str) -> None:
    other = Short(tmp_path, run=theirs.get("run", "mine"))
    other.checkpoint._key = {**KEY, **theirs}
    other.checkpoint.save(5)
    own = Short(tmp_path)
    assert own.restore() == 0
    assert own.said == [f"skipping checkpoint step-5, which is not this run's: {told}"]
    own.checkpoint.save(6)
    remove_checkpoints(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".foreign-step-5"]


"""The only checkpoint of a short training, its key, and the rehearsal before the first step."""
