"""How weights are computed and trained: device, precision, optimizer, schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.config.fields import (
    Options,
    alternative,
    alternatives,
    free,
    numerics,
    refuse_several,
    require,
)
from bothways.errors import ConfigError

# --------------------------------------------------------------------------------
# Types of the options that choose where and in which precision to compute.

DeviceName = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "bf16", "fp32"]
PredictPrecision = Literal["auto", "fp32", "bf16", "int8"]


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Where to compute."""

    device: DeviceName = "auto"
    """Device; auto uses a GPU if torch finds one."""


@dataclass(frozen=True)
class SavingOptions(Options):
    """Checkpoints of the training state."""

    minutes: float = 5.0
    """Minutes between checkpoints. After an interruption training goes on from the latest one,
    with the same result."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("checkpoint_minutes", self.minutes, 0)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Options):
    """Where and how weights are trained."""

    device: DeviceName = numerics("auto")
    """Device; auto uses a GPU if torch finds one."""
    precision: Precision = numerics("auto")
    """Compute precision of training; auto uses bf16 if the GPU supports it or a short benchmark on
    the CPU finds it faster."""
    kernels: Literal["fast", "plain"] = numerics("fast")
    """fast: optimized attention, dropout, last layer and loss. plain: torch operations only, for
    comparison. Results agree up to rounding and dropout masks."""
    threads: int = numerics(0)
    """CPU threads per process; 0: one per core, divided among the processes of a machine."""
    recompute: bool = free(False)
    """Activation checkpointing: recompute each layer in the backward pass. Saves memory for about a
    third more computation; the result is bit-identical."""


# --------------------------------------------------------------------------------
# Clock and phases of a training.


@dataclass(frozen=True)
class ClockOptions(Options):
    """Length of training: exactly one of steps, tokens and minutes."""

    steps: int | None = alternative(None)
    """Length of training in optimizer steps."""
    tokens: int | None = alternative(None)
    """Length of training in tokens, without padding; converted to steps."""
    minutes: float | None = alternative(None)
    """Length of training in minutes on this machine; converted to steps by a short benchmark. With
    a corpus and minutes alone, a recipe is chosen by them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_several(self)
        for name in alternatives(self):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} is {value}; it must be above 0.")


@dataclass(frozen=True)
class Phase(Options):
    """A phase of pre-training, at one sequence length."""

    length: int = 128
    """Sequence length in tokens, including [CLS] and [SEP]."""
    share: float = 1.0
    """Fraction of all steps spent in this phase."""
    batch: int = 256
    """Batch size in sequences."""
    micro_batch: int = 64
    """Maximum number of sequences in one forward and backward pass; gradients are accumulated over
    the micro-batches of a step. Lower it if memory runs out."""

    def __post_init__(self) -> None:
        require("phases.length", self.length, 8)
        require("phases.share", self.share, 0, 1)
        require("phases.micro_batch", self.micro_batch, 1)
        require("phases.batch", self.batch, 1)


PairKind = Literal["next", "order", "full", "single"]
MaskKind = Literal["pieces", "words"]


# --------------------------------------------------------------------------------
# Options that pre-training and fine-tuning share.

LARGEST_UNCORRECTED_BETA = 0.999995
"""For larger betas a counter of steps in fp32 cannot be started where Adam's bias correction is
1."""


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """BERT's Adam: decoupled weight decay, linear warm-up and decay, clipped gradients."""

    optimizer: Literal["adam", "radam", "lamb", "sgd", "adafactor", "adamax"] = "adam"
    """Optimizer. adam: the paper's. lamb: scales each matrix's update by its norm, for batches of
    thousands (You et al. 2020). radam, sgd (momentum beta1), adafactor and adamax are torch's."""
    lr: float = 1e-4
    """Peak learning rate."""
    schedule: Literal["linear", "inverse_sqrt", "cosine", "constant", "trapezoid"] = "linear"
    """Learning rate after warm-up. linear: from (1 - warmup) times the peak to 0, as in the
    original implementation. trapezoid: constant, then linear to 0 in the last fifth of the
    steps."""
    warmup: float = 0.01
    """Fraction of all steps spent in linear warm-up, from 1/n of the peak to the peak in n
    steps."""
    layer_decay: float = 1.0
    """Factor of the learning rate from each layer to the one below it; 1: the same rate for all."""
    unfreeze: float = 0.0
    """Fraction of all steps in which layers are unfrozen one by one from the top (ULMFiT); 0: all
    are trained from the start."""
    beta1: float = 0.9
    """Decay rate of the running mean of gradients."""
    beta2: float = 0.999
    """Decay rate of the running mean of squared gradients."""
    eps: float = 1e-6
    """Added to the denominator for numerical stability."""
    weight_decay: float = 0.01
    """Weight decay, decoupled but for sgd and adamax; LayerNorm parameters and biases are
    excluded."""
    bias_correction: bool = False
    """Bias correction of adam's and lamb's running means (the original implementation has none)."""
    clip: float = 1.0
    """Gradient clipping: maximum global norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("lr", self.lr, 0)
        require("warmup", self.warmup, 0, 1)
        require("layer_decay", self.layer_decay, 1e-6, 1)
        require("unfreeze", self.unfreeze, 0, 1)
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            require(name, beta, 0, 1 - 1e-9)
            if beta > LARGEST_UNCORRECTED_BETA and not self.bias_correction:
                raise ConfigError(
                    f"{name} is {beta:.9g}; without bias correction it may be at most "
                    f"{LARGEST_UNCORRECTED_BETA}. Lower it, or pass --bias-correction "
                    "true."
                )
        if not self.eps > 0:  # an all-zero gradient would be 0 / 0
            raise ConfigError(f"eps is {self.eps:g}; it must be above 0.")
        require("weight_decay", self.weight_decay, 0)
        if not self.clip > 0:
            raise ConfigError(f"clip is {self.clip:g}; it must be above 0.")
