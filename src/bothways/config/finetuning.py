"""Options of fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bothways.config.fields import free, numerics
from bothways.config.training import OptimizerOptions
from bothways.errors import ConfigError


@dataclass(frozen=True)
class TaskOptions:
    """Labelled data: files with named columns, and what to predict."""

    name: str = "task"
    """Name for reports."""
    train: str = free("")
    """Training file (.tsv, .csv or .jsonl)."""
    dev: str = free("")
    """File to measure on."""
    test: str | None = free(None)
    """File to predict; needs no labels."""
    text_a: str = "sentence"
    """Column of the (first) text. In a file without a header: its number, from 0."""
    text_b: str | None = None
    """Column of the second text, for pairs; for kind choice, of a text that begins each choice."""
    label: str = "label"
    """Column of the label, or of the score for regression, or of the right choice."""
    choices: tuple[str, ...] = ()
    """Columns of the choices, for kind choice; or one column that holds them as a JSON list."""
    kind: Literal["classification", "regression", "choice"] = "classification"
    """What the label is: a class, a score, or which of some texts continues the first."""
    labels: tuple[str, ...] = ()
    """The labels in order; found in the training file, sorted, if not given. For kind choice: how
    the label column names the choices, if not 0, 1, 2 ..."""
    metrics: tuple[str, ...] = ()
    """accuracy, f1, matthews, pearson, spearman; the first is the main one; by kind if
    not given."""
    header: bool = True
    """TSV and CSV files start with a line of column names."""


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
    kernels: Literal["fast", "plain"] = numerics("fast")
    """Hand-written forms of attention, dropout, last layer and loss, or library operations alone:
    the same result up to rounding and dropout masks, for comparison."""
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
