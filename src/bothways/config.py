"""Every option of every verb, each written once.

A recipe is a frozen dataclass; a field's docstring is its help on the command line, its default is
the documented default, and its type is checked by the parser. Fields are of three kinds:

* recipe (the default): what the result means. Must match to continue a run folder.
* numerics (:func:`numerics`): may change bits but not meaning. Recorded; a change is logged.
* free (:func:`free`): where things are and how often one hears of them.

YAML files and command-line overrides are read in :mod:`bothways.options`. This module imports no
torch, so that ``bothways --help`` stays fast.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from bothways.errors import ConfigError

T = TypeVar("T")


def require(name: str, value: float, least: float, most: float = math.inf) -> None:
    """Refuse an option's value outside [least, most]; not a number is outside.

    Raises:
        ConfigError: naming the option, its value and the limits.
    """
    if not least <= value <= most:
        limits = f"at least {least:g}" if most == math.inf else f"in [{least:g}, {most:g}]"
        raise ConfigError(f"{name} is {value:g}; it must be {limits}.")


def numerics(default: T) -> T:
    """A field that may change rounding, never meaning."""
    value: T = field(default=default, metadata={"kind": "numerics"})
    return value


def free(default: T) -> T:
    """A field that changes neither meaning nor rounding."""
    value: T = field(default=default, metadata={"kind": "free"})
    return value


# ------------------------------------------------------------------------------------ the network

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

    def __post_init__(self) -> None:
        for name in ("vocab_size", "layers", "hidden", "heads", "intermediate", "positions"):
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

    def resolve(self, vocab_size: int) -> ModelConfig:
        """The network for a vocabulary of this many pieces."""
        layers, hidden, heads = SIZES[self.size]
        hidden = self.hidden or hidden
        return ModelConfig(
            vocab_size=vocab_size,
            layers=self.layers or layers,
            hidden=hidden,
            heads=self.heads or heads,
            intermediate=self.intermediate or 4 * hidden,
            positions=self.positions,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
        )


# ------------------------------------------------------------------------- vocabulary and corpus


@dataclass(frozen=True)
class VocabularyConfig:
    """Learn a WordPiece vocabulary from text files."""

    files: tuple[str, ...]
    """Text files, folders or globs (.txt, .txt.gz, .txt.xz)."""
    out: str
    """Folder to write vocab.txt and tokenizer.json to."""
    size: int = 30522
    """Number of pieces, special tokens included."""
    lowercase: bool = True
    """Lower-case and strip accents, as BERT uncased does."""
    min_count: int = 2
    """Pieces seen less often are not learned."""
    alphabet: int = 1000
    """Number of distinct characters kept; rarer ones become [UNK]."""


@dataclass(frozen=True)
class CorpusConfig:
    """Turn text files into a token store: sentences -> ids -> memory-mapped Arrow shards."""

    files: tuple[str, ...]
    """Text files, folders or globs (.txt, .txt.gz, .txt.xz)."""
    tokenizer: str
    """Folder (or vocab.txt) with the vocabulary."""
    out: str
    """Folder to write the store to."""
    documents: Literal["blank", "file"] = "blank"
    """Where a document ends: at blank lines, or at the end of the file."""
    sentences: Literal["split", "line"] = "split"
    """Split lines into sentences, or take each line as one sentence."""
    language: str = "en"
    """Language code for sentence splitting."""
    single_sentence: Literal["join", "drop"] = "join"
    """A document of one sentence (a heading) always gets a random next segment and would give the
    next-sentence task away: join it to the document after it in the same file, or drop it."""
    heldout: float = 0.01
    """Share of the documents kept out of training, chosen by a hash of their text."""
    shard_tokens: int = 16_000_000
    """Tokens per shard file, about."""
    max_line_mib: float = 10.0
    """A line longer than this many MiB is an error (most likely not text)."""
    workers: int = free(1)
    """Processes that encode. The result does not depend on it."""

    def __post_init__(self) -> None:
        if not 0 <= self.heldout < 1:
            raise ConfigError(f"heldout is {self.heldout}; it is a share in [0, 1).")


# ----------------------------------------------------------------------------------- pre-training


@dataclass(frozen=True)
class ClockOptions:
    """How long to train: exactly one of the three."""

    steps: int | None = None
    """Optimizer steps."""
    tokens: int | None = None
    """Tokens read, padding not counted; turned into steps."""
    minutes: float | None = None
    """Minutes of training on this machine; turned into steps by a probe before step 1."""

    def __post_init__(self) -> None:
        given = [n for n in ("steps", "tokens", "minutes") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ConfigError(
                f"clock: give one of steps, tokens, minutes; got {' and '.join(given)}. To replace "
                f"a recipe's clock, set it to null: --clock.{given[-1]} null."
            )
        for name in given:
            if getattr(self, name) <= 0:
                raise ConfigError(f"clock.{name} is {getattr(self, name)}; it must be above 0.")


@dataclass(frozen=True)
class Phase:
    """A stretch of pre-training at one sequence length."""

    length: int = 128
    """Tokens of a sequence, [CLS] and two [SEP] included."""
    share: float = 1.0
    """Share of all steps spent in this phase."""
    batch: int = 256
    """Sequences of a step."""
    micro_batch: int = 64
    """Most sequences computed at once; a step adds up as many micro-batches as it needs."""

    def __post_init__(self) -> None:
        require("phases.length", self.length, 8)
        require("phases.share", self.share, 0, 1)
        require("phases.micro_batch", self.micro_batch, 1)
        require("phases.batch", self.batch, 1)


@dataclass(frozen=True)
class PairOptions:
    """Segment pairs for next-sentence prediction."""

    short: float = 0.1
    """Share of documents cut to a random shorter target length."""
    random_next: float = 0.5
    """Share of pairs whose second segment comes from another document."""

    def __post_init__(self) -> None:
        require("pairs.short", self.short, 0, 1)
        require("pairs.random_next", self.random_next, 0, 1)


@dataclass(frozen=True)
class MaskOptions:
    """Which tokens are predicted and what the encoder sees in their place."""

    rate: float = 0.15
    """Share of a sequence's tokens to predict (special tokens count, but are never chosen)."""
    mask: float = 0.8
    """Of the chosen: share shown as [MASK]."""
    random: float = 0.1
    """Of the chosen: share shown as a random word; the rest is shown unchanged."""

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ConfigError(f"masking.rate is {self.rate}; it is a share in (0, 1).")
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1 + 1e-9:
            raise ConfigError("masking.mask and masking.random are shares of at most 1 together.")


@dataclass(frozen=True)
class OptimizerOptions:
    """BERT's Adam: decoupled weight decay, linear warm-up and decay, clipped gradients."""

    lr: float = 1e-4
    """Peak learning rate."""
    warmup: float = 0.01
    """Share of all steps over which the rate rises linearly from 0; it then falls to 0."""
    beta1: float = 0.9
    """Decay of the gradient's running mean."""
    beta2: float = 0.999
    """Decay of the squared gradient's running mean."""
    eps: float = 1e-6
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled decay of weights; not of LayerNorm and biases."""
    bias_correction: bool = False
    """Correct the moments for their start at zero (the original does not)."""
    clip: float = 1.0
    """Largest norm of the whole gradient."""

    def __post_init__(self) -> None:
        require("optimizer.lr", self.lr, 0)
        require("optimizer.warmup", self.warmup, 0, 1)
        require("optimizer.beta1", self.beta1, 0, 1 - 1e-9)
        require("optimizer.beta2", self.beta2, 0, 1 - 1e-9)
        require("optimizer.eps", self.eps, 0)
        require("optimizer.weight_decay", self.weight_decay, 0)
        if not self.clip > 0:
            raise ConfigError(f"optimizer.clip is {self.clip:g}; it must be above 0.")


@dataclass(frozen=True)
class EvaluateOptions:
    """Measuring on held-out text during pre-training."""

    every: int = 0
    """Steps between evaluations; 0: twenty in the run."""
    sequences: int = 512
    """Held-out sequences measured each time."""
    corpus: str | None = None
    """Another corpus folder to measure on; the training corpus's held-out part if not given."""

    def __post_init__(self) -> None:
        require("evaluate.every", self.every, 0)
        require("evaluate.sequences", self.sequences, 1)


@dataclass(frozen=True)
class CheckpointOptions:
    """Saving the training state."""

    minutes: float = 5.0
    """Minutes between checkpoints."""
    keep: int = 2
    """Newest checkpoints kept."""

    def __post_init__(self) -> None:
        require("checkpoint.minutes", self.minutes, 0)
        require("checkpoint.keep", self.keep, 1)


@dataclass(frozen=True)
class PretrainConfig:
    """Pre-train an encoder: masked LM and next sentence (Devlin et al. 2019, section 3.1)."""

    corpus: str = free("")
    """Corpus folder, as `bothways corpus` writes it."""
    run: str = free("")
    """Run folder; running the same command again continues there."""
    start: str | None = free(None)
    """Model folder to continue from, instead of new weights. Its content must match to continue a
    run; its place may change."""
    model: SizeOptions = field(default_factory=SizeOptions)
    """Size of the encoder (ignored with --start)."""
    clock: ClockOptions = field(default_factory=ClockOptions)
    """Length of the run."""
    phases: tuple[Phase, ...] = (
        Phase(length=128, share=0.9, batch=256, micro_batch=64),
        Phase(length=512, share=0.1, batch=256, micro_batch=16),
    )
    """Lengths in the order trained (Appendix A.2: 90 % of the steps at 128, the rest at 512)."""
    pairs: PairOptions = field(default_factory=PairOptions)
    """Segment pairs."""
    masking: MaskOptions = field(default_factory=MaskOptions)
    """Masked-LM targets."""
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    """Optimizer and schedule."""
    seed: int = 0
    """Seed of everything drawn."""
    precision: Literal["auto", "bf16", "fp32"] = numerics("auto")
    """Arithmetic of the layers; auto takes bf16 where a probe finds it fast."""
    threads: int = numerics(0)
    """CPU threads; 0: one per core."""
    evaluate: EvaluateOptions = field(default_factory=EvaluateOptions, metadata={"kind": "free"})
    """Held-out evaluation."""
    checkpoint: CheckpointOptions = field(
        default_factory=CheckpointOptions, metadata={"kind": "free"}
    )
    """Checkpoints."""
    log_every: int = free(0)
    """Steps between records in metrics.jsonl; 0: two hundred in the run."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise ConfigError("phases is empty; give at least one, such as [{length: 128}].")
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1) > 1e-6:
            raise ConfigError(f"phases: the shares add up to {total:g}; they must add up to 1.")
        longest = max(phase.length for phase in self.phases)
        if self.start is None and longest > self.model.positions:
            raise ConfigError(
                f"phases: length {longest} is over model.positions, {self.model.positions}; "
                "shorten the phase or give the model more positions."
            )
        require("log_every", self.log_every, 0)


# ------------------------------------------------------------------------------------ fine-tuning


@dataclass(frozen=True)
class TaskOptions:
    """Labelled data: files with named columns, and what to predict."""

    name: str = "task"
    """Name for reports."""
    train: str = free("")
    """Training file (.tsv or .jsonl)."""
    dev: str = free("")
    """File to measure on."""
    test: str | None = free(None)
    """File to predict; needs no labels."""
    text_a: str = "sentence"
    """Column of the (first) text. In a file without a header: its number, from 0."""
    text_b: str | None = None
    """Column of the second text, for pairs."""
    label: str = "label"
    """Column of the label, or of the score for regression."""
    kind: Literal["classification", "regression"] = "classification"
    """What the label is."""
    labels: tuple[str, ...] = ()
    """The labels in order; found in the training file, sorted, if not given."""
    metrics: tuple[str, ...] = ()
    """accuracy, f1, matthews, pearson, spearman; the first is the main one; by kind if
    not given."""
    header: bool = True
    """TSV files start with a line of column names."""


@dataclass(frozen=True)
class FinetuneConfig:
    """Fine-tune an encoder on single sentences or sentence pairs (Devlin et al. 2019, 4.1)."""

    task: TaskOptions = field(default_factory=TaskOptions)
    """The data and what to predict."""
    model: str = free("")
    """Model folder to start from."""
    run: str = free("")
    """Run folder; running the same command again continues there."""
    from_scratch: bool = False
    """Start from random weights of the model's shape, to compare pre-training with."""
    epochs: int = 3
    """Passes over the training file."""
    batch: int = 32
    """Examples of a step."""
    length: int = 128
    """Longest sequence in tokens; the longer text of a pair is cut first, and what was cut is
    reported."""
    optimizer: OptimizerOptions = field(
        default_factory=lambda: OptimizerOptions(lr=2e-5, warmup=0.1, bias_correction=True)
    )
    """Optimizer and schedule."""
    dropout: float | None = None
    """Dropout everywhere while fine-tuning (attention and the new head included); the model's own
    if not given."""
    seeds: tuple[int, ...] = free((0,))
    """One run for each seed (data order, new head, dropout). Seeds may be added to a run folder
    later; those finished are kept."""
    precision: Literal["auto", "bf16", "fp32"] = numerics("auto")
    """Arithmetic of the layers; auto takes bf16 where a probe finds it fast."""
    threads: int = numerics(0)
    """CPU threads; 0: one per core."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds is {list(self.seeds)}; give at least one, each once.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; it must be in [0, 1).")


# ------------------------------------------------------------------------ fingerprints and kinds


def to_dict(config: Any) -> dict[str, Any]:
    """A config dataclass as plain JSON-able dictionaries and lists."""
    value: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return value


def recipe_fields(config: Any, prefix: str = "") -> dict[str, Any]:
    """The fields that must match to continue a run, flattened to dotted names."""
    flat: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        if item.metadata.get("kind", "recipe") != "recipe":
            continue
        name, value = prefix + item.name, getattr(config, item.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            flat.update(recipe_fields(value, f"{name}."))
        else:
            flat[name] = to_dict_value(value)
    return flat


def to_dict_value(value: Any) -> Any:
    """A field's value as plain JSON-able data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, tuple):
        return [to_dict_value(item) for item in value]
    return value


def fingerprint(config: Any) -> str:
    """A short digest of a config's recipe fields."""
    return digest(recipe_fields(config))


def digest(value: Any) -> str:
    """A short digest of JSON-able data."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
