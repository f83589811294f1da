"""Options of a forecast."""

from __future__ import annotations

from dataclasses import dataclass

from bothways.config.fields import free, require
from bothways.config.pretraining import PretrainConfig


@dataclass(frozen=True)
class PlanConfig(PretrainConfig):
    """What a pre-training run needs: weights, memory, operations, disk, and hours on this machine.

    Takes what `bothways pretrain` takes, and trains a few steps of a network of the asked width and
    at most four layers to find the speed. Without a corpus all sequences are taken to be full.
    """

    vocab_size: int = free(30_522)
    """Pieces of the vocabulary, where neither a corpus nor --start tells."""
    json: str | None = free(None)
    """JSON file to write the forecast to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("vocab_size", self.vocab_size, 64)
