"""Options of the feature-based approach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bothways.config.fields import free, numerics, require
from bothways.config.finetuning import TaskOptions
from bothways.config.training import OptimizerOptions
from bothways.errors import ConfigError
from bothways.shipped import DEFAULT

LayerChoice = Literal[
    "embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all"
]
LAYER_CHOICES: tuple[LayerChoice, ...] = (
    "embeddings",
    "second-to-last",
    "last",
    "sum-last-four",
    "concat-last-four",
    "sum-all",
)


@dataclass(frozen=True)
class FeaturesConfig:
    """Tag words by the layers of an encoder that is not trained (Devlin et al. 2019, 5.3): a
    BiLSTM of two layers on features that are computed once."""

    task: TaskOptions = field(default_factory=lambda: TaskOptions(kind="tagging"))
    """The data; of the kind tagging. A test file is measured, so it needs tags."""
    model: str = free(DEFAULT)
    """Model folder with the encoder, or the name of a model that comes with bothways."""
    run: str = free("")
    """Run folder; running the same command again continues there."""
    layers: tuple[LayerChoice, ...] = free(LAYER_CHOICES)
    """Which layers are read, the rows of the paper's Table 7: embeddings (the layer below the
    first), second-to-last, last, sum-last-four and sum-all (with learned weights),
    concat-last-four. More may be asked for in the same run folder later."""
    hidden: int = 768
    """Units of each direction of the BiLSTM."""
    epochs: int = 10
    """Passes over the training file."""
    batch: int = 32
    """Sentences of a step."""
    length: int = 128
    """Window in tokens; the document fills it around each sentence."""
    optimizer: OptimizerOptions = field(
        default_factory=lambda: OptimizerOptions(
            lr=1e-3, warmup=0.1, weight_decay=0.0, bias_correction=True
        )
    )
    """Optimizer and schedule of the BiLSTM."""
    dropout: float = 0.1
    """Dropout between the BiLSTM's layers and before the output layer."""
    seeds: tuple[int, ...] = free((0,))
    """One run for each seed (data order, weights, dropout), of each choice of layers."""
    precision: Literal["auto", "bf16", "fp32"] = numerics("auto")
    """Arithmetic of the encoder; auto takes bf16 where a probe finds it fast. Features are kept
    with 16 bits, the BiLSTM computes in fp32."""
    threads: int = numerics(0)
    """CPU threads; 0: one per core."""

    def __post_init__(self) -> None:
        for name in ("hidden", "epochs", "batch"):
            require(name, getattr(self, name), 1)
        require("dropout", self.dropout, 0, 1 - 1e-9)
        if self.task.kind != "tagging":
            raise ConfigError(f"task.kind is {self.task.kind!r}; features are for tagging.")
        for name, values in (("seeds", self.seeds), ("layers", self.layers)):
            if not values or len(set(values)) < len(values):
                shown = ", ".join(map(str, values))
                raise ConfigError(f"{name} is [{shown}]; give at least one, each once.")
