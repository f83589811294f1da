"""Several tasks in one command, on small files in GLUE's layouts and a tiny model."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from bothways import cli
from bothways.errors import ConfigError, DivergenceError, ModelError
from bothways.finetuning import finetune as jobs
from bothways.finetuning.glue import glue
from bothways.finetuning.options import FinetuneConfig, GlueConfig
from bothways.finetuning.results import SeedResult
from bothways.model.engine import as_loaded
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import encode_file, evaluate_file, outputs_of, predict_texts
from bothways.tasks.catalogue import recipe_of
from bothways.tasks.labels import match_labels
from bothways.tasks.options import TaskOptions
from model_examples import small_bert, small_config, small_tokenizer

VOCABULARY = 97


SHAPE = (2, 32, 4, 64, VOCABULARY)


NLI = ("contradiction", "entailment", "neutral")


def text(rng: np.random.Generator) -> str:
    return " ".join(f"w{i}" for i in rng.integers(8, 90, 4)) + ' "w1'


def table(path: Path, columns: str, rows: list[str], header: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([columns] * header + rows) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with CoLA and MNLI as they are distributed, RTE without its training file, and
    WNLI without a test file."""
    folder = tmp_path_factory.mktemp("glue")
    rng = np.random.default_rng(0)
    for name, count in (("train", 24), ("dev", 10)):
        rows = [f"gj\t{i % 2}\t\t{text(rng)}" for i in range(count)]
        table(folder / f"CoLA/{name}.tsv", "", rows, header=False)
        rows = [f"{i}\t{text(rng)}\t{text(rng)}\t{i % 2}" for i in range(count)]
        table(folder / f"WNLI/{name}.tsv", "index\tsentence1\tsentence2\tlabel", rows)
    table(folder / "CoLA/test.tsv", "index\tsentence", [f"{i}\t{text(rng)}" for i in range(3)])
    for name, count in (("train", 24), ("dev_matched", 9), ("dev_mismatched", 6)):
        rows = [f"{i}\t{text(rng)}\t{text(rng)}\t{NLI[i % 3]}" for i in range(count)]
        table(folder / f"MNLI/{name}.tsv", "index\tsentence1\tsentence2\tgold_label", rows)
    for name in ("test_matched", "test_mismatched"):
        rows = [f"{i}\t{text(rng)}\t{text(rng)}" for i in range(4)]
        table(folder / f"MNLI/{name}.tsv", "index\tsentence1\tsentence2", rows)
    table(folder / "RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel", ["0\ta\tb\tentailment"])
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "model"
    save_model(folder, EncoderModel(small_config(SHAPE), seed=3), small_tokenizer(VOCABULARY))
    return folder


@pytest.fixture(scope="module")
def finished(data: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the verb leaves, two seeds of each task."""
    run = tmp_path_factory.mktemp("run") / "glue"
    words = (
        f"--data {data} --model {start} --run {run} --seeds 0 1 --epochs 1 --max-length 24 "
        "--lr 1e-3 --set dropout=0.05"
    )
    assert (
        cli.main(["reproduce", "glue", *words.split(), "--set", "precision=fp32", "threads=1"]) == 0
    )
    return run


def config_of(data: Path, start: Path, run: Path) -> GlueConfig:
    return GlueConfig(
        data=str(data),
        model=str(start),
        run=str(run),
        seeds=(0, 1),
        epochs=1,
        lr=1e-3,
        max_length=24,
        dropout=0.05,
        precision="fp32",
        threads=1,
    )


def test_every_task_that_is_there_is_trained(finished: Path) -> None:
    kept = json.loads((finished / "table.json").read_text())
    rows = [(row["task"], row["file"], row["metric"], len(row["scores"])) for row in kept["rows"]]
    assert rows == [
        ("mnli", "dev_matched", "accuracy", 2),
        ("mnli", "dev_mismatched", "accuracy", 2),
        ("cola", "dev", "matthews", 2),
        ("cola", "dev", "accuracy", 2),
        ("wnli", "dev", "accuracy", 2),
    ]
    assert kept["average"]["rows"] == ["mnli dev_matched", "mnli dev_mismatched", "cola dev"]
    mean = np.mean([row["mean"] for row in kept["rows"][:3]])
    assert kept["average"]["ours"] == pytest.approx(mean)
    assert set(kept["seconds"]) == {"mnli", "cola", "wnli"}
    notes = "\n".join(kept["notes"])
    assert "rte is left out: there is no " in notes
    assert "wnli: " in notes
    lines = (finished / "table.md").read_text()
    assert "| MNLI | dev_mismatched | accuracy |" in lines
    assert "| learning rate | 0.001 |" in lines
    assert "| dropout | 0.05 | 0.1 |" in lines
    config = json.loads((finished / "cola/run.json").read_text())["config"]
    assert (config["epochs"], config["max_length"], config["dropout"]) == (1, 24, 0.05)
    assert config["lr"] == 1e-3


def test_the_submission_is_of_the_best_seed(finished: Path) -> None:
    folder = finished / "submission"
    assert {p.name for p in folder.iterdir()} == {"CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"}
    best = json.loads((finished / "mnli/report.json").read_text())["best_seed"]
    made = finished / f"mnli/seed-{best}/test_mismatched_predictions.tsv"
    lines = [line.split("\t")[:2] for line in made.read_text().splitlines()]
    assert (folder / "MNLI-mm.tsv").read_text() == "".join("\t".join(x) + "\n" for x in lines)
    assert lines[0] == ["index", "prediction"]
    assert [number for number, _ in lines[1:]] == ["0", "1", "2", "3"]
    assert {label for _, label in lines[1:]} <= set(NLI)


def test_more_files_are_measured_as_evaluate_measures_them(finished: Path, data: Path) -> None:
    kept = json.loads((finished / "mnli/seed-1/metrics.json").read_text())
    loaded = load_model(finished / "mnli/seed-1/model")
    found = evaluate_file(loaded, data / "MNLI/dev_mismatched.tsv")
    assert kept["further"]["dev_mismatched"]["scores"] == found.scores
    about = loaded.about
    assert not {"train", "measure", "reference", "submission"} & set(about["options"])


def test_again_it_keeps_what_is_finished_and_trains_what_is_not(
    finished: Path, data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "cola/seed-1")
    trained = []
    real = jobs.train_seed

    def watched(*args: Any) -> SeedResult:
        result = real(*args)
        trained.append(result.folder)
        return result

    monkeypatch.setattr(jobs, "train_seed", watched)
    result = glue(config_of(data, start, run))
    assert trained == [run / "cola/seed-1"]
    before = json.loads((finished / "table.json").read_text())["rows"]
    assert json.loads((run / "table.json").read_text())["rows"] == before
    assert "for the server, in" in result.text()
    own = tmp_path / "cola.yaml"
    shutil.copy(recipe_of("cola"), own)
    with pytest.raises(ConfigError, match="rename a file"):
        glue(dataclasses.replace(config_of(data, start, run), tasks=("cola", str(own))))


def test_a_task_that_diverges_does_not_hold_up_the_others(
    data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = jobs.train_seed

    def diverging(config: FinetuneConfig, *args: Any) -> SeedResult:
        if config.task.name == "CoLA":
            raise DivergenceError("step 3: the gradient is nan")
        return real(config, *args)

    monkeypatch.setattr(jobs, "train_seed", diverging)
    config = dataclasses.replace(config_of(data, start, tmp_path / "run"), seeds=(0,))
    result = glue(dataclasses.replace(config, tasks=("cola", "wnli")))
    assert [row.task for row in result.rows] == ["wnli"]
    assert "- cola is left out: step 3: the gradient is nan" in result.lines
    with pytest.raises(DivergenceError):
        glue(dataclasses.replace(config, tasks=("cola",), run=str(tmp_path / "alone")))


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A classifier as transformers leaves it: three outputs without names, no bothways.json."""
    folder = tmp_path / "theirs"
    save_model(folder, small_bert(small_config(SHAPE), classes=3), small_tokenizer(VOCABULARY))
    (folder / "bothways.json").unlink()
    return folder


@pytest.mark.parametrize("names", [("yes", "no"), ("Yes", "NO"), ("no", "yes")])
def test_f1_is_that_of_the_tasks_second_label(names: tuple[str, ...], tmp_path: Path) -> None:
    model = small_bert(small_config(SHAPE), classes=2, seed=24)
    about = {"kind": "classification", "labels": [*names]}
    loaded = as_loaded(model, small_tokenizer(VOCABULARY), about)
    texts = [f"w{n} w{n + 1}" for n in range(40)]
    predicted = [label.lower() for label in predict_texts(loaded, texts).labels]
    assert len(set(predicted)) == 2
    gold = ["yes", "no", "no", "no"] * 10
    lines = ["sentence\tlabel", *map("\t".join, zip(texts, gold, strict=True))]
    (tmp_path / "dev.tsv").write_text("\n".join(lines) + "\n")
    for labels in ("no", "yes"), ("yes", "no"):
        options = TaskOptions(labels=labels, metrics=("f1", "accuracy"))
        found = evaluate_file(loaded, tmp_path / "dev.tsv", options=options)
        expected = f1_score(gold, predicted, pos_label=labels[1])
        assert found.scores["f1"] == pytest.approx(expected)
        assert found.scores["accuracy"] == pytest.approx(accuracy_score(gold, predicted))
        assert found.notes == (f"f1 is that of the class '{labels[1]}'",)
        task, part = encode_file(loaded, tmp_path / "dev.tsv", labelled=False, options=options)
        outputs = outputs_of(loaded, task, part.examples)
        header, *rows = task.table(part, task.decode(part, outputs))
        assert header == ["index", "prediction", *(f"p({label})" for label in labels)]
        assert [row[1] for row in rows] == predicted


def test_labels_are_matched_by_name_and_else_by_order() -> None:
    assert match_labels(("b", "a"), ("a", "b")) == (("b", "a"), ())
    assert match_labels(("b", "a"), ()) == (("b", "a"), ())
    assert match_labels(("NO", "Yes"), ("yes", "no")) == (("no", "yes"), ())
    # By position, each would be taken for the other.
    with pytest.raises(ModelError, match="some are the same, so the others cannot be matched"):
        match_labels(("not entailment", "entailment"), ("entailment", "not_entailment"))
    assert match_labels(("no", "No"), ("No", "NO"))[0] == ("No", "NO")
    labels, notes = match_labels(("LABEL_0", "LABEL_1"), ("0", "1"))
    assert labels == ("0", "1")
    assert notes == (
        "label names do not match; matched by position: 'LABEL_0' as '0', 'LABEL_1' as '1'",
    )
    with pytest.raises(ModelError, match=r"has 3 labels .* the task 2"):
        match_labels(("x", "y", "z"), ("0", "1"))
