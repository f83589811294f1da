"""Recomputed tables, computed in earnest: with few steps on little text, and as a process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bothways import cli
from bothways.config.fields import changed
from bothways.experiments import documentation
from bothways.experiments.documentation import TextOptions
from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce import run
from bothways.experiments.reproduce.run import reproduce
from bothways.experiments.reproduce.tables import SCALES, TABLES
from bothways.runtime.folder import load_model
from bothways.training.options import Phase


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smoke scale with a few steps on little text, and two rows."""
    smoke = SCALES["smoke"]
    recipe = changed(
        smoke.pretrain,
        {"clock.steps": 5, "model.hidden": 16, "evaluate.sequences": 16, "phases": (PHASE,)},
    )
    monkeypatch.setitem(
        SCALES,
        "smoke",
        dataclasses.replace(
            smoke,
            pretrain=recipe,
            finetune={"": {"epochs": 1, "length": 32, "batch": 16}},
            features=dataclasses.replace(smoke.features, hidden=8, epochs=1),
            heldout=16,
            seeds=1,
            vocabulary=dataclasses.replace(smoke.vocabulary, size=600),
            text=TextOptions(packages=("rich", "joblib", "pyarrow"), examples=30),
        ),
    )
    monkeypatch.setattr(run, "_rate", lambda _: 1e11)


PHASE = Phase(length=32, share=1.0, batch=4, micro_batch=4)


def keep_rows(monkeypatch: pytest.MonkeyPatch, name: str, *rows: int) -> None:
    table = TABLES[name]
    kept = dataclasses.replace(table, rows=tuple(table.rows[i] for i in rows), base=0)
    monkeypatch.setitem(TABLES, name, kept)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_tables_in_earnest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text, vocabulary, corpus, pre-training (left to right too), fine-tuning with a BiLSTM,
    features and held-out text, from the command line; shared between two tables."""
    out = tmp_path / "out"
    words = ["--out", str(out), "--threads", "1"]
    keep_rows(monkeypatch, "table5", 0, 3)
    assert cli.main(["reproduce", "table5", *words]) == 0
    assert "saved in" in capsys.readouterr().out
    told = json.loads((out / "table5-smoke/table.json").read_text())
    assert told["complete"]
    scores = [[c["mean"] for c in row["cells"]] for row in told["rows"]]
    assert all(0 <= score <= 100 for row in scores for score in row)
    assert [c["task"] for c in told["columns"]] == ["follows", "package"]
    made = {path.name: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    (left,) = [out / "runs" / name for name in made if name.startswith("pretrain-pairs-full")]
    assert load_model(left / "model").config.left_to_right
    assert (left / "snapshots/3").is_dir()
    assert not list((out / "runs").glob("finetune-*/seed-0/model")), "nothing is kept unasked"
    keep_rows(monkeypatch, "table8", 0)
    keep_rows(monkeypatch, "table7", 0, 3)
    keep_rows(monkeypatch, "vocabulary", 0)
    for name in ("table8", "table7", "vocabulary"):
        assert cli.main(["reproduce", name, *words]) == 0
        assert json.loads((out / f"{name}-smoke/table.json").read_text())["complete"]
    after = {path.name: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    assert {name: after[name] for name in made} == made, "what was there was left alone"
    new = sorted(name.split("-")[0] for name in after.keys() - made.keys())
    assert new == ["features", "finetune"], "and the pre-training was shared"
    text = (out / "table5-smoke/table.json").read_text()
    assert str(tmp_path) not in text, "results are for others too: no places of this machine"
    trained = next(s for s in told["steps"] if s["kind"] == "pretrain")
    assert trained["run"]["steps"] == 5
    assert "tokens, read about" in (out / "table5-smoke/table.md").read_text()
    bits = json.loads((out / "vocabulary-smoke/table.json").read_text())["rows"][0]["cells"][0]
    assert 0.5 < bits["mean"] < 20


def test_words_with_a_capital_are_tagged() -> None:
    tagged = documentation._tagged("See the Tick Tock class, or None.")
    assert tagged.split("\n") == [
        "see\tO", "the\tO", "tick\tB-CAP", "tock\tI-CAP", "class\tO", ",\tO", "or\tO",
        "none\tB-CAP", ".\tO",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TABLES if name != "table5"])
def test_every_table_at_smoke_scale(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In one folder, so that they share; table5 is computed by .ci/run."""
    out = tmp_path_factory.getbasetemp() / "smoke"
    reproduce(ReproduceConfig(name, out=str(out)))
    told = json.loads((out / f"{name}-smoke/table.json").read_text())
    assert told["complete"]


@pytest.mark.slow
def test_jobs_in_processes_of_their_own_and_a_kill(tmp_path: Path) -> None:
    """Two jobs; killed with their parent, or left behind by it, the same command goes on."""
    words = ["reproduce", "masks", "--jobs", "2", "--out", str(tmp_path / "out"), "--seeds", "0"]
    command = [sys.executable, "-m", "bothways", *words]
    begun = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 300
    while not list((tmp_path / "out").glob("runs/pretrain-*/metrics.jsonl")):
        assert time.monotonic() < deadline
        assert begun.poll() is None
        time.sleep(0.2)
    begun.kill()
    begun.wait()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out/masks-smoke/table.json").read_text())["complete"]
