"""The scales, declared: model, budget, seeds, and the tasks that stand in for the paper's.

A scale sets the recipes of pre-training, fine-tuning and feature-based tagging, and the data. The
rows of the tables (:mod:`bothways.reproduce.tables`) are changes to these recipes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bothways.config import (
    ClockOptions,
    EvaluateOptions,
    FeaturesConfig,
    LearningOptions,
    OptimizerOptions,
    Phase,
    PretrainConfig,
    SizeOptions,
)

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
