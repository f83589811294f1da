"""The shape of an encoder, as axes: every family is a point in this space."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from bothways.errors import ConfigError, LengthError, ModelError

# --------------------------------------------------------------------------------
# The size of a new encoder.

DROPOUT = 0.1
"""Dropout probability of a new encoder (Devlin et al. 2019, appendix A.2)."""

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]
Place = Literal["learned", "rotary", "disentangled", "none"]
Pairs = Literal["halves", "adjacent"]
NormAt = Literal["post", "pre"]
Norm = Literal["layer", "rms"]
Pooling = Literal["cls", "mean"]
_CHOICES: dict[str, tuple[str, ...]] = {
    "place": get_args(Place),
    "rotary_pairs": get_args(Pairs),
    "norm_at": get_args(NormAt),
    "norm": get_args(Norm),
    "activation": get_args(Activation),
    "head_activation": get_args(Activation),
    "pooling": get_args(Pooling),
}
_AT_LEAST_1 = (
    *("vocab_size", "layers", "hidden", "heads", "intermediate", "positions"),
    "global_every",
)
_AT_LEAST_0 = (
    *("segments", "embedding", "groups", "place_offset", "window", "init_std"),
    *("kv_heads", "buckets"),
)
_ABOVE_0 = ("norm_eps", "rotary_global", "rotary_local")
# Far beyond any encoder: what is larger is a slip or an attack, and takes memory until it ends.
_AT_MOST = {
    **{"vocab_size": 2**23, "layers": 4096, "hidden": 2**18, "heads": 2**14, "embedding": 2**18},
    **{"intermediate": 2**20, "positions": 2**24, "segments": 2**16, "place_offset": 2**16},
    **{"window": 2**24, "init_std": 1e3, "norm_eps": 1.0, "rotary_global": 1e12},
    **{"rotary_local": 1e12, "buckets": 2**16},
}
_MOST_COMPUTED = 2**17
"""Positions without a table of weights, against which others are compared."""
_PROBABILITIES = ("dropout", "attention_dropout", "head_dropout")
# Shapes recorded by 0.1 have these alone.
_FIRST_AXES = 12


@dataclass(frozen=True)
class AttentionSpec:
    """What the tokens of a layer attend to.

    Attributes:
        causal: to themselves and earlier tokens only.
        window: to so many tokens on each side only; 0: to all.
        rotary: base of the wavelengths by which queries and keys are rotated; 0: they are not.
        relative: scores depend on relative places, too.
    """

    causal: bool
    window: int
    rotary: float
    relative: bool

    @property
    def reads_all(self) -> bool:
        """Whether every token attends to all others, by their contents alone."""
        return not (self.causal or self.window or self.relative)


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of an encoder. The defaults are BERT's."""

    vocab_size: int
    layers: int
    hidden: int
    heads: int
    intermediate: int
    positions: int = 512
    """Tokens of the longest sequence."""
    segments: int = 2
    """Segment embeddings; 0: none, and segments are ignored."""
    dropout: float = DROPOUT
    attention_dropout: float = DROPOUT
    norm_eps: float = 1e-12
    init_std: float = 0.02
    left_to_right: bool = False
    """Causal attention: a token attends to itself and earlier tokens (transformers: is_decoder)."""
    family: str = "bert"
    """Whose names, heads and sequence template the model has (:mod:`bothways.families`)."""
    embedding: int = 0
    """Width of the embeddings; 0: the hidden size."""
    project: bool = False
    """A projection from the embeddings to the layers even where both are of the same width."""
    groups: int = 0
    """Layers with weights of their own, each computed several times in a row; 0: all of them."""
    place: Place = "learned"
    """How a token's position enters: by an embedding, by rotating queries and keys, by scores of
    relative places (He et al. 2021), not at all."""
    place_offset: int = 0
    """Rows of the position table before that of a sequence's first token."""
    rotary_global: float = 10_000.0
    """Base of the rotary wavelengths in layers that attend to everything."""
    rotary_local: float = 10_000.0
    """The same in layers with a window."""
    rotary_pairs: Pairs = "halves"
    """Which dimensions are rotated together: those half a head apart, or neighbours."""
    norm_at: NormAt = "post"
    """Normalise after adding a branch, or at the start of it."""
    embedding_norm: bool = True
    first_norm: bool = True
    """With ``norm_at`` pre: normalise before the first layer's attention."""
    final_norm: bool = False
    """Normalise the last layer's output."""
    activation: Activation = "gelu"
    gated: bool = False
    """The feed-forward part's activation is multiplied with a second projection."""
    biases: bool = True
    """Of the layers' linear maps."""
    norm_biases: bool = True
    window: int = 0
    """Tokens to each side that a token of a local layer attends to; 0: no layer is local."""
    global_every: int = 1
    """Every how many layers one attends to everything, the first among them."""
    pooler: bool = True
    """Whether the encoder has a dense layer and tanh for heads that read whole sequences."""
    pooling: Pooling = "cls"
    """What a head reads of a whole sequence: the first token, or the mean over all."""
    head_dropout: float | None = None
    """Dropout probability of task heads; None: ``dropout``."""
    head_activation: Activation = "gelu"
    """Of heads that have an activation of their own."""
    head_biases: bool = True
    """Of the dense layer in such heads."""
    output_bias: bool = True
    """Of the masked-LM output."""
    tied: bool = True
    """The masked-LM output's weight is the token table."""
    kv_heads: int = 0
    """Heads of keys and values, each of which several heads of queries share; 0: as many."""
    norm: Norm = "layer"
    """LayerNorm, or division by the root mean square, without a bias."""
    buckets: int = 256
    """Of relative places to each side, with ``place`` disentangled: as many rows on each side."""

    def __post_init__(self) -> None:
        self._check_numbers()
        wholes = {"embedding": self.hidden, "groups": self.layers, "kv_heads": self.heads}
        for name, whole in wholes.items():
            if getattr(self, name) == whole:  # one way to say it, so that equal shapes are equal
                object.__setattr__(self, name, 0)
        if self.norm == "rms":
            object.__setattr__(self, "norm_biases", False)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}."
                )
        if self.hidden % self.heads:
            raise ConfigError(
                f"hidden {self.hidden} is not divisible by heads {self.heads}; "
                f"choose hidden = heads x head size, for instance {self.heads * 64}."
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise ConfigError(f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}.")
        if self.groups > self.layers:
            raise ConfigError(
                f"groups is {self.groups}; of {self.layers} layers at most that many can "
                "have weights of their own."
            )
        if self.place == "rotary" and self.head_size % 2:
            raise ConfigError(
                f"place is rotary, which needs an even head size, not {self.head_size}."
            )

    def _check_numbers(self) -> None:
        self._check_types()
        for name, most in _AT_MOST.items():
            if getattr(self, name) > most:
                raise ConfigError(
                    f"{name} is {shortened(getattr(self, name))}; it must be at most {most:,}."
                )
        if self.place != "learned" and self.positions > _MOST_COMPUTED:  # no table tells
            raise ConfigError(
                f"positions is {self.positions:,}; it must be at most {_MOST_COMPUTED:,} in "
                "a family that computes them."
            )
        for least, names in ((1, _AT_LEAST_1), (0, _AT_LEAST_0)):
            for name in names:
                if not getattr(self, name) >= least:  # nor NaN
                    raise ConfigError(
                        f"{name} is {getattr(self, name)}; it must be at least {least}."
                    )
        for name in _PROBABILITIES:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"{name} is {value}; it must be in [0, 1].")
        for name in _ABOVE_0:
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0.")

    def _check_types(self) -> None:
        """Refuse values of another type than the field's, as a damaged file may have."""
        for item in fields(self):
            value, kind = getattr(self, item.name), str(item.type)
            wanted = {"int": int, "bool": bool, "float": int | float}.get(kind.split(" ")[0], str)
            if value is None and "None" in kind:
                continue
            if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
                raise ConfigError(f"{item.name} is {shortened(value)}; it must be of type {kind}.")

    @property
    def head_size(self) -> int:
        """Size of one attention head."""
        return self.hidden // self.heads

    @property
    def qkv_rows(self) -> tuple[int, ...]:
        """Widths of queries, keys and values, which one linear map computes."""
        shared = (self.kv_heads or self.heads) * self.head_size
        return self.hidden, shared, shared

    @property
    def expand_rows(self) -> tuple[int, ...]:
        """Widths of the inner layer and, with gates, of these."""
        return (self.intermediate,) * (2 if self.gated else 1)

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding matrix: the vocabulary size rounded up to a multiple of 64."""
        return math.ceil(self.vocab_size / 64) * 64

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings, and of the masked-LM output layer's input."""
        return self.embedding or self.hidden

    @property
    def projects(self) -> bool:
        """Whether a linear map leads from the embeddings to the layers."""
        return self.project or self.embedding_width != self.hidden

    @property
    def place_rows(self) -> int:
        """Rows of the position table; 0 without one."""
        return self.positions + self.place_offset if self.place == "learned" else 0

    @property
    def distinct_layers(self) -> int:
        """Layers with weights of their own."""
        return self.groups or self.layers

    def group_of(self, layer: int) -> int:
        """Whose weights a layer has: layers are divided into consecutive runs."""
        return layer * self.distinct_layers // self.layers

    def layer(self, number: int) -> AttentionSpec:
        """What the tokens of a layer attend to."""
        local = bool(self.window and number % self.global_every)
        return AttentionSpec(
            causal=self.left_to_right,
            window=self.window if local else 0,
            rotary=(self.rotary_local if local else self.rotary_global)
            if self.place == "rotary"
            else 0.0,
            relative=self.place == "disentangled",
        )

    def at_depth(self, layers: int) -> ModelConfig:
        """The same shape with another number of layers."""
        return replace(self, layers=layers, groups=min(self.groups, layers))

    @property
    def attention(self) -> list[AttentionSpec]:
        """What the tokens of each layer attend to."""
        return [self.layer(number) for number in range(self.layers)]

    @property
    def read_at(self) -> Literal["first", "last", "mean"]:
        """What stands for a whole sequence: a token, or the mean of all. Left to right it is the
        last, because the first sees no other (as in Radford et al. 2018, 3.2)."""
        if self.left_to_right:
            return "last"
        return "mean" if self.pooling == "mean" else "first"

    @property
    def dropout_of_heads(self) -> float:
        """Dropout probability of task heads."""
        return self.dropout if self.head_dropout is None else self.head_dropout

    def refuse_outside(
        self, longest: int, tokens: tuple[int, int], segments: tuple[int, int]
    ) -> None:
        """Refuse sequences that the tables have no rows for.

        Args:
            longest: tokens of the longest sequence.
            tokens: the lowest and the highest id.
            segments: the lowest and the highest segment; ignored where the shape has none.

        Raises:
            LengthError: a sequence is longer than the positions.
            ModelError: an id is outside the vocabulary, or a segment outside the segments.
        """
        self.refuse_longer(longest)
        if (wrong := _outside(tokens, self.vocab_size)) is not None:
            raise ModelError(
                f"token id {wrong} is outside this model's vocabulary of {self.vocab_size} pieces; "
                "encode the text with the tokenizer in the model's own folder."
            )
        if self.segments and (wrong := _outside(segments, self.segments)) is not None:
            raise ModelError(
                f"segment id {wrong} is outside this model's {self.segments} segments; number the "
                "texts of a sequence from 0."
            )

    def refuse_longer(self, longest: int) -> None:
        """Refuse a sequence of more tokens than there are positions.

        Raises:
            LengthError: naming both.
        """
        if longest > self.positions:
            raise LengthError(
                f"a sequence of {longest} tokens; this encoder has positions for "
                f"{self.positions}. Truncate it when encoding, or split the text."
            )

    def refuse_to_train(self, *, anew: bool = False) -> None:
        """Refuse what matters in training alone, and is no reason not to use a model.

        Args:
            anew: all weights are new.

        Raises:
            ConfigError: a dropout of 1, which leaves nothing; or new weights that are all 0.
        """
        if anew and not self.init_std:
            raise ConfigError(
                "init_std is 0 (initializer_range of config.json), which makes all new "
                "weights 0, so that nothing is learned; write 0.02 there to train from scratch."
            )
        for name in _PROBABILITIES:
            if getattr(self, name) == 1:
                raise ConfigError(
                    f"{name} is 1, which drops everything, so that nothing is learned; it "
                    "must be below 1 to train (--dropout 0.1, or in the config.json of the start)."
                )

    def recorded(self) -> dict[str, Any]:
        """The fields by name, for digests: the axes that 0.1 did not have only where they differ
        from their defaults, so that a shape which it had is recorded as it did."""
        return {
            item.name: getattr(self, item.name)
            for number, item in enumerate(fields(self))
            if number < _FIRST_AXES or getattr(self, item.name) != item.default
        }


def shortened(value: Any) -> str:
    """A value for a message, however long it is."""
    if isinstance(value, int) and abs(value) >= 10**15:
        return "a number of more than 15 digits"
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "..."


def _outside(ends: tuple[int, int], limit: int) -> int | None:
    """The lowest or highest id if it is negative or not below ``limit``."""
    lowest, highest = ends
    return lowest if lowest < 0 else highest if highest >= limit else None
