"""The table over tasks: the paper's average, what is compared with what, what is missing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from bothways.errors import RunError
from bothways.families.config import ModelConfig
from bothways.finetuning.glue import average, markdown, record, rows_of, settings
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.results import FinetuneResult, SeedResult
from bothways.tasks.catalogue import GLUE, task_recipe
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import Reference


def result_of(config: FinetuneConfig, scores: list[float], further: float = 0.5) -> FinetuneResult:
    """A finished run with these main scores, one a seed."""
    options = config.task

    def measured(score: float) -> Measurement:
        return Measurement(dict.fromkeys(options.metrics, score), collapsed=score == 0)

    more = {Path(name).stem: measured(further) for name in options.measure}
    seeds = [SeedResult(i, measured(s), Path(), 30.0, more) for i, s in enumerate(scores)]
    baseline = dict.fromkeys(options.metrics, 0.25)
    return FinetuneResult(Path(), options.name, options.metrics, tuple(seeds), baseline, 100)


def rows(name: str, *scores: float, further: float = 0.5):  # type: ignore[no-untyped-def]
    config = task_recipe(name)
    return rows_of(name, config, result_of(config, list(scores), further))


def test_the_declared_references_average_to_what_the_paper_prints() -> None:
    """Table 1's last column: a check of the declared scores, and of which rows are averaged."""
    found = average([row for name in GLUE for row in rows(name, 0.5)])
    assert len(found.rows) == 9
    assert not found.missing
    assert round(found.published["BERT-base"], 1) == 79.6
    assert round(found.published["BERT-large"], 1) == 82.1
    assert found.ours == pytest.approx(50)


def test_ours_and_theirs_are_averaged_over_the_same_rows() -> None:
    found = average([*rows("rte", 0.6, 0.8), *rows("mrpc", 0.9), *rows("wnli", 0.1)])
    assert found.rows == ("rte dev", "mrpc dev")
    assert found.ours == pytest.approx(80)
    assert found.published["BERT-base"] == pytest.approx((66.4 + 88.9) / 2)
    assert "mnli dev_mismatched" in found.missing
    assert "qqp dev" in found.missing
    assert not any("wnli" in name for name in found.missing)
    assert average(rows("wnli", 0.5)).ours is None
    assert average(rows("sick-entailment", 0.5)).ours is None, "not of GLUE"


def test_mnli_has_two_rows() -> None:
    matched, mismatched = rows("mnli", 0.7, 0.8, further=0.6)
    assert (matched.file, mismatched.file) == ("dev_matched", "dev_mismatched")
    assert (matched.mean, mismatched.mean) == (pytest.approx(75), pytest.approx(60))
    assert matched.published == {"BERT-base": 84.6, "BERT-large": 86.7}
    assert mismatched.published == {"BERT-base": 83.4, "BERT-large": 85.9}
    assert matched.published_dev == {"BERT-base": 84.4, "BERT-large": 86.6}
    assert mismatched.published_dev == {}
    config = task_recipe("mnli")
    finished = result_of(config, [0.7])
    for seed in finished.seeds:
        seed.further.clear()
    assert [row.file for row in rows_of("mnli", config, finished)] == ["dev_matched"]


def test_each_metric_stands_beside_the_published_score_of_its_own() -> None:
    """The paper's dev score of MRPC is accuracy, its test score F1, which is averaged."""
    f1, accuracy = rows("mrpc", 0.5)
    assert (f1.metric, f1.main) == ("f1", True)
    assert f1.published["BERT-base"] == 88.9
    assert f1.published_dev == {}
    assert (accuracy.metric, accuracy.main) == ("accuracy", False)
    assert accuracy.published_dev == {"BERT-base": 86.7, "BERT-large": 87.8}
    shown = markdown([f1, accuracy], {"mrpc": 60.0})
    assert shown[2].endswith("| 1 | 1.0 |")
    assert shown[3].endswith("|  |  |")


def test_markdown() -> None:
    found = [*rows("rte", 0.6, 0.7, 0.0), *rows("sst2", 0.9)]
    lines = markdown(found, {"rte": 90.0, "sst2": 30.0})
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert lines[2] == (
        "| RTE | dev | accuracy | 43.3 ± 37.9 | 25.0 |  |  | 66.4 | 70.1 | 3 (1 collapsed) | 1.5 |"
    )
    assert (
        lines[3] == "| SST-2 | dev | accuracy | 90.0 | 25.0 | 92.9 | 93.7 | 93.5 | 94.9 | 1 | 0.5 |"
    )
    assert lines[4].startswith("| **average** of 2 |  |  | 66.7 |")
    assert "Missing from it here: mnli dev_matched, mnli dev_mismatched, qqp dev," in lines[-1]
    alone = markdown(rows("wnli", 0.5), {"wnli": 1.0})
    assert len(alone) == 3, "no average without a row for it"
    assert "this file" not in alone[0], "no column for what is not published"


def test_a_file_that_was_renamed_between_seeds_is_named() -> None:
    config = task_recipe("mnli")
    finished = result_of(config, [0.7, 0.8])
    one, two = finished.seeds
    one = dataclasses.replace(one, further={"before": one.further["dev_mismatched"]})
    finished = dataclasses.replace(finished, seeds=(one, two))
    with pytest.raises(RunError, match=r"on before in addition to dev, but not on dev_mismatched"):
        rows_of("mnli", config, finished)


def test_record_and_settings() -> None:
    found = rows("rte", 0.6)
    kept = json.loads(json.dumps(record(found, {"rte": 30.0})))
    assert kept["rows"][0]["scores"] == [pytest.approx(60)]
    assert kept["rows"][0]["std"] is None
    assert kept["average"]["rows"] == ["rte dev"]
    assert kept["seconds"] == {"rte": 30.0}
    shape = ModelConfig(vocab_size=100, layers=6, hidden=384, heads=12, intermediate=1536)
    configs = [task_recipe("rte", epochs=1, batch=16, seeds=(3, 4)), task_recipe("mrpc")]
    text = "\n".join(settings(configs, shape, "minilm"))
    assert "| model | minilm: 6 layers, hidden 384 | base: 12 layers" in text
    assert "| epochs | 1 (RTE); 3 (MRPC) | 3 |" in text
    assert "| batch | 16 (RTE); 32 (MRPC) | 32 |" in text
    assert "| seeds | 3 4 (RTE); 0 (MRPC) |" in text
    mixed = "\n".join(settings([*configs, task_recipe("squad2"), task_recipe("nsmc")], shape, "m"))
    assert "| 3 (RTE, MRPC); 2 (SQuAD 2.0) |" in mixed, "the published settings of each task"
    assert "| 32 (RTE, MRPC); 48 (SQuAD 2.0) |" in mixed
    assert "| 128 (RTE, MRPC, NSMC); 384 (SQuAD 2.0) |" in mixed
    assert "dev (SQuAD 2.0)" in mixed
    alone = "\n".join(settings([task_recipe("rte"), task_recipe("nsmc")], shape, "m"))
    assert "| epochs | 3 | 3 (RTE) |" in alone, "nothing is published on NSMC"
    unnamed = [FinetuneConfig(epochs=5), FinetuneConfig(epochs=1)]
    assert "| epochs | 5 (task); 1 (task) |  |" in "\n".join(settings(unnamed, shape, "m"))


def test_the_scores_of_other_models_have_columns_too() -> None:
    config = task_recipe("rte")
    reference = Reference("a colleague's", "accuracy", 71.5, "dev", "last year's report")
    own = dataclasses.replace(config, task=dataclasses.replace(config.task, reference=(reference,)))
    found = rows_of("own.yaml", own, result_of(own, [0.5]))
    lines = markdown([*found, *rows("sst2", 0.9)], {"own.yaml": 60.0, "sst2": 60.0})
    assert "| BERT-base, this file | BERT-large, this file | a colleague's, this file |" in lines[0]
    assert "a colleague's, test" not in lines[0]
    assert "| 50.0 | 25.0 |  |  | 71.5 |" in lines[2]
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
