"""Scores of predictions, by scikit-learn and SciPy.

An undefined score is reported as 0.0 with a note that gives the reason: Pearson and Spearman for
constant predictions (or gold scores), F1 without a positive prediction or example, also that of a
single label in the mean over several. Matthews is 0.0 for constant predictions by definition. A
model that predicts one class for every example is noted as collapsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import ConfigError, check_installed, nearest

Values = NDArray[Any]

_OF_CLASSES = ("f1", "precision", "recall", "average_precision")


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

    def whose(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """A sentence on which class F1 and its like are of, where an example has one class.

        Args:
            metrics: those that are shown.
        """
        shown, classes = [name for name in metrics if name in _OF_CLASSES], [*self.parts]
        if not shown or not classes or not all("predicted" in p for p in self.parts.values()):
            return ()
        several = len(shown) > 1
        if len(classes) == 2:
            whose = f"{'those' if several else 'that'} of the class {classes[1]!r}"
        else:
            whose = f"the mean{'s' * several} over the {len(classes)} classes (macro)"
        return (f"{' and '.join(shown)} {'are' if several else 'is'} {whose}",)

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


def choose_metrics(kind: str, wanted: Sequence[str], classes: int = 0) -> tuple[str, ...]:
    """The requested metrics, or the usual ones if none is requested.

    An error, of which the lowest is best, cannot be the main one.

    Args:
        kind: of the task.
        wanted: names of metrics.
        classes: of a classification; two have F1 and Matthews among the usual metrics.

    Raises:
        ConfigError: an unknown metric, one of another kind, one named twice, or an error as the
            main one.
    """
    known, usual = _OF_KIND[kind]
    if not wanted:
        return ("accuracy", "f1", "matthews") if classes == 2 else usual
    chosen = check_metrics(wanted, known, kind)
    if chosen[0] in _ERRORS:
        raise ConfigError(
            f"metrics: {chosen[0]} is an error, of which the lowest is best; the main metric, "
            f"the first, is one of {', '.join(name for name in known if name not in _ERRORS)}."
        )
    return chosen


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
            close = _nearest(name, known)
            raise ConfigError(
                f"metrics: {name!r} is not a metric for {what}"
                f"{f' (did you mean {close!r}?)' if close else ''}; choose from {', '.join(known)}."
            )
    if len(set(wanted)) < len(wanted):
        raise ConfigError(f"metrics: {', '.join(wanted)} names a metric twice.")
    return tuple(wanted)


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """The metric that is meant: of the same parts (macro-f1), or the nearest name."""
    parts = sorted(re.split(r"[\W_]+", name.lower()))
    same = [other for other in known if sorted(other.split("_")) == parts]
    return same[0] if same else nearest(name, known)


def check_measuring() -> None:
    """Refuse to read a file whose labels could not be measured on later.

    Raises:
        ConfigError: scikit-learn or SciPy is not installed.
    """
    check_installed("measuring", "sklearn", "scipy")


def measure_classes(
    metrics: Sequence[str],
    predicted: Values,
    gold: Values,
    labels: Sequence[str],
    probabilities: Values | None = None,
) -> Measurement:
    """Scores of predicted classes.

    Args:
        metrics: from :func:`choose_metrics`.
        predicted: int [N], indices into ``labels``.
        gold: int [N].
        labels: the classes; F1, precision and recall of two classes are those of the second, of
            more the means over all (macro).
        probabilities: float [N, C], for the metrics of ranks.

    Returns:
        The scores; by class precision, recall, F1, how often it is predicted, and how many examples
        have it.
    """
    scores = {
        name: _CLASSIFICATION[name](predicted, gold, len(labels), probabilities) for name in metrics
    }
    notes = []
    collapsed = len(gold) > 1 and bool((predicted == predicted[0]).all())
    if collapsed:
        notes.append(f"collapsed: {labels[predicted[0]]!r} for all {len(gold):,} examples")
    if "f1" in metrics and len(labels) == 2 and not (predicted == 1).any() and not gold.any():
        notes.append(f"f1 is undefined (no {labels[1]!r} in data or predictions); reported as 0")
    if "f1" in metrics and len(labels) > 2:
        found = {*gold.tolist(), *predicted.tolist()}
        if absent := [name for i, name in enumerate(labels) if i not in found]:
            notes.append(f"f1 counts labels neither in data nor predictions as 0: {_some(absent)}")
    if ranked := [name for name in _RANKS if name in metrics]:
        absent = [name for i, name in enumerate(labels) if i not in set(gold.tolist())]
        if absent:
            undefined = f"{' and '.join(ranked)} undefined for labels not in the data"
            notes.append(f"{undefined}: {_some(absent)}")
    given_NC, gold_NC = (values[:, None] == np.arange(len(labels)) for values in (predicted, gold))
    parts = _by_label(given_NC, gold_NC, labels, predicted=given_NC.sum(0))
    return Measurement(scores, tuple(notes), collapsed, parts)


def _by_label(
    given_NC: Values, gold_NC: Values, names: Sequence[str], **more: Values
) -> dict[str, dict[str, float]]:
    """Measures of each label, of bools; ``more`` of them stand before the support."""
    hits = (given_NC & gold_NC).sum(0)
    columns = {
        "precision": _ratio(hits, given_NC.sum(0)),
        "recall": _ratio(hits, gold_NC.sum(0)),
        "f1": _f1_by_label(given_NC, gold_NC),
        **more,
        "support": gold_NC.sum(0),
    }
    return {
        name: {measure: float(values[i]) for measure, values in columns.items()}
        for i, name in enumerate(names)
    }


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (" ..." if len(names) > 5 else "")


def tuned_threshold(
    metric: str, probabilities: Values, gold: Values, default: float = 0.5
) -> float:
    """The threshold of a label that is best by a metric, between two neighbouring probabilities; of
    equally good ones the one nearest to the default, which stays if no example has the label,
    or all have it and the metric counts those that have it not.

    Args:
        metric: by which; metrics of ranks know no threshold, and F1 stands for them.
        probabilities: of the label, [N].
        gold: whether each example has it, bool [N].
        default: such as 0.5.
    """
    if not gold.any() or (gold.all() and metric != "f1"):
        return default
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    given = np.arange(1, len(ranked) + 1)  # predicted positive, down to each
    hits = np.cumsum(gold[order])
    counts = np.stack([hits, given - hits, gold.sum() - hits, (~gold).sum() - given + hits])
    scores = _OF_COUNTS.get(metric, _OF_COUNTS["f1"])(*counts.astype(np.float64))
    below = np.append(ranked[1:], 0.0)
    possible = ranked > below  # a threshold cannot divide equal probabilities
    possible[-1] = True
    middle = (ranked + below) / 2
    thresholds = np.where(middle > below, middle, ranked)
    best = np.flatnonzero(possible & (scores == scores[possible].max()))
    return float(thresholds[best[np.abs(thresholds[best] - default).argmin()]])


def measure_scores(
    metrics: Sequence[str], predicted: Values, gold: Values, names: Sequence[str] = ()
) -> Measurement:
    """Scores of predicted numbers; of several per example, the mean over them of each metric.

    Args:
        metrics: from :func:`choose_metrics`.
        predicted: float [N] or [N, C].
        gold: likewise.
        names: of several numbers.
    """
    parts, notes, collapsed = [], [], []
    both = (values.reshape(len(gold), -1).astype(np.float64).T for values in (predicted, gold))
    for i, (ours, theirs) in enumerate(zip(*both, strict=True)):
        collapsed.append(len(theirs) > 1 and _constant(ours))
        of, reason = f"{names[i]}: " if names else "", ""
        if len(theirs) < 2:
            reason = "fewer than two examples"
        elif collapsed[-1]:
            reason = "all predictions are the same"
        elif np.ptp(theirs) == 0:
            reason = "all scores in the data are the same"
        undefined = [name for name in metrics if name in _CORRELATIONS and reason]
        if undefined:
            note = f"{' and '.join(undefined)} undefined ({reason}); reported as 0"
            notes.append(of + (f"collapsed: {note}" if collapsed[-1] else note))
        if "r2" in metrics and np.ptp(theirs) == 0:
            notes.append(f"{of}r2 undefined (all scores in the data are the same); reported as 0")
        parts.append({m: 0.0 if m in undefined else _OF_SCORES[m](ours, theirs) for m in metrics})
    scores = {m: float(np.mean([part[m] for part in parts])) for m in metrics}
    by_name = dict(zip(names, parts, strict=True)) if names else {}
    return Measurement(scores, tuple(notes), all(collapsed), by_name)


def measure_labels(
    metrics: Sequence[str],
    probabilities: Values,
    predicted: Values,
    gold: Values,
    names: Sequence[str],
) -> Measurement:
    """Scores of any number of labels per example.

    Args:
        metrics: from :func:`choose_metrics`.
        probabilities: float [N, C], for the average precision.
        predicted: bool [N, C].
        gold: 1 or 0, [N, C].
        names: of the labels.

    Returns:
        The scores; by label precision, recall, F1, average precision, and how many examples have
        it.
    """
    gold = gold > 0.5
    scores = {name: _OF_LABELS[name](probabilities, predicted, gold) for name in metrics}
    ranks = _average_precisions(probabilities, gold)
    parts = _by_label(predicted, gold, names, average_precision=ranks)
    notes = []
    collapsed = len(gold) > 1 and bool((predicted == predicted[0]).all())
    if collapsed:
        shown = ", ".join(repr(name) for name, p in zip(names, predicted[0], strict=True) if p)
        notes.append(f"collapsed: {shown or 'no label'} for all {len(gold):,} examples")
    absent = [name for i, name in enumerate(names) if not gold[:, i].any()]
    if absent and {"f1_macro", "ap_macro"} & set(metrics):
        notes.append(f"macro averages count labels that no example has as 0: {_some(absent)}")
    return Measurement(scores, tuple(notes), collapsed, parts)


def _constant(values: Values) -> bool:
    # A correlation of predictions that differ only by rounding is meaningless.
    spread = float(np.ptp(values.astype(np.float64)))
    return spread <= 1e-6 * max(1e-30, float(np.abs(values).max()))


def _f1(predicted: Values, gold: Values, classes: int) -> float:
    from sklearn.metrics import f1_score  # slow import

    if classes == 2:
        return float(f1_score(gold, predicted, labels=[0, 1], pos_label=1, zero_division=0))
    return _average("f1", "macro")(predicted, gold, classes)


def _average(measure: str, average: str) -> Callable[[Values, Values, int], float]:
    """F1, precision or recall over all classes."""

    def score(predicted: Values, gold: Values, classes: int) -> float:
        from sklearn import metrics  # slow import, not needed to predict

        function, labels = getattr(metrics, f"{measure}_score"), list(range(classes))
        return float(function(gold, predicted, labels=labels, average=average, zero_division=0))

    return score


def _of_second(measure: str) -> Callable[[Values, Values, int], float]:
    """Precision or recall of the second of two classes; of more, the mean over all."""

    def score(predicted: Values, gold: Values, classes: int) -> float:
        if classes > 2:
            return _average(measure, "macro")(predicted, gold, classes)
        hits = float(((predicted == 1) & (gold == 1)).sum())
        return hits / max(1, int((predicted if measure == "precision" else gold).sum()))

    return score


def _balanced_accuracy(predicted: Values, gold: Values) -> float:
    """The mean recall of the classes that occur."""
    found = np.unique(gold)
    return (
        float(np.mean([(predicted[gold == c] == c).mean() for c in found])) if len(found) else 0.0
    )


def _matthews(predicted: Values, gold: Values) -> float:
    from sklearn.metrics import matthews_corrcoef  # slow import

    if len(np.union1d(predicted, gold)) < 2:  # no correlation; the library would warn
        return 0.0
    return float(matthews_corrcoef(gold, predicted))


def _accuracy(predicted: Values, gold: Values) -> float:
    from sklearn.metrics import accuracy_score  # slow import

    return float(accuracy_score(gold, predicted))


def _ranks(function: str, gold: Values, classes: int, probabilities: Values | None) -> float:
    """The area under a curve: of the second of two classes; of more the mean over those that occur,
    each against the others. 0 where all examples are of one class."""
    from sklearn import metrics  # slow import

    assert probabilities is not None, "metrics of ranks need probabilities"
    of_classes = [1] if classes == 2 else range(classes)
    found = [
        float(getattr(metrics, function)(gold == c, probabilities[:, c]))
        for c in of_classes
        if (gold == c).any() and not (gold == c).all()
    ]
    return float(np.mean(found)) if found else 0.0


def _correlation(function: str) -> Callable[[Values, Values], float]:
    def score(predicted: Values, gold: Values) -> float:
        from scipy import stats  # slow import

        return float(getattr(stats, function)(predicted, gold).statistic)

    return score


_Score = Callable[[Values, Values, int, Values | None], float]
_CLASSIFICATION: dict[str, _Score] = {
    "accuracy": lambda p, g, _c, _q: _accuracy(p, g),
    "f1": lambda p, g, c, _q: _f1(p, g, c),
    "matthews": lambda p, g, _c, _q: _matthews(p, g),
    "precision": lambda p, g, c, _q: _of_second("precision")(p, g, c),
    "recall": lambda p, g, c, _q: _of_second("recall")(p, g, c),
    "f1_macro": lambda p, g, c, _q: _average("f1", "macro")(p, g, c),
    "f1_micro": lambda p, g, c, _q: _average("f1", "micro")(p, g, c),
    "f1_weighted": lambda p, g, c, _q: _average("f1", "weighted")(p, g, c),
    "balanced_accuracy": lambda p, g, _c, _q: _balanced_accuracy(p, g),
    "roc_auc": lambda _p, g, c, q: _ranks("roc_auc_score", g, c, q),
    "average_precision": lambda _p, g, c, q: _ranks("average_precision_score", g, c, q),
}
_RANKS = ("roc_auc", "average_precision")


def _matthews_of_counts(tp: Values, fp: Values, fn: Values, tn: Values) -> Values:
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    score: Values = (tp * tn - fp * fn) / np.sqrt(np.maximum(product, 1))
    return score


_OF_COUNTS: dict[str, Callable[[Values, Values, Values, Values], Values]] = {
    "f1": lambda tp, fp, fn, _: 2 * tp / (2 * tp + fp + fn),
    "f1_macro": lambda tp, fp, fn, tn: (
        tp / (2 * tp + fp + fn) + tn / np.maximum(2 * tn + fp + fn, 1)
    ),
    "accuracy": lambda tp, _fp, _fn, tn: tp + tn,
    "f1_micro": lambda tp, _fp, _fn, tn: tp + tn,
    "balanced_accuracy": lambda tp, fp, fn, tn: tp / (tp + fn) + tn / (tn + fp),
    "matthews": _matthews_of_counts,
}
"""Of two classes, by the counts of true and false positives, false and true negatives."""
_CORRELATIONS: dict[str, Callable[[Values, Values], float]] = {
    "pearson": _correlation("pearsonr"),
    "spearman": _correlation("spearmanr"),
}


def _ratio(part: Values, whole: Values) -> Values:
    """0 where both are."""
    ratio: Values = part / np.maximum(whole, 1)
    return ratio


def _f1_by_label(predicted: Values, gold: Values) -> Values:
    return _ratio(2 * (predicted & gold).sum(0), predicted.sum(0) + gold.sum(0))


def _f1_micro(predicted: Values, gold: Values) -> float:
    return float(_f1_by_label(predicted.reshape(-1, 1), gold.reshape(-1, 1))[0])


def _average_precisions(probabilities: Values, gold: Values) -> Values:
    """By column; 0 for a label that no example has, as in scikit-learn."""
    from sklearn.metrics import average_precision_score  # slow import

    columns = zip(gold.T, probabilities.T, strict=True)
    return np.array([average_precision_score(g, p) if g.any() else 0.0 for g, p in columns])


def _roc_auc_of_labels(probabilities: Values, gold: Values) -> float:
    """The mean over the labels that some examples have and some have not."""
    from sklearn.metrics import roc_auc_score  # slow import

    columns = zip(gold.T, probabilities.T, strict=True)
    found = [float(roc_auc_score(g, p)) for g, p in columns if g.any() and not g.all()]
    return float(np.mean(found)) if found else 0.0


def _mse(predicted: Values, gold: Values) -> float:
    return float(np.mean((predicted - gold) ** 2))


def _mae(predicted: Values, gold: Values) -> float:
    return float(np.mean(np.abs(predicted - gold)))


def _r2(predicted: Values, gold: Values) -> float:
    total = float(((gold - gold.mean()) ** 2).sum())
    return 1 - float(((gold - predicted) ** 2).sum()) / total if np.ptp(gold) else 0.0


_OF_LABELS: dict[str, Callable[[Values, Values, Values], float]] = {
    "f1_micro": lambda _, predicted, gold: _f1_micro(predicted, gold),
    "f1_macro": lambda _, predicted, gold: float(_f1_by_label(predicted, gold).mean()),
    "ap_micro": lambda p, _, gold: float(
        _average_precisions(p.reshape(-1, 1), gold.reshape(-1, 1))[0]
    ),
    "ap_macro": lambda p, _, gold: float(_average_precisions(p, gold).mean()),
    "subset_accuracy": lambda _, predicted, gold: float((predicted == gold).all(-1).mean()),
    "hamming_loss": lambda _, predicted, gold: float((predicted != gold).mean()),
    "f1_weighted": lambda _, predicted, gold: float(
        (_f1_by_label(predicted, gold) * gold.sum(0)).sum() / max(1, int(gold.sum()))
    ),
    "precision_micro": lambda _, predicted, gold: float(
        (predicted & gold).sum() / max(1, int(predicted.sum()))
    ),
    "recall_micro": lambda _, predicted, gold: float(
        (predicted & gold).sum() / max(1, int(gold.sum()))
    ),
    "roc_auc": lambda p, _, gold: _roc_auc_of_labels(p, gold),
}
_USUAL_OF_LABELS = (
    "f1_micro",
    "f1_macro",
    "ap_micro",
    "ap_macro",
    "subset_accuracy",
    "hamming_loss",
)
_OF_SCORES: dict[str, Callable[[Values, Values], float]] = {
    **_CORRELATIONS,
    "r2": _r2,
    "mse": _mse,
    "mae": _mae,
}
_ERRORS = ("hamming_loss", "mse", "mae")
_OF_KIND: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "classification": (tuple(_CLASSIFICATION), ("accuracy",)),
    "regression": (tuple(_OF_SCORES), tuple(_CORRELATIONS)),
    "multilabel": (tuple(_OF_LABELS), _USUAL_OF_LABELS),
    "multiregression": (tuple(_OF_SCORES), tuple(_OF_SCORES)),
}
"""The metrics that there are, and the usual ones."""
