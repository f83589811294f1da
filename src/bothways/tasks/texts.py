"""Classification and regression of single texts and pairs (Devlin et al. 2019, 4.1).

N examples, C outputs of the head.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import softmax
from bothways.errors import ConfigError, InputError, Place
from bothways.families.heads import CLASSIFIER, TAGGER
from bothways.io.lines import listed
from bothways.tasks.examples import Examples, encode_examples
from bothways.tasks.labels import match_labels
from bothways.tasks.metrics import (
    Measurement,
    check_measuring,
    choose_metrics,
    measure_classes,
    measure_scores,
    tuned_threshold,
)
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Rows, read_rows
from bothways.tasks.report_panels import (
    ExampleScores,
    Mistake,
    Panel,
    calibration_panel,
    classes_panel,
    confusion_panel,
    scatter_panel,
)
from bothways.tasks.task import EncodedFile, Outputs, Task
from bothways.tasks.windows import Reading, encode_windows, pool_windows, windows_note
from bothways.tokenization.tokenizer import Tokenizer

_NO_NUMBER = {"", "nan", "na", "n/a", "null", "none", "-", "?", "inf", "-inf", "#n/a"}
_LARGEST_SCORE = float(np.finfo(np.float32).max)


class TextTask(Task[Rows, Outputs]):
    """The base of the tasks that give a text or pair one row of outputs."""

    head: str = CLASSIFIER

    def __init__(self, options: TaskOptions):
        super().__init__(options)
        if options.reads == "tokens":
            self.head = TAGGER

    @property
    def pair(self) -> bool:
        """Whether an example has two texts."""
        return self.options.text_b is not None

    def strata(self, rows: Rows) -> list[tuple[str, ...]]:
        """The label, or the labels, of each."""
        if rows.several is not None:
            return rows.several
        return [(label,) for label in rows.labels or []]

    def groups(self, rows: Rows) -> list[Hashable]:
        """By the column ``task.group``, or by the texts."""
        return self.contents(rows) if rows.groups is None else [*rows.groups]

    def contents(self, rows: Rows) -> list[Hashable]:
        """The texts."""
        return [*rows.a] if rows.b is None else [*zip(rows.a, rows.b, strict=True)]

    def places(self, rows: Rows) -> list[str]:
        """The lines."""
        return [str(line) for line in rows.lines]

    @classmethod
    def read(cls, path: Path, options: TaskOptions, *, labelled: bool) -> Rows:
        """A TSV, CSV, JSONL or JSON file."""
        check_columns(options)
        if labelled:
            check_measuring()
        return read_rows(path, options, labelled=labelled)

    def encode(self, tokenizer: Tokenizer, rows: Rows, *, length: int) -> EncodedFile[Rows]:
        """With the longer text of a pair cut first, or cut into windows."""
        labelled = rows.labels is not None or rows.several is not None
        targets = self.targets(rows) if labelled else None
        examples = self.examples(tokenizer, rows.a, rows.b, length=length)
        if targets is not None:
            examples = examples.with_targets(targets[examples.owners])
        notes = self.reading_notes(
            tokenizer, rows.path.name, Reading.of(tokenizer, examples, rows.empty), length
        )
        return EncodedFile(rows, examples, (*notes, *rows.broken.notes(rows.path.name)))

    def reading_notes(
        self, tokenizer: Tokenizer, name: str, reading: Reading, length: int
    ) -> list[str]:
        """What is said of how a file's texts were read."""
        notes = []
        if self.options.long == "windows":
            pooling = self.options.windows.pooling
            notes = windows_note(tokenizer, name, reading, length, pooling)
        elif reading.cut:
            notes.append(
                f"{name}: {reading.cut:,} of {reading.texts:,} examples were cut to {length} tokens"
            )
        if reading.empty:
            notes.append(f"{name}: {reading.empty:,} of {reading.texts:,} examples have no text")
        return notes

    def examples(
        self, tokenizer: Tokenizer, a: Sequence[str], b: Sequence[str] | None, *, length: int
    ) -> Examples:
        """Encode texts or pairs; the options say whether long ones are cut or read in windows, and
        which tokens the head reads."""
        if self.options.long == "windows":
            stride = self.options.windows.stride
            examples = encode_windows(tokenizer, a, b, length=length, stride=stride)
        else:
            examples = encode_examples(tokenizer, a, b, length=length)
        if self.options.reads == "tokens":
            every = np.arange(len(examples.tokens), dtype=np.int64)
            examples = replace(examples, read_positions=every)
        return examples

    def named_texts(self, rows: Rows, example: int) -> tuple[tuple[str, str], ...]:
        """An example's texts with the names of their columns, for the report."""
        first = (rows.text, rows.a[example])
        if rows.b is None or self.options.text_b is None:
            return (first,)
        return (first, (self.options.text_b, rows.b[example]))

    def targets(self, rows: Rows) -> NDArray[Any]:
        """The target of each example, [N], or its targets, [N, C]."""
        raise NotImplementedError

    def gold(self, file: EncodedFile[Rows]) -> NDArray[Any]:
        """The target or targets of each text, [N] or [N, C], however many windows it has."""
        return file.examples.gold[file.examples.first_items]

    def pooled(self, examples: Examples, outputs: Outputs) -> Outputs:
        """The outputs for each text, float32 [N, C], from those for all windows or tokens."""
        return pool_windows(self.averaged(examples, outputs), examples, self.options.windows)

    def averaged(self, examples: Examples, outputs: Outputs) -> Outputs:
        """The outputs for each window, of those for the tokens of it that the head reads."""
        bounds = examples.output_bounds
        if len(outputs) == len(examples):  # one token of each is read, or they are averaged already
            return outputs
        sums = np.add.reduceat(outputs.astype(np.float64), bounds[:-1])
        return (sums / np.diff(bounds)[:, np.newaxis]).astype(np.float32)

    def interpret(
        self, logits_NC: NDArray[np.float64]
    ) -> tuple[list[Any], NDArray[np.float64], tuple[str, ...]]:
        """What the outputs for texts mean.

        Returns:
            The label of each text, or the list of its labels; none for scores. The probabilities or
            scores, [N, C]. The names of their columns.
        """
        raise NotImplementedError

    def decode(self, file: EncodedFile[Rows], outputs: Outputs) -> Outputs:
        """The outputs for each text, float32 [N, C]."""
        return self.pooled(file.examples, outputs)


class ClassificationTask(TextTask):
    """One label for each text or pair."""

    loss = "class"

    @classmethod
    def define(cls, options: TaskOptions, train: Rows) -> Self:
        """If labels are not given, they are collected from the training file."""
        labels = renamed(options.labels, options) or _find_labels(train, options)
        check_all_named(labels, options)
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ConfigError(
                f"task.labels is {listed(labels)}; a classification needs at least two, each once."
            )
        if len(labels) != 2 and (options.tune or options.threshold is not None):
            raise ConfigError(
                f"task.{'tune' if options.tune else 'threshold'} is for two labels; there are "
                f"{len(labels)}. Leave it out."
            )
        metrics = choose_metrics("classification", options.metrics, len(labels))
        return cls(replace(options, labels=labels, metrics=metrics))

    def targets(self, rows: Rows) -> NDArray[np.int64]:
        """The class of each example, int64 [N].

        Raises:
            InputError: an unknown label, with its line.
        """
        assert rows.labels is not None, "the file was read without labels"
        class_of = {label: i for i, label in enumerate(self.labels)}
        for line, label in zip(rows.lines, rows.labels, strict=True):
            if label not in class_of:
                raise InputError(
                    f"unknown label {label!r}; the labels are {listed(self.labels)} (task.labels, "
                    "or what the training file has).",
                    place=Place(rows.path, line),
                )
        return np.array([class_of[label] for label in rows.labels], dtype=np.int64)

    def interpret(
        self, logits_NC: NDArray[np.float64]
    ) -> tuple[list[Any], NDArray[np.float64], tuple[str, ...]]:
        """The label of each text, and the probabilities of all."""
        values = softmax(logits_NC, axis=-1)
        labels = self.options.labels
        return [labels[i] for i in self._chosen(values, values)], values, labels

    def _chosen(
        self, ranked_NC: NDArray[Any], probabilities_NC: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """The classes, int64 [N].

        Args:
            ranked_NC: outputs or probabilities; the highest is predicted,
            probabilities_NC: or where the task has a threshold, the second of two labels if its
                probability reaches it.
        """
        if self.options.threshold is None or self.outputs != 2:
            return np.asarray(ranked_NC.argmax(-1), dtype=np.int64)
        return (probabilities_NC[:, 1] >= self.options.threshold).astype(np.int64)

    def tuned(self, file: EncodedFile[Rows], predictions: Outputs) -> Self:
        """With the threshold that is best on a labelled file, if one is to be tuned."""
        if not self.options.tune:
            return self
        second = _probabilities(predictions)[:, 1]
        threshold = tuned_threshold(self.metrics[0], second, self.gold(file) == 1)
        return type(self)(replace(self.options, threshold=threshold))

    def _with_learned(self, options: TaskOptions) -> tuple[TaskOptions, tuple[str, ...]]:
        """Windows, and the threshold, which is of the label that is second here."""
        options, notes = super()._with_learned(options)
        threshold = self.options.threshold
        if threshold is not None and match_labels(self.labels, options.labels)[0] != options.labels:
            threshold = 1 - threshold
        return replace(options, threshold=threshold), notes

    def measure(self, file: EncodedFile[Rows], predictions: Outputs) -> Measurement:
        """Measures the labels."""
        probabilities = _probabilities(predictions)
        chosen = self._chosen(predictions, probabilities)
        measured = self._measure(chosen, self.gold(file), probabilities)
        if note := self.threshold_note:
            measured = replace(measured, notes=(*measured.notes, note))
        return measured

    def baseline(self, train: EncodedFile[Rows], dev: EncodedFile[Rows]) -> Measurement:
        """The majority class of the training file for every example."""
        gold = self.gold(dev)
        counts = np.bincount(self.gold(train), minlength=self.outputs)
        shares = np.broadcast_to(counts / counts.sum(), (len(gold), self.outputs))
        return self._measure(np.full(len(gold), counts.argmax()), gold, shares)

    def _measure(
        self, predicted: NDArray[Any], gold: NDArray[Any], probabilities: NDArray[Any]
    ) -> Measurement:
        return measure_classes(self.metrics, predicted, gold, self.labels, probabilities)

    def table(self, file: EncodedFile[Rows], predictions: Outputs) -> list[list[str]]:
        """index, prediction, gold if known, and a probability for each label."""
        gold = file.rows.labels
        header = ["index", "prediction", *(["gold"] if gold else [])]
        rows = [[*header, *(f"p({label})" for label in self.labels)]]
        probabilities = _probabilities(predictions)
        chosen = self._chosen(probabilities, probabilities)
        for i, (best, row) in enumerate(zip(chosen.tolist(), probabilities, strict=True)):
            label = [gold[i]] if gold else []
            cells = [f"{p:.6f}" for p in row]
            rows.append([str(i), self.labels[best], *label, *cells])
        return rows

    def panels(self, file: EncodedFile[Rows], predictions: Outputs) -> list[Panel]:
        """The measures of each class, a confusion matrix and a calibration table."""
        probabilities = _probabilities(predictions)
        predicted, gold = self._chosen(predictions, probabilities), self.gold(file)
        panels = [
            classes_panel(self.measure(file, predictions).parts),
            confusion_panel(predicted, gold, self.labels),
            calibration_panel(probabilities.max(-1), predictions.argmax(-1) == gold),
        ]
        if note := self.threshold_note:
            panels[0] = replace(panels[0], note=f"{note}.")
        return panels

    @property
    def threshold_note(self) -> str:
        """From which probability on the second label is predicted; empty without a threshold."""
        if self.options.threshold is None or self.outputs != 2:
            return ""
        tuned = ", as tuned on dev" if self.options.tune else ""
        threshold = self.options.threshold
        return f"{self.labels[1]!r} is predicted from a probability of {threshold:.4g} on{tuned}"

    def errors(self, file: EncodedFile[Rows], predictions: Outputs) -> list[Mistake]:
        """Wrong labels, the most confident first."""
        probabilities = _probabilities(predictions)
        predicted, gold = self._chosen(predictions, probabilities), self.gold(file)
        mistakes = []
        for n in np.flatnonzero(predicted != gold).tolist():
            confidence = float(probabilities[n, predicted[n]])
            of_right = float(probabilities[n, gold[n]])
            note = f"probability {confidence:.3f}, of the right one {of_right:.3f}"
            labels = self.labels[gold[n]], self.labels[predicted[n]]
            mistakes.append(Mistake(n, self.named_texts(file.rows, n), *labels, confidence, note))
        return mistakes

    def example_scores(self, file: EncodedFile[Rows], predictions: Outputs) -> ExampleScores:
        """Whether the label is right."""
        probabilities = _probabilities(predictions)
        right = self._chosen(predictions, probabilities) == self.gold(file)
        return ExampleScores("accuracy", right.astype(np.float64))


def _probabilities(logits_NC: NDArray[Any]) -> NDArray[np.float64]:
    return softmax(logits_NC.astype(np.float64), axis=-1)


class RegressionTask(TextTask):
    """A score for each text or pair."""

    loss = "score"

    def strata(self, rows: Rows) -> list[tuple[str, ...]]:
        """The tenth of the scores that each is among."""
        scores = self.targets(rows)
        edges = np.quantile(scores, np.arange(1, 10) / 10)
        return [(f"tenth {n + 1}",) for n in np.searchsorted(edges, scores).tolist()]

    @property
    def outputs(self) -> int:
        """A single score."""
        return 1

    @classmethod
    def define(cls, options: TaskOptions, train: Rows) -> Self:  # noqa: ARG003
        """Nothing depends on the training file."""
        if options.labels:
            raise ConfigError("task.labels is given, but regression has scores, not labels.")
        return cls(replace(options, metrics=choose_metrics("regression", options.metrics, 0)))

    def targets(self, rows: Rows) -> NDArray[np.float32]:
        """The score of each example, float32 [N].

        Raises:
            InputError: a score that is not a finite number, with its line.
        """
        assert rows.labels is not None
        cells = zip(rows.labels, rows.lines, strict=True)
        return np.array([read_score(cell, rows.path, n) for cell, n in cells], dtype=np.float32)

    def interpret(
        self, logits_NC: NDArray[np.float64]
    ) -> tuple[list[Any], NDArray[np.float64], tuple[str, ...]]:
        """The scores."""
        return [], logits_NC, ("score",)

    def measure(self, file: EncodedFile[Rows], predictions: Outputs) -> Measurement:
        """Measures the scores, unrounded."""
        return measure_scores(self.metrics, predictions[:, 0], self.gold(file))

    def baseline(self, train: EncodedFile[Rows], dev: EncodedFile[Rows]) -> Measurement:
        """The mean score of the training file for every example."""
        gold = self.gold(dev)
        mean = np.full(len(gold), self.gold(train).mean(), np.float32)
        return measure_scores(self.metrics, mean, gold)

    def table(self, file: EncodedFile[Rows], predictions: Outputs) -> list[list[str]]:
        """index, prediction, and gold if known."""
        gold = file.rows.labels
        rows = [["index", "prediction", *(["gold"] if gold else [])]]
        for i, value in enumerate(predictions[:, 0].tolist()):
            gold_score = [f"{float(gold[i]):.6g}"] if gold else []
            rows.append([str(i), f"{value:.6g}", *gold_score])
        return rows

    def panels(self, file: EncodedFile[Rows], predictions: Outputs) -> list[Panel]:
        """A scatter plot of predicted over gold scores."""
        return [scatter_panel(predictions[:, 0], self.gold(file))]

    def errors(self, file: EncodedFile[Rows], predictions: Outputs) -> list[Mistake]:
        """Every score with an error, the largest error first."""
        gold = self.gold(file)
        errors = np.abs(predictions[:, 0] - gold).tolist()
        return [
            Mistake(
                n,
                self.named_texts(file.rows, n),
                f"{gold[n]:.6g}",
                f"{predictions[n, 0]:.4g}",
                errors[n],
                f"off by {errors[n]:.4g}",
            )
            for n in np.flatnonzero(errors).tolist()
        ]

    def example_scores(self, file: EncodedFile[Rows], predictions: Outputs) -> ExampleScores:
        """The absolute error of each score."""
        errors = np.abs(predictions[:, 0].astype(np.float64) - self.gold(file))
        return ExampleScores("mean absolute error", errors)


def check_columns(options: TaskOptions) -> None:
    """Refuse a task that gives the model the label to read, or the same text twice.

    Raises:
        ConfigError: two of the task's columns are the same.
    """
    columns = [options.text_a, *(options.label_columns or [options.label])]
    if options.text_b is not None:
        columns.insert(1, options.text_b)
    refuse_twice(columns, "text_a, text_b and label (or label_columns)")


def refuse_twice(columns: Sequence[str], what: str) -> None:
    """Refuse a column that is named for more than one thing.

    Raises:
        ConfigError: naming the column.
    """
    for name, count in Counter(columns).items():
        if count > 1:
            raise ConfigError(
                f"task: column {name!r} is named for {count} of {what}; each needs its own."
            )


def sort_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The distinct labels: whole numbers sorted by value, anything else alphabetically."""
    try:
        return tuple(sorted(set(labels), key=lambda label: (int(label), label)))
    except ValueError:
        return tuple(sorted(set(labels)))


def renamed(labels: Sequence[str], options: TaskOptions) -> tuple[str, ...]:
    """Labels by the names that the task gives them."""
    return tuple(options.named.get(label, label) for label in labels)


def check_all_named(labels: Sequence[str], options: TaskOptions) -> None:
    """Refuse a name for what is no label, as by a slip of the pen.

    Raises:
        ConfigError: naming it and the labels.
    """
    for label, name in options.named.items():
        if name not in labels:
            raise ConfigError(
                f"task.names has '{label}={name}', but no training example has the label "
                f"{label!r}; the labels are {listed(labels)}. Leave it out, or write the label as "
                "the file has it."
            )


def in_order_of_names(labels: Sequence[str], options: TaskOptions) -> tuple[str, ...]:
    """Labels that the task names in the order in which it does, then the others."""
    named = [name for name in dict.fromkeys(options.named.values()) if name in labels]
    return (*named, *(label for label in labels if label not in named))


def _find_labels(train: Rows, options: TaskOptions) -> tuple[str, ...]:
    assert train.labels is not None
    labels = in_order_of_names(sort_labels(train.labels), options)
    if len(labels) == 1:
        raise InputError(
            f"every example has the label {labels[0]!r}; there is nothing to learn.",
            place=Place(train.path),
        )
    if len(labels) > 2 and len(train) < 2 * len(labels):
        raise InputError(
            f"{len(labels):,} different labels for {len(train):,} examples ({listed(labels, 4)}); "
            "set task.kind to regression if these are scores, task.label if this is the wrong "
            "column, or task.labels if this is intended.",
            place=Place(train.path),
        )
    return labels


def _number_remedy(text: str) -> str:
    """How to write what was meant by something that is no number."""
    plain = text.strip()
    if plain.lower() in _NO_NUMBER:
        return "fill it in, or leave the line out."
    if plain.endswith("%"):
        return "write all without the sign, as 5 or as 0.05."
    if "\u2212" in plain:
        return (
            f"write {plain.replace(chr(0x2212), '-')}; the minus sign here is that of typesetters."
        )
    if re.fullmatch(r"[+-]?\d{1,3}(\.\d{3})+,\d+", plain):
        return f"write {plain.replace('.', '').replace(',', '.')}, with a decimal point alone."
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{2,3})*,\d{3}(\.\d+)?", plain):
        whole = f"write {plain.replace(',', '')} if the comma parts thousands"
        return (
            f"{whole}."
            if plain.count(",") > 1 or "." in plain
            else (f"{whole}, {plain.replace(',', '.')} if it is a decimal comma.")
        )
    if re.fullmatch(r"[+-]?\d*,\d+", plain):
        return f"write {plain.replace(',', '.')}, with a point."
    return "write numbers such as 3.5 alone, without units."


def read_score(text: str, path: Path, line: int, name: str = "score") -> float:
    """A score in a file.

    Raises:
        InputError: it is not a finite number, or too large for training; it is called ``name``.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"the {name} {text!r} is not a finite number; {_number_remedy(text)}",
            place=Place(path, line),
        )
    if abs(value) > _LARGEST_SCORE:
        raise InputError(
            f"the {name} {text!r} is too large; training computes with scores up to "
            f"{_LARGEST_SCORE:.3g}. Divide all scores by the same number.",
            place=Place(path, line),
        )
    return value
