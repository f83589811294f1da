"""The checkpoints of a training as its loop sees them, and the trial before the first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bothways.errors import DiskError, RunError
from bothways.model.model import EncoderModel
from bothways.training.checkpoint import (
    LastCheckpoint,
    ModelCheckpoints,
    checkpoints,
    rename_skipped,
    trained_tensors,
    try_save,
    verify_checkpoint,
    whose,
)
from bothways.training.optimizer import Optimizer, make_optimizer
from bothways.training.options import OptimizerOptions
from pretraining_examples import TOKENIZER, small_model

KEY = {"recipe": "r", "run": "mine", "train": "a.tsv", "threads": 1}


def model_and_optimizer(seed: int = 3) -> tuple[EncoderModel, Optimizer]:
    model = small_model(seed=seed)
    return model, make_optimizer(model, OptimizerOptions())


def named(weights: dict[str, torch.Tensor]) -> Any:
    """A module with these weights."""
    module = torch.nn.Module()
    for name, value in weights.items():
        *groups, last = name.split(".")
        inner = module
        for group in groups:
            if not hasattr(inner, group):
                inner.add_module(group, torch.nn.Module())
            inner = getattr(inner, group)
        inner.register_parameter(last, torch.nn.Parameter(value))
    return module


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def last(folder: Path, key: dict[str, Any] | None = None, *, run: str = "mine") -> LastCheckpoint:
    return LastCheckpoint(folder, {**KEY, **(key or {})}, run=run)


# ---------------------------------------------------------------------------- before the first step


@pytest.mark.parametrize("existed", [True, False])
def test_a_trial_leaves_nothing(tmp_path: Path, existed: bool) -> None:
    path = tmp_path / "run" / "step-1"
    if existed:
        (path.parent / ".partial-trial-step-1").mkdir(parents=True)
        (path.parent / ".partial-trial-step-1" / "left by a kill").touch()
    with try_save(path) as trial:
        assert list(trial.folder.iterdir()) == []
        (trial.folder / "file").touch()
    assert files(tmp_path) == (["run"] if existed else [])


def test_why_a_trial_failed(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match=r"step-1 could not be saved \(KeyError: 'x'\).*no step was"),
        try_save(tmp_path / "step-1"),
    ):
        raise KeyError("x")
    with pytest.raises(RuntimeError, match="allocate memory"), try_save(tmp_path / "step-1"):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
    assert files(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with (
        pytest.raises(DiskError, match=r"run/step-1: cannot be written: Not a directory"),
        try_save(tmp_path / "run" / "step-1"),
    ):
        pytest.fail("there is no folder to write in")
    assert files(tmp_path) == ["run"]


# ------------------------------------------------------------------------------------ of a long run


def test_model_folders_of_a_run(tmp_path: Path) -> None:
    def about(step: int) -> dict[str, Any]:
        return {"made_by": "test", "at": step}

    kept = ModelCheckpoints(tmp_path / "states", TOKENIZER, about, keep=1, run="mine")
    model, optimizer = model_and_optimizer()
    assert not kept.exist()
    size = kept.try_save(4, model, optimizer, {"sizes": [1]})
    assert size > sum(p.nbytes for p in model.parameters())
    assert not kept.exist()
    assert files(tmp_path) == []
    for step in (4, 8):
        kept.save(step, model, optimizer, {"sizes": [step]})
    assert [p.name for p in checkpoints(tmp_path / "states")] == ["step-8"]
    assert kept.exist()
    state = json.loads((tmp_path / "states/step-8/training.json").read_text())
    assert (state["format"], state["run"], state["step"]) == (1, "mine", 8)
    assert state["extra"] == {"sizes": [8]}
    assert json.loads((tmp_path / "states/step-8/bothways.json").read_text())["at"] == 8
    other, its = model_and_optimizer(seed=5)
    restored = kept.restore(other, its, pytest.fail)
    assert restored is not None
    assert (restored.step, restored.extra) == (8, {"sizes": [8]})
    assert torch.equal(other.embedding_VH, model.embedding_VH)


def test_whose_a_checkpoint_is(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()

    def saved(step: int, about: dict[str, Any]) -> Path:
        kept = ModelCheckpoints(tmp_path, TOKENIZER, lambda _: about, keep=2, run="a")
        kept.save(step, model, optimizer, {})
        return tmp_path / f"step-{step}"

    told = saved(2, {"seed": 7, "corpus": "c1"})
    assert whose(told, "a") == ""
    assert whose(told, None) == ""
    assert whose(told, "b") == "it is step 2 of another run (seed 7, corpus c1); move it back there"
    assert whose(saved(3, {}), "b") == "it is step 3 of another run; move it back there"


def test_names_of_checkpoints_that_are_passed_over(tmp_path: Path) -> None:
    for number, (beginning, kept) in enumerate([(".damaged-", False), (".foreign-", True)]):
        folder = tmp_path / str(number)
        for content in "ab":
            (folder / "step-1").mkdir(parents=True)
            (folder / "step-1" / content).touch()
            renamed = rename_skipped(folder / "step-1", beginning)
            assert files(renamed) == [content]
        first = [f"{beginning}step-1", f"{beginning}step-1/{'a' if kept else 'b'}"]
        second = [f"{beginning}step-1-2", f"{beginning}step-1-2/b"] if kept else []
        assert files(folder) == sorted(first + second)


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


# ----------------------------------------------------------------------------------- of a short run


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


def test_a_head_on_choices_of_version_0_1(tmp_path: Path) -> None:
    """There it was one on texts: its weights and moments are found under that name."""
    one = named({"classifier.output.weight": torch.ones(2, 3), "a": torch.zeros(2)})
    its = torch.optim.SGD(one.parameters(), lr=1)
    last(tmp_path).save(1, one, its, {})
    other = named({"choice.output.weight": torch.zeros(2, 3), "a": torch.ones(2)})
    last(tmp_path).restore(other, torch.optim.SGD(other.parameters(), lr=1), pytest.fail)
    found = dict(other.named_parameters())
    assert found["choice.output.weight"].tolist() == [[1.0] * 3] * 2
    assert found["a"].tolist() == [0.0, 0.0]
