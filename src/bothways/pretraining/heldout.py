"""Measurements of the pre-training objectives on held-out sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bothways.config import PairKind
from bothways.model.batch import IGNORE, PretrainingBatch, round_up
from bothways.model.bert import Bert
from bothways.pretraining.objective import PAIR_TASKS, summed_losses
from bothways.training.ranks import SINGLE_PROCESS, Ranks


@dataclass(frozen=True)
class PairScores:
    """The second loss on held-out pairs.

    Attributes:
        kind: ``next`` or ``order``.
        loss: mean cross-entropy, nats.
        accuracy: share of pairs classified correctly.
        baseline: accuracy of the majority class. For next sentence it is above a half: a chunk of
            one sentence has no second half and gets a random one, as in the original.
    """

    kind: PairKind
    loss: float
    accuracy: float
    baseline: float


@dataclass(frozen=True)
class HeldOut:
    """Measurements on held-out sequences.

    Attributes:
        mlm_loss: mean cross-entropy of the masked positions, nats; left to right, of all positions.
        mlm_accuracy: share of these positions predicted correctly.
        mlm_baseline: accuracy of always predicting the most frequent target.
        targets: number of these positions.
        sequences: number of sequences.
        pairs: the second loss; None for sequences of one segment.
        causal: the model is left to right, not a masked LM.
    """

    mlm_loss: float
    mlm_accuracy: float
    mlm_baseline: float
    targets: int
    sequences: int
    pairs: PairScores | None = None
    causal: bool = False

    @property
    def perplexity(self) -> float:
        """exp of the language model's loss; comparable only within one vocabulary."""
        return math.exp(min(self.mlm_loss, 100))

    def sentence(self) -> str:
        """The measurements as printed in the log."""
        text = (
            f"held-out {'left-to-right' if self.causal else 'masked-LM'} perplexity "
            f"{self.perplexity:.1f}, accuracy {self.mlm_accuracy:.1%} (most frequent token "
            f"{self.mlm_baseline:.1%})"
        )
        if self.pairs is None:
            return text
        return (
            f"{text}; {PAIR_TASKS[self.pairs.kind][1]} accuracy {self.pairs.accuracy:.1%} "
            f"(majority class {self.pairs.baseline:.1%})"
        )

    def record(self) -> dict[str, float]:
        """For metrics.jsonl."""
        record = {
            "heldout_mlm_loss": self.mlm_loss,
            "heldout_perplexity": self.perplexity,
            "heldout_mlm_accuracy": self.mlm_accuracy,
            "heldout_mlm_baseline": self.mlm_baseline,
        }
        if self.pairs is not None:
            prefix, _ = PAIR_TASKS[self.pairs.kind]
            record[f"heldout_{prefix}_loss"] = self.pairs.loss
            record[f"heldout_{prefix}_accuracy"] = self.pairs.accuracy
            record[f"heldout_{prefix}_baseline"] = self.pairs.baseline
        return record


@torch.no_grad()
def measure(
    model: Bert,
    batches: Sequence[PretrainingBatch],
    dtype: torch.dtype,
    pairs: PairKind = "next",
    ranks: Ranks = SINGLE_PROCESS,
) -> HeldOut:
    """Evaluate a model on fixed batches, so that measurements are comparable.

    Args:
        model: with the heads that the batches have targets for.
        batches: sequences of the kind ``pairs``.
        dtype: arithmetic of the layers.
        pairs: the kind of sequences.
        ranks: the processes that divide the batches; each has all of them.
    """
    was_training = model.training
    model.eval()
    device = model.device
    totals = torch.zeros(4, dtype=torch.float64, device=device)
    none = torch.zeros((), device=device)
    for number in range(ranks.rank, round_up(len(batches), ranks.size), ranks.size):
        # In the last round some processes have no batch of their own, but a sharded model needs
        # all of them to compute.
        words, pair = model(summed_losses, batches[number % len(batches)].to(device), dtype)
        if number < len(batches):
            totals += torch.stack([s.double() for s in (*words, *(pair or (none, none)))])
    totals = ranks.sum(totals)
    model.train(was_training)
    targets = sum(b.masked.count for b in batches)
    sequences = sum(b.inputs.sequences for b in batches)
    ids = torch.cat([b.masked.ids[b.masked.ids != IGNORE] for b in batches])
    most_frequent = int(torch.bincount(ids).max()) if len(ids) else 0
    mlm, mlm_right, pair_loss, pair_right = totals.tolist()
    labels = [b.random_next for b in batches if b.random_next is not None]
    scores = None
    if labels:
        ones = sum(int(label.sum()) for label in labels)
        majority = max(ones, sequences - ones)
        scores = PairScores(
            pairs, pair_loss / sequences, pair_right / sequences, majority / sequences
        )
    return HeldOut(
        mlm_loss=mlm / max(targets, 1),
        mlm_accuracy=mlm_right / max(targets, 1),
        mlm_baseline=most_frequent / max(targets, 1),
        targets=targets,
        sequences=sequences,
        pairs=scores,
        causal=model.config.left_to_right,
    )
