"""Options of `bothways plan`."""

from __future__ import annotations

from dataclasses import dataclass

from bothways.config.fields import free, require
from bothways.pretraining.options import PretrainConfig


@dataclass(frozen=True)
class PlanConfig(PretrainConfig):
    """Estimate what a pre-training run needs: weights, memory, FLOPs, disk, and hours on this
    machine.

    Takes the options of `bothways pretrain`. To measure the speed it trains a few steps of a
    network of the requested width with at most four layers. Without a corpus, all sequences are
    assumed to have full length.
    """

    vocab_size: int = free(30_522)
    """Vocabulary size, if neither a corpus nor --start determines it."""
    json: str | None = free(None)
    """JSON file to write the estimate to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("vocab_size", self.vocab_size, 64)
