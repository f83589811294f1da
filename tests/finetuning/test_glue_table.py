"""The table over tasks: the paper's average, what is compared with what, what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bothways.finetuning.glue import average, markdown, rows_of
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.results import FinetuneResult, SeedResult
from bothways.tasks.catalogue import GLUE, task_recipe
from bothways.tasks.metrics import Measurement


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
