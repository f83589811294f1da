"""ELECTRA's objective: which tokens a generator has replaced (Clark et al. 2020).

A small masked LM, the generator, proposes a token for each masked position, and the model, the
discriminator, tells for every token whether it is the original. Both are trained in one step; no
gradient passes through the proposals. A proposal that is the original counts as original.

M masked positions, T tokens, E width of the embeddings, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bothways.batch import IGNORE
from bothways.config.fields import require, require_choice
from bothways.errors import ConfigError
from bothways.families.config import ModelConfig
from bothways.families.heads import REPLACED
from bothways.model.batch import PretrainingBatch
from bothways.model.flops import TrainingCost, training_cost
from bothways.model.model import EncoderModel
from bothways.objectives.masked import PAIRS, WORDS, masked_targets
from bothways.objectives.objective import ChooseTargets, PretrainingObjective, Sums, Term
from bothways.pretraining.options import MaskOptions
from bothways.randomness import Purpose, derived_seed, uniform
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.options import PairKind

DECISION = Term("rtd", "replaced-token", "majority class")
GENERATOR = "generator"
"""Its name among the parts of the model in training."""
Sharing = Literal["all", "tokens", "none"]
_CHUNK_BYTES = 2**21  # of probabilities that are summed up at once


class ReplacedTokens(PretrainingObjective):
    """The generator's masked LM and the discriminator's decision on every token.

    Args:
        pairs: the kind of sequences, ``full`` or ``single``.
        weight: of the discriminator's loss, 50 in the paper; the generator's has 1.
        size: the generator's hidden size, feed-forward size and heads as a fraction of the
            discriminator's.
        share: which embeddings are the discriminator's own: ``all`` (of tokens, positions and
            segments, with their norm), those of ``tokens``, or ``none``.
    """

    heads = (REPLACED,)

    def __init__(
        self,
        pairs: PairKind = "full",
        *,
        weight: float = 50.0,
        size: float = 0.25,
        share: Sharing = "all",
    ):
        if pairs in PAIRS:
            raise ConfigError(
                f"objective replaced with pairs_kind {pairs}: it has no loss on pairs; choose "
                "pairs_kind full or single."
            )
        require("objective: weight", weight, 0)
        require_choice("objective: share", share, get_args(Sharing))
        self._words, self._replaced = WORDS, replace(DECISION, weight=weight)
        self._size, self._share = size, share

    def targets(self, tokenizer: Tokenizer, masking: MaskOptions, length: int) -> ChooseTargets:
        """See :func:`masked_targets`."""
        return masked_targets(tokenizer, masking, length)

    def parts(self, model: EncoderModel, seed: int) -> Mapping[str, EncoderModel]:
        """The generator."""
        return {GENERATOR: make_generator(model, size=self._size, share=self._share, seed=seed)}

    def models(self, model: EncoderModel) -> Mapping[str, EncoderModel]:
        """The generator, which fills masks."""
        generator = model.parts[GENERATOR]
        assert isinstance(generator, EncoderModel)
        return {GENERATOR: generator}

    def operations(self, shape: ModelConfig, length: int, targets: float) -> TrainingCost:
        """The generator's, and the discriminator's for every token."""
        generator, H = generator_shape(shape, size=self._size), shape.hidden
        proposed = training_cost(generator, length=length, targets=targets)
        judged = training_cost(shape, length=length, targets=length, head=2 * H * H + 2 * H)
        return TrainingCost(proposed.matrix + judged.matrix, proposed.whole + judged.whole)

    @property
    def terms(self) -> tuple[Term, ...]:
        """Of the generator and of the discriminator."""
        return self._words, self._replaced

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """Masked positions, and all tokens, special ones included."""
        return {
            self._words.key: batch.masked.count,
            self._replaced.key: int(batch.inputs.bounds[-1]),
        }

    def sums(
        self, model: EncoderModel, batch: PretrainingBatch, dtype: torch.dtype
    ) -> dict[str, Sums]:
        """Both losses; the proposals are drawn by the key of the micro-batch."""
        generator = model.parts[GENERATOR]
        assert isinstance(generator, EncoderModel)
        masked, total = batch.masked, int(batch.inputs.bounds[-1])
        (x_MH,) = generator.encoder.hidden_at(batch.inputs, batch.selected, dtype=dtype)
        words = generator.piece_loss(x_MH, masked.ids)
        with torch.no_grad():
            draws = uniform(*_key(model), np.arange(len(masked.positions)))
            proposed = sample(generator, x_MH.detach(), torch.from_numpy(draws).to(x_MH.device))
            real = masked.ids != IGNORE
            at = masked.positions[real]
            tokens, changed = batch.inputs.tokens.clone(), torch.zeros_like(batch.inputs.tokens)
            tokens[at] = proposed[real]
            changed[at] = (proposed != masked.ids)[real].long()
            labels_T = changed[:total].float()
        x_TH = model.encoder(replace(batch.inputs, tokens=tokens), dtype=dtype)[:total]
        logits_T = model.logits(REPLACED, x_TH).squeeze(-1)
        loss = F.binary_cross_entropy_with_logits(
            logits_T, labels_T.to(logits_T.dtype), reduction="sum"
        )
        right = ((logits_T.detach() > 0) == (labels_T > 0)).sum()
        return {
            self._words.key: Sums(*words),
            self._replaced.key: Sums(loss, right, labels_T.sum()),
        }

    def most_frequent(self, batches: Sequence[PretrainingBatch]) -> dict[str, int]:
        """Of the most frequent token; what is replaced is drawn."""
        ids = torch.cat([b.masked.ids[b.masked.ids != IGNORE] for b in batches])
        return {self._words.key: int(torch.bincount(ids).max()) if len(ids) else 0}


def _key(model: EncoderModel) -> tuple[int, Purpose]:
    """The key of a micro-batch's draws; in evaluation, when nothing is drawn anew, always one."""
    return (model.shared.dropout.seed if model.training else 0), Purpose.REPLACED


def sample(generator: EncoderModel, x_MH: Tensor, draws_M: Tensor) -> Tensor:
    """A token for each masked position, from the generator's distribution.

    The distribution function is inverted at one number per position, so that a draw depends on
    nothing but its key. Sums are in fp64: in fp32 the rare tokens at the end of a large vocabulary
    would be lost.

    Args:
        generator: with a masked-LM head.
        x_MH: its hidden states there.
        draws_M: float64, in [0, 1).

    Returns:
        int64 [M].
    """
    head = generator.masked_lm
    assert head is not None
    x_ME, weight_VE, bias_V = head.output(x_MH, generator.embedding_VH)
    size = max(1, _CHUNK_BYTES // (8 * len(weight_VE)))
    parts = []
    for x, draws in zip(torch.split(x_ME, size), torch.split(draws_M, size), strict=True):
        logits = F.linear(x, weight_VE, bias_V).float()
        sums = logits.softmax(-1).double().cumsum(-1)
        targets = (draws * sums[:, -1])[:, None]
        parts.append(torch.searchsorted(sums, targets, right=True).squeeze(1))
    last = generator.config.vocab_size - 1
    return torch.cat(parts).clamp(max=last)


def make_generator(model: EncoderModel, *, size: float, share: Sharing, seed: int) -> EncoderModel:
    """A generator for a discriminator.

    Args:
        model: the discriminator.
        size: hidden size, feed-forward size and heads as a fraction of its.
        share: ``all`` embeddings (of tokens, positions and segments, with their norm), those of
            ``tokens``, or ``none`` are the discriminator's own.
        seed: seed of its weights.

    Raises:
        ConfigError: the fraction does not make a shape.
    """
    shape = generator_shape(model.config, size=size)
    own_seed = derived_seed(seed, Purpose.GENERATOR)
    generator = EncoderModel(shape, masked_lm=True, seed=own_seed, shared=model.shared)
    own, its = generator.encoder.embeddings, model.encoder.embeddings
    if share != "none":
        own.tokens.weight = its.tokens.weight
    if share == "all":
        own.positions, own.segments, own.norm = its.positions, its.segments, its.norm
    return generator


def generator_shape(config: ModelConfig, *, size: float) -> ModelConfig:
    """The shape of a generator; its embeddings are as wide as the discriminator's.

    Raises:
        ConfigError: heads of the discriminator's size do not divide it.
    """
    heads = max(1, round(config.heads * size))
    hidden = heads * config.head_size
    if not 0 < size <= 1 or not math.isclose(hidden, config.hidden * size):
        choices = ", ".join(f"{n / config.heads:g}" for n in range(1, config.heads + 1))
        raise ConfigError(
            f"objective: size is {size:g}; with {config.heads} heads of {config.head_size} it must "
            f"be one of {choices}."
        )
    return replace(
        config,
        hidden=hidden,
        heads=heads,
        intermediate=max(1, round(config.intermediate * size)),
        embedding=config.embedding_width,
    )
