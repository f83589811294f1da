"""What every objective has: named losses as sums over the targets of a micro-batch.

An objective owns its forward passes. It says what it computes of a micro-batch as sums; dividing
them by the counts of the whole step, weighing and recording them are the same for all
(:func:`bothways.training.trainer.step_loss`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

B = TypeVar("B")


@dataclass(frozen=True)
class Term:
    """A loss of an objective.

    Attributes:
        key: begins the names of its metrics: ``mlm`` of ``mlm_loss`` and ``mlm_accuracy``. Empty
            for an objective of one loss, whose metrics are ``loss`` and ``accuracy``.
        title: what messages and plots call it.
        constant: what the best constant prediction is, in messages.
        weight: in the sum of all losses.
        measure: what is recorded beside the loss.
    """

    key: str
    title: str
    constant: str
    weight: float = 1.0
    measure: str = "accuracy"

    def metric(self, name: str) -> str:
        """The name of one of its metrics, such as its ``loss``."""
        return f"{self.key}_{name}" if self.key else name


class Sums(NamedTuple):
    """A loss over some targets.

    Attributes:
        loss: summed over the targets, a scalar.
        right: how many predictions are correct; of scores, the summed absolute error.
        ones: how many targets are of class 1, of two classes that are drawn in the step; None: the
            batch says it.
    """

    loss: Tensor
    right: Tensor
    ones: Tensor | None = None


class Objective(ABC, Generic[B]):
    """What weights are trained for; ``B`` is its micro-batch."""

    @property
    @abstractmethod
    def terms(self) -> tuple[Term, ...]:
        """Its losses, the one that progress is told by first."""

    @abstractmethod
    def counts(self, batch: B) -> dict[str, int]:
        """How many targets each loss has in a micro-batch, by key."""

    @abstractmethod
    def sums(self, model: Any, batch: B, dtype: torch.dtype) -> dict[str, Sums]:
        """The losses of a micro-batch, by key; those without targets may be left out.

        Args:
            model: the model in training; modules that an objective brings are its ``parts``.
            batch: the micro-batch.
            dtype: arithmetic of the layers.
        """

    def most_frequent(self, batches: Sequence[B]) -> dict[str, int]:  # noqa: ARG002
        """How many targets the best constant prediction gets right, for the losses whose targets
        are in the batches, by key."""
        return {}
