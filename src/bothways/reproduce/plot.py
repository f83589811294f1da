"""A recomputed table, as a picture.

Each column is a panel. Scores of different models and tasks do not fit on one axis, so rows are
drawn as differences from the base row: ours with every run and the spread, and the published ones
next to them. Curves are drawn as scores against steps.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from bothways.reproduce.grid import Grid
from bothways.reproduce.report import MISSING, as_published, digits_of, shown
from bothways.reproduce.results import Cell

_OURS, _PUBLISHED, _FAINT = "#1f5fa8", "#c8641b", "0.45"
_PANEL_WIDTH, _ROW_HEIGHT = 3.6, 0.42


def draw(grid: Grid, cells: Sequence[Sequence[Cell]]) -> bytes:
    """The bytes of a PNG."""
    return _curves(grid, cells) if grid.table.curve else _differences(grid, cells)


def _differences(grid: Grid, cells: Sequence[Sequence[Cell]]) -> bytes:
    from matplotlib.figure import Figure  # slow import
    from matplotlib.lines import Line2D

    names = [" / ".join(row.label) for row in grid.rows]
    columns = len(grid.columns)
    margin = 0.4 + 0.075 * max(map(len, names))
    figure = Figure(
        figsize=(margin + _PANEL_WIDTH * columns, 1.75 + _ROW_HEIGHT * len(names)),
        layout="constrained",
    )
    figure.suptitle(f"{grid.table.name}, scale {grid.scale.name}: {grid.table.title}", fontsize=11)
    panels = figure.subplots(1, columns, sharey=True, squeeze=False)[0]
    for number, axes in enumerate(panels):
        _panel(axes, grid, [row[number] for row in cells], number)
    panels[0].set_yticks(range(len(names)), names, fontsize=9)
    panels[0].set_ylabel(" / ".join(grid.table.headings), fontsize=8, color=_FAINT)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    handles = [
        Line2D(
            [],
            [],
            color=_OURS,
            marker="o",
            linestyle="",
            label="ours: mean, runs, standard deviation",
        )
    ]
    if any(figure is not None for row in grid.rows for figure in row.published):
        handles.append(
            Line2D(
                [],
                [],
                color=_PUBLISHED,
                marker="D",
                linestyle="",
                fillstyle="none",
                label="published",
            )
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return _png(figure)


def _panel(axes: Any, grid: Grid, cells: Sequence[Cell], number: int) -> None:
    """One column: the differences of its rows from the base row."""
    bound, base = grid.columns[number], grid.table.base
    digits = digits_of(bound.column.metric)
    zero = cells[base].mean
    published = [row.published[number] for row in grid.rows]

    def difference(value: float, base: float) -> float:
        """In points for shares, otherwise in percent of the base."""
        return value - base if bound.column.percent else 100 * (value / base - 1)

    axes.axvline(0, color="0.8", linewidth=1, zorder=0)
    transform = axes.get_yaxis_transform()
    for y, cell in enumerate(cells):
        drawn = cell.scores and not math.isnan(zero)
        if drawn:
            values = [difference(score.value, zero) for score in cell.scores]
            mean = difference(cell.mean, zero)
            axes.plot(values, [y - 0.1] * len(values), "o", color=_OURS, alpha=0.3, markersize=3)
            spread = None if math.isnan(cell.std) else difference(zero + cell.std, zero)
            axes.errorbar(mean, y - 0.1, xerr=spread, fmt="o", color=_OURS, markersize=6, capsize=3)
        text = shown(cell, digits=digits).replace(MISSING, "missing")
        axes.text(
            1.02,
            y - 0.1,
            text,
            transform=transform,
            ha="left",
            va="center",
            fontsize=7,
            color=_OURS if drawn else _FAINT,
        )
        figure, base_figure = published[y], published[base]
        if figure is not None and base_figure is not None:
            axes.plot(
                difference(figure, base_figure),
                y + 0.2,
                "D",
                color=_PUBLISHED,
                fillstyle="none",
                markersize=5,
            )
            axes.text(
                1.02,
                y + 0.2,
                as_published(figure),
                transform=transform,
                ha="left",
                va="center",
                fontsize=7,
                color=_PUBLISHED,
            )
    axes.set_title(bound.title, fontsize=9)
    unit = "points" if bound.column.percent else "percent"
    name = " / ".join(grid.rows[base].label)
    axes.set_xlabel(f"{unit}, difference from {name}", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.margins(x=0.3)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _curves(grid: Grid, cells: Sequence[Sequence[Cell]]) -> bytes:
    from matplotlib.figure import Figure  # slow import

    columns = len(grid.columns)
    figure = Figure(figsize=(5.2 * columns, 3.9), layout="constrained")
    figure.suptitle(f"{grid.table.name}, scale {grid.scale.name}: {grid.table.title}", fontsize=11)
    panels = figure.subplots(1, columns, squeeze=False)[0]
    groups = list(dict.fromkeys(row.group for row in grid.rows))
    for number, axes in enumerate(panels):
        for group, color, marker in zip(groups, (_OURS, _PUBLISHED), "os", strict=False):
            rows = [
                (row.x, row_cells[number])
                for row, row_cells in zip(grid.rows, cells, strict=True)
                if row.group == group and row_cells[number].scores
            ]
            steps = [step for step, _ in rows]
            spread = [0.0 if math.isnan(cell.std) else cell.std for _, cell in rows]
            means = [cell.mean for _, cell in rows]
            for step, cell in rows:
                values = [score.value for score in cell.scores]
                axes.plot(
                    [step] * len(values), values, marker, color=color, alpha=0.3, markersize=3
                )
            axes.errorbar(
                steps,
                means,
                yerr=spread,
                fmt=f"-{marker}",
                color=color,
                capsize=3,
                markersize=5,
                label=group,
            )
        axes.set_title(grid.columns[number].title, fontsize=9)
        axes.set_xlabel("pre-training steps", fontsize=8)
        axes.set_ylabel("score on dev", fontsize=8)
        axes.set_xlim(left=0)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8, frameon=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return _png(figure)


def _png(figure: Any) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, dpi=130, format="png")
    return data.getvalue()
