"""Options of fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bothways.config.fields import free, numerics, require
from bothways.config.training import OptimizerOptions
from bothways.errors import ConfigError


@dataclass(frozen=True)
class SpanOptions:
    """Questions whose answers are passages' own words (SQuAD 1.1 and 2.0)."""

    stride: int = 128
    """Pieces of the passage from the start of a window to that of the next."""
    query_length: int = 64
    """Longest question in tokens; the rest is cut and reported."""
    answer_length: int = 30
    """Longest answer in tokens."""
    n_best: int = 20
    """Answers kept for each question, with probabilities."""
    no_answer: bool | None = None
    """Questions may have no answer (SQuAD 2.0); by whether the training file has such questions, if
    not given."""
    tune: bool = True
    """Choose the threshold on dev, so that F1 there is highest."""
    threshold: float = 0.0
    """No answer is given where the score of none is more than this above the best answer's. With
    tune, what dev says takes its place."""
    misaligned: Literal["skip", "search", "error"] = "skip"
    """A training answer that is not where answer_start says: passed over in training, looked for
    nearest to that place, or refused. The first two are reported."""
    convention: Literal["squad", "korean"] = "squad"
    """How answers are compared: by words, without English articles, as SQuAD does; or by
    characters, as KorQuAD does."""

    def __post_init__(self) -> None:
        for name in ("stride", "query_length", "answer_length", "n_best"):
            require(f"task.spans.{name}", getattr(self, name), 1)


@dataclass(frozen=True)
class TaskOptions:
    """Labelled data: files with named columns, and what to predict."""

    name: str = "task"
    """Name for reports."""
    train: str = free("")
    """Training file (.tsv or .jsonl; for spans SQuAD's .json)."""
    dev: str = free("")
    """File to measure on."""
    test: str | None = free(None)
    """File to predict; needs no labels."""
    text_a: str = "sentence"
    """Column of the (first) text. In a file without a header: its number, from 0."""
    text_b: str | None = None
    """Column of the second text, for pairs."""
    label: str = "label"
    """Column of the label, or of the score for regression."""
    kind: Literal["classification", "regression", "spans"] = "classification"
    """What is predicted: a label, a score, or a question's answer within a passage."""
    labels: tuple[str, ...] = ()
    """The labels in order; found in the training file, sorted, if not given."""
    metrics: tuple[str, ...] = ()
    """accuracy, f1, matthews, pearson, spearman; for spans f1, exact_match, no_answer_precision,
    no_answer_recall. The first is the main one; by kind if not given."""
    header: bool = True
    """TSV files start with a line of column names."""
    spans: SpanOptions = field(default_factory=SpanOptions)
    """For the kind spans."""


@dataclass(frozen=True)
class FinetuneConfig:
    """Fine-tune an encoder on a task (Devlin et al. 2019, section 4)."""

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
    length: int = 0
    """Longest sequence in tokens; 0: 128, and for spans 384. The longer text of a pair is cut
    first, and what was cut is reported; a longer passage is read in windows."""
    optimizer: OptimizerOptions = field(
        default_factory=lambda: OptimizerOptions(lr=2e-5, warmup=0.1, bias_correction=True)
    )
    """Optimizer and schedule."""
    dropout: float | None = None
    """Dropout everywhere while fine-tuning (attention and the new head included); the model's own
    if not given."""
    head: Literal["auto", "keep", "new"] = "auto"
    """The task head: go on with that of the model folder, which was trained on the same kind and
    labels, or draw a new one. auto keeps it for spans (other data first, then these), and not where
    equal labels may mean something else."""
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
        if not self.length:
            object.__setattr__(self, "length", 384 if self.task.kind == "spans" else 128)
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds is {list(self.seeds)}; give at least one, each once.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; it must be in [0, 1).")
