"""Several labels, or several scores, for single texts and pairs.

A label is given if its probability, the sigmoid of its output, reaches its threshold; none, some or
all may be given. Thresholds are tuned on dev after training, and belong to the task.

N examples, C labels or scores.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import expit
from bothways.errors import ConfigError, InputError, Place
from bothways.io.lines import listed
from bothways.tasks.labels import match_labels
from bothways.tasks.metrics import (
    Measurement,
    best_cut,
    choose_metrics,
    measure_labels,
    measure_several_scores,
)
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Rows
from bothways.tasks.report_panels import Cell, ExampleScores, Mistake, Panel, scatter_panel
from bothways.tasks.task import EncodedFile, Outputs
from bothways.tasks.texts import (
    TextTask,
    check_all_named,
    in_order_of_names,
    read_score,
    renamed,
    sort_labels,
)
from bothways.tokenization.tokenizer import Tokenizer

_SHOWN_SCATTERS, _SHOWN_THRESHOLDS, _HALF = 6, 8, 0.5


class MultiLabelTask(TextTask):
    """Any number of labels for each text or pair."""

    loss = "labels"

    @property
    def thresholds(self) -> NDArray[np.float64]:
        """The probability from which each label is given, [C]."""
        own = self.options.multilabel
        return np.array(own.thresholds or [own.threshold] * self.outputs, dtype=np.float64)

    @property
    def threshold_note(self) -> str:
        """From which probabilities on labels are given; empty if from a half on."""
        found = self.thresholds
        if (found == _HALF).all():
            return ""
        of_label = [f"{label} {value:.4g}" for label, value in zip(self.labels, found, strict=True)]
        if len({*found.tolist()}) == 1:
            given = f"a probability of {found[0]:.4g}"
        elif len(of_label) > _SHOWN_THRESHOLDS:
            low, high = int(found.argmin()), int(found.argmax())
            given = f"probabilities between {of_label[low]} and {of_label[high]}"
        else:
            given = f"these probabilities: {', '.join(of_label)}"
        tuned = "; tuned on dev" if self.options.multilabel.tune != "none" else ""
        return f"labels are given from {given}{tuned}"

    @classmethod
    def define(cls, options: TaskOptions, train: Rows) -> Self:
        """If labels are not given, they are the columns', or collected from the training file."""
        if not options.labels and train.several is not None and not any(train.several):
            raise InputError(
                "no example has a label; there is nothing to learn.", place=Place(train.path)
            )
        given = options.labels or options.label_columns
        labels = renamed(given, options) or in_order_of_names(_find_labels(train), options)
        check_all_named(labels, options)
        _check_names(labels, "a task of several labels")
        separator = options.label_separator
        for label in labels:
            if separator and separator in label:
                raise ConfigError(
                    f"task.labels: {label!r} holds task.label_separator, {separator!r}; choose "
                    "another separator, or rename the label."
                )
        metrics = choose_metrics("multilabel", options.metrics)
        return cls(replace(options, labels=labels, metrics=metrics))

    def encode(self, tokenizer: Tokenizer, rows: Rows, *, length: int) -> EncodedFile[Rows]:
        """As for other texts; labels that no example has are noted."""
        file = super().encode(tokenizer, rows, length=length)
        if rows.several is None:
            return file
        found = {label for labels in rows.several for label in labels}
        absent = [label for label in self.labels if label not in found]
        if not absent:
            return file
        note = f"{rows.path.name}: no example has the labels {listed(absent)}"
        return replace(file, notes=(*file.notes, note))

    def targets(self, rows: Rows) -> NDArray[np.float32]:
        """1 for each label that an example has, else 0, float32 [N, C].

        Raises:
            InputError: an unknown label, with its line.
        """
        assert rows.several is not None, "the file was read without labels"
        column_of = {label: i for i, label in enumerate(self.labels)}
        targets_NC = np.zeros((len(rows), self.outputs), dtype=np.float32)
        for n, (line, labels) in enumerate(zip(rows.lines, rows.several, strict=True)):
            for label in labels:
                if label not in column_of:
                    raise InputError(
                        f"unknown label {label!r}; the labels are {listed(self.labels)} "
                        f"(task.labels, or what the training file has).{self._hint(label)}",
                        place=Place(rows.path, line),
                    )
                targets_NC[n, column_of[label]] = 1
        return targets_NC

    def _hint(self, label: str) -> str:
        """Whether an unknown label seems to be several."""
        for mark in "|;,#":
            parts = [part.strip() for part in label.split(mark)]
            if len(parts) > 1 and set(parts) <= set(self.labels):
                return f" These are labels with {mark!r} between: --task.label_separator {mark!r}."
        return ""

    def shown(self, labels: Sequence[str]) -> str:
        """Labels in one cell, as they are read: with the task's separator, or as a JSON list."""
        separator = self.options.label_separator
        return separator.join(labels) if separator else json.dumps(list(labels), ensure_ascii=False)

    def interpret(
        self, logits_NC: NDArray[np.float64]
    ) -> tuple[list[Any], NDArray[np.float64], tuple[str, ...]]:
        """The labels of each text, and the probabilities of all."""
        probabilities = _probabilities(logits_NC)
        given = self._names(probabilities >= self.thresholds)
        return given, probabilities, self.labels

    def _names(self, given_NC: NDArray[Any]) -> list[list[str]]:
        return [
            [label for label, has in zip(self.labels, row, strict=True) if has] for row in given_NC
        ]

    def tuned(self, file: EncodedFile[Rows], predictions: Outputs) -> Self:
        """With the thresholds that are best on a labelled file."""
        own = self.options.multilabel
        if own.tune == "none":
            return self
        probabilities = _probabilities(predictions)
        gold = self.gold(file) > 0.5
        if own.tune == "one":
            best = best_threshold(probabilities.ravel(), gold.ravel(), own.threshold)
            thresholds = (best,) * self.outputs
        else:
            columns = zip(probabilities.T, gold.T, strict=True)
            thresholds = tuple(best_threshold(p, g, own.threshold) for p, g in columns)
        return type(self)(replace(self.options, multilabel=replace(own, thresholds=thresholds)))

    def _with_learned(self, options: TaskOptions) -> tuple[TaskOptions, tuple[str, ...]]:
        """Windows, and the thresholds, in the order of the file's labels."""
        options, notes = super()._with_learned(options)
        by_output, _ = match_labels(self.labels, options.labels)
        of_label = dict(zip(by_output, self.thresholds.tolist(), strict=True))
        thresholds = tuple(of_label[label] for label in options.labels)
        learned = replace(self.options.multilabel, thresholds=thresholds)
        return replace(options, multilabel=learned), notes

    def measure(self, file: EncodedFile[Rows], predictions: Outputs) -> Measurement:
        """Measures the labels that are given, and the order of the probabilities."""
        probabilities = _probabilities(predictions)
        given, gold = probabilities >= self.thresholds, self.gold(file)
        measured = measure_labels(self.metrics, probabilities, given, gold, self.labels)
        if note := self.threshold_note:
            measured = replace(measured, notes=(*measured.notes, note))
        return measured

    def baseline(self, train: EncodedFile[Rows], dev: EncodedFile[Rows]) -> Measurement:
        """The same labels for every example: of the most frequent ones as many as have the highest
        micro F1 on the training file; for the average precision, their frequencies."""
        gold = self.gold(dev)
        shares = (self.gold(train) > 0.5).mean(0)
        order = np.argsort(-shares, kind="stable")
        hits = np.cumsum(shares[order])
        best = int((2 * hits / (np.arange(1, len(order) + 1) + shares.sum())).argmax()) + 1
        given = np.zeros(gold.shape, dtype=bool)
        given[:, order[:best]] = True
        shares_NC = np.broadcast_to(shares, gold.shape)
        return measure_labels(self.metrics, shares_NC, given, gold, self.labels)

    def table(self, file: EncodedFile[Rows], predictions: Outputs) -> list[list[str]]:
        """index, prediction, gold if known, and a probability for each label."""
        gold = file.rows.several
        header = ["index", "prediction", *([] if gold is None else ["gold"])]
        rows = [[*header, *(f"p({label})" for label in self.labels)]]
        given, probabilities, _ = self.interpret(predictions.astype(np.float64))
        for i, (labels, row) in enumerate(zip(given, probabilities, strict=True)):
            right = [] if gold is None else [self.shown(gold[i])]
            rows.append([str(i), self.shown(labels), *right, *(f"{p:.6f}" for p in row)])
        return rows

    def panels(self, file: EncodedFile[Rows], predictions: Outputs) -> list[Panel]:
        """The measures of each label."""
        measured = self.measure(file, predictions)
        given = (_probabilities(predictions) >= self.thresholds).sum(0).tolist()
        rows: list[tuple[Cell, ...]] = [
            (
                label,
                *(part[m] for m in ("precision", "recall", "f1", "average_precision")),
                count,
                int(part["support"]),
                threshold,
            )
            for (label, part), count, threshold in zip(
                measured.parts.items(), given, self.thresholds.tolist(), strict=True
            )
        ]
        header = ("label", "precision", "recall", "f1", "average precision")
        note = "A label is given if its probability reaches its threshold."
        return [
            Panel("Labels", (*header, "predicted", "in the data", "threshold"), tuple(rows), note)
        ]

    def errors(self, file: EncodedFile[Rows], predictions: Outputs) -> list[Mistake]:
        """Examples with a label too many or too few, the most confident first."""
        probabilities = _probabilities(predictions)
        given, gold = probabilities >= self.thresholds, self.gold(file) > 0.5
        mistakes = []
        for n in np.flatnonzero((given != gold).any(-1)).tolist():
            wrong = np.flatnonzero(given[n] != gold[n]).tolist()
            parts = [
                f"{self.labels[i]} {'wrong' if given[n, i] else 'missed'}, "
                f"probability {probabilities[n, i]:.3f}"
                for i in wrong
            ]
            weight = float(np.abs(probabilities[n, wrong] - gold[n, wrong]).max())
            sets = self._names(np.stack([gold[n], given[n]]))
            right, predicted = (", ".join(labels) or "no label" for labels in sets)
            mistakes.append(
                Mistake(
                    n,
                    self.named_texts(file.rows, n),
                    right,
                    predicted,
                    weight,
                    "; ".join(parts),
                )
            )
        return mistakes

    def example_scores(self, file: EncodedFile[Rows], predictions: Outputs) -> ExampleScores:
        """Whether all labels are right."""
        given = _probabilities(predictions) >= self.thresholds
        right = (given == (self.gold(file) > 0.5)).all(-1)
        return ExampleScores("subset accuracy", right.astype(np.float64))


class MultiRegressionTask(TextTask):
    """Several scores for each text or pair."""

    loss = "score"

    def strata(self, rows: Rows) -> list[tuple[str, ...]]:
        """Several scores divide examples into no few kinds."""
        return [() for _ in range(len(rows))]

    @classmethod
    def define(cls, options: TaskOptions, train: Rows) -> Self:
        """If the scores have no names, they are the columns', or numbered."""
        names = options.labels or options.label_columns
        if not names and train.several:
            names = tuple(f"{options.label}_{i}" for i in range(len(train.several[0])))
            if not names:
                raise InputError(
                    "the first example has no scores.", place=Place(train.path, train.lines[0])
                )
        _check_names(names, "a task of several scores")
        metrics = choose_metrics("multiregression", options.metrics)
        return cls(replace(options, labels=names, metrics=metrics))

    def targets(self, rows: Rows) -> NDArray[np.float32]:
        """The scores of each example, float32 [N, C].

        Raises:
            InputError: a score that is not a finite number, or another number of scores, with its
                line.
        """
        assert rows.several is not None, "the file was read without labels"
        targets_NC = np.zeros((len(rows), self.outputs), dtype=np.float32)
        for n, (line, cells) in enumerate(zip(rows.lines, rows.several, strict=True)):
            if len(cells) != self.outputs:
                raise InputError(
                    f"has {len(cells)} scores; the task has {self.outputs} "
                    f"({listed(self.labels)}). Give each example all of them.",
                    place=Place(rows.path, line),
                )
            for i, (name, cell) in enumerate(zip(self.labels, cells, strict=True)):
                targets_NC[n, i] = read_score(cell, rows.path, line, f"score {name!r}")
        return targets_NC

    def interpret(
        self, logits_NC: NDArray[np.float64]
    ) -> tuple[list[Any], NDArray[np.float64], tuple[str, ...]]:
        """The scores."""
        return [], logits_NC, self.labels

    def measure(self, file: EncodedFile[Rows], predictions: Outputs) -> Measurement:
        """Measures each score, unrounded, and their means."""
        return measure_several_scores(self.metrics, predictions, self.gold(file), self.labels)

    def baseline(self, train: EncodedFile[Rows], dev: EncodedFile[Rows]) -> Measurement:
        """The training file's mean of each score for every example."""
        gold = self.gold(dev)
        means = self.gold(train).mean(0, dtype=np.float64).astype(np.float32)
        return measure_several_scores(
            self.metrics, np.tile(means, (len(gold), 1)), gold, self.labels
        )

    def table(self, file: EncodedFile[Rows], predictions: Outputs) -> list[list[str]]:
        """index, the predictions, and gold if known."""
        gold, names = file.rows.several, self.labels
        header = ["index", *(f"prediction({name})" for name in names)]
        rows = [[*header, *(f"gold({name})" for name in names if gold is not None)]]
        for i, values in enumerate(predictions.tolist()):
            right = [] if gold is None else [f"{float(cell):.6g}" for cell in gold[i]]
            rows.append([str(i), *(f"{value:.6g}" for value in values), *right])
        return rows

    def panels(self, file: EncodedFile[Rows], predictions: Outputs) -> list[Panel]:
        """The measures of each score, and scatter plots of predicted over gold for the first."""
        measured, gold = self.measure(file, predictions), self.gold(file)
        rows: list[tuple[Cell, ...]] = [
            (name, *part.values()) for name, part in measured.parts.items()
        ]
        panels = [Panel("Scores", ("score", *self.metrics), tuple(rows))]
        for i, name in enumerate(self.labels[:_SHOWN_SCATTERS]):
            panel = scatter_panel(predictions[:, i], gold[:, i])
            panels.append(replace(panel, title=f"{name}: {panel.title}"))
        return panels

    def errors(self, file: EncodedFile[Rows], predictions: Outputs) -> list[Mistake]:
        """Every example with an error, the largest mean absolute error first."""
        gold = self.gold(file)
        errors = np.abs(predictions.astype(np.float64) - gold).mean(-1).tolist()
        return [
            Mistake(
                n,
                self.named_texts(file.rows, n),
                ", ".join(f"{value:.6g}" for value in gold[n].tolist()),
                ", ".join(f"{value:.4g}" for value in predictions[n].tolist()),
                errors[n],
                f"off by {errors[n]:.4g} on average",
            )
            for n in np.flatnonzero(errors).tolist()
        ]

    def example_scores(self, file: EncodedFile[Rows], predictions: Outputs) -> ExampleScores:
        """The mean absolute error of each example."""
        errors = np.abs(predictions.astype(np.float64) - self.gold(file)).mean(-1)
        return ExampleScores("mean absolute error", errors)


def _probabilities(logits_NC: NDArray[Any]) -> NDArray[np.float64]:
    return expit(logits_NC.astype(np.float64))


def best_threshold(
    probabilities: NDArray[np.float64], gold: NDArray[np.bool_], default: float
) -> float:
    """The threshold with the highest F1, as :func:`bothways.tasks.metrics.best_cut`; the default
    stays if no example is positive.

    Args:
        probabilities: [N].
        gold: [N].
        default: without a positive example there is no F1.
    """
    if not gold.any():
        return default
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    given = np.arange(1, len(ranked) + 1)
    f1 = 2 * np.cumsum(gold[order]) / (given + gold.sum())
    return best_cut(ranked, f1, default)


def _check_names(names: Sequence[str], what: str) -> None:
    if not names or len(set(names)) < len(names):
        twice = listed([name for name, count in Counter(names).items() if count > 1])
        problem = f"names {twice} twice" if names else "is empty, and no file names them"
        raise ConfigError(f"task.labels {problem}; {what} needs at least one, each once.")


def _find_labels(train: Rows) -> tuple[str, ...]:
    if train.several is None:
        return ()
    labels = sort_labels([label for found in train.several for label in found])
    if len(labels) > max(2, len(train)):
        raise InputError(
            f"{len(labels):,} different labels for {len(train):,} examples ({listed(labels, 4)}); "
            "set task.label_separator to what separates them, task.label if this is the wrong "
            "column, or task.labels if this is intended.",
            place=Place(train.path),
        )
    return labels
