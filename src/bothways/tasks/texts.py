"""Labels and scores of single texts and pairs (Devlin et al. 2019, 4.1).

A text has one label, the most probable by a softmax; or any number of labels, each of which is
given if its probability, a sigmoid, reaches its threshold; or a score, or several.

N examples, C outputs of the head.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import expit, softmax
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
    measure_labels,
    measure_scores,
    tuned_threshold,
)
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Texts, read_rows
from bothways.tasks.report_panels import (
    ExampleScores,
    Mistake,
    Panel,
    calibration_panel,
    confusion_panel,
    labels_panel,
    parts_panel,
    scatter_panel,
)
from bothways.tasks.task import EncodedFile, Outputs, Task
from bothways.tasks.windows import Reading, encode_windows, pool_windows, windows_note
from bothways.tokenization.tokenizer import Tokenizer

_LARGEST_SCORE = float(np.finfo(np.float32).max)
_SHOWN_SCATTERS, _SHOWN_THRESHOLDS, _HALF = 6, 8, 0.5


class TextTask(Task[Texts, Outputs]):
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

    def strata(self, rows: Texts) -> list[tuple[str, ...]]:
        """The labels of each."""
        return rows.labels or []

    def groups(self, rows: Texts) -> list[Hashable]:
        """By the column ``group``, or by the texts."""
        return self.contents(rows) if rows.groups is None else [*rows.groups]

    def contents(self, rows: Texts) -> list[Hashable]:
        """The texts."""
        return [*rows.a] if rows.b is None else [*zip(rows.a, rows.b, strict=True)]

    def places(self, rows: Texts) -> list[str]:
        """The lines."""
        return [str(line) for line in rows.lines]

    @classmethod
    def read(cls, path: Path, options: TaskOptions, *, labelled: bool) -> Texts:
        """A TSV, CSV, JSONL or JSON file."""
        check_columns(options)
        if labelled:
            check_measuring()
        return read_rows(path, options, labelled=labelled)

    def encode(self, tokenizer: Tokenizer, rows: Texts, *, length: int) -> EncodedFile[Texts]:
        """With the longer text of a pair cut first, or cut into windows."""
        targets = None if rows.labels is None else self.targets(rows)
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

    def named_texts(self, rows: Texts, example: int) -> tuple[tuple[str, str], ...]:
        """An example's texts with the names of their columns, for the report."""
        first = (rows.text, rows.a[example])
        if rows.b is None or self.options.text_b is None:
            return (first,)
        return (first, (self.options.text_b, rows.b[example]))

    def targets(self, rows: Texts) -> NDArray[Any]:
        """The target of each example, [N], or its targets, [N, C]."""
        raise NotImplementedError

    def gold(self, file: EncodedFile[Texts]) -> NDArray[Any]:
        """The target or targets of each text, [N] or [N, C], however many windows it has."""
        return file.examples.gold[file.examples.first_items]

    @property
    def several(self) -> bool:
        """Whether a text may have several labels or scores."""
        return self.options.traits.several

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

    def decode(self, file: EncodedFile[Texts], outputs: Outputs) -> Outputs:
        """The outputs for each text, float32 [N, C]."""
        return self.pooled(file.examples, outputs)


class LabelTask(TextTask):
    """One label for each text or pair, or any number of labels."""

    def __init__(self, options: TaskOptions):
        super().__init__(options)
        self.loss = "labels" if self.several else "class"

    @classmethod
    def define(cls, options: TaskOptions, train: Texts) -> Self:
        """If labels are not given, they are the columns', or those of the training file."""
        several = options.traits.several
        given = renamed(options.labels or options.label_columns, options)
        labels = given or _find_labels(train, options)
        for label, name in options.named.items():
            if name not in labels:
                raise ConfigError(
                    f"names has '{label}={name}', but no training example has the label "
                    f"{label!r}; the labels are {listed(labels)}."
                )
        if len(labels) < 2 - several or len(set(labels)) < len(labels):
            raise ConfigError(
                f"labels is {listed(labels)}; {options.kind} needs at least "
                f"{'one' if several else 'two'}, each once."
            )
        if not several and len(labels) != 2 and (options.tune or options.threshold is not None):
            raise ConfigError(
                f"{'tune' if options.tune else 'threshold'} is for two labels; there are "
                f"{len(labels)}. Leave it out."
            )
        separator = options.label_separator
        if held := [label for label in labels if separator and separator in label]:
            raise ConfigError(
                f"labels: {held[0]!r} holds label_separator, {separator!r}; choose "
                "another separator, or rename the label."
            )
        metrics = choose_metrics(options.kind, options.metrics, 0 if several else len(labels))
        return cls(replace(options, labels=labels, metrics=metrics))

    def encode(self, tokenizer: Tokenizer, rows: Texts, *, length: int) -> EncodedFile[Texts]:
        """As for other texts; of several labels those that no example has are noted."""
        file = super().encode(tokenizer, rows, length=length)
        found = {label for labels in rows.labels or () for label in labels}
        absent = [label for label in self.labels if label not in found]
        if not (self.several and absent) or rows.labels is None:
            return file
        note = f"{rows.path.name}: no example has the labels {listed(absent)}"
        return replace(file, notes=(*file.notes, note))

    def targets(self, rows: Texts) -> NDArray[Any]:
        """The class of each example, int64 [N]; of several labels 1 for each that an example has,
        else 0, float32 [N, C].

        Raises:
            InputError: an unknown label, with its line.
        """
        assert rows.labels is not None, "the file was read without labels"
        column_of = {label: i for i, label in enumerate(self.labels)}
        targets_NC = np.zeros((len(rows), self.outputs), dtype=np.float32)
        for n, (line, labels) in enumerate(zip(rows.lines, rows.labels, strict=True)):
            for label in labels:
                if label not in column_of:
                    raise InputError(
                        f"unknown label {label!r}; the labels are {listed(self.labels)} "
                        "(labels, or what the training file has).",
                        place=Place(rows.path, line),
                    )
                targets_NC[n, column_of[label]] = 1
        return targets_NC if self.several else targets_NC.argmax(-1)

    def _has_label(self, file: EncodedFile[Texts]) -> NDArray[np.bool_]:
        """Whether each text has each label, [N, C]."""
        gold = self.gold(file)
        found: NDArray[np.bool_] = gold > _HALF if self.several else self._one_hot(gold)
        return found

    def _one_hot(self, classes: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(classes[:, np.newaxis] == np.arange(self.outputs))

    def _probabilities(self, logits_NC: NDArray[Any]) -> NDArray[np.float64]:
        values = logits_NC.astype(np.float64)
        return expit(values) if self.several else softmax(values, axis=-1)

    def _given(self, probabilities_NC: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether each label is predicted for each text, [N, C]."""
        threshold = self.options.threshold
        if self.several:
            return np.asarray(probabilities_NC >= self.thresholds)
        if threshold is None or self.outputs != 2:
            return self._one_hot(probabilities_NC.argmax(-1))
        return self._one_hot(probabilities_NC[:, 1] >= threshold)

    @property
    def thresholds(self) -> NDArray[np.float64]:
        """Of several labels the probability from which each is given, [C]."""
        own = self.options.multilabel
        return np.array(own.thresholds or [own.threshold] * self.outputs, dtype=np.float64)

    @property
    def threshold_note(self) -> str:
        """From which probabilities on labels are given; empty if that is the usual one."""
        tuned, labels, found = self.options.tune, self.labels, self.thresholds.tolist()
        if self.several:
            tuned = self.options.multilabel.tune != "none"
        elif self.options.threshold is None or self.outputs != 2:
            return ""
        else:
            labels, found = self.labels[1:], [self.options.threshold]
        if self.several and {*found} == {_HALF}:
            return ""
        of_label = [f"{label} {value:.4g}" for label, value in zip(labels, found, strict=True)]
        given = f"these probabilities: {', '.join(of_label)}"
        if len({*found}) == 1 and self.several:
            given = f"a probability of {found[0]:.4g}"
        elif len(of_label) > _SHOWN_THRESHOLDS:
            low, high = of_label[int(np.argmin(found))], of_label[int(np.argmax(found))]
            given = f"probabilities between {low} and {high}"
        return f"labels are given from {given}" + "; tuned on dev" * tuned

    def tuned(self, file: EncodedFile[Texts], predictions: Outputs) -> Self:
        """With the thresholds that are best on a labelled file, if they are to be tuned."""
        gold, probabilities = self._has_label(file), self._probabilities(predictions)
        own = self.options.multilabel
        if not self.several:
            if not self.options.tune:
                return self
            second = gold[:, 1]
            best = tuned_threshold(self.metrics[0], probabilities[:, 1], second)
            return type(self)(replace(self.options, threshold=best))
        if own.tune == "none":
            return self
        columns = zip(probabilities.T, gold.T, strict=True)
        if own.tune == "one":
            columns = zip([probabilities.ravel()], [gold.ravel()], strict=True)
        found = [tuned_threshold("f1", p, g, own.threshold) for p, g in columns]
        found = found * self.outputs if own.tune == "one" else found
        learned = replace(own, thresholds=tuple(found))
        return type(self)(replace(self.options, multilabel=learned))

    def _with_learned(self, options: TaskOptions) -> tuple[TaskOptions, tuple[str, ...]]:
        """Windows, and the thresholds, which are those of the file's labels in their order."""
        options, notes = super()._with_learned(options)
        by_output, _ = match_labels(self.labels, options.labels)
        if self.several:
            of_label = dict(zip(by_output, self.thresholds.tolist(), strict=True))
            thresholds = tuple(of_label[label] for label in options.labels)
            learned = replace(self.options.multilabel, thresholds=thresholds)
            return replace(options, multilabel=learned), notes
        threshold = self.options.threshold
        if threshold is not None and by_output != options.labels:
            threshold = 1 - threshold
        return replace(options, threshold=threshold), notes

    def interpret(
        self, logits_NC: NDArray[np.float64]
    ) -> tuple[list[Any], NDArray[np.float64], tuple[str, ...]]:
        """The label or labels of each text, and the probabilities of all."""
        probabilities = self._probabilities(logits_NC)
        given = self._names(self._given(probabilities))
        return given if self.several else [own[0] for own in given], probabilities, self.labels

    def _names(self, given_NC: NDArray[Any]) -> list[list[str]]:
        return [
            [label for label, has in zip(self.labels, row, strict=True) if has] for row in given_NC
        ]

    def shown(self, labels: Sequence[str]) -> str:
        """Labels in one cell, as they are read: one as it is, several with the task's separator or
        as a JSON list."""
        if not self.several:
            return labels[0]
        separator = self.options.label_separator
        return separator.join(labels) if separator else json.dumps(list(labels), ensure_ascii=False)

    def measure(self, file: EncodedFile[Texts], predictions: Outputs) -> Measurement:
        """Measures the labels that are given, and the order of the probabilities."""
        probabilities = self._probabilities(predictions)
        measured = self._measure(self._given(probabilities), file, probabilities)
        notes = filter(None, (*measured.notes, self.threshold_note))
        return replace(measured, notes=tuple(notes))

    def baseline(self, train: EncodedFile[Texts], dev: EncodedFile[Texts]) -> Measurement:
        """The most frequent label of the training file for every example; of several labels as
        many of the most frequent as have the highest micro F1 on it."""
        shares = self._has_label(train).mean(0)
        order, best = np.argsort(-shares, kind="stable"), 1
        if self.several:
            hits = np.cumsum(shares[order])
            best += int((2 * hits / (np.arange(1, len(order) + 1) + shares.sum())).argmax())
        given = np.zeros((len(self.gold(dev)), self.outputs), dtype=bool)
        given[:, order[:best]] = True
        return self._measure(given, dev, np.broadcast_to(shares, given.shape))

    def _measure(
        self, given_NC: NDArray[Any], file: EncodedFile[Texts], probabilities: NDArray[Any]
    ) -> Measurement:
        gold_NC = self._has_label(file)
        if self.several:
            return measure_labels(self.metrics, probabilities, given_NC, gold_NC, self.labels)
        classes = given_NC.argmax(-1), gold_NC.argmax(-1)
        return measure_classes(self.metrics, *classes, self.labels, probabilities)

    def table(self, file: EncodedFile[Texts], predictions: Outputs) -> list[list[str]]:
        """index, prediction, gold if known, and a probability for each label."""
        gold = file.rows.labels
        header = ["index", "prediction", *([] if gold is None else ["gold"])]
        rows = [[*header, *(f"p({label})" for label in self.labels)]]
        probabilities = self._probabilities(predictions)
        given = self._names(self._given(probabilities))
        for i, (labels, row) in enumerate(zip(given, probabilities, strict=True)):
            right = [] if gold is None else [self.shown(gold[i])]
            rows.append([str(i), self.shown(labels), *right, *(f"{p:.6f}" for p in row)])
        return rows

    def panels(self, file: EncodedFile[Texts], predictions: Outputs) -> list[Panel]:
        """The measures of each label; of one label also a confusion matrix and calibration."""
        probabilities = self._probabilities(predictions)
        given, gold = self._given(probabilities), self._has_label(file)
        thresholds = self.thresholds.tolist() if self.several else None
        parts = self.measure(file, predictions).parts
        panel = labels_panel(parts, given.sum(0).tolist(), thresholds, self.threshold_note)
        if self.several:
            return [panel]
        best, right = probabilities.argmax(-1), gold.argmax(-1)
        return [
            panel,
            confusion_panel(given.argmax(-1), right, self.labels),
            calibration_panel(probabilities.max(-1), best == right),
        ]

    def errors(self, file: EncodedFile[Texts], predictions: Outputs) -> list[Mistake]:
        """Examples with a label too many or too few, the most confident first."""
        probabilities = self._probabilities(predictions)
        given, gold = self._given(probabilities), self._has_label(file)
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
            right, predicted = (", ".join(names) or "no label" for names in sets)
            texts = self.named_texts(file.rows, n)
            mistakes.append(Mistake(n, texts, right, predicted, weight, "; ".join(parts)))
        return mistakes

    def example_scores(self, file: EncodedFile[Texts], predictions: Outputs) -> ExampleScores:
        """Whether all labels are right."""
        right = self._given(self._probabilities(predictions)) == self._has_label(file)
        name = "subset accuracy" if self.several else "accuracy"
        return ExampleScores(name, right.all(-1).astype(np.float64))


class ScoreTask(TextTask):
    """A score for each text or pair, or several."""

    loss = "score"

    @property
    def outputs(self) -> int:
        """The number of scores."""
        return len(self.labels) if self.several else 1

    @property
    def _names(self) -> tuple[str, ...]:
        return self.labels if self.several else ("score",)

    @classmethod
    def define(cls, options: TaskOptions, train: Texts) -> Self:
        """Several scores without names have those of their columns, or are numbered."""
        names = options.labels
        if not options.traits.several and names:
            raise ConfigError("labels is given, but regression has scores, not labels.")
        if options.traits.several:
            names = names or options.label_columns
            if not names and train.labels:
                names = tuple(f"{options.label}_{i}" for i in range(len(train.labels[0])))
            if not names or len(set(names)) < len(names):
                raise ConfigError(
                    f"labels is {listed(names)}; the scores need a name each, each once."
                )
        metrics = choose_metrics(options.kind, options.metrics)
        return cls(replace(options, labels=names, metrics=metrics))

    def strata(self, rows: Texts) -> list[tuple[str, ...]]:
        """The decile of each score; nothing of several scores."""
        if self.several:
            return [() for _ in range(len(rows))]
        scores = self.targets(rows)
        edges = np.quantile(scores, np.arange(1, 10) / 10)
        return [(f"tenth {n + 1}",) for n in np.searchsorted(edges, scores).tolist()]

    def targets(self, rows: Texts) -> NDArray[np.float32]:
        """The score of each example, float32 [N]; several scores, float32 [N, C].

        Raises:
            InputError: a score that is not a finite number, or another number of scores, with its
                line.
        """
        assert rows.labels is not None, "the file was read without labels"
        targets_NC = np.zeros((len(rows), self.outputs), dtype=np.float32)
        for n, (line, cells) in enumerate(zip(rows.lines, rows.labels, strict=True)):
            if len(cells) != self.outputs:
                raise InputError(
                    f"has {len(cells)} scores; the task has {self.outputs} "
                    f"({listed(self._names)}).",
                    place=Place(rows.path, line),
                )
            place = Place(rows.path, line)
            targets_NC[n] = [
                _read_score(cell, f"score {name!r}" if self.several else "score", place)
                for name, cell in zip(self._names, cells, strict=True)
            ]
        return targets_NC if self.several else targets_NC[:, 0]

    def interpret(
        self, logits_NC: NDArray[np.float64]
    ) -> tuple[list[Any], NDArray[np.float64], tuple[str, ...]]:
        """The scores."""
        return [], logits_NC, self._names

    def _gold(self, file: EncodedFile[Texts]) -> NDArray[Any]:
        gold = self.gold(file)
        return gold.reshape(len(gold), -1)

    def measure(self, file: EncodedFile[Texts], predictions: Outputs) -> Measurement:
        """Measures each score, unrounded, and their means."""
        return measure_scores(self.metrics, predictions, self._gold(file), self.labels)

    def baseline(self, train: EncodedFile[Texts], dev: EncodedFile[Texts]) -> Measurement:
        """The training file's mean of each score for every example."""
        gold = self._gold(dev)
        means = self._gold(train).mean(0, dtype=np.float64).astype(np.float32)
        return measure_scores(self.metrics, np.tile(means, (len(gold), 1)), gold, self.labels)

    def table(self, file: EncodedFile[Texts], predictions: Outputs) -> list[list[str]]:
        """index, the predictions, and gold if known."""
        gold, names = file.rows.labels, [f"({n})" if self.several else "" for n in self._names]
        header = ["index", *(f"prediction{name}" for name in names)]
        rows = [[*header, *(f"gold{name}" for name in names if gold is not None)]]
        for i, values in enumerate(predictions.tolist()):
            right = [] if gold is None else [f"{float(cell):.6g}" for cell in gold[i]]
            rows.append([str(i), *(f"{value:.6g}" for value in values), *right])
        return rows

    def panels(self, file: EncodedFile[Texts], predictions: Outputs) -> list[Panel]:
        """Scatter plots of predicted over gold for the first scores; the measures of several."""
        gold, panels = self._gold(file), list[Panel]()
        if self.several:
            panels = [parts_panel("Scores", "score", self.measure(file, predictions).parts)]
        for i, name in enumerate(self._names[:_SHOWN_SCATTERS]):
            panel = scatter_panel(predictions[:, i], gold[:, i])
            title = f"{name}: {panel.title}" if self.several else panel.title
            panels.append(replace(panel, title=title))
        return panels

    def errors(self, file: EncodedFile[Texts], predictions: Outputs) -> list[Mistake]:
        """Every example with an error, the largest mean absolute error first."""
        gold, errors = self._gold(file), self.example_scores(file, predictions).values.tolist()
        mistakes = []
        for n in np.flatnonzero(errors).tolist():
            right = ", ".join(f"{value:.6g}" for value in gold[n].tolist())
            given = ", ".join(f"{value:.4g}" for value in predictions[n].tolist())
            note = f"off by {errors[n]:.4g}" + " on average" * self.several
            texts = self.named_texts(file.rows, n)
            mistakes.append(Mistake(n, texts, right, given, errors[n], note))
        return mistakes

    def example_scores(self, file: EncodedFile[Texts], predictions: Outputs) -> ExampleScores:
        """The mean absolute error of each example."""
        errors = np.abs(predictions.astype(np.float64) - self._gold(file)).mean(-1)
        return ExampleScores("mean absolute error", errors)


def check_columns(options: TaskOptions) -> None:
    """Refuse a task that gives the model the label to read, or the same text twice.

    Raises:
        ConfigError: two of the task's columns are the same.
    """
    second = [] if options.text_b is None else [options.text_b]
    labels = options.label_columns or [options.label]
    for name, count in Counter([options.text, *second, *options.choices, *labels]).items():
        if count > 1:
            raise ConfigError(
                f"task: column {name!r} is named for {count} of text, text_b, choices and label "
                "(or label_columns); each needs its own."
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


def _find_labels(train: Texts, options: TaskOptions) -> tuple[str, ...]:
    """The labels of a training file: those that the task names in their order, then the others."""
    several = options.traits.several
    found = sort_labels([label for labels in train.labels or () for label in labels])
    if len(found) < 2 - several:
        every = f"every example has the label {found[0]!r}" if found else "no example has a label"
        raise InputError(f"{every}; there is nothing to learn.", place=Place(train.path))
    if len(found) > 2 and len(train) < (1 if several else 2) * len(found):
        remedy = "label_separator to what separates them" if several else "kind to regression"
        raise InputError(
            f"{len(found):,} different labels for {len(train):,} examples ({listed(found, 4)}); "
            f"set {remedy}, label if this is the wrong column, or labels if this is "
            "intended.",
            place=Place(train.path),
        )
    named = [name for name in dict.fromkeys(options.named.values()) if name in found]
    return (*named, *(label for label in found if label not in named))


def _read_score(text: str, name: str, place: Place) -> float:
    """A score in a file.

    Raises:
        InputError: it is not a finite number, or too large for training.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"the {name} {text!r} is not a finite number; write numbers such as 3.5.", place=place
        )
    if abs(value) > _LARGEST_SCORE:
        raise InputError(
            f"the {name} {text!r} is too large; training computes with scores up to "
            f"{_LARGEST_SCORE:.3g}. Divide all scores by the same number.",
            place=place,
        )
    return value
