"""Snapshots: the models of exactly those steps, kept once, without a trace in the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bothways.api.doctor import diagnose
from bothways.errors import RunError
from bothways.families.options import SizeOptions
from bothways.io.files import sha256
from bothways.model.engine import network_of
from bothways.pretraining.options import CheckpointOptions, EvaluateOptions, PretrainConfig
from bothways.pretraining.pretrain import PretrainResult, pretrain
from bothways.runtime.folder import ABOUT, load_model
from bothways.runtime.stored import WEIGHTS
from bothways.training.monitor import METRICS, read_metrics
from bothways.training.options import ClockOptions, OptimizerOptions, Phase
from bothways.training.trainer import Trainer

STEPS, KEPT = 12, (3, 8, 12)
EVERY_STEP, NEVER = CheckpointOptions(minutes=1e-9), CheckpointOptions(minutes=1e9)
Make = Callable[..., PretrainConfig]


class StoppedError(Exception):
    """Stands for whatever ends a process."""


@pytest.fixture(scope="module")
def make(tiny_corpus: Path) -> Make:
    """Two phases; 8 is the last step of the first."""

    def config(run: Path, **changes: Any) -> PretrainConfig:
        base = PretrainConfig(
            corpus=str(tiny_corpus),
            run=str(run),
            model=SizeOptions(layers=1, hidden=16, heads=2, intermediate=32, positions=64),
            clock=ClockOptions(steps=STEPS),
            phases=(
                Phase(length=24, share=8 / 12, batch=8, micro_batch=4),
                Phase(length=32, share=4 / 12, batch=4, micro_batch=4),
            ),
            optimizer=OptimizerOptions(lr=2e-2, warmup=0.1),
            precision="fp32",
            threads=1,
            evaluate=EvaluateOptions(every=5, sequences=8),
            checkpoint=NEVER,
            log_every=1,
        )
        return replace(base, **changes)

    return config


@pytest.fixture(scope="module")
def plain(make: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Digests of the weights after each step, from the checkpoints of a run without snapshots."""
    run = tmp_path_factory.mktemp("plain") / "run"
    keep = CheckpointOptions(minutes=1e-9, keep=STEPS)
    result = pretrain(make(run, checkpoint=keep))
    assert result.snapshots == {}
    assert not (run / "snapshots").exists()
    digests = {
        int(path.name.removeprefix("step-")): sha256(path / WEIGHTS)
        for path in (run / "checkpoints").iterdir()
    }
    assert digests[STEPS] == sha256(result.model / WEIGHTS)
    assert len(set(digests.values())) == STEPS
    return digests


def digests(result: PretrainResult) -> dict[int, str]:
    assert {int(p.name) for p in (result.run / "snapshots").iterdir()} == set(result.snapshots)
    return {step: sha256(folder / WEIGHTS) for step, folder in result.snapshots.items()}


def stop_after(step: int) -> pytest.MonkeyPatch:
    """As if the process were killed in the step after this one."""
    patch, compute = pytest.MonkeyPatch(), Trainer.step

    def watched(self: Any, now: int, *args: Any) -> Any:
        if now == step:
            raise StoppedError
        return compute(self, now, *args)

    patch.setattr(Trainer, "step", watched)
    return patch


def stopped_after(step: int, config: PretrainConfig) -> None:
    patch = stop_after(step)
    with pytest.raises(StoppedError):
        pretrain(config)
    patch.undo()


def records(run: Path) -> list[dict[str, Any]]:
    speed = ("tokens_per_second", "loader_wait")
    found = read_metrics(run / METRICS)
    return [{k: v for k, v in record.items() if k not in speed} for record in found]


def test_the_models_of_these_steps_and_the_run_as_without(
    make: Make, tmp_path: Path, plain: dict[int, str]
) -> None:
    without = pretrain(make(tmp_path / "without"))
    result = pretrain(make(tmp_path / "run", snapshots=(8, 3, 12)))
    assert list(result.snapshots) == [3, 8, 12]
    assert digests(result) == {step: plain[step] for step in KEPT}
    assert sha256(result.model / WEIGHTS) == plain[STEPS]
    assert records(result.run) == records(without.run)
    for step, folder in result.snapshots.items():
        loaded = load_model(folder)
        assert network_of(loaded).masked_lm is not None
        assert (loaded.about["steps"], loaded.about["snapshot_of_steps"]) == (step, STEPS)
    assert diagnose(result.run) == diagnose(result.snapshots[3]) == []
    (result.snapshots[3] / WEIGHTS).write_bytes(b"")
    (problem,) = diagnose(result.run)
    assert str(result.snapshots[3]) in problem


@pytest.mark.parametrize("checkpoint", [EVERY_STEP, NEVER], ids=["every step", "none"])
@pytest.mark.parametrize("step", [2, 3, 4, 9])
def test_continued_after_a_crash(
    make: Make, tmp_path: Path, plain: dict[int, str], step: int, checkpoint: CheckpointOptions
) -> None:
    """Without checkpoints all steps are passed again, and what was kept stays as it was."""
    config = make(tmp_path / "run", snapshots=KEPT, checkpoint=checkpoint)
    stopped_after(step, config)
    folder = tmp_path / "run/snapshots"
    before = {p: p.stat().st_ino for p in folder.glob("*")}
    assert {int(p.name) for p in before} == {n for n in KEPT if n <= step}
    result = pretrain(config)
    assert digests(result) == {n: plain[n] for n in KEPT}
    assert {p: p.stat().st_ino for p in before} == before, "not written a second time"


def test_what_was_kept_is_not_replaced_by_other_bits(make: Make, tmp_path: Path) -> None:
    config = make(tmp_path / "run", snapshots=KEPT)
    stopped_after(5, config)
    kept = sha256(tmp_path / "run/snapshots/3" / WEIGHTS)
    result = pretrain(replace(config, precision="bf16"))
    assert sha256(result.snapshots[3] / WEIGHTS) == kept


@pytest.mark.parametrize("version", [0.1, 0.2])
def test_one_of_another_run_is_not_taken_for_its_own(
    make: Make, tmp_path: Path, plain: dict[int, str], version: float
) -> None:
    """Those of version 0.1 do not name their run, but its seed and corpus."""
    other = pretrain(make(tmp_path / "other", snapshots=KEPT, seed=7))
    config = make(tmp_path / "run", snapshots=KEPT)
    stopped_after(5, config)
    own = tmp_path / "run/snapshots/3"
    for folder in (own, other.snapshots[8]):
        about = json.loads((folder / ABOUT).read_text())
        if version == 0.1:
            del about["run"]
        (folder / ABOUT).write_text(json.dumps(about))
    shutil.copytree(other.snapshots[8], tmp_path / "run/snapshots/8")
    with pytest.raises(RunError, match=r"snapshots/8 is not a snapshot of this run: .*seed 7"):
        pretrain(config)
    shutil.rmtree(tmp_path / "run/snapshots/8")
    assert digests(pretrain(config)) == {step: plain[step] for step in KEPT}


def test_half_a_snapshot_is_written_again(
    make: Make, tmp_path: Path, plain: dict[int, str]
) -> None:
    config = make(tmp_path / "run", snapshots=KEPT)
    stopped_after(2, config)
    partial = tmp_path / "run/snapshots/.partial-3"
    partial.mkdir(parents=True)
    (partial / WEIGHTS).write_bytes(b"half")
    assert digests(pretrain(config))[3] == plain[3]
