"""The evaluation server's files, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from bothways.finetuning.glue import write_submission
from bothways.finetuning.results import SeedResult
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.metrics import Measurement


def finished(folder: Path, **predictions: str) -> SeedResult:
    for name, text in predictions.items():
        (folder / f"{name}_predictions.tsv").write_text(text)
    return SeedResult(0, Measurement({}), folder, 1.0)


def data(folder: Path, *files: str) -> Path:
    for name in files:
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).write_text("x\n")
    return folder / "data"


def test_labels_as_the_training_file_writes_them(tmp_path: Path) -> None:
    seed = finished(
        tmp_path,
        test=(
            "index\tprediction\tp(entailment)\tp(not_entailment)\n"
            "0\tnot_entailment\t0.1\t0.9\n1\tentailment\t0.6\t0.4\n"
        ),
    )
    options = task_recipe("rte").task
    written = write_submission(options, data(tmp_path, "RTE/test.tsv"), seed, tmp_path / "s")
    assert written == [tmp_path / "s/RTE.tsv"]
    assert written[0].read_bytes() == b"index\tprediction\n0\tnot_entailment\n1\tentailment\n"


def test_scores(tmp_path: Path) -> None:
    seed = finished(tmp_path, test="index\tprediction\n0\t2.48125\n1\t4\n")
    options = task_recipe("stsb").task
    (path,) = write_submission(options, data(tmp_path, "STS-B/test.tsv"), seed, tmp_path / "s")
    assert (path.name, path.read_bytes()) == ("STS-B.tsv", b"index\tprediction\n0\t2.48125\n1\t4\n")


def test_mnli_has_two_files_and_what_is_not_there_is_passed_over(tmp_path: Path) -> None:
    seed = finished(
        tmp_path,
        test="index\tprediction\tp\n0\tneutral\t1\n",
        test_mismatched="index\tprediction\tp\n0\tcontradiction\t1\n",
    )
    options = task_recipe("mnli").task
    only = data(tmp_path, "MNLI/test_mismatched.tsv")
    written = write_submission(options, only, seed, tmp_path / "one")
    assert [path.name for path in written] == ["MNLI-mm.tsv"]
    assert written[0].read_bytes() == b"index\tprediction\n0\tcontradiction\n"
    both = data(tmp_path, "MNLI/test_matched.tsv")
    written = write_submission(options, both, seed, tmp_path / "two")
    assert [path.name for path in written] == ["MNLI-m.tsv", "MNLI-mm.tsv"]
    assert written[0].read_bytes() == b"index\tprediction\n0\tneutral\n"
    assert write_submission(task_recipe("nsmc").task, both, seed, tmp_path / "three") == []


@pytest.mark.parametrize("place", ["AX/AX.tsv", "diagnostic/diagnostic.tsv"])
def test_the_diagnostic_set_is_predicted_where_it_is(place: str, tmp_path: Path) -> None:
    recipe = task_recipe("mnli", data=str(tmp_path / "data"))
    assert len(recipe.located().task.predict) == 1
    found = data(tmp_path, place)
    assert recipe.located().task.predict[1:] == (str(found / place),)
    seed = finished(tmp_path, **{Path(place).stem: "index\tprediction\tp\n0\tneutral\t1\n"})
    (written,) = write_submission(recipe.task, found, seed, tmp_path / "s")
    assert (written.name, written.read_text()) == ("AX.tsv", "index\tprediction\n0\tneutral\n")


@pytest.mark.parametrize(
    ("name", "files"),
    {
        "cola": ["CoLA.tsv"],
        "sst2": ["SST-2.tsv"],
        "mrpc": ["MRPC.tsv"],
        "stsb": ["STS-B.tsv"],
        "mnli": ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv", "AX.tsv"],
        "qnli": ["QNLI.tsv"],
        "rte": ["RTE.tsv"],
        "wnli": ["WNLI.tsv"],
        "qqp": ["QQP.tsv"],
    }.items(),
)
def test_the_servers_names(name: str, files: list[str]) -> None:
    assert list(task_recipe(name).task.submission) == files
