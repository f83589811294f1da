"""Options of `bothways demo`."""

from __future__ import annotations

from dataclasses import dataclass

from bothways.errors import ConfigError


@dataclass(frozen=True)
class DemoConfig:
    """Go from raw text to a fine-tuned BERT on this machine, without downloading anything."""

    out: str = "demo-out"
    """Folder to write everything to."""
    minutes: float = 7.0
    """Target duration of the whole demonstration in minutes. It is exceeded by short ones, because
    fine-tuning takes as long whatever is given: on two cores three minutes with fast bf16, five
    to six without."""
    seeds: int = 3
    """Fine-tuning runs per starting point: pre-trained here, random weights, and the bundled
    model."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        if self.minutes <= 0:
            raise ConfigError(f"minutes is {self.minutes:g}; it must be above 0.")
        if self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}; it must be at least 1.")
