"""The tables of the paper, declared: rows, columns, and the scales at which they are run.

Rows are changes to recipes; columns are tasks. The paper's figures are in the order of the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bothways.errors import ConfigError, nearest
from bothways.experiments.reproduce.options import ReproduceConfig
from bothways.families.options import SizeOptions
from bothways.finetuning.features import PAPER_SCORES
from bothways.finetuning.options import LAYER_CHOICES, FeaturesConfig, LayerChoice
from bothways.pretraining.options import EvaluateOptions, PretrainConfig
from bothways.tokenization.options import LearningOptions
from bothways.training.options import ClockOptions, OptimizerOptions, Phase

# --------------------------------------------------------------------------------
# The scales, declared: model, budget, seeds, and the tasks that stand in for the paper's.
#
# A scale sets the recipes of pre-training, fine-tuning and feature-based tagging, and the data. The
# rows of the tables (:mod:`bothways.experiments.reproduce.tables`) are changes to these recipes.

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class TaskSource:
    """A task that can be a column.

    Attributes:
        title: as printed.
        data: the option that says where its files are; ``text``: made from the smoke scale's text.
        declared: name of the declared task; empty if it is not declared.
        metric: the one shown, unless a table asks for another.
        stands_for: the paper's task that it stands in for.
        why: how it compares with that task.
        split: for a task without a training file: the file to split into train and dev, and the
            column whose values stay together.
        tagging: it has tags for words, so features can be used.
    """

    title: str
    data: str
    declared: str = ""
    metric: str = "accuracy"
    stands_for: str = ""
    why: str = ""
    split: tuple[str, str] | None = None
    tagging: bool = False


TASKS: dict[str, TaskSource] = {
    "mnli": TaskSource("MNLI-m", "glue", "mnli"),
    "qnli": TaskSource("QNLI", "glue", "qnli"),
    "mrpc": TaskSource("MRPC", "glue", "mrpc"),
    "sst2": TaskSource("SST-2", "glue", "sst2"),
    "rte": TaskSource("RTE", "glue", "rte"),
    "cola": TaskSource("CoLA", "glue", "cola", metric="matthews"),
    "stsb": TaskSource("STS-B", "glue", "stsb", metric="spearman"),
    "squad": TaskSource("SQuAD 1.1", "squad", metric="f1"),
    "conll2003": TaskSource("CoNLL-2003", "ner", "conll2003", metric="f1", tagging=True),
    "sick": TaskSource(
        "SICK-E",
        "sick",
        "sick-entailment",
        stands_for="mnli",
        why="three-way entailment as well, with 4,500 short training pairs instead of 392,702",
    ),
    "qnli-part": TaskSource(
        "QNLI, part of dev",
        "glue",
        "qnli",
        stands_for="qnli",
        why="trained on four fifths of the dev file and measured on the rest, split by sentence",
        split=("QNLI/dev.tsv", "sentence"),
    ),
    "follows": TaskSource(
        "follows?",
        "text",
        stands_for="mnli",
        why="also sentence pairs: does one sentence of a docstring follow the other",
    ),
    "package": TaskSource(
        "package?",
        "text",
        stands_for="sst2",
        why="also single sentences: which Python package does one describe",
    ),
    "capitals": TaskSource(
        "capitals",
        "text",
        metric="f1",
        stands_for="conll2003",
        tagging=True,
        why="also spans of words: which words of a lower-cased docstring had a capital letter",
    ),
}


@dataclass(frozen=True)
class Scale:
    """A model and a budget.

    Attributes:
        name: on the command line.
        pretrain: the base recipe.
        tasks: the task used for each of the paper's tasks; those not listed have no stand-in.
        finetune: changes to the declared recipes: of all tasks under ``""``, of one by its name.
        features: options of feature-based tagging.
        sizes: layers, hidden, heads, in the order of the paper's Table 6.
        snapshots: the shares of the steps at which snapshots are taken.
        vocabulary: options of the comparisons that learn a vocabulary.
        seeds, pretrain_seeds: of fine-tuning, of pre-training.
        many_seeds: of fine-tuning, for tables that count failed runs.
        duplicates: how many epochs of static masks are drawn.
        heldout: how many sequences the language model is measured on.
        embedded: text and tasks are made from packages that every installation has.
        notes: for the reader, printed below the tables.
        budget_note: the same, unless the size, steps or phases of the recipe were changed.
        sizes_note: the same, below tables whose rows differ in size.
    """

    name: str
    pretrain: PretrainConfig
    tasks: Mapping[str, str]
    finetune: Mapping[str, Changes]
    features: FeaturesConfig
    sizes: tuple[tuple[int, int, int], ...]
    snapshots: tuple[float, ...]
    vocabulary: LearningOptions
    seeds: tuple[int, ...]
    many_seeds: tuple[int, ...]
    pretrain_seeds: tuple[int, ...] = (0,)
    duplicates: int = 1
    heldout: int = 4096
    embedded: bool = False
    notes: tuple[str, ...] = field(default=())
    budget_note: str = ""
    sizes_note: str = ""


_CORRECTED = {"optimizer.bias_correction": True}
_STAND_INS = {
    "mnli": "sick",
    "qnli": "qnli-part",
    "mrpc": "mrpc",
    "sst2": "sst2",
    "rte": "rte",
    "squad": "squad",
    "conll2003": "conll2003",
}

SMOKE = Scale(
    name="smoke",
    pretrain=PretrainConfig(
        model=SizeOptions(size="tiny", layers=4, hidden=64, heads=2, positions=96),
        clock=ClockOptions(steps=100),
        phases=(Phase(length=64, share=1.0, batch=16, micro_batch=16),),
        optimizer=OptimizerOptions(lr=2e-3, warmup=0.1, bias_correction=True),
        evaluate=EvaluateOptions(every=50, sequences=64),
        log_every=20,
    ),
    tasks={"mnli": "follows", "sst2": "package", "conll2003": "capitals"},
    finetune={
        "": {"optimizer.lr": 1e-3, "epochs": 2, "batch": 16, "length": 64},
        "capitals": {"optimizer.lr": 3e-3, "batch": 4},
    },
    features=FeaturesConfig(hidden=32, epochs=2, batch=16, length=64),
    sizes=((1, 64, 2), (2, 64, 1), (2, 64, 2), (4, 64, 2), (4, 96, 3), (8, 96, 3)),
    snapshots=(0.2, 0.4, 0.6, 0.8, 1.0),
    vocabulary=LearningOptions(size=2048, workers=1),
    seeds=(0, 1),
    many_seeds=(0, 1, 2, 3, 4),
    heldout=128,
    embedded=True,
    notes=(
        "The scores of the smoke scale mean nothing: it checks in minutes that everything works, "
        "on text and tasks made from the documentation of installed Python packages.",
    ),
)

CPU = Scale(
    name="cpu",
    pretrain=PretrainConfig(
        model=SizeOptions(size="mini", init="primed", dropout=0.0, attention_dropout=0.0),
        clock=ClockOptions(steps=4000),
        phases=(
            Phase(length=128, share=0.9, batch=32, micro_batch=32),
            Phase(length=512, share=0.1, batch=8, micro_batch=8),
        ),
        optimizer=OptimizerOptions(lr=1e-3, warmup=0.1, bias_correction=True),
        evaluate=EvaluateOptions(sequences=1024),
    ),
    tasks=_STAND_INS,
    finetune={
        "": {"optimizer.lr": 3e-4, "epochs": 4, "dropout": 0.1},
        "sst2": {"epochs": 1},
        "squad": {"epochs": 2},
        "conll2003": {"task.tagging.context": "sentence"},
    },
    features=FeaturesConfig(hidden=256, epochs=6),
    sizes=((1, 256, 4), (2, 256, 2), (2, 256, 4), (4, 256, 4), (4, 320, 5), (8, 320, 5)),
    snapshots=(0.1, 0.25, 0.5, 0.75, 1.0),
    vocabulary=LearningOptions(size=16384),
    seeds=(0, 1, 2),
    many_seeds=tuple(range(10)),
    budget_note=(
        "From random weights, this budget ends on the plateau where a model knows only token "
        "frequencies (EXPERIMENTS.md, section 8)."
    ),
    sizes_note="The sizes have a third of the paper's layers and widths.",
)

GPU = Scale(
    name="gpu",
    pretrain=PretrainConfig(
        model=SizeOptions(size="small"),
        clock=ClockOptions(steps=8000),
        phases=(
            Phase(length=128, share=0.9, batch=256, micro_batch=256),
            Phase(length=512, share=0.1, batch=64, micro_batch=64),
        ),
        optimizer=OptimizerOptions(lr=1e-3, warmup=0.05, bias_correction=True),
        evaluate=EvaluateOptions(sequences=4096),
    ),
    tasks=_STAND_INS,
    finetune={"": {"optimizer.lr": 1e-4, "epochs": 4}, "sst2": {"epochs": 3}},
    features=FeaturesConfig(hidden=512, epochs=10),
    sizes=((1, 512, 8), (2, 512, 2), (2, 512, 8), (4, 512, 8), (4, 640, 10), (8, 640, 10)),
    snapshots=(0.1, 0.25, 0.5, 0.75, 1.0),
    vocabulary=LearningOptions(size=16384),
    seeds=(0, 1, 2),
    many_seeds=tuple(range(20)),
    notes=("This scale has not been run.",),
    budget_note="Its steps are an estimate of what one GPU does in an hour.",
    sizes_note="The sizes have a third of the paper's layers and two thirds of its widths.",
)

PAPER = Scale(
    name="paper",
    pretrain=PretrainConfig(
        model=SizeOptions(size="base"),
        clock=ClockOptions(steps=1_000_000),
        phases=(
            Phase(length=128, share=0.9, batch=256, micro_batch=256),
            Phase(length=512, share=0.1, batch=256, micro_batch=64),
        ),
        evaluate=EvaluateOptions(sequences=4096),
    ),
    tasks={name: name for name in ("mnli", "qnli", "mrpc", "sst2", "rte", "squad", "conll2003")},
    finetune={"": {"optimizer.lr": 3e-5}, "squad": {"optimizer.lr": 5e-5}},
    features=FeaturesConfig(),
    sizes=((3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16)),
    snapshots=(0.2, 0.4, 0.6, 0.8, 1.0),
    vocabulary=LearningOptions(size=30522),
    seeds=(0, 1, 2, 3, 4),
    many_seeds=tuple(range(50)),
    duplicates=10,
    notes=("This scale has not been run.",),
    budget_note="One pre-training run takes days on several GPUs.",
)

SCALES: dict[str, Scale] = {scale.name: scale for scale in (SMOKE, CPU, GPU, PAPER)}


# --------------------------------------------------------------------------------
# The tables, declared: rows are changes to a scale's recipes, columns are scores.
#
# Nothing is computed here. A row declares, by dotted name, how its run differs from the scale's
# pre-training and fine-tuning recipes; a column declares which score of which task. A row's
# published figures are in the order of the columns. The scales above declare which tasks stand in
# for those that a scale lacks.

HELDOUT = "heldout"
"""Instead of a task: the language model on held-out text."""


@dataclass(frozen=True)
class Column:
    """A score.

    Attributes:
        of: the paper's task, or :data:`HELDOUT`.
        title: as in the paper's table.
        metric: of the task; for held-out text a field of its scores.
        part: the file of the task that is measured.
        layers: use features of these layers instead of fine-tuning.
    """

    of: str
    title: str
    metric: str
    part: Literal["dev", "test"] = "dev"
    layers: LayerChoice | None = None

    @property
    def percent(self) -> bool:
        """Whether the score is a share, shown in percent."""
        return self.metric not in ("perplexity", "bits_per_character")


@dataclass(frozen=True)
class Row:
    """A run, or several that differ only in their seeds.

    Attributes:
        label: a cell for each of the table's headings.
        published: a figure for each column; None where none was published.
        pretrain, finetune, vocabulary: changes to the scale's recipes; all that the label claims,
            the recipe's own values too, because --recipe may have others.
        layers: use features of these layers instead of fine-tuning.
        size: index into the scale's six sizes, which are in the order of the paper's Table 6.
        snapshots: measure snapshots of the run, a row for each, instead of its finished model.
        static: pairs and masks are drawn for as many epochs as the scale sets, then repeated.
        lstm: fine-tune with a BiLSTM on top, as wide in each direction as the encoder.
    """

    label: tuple[str, ...]
    published: tuple[float | None, ...] = ()
    pretrain: Changes = field(default_factory=dict)
    finetune: Changes = field(default_factory=dict)
    vocabulary: Changes = field(default_factory=dict)
    layers: LayerChoice | None = None
    size: int | None = None
    snapshots: bool = False
    static: bool = False
    lstm: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the paper, or a comparison of our own.

    Attributes:
        name: on the command line.
        title: as printed.
        source: where the published figures are from; empty if there are none.
        headings: of the cells that name a row.
        columns: in the paper's order.
        rows: from top to bottom.
        base: index of the row that the others are compared with.
        notes: for the reader, printed below the table.
        learns_vocabulary: its rows start from text, not from a corpus.
        many_seeds: fine-tune with the scale's many seeds, because failed runs are counted.
        curve: drawn as scores against steps.
    """

    name: str
    title: str
    source: str
    headings: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    base: int = 0
    notes: tuple[str, ...] = ()
    learns_vocabulary: bool = False
    many_seeds: bool = False
    curve: bool = False

    @property
    def sizes(self) -> bool:
        """Whether its rows differ in the size of the model."""
        return any(row.size is not None for row in self.rows)


MNLI = Column("mnli", "MNLI-m", "accuracy")
QNLI = Column("qnli", "QNLI", "accuracy")
MRPC = Column("mrpc", "MRPC", "accuracy")
SST2 = Column("sst2", "SST-2", "accuracy")
RTE = Column("rte", "RTE", "accuracy")
SQUAD = Column("squad", "SQuAD", "f1")
NER = Column("conll2003", "NER", "f1")
PERPLEXITY = Column(HELDOUT, "LM perplexity", "perplexity")
LM_ACCURACY = Column(HELDOUT, "LM accuracy", "accuracy")
BITS = Column(HELDOUT, "bits per character", "bits_per_character")

NSP = {"pairs.kind": "next"}
NO_NSP = {"pairs.kind": "full"}
LEFT_TO_RIGHT = {**NO_NSP, "masking.kind": "left_to_right"}
_NO_PAIRS = (
    "Without next-sentence prediction, whole sentences are packed into a sequence across document "
    "borders: steps have slightly more tokens, and the embedding of the second segment is trained "
    "only in fine-tuning."
)
_LEFT = (
    "The left-to-right model stays left to right in fine-tuning, as in the paper. It classifies "
    "a text from the last token, the only one that sees all the others."
)


def _mix(mask: int, same: int, random: int) -> dict[str, Any]:
    return {
        "label": (f"{mask}%", f"{same}%", f"{random}%"),
        "pretrain": {"masking.mask": mask / 100, "masking.random": random / 100},
    }


TABLE5 = Table(
    name="table5",
    title="Pre-training tasks: next-sentence prediction and bidirectionality",
    source="Devlin et al. 2019, Table 5 (BERT-base, dev)",
    headings=("pre-training",),
    columns=(MNLI, QNLI, MRPC, SST2, SQUAD),
    rows=(
        Row(("BERT",), (84.4, 88.4, 86.7, 92.7, 88.5), pretrain=NSP),
        Row(("no NSP",), (83.9, 84.9, 86.5, 92.6, 87.9), pretrain=NO_NSP),
        Row(("LTR & no NSP",), (82.1, 84.3, 77.5, 92.1, 77.8), pretrain=LEFT_TO_RIGHT),
        Row(
            ("LTR & no NSP + BiLSTM",),
            (82.1, 84.1, 75.7, 91.6, 84.9),
            pretrain=LEFT_TO_RIGHT,
            lstm=True,
        ),
    ),
    notes=(_NO_PAIRS, _LEFT),
)

TABLE6 = Table(
    name="table6",
    title="Model size",
    source="Devlin et al. 2019, Table 6 (dev)",
    headings=("layers", "hidden", "heads"),
    columns=(PERPLEXITY, MNLI, MRPC, SST2),
    rows=(
        Row(("3", "768", "12"), (5.84, 77.9, 79.8, 88.4), size=0),
        Row(("6", "768", "3"), (5.24, 80.6, 82.2, 90.7), size=1),
        Row(("6", "768", "12"), (4.68, 81.9, 84.8, 91.3), size=2),
        Row(("12", "768", "12"), (3.99, 84.4, 86.7, 92.9), size=3),
        Row(("12", "1024", "16"), (3.54, 85.7, 86.9, 93.3), size=4),
        Row(("24", "1024", "16"), (3.23, 86.6, 87.8, 93.7), size=5),
    ),
    base=3,
    notes=(
        "Perplexities are comparable only within one vocabulary: compare ours with each other, not "
        "with the published ones.",
    ),
)

_LAYER_LABELS: dict[LayerChoice, str] = {
    "embeddings": "embeddings",
    "second-to-last": "second-to-last hidden",
    "last": "last hidden",
    "sum-last-four": "weighted sum of last four",
    "concat-last-four": "last four concatenated",
    "sum-all": "weighted sum of all layers",
}
TABLE7 = Table(
    name="table7",
    title="Named entities: fine-tuning, or a BiLSTM on features of a frozen encoder",
    source="Devlin et al. 2019, Table 7 (BERT-base, cased, CoNLL-2003)",
    headings=("approach",),
    columns=(
        Column("conll2003", "dev F1", "f1"),
        Column("conll2003", "test F1", "f1", part="test"),
    ),
    rows=(
        Row(("fine-tuned",), (96.4, 92.4)),
        *(
            Row((f"features: {_LAYER_LABELS[name]}",), (PAPER_SCORES[name], None), layers=name)
            for name in LAYER_CHOICES
        ),
    ),
    notes=(
        "The paper's encoder is cased, and case marks names; an uncased encoder cannot see it.",
    ),
)

TABLE8 = Table(
    name="table8",
    title="Masking: what replaces the tokens to predict",
    source="Devlin et al. 2019, Table 8 (BERT-base, dev)",
    headings=("[MASK]", "same", "random"),
    columns=(
        Column("mnli", "MNLI-m, fine-tuned", "accuracy"),
        Column("conll2003", "NER, fine-tuned", "f1"),
        Column("conll2003", "NER, features", "f1", layers="concat-last-four"),
    ),
    rows=(
        Row(**_mix(80, 10, 10), published=(84.2, 95.4, 94.9)),
        Row(**_mix(100, 0, 0), published=(84.3, 94.9, 94.0)),
        Row(**_mix(80, 0, 20), published=(84.1, 95.2, 94.6)),
        Row(**_mix(80, 20, 0), published=(84.4, 95.2, 94.7)),
        Row(**_mix(0, 20, 80), published=(83.7, 94.8, 94.6)),
        Row(**_mix(0, 0, 100), published=(83.6, 94.9, 94.6)),
    ),
    notes=("Features are the last four layers, concatenated, as in the paper.",),
)

FIGURE5 = Table(
    name="figure5",
    title="Task score against pre-training steps",
    source="Devlin et al. 2019, Figure 5 (C.1), a plot without printed figures",
    headings=("pre-training", "steps"),
    columns=(MNLI,),
    rows=(
        Row(("masked LM", ""), pretrain=NSP, snapshots=True),
        Row(("left to right", ""), pretrain=LEFT_TO_RIGHT, snapshots=True),
    ),
    curve=True,
    notes=(
        "In the paper, the masked LM overtakes the left-to-right model almost at once, and gains "
        "almost 1.0 point on MNLI from 500,000 to 1,000,000 steps.",
        "Each curve comes from snapshots of one run, so the learning rate is still high at the "
        "early ones.",
        "The masked LM is trained with next-sentence prediction and the left-to-right model "
        "without: they are rows 1 and 3 of table5.",
        _LEFT,
    ),
)

VOCABULARY = Table(
    name="vocabulary",
    title="WordPiece learned by likelihood or by frequency",
    source="",
    headings=("merges by",),
    columns=(BITS, MNLI, MRPC, SST2),
    rows=(
        Row(("likelihood",)),  # the default, which --recipe cannot change
        Row(("frequency",), vocabulary={"score": "frequency"}),
    ),
    learns_vocabulary=True,
    notes=(
        "Task scores are comparable between vocabularies; perplexities are not. Bits per character "
        "are the mean loss per masked piece times the held-out text's pieces per character. They "
        "are only roughly comparable: with more pieces per word, a mask hides less text.",
    ),
)

MASKS = Table(
    name="masks",
    title="Dynamic masks, drawn again in every epoch, or static masks, repeated",
    source="Liu et al. 2019 (RoBERTa), Table 1 (BERT-base, dev, median of five)",
    headings=("masks",),
    columns=(LM_ACCURACY, MNLI, SST2),
    rows=(
        Row(("dynamic",), (None, 84.0, 92.9), pretrain={"masking.duplicates": 0}),
        Row(("static",), (None, 84.3, 92.5), static=True),
    ),
    notes=(
        "Published: ten static variants, each seen four times. The rows can differ only if there "
        "are more epochs than variants.",
    ),
)

WHOLE_WORDS = Table(
    name="whole-words",
    title="Masking single pieces or whole words",
    source="README of google-research/bert (BERT-large, uncased)",
    headings=("masked",),
    columns=(MNLI, SQUAD, MRPC, SST2),
    rows=(
        Row(("pieces",), (86.05, 91.0, None, None), pretrain={"masking.kind": "pieces"}),
        Row(("whole words",), (87.07, 92.8, None, None), pretrain={"masking.kind": "words"}),
    ),
)

MASKING_RATE = Table(
    name="masking-rate",
    title="Masking 15 % or 30 % of the tokens",
    source="",
    headings=("masked",),
    columns=(LM_ACCURACY, MNLI, MRPC, SST2),
    rows=(
        Row(("15%",), pretrain={"masking.rate": 0.15}),
        Row(("30%",), pretrain={"masking.rate": 0.30}),
    ),
    notes=("Both rows are measured on held-out text with 15 % masked.",),
)

BIAS_CORRECTION = Table(
    name="bias-correction",
    title="Adam's bias correction in fine-tuning: on or off",
    source="",
    headings=("bias correction",),
    columns=(RTE, MRPC, MNLI),
    rows=(
        Row(("on",), finetune={"optimizer.bias_correction": True}),
        Row(("off, as the original",), finetune={"optimizer.bias_correction": False}),
    ),
    many_seeds=True,
    notes=(
        "The question is how many runs collapse (one answer for everything) or diverge; they are "
        "counted and named. Collapsed runs count in the means.",
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        TABLE5,
        TABLE6,
        TABLE7,
        TABLE8,
        FIGURE5,
        VOCABULARY,
        MASKS,
        WHOLE_WORDS,
        MASKING_RATE,
        BIAS_CORRECTION,
    )
}


def table_of(name: str) -> Table:
    """A table by its name.

    Raises:
        ConfigError: there is no such table; the message suggests the nearest name.
    """
    if name not in TABLES:
        suggestion = nearest(name, list(TABLES))
        hint = f"did you mean {suggestion!r}?" if suggestion else f"there are {', '.join(TABLES)}."
        raise ConfigError(f"there is nothing called {name!r} to reproduce; {hint}")
    return TABLES[name]


# --------------------------------------------------------------------------------
# The columns of a table at a scale: the paper's tasks, or the tasks that stand in for them.


@dataclass(frozen=True)
class BoundColumn:
    """A column of a table, bound to the task that fills it at a scale.

    Attributes:
        column: as the table declares it.
        task: one of :data:`~bothways.experiments.reproduce.tables.TASKS`; empty for held-out text.
        title: as printed.
        published: index of the column's figure in a row's published ones; None if it has none.
    """

    column: Column
    task: str
    title: str
    published: int | None


def bind_columns(
    table: Table, scale: Scale, config: ReproduceConfig
) -> tuple[tuple[BoundColumn, ...], tuple[str, ...]]:
    """The columns, and notes on which tasks stand in and which are missing.

    Raises:
        ConfigError: a task is unknown or does not fit the table, or none fits it.
    """
    chosen = _choose_tasks(table, scale, config)
    covered = {of for _, of in chosen}
    bound: list[BoundColumn] = []
    for number, column in enumerate(table.columns):
        if column.of == HELDOUT:
            bound.append(BoundColumn(column, "", column.title, number))
        for task, of in chosen:
            if of == column.of:
                stands_in = TASKS[task].title if task != column.of else ""
                title = f"{column.title} ({stands_in})" if stands_in else column.title
                bound.append(BoundColumn(column, task, title, number))
    for task, of in chosen:
        if of not in {column.of for column in table.columns}:
            source = TASKS[task]
            column = Column(task, source.title, source.metric)
            bound.append(BoundColumn(column, task, source.title, None))
    if all(item.column.of == HELDOUT for item in bound):
        raise ConfigError(f"{table.name}: scale {scale.name} has none of its tasks.")
    _refuse_without_tags(table, scale, bound)
    missing = [c.title for c in table.columns if c.of not in {*covered, HELDOUT}]
    notes = [
        f"{TASKS[task].title} stands in for {TASKS[of].title}: {TASKS[task].why}."
        for task, of in chosen
        if task != of and of in {column.of for column in table.columns}
    ]
    if missing:
        notes.append(f"Nothing here stands in for {', '.join(missing)}.")
    return tuple(bound), tuple(notes)


def _refuse_without_tags(table: Table, scale: Scale, columns: Sequence[BoundColumn]) -> None:
    """Refuse tasks without tags where a row or a column is measured by features."""
    by_features = any(row.layers is not None for row in table.rows)
    for bound in columns:
        if not (by_features or bound.column.layers) or not bound.task or TASKS[bound.task].tagging:
            continue
        fitting = [
            name
            for name, task in TASKS.items()
            if task.tagging and (task.data == "text") == scale.embedded
        ]
        raise ConfigError(
            f"--tasks: {table.name} tags words by features, and {bound.task} has no tags. At scale "
            f"{scale.name} there is {', '.join(fitting)}."
        )


def _choose_tasks(table: Table, scale: Scale, config: ReproduceConfig) -> list[tuple[str, str]]:
    """Tasks to measure, each with the task of the table that it is or stands in for."""
    wanted = list(dict.fromkeys(column.of for column in table.columns))
    if not config.tasks:
        return [(scale.tasks[of], of) for of in wanted if of in scale.tasks]
    chosen = []
    for name in config.tasks:
        if name not in TASKS:
            near = nearest(name, list(TASKS))
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(TASKS)}."
            raise ConfigError(f"--tasks: there is no task {name!r}; {hint}")
        if (TASKS[name].data == "text") != scale.embedded:
            raise ConfigError(
                f"--tasks: {name} is {'not ' if scale.embedded else ''}a task of the smoke scale."
            )
        other = TASKS[name].stands_for
        chosen.append((name, other if other in wanted and other not in config.tasks else name))
    return chosen
