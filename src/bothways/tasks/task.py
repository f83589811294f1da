"""What a task is: its texts, its labels or scores, its metrics, and the head it needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.config import TaskOptions
from bothways.errors import ConfigError, InputError
from bothways.tasks.metrics import (
    Kind,
    Measurement,
    choose_metrics,
    measure_classes,
    measure_scores,
)
from bothways.tasks.readers import Rows, listed, nearest

# N examples, C outputs.


@dataclass(frozen=True)
class Task:
    """A task with everything its files leave open decided.

    Attributes:
        name: for reports.
        kind: classification or regression.
        labels: the classes in the order of the head's outputs; empty for regression.
        metrics: the main one first.
        pair: two texts to an example.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    pair: bool

    @property
    def outputs(self) -> int:
        """C: outputs of the head; one for regression."""
        return len(self.labels) or 1

    def targets(self, rows: Rows) -> NDArray[Any]:
        """Classes (int64 [N]) or scores (float32 [N]) of a labelled file.

        Raises:
            InputError: an unknown label or a score that is not a finite number, with its line.
        """
        assert rows.labels is not None, "the file was read without labels"
        if self.kind == "regression":
            return np.array([_score(rows, i) for i in range(len(rows))], dtype=np.float32)
        places = {label: i for i, label in enumerate(self.labels)}
        for line, label in zip(rows.lines, rows.labels, strict=True):
            if label not in places:
                raise InputError(
                    f"unknown label {label!r}; the labels are {listed(self.labels)} (task.labels, "
                    f"or what the training file has).{nearest(label, self.labels)}",
                    path=rows.path,
                    line=line,
                )
        return np.array([places[label] for label in rows.labels], dtype=np.int64)

    def predictions(self, logits_NC: NDArray[np.float32]) -> NDArray[Any]:
        """Head outputs -> int64 [N] classes or float32 [N] scores."""
        if self.kind == "regression":
            return logits_NC[:, 0]
        return np.asarray(logits_NC.argmax(-1))

    def measure(self, predicted: NDArray[Any], gold: NDArray[Any]) -> Measurement:
        """Scores of predicted classes or scores."""
        if self.kind == "regression":
            return measure_scores(self.metrics, predicted, gold)
        return measure_classes(self.metrics, predicted, gold, self.labels)

    def baseline(self, train: NDArray[Any], dev: NDArray[Any]) -> Measurement:
        """Scores of the answer that needs no text: the commonest class, or the mean score."""
        if self.kind == "regression":
            return self.measure(np.full(len(dev), train.mean(), np.float32), dev)
        return self.measure(np.full(len(dev), np.bincount(train).argmax()), dev)


def define_task(options: TaskOptions, train: Rows) -> Task:
    """Decide labels and metrics.

    Args:
        options: the task as configured.
        train: its training file; labels are found there where the options name none.

    Raises:
        ConfigError: labels, metrics or columns that do not make a task.
        InputError: training labels that do not make a classification.
    """
    check_columns(options)
    labels: tuple[str, ...] = ()
    if options.kind == "classification":
        labels = options.labels or _find_labels(train)
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ConfigError(
                f"task.labels is {listed(labels)}; a classification needs at least two, each once."
            )
    elif options.labels:
        raise ConfigError("task.labels is given, but a regression has scores, not labels.")
    metrics = choose_metrics(options.kind, options.metrics, len(labels))
    return Task(options.name, options.kind, labels, metrics, options.text_b is not None)


def check_columns(options: TaskOptions) -> None:
    """Refuse a task that shows the model the label, or the same text twice.

    Raises:
        ConfigError: two of the task's columns are the same.
    """
    columns = [options.text_a, options.label]
    if options.text_b is not None:
        columns.insert(1, options.text_b)
    for name, count in Counter(columns).items():
        if count > 1:
            raise ConfigError(
                f"task: column {name!r} is named for {count} of text_a, text_b and label; each "
                "needs its own."
            )


def sort_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Whole numbers by value, anything else by its characters."""
    try:
        return tuple(sorted(set(labels), key=int))
    except ValueError:
        return tuple(sorted(set(labels)))


def _find_labels(train: Rows) -> tuple[str, ...]:
    assert train.labels is not None
    labels = sort_labels(train.labels)
    if len(labels) == 1:
        raise InputError(
            f"every example has the label {labels[0]!r}; there is nothing to learn.",
            path=train.path,
        )
    if len(labels) > 2 and len(train) < 2 * len(labels):
        raise InputError(
            f"{len(labels):,} different labels for {len(train):,} examples ({listed(labels, 4)}); "
            "set task.kind to regression if these are scores, task.label if it is the wrong "
            "column, or task.labels if it is meant so.",
            path=train.path,
        )
    return labels


def _score(rows: Rows, i: int) -> float:
    assert rows.labels is not None
    text = rows.labels[i]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"the score {text!r} is not a finite number (write 3.5, not 3,5).",
            path=rows.path,
            line=rows.lines[i],
        )
    return value
