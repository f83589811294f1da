"""Labelled examples: the outputs of a task's head against what is known of them.

R rows of outputs, N items, C outputs of the head, L layers of a frozen encoder, H its hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from bothways.model.batch import TaskInputs, item_means
from bothways.model.losses import class_loss, labels_loss, place_loss, scores_loss
from bothways.model.model import EncoderModel
from bothways.model.recurrent import FeatureTagger
from bothways.objectives.objective import Objective, Sums, Term
from bothways.tasks.task import LossKind

_CLASS = Term("", "class", "majority class")
_LABELS = Term("", "labels", "most frequent labels")
_SCORE = Term("", "score", "mean score", measure="abs_error")
_PLACE = Term("", "place", "most frequent place")


def _classes(outputs_RC: Tensor, batch: TaskInputs, weights_C: Tensor | None) -> Sums:
    return Sums(*class_loss(outputs_RC, batch.targets, weights_C))


def _labels(outputs_RC: Tensor, batch: TaskInputs, weights_C: Tensor | None) -> Sums:
    return Sums(*labels_loss(outputs_RC, batch.targets, weights_C))


def _scores(outputs_RC: Tensor, batch: TaskInputs, _: Tensor | None) -> Sums:
    return Sums(*scores_loss(outputs_RC, batch.targets.reshape(outputs_RC.shape)))


def _places(outputs_RC: Tensor, batch: TaskInputs, _: Tensor | None) -> Sums:
    return Sums(*place_loss(outputs_RC, batch.targets, batch.bounds))


_Loss = Callable[[Tensor, TaskInputs, Tensor | None], Sums]
LOSSES: Mapping[LossKind, tuple[Term, _Loss]] = MappingProxyType(
    {
        "class": (_CLASS, _classes),
        "labels": (_LABELS, _labels),
        "score": (_SCORE, _scores),
        "place": (_PLACE, _places),
    }
)
"""What a row of outputs may be trained to predict: the loss of a head's outputs, by what they
mean."""


class LabelledExamples(Objective[TaskInputs]):
    """The labels of examples from the outputs of a model's task head.

    Args:
        kind: what a row of outputs is trained to predict.
        weights_C: of classes or labels, float32. The weighted losses are divided by the number of
            targets, as others are: weights of which the mean is 1 leave the scale as it is.
        averaged: the head reads several tokens of an item, whose outputs are averaged.
    """

    def __init__(
        self,
        kind: LossKind,
        weights_C: Tensor | None = None,
        *,
        averaged: bool = False,
    ):
        self._term, self._loss = LOSSES[kind]
        self._weights, self._averaged = weights_C, averaged

    @property
    def terms(self) -> tuple[Term, ...]:
        """The head's loss."""
        return (self._term,)

    def counts(self, batch: TaskInputs) -> dict[str, int]:
        """Rows that have classes, labels or scores, or items of which each has a place."""
        return {self._term.key: len(batch.targets)}

    def sums(self, model: EncoderModel, batch: TaskInputs, dtype: torch.dtype) -> dict[str, Sums]:
        """From the outputs for the tokens that the head reads."""
        x_RH = model.task_vectors(
            batch.inputs, batch.read_positions, dtype=dtype, selected=batch.selected
        )
        outputs_RC = model.task_logits(x_RH)
        if self._averaged:
            outputs_RC = item_means(outputs_RC, batch.bounds)
        return {self._term.key: self._loss(outputs_RC, batch, self._weights)}


@dataclass(frozen=True)
class FeatureBatch:
    """Words with the hidden states of a frozen encoder.

    Attributes:
        features: float32 [R, L, H], of the words of some sentences.
        lengths: words of each sentence.
        targets: tags of the words, int64 [R].
    """

    features: Tensor
    lengths: Sequence[int]
    targets: Tensor


class TaggedFeatures(Objective[FeatureBatch]):
    """The tags of words from layers of a frozen encoder, by a BiLSTM in fp32."""

    @property
    def terms(self) -> tuple[Term, ...]:
        """That of the tags."""
        return (_CLASS,)

    def counts(self, batch: FeatureBatch) -> dict[str, int]:
        """Words."""
        return {_CLASS.key: len(batch.targets)}

    def sums(
        self,
        model: FeatureTagger,
        batch: FeatureBatch,
        dtype: torch.dtype,  # noqa: ARG002
    ) -> dict[str, Sums]:
        """From one pass of the BiLSTM."""
        outputs_RC = model(batch.features, batch.lengths)
        return {_CLASS.key: Sums(*class_loss(outputs_RC, batch.targets))}
