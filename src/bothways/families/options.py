"""The size of a new encoder, as options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from bothways.config.fields import Options
from bothways.errors import ConfigError
from bothways.families import FAMILIES, ModelConfig, new_shape

if TYPE_CHECKING:
    FamilyName = str
else:
    FamilyName = Literal[*FAMILIES]

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
class SizeOptions(Options):
    """The size of a new encoder."""

    family: FamilyName = "bert"
    """Family of the encoder. What the family leaves open is as in its published models."""
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
    """Feed-forward size. Default: 4 times the hidden size; 1.5 times in families with gates."""
    embedding: int | None = None
    """Width of the embeddings. Default: the family's, at most the hidden size."""
    groups: int | None = None
    """Number of layers with weights of their own, which the others share. Default: the family's: 1
    of ALBERT, all of the others."""
    positions: int = 512
    """Number of learned position embeddings: the maximum sequence length in tokens."""
    dropout: float | None = None
    """Dropout probability after embeddings, attention and feed-forward. Default: the family's, 0.1
    of most; with --start, the model folder's."""
    attention_dropout: float | None = None
    """Dropout probability of attention weights. Default: as for dropout."""
    init: Literal["normal", "primed"] = "normal"
    """Initial weights. normal: random, as in the original. primed: sinusoidal positions, and
    first-layer heads that attend to neighbouring tokens or to other occurrences of the same token
    (the weights of the latter stay fixed); a narrow encoder then learns in far fewer steps. Needs
    position embeddings of the hidden size."""

    def resolve(self, vocab_size: int, *, left_to_right: bool = False) -> ModelConfig:
        """The architecture for a vocabulary of this size.

        Raises:
            ConfigError: sizes that do not fit together.
        """
        layers, hidden, heads = SIZES[self.size]
        hidden = hidden if self.hidden is None else self.hidden
        gated = FAMILIES[self.family].axes.get("gated", False)
        intermediate = hidden * 3 // 2 if gated else 4 * hidden
        given: dict[str, Any] = {
            "embedding": self.embedding,
            "groups": self.groups,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
        }
        shape = new_shape(
            self.family,
            vocab_size=vocab_size,
            layers=layers if self.layers is None else self.layers,
            hidden=hidden,
            heads=heads if self.heads is None else self.heads,
            intermediate=intermediate if self.intermediate is None else self.intermediate,
            positions=self.positions,
            left_to_right=left_to_right,
            **{name: value for name, value in given.items() if value is not None},
        )
        shape.refuse_to_train()
        if self.init == "primed" and (shape.place != "learned" or shape.projects):
            raise ConfigError(
                "init is primed, which writes position embeddings of the hidden size, and "
                f"family {self.family} has none; leave out init."
            )
        wide = self.embedding is None and shape.embedding > hidden
        return replace(shape, embedding=hidden) if wide else shape

    def with_dropouts(self, dropout: float, attention_dropout: float) -> SizeOptions:
        """These options, with the dropout probabilities filled in that were not given."""
        return replace(
            self,
            dropout=dropout if self.dropout is None else self.dropout,
            attention_dropout=(
                attention_dropout if self.attention_dropout is None else self.attention_dropout
            ),
        )
