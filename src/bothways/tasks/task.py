"""What fine-tuning, prediction and measuring need to know of a task, whatever its kind.

A kind of task (texts, choices, tags, answers) is a subclass: it reads its files, says how examples
become sequences and which tokens the head reads, and what the head's outputs mean. Everything else
(training, seeds, folders) is the same for all and does not know the kind.

R tokens read of all items, C outputs of the head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.config import ModelConfig, TaskOptions
from bothways.files import write_text
from bothways.model.heads import Bert
from bothways.model.losses import class_loss, place_loss, regression_loss
from bothways.tasks.examples import Examples, TaskBatch
from bothways.tasks.metrics import Measurement
from bothways.tasks.panels import Each, Mistake, Panel
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.engine import Loss

Outputs = NDArray[np.float32]
LossKind = Literal["class", "score", "place"]
HeadKind = Literal["classes", "tags", "spans"]


class Labelled(Protocol):
    """The examples of a file as they were written there, in its order."""

    @property
    def path(self) -> Path:
        """The file."""

    def __len__(self) -> int: ...


R = TypeVar("R", bound=Labelled)
P = TypeVar("P")


@dataclass(frozen=True)
class Part(Generic[R]):
    """A file of a task, encoded.

    Attributes:
        rows: as written.
        examples: as the model reads them, with targets if the file was read with labels.
        notes: what was cut, empty or passed over, a sentence each.
    """

    rows: R
    examples: Examples
    notes: tuple[str, ...] = ()


class Task(ABC, Generic[R, P]):
    """A task with everything its files leave open decided.

    ``R`` are the rows of its files, ``P`` its predictions for a file.

    Args:
        options: labels and metrics filled in, so that they alone define the task; they are stored
            in the model folder.
    """

    loss: LossKind
    """What a row of outputs is trained on: a class, a score, or one place among the item's rows."""
    head: HeadKind
    """Which head of the model gives the outputs."""
    needs_columns: bool = True
    """Its files have columns that the options name."""

    def __init__(self, options: TaskOptions):
        self.options = options

    @property
    def name(self) -> str:
        """For reports."""
        return self.options.name

    @property
    def metrics(self) -> tuple[str, ...]:
        """The main one first."""
        return self.options.metrics

    @property
    @abstractmethod
    def outputs(self) -> int:
        """C."""

    @property
    def pair(self) -> bool:
        """Needs a second segment."""
        return False

    @classmethod
    @abstractmethod
    def read(cls, path: Path, options: TaskOptions, *, labelled: bool) -> R:
        """Read a file.

        Raises:
            InputError: it cannot be read as asked; file and line or id are named.
            ConfigError: options that fit no file.
        """

    @classmethod
    @abstractmethod
    def define(cls, options: TaskOptions, train: R) -> Self:
        """Decide labels and metrics.

        Args:
            options: the task as configured.
            train: its training file; labels are found there where the options name none.

        Raises:
            ConfigError: options that do not make a task.
            InputError: training examples that do not.
        """

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, rows: R, *, length: int) -> Part[R]:
        """Rows as the model reads them, with targets if they are labelled.

        Raises:
            InputError: an unknown label, a score that is no number, an answer not in its text.
            LengthError: ``length`` leaves no room for a text.
        """

    @abstractmethod
    def decode(self, part: Part[R], outputs: Outputs) -> P:
        """What the head's outputs [R, C] say of each example."""

    @abstractmethod
    def measure(self, part: Part[R], predictions: P) -> Measurement:
        """Scores of predictions for a labelled file."""

    @abstractmethod
    def baseline(self, train: Part[R], dev: Part[R]) -> Measurement:
        """Scores on dev of the answer that needs no text, such as the commonest class."""

    @abstractmethod
    def table(self, part: Part[R], predictions: P) -> list[list[str]]:
        """Predictions as rows of text under a header, one row an example, for TSV files."""

    def write(self, path: Path, part: Part[R], predictions: P) -> None:
        """Write predictions: a TSV under a header, a line an example. A kind may have a form of its
        own beside that, or instead of it where the name asks for it.

        Args:
            path: replaced whole.
            part: the file predicted.
            predictions: as decoded.

        Raises:
            DiskError: it could not be written.
        """
        lines = ["\t".join(row) for row in self.table(part, predictions)]
        write_text(path, "\n".join(lines) + "\n")

    def tuned(self, part: Part[R], outputs: Outputs) -> Self:  # noqa: ARG002
        """The task with what is chosen on dev after training, such as a threshold."""
        return self

    def panels(self, part: Part[R], predictions: P) -> list[Panel]:  # noqa: ARG002
        """Tables of the report on predictions for a labelled file, such as a confusion matrix."""
        return []

    def errors(self, part: Part[R], predictions: P) -> list[Mistake]:  # noqa: ARG002
        """What was predicted wrongly in a labelled file, for a reader; the report ranks them by
        weight and shows the worst."""
        return []

    def each(self, part: Part[R], predictions: P) -> Each | None:  # noqa: ARG002
        """A measure of every example of a labelled file, for its mean by length; None: no such."""
        return None

    def new_model(self, shape: ModelConfig, *, seed: int, lstm: int = 0) -> Bert:
        """A model with new weights and this task's head, on a BiLSTM of so many units if any."""
        return Bert(
            shape,
            classes=self.outputs if self.head == "classes" else 0,
            tags=self.outputs if self.head == "tags" else 0,
            spans=self.head == "spans",
            lstm=lstm,
            seed=seed,
        )


def task_loss(kind: LossKind, targets: int) -> Loss[TaskBatch]:
    """The loss of a part of a step that has this many targets."""

    def loss(model: Bert, batch: TaskBatch, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        outputs_RC = read_outputs(model, batch, dtype)
        if kind == "place":
            total, count = place_loss(outputs_RC, batch.targets, batch.bounds)
        else:
            measure = class_loss if kind == "class" else regression_loss
            total, count = measure(outputs_RC, batch.targets)
        mean = total / targets
        name = "abs_error" if kind == "score" else "accuracy"
        return mean, {"loss": mean.detach(), name: count / targets}

    return loss


def read_outputs(model: Bert, batch: TaskBatch, dtype: torch.dtype) -> Tensor:
    """The task head's outputs [R, C] for the tokens that are read."""
    x_RH = model.task_vectors(batch.inputs, batch.at, dtype=dtype, selected=batch.found)
    return model.task_logits(x_RH)
