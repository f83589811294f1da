"""The results of a table: collected, written as Markdown and JSON, drawn."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bothways.config.fields import to_dict
from bothways.experiments.chance import is_clear
from bothways.experiments.reproduce.grid import Grid, Source
from bothways.experiments.reproduce.steps import Ledger
from bothways.experiments.reproduce.tables import HELDOUT, Column
from bothways.finetuning.results import deviation
from bothways.training.runfolder import versions

MISSING = "–"


class Score(NamedTuple):
    """The score of one run, in percent unless the column is not a share."""

    pretrain_seed: int
    seed: int | None
    score: float
    collapsed: bool = False


@dataclass(frozen=True)
class Cell:
    """The scores of a row in a column: of the finished runs, and why others are missing."""

    scores: tuple[Score, ...]
    missing: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Over all finished runs; NaN if there are none."""
        return statistics.fmean(s.score for s in self.scores) if self.scores else math.nan

    @property
    def std(self) -> float:
        """Sample standard deviation over all finished runs; NaN for fewer than two."""
        return deviation([s.score for s in self.scores])


Cells = Sequence[Sequence[Cell]]
"""By row and column."""


def cells(grid: Grid, ledger: Ledger) -> Cells:
    """The cells of all rows, with the scores that have been computed."""
    return [
        [_cell(grid, ledger, own, b.column) for own, b in zip(row.cells, grid.columns, strict=True)]
        for row in grid.rows
    ]


def _cell(grid: Grid, ledger: Ledger, sources: Sequence[Source], column: Column) -> Cell:
    scores, missing = [], []
    for source in sources:
        step = grid.steps[source.step]
        result = ledger.result(step)
        if blocked := ledger.blocked(step, grid.steps):
            missing.append(f"{blocked} diverged")
        elif "diverged_at" in result:
            missing.append(f"{step.name} diverged: {result['diverged_at']}")
        elif not result:
            missing.append("not finished")
        elif column.of == HELDOUT:
            score = result["scores"][column.metric] * (100 if column.percent else 1)
            scores.append(Score(source.pretrain_seed, None, score))
        for part in source.parts if "runs" in result else ():
            if part.name in result["diverged"]:
                missing.append(f"seed {part.seed} diverged: {result['diverged'][part.name]}")
            elif part.name not in result["runs"]:
                missing.append(f"seed {part.seed} not finished")
            else:
                score, collapsed = _score(result["runs"][part.name], column)
                scores.append(Score(source.pretrain_seed, part.seed, 100 * score, collapsed))
    return Cell(tuple(scores), tuple(missing))


def _score(run: dict[str, Any], column: Column) -> tuple[float, bool]:
    """A run's score as a share of 1, NaN if its task lacks the file, and whether it collapsed."""
    if "scores" not in run:  # tags by features: the main metric of each file
        return run.get(column.part, math.nan), False
    measured = run if column.part == "dev" else next(iter(run["further"].values()), None)
    if measured is None:
        return math.nan, False
    return measured["scores"].get(column.metric, math.nan), measured["collapsed"]


# --------------------------------------------------------------------------------
# As Markdown and JSON.


def markdown(grid: Grid, cells: Cells, ledger: Ledger) -> str:
    """The table, what to know of it, and what each step took."""
    table, now = grid.table, versions()
    took = [(s.name, f"{ledger.record(s).get('seconds', 0) / 60:.1f}") for s in grid.steps.values()]
    packages = ", ".join(f"{name} {now[name]}" for name in ("bothways", "torch", "python"))
    return "\n".join(
        [
            f"# {table.name}, scale {grid.scale.name}: {table.title}",
            "",
            *_lines(table_rows(grid, cells)),
            *(["", f"Published: {table.source}."] if table.source else []),
            "",
            "- Scores are in percent, on dev unless stated otherwise, after the last epoch: mean ± "
            "sample standard deviation over all runs of a cell. No run was selected.",
            *(f"- {note}" for note in (*chance_notes(grid, cells, ledger), *grid.notes)),
            *(f"- {line}" for line in failures(grid, cells)),
            *("", "## Steps", "", *_lines([("step", "minutes"), *took])),
            "",
            f"Last run on {now['machine']}; {packages}. Every run, with its seeds, settings and "
            "machine, is in table.json.\n",
        ]
    )


def record(grid: Grid, cells: Cells, ledger: Ledger) -> dict[str, Any]:
    """The table as JSON-able data, with every run."""
    return {
        "format": 2,
        "table": grid.table.name,
        "scale": grid.scale.name,
        "title": grid.table.title,
        "source": grid.table.source,
        "complete": not any(cell.missing for row in cells for cell in row),
        "headings": list(grid.table.headings),
        "columns": [
            {
                "title": bound.title,
                "task": bound.task or None,
                "metric": bound.column.metric,
                "part": bound.column.part,
            }
            for bound in grid.columns
        ],
        "rows": [
            {"label": list(row.label), "cells": list(map(_cell_record, own, row.published))}
            for row, own in zip(grid.rows, cells, strict=True)
        ],
        "notes": [*grid.notes],
        "recipe": to_dict(grid.base.resolved()),
        "steps": [ledger.record(step) for step in grid.steps.values()],
    }


def _cell_record(cell: Cell, published: float | None) -> dict[str, Any]:
    return {
        "mean": None if math.isnan(cell.mean) else cell.mean,
        "std": None if math.isnan(cell.std) else cell.std,
        "published": published,
        "runs": [score._asdict() for score in cell.scores],
        "missing": list(cell.missing),
    }


def chance_notes(grid: Grid, cells: Cells, ledger: Ledger) -> list[str]:
    """Which accuracies differ from the base row's by more than two standard errors, of seeds and
    of dev examples together: a table of small runs is easily read as a result where it shows
    noise."""
    base, clear, judged = grid.table.base, [], set()
    for number, bound in enumerate(grid.columns):
        result = ledger.result(grid.steps[grid.rows[base].cells[number][0].step])
        if bound.column.metric != "accuracy" or "dev_examples" not in result:
            continue  # of other scores the spread over examples is not known
        ours = [score.score / 100 for score in cells[base][number].scores]
        for row, own in zip(grid.rows, cells, strict=True):
            other = [score.score / 100 for score in own[number].scores]
            if ours and other and own is not cells[base]:
                judged.add(result["dev_examples"])
                if is_clear(other, ours, result["dev_examples"]):
                    points = own[number].mean - cells[base][number].mean
                    clear.append(f"{row.name} {points:+.1f} in {bound.title}")
    if not judged:
        return []
    return [
        f"Accuracies beyond two standard errors of seeds and dev examples ({min(judged)} or more), "
        f"compared with {grid.rows[base].name}: {'; '.join(clear) or 'none'}. Other differences "
        "say nothing about the rows."
    ]


def shown(cell: Cell, metric: str = "accuracy") -> str:
    """A cell as printed."""
    if not cell.scores or math.isnan(cell.mean):
        return MISSING
    digits = {"bits_per_character": 3, "perplexity": 2}.get(metric, 1)
    text = f"{cell.mean:.{digits}f}"
    if not math.isnan(cell.std):
        text += f" ± {cell.std:.{digits}f}"
    if cell.missing:
        text += f" ({len(cell.scores)} of {len(cell.scores) + len(cell.missing)})"
    if collapsed := sum(score.collapsed for score in cell.scores):
        text += f" ({collapsed} collapsed)"
    return text


def as_published(figure: float | None) -> str:
    """A published figure with at least one decimal, and no more than were published."""
    if figure is None:
        return MISSING
    return f"{figure:.1f}" if round(figure, 1) == figure else f"{figure:g}"


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    header, *body = [f"| {' | '.join(row)} |" for row in rows]
    return [header, f"|{'---|' * len(rows[0])}", *body]


def table_rows(grid: Grid, cells: Cells) -> list[list[str]]:
    """The table as texts, its header first."""
    published = list(zip(*(row.published for row in grid.rows), strict=True))
    figures = [any(figure is not None for figure in column) for column in published]
    heads = [*grid.table.headings]
    for bound, has_figures in zip(grid.columns, figures, strict=True):
        heads += [bound.title, "published"][: 1 + has_figures]
    rows = [heads]
    for row, own in zip(grid.rows, cells, strict=True):
        texts = [*row.label]
        for number, (bound, cell) in enumerate(zip(grid.columns, own, strict=True)):
            texts.append(shown(cell, bound.column.metric))
            texts += [as_published(row.published[number])] * figures[number]
        rows.append(texts)
    return rows


def failures(grid: Grid, cells: Cells) -> Iterator[str]:
    """One line for each cell with runs that are missing, diverged or collapsed."""
    for row, own in zip(grid.rows, cells, strict=True):
        for bound, cell in zip(grid.columns, own, strict=True):
            seeds = [f"seed {s.seed} collapsed" for s in cell.scores if s.collapsed]
            if cell.missing or seeds:
                yield f"{row.name}, {bound.title}: {'; '.join([*cell.missing, *seeds])}."


# --------------------------------------------------------------------------------
# As a picture, of tables whose rows are points of curves.


def draw(grid: Grid, cells: Cells) -> bytes:
    """Scores against steps, a panel for each column: the bytes of a PNG."""
    from matplotlib.figure import Figure  # slow import

    columns = len(grid.columns)
    figure = Figure((5.2 * columns, 3.9), layout="constrained")
    figure.suptitle(f"{grid.table.name}, scale {grid.scale.name}: {grid.table.title}", fontsize=11)
    panels = figure.subplots(1, columns, squeeze=False)[0]
    for number, (axes, bound) in enumerate(zip(panels, grid.columns, strict=True)):
        for curve, color in zip(dict.fromkeys(row.curve for row in grid.rows), "bg", strict=False):
            rows = zip(grid.rows, cells, strict=True)
            points = [(r.x, own[number]) for r, own in rows if r.curve == curve]
            points = [(step, cell) for step, cell in points if cell.scores]
            for step, cell in points:
                scores = [score.score for score in cell.scores]
                axes.plot([step] * len(scores), scores, f"{color}.", alpha=0.3)
            spread = [0.0 if math.isnan(cell.std) else cell.std for _, cell in points]
            steps, means = [step for step, _ in points], [cell.mean for _, cell in points]
            axes.errorbar(steps, means, spread, label=curve, fmt=f"-{color}o", capsize=3)
        axes.set(title=bound.title, xlabel="pre-training steps", ylabel="score on dev")
        axes.set_xlim(left=0)
        axes.legend()
    data = io.BytesIO()
    figure.savefig(data, dpi=130, format="png")
    return data.getvalue()
