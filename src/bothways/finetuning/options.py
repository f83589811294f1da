"""The options of fine-tuning, of GLUE, and of the feature-based approach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args

from bothways.config.fields import (
    Options,
    alternative,
    flat,
    free,
    numerics,
    refuse_several,
    require,
)
from bothways.errors import ConfigError
from bothways.families.config import ModelConfig
from bothways.shipped import DEFAULT
from bothways.tasks.options import GridOptions, TaskOptions, share
from bothways.training.options import (
    DeviceName,
    OptimizerOptions,
    Precision,
    SavingOptions,
    TrainingOptions,
)

# --------------------------------------------------------------------------------
# Options of `bothways finetune` and `reproduce glue`, and the declaration of a task.

NARROW = 384
"""Encoders of a smaller hidden size learn little at the paper's rates (EXPERIMENTS.md, section
9)."""
NARROW_RATE, WIDE_RATE = 3e-4, 2e-5
PAPER_GRID: dict[str, tuple[Any, ...]] = {
    "lr": (5e-5, 3e-5, 2e-5),
    "batch_size": (16, 32),
    "epochs": (2, 3, 4),
}
"""Devlin et al. 2019, Appendix A.3."""


@dataclass(frozen=True)
class SearchOptions(Options):
    """Grid search: settings to try, in all combinations, and how dev selects one."""

    paper: bool = alternative(False)
    """Search the paper's grid (Appendix A.3): lr 5e-5 3e-5 2e-5, batch_size 16 32, epochs 2 3 4;
    other options of the search override it."""
    default: bool = alternative(False)
    """Search the settings that the data set's declaration has (grid, in `bothways tasks NAME`; the
    paper's grid, if it has none); the options below override it."""
    lr: tuple[float, ...] = ()
    """Peak learning rates to try, such as 5e-5 3e-5 2e-5. Default: not varied."""
    batch_size: tuple[int, ...] = ()
    """Batch sizes to try, such as 16 32. Default: not varied."""
    epochs: tuple[int, ...] = ()
    """Numbers of epochs to try, such as 2 3 4. Default: not varied. Each is trained separately,
    because the learning rate schedule depends on the run's length."""
    bias_correction: tuple[bool, ...] = ()
    """Adam's bias correction: 'true false' tries both. Default: not varied."""
    examples: tuple[int, ...] = ()
    """Numbers of training examples, such as 50 100 200, for a learning curve. Default: not
    varied."""
    select: Literal["mean", "best"] = "mean"
    """Select the setting with the highest dev mean over its seeds, or the one with the best single
    run, as in the paper. Both are reported."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_several(self, "search_")
        for name in ("lr", "batch_size", "epochs", "bias_correction", "examples"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(f"search_{name} is {list(values)}; give each value once.")
            for value in values:
                require(f"search_{name}", value, 0 if name in ("lr", "bias_correction") else 1)
        if 0 in self.lr:
            raise ConfigError("search_lr has 0; the rates to try must be above 0.")

    def over(self, grid: GridOptions) -> SearchOptions:
        """The search with ``default`` replaced by the values it stands for."""
        if not (grid.lr or grid.batch_size or grid.epochs):
            grid = GridOptions(**PAPER_GRID)
        return replace(
            self,
            default=False,
            lr=self.lr or grid.lr,
            batch_size=self.batch_size or grid.batch_size,
            epochs=self.epochs or grid.epochs,
        )

    @property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """The values to try for each option; empty for options that are not searched."""
        paper = PAPER_GRID if self.paper else {}
        names = ("lr", "batch_size", "epochs", "bias_correction", "examples")
        return {name: getattr(self, name) or paper.get(name, ()) for name in names}

    @property
    def enabled(self) -> bool:
        """Whether there is anything to search."""
        return any(self.values.values())


SEARCHED = ("lr", "batch_size", "epochs", "bias_correction", "examples")
"""The recipe fields of fine-tuning that a search may vary."""


@dataclass(frozen=True)
class RunSeeds:
    """The random seeds of one run.

    Attributes:
        seed: seed of dropout, and of everything without a seed of its own.
        order: seed of the data order; None: ``seed``.
        head: seed of newly initialised weights; None: ``seed``.
        fold: which part of the training file is dev, from 1, those of a second division after those
            of the first; None: none is.
    """

    seed: int
    order: int | None = None
    head: int | None = None
    fold: int | None = None

    @property
    def order_seed(self) -> int:
        """The seed of the data order."""
        return self.seed if self.order is None else self.order

    @property
    def head_seed(self) -> int:
        """The seed of newly initialised weights."""
        return self.seed if self.head is None else self.head

    @property
    def name(self) -> str:
        """For tables: ``seed 0``, ``seed 0 order 1 head 2``, or ``seed 0 fold 3``."""
        parts = {"seed": self.seed, "order": self.order, "head": self.head, "fold": self.fold}
        return " ".join(f"{name} {value}" for name, value in parts.items() if value is not None)

    @property
    def folder(self) -> str:
        """Its folder in the run folder: ``seed-0``, or ``seed-0-order-1-head-2``."""
        return self.name.replace(" ", "-")


@dataclass(frozen=True)
class FinetuneConfig(TrainingOptions):
    """Fine-tune an encoder: train it on texts with labels, and measure it on others (Devlin et al.
    2019, section 4). Data are named by --train and --dev; a known data set goes by its name
    (`bothways tasks` lists them)."""

    listed = MappingProxyType(
        {
            "data": (
                *("train", "dev", "test", "text", "text_b", "label", "labels", "names", "kind"),
                *(
                    "label_columns",
                    "label_separator",
                    "choices",
                    "group",
                    "data",
                    "encoding",
                    "delimiter",
                    "sheet",
                ),
            ),
            "model": ("model", "from_scratch", "max_length", "long", "dropout", "head", "freeze"),
            "training": (
                *("epochs", "batch_size", "lr", "optimizer", "schedule", "warmup"),
                "class_weights",
            ),
            "choice": (*("metric", "tune", "keep", "folds", "search_paper", "search_lr"),),
            "run": ("run", "seeds", "jobs", "device", "precision", "threads", "recompute"),
        }
    )
    needed: ClassVar[tuple[str, ...]] = ("train",)
    own_texts = MappingProxyType(
        {
            "lr": "Peak learning rate. Default (also if 0): 2e-5, one of the paper's "
            "rates, or 3e-4 if the encoder is narrow (hidden size below 384).",
            "precision": "Compute precision of training; auto uses bf16 if the GPU supports it or "
            "a short benchmark on the CPU finds it faster. Scores and predictions are in fp32.",
        }
    )

    task: TaskOptions = flat(TaskOptions)
    """Data and what to predict."""
    data: str = free("")
    """Folder that the names of the data files are relative to. Default: the current folder."""
    model: str = free(DEFAULT)
    """Model to start from: a folder, mini-en (bundled), or a name on the Hugging Face Hub, such as
    google-bert/bert-base-uncased."""
    run: str = free("")
    """Run folder to write; running the same command again resumes it. Default: a folder in runs,
    named after options and data."""
    from_scratch: bool = False
    """Start from random weights instead of the model's, as a baseline for pre-training."""
    epochs: int = 3
    """Passes over the training data."""
    batch_size: int = 32
    """Batch size in examples."""
    max_length: int | None = None
    """Maximum sequence length in tokens. Default (also if 0): 128, or 384 for kind spans, but at
    most the encoder's positions. Longer inputs are truncated, the longer text of a pair first, and
    their number is reported. Passages with answers, and with --long windows any text, are read
    in overlapping windows instead."""
    optimizer: OptimizerOptions = flat(
        lambda: OptimizerOptions(lr=0.0, warmup=0.1, bias_correction=True)
    )
    """Optimizer and learning rate schedule."""
    dropout: float | None = None
    """Dropout probability throughout the network (attention and new head included). Default: the
    model's own."""
    lstm: int = 0
    """Hidden size per direction of a one-layer BiLSTM between encoder and task head, replacing the
    pooler ("+ BiLSTM" in the paper's section 5.1); 0: none. transformers cannot load such
    models."""
    head: Literal["auto", "keep", "new"] = "auto"
    """Task head: keep the model folder's, which must fit the kind and labels, or initialise a new
    one. auto: keep it for kinds spans and choice; otherwise new, because equal labels may mean
    different things."""
    freeze: bool = False
    """Leave the encoder as it is and fit a linear head on the mean of a text's token vectors, in
    seconds. It is logistic or ridge regression by scikit-learn, its strength chosen within the
    training examples. Epochs, rates and dropout do not apply."""
    class_weights: tuple[str, ...] = ()
    """Weights of the labels in the loss, for rare labels: balanced (the rarer, the higher), or
    LABEL=WEIGHT for each label whose weight is not 1. With one label per example only their ratios
    matter; with several, a weight is that of the examples that have the label. Default: all 1."""
    metric: str = ""
    """The main metric: the first in tables, by which --keep best, tune and a search choose.
    Default: the first of metrics."""
    keep: Literal["last", "best"] = "last"
    """Which epoch's model a run keeps: the last, or the best on dev by the main metric (the first
    of equals). The scores on dev are then optimistic, which tables say."""
    patience: int = 0
    """With --keep best: stop after so many epochs without a better one; 0: train all of them."""
    folds: int = 0
    """Cross-validation: divide the training examples into so many parts, each of which is dev of
    one training. 0: no."""
    repeats: int = free(1)
    """Cross-validations, each with another division into --folds. More can be added later."""
    split_seed: int = 0
    """Seed of what is held out for dev, test or folds."""
    examples: int = 0
    """Train on so many of the training examples, drawn by each seed with the same mix of labels; 0:
    on all. search_examples tries several numbers (a learning curve)."""
    seeds: tuple[int, ...] = free((0,))
    """Random seeds (data order, new weights, dropout); one model per seed. Seeds can be added to a
    run folder later without repeating finished ones; results are of the seeds that are named."""
    order_seeds: tuple[int, ...] = free(())
    """Seeds of the data order, each combined with every seed. Default: each run's own seed."""
    head_seeds: tuple[int, ...] = free(())
    """Seeds of the new head (and other new weights), each combined with every seed. Default: each
    run's own seed."""
    search: SearchOptions = field(default_factory=SearchOptions, metadata={"kind": "free"})
    """Grid search: try settings and choose by dev (off unless one of these is given)."""
    jobs: int = free(1)
    """Number of runs (seeds, settings of a search) trained in parallel, each in a process with its
    own copy of model and data. On a CPU, small models on short texts gain more from jobs than from
    threads."""
    checkpoint: SavingOptions = field(default_factory=SavingOptions, metadata={"kind": "free"})
    """Checkpoints of each run. Only one is kept, and none once the run has finished."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "batch_size", "jobs", "repeats"):
            require(name, getattr(self, name), 1)
        for name in ("patience", "examples", "folds"):
            require(name, getattr(self, name), 0)
        self._check_choices()
        if not self.seeds:
            raise ConfigError("seeds is []; give at least one, each once.")
        for name in ("seeds", "order_seeds", "head_seeds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} is {list(values)}; give at least one, each once.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; it must be in [0, 1).")
        require("lstm", self.lstm, 0)

    def _check_choices(self) -> None:
        if self.folds == 1:
            raise ConfigError("folds is 1; give two or more, or 0 for none.")
        if self.folds and self.task.dev:
            raise ConfigError(
                f"folds is {self.folds}, and dev is {self.task.dev}: each fold is dev once. "
                "Leave one of them out."
            )
        if self.repeats > 1 and not self.folds:
            raise ConfigError("repeats is for cross-validation; give --folds, or leave it out.")
        if self.patience and self.keep == "last":
            raise ConfigError("patience goes by the best epoch on dev; add --keep best.")
        if self.freeze:
            given = {
                **{"lstm": self.lstm, "keep": self.keep == "best", "search": self._trains_others},
                "head": self.head == "keep",
            }
            if wrong := [name for name, value in given.items() if value]:
                raise ConfigError(f"freeze trains no epochs; leave out {' and '.join(wrong)}.")
            if not (self.task.traits.of_texts or self.task.traits.per_word):
                raise ConfigError(
                    f"freeze fits a linear head for labels, scores and tags, not for kind "
                    f"{self.task.kind}; leave it out."
                )
        if self.class_weights and not self.task.traits.has_labels:
            raise ConfigError(
                f"class_weights is for labels of texts, not for kind {self.task.kind}."
            )

    @property
    def _trains_others(self) -> bool:
        """Whether a search varies what a frozen encoder does without."""
        return any(values for name, values in self.search.values.items() if name != "examples")

    @property
    def sequence_length(self) -> int:
        """``max_length``, or what suits the kind of task; an encoder may have fewer positions."""
        return self.max_length or self.task.traits.length

    @property
    def searched(self) -> SearchOptions:
        """The search, over the task's default space if that is asked for."""
        return self.search.over(self.task.grid) if self.search.default else self.search

    def resolved(self) -> FinetuneConfig:
        """See :meth:`Options.resolved`: the length and the search, which follow from the task. What
        follows from the encoder is no option: :meth:`for_encoder`."""
        return replace(self, max_length=self.sequence_length, search=self.searched)

    def of_data(self) -> FinetuneConfig:
        """The part of the config that says what is read and how, which runs have in common."""
        names = ("task", "data", "model", "metric", "freeze", "folds", "split_seed")
        values = {name: getattr(self, name) for name in names}
        return FinetuneConfig(**values, max_length=self.sequence_length)

    def for_encoder(self, shape: ModelConfig) -> FinetuneConfig:
        """The config with a length and a learning rate for an encoder, where it has none."""
        length = self.max_length or min(self.sequence_length, shape.positions)
        rate = self.optimizer.lr or (NARROW_RATE if shape.hidden < NARROW else WIDE_RATE)
        return replace(self, max_length=length, optimizer=replace(self.optimizer, lr=rate))

    @property
    def seeds_of_runs(self) -> tuple[RunSeeds, ...]:
        """The runs of each setting: every combination of seed, order seed and head seed, with every
        fold."""
        orders, heads = self.order_seeds or (None,), self.head_seeds or (None,)
        folds = range(1, self.folds * self.repeats + 1) if self.folds else (None,)
        return tuple(RunSeeds(*seeds) for seeds in product(self.seeds, orders, heads, folds))

    @property
    def setting(self) -> dict[str, Any]:
        """This config's values of the fields that a search may vary; the number of examples if it
        is given."""
        values: dict[str, Any] = {
            "lr": self.optimizer.lr,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "bias_correction": self.optimizer.bias_correction,
        }
        curve = self.examples or self.search.examples
        return {**values, "examples": self.examples} if curve else values

    def settings(self) -> Iterator[FinetuneConfig]:
        """The configs of a grid search, one per setting, each with an empty search."""
        now = {**self.setting, "examples": self.examples}
        given = [self.searched.values[name] or (value,) for name, value in now.items()]
        for lr, batch, epochs, corrected, examples in product(*given):
            optimizer = replace(self.optimizer, lr=lr, bias_correction=corrected)
            yield replace(
                self,
                batch_size=batch,
                epochs=epochs,
                optimizer=optimizer,
                examples=examples,
                search=SearchOptions(select=self.search.select),
            )

    def located(self) -> FinetuneConfig:
        """The same config with the task's file names resolved against ``data``."""
        task, folder = self.task, Path(self.data)

        def find(name: str) -> str:
            return str(folder / name) if name and self.data and share(name) is None else name

        found = replace(
            task,
            train=find(task.train),
            dev=find(task.dev),
            test=None if task.test is None else find(task.test),
            measure=tuple(map(find, task.measure)),
            predict=(*map(find, task.predict), *filter(_exists, map(find, task.optional))),
            optional=(),
        )
        return replace(self, data="", task=found)


def _exists(name: str) -> bool:
    return Path(name).exists()


@dataclass(frozen=True)
class GlueConfig(Options):
    """Fine-tune on several known data sets (`bothways tasks`), one after another, with a table of
    all results."""

    listed = MappingProxyType(
        {
            "options": (
                *("data", "run", "model", "tasks", "seeds", "epochs", "lr", "batch_size"),
                *("max_length", "jobs", "device"),
            )
        }
    )

    data: str
    """Folder with one subfolder per task (CoLA, SST-2 ...), as GLUE is distributed."""
    run: str
    """Folder to write: a run folder per task, the table and the submission. Running the same
    command again resumes it."""
    model: str = DEFAULT
    """Model to start from: a folder, mini-en (bundled), or a name on the Hugging Face Hub, such as
    google-bert/bert-base-uncased."""
    tasks: tuple[str, ...] = ()
    """Data sets by name (`bothways tasks` lists them), or .yaml files like theirs. Default: the
    GLUE tasks found in the data folder."""
    seeds: tuple[int, ...] = ()
    """Random seeds; one model per task and seed. Default: the task's own (`bothways tasks NAME`),
    else 0."""
    epochs: int | None = None
    """Passes over the training data. Default: the task's own, else 3, as in the paper."""
    batch_size: int | None = None
    """Batch size in examples. Default: the task's own, else 32."""
    lr: float | None = None
    """Peak learning rate. Default: the task's own, else by the encoder's width, see
    --lr of finetune."""
    max_length: int | None = None
    """Maximum sequence length in tokens. Default: the task's own, else 128."""
    dropout: float | None = None
    """Dropout probability throughout the network. Default: the model's own."""
    search: SearchOptions = field(default_factory=SearchOptions)
    """Grid search: try settings and choose by dev (off unless one of these is given)."""
    precision: Precision | None = None
    """Compute precision of training; auto uses bf16 if the GPU supports it or a short benchmark on
    the CPU finds it faster. Scores and predictions are in fp32. Default: the task's own,
    else auto."""
    threads: int | None = None
    """CPU threads per process; 0: one per core, divided among the processes. Default: the task's
    own, else 0."""
    jobs: int = 1
    """Number of a task's runs (seeds, settings of a search) trained in parallel, each in its own
    process."""
    device: DeviceName | None = None
    """Device; auto uses a GPU if torch finds one. Default: the task's own, else auto."""


# --------------------------------------------------------------------------------
# Options of `bothways reproduce features`, the paper's feature-based approach.

LayerChoice = Literal[
    "embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all"
]
LAYER_CHOICES: tuple[LayerChoice, ...] = get_args(LayerChoice)


@dataclass(frozen=True)
class FeaturesConfig(Options):
    """Train a two-layer BiLSTM tagger on features from a frozen encoder (Devlin et al. 2019,
    section 5.3). The features are computed once."""

    listed = MappingProxyType(
        {
            "options": (
                *("train", "dev", "test", "data", "model", "run", "layers", "hidden", "epochs"),
                *("batch_size", "lr", "seeds"),
            )
        }
    )
    needed: ClassVar[tuple[str, ...]] = ("train", "run")
    own_texts = MappingProxyType(
        {
            "train": "Training file: CoNLL columns, or what an annotator exports.",
            "dev": "Development file, to measure each epoch on.",
            "test": "Test file, with tags, to measure on at the end.",
            "labels": "The tags, in order. Default: those of the training file, sorted.",
            "measure": "The same as --test, as declared tasks name it.",
            "metrics": "Metrics, the first being the main one: accuracy, precision, recall, "
            "f1, f1_macro (the mean over entity types). Default: depends on the tags.",
        }
    )

    task: TaskOptions = flat(lambda: TaskOptions(kind="tagging"))
    """Sentences with a tag for each word."""
    data: str = free("")
    """Folder that the names of the data files are relative to. Default: the current folder."""
    model: str = free(DEFAULT)
    """Model with the encoder: a folder, mini-en (bundled), or a name on the Hugging Face Hub."""
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
    batch_size: int = 32
    """Batch size in sentences."""
    max_length: int | None = None
    """Maximum sequence length in tokens. Default: 128, but at most the encoder's positions. Context
    from the document fills what the sentence leaves free."""
    optimizer: OptimizerOptions = flat(
        lambda: OptimizerOptions(lr=1e-3, warmup=0.1, weight_decay=0.0, bias_correction=True)
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
        for name in ("hidden", "epochs", "batch_size"):
            require(name, getattr(self, name), 1)
        require("dropout", self.dropout, 0, 1 - 1e-9)
        if self.optimizer.lr == 0:
            raise ConfigError("lr is 0; features needs a rate, such as 1e-3.")
        if not self.task.traits.per_word:
            raise ConfigError(
                f"kind is {self.task.kind!r}; feature extraction supports only tagging."
            )
        if share(self.task.dev) is not None or share(self.task.test) is not None:
            raise ConfigError(
                "features measures files, not shares of train; give --dev a file files of one."
            )
        if len(tests := [*self.task.measure, *filter(None, [self.task.test])]) > 1:
            raise ConfigError(
                f"measure and test name {len(tests)} files; features measures dev and one more."
            )
        for name, values in (("seeds", self.seeds), ("layers", self.layers)):
            if not values or len(set(values)) < len(values):
                shown = ", ".join(map(str, values))
                raise ConfigError(f"{name} is [{shown}]; give at least one, each once.")

    def resolved(self) -> FeaturesConfig:
        """See :meth:`Options.resolved`: the length."""
        return replace(self, max_length=self.sequence_length)

    @property
    def sequence_length(self) -> int:
        """``max_length``, or the default; an encoder may have fewer positions."""
        return self.max_length or self.task.traits.length

    def located(self) -> FeaturesConfig:
        """The same config with the task's file names resolved against ``data``, and one test
        file."""
        task, folder = self.task, Path(self.data)
        test = next(iter([*task.measure, *filter(None, [task.test])]), None)
        train, dev = (str(folder / name) if name else "" for name in (task.train, task.dev))
        found = replace(task, train=train, dev=dev, test=test and str(folder / test), measure=())
        return replace(self, data="", task=found)
