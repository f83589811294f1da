"""What every objective has: named losses as sums over the targets of a micro-batch.

An objective owns its forward passes. It says what it computes of a micro-batch as sums; dividing
them by the counts of the whole step, weighing and recording them are the same for all
(:func:`bothways.training.trainer.step_loss`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.families.config import ModelConfig
from bothways.model.batch import PretrainingBatch
from bothways.model.flops import TrainingCost, training_cost
from bothways.model.model import EncoderModel
from bothways.pretraining.options import MaskOptions
from bothways.tokenization.tokenizer import Tokenizer

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
        measure: what is recorded beside the loss, in training and on held-out text.
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


# --------------------------------------------------------------------------------
# Objectives of pre-training. What the stage needs to know of one is in its own file.

Ints = NDArray[np.int64]


class Draw(NamedTuple):
    """Keys of a batch's random draws.

    Attributes:
        seed: of the phase.
        epoch: int64 [B]; of each sequence.
        row: int64 [B]; its place among the epoch's instances.
    """

    seed: int
    epoch: Ints
    row: Ints


class Targets(NamedTuple):
    """What the model sees and predicts.

    Attributes:
        shown: int64 [T]; the tokens that it sees.
        positions: int64 [M]; flat positions of the targets, increasing.
        ids: int64 [M]; the tokens to predict there.
        reads: int64 each; sets of further flat positions whose hidden states the objective reads.
    """

    shown: Ints
    positions: Ints
    ids: Ints
    reads: tuple[Ints, ...] = ()


ChooseTargets = Callable[[Ints, Ints, Draw], Targets]
"""From the tokens of a flat batch, int64 [T], and its bounds, int64 [B + 1]."""


class PretrainingObjective(Objective[PretrainingBatch]):
    """An objective of pre-training.

    A subclass is constructed with the kind of pairs and options of its own, which have defaults; it
    refuses what it does not go with by :class:`bothways.errors.ConfigError`.

    Attributes:
        heads: heads of the model that it trains (:data:`bothways.families.heads.HEADS`).
        causal: whether its targets need left-to-right attention.
        marks: whether targets are marked where instances are shown: a model that predicts every
            token has none to mark.
        fills_masks: whether the trained model predicts hidden words.
    """

    causal: ClassVar[bool] = False
    marks: ClassVar[bool] = True
    fills_masks: ClassVar[bool] = False
    heads: tuple[str, ...]

    @abstractmethod
    def targets(self, tokenizer: Tokenizer, masking: MaskOptions, length: int) -> ChooseTargets:
        """How the targets of a batch are chosen, in sequences of at most ``length`` tokens."""

    def parts(self, model: EncoderModel, seed: int) -> Mapping[str, nn.Module]:  # noqa: ARG002
        """Modules to train with the model, which will hold them in ``model.parts``."""
        return {}

    def models(self, model: EncoderModel) -> Mapping[str, EncoderModel]:  # noqa: ARG002
        """Parts that are saved as model folders of their own, by the folder's name."""
        return {}

    def operations(self, shape: ModelConfig, length: int, targets: float) -> TrainingCost:
        """Operations per token of sequences of ``length`` tokens with so many targets each."""
        return training_cost(shape, length=length, targets=targets)
