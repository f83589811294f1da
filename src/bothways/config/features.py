"""Options of `bothways features`, the paper's feature-based approach."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bothways.config.compute import Precision
from bothways.config.fields import Options, free, numerics, require
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
class FeaturesConfig(Options):
    """Train a two-layer BiLSTM tagger on features from a frozen encoder (Devlin et al. 2019,
    section 5.3). The features are computed once."""

    task: TaskOptions = field(default_factory=lambda: TaskOptions(kind="tagging"))
    """Data of kind tagging (the test file is scored, so it needs tags; a file of task.measure takes
    its place)."""
    data: str = free("")
    """Folder that the task's file names are relative to."""
    model: str = free(DEFAULT)
    """Model folder with the encoder, or the name of a bundled model."""
    run: str = free("")
    """Run folder to write; running the same command again resumes it."""
    layers: tuple[LayerChoice, ...] = free(LAYER_CHOICES)
    """Layers to use as features; each choice is trained separately. The rows of the paper's
    Table 7: embeddings, second-to-last, last, sum-last-four and sum-all (weighted sums with learned
    weights), concat-last-four. More can be added to a run folder later."""
    hidden: int = 768
    """BiLSTM hidden size per direction."""
    epochs: int = 10
    """Passes over the training data."""
    batch: int = 32
    """Batch size in sentences."""
    length: int = 128
    """Maximum sequence length in tokens; context from the document fills what the sentence leaves
    free."""
    optimizer: OptimizerOptions = field(
        default_factory=lambda: OptimizerOptions(
            lr=1e-3, warmup=0.1, weight_decay=0.0, bias_correction=True
        )
    )
    """Optimizer and learning rate schedule of the BiLSTM."""
    dropout: float = 0.1
    """Dropout probability between the BiLSTM layers and before the output layer."""
    seeds: tuple[int, ...] = free((0,))
    """Random seeds (data order, weights, dropout); one run per seed and choice of layers."""
    precision: Precision = numerics("auto")
    """Compute precision of the encoder; auto uses bf16 if the GPU supports it or a short benchmark
    on the CPU finds it faster. Features are stored in 16 bits; the BiLSTM computes in fp32."""
    threads: int = numerics(0)
    """CPU threads; 0: one per core."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("hidden", "epochs", "batch"):
            require(name, getattr(self, name), 1)
        require("dropout", self.dropout, 0, 1 - 1e-9)
        if self.optimizer.lr == 0:
            raise ConfigError("optimizer.lr is 0; features needs a rate, such as 1e-3.")
        if self.task.kind != "tagging":
            raise ConfigError(
                f"task.kind is {self.task.kind!r}; feature extraction supports only tagging."
            )
        if len(tests := [*self.task.measure, *filter(None, [self.task.test])]) > 1:
            raise ConfigError(
                f"task.measure and task.test name {len(tests)} files; features measures dev and "
                "one more."
            )
        for name, values in (("seeds", self.seeds), ("layers", self.layers)):
            if not values or len(set(values)) < len(values):
                shown = ", ".join(map(str, values))
                raise ConfigError(f"{name} is [{shown}]; give at least one, each once.")

    def located(self) -> FeaturesConfig:
        """The same config with the task's file names resolved against ``data``, and one test
        file."""
        task, folder = self.task, Path(self.data)
        test = next(iter([*task.measure, *filter(None, [task.test])]), None)
        train, dev = (str(folder / name) if name else "" for name in (task.train, task.dev))
        found = replace(task, train=train, dev=dev, test=test and str(folder / test), measure=())
        return replace(self, data="", task=found)
