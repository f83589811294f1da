"""The interface of a task: what fine-tuning, prediction and measuring use, whatever its kind.

Each kind of task (texts, choices, tags, answers) is a subclass. It reads its files, encodes
examples as sequences, selects the tokens that the head reads, and interprets the head's outputs.
Everything else (training, seeds, folders) is the same for all kinds.

R tokens that the head reads, over all items, C outputs of the head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.io.written import write_rows
from bothways.tasks.examples import Examples
from bothways.tasks.labels import match_labels
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import KindTraits, TaskOptions
from bothways.tasks.report_panels import ExampleScores, Mistake, Panel
from bothways.tokenization.tokenizer import Tokenizer

Outputs = NDArray[np.float32]
LossKind = Literal["class", "labels", "score", "place"]


class Labelled(Protocol):
    """The examples of a file as they are written there, in its order."""

    @property
    def path(self) -> Path:
        """The file."""

    def __len__(self) -> int: ...


R = TypeVar("R", bound=Labelled)
P = TypeVar("P")


@dataclass(frozen=True)
class EncodedFile(Generic[R]):
    """A file of a task, encoded.

    Attributes:
        rows: the examples as written.
        examples: the examples as token sequences, with targets if the file was read with labels.
        notes: what was cut, empty or skipped, as sentences.
    """

    rows: R
    examples: Examples
    notes: tuple[str, ...] = ()


def submission_rows(table: Sequence[Sequence[str]]) -> list[list[str]]:
    """The first two columns of predictions, as evaluation servers take them, from the rows of
    :meth:`Task.table`; of several scores the first, and a column for each."""
    several = sum(name.startswith("prediction(") for name in table[0])
    return [list(row[: 1 + max(1, several)]) for row in table]


def number_columns(header: Sequence[str], *, scores: bool) -> set[str]:
    """The columns of predictions whose values are numbers.

    Args:
        header: of :meth:`Task.table`.
        scores: predictions are scores, not labels.
    """
    begins = ("p(", "prediction", "gold") if scores else ("p(",)
    return {name for name in header if name.startswith(begins)} | {"index", "probability"}


class Task(ABC, Generic[R, P]):
    """A task whose labels and metrics are decided.

    ``R`` is the type of the rows of a file, ``P`` that of the predictions for a file.

    Args:
        options: with labels and metrics filled in, so that they alone define the task. They are
            stored in the model folder.
    """

    loss: LossKind
    """What a row of outputs is trained to predict: a class, any number of labels, a score or
    several, or one of the item's rows."""
    head: str
    """Which head computes the outputs: a name of :data:`~bothways.families.heads.HEADS`."""

    def __init__(self, options: TaskOptions):
        self.options = options

    @property
    def traits(self) -> KindTraits:
        """What is known of the kind."""
        return self.options.traits

    @property
    def name(self) -> str:
        """The name in reports."""
        return self.options.name

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, the main one first."""
        return self.options.metrics

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, or the names of scores, in the order of the head's outputs."""
        return self.options.labels

    @property
    def outputs(self) -> int:
        """Number of outputs of the head, C: one for each label, if the kind does not say."""
        return len(self.labels)

    @property
    def pair(self) -> bool:
        """Whether examples have a second segment."""
        return False

    @classmethod
    @abstractmethod
    def read(cls, path: Path, options: TaskOptions, *, labelled: bool) -> R:
        """Read a file.

        Raises:
            InputError: it cannot be read as requested; file and line or id are named.
            ConfigError: options that cannot apply to any file.
        """

    @classmethod
    @abstractmethod
    def define(cls, options: TaskOptions, train: R) -> Self:
        """Decide labels and metrics.

        Args:
            options: the task as configured.
            train: its training file, from which labels are collected if the options name none.

        Raises:
            ConfigError: options that do not make a task.
            InputError: training examples that do not make one.
        """

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, rows: R, *, length: int) -> EncodedFile[R]:
        """Encode rows as token sequences, with targets if they are labelled.

        Raises:
            InputError: an unknown label, a score that is not a number, an answer not in its text.
            LengthError: ``length`` leaves no room for a text.
        """

    @abstractmethod
    def decode(self, file: EncodedFile[R], outputs: Outputs) -> P:
        """Predictions from the head's outputs [R, C]."""

    @abstractmethod
    def measure(self, file: EncodedFile[R], predictions: P) -> Measurement:
        """Scores of predictions for a labelled file."""

    @abstractmethod
    def baseline(self, train: EncodedFile[R], dev: EncodedFile[R]) -> Measurement:
        """Scores on dev of a constant prediction, such as the majority class."""

    @abstractmethod
    def table(self, file: EncodedFile[R], predictions: P) -> list[list[str]]:
        """Predictions as rows of text under a header, one row per example, for TSV files."""

    def write(self, path: Path, file: EncodedFile[R], predictions: P) -> None:
        """Write predictions: a table with a header and a row per example, as the suffix of the
        path says (:func:`bothways.io.written.write_rows`). A kind may write a format of its own as
        well, or instead.

        Args:
            path: the file to write or replace.
            file: the file predicted.
            predictions: from :meth:`decode`.

        Raises:
            DiskError: it could not be written.
        """
        table = self.table(file, predictions)
        write_rows(path, table, number_columns(table[0], scores=self.loss == "score"))

    def output_files(self, path: Path) -> tuple[Path, ...]:
        """The files that :meth:`write` may write or replace."""
        return (path,)

    def for_measuring(self) -> Self:
        """The task for encoding files that nothing is trained on, which may be less strict."""
        return self

    def for_own_file(self) -> Self:
        """The task for another file, of which nobody says how it is laid out."""
        return self

    def for_file(self, layout: TaskOptions, *, learned: bool) -> tuple[Self, tuple[str, ...]]:
        """The task for a file that is laid out differently from the training file.

        Args:
            layout: how it is laid out, and other metrics.
            learned: this task knows what else was decided in fine-tuning, such as windows; if not,
                ``layout`` decides that too.

        Returns:
            The task, and notes.

        Raises:
            ModelError: other labels than the model's.
        """
        options = replace(
            layout,
            kind=self.options.kind,
            labels=layout.labels or layout.label_columns or self.options.labels,
            metrics=layout.metrics or self.options.metrics,
        )
        notes = self._match_labels(options.labels)
        if learned:
            options, more = self._with_learned(options)
            notes += more
        return type(self)(options), notes

    def _match_labels(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Notes on how the labels of a file are matched with the model's."""
        return match_labels(self.options.labels, labels)[1]

    def _with_learned(self, options: TaskOptions) -> tuple[TaskOptions, tuple[str, ...]]:
        """Options for a file with what was decided in fine-tuning; and notes."""
        return replace(options, long=self.options.long, windows=self.options.windows), ()

    def strata(self, rows: R) -> list[tuple[str, ...]]:
        """The labels of each example, of which parts of a file shall have the same mix."""
        return [() for _ in range(len(rows))]

    def groups(self, rows: R) -> list[Hashable]:
        """What keeps examples together where some are held out: their texts, if nothing else."""
        return self.contents(rows)

    @abstractmethod
    def contents(self, rows: R) -> list[Hashable]:
        """What of each example the model is given; equal examples have it in common."""

    @abstractmethod
    def places(self, rows: R) -> list[str]:
        """Where each example is in its file: its line, or its id."""

    def averaged(self, examples: Examples, outputs: Outputs) -> Outputs:  # noqa: ARG002
        """The outputs that an ensemble averages, of those for the tokens read."""
        return outputs

    def hints(self, tokenizer: Tokenizer, train: R) -> list[str]:  # noqa: ARG002
        """What in a training file does not suit the model, as sentences."""
        return []

    @property
    def threshold_note(self) -> str:
        """From which probability on a label is given; empty if that is the usual one."""
        return ""

    def tuned(self, file: EncodedFile[R], predictions: P) -> Self:  # noqa: ARG002
        """The task with what is tuned on dev after training, such as a threshold."""
        return self

    def panels(self, file: EncodedFile[R], predictions: P) -> list[Panel]:  # noqa: ARG002
        """Tables of the report on predictions for a labelled file, such as a confusion matrix."""
        return []

    def errors(self, file: EncodedFile[R], predictions: P) -> list[Mistake]:  # noqa: ARG002
        """The examples of a labelled file that were predicted wrongly; the report ranks them by
        weight and shows the worst."""
        return []

    def example_scores(self, file: EncodedFile[R], predictions: P) -> ExampleScores | None:  # noqa: ARG002
        """A metric for every example of a labelled file, which a report averages by length; None
        if the kind has no such metric."""
        return None

    def example_lengths(self, file: EncodedFile[R]) -> NDArray[np.int64]:
        """The tokens of each example, for the report's scores by length: of all of it, without
        what windows repeat."""
        examples = file.examples
        return examples.lengths if examples.whole is None else examples.whole
