"""ELECTRA's objective: which tokens a generator has replaced (Clark et al. 2020).

A small masked LM, the generator, proposes a token for each masked position, and the model, the
discriminator, tells for every token whether it is the original. Both are trained in one step; no
gradient passes through the proposals. A proposal that is the original counts as original.

M masked positions, T tokens, E width of the embeddings, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bothways.batch import IGNORE
from bothways.errors import ConfigError
from bothways.families.config import ModelConfig
from bothways.model.batch import PretrainingBatch
from bothways.model.model import EncoderModel
from bothways.objectives.masked import WORDS
from bothways.objectives.objective import Objective, Sums, Term
from bothways.randomness import Purpose, derived_seed, uniform

REPLACED = Term("rtd", "replaced-token", "majority class")
GENERATOR = "generator"
"""Its name among the parts of the model in training."""
Sharing = Literal["all", "tokens", "none"]
_CHUNK_BYTES = 2**21  # of probabilities that are summed up at once


class ReplacedTokens(Objective[PretrainingBatch]):
    """The generator's masked LM and the discriminator's decision on every token.

    Args:
        replaced_weight: of the discriminator's loss, 50 in the paper; the generator's has 1.
    """

    def __init__(self, *, replaced_weight: float = 50.0):
        self._words = WORDS
        self._replaced = replace(REPLACED, weight=replaced_weight)

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
        words = generator.masked_lm_loss(x_MH, masked.ids)
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
        logits_T = model.replaced_logits(x_TH)
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
            f"generator.size is {size:g}; with {config.heads} heads of {config.head_size} it must "
            f"be one of {choices}."
        )
    return replace(
        config,
        hidden=hidden,
        heads=heads,
        intermediate=max(1, round(config.intermediate * size)),
        embedding=config.embedding_width,
    )
