"""The results of a table: collected, written as a report, drawn."""

from __future__ import annotations

import io
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bothways.config.fields import digest, to_dict
from bothways.experiments.reproduce.execute import Ledger, blocked, machine
from bothways.experiments.reproduce.forecast import different_rows
from bothways.experiments.reproduce.grid import Grid, ScoreSource, training_tokens, unrepeated_masks
from bothways.experiments.reproduce.options import ReproduceConfig
from bothways.experiments.reproduce.steps import Step
from bothways.experiments.reproduce.tables import HELDOUT, Column
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig
from bothways.pretraining.options import PretrainConfig

# --------------------------------------------------------------------------------
# Results of the steps as cells of a table: every run, means, spread, and what is missing.


@dataclass(frozen=True)
class Score:
    """The score of one run.

    Attributes:
        value: in percent, unless the column is not a share.
        pretrain_seed: of its model.
        seed: of fine-tuning; None for held-out text.
        collapsed: the model gives one answer for everything.
    """

    value: float
    pretrain_seed: int
    seed: int | None
    collapsed: bool = False

    @property
    def name(self) -> str:
        """The run's seeds, as printed."""
        seed = "" if self.seed is None else f" seed {self.seed}"
        return f"pre-training {self.pretrain_seed}{seed}"


@dataclass(frozen=True)
class Cell:
    """The scores of a row in a column.

    Attributes:
        scores: of the finished runs.
        expected: how many runs there should be.
        missing: the reasons why runs are missing.
        diverged: runs that have no score because training diverged.
    """

    scores: tuple[Score, ...]
    expected: int
    missing: tuple[str, ...] = ()
    diverged: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Over all finished runs; NaN if there are none."""
        return statistics.fmean(s.value for s in self.scores) if self.scores else math.nan

    @property
    def std(self) -> float:
        """Sample standard deviation over all finished runs; NaN for fewer than two."""
        values = [s.value for s in self.scores]
        return statistics.stdev(values) if len(values) > 1 else math.nan

    @property
    def pretrain_std(self) -> float:
        """Sample standard deviation between the means of the pre-training seeds."""
        groups: dict[int, list[float]] = defaultdict(list)
        for score in self.scores:
            groups[score.pretrain_seed].append(score.value)
        means = [statistics.fmean(values) for values in groups.values()]
        return statistics.stdev(means) if len(means) > 1 else math.nan

    @property
    def collapsed(self) -> tuple[Score, ...]:
        """The runs whose model gives one answer for everything."""
        return tuple(s for s in self.scores if s.collapsed)


def cells(grid: Grid, ledger: Ledger) -> list[list[Cell]]:
    """The cells of all rows, with the scores that have been computed."""
    return [
        [
            _cell(grid, ledger, row.cells[number], bound.column)
            for number, bound in enumerate(grid.columns)
        ]
        for row in grid.rows
    ]


def _cell(grid: Grid, ledger: Ledger, sources: tuple[ScoreSource, ...], column: Column) -> Cell:
    scores: list[Score] = []
    missing: list[str] = []
    diverged: list[str] = []
    for source in sources:
        step = grid.steps[source.step]
        result = ledger.result(step)
        if reason := blocked(step, grid.steps, ledger):
            missing.append(reason)
        elif result is None:
            missing.append("not finished")
        elif "diverged_at" in result:
            diverged.append(f"{step.name} diverged: {result['diverged_at']}")
        elif column.of == HELDOUT:
            value = result["scores"][column.metric]
            scores.append(Score(value * (100 if column.percent else 1), source.pretrain_seed, None))
        else:
            _read_runs(result, source, column, scores, missing, diverged)
    expected = sum(max(1, len(source.parts)) for source in sources)
    return Cell(tuple(scores), expected, tuple(missing), tuple(diverged))


def _read_runs(
    result: dict[str, Any],
    source: ScoreSource,
    column: Column,
    scores: list[Score],
    missing: list[str],
    diverged: list[str],
) -> None:
    for part, seed in zip(source.parts, source.seeds, strict=True):
        run = result["runs"].get(part)
        if part in result.get("diverged", {}):
            diverged.append(
                f"on pre-training {source.pretrain_seed}, diverged: {result['diverged'][part]}"
            )
        elif run is None:
            missing.append(f"seed {seed} not finished")
        else:
            score = _score(run, column)
            if score is None:
                missing.append(f"{source.step} has no {column.part} file with {column.metric}")
            else:
                value, collapsed = score
                scores.append(Score(100 * value, source.pretrain_seed, seed, collapsed))


def _score(run: dict[str, Any], column: Column) -> tuple[float, bool] | None:
    """A run's score as a share of 1, and whether it collapsed; None if the task lacks the score."""
    if "scores" not in run:  # feature-based tagging: the main metric of each file
        return None if column.part not in run else (run[column.part], False)
    measured = run
    if column.part == "test":
        if not run["further"]:
            return None
        measured = next(iter(run["further"].values()))
    value = measured["scores"].get(column.metric)
    return None if value is None else (value, measured["collapsed"])


# --------------------------------------------------------------------------------
# A recomputed table, as Markdown and JSON.

_TASK_RUNS = ("finetune", "features")
MISSING = "–"


def fingerprint(grid: Grid) -> str:
    """A digest of all that the table depends on: the steps, and the parts that each row reads."""
    rows = [[row.label, [[s.step, s.parts] for c in row.cells for s in c]] for row in grid.rows]
    columns = [(bound.task, bound.column.metric, bound.column.part) for bound in grid.columns]
    return digest([grid.table.name, grid.scale.name, columns, rows])


def markdown(
    grid: Grid, cells: Sequence[Sequence[Cell]], ledger: Ledger, config: ReproduceConfig
) -> str:
    """The page: the table, notes, settings, times."""
    table, scale = grid.table, grid.scale
    lines = [f"# {table.name}, scale {scale.name}: {table.title}", ""]
    lines += _grid_lines(grid, cells)
    lines += ["", f"Published: {table.source}."] if table.source else []
    lines += ["", *_score_notes(cells)]
    lines += [f"- {note}" for note in _notes(grid, ledger)]
    if failures := _failures(grid, cells):
        lines += ["", "## Missing, diverged, collapsed", "", *failures]
    lines += ["", "## Settings", "", *_settings(grid)]
    lines += ["", "## Steps", "", *_steps(grid, ledger)]
    now = machine(config)
    packages = ", ".join(f"{k} {now[k]}" for k in ("bothways", "torch", "python"))
    lines += [
        "",
        f"Fingerprint {fingerprint(grid)}. Last run on {now['machine']}, {now['cores']} cores, "
        f"device {now['device']}, {now['jobs']} jobs; {packages}. Every run, with its seeds, "
        "settings and machine, is in table.json.",
    ]
    return "\n".join(lines) + "\n"


def record(
    grid: Grid, cells: Sequence[Sequence[Cell]], ledger: Ledger, config: ReproduceConfig
) -> dict[str, Any]:
    """The table as JSON-able data, with every run."""
    return {
        "format": 1,
        "table": grid.table.name,
        "scale": grid.scale.name,
        "title": grid.table.title,
        "source": grid.table.source,
        "fingerprint": fingerprint(grid),
        "complete": all(not cell.missing for row in cells for cell in row),
        "headings": list(grid.table.headings),
        "columns": [
            {
                "title": bound.title,
                "paper": bound.column.title,
                "task": bound.task or None,
                "metric": bound.column.metric,
                "part": bound.column.part,
            }
            for bound in grid.columns
        ],
        "rows": [
            {
                "label": list(row.label),
                "cells": [
                    _cell_record(cell, published)
                    for cell, published in zip(row_cells, row.published, strict=True)
                ],
            }
            for row, row_cells in zip(grid.rows, cells, strict=True)
        ],
        "notes": _notes(grid, ledger),
        "recipe": to_dict(grid.base.resolved()),
        "steps": [_step_record(ledger, name, grid) for name in grid.steps],
        "seconds": sum(ledger.seconds(step) for step in grid.steps.values()),
        "machine": machine(config),
    }


def _notes(grid: Grid, ledger: Ledger) -> list[str]:
    """For the reader: of the table, of the scale and its recipe, of the corpus and the records."""
    masks = unrepeated_masks(grid.table, grid.steps.values())
    return [*grid.table.notes, *grid.notes, *masks, *different_rows(grid, ledger)]


def shown(cell: Cell, *, digits: int = 1) -> str:
    """A cell as printed."""
    if not cell.scores:
        return "diverged" if cell.diverged and not cell.missing else MISSING
    text = f"{cell.mean:.{digits}f}"
    if not math.isnan(cell.std):
        text += f" ± {cell.std:.{digits}f}"
    if len(cell.scores) < cell.expected:
        text += f" ({len(cell.scores)} of {cell.expected})"
    if cell.collapsed:
        text += f" ({len(cell.collapsed)} collapsed)"
    return text


def as_published(figure: float) -> str:
    """A published figure with at least one decimal, and no more than were published."""
    return f"{figure:.1f}" if round(figure, 1) == figure else f"{figure:g}"


def digits_of(metric: str) -> int:
    """How many decimals of a metric are shown."""
    return {"bits_per_character": 3, "perplexity": 2}.get(metric, 1)


def _grid_lines(grid: Grid, cells: Sequence[Sequence[Cell]]) -> list[str]:
    heads = [*grid.table.headings]
    for number, bound in enumerate(grid.columns):
        heads.append(bound.title)
        if _has_published(grid, number):
            heads.append("published")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row, row_cells in zip(grid.rows, cells, strict=True):
        texts = [*row.label]
        for number, (bound, cell) in enumerate(zip(grid.columns, row_cells, strict=True)):
            texts.append(shown(cell, digits=digits_of(bound.column.metric)))
            if _has_published(grid, number):
                figure = row.published[number]
                texts.append(MISSING if figure is None else as_published(figure))
        lines.append(f"| {' | '.join(texts)} |")
    return lines


def _has_published(grid: Grid, column: int) -> bool:
    return any(row.published[column] is not None for row in grid.rows)


def _score_notes(cells: Sequence[Sequence[Cell]]) -> list[str]:
    """How to read the scores."""
    counts = sorted({cell.expected for row in cells for cell in row})
    runs = " or ".join(map(str, counts))
    return [
        "- Scores are in percent, on dev unless stated otherwise, after the last epoch: mean ± "
        f"sample standard deviation over all runs of a cell ({runs}). No run was selected."
    ]


def _failures(grid: Grid, cells: Sequence[Sequence[Cell]]) -> list[str]:
    """One line for each reason and row: runs that are missing, diverged or collapsed."""
    lines = []
    for row, row_cells in zip(grid.rows, cells, strict=True):
        missing: dict[str, list[str]] = {}
        failures = []
        for bound, cell in zip(grid.columns, row_cells, strict=True):
            for reason in dict.fromkeys(cell.missing):
                missing.setdefault(reason, []).append(bound.title)
            failures += [f"{bound.title}, {run}" for run in cell.diverged]
            if cell.collapsed:
                runs = "; ".join(score.name for score in cell.collapsed)
                failures.append(f"{bound.title}: collapsed: {runs}")
        name = " / ".join(row.label)
        lines += [f"- {name}: {why}: {', '.join(titles)}" for why, titles in missing.items()]
        lines += [f"- {name}: {failure}" for failure in failures]
    return lines


def _settings(grid: Grid) -> list[str]:
    base: PretrainConfig = grid.base
    shape = base.model.resolve(vocab_size=1)
    optimizer = base.optimizer
    phases = "; ".join(
        f"{p.share:.0%} of steps: {p.batch} sequences of {p.length} tokens" for p in base.phases
    )
    masking = base.masking
    repeated = f", repeated after {masking.duplicates} epochs" if masking.duplicates else ""
    lines = [
        "| | |",
        "|---|---|",
        f"| base model | {shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads |",
        f"| pre-training | {base.clock.steps:,} steps; {phases} |",
        f"| its pairs and masking | pairs.kind {base.pairs.kind}; masking.kind {masking.kind}, "
        f"masking.rate {masking.rate:g}{repeated}; unless the row says otherwise |",
        f"| its optimizer | {optimizer.name}, learning rate {optimizer.lr:g}, warm-up "
        f"{optimizer.warmup:.0%}, bias correction {'on' if optimizer.bias_correction else 'off'} |",
    ]
    runs = [step for step in grid.steps.values() if step.kind == "pretrain"]
    lines.append(f"| corpora | {', '.join(sorted({_corpus(step) for step in runs}))} |")
    tasks = [_task_settings(step) for step in grid.steps.values() if step.kind in _TASK_RUNS]
    return [*lines, *dict.fromkeys(tasks)]


def _task_settings(step: Step) -> str:
    """A row with the settings of a run on a task."""
    recipe: FinetuneConfig | FeaturesConfig = step.config.resolved()
    name, settings = (
        recipe.task.name,
        [
            f"learning rate {recipe.optimizer.lr:g}",
            f"batch {recipe.batch}",
            f"{recipe.epochs} epoch{'s' * (recipe.epochs > 1)}",
            f"length {recipe.length}",
        ],
    )
    if isinstance(recipe, FeaturesConfig):
        name = f"{name}, by features"
        settings.append(f"BiLSTM of {recipe.hidden} in each direction")
    if recipe.task.kind == "tagging":
        settings.append(f"context: the {recipe.task.tagging.context}")
    seeds = dict.fromkeys(part.rpartition(":")[2] for part in step.wanted)
    return f"| {name} | {', '.join(settings)}; seeds {' '.join(seeds)} |"


def _corpus(step: Step) -> str:
    """The digest of a run's corpus, its size, and how many times the run reads it."""
    recipe: PretrainConfig = step.config
    if (tokens := training_tokens(step)) is None:
        return step.inputs[0]
    read = sum(p.share * p.batch * p.length for p in recipe.phases) * (recipe.clock.steps or 0)
    return f"{step.inputs[0]}: {tokens:,} tokens, read about {read / tokens:.2g} times"


def _steps(grid: Grid, ledger: Ledger) -> list[str]:
    lines = ["| step | minutes | CPU minutes |", "|---|---|---|"]
    total = 0.0
    for step in grid.steps.values():
        attempts = (ledger.record(step) or {}).get("attempts", [])
        seconds = ledger.seconds(step)
        cpu = sum(a["cpu_seconds"] or 0.0 for a in attempts)
        killed = sum(a["seconds"] is None for a in attempts)
        note = f" (and {killed} killed, not timed)" if killed else ""
        state = "" if ledger.done(step) else " (unfinished)"
        total += seconds
        lines.append(f"| {step.name}{state} | {seconds / 60:.1f}{note} | {cpu / 60:.1f} |")
    return [*lines, f"| all | {total / 60:.1f} | |"]


def _cell_record(cell: Cell, published: float | None) -> dict[str, Any]:
    def plain(value: float) -> float | None:
        return None if math.isnan(value) else value

    return {
        "mean": plain(cell.mean),
        "std": plain(cell.std),
        "pretrain_std": plain(cell.pretrain_std),
        "published": published,
        "asked": cell.expected,
        "runs": [
            {
                "pretrain_seed": score.pretrain_seed,
                "seed": score.seed,
                "score": score.value,
                "collapsed": score.collapsed,
            }
            for score in cell.scores
        ],
        "missing": list(cell.missing),
        "diverged": list(cell.diverged),
    }


def _step_record(ledger: Ledger, name: str, grid: Grid) -> dict[str, Any]:
    step = grid.steps[name]
    recorded = ledger.record(step) or {}
    return {
        "name": name,
        "kind": step.kind,
        "needs": list(step.needs),
        "inputs": list(step.inputs),
        "finished": ledger.done(step),
        "settings": recorded.get("settings", step.settings()),
        "result": recorded.get("result"),
        "attempts": recorded.get("attempts", []),
        "run": recorded.get("run"),
        "machine": recorded.get("machine"),
    }


# --------------------------------------------------------------------------------
# A recomputed table, as a picture.
#
# Each column is a panel. Scores of different models and tasks do not fit on one axis, so rows are
# drawn as differences from the base row: ours with every run and the spread, and the published ones
# next to them. Curves are drawn as scores against steps.

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
