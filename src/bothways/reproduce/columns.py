"""Which columns a table has at a scale: the paper's tasks, or what stands in for them."""

from __future__ import annotations

from dataclasses import dataclass

from bothways.config import ReproduceConfig
from bothways.errors import ConfigError
from bothways.options import nearest
from bothways.reproduce.scales import TASKS, Scale
from bothways.reproduce.tables import HELDOUT, Column, Table


@dataclass(frozen=True)
class Bound:
    """A column of a table at a scale.

    Attributes:
        column: as the table declares it.
        task: what is measured on (of :data:`~bothways.reproduce.scales.TASKS`); empty for held-out
            text.
        title: for the reader.
        published: number of the published figure in a row; None without any.
    """

    column: Column
    task: str
    title: str
    published: int | None


def bind(
    table: Table, scale: Scale, config: ReproduceConfig
) -> tuple[tuple[Bound, ...], tuple[str, ...]]:
    """The columns, and notes on what stands in and what is missing.

    Raises:
        ConfigError: a task that is not known, or none that fits the table.
    """
    chosen = _chosen(table, scale, config)
    taken = {of for _, of in chosen}
    bound: list[Bound] = []
    for number, column in enumerate(table.columns):
        if column.of == HELDOUT:
            bound.append(Bound(column, "", column.title, number))
        for task, of in chosen:
            if of == column.of:
                stands_in = TASKS[task].title if task != column.of else ""
                title = f"{column.title} ({stands_in})" if stands_in else column.title
                bound.append(Bound(column, task, title, number))
    for task, of in chosen:
        if of not in {column.of for column in table.columns}:
            source = TASKS[task]
            column = Column(task, source.title, source.metric)
            bound.append(Bound(column, task, source.title, None))
    if all(found.column.of == HELDOUT for found in bound):
        raise ConfigError(f"{table.name}: none of its tasks is there at scale {scale.name}.")
    missing = [c.title for c in table.columns if c.of not in {*taken, HELDOUT}]
    notes = [
        f"{TASKS[task].title} stands in for {TASKS[of].title}: {TASKS[task].why}."
        for task, of in chosen
        if task != of and of in {column.of for column in table.columns}
    ]
    if missing:
        notes.append(f"Nothing here stands in for {', '.join(missing)}.")
    return tuple(bound), tuple(notes)


def _chosen(table: Table, scale: Scale, config: ReproduceConfig) -> list[tuple[str, str]]:
    """Tasks, and which of the table's each is for."""
    wanted = list(dict.fromkeys(column.of for column in table.columns))
    if not config.tasks:
        return [(scale.tasks[of], of) for of in wanted if of in scale.tasks]
    found = []
    for name in config.tasks:
        if name not in TASKS:
            near = nearest(name, list(TASKS))
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(TASKS)}."
            raise ConfigError(f"--tasks: there is no task {name!r} to choose; {hint}")
        if (TASKS[name].data == "text") != scale.embedded:
            raise ConfigError(
                f"--tasks: {name} is {'not ' if scale.embedded else ''}a task of the smoke scale."
            )
        other = TASKS[name].stands_for
        found.append((name, other if other in wanted and other not in config.tasks else name))
    return found
