"""Several tasks in one command, on small files in GLUE's layouts and a tiny model."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from sklearn.metrics import accuracy_score, f1_score

from bothways import cli
from bothways.errors import ConfigError, DivergenceError, InputError, ModelError, RunError
from bothways.finetuning import finetune as jobs
from bothways.finetuning import glue as module
from bothways.finetuning.finetune import finetune
from bothways.finetuning.glue import glue
from bothways.finetuning.options import FinetuneConfig, GlueConfig, SearchOptions
from bothways.finetuning.results import SeedResult
from bothways.finetuning.setup import file_digests
from bothways.model.engine import as_loaded
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import encode_file, evaluate_file, outputs_of, predict_texts
from bothways.tasks.catalogue import recipe_of, task_recipe
from bothways.tasks.labels import match_labels
from bothways.tasks.options import TaskOptions
from bothways.training.runfolder import LOCK
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
        f"--data {data} --model {start} --run {run} --seeds 0 1 --epochs 1 --length 24 --lr 1e-3 "
        "--dropout 0.05"
    )
    assert cli.main(["glue", *words.split(), "--precision", "fp32", "--threads", "1"]) == 0
    return run


def config_of(data: Path, start: Path, run: Path) -> GlueConfig:
    return GlueConfig(
        data=str(data),
        model=str(start),
        run=str(run),
        seeds=(0, 1),
        epochs=1,
        lr=1e-3,
        length=24,
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
    assert (config["epochs"], config["length"], config["dropout"]) == (1, 24, 0.05)
    assert config["optimizer"]["lr"] == 1e-3


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


def test_the_model_reads_files_with_and_without_a_header(
    finished: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CoLA's: the folder remembers the columns, each file says whether it names them."""
    model = str(finished / "cola/seed-0/model")
    assert cli.main(["evaluate", model, str(data / "CoLA/dev.tsv")]) == 0
    shown = capsys.readouterr().out
    kept = json.loads((finished / "cola/seed-0/metrics.json").read_text())["scores"]
    assert f"matthews: {kept['matthews']:.4f}" in shown
    words = ["predict", model, "--submission", "--file", str(data / "CoLA/test.tsv")]
    assert cli.main(words) == 0
    made = (finished / "cola/seed-0/test_predictions.tsv").read_text().splitlines()
    found = [line.split("\t")[:2] for line in made]
    assert capsys.readouterr().out.splitlines() == ["\t".join(row) for row in found]
    assert cli.main(["evaluate", model, str(data), "--task", "cola"]) == 1
    assert "is a folder, but --task needs" in capsys.readouterr().err


def test_what_a_file_declares_holds_where_nothing_is_asked(
    data: Path, start: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "task: {name: own, train: WNLI/train.tsv, dev: WNLI/dev.tsv, text_a: sentence1}\n"
        "seeds: [3, 4]\nprecision: fp32\nthreads: 1\nepochs: 1\nlength: 24\n"
    )
    config = GlueConfig(
        data=str(data), model=str(start), run=str(tmp_path / "run"), tasks=(str(own),)
    )
    recipe = module._recipe(config, str(own))
    assert (recipe.seeds, recipe.precision, recipe.threads) == ((3, 4), "fp32", 1)
    asked = dataclasses.replace(config, seeds=(7,), precision="bf16", threads=2)
    recipe = module._recipe(asked, str(own))
    assert (recipe.seeds, recipe.precision, recipe.threads) == ((7,), "bf16", 2)
    own.write_text(own.read_text() + "model: elsewhere\n")
    with pytest.raises(ConfigError, match="starts from elsewhere, and --model is"):
        module._recipe(config, str(own))


def test_a_task_may_search_its_settings(data: Path, start: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "task: {name: own, train: WNLI/train.tsv, dev: WNLI/dev.tsv, text_a: sentence1}\n"
        "search: {lr: [1.0e-3, 2.0e-3]}\nprecision: fp32\nthreads: 1\nepochs: 1\nlength: 24\n"
    )
    config = GlueConfig(
        data=str(data), model=str(start), run=str(tmp_path / "run"), tasks=(str(own),)
    )
    found = glue(config)
    (result,) = found.results.values()
    assert result.search is not None
    shown = (tmp_path / "run/table.md").read_text()
    assert f"| learning rate | {result.setting['lr']:g} |  |" in shown, "nothing is published"
    trained = sum(seed.seconds for one in result.search.settings for seed in one.seeds)
    (seconds,) = json.loads((tmp_path / "run/table.json").read_text())["seconds"].values()
    assert seconds == pytest.approx(trained)
    with pytest.raises(ConfigError, match=r"--lr is given, and .* searches it"):
        glue(dataclasses.replace(config, lr=1e-3))


def test_all_tasks_may_search_the_same_settings(data: Path, start: Path, tmp_path: Path) -> None:
    words = (
        f"glue --data {data} --model {start} --run {tmp_path / 'run'} --tasks wnli --epochs 1 "
        "--length 24 --precision fp32 --threads 1 --search.lr 1e-3 2e-3 --search.select best"
    )
    assert cli.main(words.split()) == 0
    own = tmp_path / "own.yaml"
    own.write_text(
        "task: {name: own, train: WNLI/train.tsv, dev: WNLI/dev.tsv, text_a: sentence1}\n"
        "search: {lr: [1.0e-3, 2.0e-3]}\n"
    )
    both = GlueConfig(data=str(data), run="r", search=SearchOptions(batch=(8, 16), select="best"))
    search = module._recipe(both, str(own)).search
    assert (search.lr, search.batch, search.select) == ((1e-3, 2e-3), (8, 16), "best")
    search = json.loads((tmp_path / "run/wnli/run.json").read_text())["config"]["search"]
    assert (search["lr"], search["select"]) == ([1e-3, 2e-3], "best")
    assert len(list((tmp_path / "run/wnli").glob("lr-*/seed-0"))) == 2


def test_a_tagger_has_no_submission(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("task: {name: own, kind: tagging, submission: [own.tsv]}\n")
    with pytest.raises(ConfigError, match="one prediction per example; tagging gives many"):
        task_recipe(str(own))


def test_the_content_of_every_file_counts(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    options = task_recipe("mnli", data=str(folder)).located().task
    before = file_digests(options)
    assert set(before) == {
        "task.train",
        "task.dev",
        "task.test",
        "task.measure[0]",
        "task.predict[0]",
    }
    assert before == file_digests(task_recipe("mnli", data=str(data)).located().task), (
        "not the place"
    )
    with (folder / "MNLI/dev_mismatched.tsv").open("a") as file:
        file.write("6\ta\tb\tneutral\n")
    after = file_digests(options)
    assert [name for name in before if before[name] != after[name]] == ["task.measure[0]"]
    assert file_digests(dataclasses.replace(options, test=None))["task.test"] == ""


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


def test_two_commands_do_not_share_a_folder(data: Path, start: Path, tmp_path: Path) -> None:
    config = config_of(data, start, tmp_path / "run")
    (tmp_path / "run").mkdir()
    with (
        FileLock((tmp_path / "run" / LOCK).absolute(), is_singleton=False),
        pytest.raises(RunError, match=r"another process or thread is using .*run; two would"),
    ):
        glue(config)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]


def test_finished_tasks_that_are_not_named_are_named(
    finished: Path, data: Path, start: Path, tmp_path: Path
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(finished, run)
    result = glue(dataclasses.replace(config_of(data, start, run), tasks=("wnli",)))
    told = "finished earlier and not part of this table: cola, mnli; name them too (--tasks)"
    assert f"- {told}" in result.lines


def test_a_file_obtained_later_is_predicted_by_the_finished_models(
    finished: Path, data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = tmp_path / "data"
    shutil.copytree(data, few)
    for name in ("CoLA/test.tsv", "MNLI/dev_mismatched.tsv", "MNLI/test_mismatched.tsv"):
        (few / name).unlink()
    config = config_of(few, start, tmp_path / "run")
    config = dataclasses.replace(config, tasks=("cola", "mnli"))
    glue(config)
    submission = tmp_path / "run/submission"
    assert {path.name for path in submission.iterdir()} == {"MNLI-m.tsv"}

    monkeypatch.setattr(jobs, "train_seed", None)
    result = glue(dataclasses.replace(config, data=str(data)))
    assert [row.file for row in result.rows if row.main] == ["dev", "dev_matched", "dev_mismatched"]
    for name in ("CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"):
        assert (submission / name).read_bytes() == (finished / "submission" / name).read_bytes()


def test_a_task_asked_for_by_name_must_be_there(data: Path, start: Path, tmp_path: Path) -> None:
    config = config_of(data, start, tmp_path / "run")
    with pytest.raises(InputError, match=r"RTE/train\.tsv: there is no such file \(task rte\)"):
        glue(dataclasses.replace(config, tasks=("cola", "rte")))
    assert not (tmp_path / "run").exists(), "refused before anything was trained"
    with pytest.raises(InputError, match="no GLUE task"):
        glue(dataclasses.replace(config, data=str(tmp_path)))
    with pytest.raises(ConfigError, match="did you mean 'cola'"):
        glue(dataclasses.replace(config, tasks=("coal",)))


# --------------------------------------------------------------- one declared task, and its files


def test_missing_and_clashing_files_are_refused(data: Path, start: Path, tmp_path: Path) -> None:
    def run(name: str, **changes: object) -> None:
        finetune(task_recipe(name, data=str(data), model=str(start), run=str(tmp_path), **changes))

    with pytest.raises(InputError, match=r"RTE/train\.tsv: there is no such file \(task\.train, "):
        run("rte")
    with pytest.raises(InputError, match=r"WNLI/test\.tsv: .* --task\.test null leaves it out"):
        run("wnli")
    files = {"task.measure": ["MNLI/dev_matched.tsv", "CoLA/../MNLI/dev_matched.tsv"]}
    with pytest.raises(ConfigError, match=r"2 files would write dev_matched_predictions\.tsv"):
        run("mnli", **files)
    with pytest.raises(ConfigError, match=r"2 files would write dev_predictions\.tsv"):
        run("mnli", **{"task.measure": ["CoLA/dev.tsv"]})


# ------------------------------------------------------------- folders that do not name their task


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A classifier as transformers leaves it: three outputs without names, no bothways.json."""
    folder = tmp_path / "theirs"
    save_model(folder, small_bert(small_config(SHAPE), classes=3), small_tokenizer(VOCABULARY))
    (folder / "bothways.json").unlink()
    return folder


def test_the_user_names_the_columns(
    theirs: Path, data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = str(data / "MNLI/dev_matched.tsv")
    assert cli.main(["evaluate", str(theirs), file]) == 1
    assert "--task mrpc" in capsys.readouterr().err
    assert cli.main(["evaluate", str(theirs), file, "--task", "mnli"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("accuracy: ")
    assert "'LABEL_0' as 'contradiction', 'LABEL_1' as 'entailment'" in shown.err
    out = tmp_path / "MNLI-m.tsv"
    words = ["--task", "mnli", "--submission", "--out", str(out)]
    test = str(data / "MNLI/test_matched.tsv")
    assert cli.main(["predict", str(theirs), "--file", test, *words]) == 0
    lines = [line.split("\t") for line in out.read_text().splitlines()]
    assert lines[0] == ["index", "prediction"]
    assert len(lines) == 5
    assert {label for _, label in lines[1:]} <= set(NLI)
    assert cli.main(["predict", str(theirs), "one text", "--submission"]) == 1
    assert "need --file" in capsys.readouterr().err


def test_columns_by_option(
    theirs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of a file that no task declares: texts and pairs, to predict and to evaluate."""
    file, out = tmp_path / "reviews.csv", tmp_path / "out.csv"
    rows = [(f"w{n} w{n + 1}", f"w{n + 2}", f"LABEL_{n % 3}") for n in range(6)]
    file.write_text("review,reply,mark\n" + "".join(",".join(row) + "\n" for row in rows))
    loaded = load_model(theirs)

    def predicted(*words: str) -> list[str]:
        assert (
            cli.main(["predict", str(theirs), "--file", str(file), "--out", str(out), *words]) == 0
        )
        with out.open(newline="") as lines:
            return [row["prediction"] for row in csv.DictReader(lines)]

    firsts, seconds, gold = zip(*rows, strict=True)
    single, pairs = (
        predict_texts(loaded, firsts).labels,
        predict_texts(loaded, firsts, seconds).labels,
    )
    assert predicted("--text", "review") == single
    assert predicted("--text_a", "review", "--text_b", "reply", "--keep", "mark") == pairs
    capsys.readouterr()
    words = ["evaluate", str(theirs), str(file), "--text", "review", "--label", "mark"]
    assert cli.main(words) == 0
    right = accuracy_score(gold, single)
    assert capsys.readouterr().out.startswith(f"accuracy: {right:.4f}\n")
    assert cli.main([*words, "--text_b", "reply"]) == 0
    right = accuracy_score(gold, pairs)
    assert capsys.readouterr().out.startswith(f"accuracy: {right:.4f}\n")
    file.write_text(file.read_text().replace("LABEL_", "class "))
    assert cli.main([*words, "--labels", "class 0", "class 1", "class 2"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"accuracy: {accuracy_score(gold, single):.4f}\n")
    assert "matched by position: 'LABEL_0' as 'class 0'" in shown.err
    for more, message in (
        ([], "unknown label 'class 0'; the labels are 'LABEL_0'"),
        (["--task", "mnli"], "both say which columns the file has; give one"),
        (["--label", "stars"], "no column 'stars'"),
        (["--label", ""], "no column ''"),
    ):
        assert cli.main([*words, *more]) == 1
        assert message in capsys.readouterr().err
    assert cli.main(["predict", str(theirs), "w1", "--text", "review"]) == 1
    assert "is a column of --file" in capsys.readouterr().err


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
