"""Recomputed tables: which steps they share, how they resume, and what they show."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bothways import cli
from bothways.config.fields import changed
from bothways.errors import ConfigError, DivergenceError
from bothways.experiments.documentation import TextOptions
from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce import grid, run, steps
from bothways.experiments.reproduce.grid import Grid, make_grid
from bothways.experiments.reproduce.run import reproduce
from bothways.experiments.reproduce.steps import Step
from bothways.experiments.reproduce.tables import SCALES, TABLES
from bothways.runtime.folder import load_model
from bothways.training.options import Phase

FILES = {
    "glue": [f"{name}/{part}.tsv" for name in ("MRPC", "SST-2", "RTE", "QNLI", "CoLA", "STS-B")
             for part in ("train", "dev")]
    + ["MNLI/train.tsv", "MNLI/dev_matched.tsv"],
    "squad": ["train.json", "dev.json"],
    "ner": ["eng.train", "eng.testa", "eng.testb"],
    "sick": ["SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"],
}  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options that give every kind of data, which is read for its digest alone."""
    for folder, names in FILES.items():
        for name in names:
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{folder} {name}\n")
    (tmp_path / "text.txt").write_text("text\n")
    corpus = SimpleNamespace(read=lambda _: SimpleNamespace(fingerprint="abc"))
    monkeypatch.setattr(grid, "Manifest", corpus)
    monkeypatch.setattr(run, "draw", lambda *_: b"\x89PNG")  # drawing takes a second
    folders: dict[str, Any] = {name: str(tmp_path / name) for name in FILES}
    corpus_and_text = {"corpus": str(tmp_path / "corpus"), "text": (str(tmp_path / "text.txt"),)}
    return folders | corpus_and_text | {"out": str(tmp_path / "out"), "scale": "cpu"}


class Pretence:
    """Stands in for the computing of steps, and remembers them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stop_at: str = "", diverges: str = ""):
        self.done: list[str] = []
        self.stop_at, self.diverges = stop_at, diverges
        monkeypatch.setattr(steps, "_COMPUTE", dict.fromkeys(steps._COMPUTE, self.compute))

    def compute(self, step: Step, folder: Path) -> dict[str, Any]:
        if self.stop_at and self.stop_at in step.name:
            raise KeyboardInterrupt
        if self.diverges and self.diverges in step.name:
            raise DivergenceError("step 3: the gradient is nan")
        self.done.append(step.name)
        snapshots = step.config.snapshots if step.kind == "pretrain" else ()
        for part in ("model", "corpus.json", *(f"snapshots/{number}" for number in snapshots)):
            (folder / part).mkdir(parents=True, exist_ok=True)
        if step.kind == "heldout":
            return {"scores": {"perplexity": 9.0, "accuracy": 0.3, "bits_per_character": 2.0}}
        measured = {"scores": {"accuracy": 0.8, "f1": 0.7}, "collapsed": False}
        run = {**measured, "further": {"test": {"scores": {"f1": 0.55}, "collapsed": False}}}
        run = {"dev": 0.5, "test": 0.4} if step.kind == "features" else run
        if not step.parts:
            return {"steps": 1}
        runs = {part.name: run for part in step.parts if part.seed != 7}
        return {"runs": runs, "diverged": {p.name: "nan" for p in step.parts if p.seed == 7}}


def grid_of(name: str, **given: Any) -> Grid:
    config = ReproduceConfig(name, **given)
    return make_grid(TABLES[name], SCALES[config.scale], config)


def table_of(name: str, **given: Any) -> dict[str, Any]:
    config = ReproduceConfig(name, **given)
    reproduce(config)
    path = Path(config.out) / f"{name}-{config.scale}/table.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def kinds(names: Any) -> set[str]:
    return {name.split("-")[0] for name in names}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("scale", ["cpu", "gpu", "paper"])
def test_steps_come_after_those_they_need(name: str, scale: str, world: dict[str, Any]) -> None:
    found = grid_of(name, **{**world, "scale": scale})
    before: set[str] = set()
    for step in found.steps.values():
        assert set(step.needs) <= before
        before.add(step.name)
    read = {s.step for row in found.rows for cell in row.cells for s in cell}
    needed = {need for step in found.steps.values() for need in step.needs}
    assert read | needed == {*found.steps}, "nothing is computed that no cell reads"


def test_a_table_is_computed_once_and_shared(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Pretence(monkeypatch)
    table_of("table8", **world)
    first = list(done.done)
    assert sorted(first) == sorted(grid_of("table8", **world).steps)
    table_of("table8", **world)
    assert done.done == first, "nothing is computed again"
    table_of("table7", **world)
    assert kinds(done.done[len(first) :]) == {"features"}, "the other layers alone"
    table_of("table7", **world, seeds=(0, 1, 2, 3))
    more = done.done[len(first) + 1 :]
    assert kinds(more) == {"finetune", "features"}, "more seeds, the same encoder"


def test_runs_of_the_curves_are_those_of_table5(world: dict[str, Any]) -> None:
    curves, table = (grid_of(name, **world).steps for name in ("figure5", "table5"))
    runs = {name for name in curves if name.startswith("pretrain")}
    assert len(runs) == 2
    assert runs < {*table}
    assert all(table[name].config.snapshots == (400, 1000, 2000, 3000) for name in runs)


def test_an_interrupted_table_goes_on_and_shows_what_is_missing(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Pretence(monkeypatch, stop_at="finetune-sick-pairs-full-objective")
    with pytest.raises(KeyboardInterrupt):
        reproduce(ReproduceConfig("table5", **world))
    page = (Path(world["out"]) / "table5-cpu/table.md").read_text()
    assert "| LTR & no NSP | – (0 of 1) |" not in page
    assert "- LTR & no NSP, MNLI-m (SICK-E): not finished." in page
    rest = Pretence(monkeypatch)
    assert table_of("table5", **world)["complete"]
    assert not {*rest.done} & {*stopped.done}
    assert {*rest.done, *stopped.done} == {*grid_of("table5", **world).steps}


def test_divergence_is_a_result(world: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    done = Pretence(monkeypatch, diverges="pretrain-masking_rate-0.3")
    found = table_of("masking-rate", **world, seeds=(0, 7))
    missing = [[cell["missing"] for cell in row["cells"]] for row in found["rows"]]
    assert missing[0] == [[], ["seed 7 diverged: nan"], *[["seed 7 diverged: nan"]] * 2]
    assert all("pretrain-masking_rate-0.3" in text for (text,) in missing[1])
    done.done.clear()
    table_of("masking-rate", **world, seeds=(0, 7))
    assert not done.done, "it would diverge again"


def test_scores_are_means_over_all_runs(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Pretence(monkeypatch)
    found = table_of("table7", **world, pretrain_seeds=(0, 1))
    tuned, embeddings = (row["cells"] for row in found["rows"][:2])
    assert [(cell["mean"], len(cell["runs"])) for cell in tuned] == [
        (pytest.approx(70), 6), (pytest.approx(55), 6),
    ]  # fmt: skip
    assert [cell["mean"] for cell in embeddings] == [pytest.approx(50), pytest.approx(40)]
    assert embeddings[0]["published"] == 91.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"glue": None, "corpus": None}, "needs --corpus, --glue"),
        ({"scale": "smoke"}, "makes its own text"),
        ({"tasks": ("nope",)}, "no task 'nope'"),
        ({"recipe": "tiny", "steps": None}, "steps"),
    ],
)
def test_what_does_not_fit_is_refused_beforehand(
    changes: dict[str, Any], message: str, world: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=message):
        reproduce(ReproduceConfig("masking-rate", **{**world, **changes}))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smoke scale with a few steps on little text."""
    smoke, phase = SCALES["smoke"], Phase(length=32, share=1.0, batch=4, micro_batch=4)
    recipe = {"steps": 5, "hidden": 16, "evaluate_sequences": 16, "phases": (phase,)}
    small = dataclasses.replace(
        smoke,
        pretrain=changed(smoke.pretrain, recipe),
        finetune={"": {"epochs": 1, "max_length": 32, "batch_size": 16}},
        features=dataclasses.replace(smoke.features, hidden=8, epochs=1),
        heldout=16,
        seeds=1,
        vocabulary=dataclasses.replace(smoke.vocabulary, size=600),
        text=TextOptions(packages=("rich", "joblib", "pyarrow"), examples=30),
    )
    monkeypatch.setitem(SCALES, "smoke", small)


def keep_rows(monkeypatch: pytest.MonkeyPatch, name: str, *rows: int) -> None:
    kept = tuple(TABLES[name].rows[i] for i in rows)
    monkeypatch.setitem(TABLES, name, dataclasses.replace(TABLES[name], rows=kept, base=0))


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_tables_in_earnest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Text, vocabulary, corpus, pre-training (left to right too), fine-tuning with a BiLSTM,
    features and held-out text, from the command line; shared between tables."""
    out = tmp_path / "out"
    rows = {"table5": (0, 3), "table8": (0,), "table7": (0, 3), "vocabulary": (0,)}
    made: dict[str, int] = {}
    for name, kept in rows.items():
        keep_rows(monkeypatch, name, *kept)
        assert cli.main(["reproduce", name, "--out", str(out), "--set", "threads=1"]) == 0
        found = json.loads((out / f"{name}-smoke/table.json").read_text())
        assert found["complete"]
        assert str(tmp_path) not in json.dumps(found), "no places of this machine"
        now = {path.name: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
        assert {name: now[name] for name in made} == made, "what was there was left alone"
        made = now
    (left,) = (out / "runs").glob("pretrain-pairs-full*")
    assert load_model(left / "model").config.left_to_right
    assert (left / "snapshots/3").is_dir()
    assert not list((out / "runs").glob("finetune-*/seed-0/model"))
    assert 0.5 < found["rows"][0]["cells"][0]["mean"] < 20, "bits per character"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TABLES if name != "table5"])
def test_every_table_at_smoke_scale(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In one folder, so that they share; table5 is computed by .ci/run."""
    assert table_of(name, out=str(tmp_path_factory.getbasetemp() / "smoke"))["complete"]
