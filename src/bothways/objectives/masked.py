"""BERT's objectives: the language model, masked or left to right, and a second loss on pairs of
segments (Devlin et al. 2019, 3.1 and appendix A.2; sentence order: Lan et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from bothways.batch import IGNORE
from bothways.config.fields import require
from bothways.errors import ConfigError
from bothways.families.heads import MASKED_LM, NEXT_SENTENCE
from bothways.model.batch import PretrainingBatch
from bothways.model.losses import class_loss
from bothways.model.model import EncoderModel
from bothways.objectives.masking import Vocabulary, mask_tokens, max_predictions, next_tokens
from bothways.objectives.objective import ChooseTargets, PretrainingObjective, Sums, Term
from bothways.pretraining.options import MaskOptions
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.options import PairKind

WORDS = Term("mlm", "masked-LM", "most frequent token")
PAIRS: dict[PairKind, Term] = {
    "next": Term("nsp", "next-sentence", "majority class"),
    "order": Term("sop", "sentence-order", "majority class"),
}
"""The kinds of pairs with a second loss."""


def masked_targets(tokenizer: Tokenizer, masking: MaskOptions, length: int) -> ChooseTargets:
    """Tokens that are hidden by the rates of ``masking``."""
    return partial(
        mask_tokens,
        vocabulary=Vocabulary.of(tokenizer, segmented=masking.segmented),
        options=masking,
        budget=max_predictions(length, masking.rate),
    )


class MaskedLM(PretrainingObjective):
    """Tokens from their context, and for pairs whether they belong together, from one pass.

    Args:
        pairs: the kind of sequences.
        pairs_weight: of their loss; the language model's has 1.
    """

    fills_masks = True

    def __init__(self, pairs: PairKind = "next", *, pairs_weight: float = 1.0):
        require("objective: pairs_weight", pairs_weight, 0)
        self._words = WORDS
        self._pairs = replace(PAIRS[pairs], weight=pairs_weight) if pairs in PAIRS else None
        self.heads = (MASKED_LM,) if self._pairs is None else (MASKED_LM, NEXT_SENTENCE)

    def targets(self, tokenizer: Tokenizer, masking: MaskOptions, length: int) -> ChooseTargets:
        """See :func:`masked_targets`."""
        return masked_targets(tokenizer, masking, length)

    @property
    def terms(self) -> tuple[Term, ...]:
        """Of the language model, and of the pairs if they have a loss."""
        return (self._words,) if self._pairs is None else (self._words, self._pairs)

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """Masked positions, and pairs."""
        counts = {self._words.key: batch.masked.count}
        if self._pairs is not None:
            counts[self._pairs.key] = batch.inputs.sequences
        return counts

    def sums(
        self, model: EncoderModel, batch: PretrainingBatch, dtype: torch.dtype
    ) -> dict[str, Sums]:
        """Both losses, from the hidden states at the masked positions and each first token."""
        x_MH, *rest = model.encoder.hidden_at(batch.inputs, batch.selected, dtype=dtype)
        sums = {self._words.key: Sums(*model.piece_loss(x_MH, batch.masked.ids))}
        if self._pairs is not None and batch.random_next is not None:
            logits_B2 = model.next_sentence_logits(rest[0])
            sums[self._pairs.key] = Sums(*class_loss(logits_B2, batch.random_next))
        return sums

    def most_frequent(self, batches: Sequence[PretrainingBatch]) -> dict[str, int]:
        """Of the most frequent token, and of the majority of pairs."""
        ids = torch.cat([b.masked.ids[b.masked.ids != IGNORE] for b in batches])
        found = {self._words.key: int(torch.bincount(ids).max()) if len(ids) else 0}
        labels = [b.random_next for b in batches if b.random_next is not None]
        if self._pairs is not None and labels:
            ones, count = sum(int(own.sum()) for own in labels), sum(map(len, labels))
            found[self._pairs.key] = max(ones, count - ones)
        return found


class LeftToRight(MaskedLM):
    """Each token from those before it (Radford et al. 2018); appendix C.1's "LTR & No NSP"."""

    causal, marks, fills_masks = True, False, False

    def __init__(self, pairs: PairKind = "full"):
        if pairs in PAIRS:
            raise ConfigError(
                f"objective left_to_right with pairs_kind {pairs}: the second loss reads the "
                "first token, which sees no other; choose pairs_kind full or single."
            )
        super().__init__(pairs)
        self._words = replace(WORDS, title="left-to-right")

    def targets(self, tokenizer: Tokenizer, masking: MaskOptions, length: int) -> ChooseTargets:  # noqa: ARG002
        """Every token but the first of each sequence."""
        return next_tokens
