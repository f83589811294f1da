"""The checkpoints of a training as its loop sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bothways.errors import RunError
from bothways.model.model import EncoderModel
from bothways.training.checkpoint import (
    LastCheckpoint,
    ModelCheckpoints,
    trained_tensors,
    verify_checkpoint,
)
from bothways.training.optimizer import Optimizer, make_optimizer
from bothways.training.options import OptimizerOptions
from pretraining_examples import TOKENIZER, small_model

KEY = {"recipe": "r", "run": "mine", "train": "a.tsv", "threads": 1}


def model_and_optimizer(seed: int = 3) -> tuple[EncoderModel, Optimizer]:
    model = small_model(seed=seed)
    return model, make_optimizer(model, OptimizerOptions())


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def last(folder: Path, key: dict[str, Any] | None = None, *, run: str = "mine") -> LastCheckpoint:
    return LastCheckpoint(folder, {**KEY, **(key or {})}, run=run)


# ---------------------------------------------------------------------------- before the first step


# ------------------------------------------------------------------------------------ of a long run


# ----------------------------------------------------------------------------------- of a short run


@pytest.mark.parametrize("missing", [True, False])
def test_tensors_of_another_shape_are_named(tmp_path: Path, missing: bool) -> None:
    model, optimizer = model_and_optimizer()
    kept = ModelCheckpoints(tmp_path, TOKENIZER, lambda _: {}, keep=1, run="a")
    kept.save(1, model, optimizer, {})
    name, parameter = next(iter(model.named_parameters()))
    entry = optimizer.state[parameter]
    entry["new" if missing else "exp_avg"] = torch.zeros(3)
    said: list[str] = []
    with pytest.raises(RunError, match="none of the 1 checkpoints is intact"):
        kept.restore(model, optimizer, said.append)
    expected = "is missing" if missing else f"has shape {tuple(parameter.shape)}"
    assert f"{expected}; expected shape (3,)" in said[0]
    assert f"{name}/" in said[0]


def test_the_only_checkpoint_comes_back(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    kept = last(tmp_path)
    assert not kept.exist()
    assert kept.restore(model, optimizer, pytest.fail) is None
    assert kept.reject() == ""
    state = {"order": [2, 1], "averages": torch.arange(3.0)}
    size = kept.try_save(5, model, optimizer, state)
    assert size == sum(t.nbytes for _, t in trained_tensors(model, optimizer)) + 3 * 4
    assert files(tmp_path) == []
    kept.save(5, model, optimizer, state)
    assert verify_checkpoint(tmp_path / "checkpoint") == []
    assert kept.exist()
    assert last(tmp_path).reject() == ""
    other, its = model_and_optimizer(seed=5)
    restored = last(tmp_path).restore(other, its, pytest.fail)
    assert restored is not None
    assert restored.step == 5
    assert restored.extra.pop("averages").tolist() == [0, 1, 2]
    assert restored.extra == {"key": KEY, "order": [2, 1]}
    for (name, one), (_, same) in zip(
        trained_tensors(model, optimizer), trained_tensors(other, its), strict=True
    ):
        assert torch.equal(one, same), name


def test_a_checkpoint_of_other_data_is_removed_and_named(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    last(tmp_path).save(5, model, optimizer, {})
    changed = last(tmp_path, {"train": "b.tsv", "threads": 2})
    assert changed.reject() == "its checkpoint was made with another train, threads"
    assert files(tmp_path) == []
    last(tmp_path).save(5, model, optimizer, {})
    (tmp_path / "checkpoint/training.safetensors").write_bytes(b"")
    assert "its checkpoint is damaged (" in last(tmp_path).reject()
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ({"run": "theirs"}, "it is step 5 of another run; move it back there"),
        ({"key": {"run": "seed-1"}}, "it is step 5 of seed-1; move it back there"),
        ({"key": {"recipe": "s"}}, "it is step 5 of another recipe; move it back there"),
    ],
)
def test_a_checkpoint_of_another_training_is_kept(
    tmp_path: Path, theirs: dict[str, Any], told: str
) -> None:
    model, optimizer = model_and_optimizer()
    other = last(tmp_path, theirs.get("key"), run=theirs.get("run", "mine"))
    other.save(5, model, optimizer, {})
    aside = tmp_path / ".foreign-checkpoint"
    assert last(tmp_path).reject() == f"its checkpoint is not its own: {told} (now {aside})"
    assert verify_checkpoint(aside) == []
    assert not last(tmp_path).exist()
