"""The shape of an encoder."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from bothways.config.fields import Options
from bothways.errors import ConfigError

# Layers, hidden size, heads. tiny to medium: Turc et al. 2019; base, large: Devlin et al. 2019.
SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


DROPOUT = 0.1
"""Dropout probability of a new encoder (Devlin et al. 2019, appendix A.2)."""


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of an encoder."""

    vocab_size: int
    layers: int
    hidden: int
    heads: int
    intermediate: int
    positions: int = 512
    segments: int = 2
    dropout: float = DROPOUT
    attention_dropout: float = DROPOUT
    norm_eps: float = 1e-12
    init_std: float = 0.02
    left_to_right: bool = False
    """Causal attention: a token attends to itself and earlier tokens (transformers: is_decoder)."""

    def __post_init__(self) -> None:
        sizes = "vocab_size", "layers", "hidden", "heads", "intermediate", "positions", "segments"
        for name in sizes:
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.hidden % self.heads:
            raise ConfigError(
                f"model.hidden {self.hidden} is not divisible by model.heads {self.heads}; "
                f"choose hidden = heads x head size, for instance {self.heads * 64}."
            )
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"model.{name} is {getattr(self, name)}; it must be in [0, 1).")
        for name in ("init_std", "norm_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"model.{name} is {getattr(self, name)}; it must be above 0.")

    @property
    def head_size(self) -> int:
        """Size of one attention head."""
        return self.hidden // self.heads

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding matrix: the vocabulary size rounded up to a multiple of 64."""
        return math.ceil(self.vocab_size / 64) * 64

    def parameters(self, *, heads: bool = False) -> int:
        """Number of weights of the encoder with its pooler, without padding rows.

        Args:
            heads: count the two pre-training heads too (the output embedding is tied).
        """
        H, I = self.hidden, self.intermediate  # noqa: E741
        embeddings = (self.vocab_size + self.positions + self.segments) * H + 2 * H
        layer = 4 * (H * H + H) + 2 * H + (H * I + I) + (I * H + H) + 2 * H
        pooler = H * H + H
        pretraining = (H * H + H + 2 * H + self.vocab_size) + (2 * H + 2)
        return embeddings + self.layers * layer + pooler + (pretraining if heads else 0)


@dataclass(frozen=True)
class SizeOptions(Options):
    """The size of a new encoder."""

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "mini"
    """Preset of layers/hidden size/heads: tiny 2/128/2, mini 4/256/4, small 4/512/8,
    medium 8/512/8, base 12/768/12, large 24/1024/16."""
    layers: int | None = None
    """Number of layers. Default: the preset's."""
    hidden: int | None = None
    """Hidden size. Default: the preset's."""
    heads: int | None = None
    """Number of attention heads; must divide the hidden size. Default: the preset's."""
    intermediate: int | None = None
    """Feed-forward size. Default: 4 times the hidden size."""
    positions: int = 512
    """Number of learned position embeddings: the maximum sequence length in tokens."""
    dropout: float | None = None
    """Dropout probability after embeddings, attention and feed-forward. Default: 0.1; with --start,
    the model folder's."""
    attention_dropout: float | None = None
    """Dropout probability of attention weights. Default: as for dropout."""
    init_std: float = 0.02
    """Standard deviation of initial weights (normal, truncated at two standard deviations)."""
    init: Literal["normal", "primed"] = "normal"
    """normal: random weights, as in the original. primed: sinusoidal positions, and first-layer
    heads that attend to neighbouring tokens or to other occurrences of the same token (the weights
    of the latter stay fixed); a narrow encoder then learns in far fewer steps."""

    def resolve(self, vocab_size: int, *, left_to_right: bool = False) -> ModelConfig:
        """The architecture for a vocabulary of this size."""
        layers, hidden, heads = SIZES[self.size]
        hidden = hidden if self.hidden is None else self.hidden
        return ModelConfig(
            vocab_size=vocab_size,
            layers=layers if self.layers is None else self.layers,
            hidden=hidden,
            heads=heads if self.heads is None else self.heads,
            intermediate=4 * hidden if self.intermediate is None else self.intermediate,
            positions=self.positions,
            dropout=DROPOUT if self.dropout is None else self.dropout,
            attention_dropout=(
                DROPOUT if self.attention_dropout is None else self.attention_dropout
            ),
            init_std=self.init_std,
            left_to_right=left_to_right,
        )

    def with_dropouts(self, dropout: float, attention_dropout: float) -> SizeOptions:
        """These options, with the dropout probabilities filled in that were not given."""
        return replace(
            self,
            dropout=dropout if self.dropout is None else self.dropout,
            attention_dropout=(
                attention_dropout if self.attention_dropout is None else self.attention_dropout
            ),
        )
