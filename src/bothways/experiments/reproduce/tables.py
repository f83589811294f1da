"""What is reported: the tables and scales, declared as data, and the columns of a table at a scale.

``tables.yaml`` declares the tables of the paper and some comparisons of our own: a row is a change
to a scale's recipes, a column is the score of a task. ``scales.yaml`` declares the scales: model,
budget, and the tasks that stand in for those of the paper. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from bothways.config.fields import build, from_dict
from bothways.errors import ConfigError, nearest
from bothways.experiments.documentation import TextOptions
from bothways.experiments.options import ReproduceConfig
from bothways.finetuning.options import FeaturesConfig, LayerChoice
from bothways.pretraining.options import PretrainConfig
from bothways.tokenization.options import LearningOptions

Changes = Mapping[str, Any]
HELDOUT = "heldout"
"""Instead of a task: the language model on held-out text."""


@dataclass(frozen=True)
class TaskSource:
    """A task that can be a column.

    Attributes:
        title: as printed.
        data: the option that says where its files are; ``text``: made from the text of a scale
            that makes its own.
        declared: name of the declared task; empty if it is not declared.
        changes: to the declared recipe; for tasks made from text, the recipe.
        metric: the one shown, unless a table asks for another.
        stands_for: the paper's task that it stands in for.
        why: how it compares with that task.
        group: its dev file is divided, in place of a training file; the column whose values stay
            together.
        tagging: it has tags for words, so features can be used.
    """

    title: str
    data: str
    declared: str = ""
    changes: Changes = field(default_factory=dict)
    metric: str = "accuracy"
    stands_for: str = ""
    why: str = ""
    group: str = ""
    tagging: bool = False


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
        seeds: how many of fine-tuning.
        many_seeds: how many for tables that count failed runs.
        duplicates: how many epochs of static masks are drawn.
        heldout: how many sequences the language model is measured on.
        embedded: text and tasks are made from packages that every installation has.
        text: how much of them, then.
        notes: for the reader, printed below the tables.
        budget_note: the same, unless the size, steps or phases of the recipe were changed.
        sizes_note: the same, below tables whose rows differ in size.
    """

    name: str
    pretrain: PretrainConfig
    tasks: Mapping[str, str]
    finetune: Mapping[str, Changes]
    features: FeaturesConfig
    sizes: tuple[tuple[int, ...], ...]
    snapshots: tuple[float, ...]
    vocabulary: LearningOptions
    seeds: int
    many_seeds: int
    duplicates: int = 1
    heldout: int = 4096
    embedded: bool = False
    text: TextOptions = field(default_factory=TextOptions)
    notes: tuple[str, ...] = ()
    budget_note: str = ""
    sizes_note: str = ""


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
        pretrain, finetune, vocabulary: changes to the scale's recipes.
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
        headings: of the cells that name a row.
        columns: in the paper's order.
        rows: from top to bottom.
        source: where the published figures are from; empty if there are none.
        base: index of the row that the others are compared with.
        notes: for the reader, printed below the table.
        learns_vocabulary: its rows start from text, not from a corpus.
        many_seeds: fine-tune with the scale's many seeds, because failed runs are counted.
        curve: drawn as scores against steps.
    """

    name: str
    title: str
    headings: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    source: str = ""
    base: int = 0
    notes: tuple[str, ...] = ()
    learns_vocabulary: bool = False
    many_seeds: bool = False
    curve: bool = False

    @property
    def sizes(self) -> bool:
        """Whether its rows differ in the size of the model."""
        return any(row.size is not None for row in self.rows)


def _declared(file: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(file).read_text(encoding="utf-8"))


_SCALES, _TABLES = _declared("scales.yaml"), _declared("tables.yaml")
TASKS = {name: from_dict(TaskSource, values) for name, values in _SCALES["tasks"].items()}
SCALES = {
    name: from_dict(
        Scale, {**values, "name": name, "pretrain": build(PretrainConfig, values["pretrain"])}
    )
    for name, values in _SCALES["scales"].items()
}
TABLES = {n: from_dict(Table, {"name": n, **values}) for n, values in _TABLES["tables"].items()}


def table_of(name: str) -> Table:
    """A table by its name.

    Raises:
        ConfigError: there is no such table; the message suggests the nearest name.
    """
    if name not in TABLES:
        hint = _hint(name, TABLES)
        raise ConfigError(f"there is nothing called {name!r} to reproduce; {hint}")
    return TABLES[name]


def _hint(name: str, known: Mapping[str, Any]) -> str:
    near = nearest(name, list(known))
    return f"did you mean {near!r}?" if near else f"there are {', '.join(known)}."


# --------------------------------------------------------------------------------
# The columns of a table at a scale: the paper's tasks, or the tasks that stand in for them.


@dataclass(frozen=True)
class BoundColumn:
    """A column of a table, bound to the task that fills it at a scale.

    Attributes:
        column: as the table declares it.
        task: one of :data:`TASKS`; empty for held-out text.
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
    own = {column.of for column in table.columns}
    bound: list[BoundColumn] = []
    for number, column in enumerate(table.columns):
        if column.of == HELDOUT:
            bound.append(BoundColumn(column, "", column.title, number))
        for task in (task for task, of in chosen if of == column.of):
            stands_in = "" if task == column.of else f" ({TASKS[task].title})"
            bound.append(BoundColumn(column, task, column.title + stands_in, number))
    for task in (task for task, of in chosen if of not in own):
        title = TASKS[task].title
        bound.append(BoundColumn(Column(task, title, TASKS[task].metric), task, title, None))
    if all(item.column.of == HELDOUT for item in bound):
        raise ConfigError(f"{table.name}: scale {scale.name} has none of its tasks.")
    by_features = any(row.layers is not None for row in table.rows)
    for item in bound:
        if (by_features or item.column.layers) and item.task and not TASKS[item.task].tagging:
            tagging = [n for n, t in TASKS.items() if t.tagging and _is_task_of(scale, n)]
            raise ConfigError(
                f"--tasks: {table.name} tags words by features, and {item.task} has no tags. At "
                f"scale {scale.name} there is {', '.join(tagging)}."
            )
    notes = [
        f"{TASKS[task].title} stands in for {TASKS[of].title}: {TASKS[task].why}."
        for task, of in chosen
        if task != of and of in own
    ]
    covered = {HELDOUT, *(of for _, of in chosen)}
    if missing := [column.title for column in table.columns if column.of not in covered]:
        notes.append(f"Nothing here stands in for {', '.join(missing)}.")
    return tuple(bound), tuple(notes)


def _choose_tasks(table: Table, scale: Scale, config: ReproduceConfig) -> list[tuple[str, str]]:
    """Tasks to measure, each with the task of the table that it is or stands in for."""
    wanted = list(dict.fromkeys(column.of for column in table.columns))
    if not config.tasks:
        return [(scale.tasks[of], of) for of in wanted if of in scale.tasks]
    chosen = []
    for name in config.tasks:
        if name not in TASKS:
            raise ConfigError(f"--tasks: there is no task {name!r}; {_hint(name, TASKS)}")
        if not _is_task_of(scale, name):
            is_not = "not " if scale.embedded else ""
            own = ", ".join(n for n, s in SCALES.items() if s.embedded)
            raise ConfigError(
                f"--tasks: {name} is {is_not}a task of the scales that make their own text ({own})."
            )
        other = TASKS[name].stands_for
        chosen.append((name, other if other in wanted and other not in config.tasks else name))
    return chosen


def _is_task_of(scale: Scale, task: str) -> bool:
    return (TASKS[task].data == "text") == scale.embedded
