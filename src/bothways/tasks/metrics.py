"""Scores of predictions, by scikit-learn and SciPy.

An undefined score is reported as 0.0 with a note that gives the reason: Pearson and Spearman for
constant predictions (or gold scores), F1 without a positive prediction or example, also that of a
single label in the mean over several. Matthews is 0.0 for constant predictions by definition. A
model that predicts one class for every example is noted as collapsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bothways.errors import ConfigError

Kind = Literal["classification", "regression"]
Values = NDArray[Any]


@dataclass(frozen=True)
class Measurement:
    """Scores of one set of predictions.

    Attributes:
        scores: by metric, the main one first; fractions of 1, not percent.
        notes: what to know about the scores, as sentences: collapse, undefined scores.
        collapsed: all predictions are the same.
    """

    scores: dict[str, float]
    notes: tuple[str, ...] = ()
    collapsed: bool = False

    def record(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {"scores": self.scores, "notes": list(self.notes), "collapsed": self.collapsed}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Measurement:
        """The inverse of :meth:`record`.

        Raises:
            KeyError, ValueError, TypeError: the record is damaged.
        """
        scores = {str(k): float(v) for k, v in record["scores"].items()}
        return Measurement(scores, tuple(record["notes"]), bool(record["collapsed"]))


def choose_metrics(kind: Kind, wanted: Sequence[str], classes: int) -> tuple[str, ...]:
    """The requested metrics, or the usual ones if none is requested.

    Classification: accuracy, with F1 and Matthews for two classes. Regression: Pearson, Spearman.

    Raises:
        ConfigError: an unknown metric, one of the other kind, or one named twice.
    """
    known = _CLASSIFICATION if kind == "classification" else _REGRESSION
    if not wanted:
        return tuple(known) if kind == "regression" or classes == 2 else ("accuracy",)
    return check_metrics(wanted, tuple(known), kind)


def check_metrics(wanted: Sequence[str], known: Sequence[str], what: str) -> tuple[str, ...]:
    """The requested metrics.

    Args:
        wanted: names of metrics.
        known: the names that exist.
        what: what they are metrics for, for the message.

    Raises:
        ConfigError: an unknown metric, or one named twice.
    """
    for name in wanted:
        if name not in known:
            raise ConfigError(
                f"task.metrics: {name!r} is not a metric for {what}; choose from "
                f"{', '.join(known)}."
            )
    if len(set(wanted)) < len(wanted):
        raise ConfigError(f"task.metrics: {', '.join(wanted)} names a metric twice.")
    return tuple(wanted)


def measure_classes(
    metrics: Sequence[str], predicted: Values, gold: Values, labels: Sequence[str]
) -> Measurement:
    """Scores of predicted classes.

    Args:
        metrics: from :func:`choose_metrics`.
        predicted: int [N], indices into ``labels``.
        gold: int [N].
        labels: the classes; F1 of two classes is that of the second, of more it is the mean over
            all (macro).
    """
    scores = {name: _CLASSIFICATION[name](predicted, gold, len(labels)) for name in metrics}
    notes = []
    collapsed = len(gold) > 1 and bool((predicted == predicted[0]).all())
    if collapsed:
        notes.append(f"collapsed: {labels[predicted[0]]!r} for all {len(gold):,} examples")
    if "f1" in metrics and len(labels) == 2 and not (predicted == 1).any() and not gold.any():
        notes.append(f"f1 is undefined (no {labels[1]!r} in data or predictions); reported as 0")
    if "f1" in metrics and len(labels) > 2:
        found = {*gold.tolist(), *predicted.tolist()}
        if absent := [name for i, name in enumerate(labels) if i not in found]:
            names = ", ".join(map(repr, absent[:5])) + (" ..." if len(absent) > 5 else "")
            notes.append(f"f1 counts labels neither in data nor predictions as 0: {names}")
    return Measurement(scores, tuple(notes), collapsed)


def measure_scores(metrics: Sequence[str], predicted: Values, gold: Values) -> Measurement:
    """Scores of predicted numbers.

    Args:
        metrics: from :func:`choose_metrics`.
        predicted: float [N].
        gold: float [N].
    """
    collapsed = len(gold) > 1 and _constant(predicted)
    if len(gold) < 2:
        reason = "fewer than two examples"
    elif collapsed:
        reason = "all predictions are the same"
    elif np.ptp(gold) == 0:
        reason = "all scores in the data are the same"
    else:
        return Measurement({name: _REGRESSION[name](predicted, gold) for name in metrics})
    note = f"{' and '.join(metrics)} undefined ({reason}); reported as 0"
    note = f"collapsed: {note}" if collapsed else note
    return Measurement(dict.fromkeys(metrics, 0.0), (note,), collapsed)


def _constant(values: Values) -> bool:
    # A correlation of predictions that differ only by rounding is meaningless.
    spread = float(np.ptp(values.astype(np.float64)))
    return spread <= 1e-6 * max(1e-30, float(np.abs(values).max()))


def _accuracy(predicted: Values, gold: Values, classes: int) -> float:  # noqa: ARG001
    from sklearn.metrics import accuracy_score  # slow import, not needed to predict

    return float(accuracy_score(gold, predicted))


def _f1(predicted: Values, gold: Values, classes: int) -> float:
    from sklearn.metrics import f1_score  # slow import

    if classes == 2:
        return float(f1_score(gold, predicted, labels=[0, 1], pos_label=1, zero_division=0))
    labels = list(range(classes))
    return float(f1_score(gold, predicted, labels=labels, average="macro", zero_division=0))


def _matthews(predicted: Values, gold: Values, classes: int) -> float:  # noqa: ARG001
    from sklearn.metrics import matthews_corrcoef  # slow import

    return float(matthews_corrcoef(gold, predicted))


def _pearson(predicted: Values, gold: Values) -> float:
    from scipy.stats import pearsonr  # slow import

    return float(pearsonr(predicted.astype(np.float64), gold.astype(np.float64)).statistic)


def _spearman(predicted: Values, gold: Values) -> float:
    from scipy.stats import spearmanr  # slow import

    return float(spearmanr(predicted.astype(np.float64), gold.astype(np.float64)).statistic)


_CLASSIFICATION: dict[str, Callable[[Values, Values, int], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
}
_REGRESSION: dict[str, Callable[[Values, Values], float]] = {
    "pearson": _pearson,
    "spearman": _spearman,
}
