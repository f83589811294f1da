"""What every objective of pre-training has: named losses as sums, and how a step adds them up.

An objective owns its forward passes. It says what it computes of a micro-batch as sums; dividing
them by the counts of the whole step, weighing and recording them are the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bothways.model.batch import PretrainingBatch
from bothways.model.model import EncoderModel
from bothways.training.ranks import SINGLE_PROCESS, Ranks
from bothways.training.trainer import Loss


@dataclass(frozen=True)
class Term:
    """A loss of an objective.

    Attributes:
        key: begins the names of its metrics: ``mlm`` of ``mlm_loss`` and ``mlm_accuracy``.
        title: what messages and plots call it.
        constant: what the best constant prediction is, in messages.
        weight: in the sum of all losses.
    """

    key: str
    title: str
    constant: str
    weight: float = 1.0


class Sums(NamedTuple):
    """A loss over some targets.

    Attributes:
        loss: summed cross-entropy, a scalar.
        right: how many predictions are correct.
        ones: how many targets are of class 1, of two classes that are drawn in the step; None: the
            batch says it.
    """

    loss: Tensor
    right: Tensor
    ones: Tensor | None = None


class Objective(ABC):
    """What weights are pre-trained for."""

    @property
    @abstractmethod
    def terms(self) -> tuple[Term, ...]:
        """Its losses, the one that progress is told by first."""

    @abstractmethod
    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """How many targets each loss has in a micro-batch, by key."""

    @abstractmethod
    def sums(
        self, model: EncoderModel, batch: PretrainingBatch, dtype: torch.dtype
    ) -> dict[str, Sums]:
        """The losses of a micro-batch, by key; those without targets may be left out."""

    @abstractmethod
    def most_frequent(self, batches: Sequence[PretrainingBatch]) -> dict[str, int]:
        """How many targets the best constant prediction gets right, for the losses whose targets
        are in the batches, by key."""


def pretraining_loss(
    micro_batches: Sequence[PretrainingBatch],
    objective: Objective,
    ranks: Ranks = SINGLE_PROCESS,
) -> Loss[PretrainingBatch]:
    """The weighed sum of an objective's mean losses.

    Means are over the step's global batch: the sum of each micro-batch is divided by the counts of
    all micro-batches, of all processes.

    Args:
        micro_batches: those of the step that this process computes.
        objective: computes the losses.
        ranks: the processes, all of which must call this.
    """
    counts = total_counts(objective, micro_batches, ranks)

    def loss(
        model: EncoderModel, batch: PretrainingBatch, dtype: torch.dtype
    ) -> tuple[Tensor, dict[str, Tensor]]:
        found = objective.sums(model, batch, dtype)
        stats: dict[str, Tensor] = {}
        shares = []
        for term in objective.terms:
            if (sums := found.get(term.key)) is None:
                continue
            count = max(1, counts[term.key])  # 0: all text is [UNK]
            mean = sums.loss / count
            stats[f"{term.key}_loss"] = mean.detach()
            stats[f"{term.key}_accuracy"] = sums.right / count
            shares.append(mean if term.weight == 1 else term.weight * mean)
        value = shares[0]
        for share in shares[1:]:
            value = value + share
        return value, stats

    return loss


def total_counts(
    objective: Objective, batches: Sequence[PretrainingBatch], ranks: Ranks = SINGLE_PROCESS
) -> Mapping[str, int]:
    """How many targets each loss has in all batches of all processes."""
    own = [objective.counts(batch) for batch in batches]
    sums = ranks.sum_counts(*(sum(c.get(t.key, 0) for c in own) for t in objective.terms))
    return {term.key: count for term, count in zip(objective.terms, sums, strict=True)}
