"""Options of fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bothways.config.fields import free, numerics, require
from bothways.config.training import OptimizerOptions
from bothways.errors import ConfigError


@dataclass(frozen=True)
class Reference:
    """A published score of a task."""

    model: str = ""
    """Which model, such as BERT-base."""
    metric: str = ""
    """The task's name of the metric."""
    score: float = 0.0
    """As printed: of 100."""
    split: str = "test"
    """What it was measured on: the name of a file of the task, without its ending."""
    source: str = ""
    """Publication and table."""


@dataclass(frozen=True)
class WindowOptions:
    """How texts longer than the encoder are read in windows (classification and regression)."""

    stride: int | None = None
    """Pieces from the start of a window to that of the next; half of a window's room if not
    given."""
    pooling: Literal["mean", "max", "first"] = "mean"
    """What stands for the text: the mean of the windows' outputs (logits or scores), the highest
    of each, or those of the first window."""

    def __post_init__(self) -> None:
        if self.stride is not None:
            require("task.windows.stride", self.stride, 1)


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
    measure: tuple[str, ...] = free(())
    """More labelled files to measure on at the end, such as MNLI's mismatched ones, or a test file
    with labels; nothing is chosen on them."""
    predict: tuple[str, ...] = free(())
    """More files to predict."""
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
    long: Literal["cut", "windows"] = "cut"
    """Texts beyond the length, in classification and regression: cut, or read in windows, each of
    which is trained on as an example of its own. What was done is reported."""
    windows: WindowOptions = field(default_factory=WindowOptions)
    """The windows."""
    header: bool = True
    """TSV and CSV files start with a line of column names."""
    columns: tuple[str, ...] = ()
    """Names of the columns of TSV files without such a line; a file whose first line holds the
    names that are needed has one (as CoLA's test file, unlike its others)."""
    broken: Literal["error", "skip"] = "error"
    """A labelled line that cannot be read (too few columns, no label): stop, or leave it out and
    count it."""
    submission: tuple[str, ...] = free(())
    """Names of the files that an evaluation server wants the predictions of test and predict in."""
    reference: tuple[Reference, ...] = free(())
    """Published scores, for tables."""
    notes: str = free("")
    """What one should know of the task."""


@dataclass(frozen=True)
class FinetuneConfig:
    """Fine-tune an encoder on single sentences or sentence pairs (Devlin et al. 2019, 4.1)."""

    task: TaskOptions = field(default_factory=TaskOptions)
    """The data and what to predict."""
    data: str = free("")
    """Folder that the task's file names are relative to."""
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
    reported. (--task.long windows cuts nothing.)"""
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

    def located(self) -> FinetuneConfig:
        """The same with the task's files where ``data`` says they are."""
        task, folder = self.task, Path(self.data)

        def find(name: str) -> str:
            return str(folder / name) if name and self.data else name

        found = replace(
            task,
            train=find(task.train),
            dev=find(task.dev),
            test=None if task.test is None else find(task.test),
            measure=tuple(map(find, task.measure)),
            predict=tuple(map(find, task.predict)),
        )
        return replace(self, data="", task=found)


@dataclass(frozen=True)
class GlueConfig:
    """Fine-tune on several declared tasks, one after the other, and make a table over them."""

    data: str
    """Folder with the tasks' folders (CoLA, SST-2 ...), as GLUE is distributed."""
    model: str
    """Model folder to start from."""
    run: str
    """Folder for a run folder of each task, the table and the submission; the same command again
    continues there."""
    tasks: tuple[str, ...] = ()
    """Declared tasks (`bothways tasks`) or files of the same form; if not given, those of GLUE that
    the data folder has."""
    seeds: tuple[int, ...] = (0,)
    """One model of each task for each seed."""
    epochs: int | None = None
    """Passes over each training file; what each task declares (3, as in the paper) if not given."""
    batch: int | None = None
    """Examples of a step; what each task declares (32) if not given."""
    lr: float | None = None
    """Peak learning rate; what each task declares (2e-5) if not given."""
    length: int | None = None
    """Longest sequence in tokens; what each task declares (128) if not given."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Arithmetic of the layers; auto takes bf16 where a probe finds it fast."""
    threads: int = 0
    """CPU threads; 0: one per core."""
