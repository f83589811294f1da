"""Scores of predictions, by scikit-learn and SciPy.

An undefined score is reported as 0.0 with a note that gives the reason: Pearson and Spearman for
constant predictions (or gold scores), F1 without a positive prediction or example, also that of a
single label in the mean over several. Matthews is 0.0 for constant predictions by definition. A
model that predicts one class for every example is noted as collapsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bothways.errors import ConfigError, explain_missing

Kind = Literal["classification", "regression"]
Values = NDArray[Any]


@dataclass(frozen=True)
class Measurement:
    """Scores of one set of predictions.

    Attributes:
        scores: by metric, the main one first; fractions of 1, not percent.
        notes: what to know about the scores, as sentences: collapse, undefined scores.
        collapsed: all predictions are the same.
        parts: the same for each label or score, where an example has several.
    """

    scores: dict[str, float]
    notes: tuple[str, ...] = ()
    collapsed: bool = False
    parts: dict[str, dict[str, float]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """As JSON-able data."""
        record = {"scores": self.scores, "notes": list(self.notes), "collapsed": self.collapsed}
        return {**record, "parts": self.parts} if self.parts else record

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Measurement:
        """The inverse of :meth:`record`.

        Raises:
            KeyError, ValueError, TypeError: the record is damaged.
        """
        scores = {str(k): float(v) for k, v in record["scores"].items()}
        parts = {
            str(n): {m: float(v) for m, v in p.items()} for n, p in record.get("parts", {}).items()
        }
        return Measurement(scores, tuple(record["notes"]), bool(record["collapsed"]), parts)


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


def choose_metrics_of_several(kind: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """The requested metrics of kinds ``multilabel`` and ``multiregression``; all if none is.

    Raises:
        ConfigError: an unknown metric, one named twice, or an error as the main one, of which the
            lowest is best.
    """
    known = tuple(_SEVERAL_LABELS) if kind == "multilabel" else tuple(_SEVERAL_SCORES)
    chosen = check_metrics(wanted, known, kind) if wanted else known
    if chosen[0] in _ERRORS:
        raise ConfigError(
            f"task.metrics: {chosen[0]} is an error, of which the lowest is best; the main metric, "
            f"the first, is one of {', '.join(name for name in known if name not in _ERRORS)}."
        )
    return chosen


def measure_labels(
    metrics: Sequence[str],
    probabilities: Values,
    predicted: Values,
    gold: Values,
    names: Sequence[str],
) -> Measurement:
    """Scores of any number of labels per example.

    Args:
        metrics: from :func:`choose_metrics_of_several`.
        probabilities: float [N, C], for the average precision.
        predicted: bool [N, C].
        gold: 1 or 0, [N, C].
        names: of the labels.

    Returns:
        The scores; by label precision, recall, F1, average precision, and how many examples have
        it.
    """
    gold = gold > 0.5
    scores = {name: _SEVERAL_LABELS[name](probabilities, predicted, gold) for name in metrics}
    columns = {
        "precision": _ratio((predicted & gold).sum(0), predicted.sum(0)),
        "recall": _ratio((predicted & gold).sum(0), gold.sum(0)),
        "f1": _f1_by_label(predicted, gold),
        "average_precision": _average_precisions(probabilities, gold),
        "support": gold.sum(0),
    }
    parts = {
        name: {measure: float(values[i]) for measure, values in columns.items()}
        for i, name in enumerate(names)
    }
    notes = []
    collapsed = len(gold) > 1 and bool((predicted == predicted[0]).all())
    if collapsed:
        shown = ", ".join(repr(name) for name, p in zip(names, predicted[0], strict=True) if p)
        notes.append(f"collapsed: {shown or 'no label'} for all {len(gold):,} examples")
    absent = [name for i, name in enumerate(names) if not gold[:, i].any()]
    if absent and {"f1_macro", "ap_macro"} & set(metrics):
        shown = ", ".join(map(repr, absent[:5])) + (" ..." if len(absent) > 5 else "")
        notes.append(f"macro averages count labels that no example has as 0: {shown}")
    return Measurement(scores, tuple(notes), collapsed, parts)


def measure_several_scores(
    metrics: Sequence[str], predicted: Values, gold: Values, names: Sequence[str]
) -> Measurement:
    """Scores of several predicted numbers per example: the mean over the columns of each metric.

    Args:
        metrics: from :func:`choose_metrics_of_several`.
        predicted: float [N, C].
        gold: float [N, C].
        names: of the columns.
    """
    parts, notes, collapsed = {}, [], []
    for i, name in enumerate(names):
        ours, theirs = predicted[:, i].astype(np.float64), gold[:, i].astype(np.float64)
        correlations = [m for m in metrics if m in _REGRESSION]
        found = measure_scores(correlations, ours, theirs) if correlations else Measurement({})
        others = {m: f(ours, theirs) for m, f in _SEVERAL_SCORES.items() if m not in _REGRESSION}
        parts[name] = {m: {**found.scores, **others}[m] for m in metrics}
        notes += [f"{name}: {note}" for note in found.notes]
        if "r2" in metrics and np.ptp(theirs) == 0:
            notes.append(
                f"{name}: r2 undefined (all scores in the data are the same); reported as 0"
            )
        collapsed.append(len(theirs) > 1 and _constant(ours))
    scores = {m: float(np.mean([part[m] for part in parts.values()])) for m in metrics}
    return Measurement(scores, tuple(notes), all(collapsed), parts)


def _constant(values: Values) -> bool:
    # A correlation of predictions that differ only by rounding is meaningless.
    spread = float(np.ptp(values.astype(np.float64)))
    return spread <= 1e-6 * max(1e-30, float(np.abs(values).max()))


@explain_missing("measuring")
def _accuracy(predicted: Values, gold: Values, classes: int) -> float:  # noqa: ARG001
    from sklearn.metrics import accuracy_score  # slow import, not needed to predict

    return float(accuracy_score(gold, predicted))


@explain_missing("measuring")
def _f1(predicted: Values, gold: Values, classes: int) -> float:
    from sklearn.metrics import f1_score  # slow import

    if classes == 2:
        return float(f1_score(gold, predicted, labels=[0, 1], pos_label=1, zero_division=0))
    labels = list(range(classes))
    return float(f1_score(gold, predicted, labels=labels, average="macro", zero_division=0))


@explain_missing("measuring")
def _matthews(predicted: Values, gold: Values, classes: int) -> float:  # noqa: ARG001
    from sklearn.metrics import matthews_corrcoef  # slow import

    return float(matthews_corrcoef(gold, predicted))


@explain_missing("measuring")
def _pearson(predicted: Values, gold: Values) -> float:
    from scipy.stats import pearsonr  # slow import

    return float(pearsonr(predicted.astype(np.float64), gold.astype(np.float64)).statistic)


@explain_missing("measuring")
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


def _ratio(part: Values, whole: Values) -> Values:
    """0 where both are."""
    ratio: Values = part / np.maximum(whole, 1)
    return ratio


def _f1_by_label(predicted: Values, gold: Values) -> Values:
    return _ratio(2 * (predicted & gold).sum(0), predicted.sum(0) + gold.sum(0))


def _f1_micro(predicted: Values, gold: Values) -> float:
    return float(_f1_by_label(predicted.reshape(-1, 1), gold.reshape(-1, 1))[0])


@explain_missing("measuring")
def _average_precisions(probabilities: Values, gold: Values) -> Values:
    """By column; 0 for a label that no example has, as in scikit-learn."""
    from sklearn.metrics import average_precision_score  # slow import

    columns = zip(gold.T, probabilities.T, strict=True)
    return np.array([average_precision_score(g, p) if g.any() else 0.0 for g, p in columns])


def _mse(predicted: Values, gold: Values) -> float:
    return float(np.mean((predicted - gold) ** 2))


def _mae(predicted: Values, gold: Values) -> float:
    return float(np.mean(np.abs(predicted - gold)))


def _r2(predicted: Values, gold: Values) -> float:
    total = float(((gold - gold.mean()) ** 2).sum())
    return 1 - float(((gold - predicted) ** 2).sum()) / total if np.ptp(gold) else 0.0


_SEVERAL_LABELS: dict[str, Callable[[Values, Values, Values], float]] = {
    "f1_micro": lambda _, predicted, gold: _f1_micro(predicted, gold),
    "f1_macro": lambda _, predicted, gold: float(_f1_by_label(predicted, gold).mean()),
    "ap_micro": lambda p, _, gold: float(
        _average_precisions(p.reshape(-1, 1), gold.reshape(-1, 1))[0]
    ),
    "ap_macro": lambda p, _, gold: float(_average_precisions(p, gold).mean()),
    "subset_accuracy": lambda _, predicted, gold: float((predicted == gold).all(-1).mean()),
    "hamming_loss": lambda _, predicted, gold: float((predicted != gold).mean()),
}
_SEVERAL_SCORES: dict[str, Callable[[Values, Values], float]] = {
    **_REGRESSION,
    "r2": _r2,
    "mse": _mse,
    "mae": _mae,
}
_ERRORS = ("hamming_loss", "mse", "mae")
