"""Options of `bothways pretrain` and `bothways corpus show`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar, Literal

from bothways.config.fields import Options, flat, free, numerics, require
from bothways.errors import ConfigError
from bothways.families.config import ModelConfig
from bothways.families.options import SizeOptions
from bothways.training.options import (
    ClockOptions,
    MaskKind,
    OptimizerOptions,
    PairKind,
    Phase,
    SavingOptions,
    TrainingOptions,
)

OBJECTIVE = ("masked",)
"""BERT's; see :data:`bothways.objectives.kinds.OBJECTIVES`."""


@dataclass(frozen=True)
class PairOptions(Options):
    """The segments of a sequence, and the second loss on pairs of them, if any."""

    kind: PairKind = "next"
    """What follows what in a sequence. next: next sentence prediction, does segment B follow A
    (BERT). order: sentence order
    prediction, are two consecutive segments swapped (ALBERT). full: sentences packed up to the
    length across documents, no second loss (RoBERTa). single: as full, but within a document, for
    short unrelated texts (in a corpus built with `--single-sentence keep`)."""
    short: float = 0.1
    """Fraction of documents whose sequences get a random, shorter target length (next, order)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("pairs_short", self.short, 0, 1)


@dataclass(frozen=True)
class MaskOptions(Options):
    """Which tokens are prediction targets, and what the encoder sees in their place."""

    rate: float = 0.15
    """Fraction of a sequence's tokens to predict. Special tokens count towards the length but are
    never selected."""
    mask: float = 0.8
    """Fraction of the selected tokens replaced by [MASK]."""
    random: float = 0.1
    """Fraction of the selected tokens replaced by a random token; the rest stay unchanged."""
    kind: MaskKind = "pieces"
    """Unit of selection: single pieces, or all pieces of a word together (whole word masking)."""
    segmented: bool = False
    """For kind words: the text was segmented, with spaces between words in every script. Otherwise
    each piece of a script without spaces (kana, Thai, ...) counts as a word."""
    duplicates: int = 0
    """Distinct epochs of pairs and masks to draw and cycle through (the original's dupe_factor:
    10); 0: draw every epoch afresh."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate < 1:
            raise ConfigError(f"masking_rate is {self.rate}; it must be in (0, 1).")
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1 + 1e-9:
            raise ConfigError(
                f"masking_mask {self.mask} and masking_random {self.random} must not be negative "
                "and must add up to at most 1."
            )
        require("masking_duplicates", self.duplicates, 0)


@dataclass(frozen=True)
class EvaluateOptions(Options):
    """Evaluation on held-out text during pre-training."""

    every: int = 0
    """Steps between evaluations; 0: twenty evaluations over the run, or as many as take a fifth of
    its minutes, and one at least."""
    sequences: int = 512
    """Number of held-out sequences per evaluation."""
    corpus: str | None = None
    """Corpus folder to evaluate on. Default: the held-out split of the training corpus."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("evaluate_every", self.every, 0)
        require("evaluate_sequences", self.sequences, 1)


@dataclass(frozen=True)
class CheckpointOptions(SavingOptions):
    """Checkpoints of pre-training."""

    keep: int = 2
    """Number of most recent checkpoints to keep."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("checkpoint_keep", self.keep, 1)


@dataclass(frozen=True)
class PretrainConfig(TrainingOptions):
    """Pre-train an encoder on raw text: it learns to fill in hidden words, and whether one text
    follows another (masked LM and next sentence prediction, Devlin et al. 2019, section 3.1), or
    variants of these. A recipe sets all options at once."""

    recipes_by_name: ClassVar[bool] = True
    listed = MappingProxyType(
        {
            "data": ("corpus", "run", "start"),
            "network": (
                *("family", "size", "layers", "hidden", "heads", "positions", "dropout", "init"),
            ),
            "length": ("minutes", "steps", "tokens", "phases"),
            "objective": ("objective", "masking_rate", "masking_kind", "pairs_kind"),
            "optimizer": (
                *("optimizer", "lr", "schedule", "warmup", "weight_decay", "bias_correction"),
            ),
            "run": ("seed", "evaluate_every", "checkpoint_minutes", "snapshots"),
            "machine": ("device", "precision", "threads", "recompute", "parallel"),
        }
    )
    needed: ClassVar[tuple[str, ...]] = ("corpus",)

    corpus: str = free("")
    """Corpus folder, as written by `bothways corpus`."""
    run: str = free("")
    """Run folder to write; running the same command again resumes it. Default: a folder in runs,
    named after options and corpus."""
    start: str | None = free(None)
    """Model to continue pre-training from: a folder, mini-en (bundled), or a name on the Hugging
    Face Hub. Default: new weights. To resume a run, the model must be the same, wherever it is."""
    model: SizeOptions = flat(SizeOptions)
    """Size of a new encoder. With --start only the dropout probabilities are used."""
    clock: ClockOptions = flat(ClockOptions)
    """Length of training (give exactly one)."""
    phases: tuple[Phase, ...] = (
        Phase(length=128, share=0.9, batch=256, micro_batch=64),
        Phase(length=512, share=0.1, batch=256, micro_batch=16),
    )
    """Sequence length and batch size, in one phase or several, in order: '[{length: 64, batch:
    32}]'. Default: as in the paper's Appendix A.2, 90 % of the steps at length 128, the rest at
    512, in batches of 256."""
    pairs: PairOptions = field(default_factory=PairOptions)
    """Segments of a sequence and the second loss."""
    masking: MaskOptions = field(default_factory=MaskOptions)
    """Prediction targets of the language model."""
    objective: tuple[str, ...] = OBJECTIVE
    """Objective, then its options as NAME=VALUE: masked (masked LM, and for pairs next and order
    their loss, times pairs_weight), left_to_right, replaced (ELECTRA; weight, size, share), or
    MODULE:CLASS of your own."""
    optimizer: OptimizerOptions = flat(OptimizerOptions)
    """Optimizer and learning rate schedule."""
    seed: int = 0
    """Random seed."""
    parallel: Literal["ddp", "fsdp"] = numerics("ddp")
    """How torchrun processes share the model. ddp: replicates the weights. fsdp: shards weights,
    gradients and optimizer state."""
    evaluate: EvaluateOptions = field(default_factory=EvaluateOptions, metadata={"kind": "free"})
    """Held-out evaluation."""
    checkpoint: CheckpointOptions = field(
        default_factory=CheckpointOptions, metadata={"kind": "free"}
    )
    """Checkpoints."""
    snapshots: tuple[int, ...] = free(())
    """Steps after which to save a copy of the model in RUN/snapshots/STEP, such as 1000 2000 4000.
    Does not affect the run."""
    log_every: int = free(0)
    """Steps between records in metrics.jsonl; 0: two hundred records over the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.phases:
            raise ConfigError("phases is empty; give at least one, such as [{length: 128}].")
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1) > 1e-6:
            raise ConfigError(f"phases: the shares add up to {total:g}; they must add up to 1.")
        longest = max(phase.length for phase in self.phases)
        if self.start is None and longest > self.model.positions:
            raise ConfigError(
                f"phases: length {longest} exceeds positions, {self.model.positions}; "
                "shorten the phase or give the model more positions."
            )
        require("log_every", self.log_every, 0)
        require("snapshots", min(self.snapshots, default=1), 1)
        if len(set(self.snapshots)) < len(self.snapshots):
            raise ConfigError(f"snapshots is {list(self.snapshots)}; give each step once.")

    def resolved(self) -> PretrainConfig:
        """See :meth:`Options.resolved`: the dropout probabilities of a new encoder. With ``start``
        they follow from its folder."""
        if self.start is not None:
            return self
        shape = self.shape(vocab_size=1)
        dropouts = shape.dropout, shape.attention_dropout
        return replace(self, model=self.model.with_dropouts(*dropouts))

    def shape(self, vocab_size: int, *, left_to_right: bool = False) -> ModelConfig:
        """The architecture of a new encoder for a vocabulary of this size."""
        return self.model.resolve(vocab_size, left_to_right=left_to_right)


@dataclass(frozen=True)
class ShowConfig(Options):
    """Print training examples as pre-training will see them: which words are hidden or replaced,
    and which texts follow one another."""

    listed = MappingProxyType(
        {
            "options": (
                *("instances", "start", "split", "length", "masking_rate", "masking_kind"),
                *("pairs_kind", "objective", "seed"),
            )
        }
    )

    folder: str
    """Corpus folder, as written by `bothways corpus build`."""
    instances: int = 5
    """Number of training examples (sequences of one or two texts) to print, in training order."""
    start: int = 0
    """Index of the first example, from 0."""
    split: Literal["train", "heldout"] = "train"
    """Split of the corpus."""
    length: int = 128
    """Sequence length in tokens, including [CLS] and [SEP]."""
    pairs: PairOptions = field(default_factory=PairOptions)
    """Segments of a sequence and the second loss."""
    masking: MaskOptions = field(default_factory=MaskOptions)
    """Prediction targets of the language model."""
    objective: tuple[str, ...] = OBJECTIVE
    """Objective, as for `bothways pretrain`; it decides the targets."""
    seed: int = 0
    """Random seed; with the seed of a run, these are the first examples it reads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("instances", self.instances, 1)
        require("start", self.start, 0)
        require("length", self.length, 8)
