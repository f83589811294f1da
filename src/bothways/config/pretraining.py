"""Options of pre-training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bothways.config.fields import free, numerics, require
from bothways.config.model import ModelConfig, SizeOptions
from bothways.config.training import OptimizerOptions
from bothways.errors import ConfigError


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
    """Tokens of a sequence, [CLS] and [SEP] included."""
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


PairKind = Literal["next", "order", "full", "single"]
MaskKind = Literal["pieces", "words", "left_to_right"]


@dataclass(frozen=True)
class PairOptions:
    """What a sequence is made of, and whether there is a second loss on pairs of segments."""

    kind: PairKind = "next"
    """next: two segments, does B follow A (the paper's). order: two in a row, have they changed
    places (ALBERT's). full: whole sentences up to the length, over document borders, no second loss
    (RoBERTa's). single: the same within a document, as for unrelated short texts."""
    short: float = 0.1
    """Share of documents cut to a random shorter target length (next, order)."""
    random_next: float = 0.5
    """Share of pairs whose second segment comes from another document (next)."""

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
    kind: MaskKind = "pieces"
    """What is chosen: single pieces, or all pieces of a word together. left_to_right is no masked
    LM: every token predicts the next one and sees none after itself; so does the model in all later
    use, and pairs.kind must be full or single."""
    segmented: bool = False
    """For words: a segmenter has put spaces between words in every script of the text. Otherwise
    each piece of a script without spaces (kana, Thai, ...) is a word of its own, but not in
    byte-bpe vocabularies, whose pieces may begin inside a letter."""
    duplicates: int = 0
    """Epochs drawn, which are then repeated, pairs and masks alike (the original has 10); 0: every
    epoch draws anew."""

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ConfigError(f"masking.rate is {self.rate}; it is a share in (0, 1).")
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1 + 1e-9:
            raise ConfigError("masking.mask and masking.random are shares of at most 1 together.")
        require("masking.duplicates", self.duplicates, 0)

    @property
    def left_to_right(self) -> bool:
        """No masked LM; the model is to see no token after the one it reads."""
        return self.kind == "left_to_right"


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
    """Pre-train an encoder: masked LM and next sentence (Devlin et al. 2019, section 3.1), or
    variants of them."""

    corpus: str = free("")
    """Corpus folder, as `bothways corpus` writes it."""
    run: str = free("")
    """Run folder; running the same command again continues there."""
    start: str | None = free(None)
    """Model folder (or name of a model that comes with bothways) to continue from, instead of new
    weights. Its content must match to continue a run; its place may change."""
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
    """Segments of a sequence."""
    masking: MaskOptions = field(default_factory=MaskOptions)
    """Targets of the language model."""
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    """Optimizer and schedule."""
    seed: int = 0
    """Seed of everything drawn."""
    device: Literal["auto", "cpu", "cuda"] = numerics("auto")
    """What computes; auto takes a GPU where torch sees one."""
    precision: Literal["auto", "bf16", "fp32"] = numerics("auto")
    """Arithmetic of the layers; auto takes bf16 where a probe finds it fast."""
    kernels: Literal["fast", "plain"] = numerics("fast")
    """Hand-written forms of attention, dropout, last layer and loss, or library operations alone:
    the same result up to rounding and dropout masks, for comparison."""
    threads: int = numerics(0)
    """CPU threads of each process; 0: one per core, divided among the processes of a machine."""
    parallel: Literal["ddp", "fsdp"] = numerics("ddp")
    """What several processes (torchrun) have: ddp, each all weights; fsdp, each a shard of weights,
    gradients and optimizer."""
    recompute: bool = free(False)
    """Keep only each layer's input for the backward pass and compute the layer again there: less
    memory, about a third more work, the same bits."""
    evaluate: EvaluateOptions = field(default_factory=EvaluateOptions, metadata={"kind": "free"})
    """Held-out evaluation."""
    checkpoint: CheckpointOptions = field(
        default_factory=CheckpointOptions, metadata={"kind": "free"}
    )
    """Checkpoints."""
    snapshots: tuple[int, ...] = free(())
    """Steps after which the model is kept in RUN/snapshots/STEP, such as 1000 2000 4000, for scores
    against steps; the run itself stays the same."""
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
        if self.masking.left_to_right and self.pairs.kind in ("next", "order"):
            raise ConfigError(
                f"masking.kind left_to_right with pairs.kind {self.pairs.kind}: the second loss "
                "reads [CLS], which left to right sees no other token; choose pairs.kind full or "
                "single."
            )
        require("log_every", self.log_every, 0)
        require("snapshots", min(self.snapshots, default=1), 1)
        if len(set(self.snapshots)) < len(self.snapshots):
            raise ConfigError(f"snapshots is {list(self.snapshots)}; give each step once.")

    def shape(self, vocab_size: int) -> ModelConfig:
        """The new network for a vocabulary of this many pieces."""
        return self.model.resolve(vocab_size, left_to_right=self.masking.left_to_right)


@dataclass(frozen=True)
class ShowConfig:
    """Print instances as pre-training would read them."""

    folder: str
    """Corpus folder, as `bothways corpus build` writes it."""
    instances: int = 5
    """How many, in the order of training."""
    start: int = 0
    """Instance to begin with, from 0."""
    split: Literal["train", "heldout"] = "train"
    """Part of the corpus."""
    length: int = 128
    """Tokens of a sequence, [CLS] and [SEP] included."""
    pairs: PairOptions = field(default_factory=PairOptions)
    """Segments of a sequence."""
    masking: MaskOptions = field(default_factory=MaskOptions)
    """Targets of the language model."""
    seed: int = 0
    """Seed of everything drawn; with a run's, the instances of its first phase."""

    def __post_init__(self) -> None:
        require("instances", self.instances, 1)
        require("start", self.start, 0)
        require("length", self.length, 8)
