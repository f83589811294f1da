"""Data and computing that tests of recomputed tables pretend to have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bothways.errors import DivergenceError, StoreError
from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce import grid, run
from bothways.experiments.reproduce.grid import Grid, make_grid
from bothways.experiments.reproduce.steps import Step
from bothways.experiments.reproduce.tables import SCALES, table_of

FILES = {
    "glue": [f"{name}/{part}.tsv" for name in ("MRPC", "SST-2", "RTE", "QNLI", "CoLA", "STS-B")
             for part in ("train", "dev")]
    + ["MNLI/train.tsv", "MNLI/dev_matched.tsv"],
    "squad": ["train.json", "dev.json"],
    "ner": ["eng.train", "eng.testa", "eng.testb"],
    "sick": ["SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"],
}  # fmt: skip
DATA = (*FILES, "corpus", "text")


class _GivenCorpus:
    """The manifest of a corpus of which only the fingerprint can be read."""

    fingerprint = "abc"

    @property
    def report(self) -> None:
        raise StoreError("not built")


def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options that give every kind of data, which is read for its digest alone."""
    for folder, names in FILES.items():
        for name in names:
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{folder} {name}\n")
    (tmp_path / "text.txt").write_text("text\n")
    monkeypatch.setattr(grid, "Manifest", SimpleNamespace(read=lambda _: _GivenCorpus()))
    whole = SimpleNamespace(
        documents=9, sentences=90, split="heldout", document_bounds=np.arange(0, 91, 10)
    )
    monkeypatch.setattr(grid, "TokenStore", SimpleNamespace(open=lambda *_: whole))
    monkeypatch.setattr(grid, "check_content", lambda *_: None)
    monkeypatch.setattr(run, "_rate", lambda _: 1e11)  # no probe of the machine
    monkeypatch.setattr(run, "draw", lambda *_: b"\x89PNG")  # drawing takes a second
    given: dict[str, Any] = {name: str(tmp_path / name) for name in FILES}
    return given | {
        "corpus": str(tmp_path / "corpus"),
        "text": (str(tmp_path / "text.txt"),),
        "out": str(tmp_path / "out"),
    }


def grid_of(name: str, scale: str = "smoke", **given: Any) -> Grid:
    if SCALES[scale].embedded:
        given = {option: value for option, value in given.items() if option not in DATA}
    config = ReproduceConfig(name, scale=scale, **given)  # type: ignore[arg-type]
    return make_grid(table_of(name), SCALES[scale], config)


def kinds(found: Grid, kind: str) -> list[Step]:
    return [step for step in found.steps.values() if step.kind == kind]


class Pretence:
    """Stands in for the computing of steps, and remembers what was asked."""

    def __init__(self, *, stop_at: str = "", diverges: str = "") -> None:
        self.done: list[str] = []
        self.parts: dict[str, list[str]] = {}
        self.kept: list[bool] = []
        self.stop_at, self.diverges = stop_at, diverges

    def __call__(self, step: Step, folder: Path, parts: list[str], *, keep: bool) -> dict[str, Any]:
        self.kept.append(keep)
        if self.stop_at and self.stop_at in step.name:
            raise KeyboardInterrupt
        if self.diverges and self.diverges in step.name:
            raise DivergenceError("step 3: the gradient is nan")
        self.done.append(step.name)
        self.parts[step.name] = list(parts)
        snapshots = step.config.snapshots if step.kind == "pretrain" else ()
        for part in (*step.outputs(), *(f"snapshots/{number}" for number in snapshots)):
            (folder / part).mkdir(parents=True, exist_ok=True)
        if step.kind == "heldout":
            return {"scores": {"perplexity": 9.0, "accuracy": 0.3, "bits_per_character": 2.0}}
        if step.kind == "features":
            return {"runs": {part: {"dev": 0.5, "test": 0.4} for part in parts}}
        if step.kind == "finetune":
            measured = {"scores": {"accuracy": 0.8, "f1": 0.7}, "collapsed": False}
            test = {"scores": {"accuracy": 0.6, "f1": 0.55}, "collapsed": False}
            runs = {p: {**measured, "further": {"test": test}} for p in parts if p != "7"}
            return {"runs": runs, "diverged": {"7": "seed 7: step 2"} if "7" in parts else {}}
        return {"steps": 1}


def pretend(monkeypatch: pytest.MonkeyPatch, **asked: str) -> Pretence:
    found = Pretence(**asked)
    monkeypatch.setattr(
        Step,
        "compute",
        lambda step, folder, parts, *, keep: found(step, folder, parts, keep=keep),
    )
    return found
