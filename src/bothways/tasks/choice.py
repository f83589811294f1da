"""Multiple choice: which of several texts continues a context (Devlin et al. 2019, 4.4).

Each choice is a sequence of its own, for BERT [CLS] context [SEP] choice [SEP]. The head scores it
with a single vector, and the loss is on a softmax over the scores of an example's choices. Examples
may have different numbers of choices.

In SWAG all choices share a beginning: ``sent1`` is the context, and ``sent2`` followed by an ending
is a choice. The paper leaves that open and its code for this task was not released; this is how it
is commonly done.

N examples, K choices of one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import bounds, softmax, split
from bothways.errors import ConfigError, InputError, Place
from bothways.families.heads import CHOICE
from bothways.io.lines import listed
from bothways.tasks.examples import Examples, encode_examples
from bothways.tasks.metrics import Measurement, check_measuring, measure_classes
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Texts, read_rows
from bothways.tasks.report_panels import ExampleScores, Mistake
from bothways.tasks.task import EncodedFile, Outputs, Task
from bothways.tasks.texts import check_columns
from bothways.tokenization.tokenizer import Tokenizer

Probabilities = list[NDArray[np.float64]]
"""One float64 array [K] per example."""


class ChoiceTask(Task[Texts, Probabilities]):
    """One of several texts for each context."""

    loss = "place"
    head = CHOICE

    @property
    def outputs(self) -> int:
        """The score of a choice."""
        return 1

    @property
    def pair(self) -> bool:
        """The context and a choice."""
        return True

    @classmethod
    def read(cls, path: Path, options: TaskOptions, *, labelled: bool) -> Texts:
        """TSV, CSV or JSONL."""
        if not options.choices:
            raise ConfigError(
                "choices is missing: the columns of the choices, or one that holds them as a "
                "JSON list."
            )
        check_columns(options)
        if labelled:
            check_measuring()
        return read_rows(path, options, labelled=labelled)

    @classmethod
    def define(cls, options: TaskOptions, train: Texts) -> Self:  # noqa: ARG003
        """Nothing depends on the training file."""
        if len(set(options.labels)) < len(options.labels):
            raise ConfigError(f"labels is {listed(options.labels)}; give each once.")
        if options.metrics not in ((), ("accuracy",)):
            raise ConfigError(
                f"metrics is {listed(options.metrics)}; the metric of choices is accuracy."
            )
        return cls(replace(options, metrics=("accuracy",)))

    def strata(self, rows: Texts) -> list[tuple[str, ...]]:
        """The right choice."""
        return rows.labels or []

    def contents(self, rows: Texts) -> list[Hashable]:
        """The context with the choices."""
        return [(a, *b) for a, b in zip(rows.a, rows.choices or (), strict=True)]

    def places(self, rows: Texts) -> list[str]:
        """The lines."""
        return [str(line) for line in rows.lines]

    def _match_labels(self, labels: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG002
        """Labels name choices in a file; the head has a single output."""
        return ()

    def example_lengths(self, file: EncodedFile[Texts]) -> NDArray[np.int64]:
        """The tokens of each context with its longest choice."""
        sequences = np.diff(file.examples.bounds)
        longest: NDArray[np.int64] = np.maximum.reduceat(sequences, file.examples.items[:-1])
        return longest

    def encode(self, tokenizer: Tokenizer, rows: Texts, *, length: int) -> EncodedFile[Texts]:
        """The longer of a context and a choice is cut first."""
        targets = None if rows.labels is None else self._targets(rows)
        examples = encode_choices(tokenizer, rows.a, rows.choices or (), length=length)
        if targets is not None:
            examples = examples.with_targets(targets)
        notes = []
        if examples.cut:
            notes.append(
                f"{rows.path.name}: {examples.cut:,} of {len(rows):,} examples were cut to "
                f"{length} tokens (the longer of context and choice first)"
            )
        if empty := sum(not text.strip() for text in rows.a):
            notes.append(f"{rows.path.name}: {empty:,} of {len(rows):,} examples have no context")
        return EncodedFile(rows, examples, (*notes, *rows.broken.notes(rows.path.name)))

    def _targets(self, rows: Texts) -> NDArray[np.int64]:
        assert rows.labels is not None, "the file was read without labels"
        assert rows.choices is not None, "the task has choices"
        targets = []
        for line, (label,), choices in zip(rows.lines, rows.labels, rows.choices, strict=True):
            names = self._names(len(choices))
            if label not in names:
                raise InputError(
                    f"the label {label!r} names none of the {len(choices)} choices; they are "
                    f"{listed(names)} (labels gives other names).",
                    place=Place(rows.path, line),
                )
            targets.append(names.index(label))
        return np.array(targets, dtype=np.int64)[:, np.newaxis]

    def _names(self, choices: int) -> list[str]:
        """How the label column names this many choices."""
        numbers = [str(i) for i in range(choices)]
        return [*self.options.labels[:choices]] if self.options.labels else numbers

    def decode(self, file: EncodedFile[Texts], outputs: Outputs) -> Probabilities:
        """Probabilities of each example's choices, float64 [K]."""
        return choice_probabilities(file.examples, outputs)

    def measure(self, file: EncodedFile[Texts], predictions: Probabilities) -> Measurement:
        """How often the most probable choice is right."""
        return self._measure(file, _most_probable(predictions))

    def baseline(self, train: EncodedFile[Texts], dev: EncodedFile[Texts]) -> Measurement:
        """Always the choice number that is most often right in the training file."""
        number = np.bincount(train.examples.gold[:, 0]).argmax()
        return self._measure(dev, np.minimum(number, np.diff(dev.examples.items) - 1))

    def _measure(self, file: EncodedFile[Texts], predicted: NDArray[Any]) -> Measurement:
        names = self._names(int(np.diff(file.examples.items).max()))
        return measure_classes(self.metrics, predicted, file.examples.gold[:, 0], names)

    def errors(self, file: EncodedFile[Texts], predictions: Probabilities) -> list[Mistake]:
        """Wrong choices, the most confident first."""
        mistakes = []
        for n, (row, gold) in enumerate(
            zip(predictions, file.examples.gold[:, 0].tolist(), strict=True)
        ):
            choices, best = (file.rows.choices or ())[n], int(row.argmax())
            if best == gold:
                continue
            note = f"probability {row[best]:.3f}, of the right one {row[gold]:.3f}"
            context = ((self.options.text, file.rows.a[n]),)
            confidence = float(row[best])
            mistakes.append(Mistake(n, context, choices[gold], choices[best], confidence, note))
        return mistakes

    def example_scores(self, file: EncodedFile[Texts], predictions: Probabilities) -> ExampleScores:
        """Whether the choice is right."""
        right = _most_probable(predictions) == file.examples.gold[:, 0]
        return ExampleScores("accuracy", right.astype(np.float64))

    def table(self, file: EncodedFile[Texts], predictions: Probabilities) -> list[list[str]]:
        """index, prediction, gold if known, and a probability for each choice; empty cells fill up
        rows with fewer choices."""
        gold = file.rows.labels
        most_choices = max(map(len, predictions))
        header = ["index", "prediction", *(["gold"] if gold else [])]
        rows = [[*header, *(f"p({name})" for name in self._names(most_choices))]]
        for i, row in enumerate(predictions):
            label = [*gold[i]] if gold else []
            cells = [f"{p:.6f}" for p in row] + [""] * (most_choices - len(row))
            rows.append([str(i), self._names(len(row))[int(row.argmax())], *label, *cells])
        return rows


def _most_probable(predictions: Probabilities) -> NDArray[np.int64]:
    """The number of each example's most probable choice, int64 [N]."""
    return np.array([row.argmax() for row in predictions])


def choice_probabilities(examples: Examples, outputs: Outputs) -> Probabilities:
    """A softmax over the outputs [R, 1] of each example's choices."""
    scores = split(outputs[:, 0].astype(np.float64), examples.output_bounds)
    return [softmax(row) for row in scores]


def encode_choices(
    tokenizer: Tokenizer,
    contexts: Sequence[str],
    choices: Sequence[Sequence[str]],
    *,
    length: int,
) -> Examples:
    """One item per context, with one sequence per choice.

    Args:
        tokenizer: the model's.
        contexts: the first segments, N.
        choices: the second segments for each context, N.
        length: limit of a sequence in tokens; the longer segment is cut first.

    Raises:
        LengthError: the limit leaves no room for texts.
        InputError: something that is not a text.
    """
    return encode_examples(
        tokenizer,
        [context for context, options in zip(contexts, choices, strict=True) for _ in options],
        [choice for options in choices for choice in options],
        length=length,
        items=bounds([len(each) for each in choices]),
    )
