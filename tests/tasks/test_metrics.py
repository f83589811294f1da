"""Scores against figures worked out by hand, and what is said where there is no score."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from bothways.errors import ConfigError
from bothways.tasks.metrics import (
    Measurement,
    choose_metrics,
    measure_classes,
    measure_labels,
    measure_scores,
    tuned_threshold,
)

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


def test_it_is_said_whose_f1_it_is() -> None:
    two = measure_classes(ALL, classes(1, 0), classes(1, 0), ("no", "yes"))
    assert two.whose(ALL) == ("f1 is that of the class 'yes'",)
    assert two.whose(("f1", "recall")) == ("f1 and recall are those of the class 'yes'",)
    three = measure_classes(ALL, classes(1, 0, 2), classes(1, 0, 2), ("a", "b", "c"))
    assert three.whose(ALL) == ("f1 is the mean over the 3 classes (macro)",)
    assert two.whose(("accuracy", "matthews")) == ()
    assert measure_scores(BOTH, np.array([1.0, 2.0]), np.array([1.0, 2.0])).whose(BOTH) == ()


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
    with pytest.raises(
        ConfigError, match=rf"'{wanted}' is not a metric for {kind}[^;]*; choose from"
    ):
        choose_metrics(kind, (wanted,), 2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="twice"):
        choose_metrics("classification", ("f1", "f1"), 2)


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [("macro_f1", "f1_macro"), ("F1-macro", "f1_macro"), ("acuracy", "accuracy")],
)
def test_the_metric_that_is_meant_is_named(wanted: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{wanted}' is not .* \(did you mean '{meant}'\?\)"):
        choose_metrics("classification", (wanted,), 2)


def drawn(
    classes: int, count: int = 60, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, predicted and right classes."""
    rng = np.random.default_rng([classes, seed])
    p = rng.dirichlet(np.ones(classes), count)
    gold = np.where(rng.random(count) < 0.5, p.argmax(1), rng.integers(0, classes, count))
    return p, p.argmax(1), gold


@pytest.mark.parametrize("classes", [2, 3])
def test_every_metric_of_classes_is_scikit_learns(classes: int) -> None:
    from sklearn import metrics as theirs

    p, predicted, gold = drawn(classes)
    names = tuple(f"c{i}" for i in range(classes))
    known = (*ALL, "precision", "recall", "f1_macro", "f1_micro", "f1_weighted")
    known += ("balanced_accuracy", "roc_auc", "average_precision")
    found = measure_classes(known, predicted, gold, names, p)
    average = "binary" if classes == 2 else "macro"
    assert list(found.scores) == list(known)
    expected = {
        "precision": theirs.precision_score(gold, predicted, average=average),
        "recall": theirs.recall_score(gold, predicted, average=average),
        "f1": theirs.f1_score(gold, predicted, average=average),
        "f1_macro": theirs.f1_score(gold, predicted, average="macro"),
        "f1_micro": theirs.f1_score(gold, predicted, average="micro"),
        "f1_weighted": theirs.f1_score(gold, predicted, average="weighted"),
        "balanced_accuracy": theirs.balanced_accuracy_score(gold, predicted),
        "roc_auc": theirs.roc_auc_score(
            gold, p[:, 1] if classes == 2 else p, multi_class="ovr", average="macro"
        ),
        "average_precision": theirs.average_precision_score(
            gold if classes == 2 else np.eye(classes)[gold], p[:, 1] if classes == 2 else p
        ),
    }
    for name, value in expected.items():
        assert found.scores[name] == pytest.approx(float(value)), name
    for i, label in enumerate(names):
        part = found.parts[label]
        assert part["support"] == (gold == i).sum()
        assert part["predicted"] == (predicted == i).sum()
        assert part["f1"] == pytest.approx(theirs.f1_score(gold == i, predicted == i))


def test_ranks_of_a_class_that_is_absent() -> None:
    p, predicted, _ = drawn(2)
    found = measure_classes(("roc_auc",), predicted, np.zeros(60, np.int64), ("no", "yes"), p)
    assert found.scores == {"roc_auc": 0.0}
    assert found.notes == ("roc_auc undefined for labels not in the data: 'yes'",)


@pytest.mark.parametrize(
    "metric", ["f1", "accuracy", "matthews", "f1_macro", "f1_micro", "balanced_accuracy"]
)
def test_no_threshold_is_better_than_the_tuned_one(metric: str) -> None:
    names = ("no", "yes")
    for seed in range(20):
        p, _, gold = drawn(2, 12, seed)

        def score(threshold: float, p: np.ndarray = p, gold: np.ndarray = gold) -> float:
            predicted = (p[:, 1] >= threshold).astype(np.int64)
            return measure_classes((metric,), predicted, gold, names).scores[metric]

        best = score(tuned_threshold(metric, p[:, 1], gold == 1))
        assert best == pytest.approx(max(score(t) for t in [*p[:, 1], 0.5]))
        by_f1 = tuned_threshold("f1", p[:, 1], gold == 1)
        assert tuned_threshold("roc_auc", p[:, 1], gold == 1) == by_f1
    assert tuned_threshold(metric, p[:, 1], gold > 5) == 0.5
    assert tuned_threshold(metric, np.full(4, 0.3), classes(0, 0, 1, 1) == 1) <= 0.3


def test_further_metrics_of_several_labels_and_of_scores() -> None:
    from sklearn import metrics as theirs

    rng = np.random.default_rng(0)
    gold = rng.integers(0, 2, (40, 3))
    p = np.clip(gold * 0.3 + rng.random((40, 3)) * 0.7, 0, 1)
    known = ("f1_weighted", "precision_micro", "recall_micro", "roc_auc")
    known += ("ap_micro", "ap_macro", "subset_accuracy", "hamming_loss")
    found = measure_labels(known, p, p >= 0.5, gold, ("a", "b", "c")).scores
    given = (p >= 0.5).astype(int)
    assert found == pytest.approx(
        {
            "f1_weighted": theirs.f1_score(gold, given, average="weighted"),
            "precision_micro": theirs.precision_score(gold, given, average="micro"),
            "recall_micro": theirs.recall_score(gold, given, average="micro"),
            "roc_auc": theirs.roc_auc_score(gold, p),
            "ap_micro": theirs.average_precision_score(gold, p, average="micro"),
            "ap_macro": theirs.average_precision_score(gold, p, average="macro"),
            "subset_accuracy": theirs.accuracy_score(gold, given),
            "hamming_loss": theirs.hamming_loss(gold, given),
        }
    )
    assert choose_metrics("multilabel", ())[-1] == "hamming_loss"
    scores, right = rng.random(20), rng.random(20)
    measured = measure_scores(("pearson", "r2", "mae", "mse"), scores, right).scores
    assert measured["r2"] == pytest.approx(theirs.r2_score(right, scores))
    assert measured["mae"] == pytest.approx(theirs.mean_absolute_error(right, scores))
    constant = measure_scores(("r2", "pearson"), np.full(20, 0.5), right)
    assert constant.scores["r2"] == pytest.approx(theirs.r2_score(right, np.full(20, 0.5)))
    assert constant.notes == (
        "collapsed: pearson undefined (all predictions are the same); reported as 0",
    )


@pytest.mark.parametrize(
    ("choose", "error", "others"),
    [
        (
            lambda wanted: choose_metrics("multilabel", wanted),
            *("hamming_loss", ("f1_micro", "roc_auc")),
        ),
        (
            lambda wanted: choose_metrics("multiregression", wanted),
            *("mae", ("pearson", "spearman", "r2")),
        ),
        (lambda wanted: choose_metrics("regression", wanted, 0), "mse", ("pearson", "r2")),
    ],
)
def test_an_error_is_not_the_main_metric(
    choose: Callable[[tuple[str, ...]], object], error: str, others: tuple[str, ...]
) -> None:
    """Of an error the lowest is best, and the highest of the main one is kept."""
    message = rf"{error} is an error, of which the lowest is best; .* one of {'.*'.join(others)}"
    with pytest.raises(ConfigError, match=message) as refused:
        choose((error, *others))
    assert error not in str(refused.value).partition(" is one of ")[2]
    choose((*others, error))


def test_what_varies_by_a_thousandth_is_not_constant() -> None:
    gold = np.array([1.0, 2.0, 3.0, 4.0])
    for spread, constant in ((1e-3, False), (1e-4, False), (1e-8, True)):
        predicted = 5.0 + spread * np.array([0.0, 0.1, 0.2, 0.3])
        found = measure_scores(BOTH, predicted, gold)
        assert found.collapsed is constant
        assert found.scores["pearson"] == pytest.approx(0.0 if constant else 1.0)


def test_several_labels_by_hand() -> None:
    names = ("a", "b", "c", "d", "e", "f", "g")
    gold, predicted = np.zeros((4, 7)), np.zeros((4, 7), dtype=bool)
    gold[:, 0], gold[:2, 1] = [1, 1, 1, 0], 1
    predicted[:2, 0], predicted[0, 1], predicted[3, 1] = True, True, True
    probabilities = np.linspace(0.9, 0.1, 28).reshape(4, 7)
    wanted = ("f1_micro", "f1_macro", "subset_accuracy", "hamming_loss", "ap_macro")
    found = measure_labels(wanted, probabilities, predicted, gold, names)
    assert found.scores["f1_micro"] == pytest.approx(2 * 3 / (4 + 5))
    assert found.scores["f1_macro"] == pytest.approx((4 / 5 + 2 / 4) / 7)
    assert found.scores["subset_accuracy"] == 1 / 4  # the first is all right
    assert found.scores["hamming_loss"] == pytest.approx(3 / 28)
    part = found.parts["a"]
    assert list(part) == ["precision", "recall", "f1", "average_precision", "support"]
    assert (part["precision"], part["recall"], part["support"]) == (1.0, pytest.approx(2 / 3), 3.0)
    assert part["f1"] == pytest.approx(4 / 5)
    assert found.parts["c"]["average_precision"] == 0.0
    assert found.notes == (
        "macro averages count labels that no example has as 0: 'c', 'd', 'e', 'f', 'g'",
    )
    found = measure_labels(("f1_micro",), probabilities, predicted, gold, names)
    assert found.notes == ()  # nothing is averaged over labels
    record = found.record()
    assert list(record) == ["scores", "notes", "collapsed", "parts"]
    assert Measurement.from_record(record) == found
    six = measure_labels(
        ("f1_macro",), *(np.hstack([v, v[:, 6:]]) for v in (probabilities, predicted, gold)),
        (*names, "h"),
    )  # fmt: skip
    assert six.notes[0].endswith("'c', 'd', 'e', 'f', 'g' ...")


def test_the_same_labels_for_every_example_are_named() -> None:
    gold, names = np.eye(3), ("a", "b", "c")
    for given, shown in (([1, 0, 1], "'a', 'c'"), ([0, 0, 0], "no label")):
        predicted = np.array([given] * 3, dtype=bool)
        found = measure_labels(("f1_micro",), gold, predicted, gold, names)
        assert found.collapsed
        assert found.notes == (f"collapsed: {shown} for all 3 examples",)
    assert not measure_labels(("f1_micro",), gold, gold > 0, gold, names).collapsed
    assert not measure_labels(("f1_micro",), gold[:1], gold[:1] > 0, gold[:1], names).collapsed


def test_scores_where_one_label_of_one_example_is_right() -> None:
    metrics = ("f1_weighted", "precision_micro", "recall_micro")
    gold = np.array([[0, 1], [0, 0]])
    for given, score in ((gold, 1.0), (1 - gold, 0.0), (0 * gold, 0.0)):
        found = measure_labels(metrics, given / 2, given > 0, gold, ("a", "b"))
        assert found.scores == dict.fromkeys(metrics, score)
    nothing = measure_labels(metrics, gold / 2, gold > 0, 0 * gold, ("a", "b"))
    assert nothing.scores == dict.fromkeys(metrics, 0.0), "as scikit-learn, where it is undefined"


def test_absent_classes_are_listed_up_to_five() -> None:
    for extra in (5, 6):
        labels = ("a", "b", *"cdefgh"[:extra])
        found = measure_classes(("f1",), classes(0, 1, 0), classes(0, 1, 1), labels)
        assert found.notes[0].endswith("'g'" if extra == 5 else "'g' ...")


def test_several_scores_by_hand() -> None:
    gold = np.array([[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]])
    predicted = np.array([[1.0, 3.0], [2.0, 3.0], [4.0, 1.0]])
    found = measure_scores(("pearson", "r2", "mae", "mse"), predicted, gold, ("x", "y"))
    assert found.parts["x"]["mae"] == pytest.approx(1 / 3)
    assert found.parts["x"]["r2"] == pytest.approx(1 - 1 / 2)
    assert found.parts["y"]["r2"] == 0.0
    assert found.scores["mse"] == pytest.approx((1 / 3 + 1) / 2)
    assert "y: r2 undefined (all scores in the data are the same); reported as 0" in found.notes
    assert not any(note.startswith("x: r2") for note in found.notes)
    errors = measure_scores(("mae",), predicted, gold, ("x", "y"))
    assert errors.scores == {"mae": pytest.approx(2 / 3)}
    assert errors.notes == ()
    flat = measure_scores(("mae",), np.ones((3, 2)), gold, ("x", "y"))
    assert flat.collapsed
    assert not measure_scores(("mae",), np.ones((1, 2)), gold[:1], ("x", "y")).collapsed
