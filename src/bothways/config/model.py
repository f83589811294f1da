"""The shape of an encoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True)
class ModelConfig:
    """An encoder's shape: everything that decides what its weights mean."""

    vocab_size: int
    layers: int
    hidden: int
    heads: int
    intermediate: int
    positions: int = 512
    segments: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_eps: float = 1e-12
    init_std: float = 0.02
    left_to_right: bool = False
    """A token sees itself and those before it, not those after (transformers: is_decoder)."""

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
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding in memory: the vocabulary rounded up to a multiple of 64."""
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
class SizeOptions:
    """The size of a new encoder."""

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "mini"
    """Preset: layers/hidden/heads tiny 2/128/2, mini 4/256/4, small 4/512/8, medium 8/512/8,
    base 12/768/12, large 24/1024/16."""
    layers: int | None = None
    """Layers, instead of the preset's."""
    hidden: int | None = None
    """Hidden size, instead of the preset's."""
    heads: int | None = None
    """Attention heads, instead of the preset's; must divide the hidden size."""
    intermediate: int | None = None
    """Width of the feed-forward layer; 4 times the hidden size if not given."""
    positions: int = 512
    """Longest sequence in tokens (learned position embeddings)."""
    dropout: float = 0.1
    """Dropout after embeddings, attention and feed-forward."""
    attention_dropout: float = 0.1
    """Dropout on attention probabilities."""
    init_std: float = 0.02
    """Standard deviation of new weights (a normal, cut off at two of them)."""
    init: Literal["normal", "primed"] = "normal"
    """normal: all weights random, as the original. primed: positions begin as waves, and heads of
    the first layer look at the tokens beside and at copies of their own (what finds copies stays
    fixed); a narrow encoder learns in far fewer steps."""

    def resolve(self, vocab_size: int, *, left_to_right: bool = False) -> ModelConfig:
        """The network for a vocabulary of this many pieces."""
        layers, hidden, heads = SIZES[self.size]
        hidden = hidden if self.hidden is None else self.hidden
        return ModelConfig(
            vocab_size=vocab_size,
            layers=layers if self.layers is None else self.layers,
            hidden=hidden,
            heads=heads if self.heads is None else self.heads,
            intermediate=4 * hidden if self.intermediate is None else self.intermediate,
            positions=self.positions,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            init_std=self.init_std,
            left_to_right=left_to_right,
        )
