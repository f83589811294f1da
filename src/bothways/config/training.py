"""Options that pre-training and fine-tuning share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.config.fields import require
from bothways.errors import ConfigError


@dataclass(frozen=True)
class OptimizerOptions:
    """BERT's Adam: decoupled weight decay, linear warm-up and decay, clipped gradients."""

    name: Literal["adam", "lamb"] = "adam"
    """adam: the paper's. lamb: each matrix moves in proportion to its own norm, for batches of
    thousands (You et al. 2020)."""
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
        if not self.eps > 0:  # an all-zero gradient would be 0 / 0
            raise ConfigError(f"optimizer.eps is {self.eps:g}; it must be above 0.")
        require("optimizer.weight_decay", self.weight_decay, 0)
        if not self.clip > 0:
            raise ConfigError(f"optimizer.clip is {self.clip:g}; it must be above 0.")
