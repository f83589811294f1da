"""The columns of a table at a scale: the paper's tasks, or the tasks that stand in for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bothways.config import ReproduceConfig
from bothways.errors import ConfigError, nearest
from bothways.reproduce.scales import TASKS, Scale
from bothways.reproduce.tables import HELDOUT, Column, Table


@dataclass(frozen=True)
class BoundColumn:
    """A column of a table, bound to the task that fills it at a scale.

    Attributes:
        column: as the table declares it.
        task: one of :data:`~bothways.reproduce.scales.TASKS`; empty for held-out text.
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
