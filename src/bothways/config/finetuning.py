"""Options of fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from bothways.config.fields import free, numerics, require
from bothways.config.spans import SpanOptions
from bothways.config.tagging import TaggingOptions
from bothways.config.training import OptimizerOptions
from bothways.errors import ConfigError
from bothways.shipped import DEFAULT


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
    """Training file (.tsv, .csv or .jsonl; for tagging CoNLL columns, for spans SQuAD's .json)."""
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
    kind: Literal["classification", "regression", "choice", "tagging", "spans"] = "classification"
    """What is predicted: a class or a score of a text or pair, which of some texts continues the
    first, a tag for each word, or a question's answer within a passage."""
    labels: tuple[str, ...] = ()
    """The labels in order; found in the training file, sorted, if not given. For kind choice: how
    the label column names the choices, if not 0, 1, 2 ..."""
    metrics: tuple[str, ...] = ()
    """accuracy, f1, matthews, pearson, spearman; for tagging also precision, recall; for spans f1,
    exact_match, no_answer_precision, no_answer_recall. The first is the main one; by kind if not
    given."""
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
    tagging: TaggingOptions = field(default_factory=TaggingOptions)
    """CoNLL files, for the kind tagging."""
    spans: SpanOptions = field(default_factory=SpanOptions)
    """For the kind spans."""

    def __post_init__(self) -> None:
        if self.long == "windows" and self.kind not in ("classification", "regression"):
            raise ConfigError(
                f"task.long windows is for classification and regression, not for {self.kind}."
            )
        if self.submission and self.kind == "tagging":
            raise ConfigError(
                "task.submission names files with one prediction an example; tagging gives many."
            )


PAPER_GRID = {"lr": (5e-5, 3e-5, 2e-5), "batch": (16, 32), "epochs": (2, 3, 4)}
"""Devlin et al. 2019, Appendix A.3."""


@dataclass(frozen=True)
class SearchOptions:
    """Settings to try, every combination with every seed, and how one is chosen on dev."""

    paper: bool = False
    """The paper's grid (Appendix A.3): lr 5e-5 3e-5 2e-5, batch 16 32, epochs 2 3 4; what is given
    below takes the place of its values."""
    lr: tuple[float, ...] = ()
    """Peak learning rates to try, such as 5e-5 3e-5 2e-5; optimizer.lr alone if not given."""
    batch: tuple[int, ...] = ()
    """Batch sizes to try, such as 16 32; batch alone if not given."""
    epochs: tuple[int, ...] = ()
    """Numbers of epochs to try, such as 2 3 4; epochs alone if not given. Each is a run of its own,
    since the learning rate falls to 0 over a run's own length."""
    bias_correction: tuple[bool, ...] = ()
    """true false: with and without Adam's bias correction; optimizer.bias_correction alone if not
    given."""
    select: Literal["mean", "best"] = "mean"
    """The setting chosen on dev: with the highest mean over its seeds, or with the best single run,
    as in the paper. Both are reported."""

    def __post_init__(self) -> None:
        for name in ("lr", "batch", "epochs", "bias_correction"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(f"search.{name} is {list(values)}; give each value once.")
            for value in values:
                require(f"search.{name}", value, 0 if name in ("lr", "bias_correction") else 1)

    @property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """What is to be tried of each option; nothing where it is not searched."""
        paper: dict[str, tuple[Any, ...]] = PAPER_GRID if self.paper else {}
        names = ("lr", "batch", "epochs", "bias_correction")
        return {name: getattr(self, name) or paper.get(name, ()) for name in names}

    @property
    def asked(self) -> bool:
        """Something is to be searched."""
        return any(self.values.values())


SEARCHED = ("optimizer.lr", "batch", "epochs", "optimizer.bias_correction")
"""The recipe fields of fine-tuning that a search may vary."""


@dataclass(frozen=True)
class Restart:
    """What is drawn for one run of a setting.

    Attributes:
        seed: keys dropout, and whatever has no seed of its own.
        order: keys the order of the data; None: the seed does.
        head: keys new weights; None: the seed does.
    """

    seed: int
    order: int | None = None
    head: int | None = None

    @property
    def order_seed(self) -> int:
        """What keys the order of the data."""
        return self.seed if self.order is None else self.order

    @property
    def head_seed(self) -> int:
        """What keys new weights."""
        return self.seed if self.head is None else self.head

    @property
    def name(self) -> str:
        """For tables: ``seed 0``, or ``seed 0 order 1 head 2``."""
        parts = {"seed": self.seed, "order": self.order, "head": self.head}
        return " ".join(f"{name} {value}" for name, value in parts.items() if value is not None)

    @property
    def folder(self) -> str:
        """Its folder in the run folder: ``seed-0``, or ``seed-0-order-1-head-2``."""
        return self.name.replace(" ", "-")


@dataclass(frozen=True)
class FinetuneConfig:
    """Fine-tune an encoder on a task (Devlin et al. 2019, section 4)."""

    task: TaskOptions = field(default_factory=TaskOptions)
    """The data and what to predict."""
    data: str = free("")
    """Folder that the task's file names are relative to."""
    model: str = free(DEFAULT)
    """Model folder to start from, or the name of a model that comes with bothways."""
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
    first, and what was cut is reported; a longer passage is read in windows, and with --task.long
    windows any text."""
    optimizer: OptimizerOptions = field(
        default_factory=lambda: OptimizerOptions(lr=2e-5, warmup=0.1, bias_correction=True)
    )
    """Optimizer and schedule."""
    dropout: float | None = None
    """Dropout everywhere while fine-tuning (attention and the new head included); the model's own
    if not given."""
    lstm: int = 0
    """Units of each direction of a new BiLSTM of one layer between encoder and task head, in place
    of the pooler ("+ BiLSTM" in section 5.1), trained with everything; 0: none. transformers cannot
    load such models."""
    head: Literal["auto", "keep", "new"] = "auto"
    """The task head: go on with that of the model folder, which was trained on the same kind and
    labels, or draw a new one. auto keeps it for spans and choices (other data first, then these),
    and not where equal labels may mean something else."""
    seeds: tuple[int, ...] = free((0,))
    """One run for each seed (data order, new head, dropout). Seeds may be added to a run folder
    later; those finished are kept."""
    order_seeds: tuple[int, ...] = free(())
    """Seeds of the data order, each with every seed; each run's own seed if not given."""
    head_seeds: tuple[int, ...] = free(())
    """Seeds of the new head (and other new weights), each with every seed; each run's own seed if
    not given."""
    search: SearchOptions = field(default_factory=SearchOptions, metadata={"kind": "free"})
    """Settings to try, and how one is chosen; none are searched if none are given."""
    device: Literal["auto", "cpu", "cuda"] = numerics("auto")
    """What computes; auto takes a GPU where torch sees one."""
    precision: Literal["auto", "bf16", "fp32"] = numerics("auto")
    """Arithmetic of the layers; auto takes bf16 where a probe finds it fast."""
    kernels: Literal["fast", "plain"] = numerics("fast")
    """Hand-written forms of attention, dropout, last layer and loss, or library operations alone:
    the same result up to rounding and dropout masks, for comparison."""
    threads: int = numerics(0)
    """CPU threads of each process; 0: one per core, divided among the processes."""
    jobs: int = free(1)
    """Runs (seeds, settings of a search) trained at once, each in a process of its own with its
    own copy of model and data. On a CPU, small models on short texts gain more by it than by
    threads."""
    checkpoint_minutes: float = free(5.0)
    """Minutes between checkpoints of a run, from which it goes on after an interruption, with the
    same result. Each takes the place of the one before, and the last is removed at the end."""
    recompute: bool = free(False)
    """Keep only each layer's input for the backward pass and compute the layer again there: less
    memory, about a third more work, the same bits."""

    def __post_init__(self) -> None:
        if not self.length:
            object.__setattr__(self, "length", 384 if self.task.kind == "spans" else 128)
        for name in ("epochs", "batch", "jobs"):
            require(name, getattr(self, name), 1)
        if not self.seeds:
            raise ConfigError("seeds is []; give at least one, each once.")
        for name in ("seeds", "order_seeds", "head_seeds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} is {list(values)}; give at least one, each once.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; it must be in [0, 1).")
        require("lstm", self.lstm, 0)
        require("checkpoint_minutes", self.checkpoint_minutes, 0)

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """The runs of each setting: every seed with every seed of data order and new head."""
        orders, heads = self.order_seeds or (None,), self.head_seeds or (None,)
        return tuple(Restart(*seeds) for seeds in product(self.seeds, orders, heads))

    @property
    def setting(self) -> dict[str, Any]:
        """The values of what a search may vary."""
        return {
            "lr": self.optimizer.lr,
            "batch": self.batch,
            "epochs": self.epochs,
            "bias_correction": self.optimizer.bias_correction,
        }

    def settings(self) -> Iterator[FinetuneConfig]:
        """The configs of a search, one for each setting, with nothing more to search."""
        given = [self.search.values[name] or (now,) for name, now in self.setting.items()]
        for lr, batch, epochs, corrected in product(*given):
            optimizer = replace(self.optimizer, lr=lr, bias_correction=corrected)
            yield replace(
                self,
                batch=batch,
                epochs=epochs,
                optimizer=optimizer,
                search=SearchOptions(select=self.search.select),
            )

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
    run: str
    """Folder for a run folder of each task, the table and the submission; the same command again
    continues there."""
    model: str = DEFAULT
    """Model folder to start from, or the name of a model that comes with bothways."""
    tasks: tuple[str, ...] = ()
    """Declared tasks (`bothways tasks`) or files of the same form; if not given, those of GLUE that
    the data folder has."""
    seeds: tuple[int, ...] = ()
    """One model of each task for each seed; what each task declares (0) if not given."""
    epochs: int | None = None
    """Passes over each training file; what each task declares (3, as in the paper) if not given."""
    batch: int | None = None
    """Examples of a step; what each task declares (32) if not given."""
    lr: float | None = None
    """Peak learning rate; what each task declares (2e-5) if not given."""
    length: int | None = None
    """Longest sequence in tokens; what each task declares (128) if not given."""
    dropout: float | None = None
    """Dropout everywhere while fine-tuning; the model's own if not given."""
    precision: Literal["auto", "bf16", "fp32"] | None = None
    """Arithmetic of the layers; auto takes bf16 where a probe finds it fast. What each task
    declares (auto) if not given."""
    threads: int | None = None
    """CPU threads of each process; 0: one per core, divided among the processes. What each task
    declares (0) if not given."""
    jobs: int = 1
    """Runs (seeds of all tasks) trained at once, each in a process of its own."""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """What computes; auto takes a GPU where torch sees one. What each task declares (auto) if not
    given."""
