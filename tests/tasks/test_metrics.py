"""Scores against figures worked out by hand, and what is said where there is no score."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bothways.errors import ConfigError
from bothways.tasks.metrics import choose_metrics, measure_classes, measure_scores

ALL = ("accuracy", "f1", "matthews")
BOTH = ("pearson", "spearman")


def classes(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_binary_scores_are_of_the_second_label() -> None:
    # true positives 3, false positives 1, false negatives 2, true negatives 4
    gold = classes(1, 1, 1, 1, 1, 0, 0, 0, 0, 0)
    predicted = classes(1, 1, 1, 0, 0, 1, 0, 0, 0, 0)
    found = measure_classes(ALL, predicted, gold, ("no", "yes"))
    assert found.scores["accuracy"] == pytest.approx(7 / 10)
    assert found.scores["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert found.scores["matthews"] == pytest.approx((3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6))
    assert list(found.scores) == list(ALL)
    assert not found.notes
    assert not found.collapsed


def test_f1_of_more_classes_is_the_mean_over_all_of_them() -> None:
    found = measure_classes(
        ("f1",), classes(0, 0, 1, 1), classes(0, 0, 1, 0), ("a", "b", "never seen")
    )
    assert found.scores["f1"] == pytest.approx((4 / 5 + 2 / 3 + 0) / 3)
    assert found.notes == ("f1 counts labels neither in data nor predictions as 0: 'never seen'",)
    found = measure_classes(("f1",), classes(0, 2, 1), classes(0, 0, 1), ("a", "b", "predicted"))
    assert not found.notes


def test_a_collapsed_classifier_is_named() -> None:
    found = measure_classes(ALL, classes(1, 1, 1, 1), classes(1, 0, 1, 1), ("no", "yes"))
    assert found.scores == {"accuracy": 0.75, "f1": pytest.approx(6 / 7), "matthews": 0.0}
    assert found.collapsed
    assert found.notes == ("collapsed: 'yes' for all 4 examples",)


def test_f1_without_positives_is_noted() -> None:
    found = measure_classes(("f1",), classes(0, 0), classes(0, 0), ("no", "yes"))
    assert found.scores == {"f1": 0.0}
    assert any("f1 is undefined" in note for note in found.notes)


def test_correlations() -> None:
    predicted, gold = np.array([1.0, 2, 3, 10]), np.array([1.0, 2, 4, 3])
    found = measure_scores(BOTH, predicted, gold)
    x, y = predicted - predicted.mean(), gold - gold.mean()
    assert found.scores["pearson"] == pytest.approx((x @ y) / math.sqrt((x @ x) * (y @ y)))
    assert found.scores["spearman"] == pytest.approx(1 - 6 * 2 / (4 * 15))


@pytest.mark.parametrize(
    ("predicted", "gold", "why"),
    [
        ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0], "all predictions are the same"),
        # Rounding alone must not be given a correlation.
        ([2.0, 2.0 + 1e-7, 2.0], [1.0, 2.0, 3.0], "all predictions are the same"),
        ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], "all scores in the data are the same"),
        ([1.0], [2.0], "fewer than two"),
    ],
)
def test_undefined_correlations_are_zero_and_noted(
    predicted: list[float], gold: list[float], why: str
) -> None:
    found = measure_scores(BOTH, np.array(predicted, np.float32), np.array(gold, np.float32))
    assert found.scores == {"pearson": 0.0, "spearman": 0.0}
    assert why in found.notes[0]
    assert found.collapsed == ("predictions" in why)


def test_large_scores_that_differ_are_no_constant() -> None:
    gold = np.array([1e7, 1e7 + 1, 1e7 + 2], np.float32)
    found = measure_scores(BOTH, np.array([1.0, 2.0, 3.0], np.float32), gold)
    assert found.scores == {"pearson": pytest.approx(1), "spearman": pytest.approx(1)}


def test_usual_metrics() -> None:
    assert choose_metrics("classification", (), 2) == ALL
    assert choose_metrics("classification", (), 3) == ("accuracy",)
    assert choose_metrics("regression", (), 0) == BOTH
    assert choose_metrics("classification", ("f1", "accuracy"), 3) == ("f1", "accuracy")


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("classification", "pearson"), ("regression", "accuracy"), ("classification", "f2")],
)
def test_metrics_of_the_wrong_kind_are_refused(kind: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{wanted}' is not a metric for {kind}; choose from"):
        choose_metrics(kind, (wanted,), 2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="twice"):
        choose_metrics("classification", ("f1", "f1"), 2)
