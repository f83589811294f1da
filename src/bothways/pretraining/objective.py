"""The pre-training loss: of the language model, and of the pairs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bothways.model.batch import PretrainingBatch
from bothways.model.bert import Bert
from bothways.model.losses import class_loss
from bothways.training.options import PairKind
from bothways.training.ranks import SINGLE_PROCESS, Ranks
from bothways.training.trainer import Loss

PAIR_TASKS: dict[PairKind, tuple[str, str]] = {
    "next": ("nsp", "next-sentence"),
    "order": ("sop", "sentence-order"),
}
"""The kinds of pairs with a second loss: its prefix in the metrics, and its name."""


def pretraining_loss(
    micro_batches: Sequence[PretrainingBatch],
    pairs: PairKind = "next",
    ranks: Ranks = SINGLE_PROCESS,
) -> Loss[PretrainingBatch]:
    """Mean language-model loss, plus the mean loss of the pairs if the kind has one (Devlin et al.
    2019, Appendix A.2).

    Both means are over the step's global batch: the sum of each micro-batch is divided by the
    counts of all micro-batches, of all processes.

    Args:
        micro_batches: those of the step that this process computes.
        pairs: the kind of sequences, for the names of the statistics.
        ranks: the processes, all of which must call this.
    """
    targets, sequences = ranks.sum_counts(
        sum(batch.masked.count for batch in micro_batches),
        sum(batch.inputs.sequences for batch in micro_batches),
    )
    targets = max(1, targets)  # 0: all text is [UNK]

    def loss(
        model: Bert, batch: PretrainingBatch, dtype: torch.dtype
    ) -> tuple[Tensor, dict[str, Tensor]]:
        (mlm, mlm_right), pair = summed_losses(model, batch, dtype)
        stats = {"mlm_loss": mlm.detach() / targets, "mlm_accuracy": mlm_right / targets}
        if pair is None:
            return mlm / targets, stats
        prefix, _ = PAIR_TASKS[pairs]
        stats[f"{prefix}_loss"] = pair[0].detach() / sequences
        stats[f"{prefix}_accuracy"] = pair[1] / sequences
        return mlm / targets + pair[0] / sequences, stats

    return loss


def summed_losses(
    model: Bert, batch: PretrainingBatch, dtype: torch.dtype
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    """A micro-batch's summed loss and number of correct predictions, of the language model and of
    the pairs."""
    inputs, masked = batch.inputs, batch.masked
    x_MH, *rest = model.encoder.hidden_at(inputs, batch.selected, dtype=dtype)
    words = model.masked_lm_loss(x_MH, masked.ids)
    if batch.random_next is None:
        return words, None
    (x_BH,) = rest
    return words, class_loss(model.next_sentence_logits(x_BH), batch.random_next)
