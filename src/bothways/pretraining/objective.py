"""The pre-training loss and the held-out measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bothways.model.batch import IGNORE, PretrainingBatch
from bothways.model.heads import Bert
from bothways.model.losses import class_loss
from bothways.training.engine import Loss


def pretraining_loss(micro_batches: Sequence[PretrainingBatch]) -> Loss[PretrainingBatch]:
    """Mean masked-LM loss + mean next-sentence loss (Devlin et al. 2019, Appendix A.2).

    Both means are over the step's global batch: each part's sum is divided by the counts of all
    parts.

    Args:
        micro_batches: all parts of the step.
    """
    targets = max(1, sum(batch.masked.count for batch in micro_batches))  # 0: all text is [UNK]
    sequences = sum(batch.inputs.sequences for batch in micro_batches)

    def loss(
        model: Bert, batch: PretrainingBatch, dtype: torch.dtype
    ) -> tuple[Tensor, dict[str, Tensor]]:
        mlm, mlm_right, nsp, nsp_right = _sums(model, batch, dtype)
        stats = {
            "mlm_loss": mlm.detach() / targets,
            "mlm_accuracy": mlm_right / targets,
            "nsp_loss": nsp.detach() / sequences,
            "nsp_accuracy": nsp_right / sequences,
        }
        return mlm / targets + nsp / sequences, stats

    return loss


def _sums(
    model: Bert, batch: PretrainingBatch, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs, masked = batch.inputs, batch.masked
    x_MH, x_BH = model.encoder.read(inputs, masked.at, inputs.starts, dtype=dtype)
    mlm, mlm_right = model.masked_lm_loss(x_MH, masked.ids)
    nsp, nsp_right = class_loss(model.next_sentence_logits(x_BH), batch.random_next)
    return mlm, mlm_right, nsp, nsp_right


@dataclass(frozen=True)
class HeldOut:
    """Measurements on held-out pairs.

    Attributes:
        mlm_loss: mean cross-entropy of the masked positions, nats.
        mlm_accuracy: share of them predicted exactly.
        mlm_baseline: accuracy of always saying the most frequent target.
        nsp_loss: mean cross-entropy, nats.
        nsp_accuracy: share of pairs judged right.
        nsp_baseline: accuracy of always giving the commoner answer. It is above a half: a chunk of
            one sentence has no second half and gets a random one, as in the original.
        targets: number of masked positions.
        pairs: number of pairs.
    """

    mlm_loss: float
    mlm_accuracy: float
    mlm_baseline: float
    nsp_loss: float
    nsp_accuracy: float
    nsp_baseline: float
    targets: int
    pairs: int

    @property
    def perplexity(self) -> float:
        """exp of the masked-LM loss; compares only within one vocabulary."""
        return math.exp(min(self.mlm_loss, 100))

    def sentence(self) -> str:
        """For a reader."""
        return (
            f"held-out masked-LM perplexity {self.perplexity:.1f}, accuracy "
            f"{self.mlm_accuracy:.1%} (most frequent token {self.mlm_baseline:.1%}); "
            f"next-sentence accuracy {self.nsp_accuracy:.1%} (commoner answer "
            f"{self.nsp_baseline:.1%})"
        )

    def record(self) -> dict[str, float]:
        """For metrics.jsonl."""
        return {
            "heldout_mlm_loss": self.mlm_loss,
            "heldout_perplexity": self.perplexity,
            "heldout_mlm_accuracy": self.mlm_accuracy,
            "heldout_mlm_baseline": self.mlm_baseline,
            "heldout_nsp_loss": self.nsp_loss,
            "heldout_nsp_accuracy": self.nsp_accuracy,
            "heldout_nsp_baseline": self.nsp_baseline,
        }


@torch.no_grad()
def measure(model: Bert, batches: Sequence[PretrainingBatch], dtype: torch.dtype) -> HeldOut:
    """Evaluate a model on batches that were made once, so that measurements compare."""
    was_training = model.training
    model.eval()
    totals = torch.zeros(4, dtype=torch.float64)
    for batch in batches:
        totals += torch.stack([s.double().cpu() for s in _sums(model, batch, dtype)])
    model.train(was_training)
    targets = sum(b.masked.count for b in batches)
    pairs = sum(b.inputs.sequences for b in batches)
    ids = torch.cat([b.masked.ids[b.masked.ids != IGNORE] for b in batches])
    random = sum(int(b.random_next.sum()) for b in batches)
    most_frequent = int(torch.bincount(ids).max()) if len(ids) else 0
    mlm, mlm_right, nsp, nsp_right = totals.tolist()
    return HeldOut(
        mlm_loss=mlm / max(targets, 1),
        mlm_accuracy=mlm_right / max(targets, 1),
        mlm_baseline=most_frequent / max(targets, 1),
        nsp_loss=nsp / max(pairs, 1),
        nsp_accuracy=nsp_right / max(pairs, 1),
        nsp_baseline=max(random, pairs - random) / max(pairs, 1),
        targets=targets,
        pairs=pairs,
    )
