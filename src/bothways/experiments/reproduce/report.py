"""The results of a table: collected, written as a report, drawn."""

from __future__ import annotations

import io
import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bothways.config.fields import digest, to_dict
from bothways.experiments.chance import is_clear
from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce.execute import Ledger, blocked, machine
from bothways.experiments.reproduce.grid import Grid, ScoreSource, training_tokens, unrepeated_masks
from bothways.experiments.reproduce.steps import Step
from bothways.experiments.reproduce.tables import HELDOUT, Column
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig
from bothways.finetuning.results import deviation
from bothways.pretraining.options import PretrainConfig

MISSING = "–"
FAILURES = "Missing, diverged, collapsed"

# --------------------------------------------------------------------------------
# Results of the steps as cells of a table: every run, means, spread, and what is missing.


@dataclass(frozen=True)
class Score:
    """The score of one run.

    Attributes:
        pretrain_seed: of its model.
        seed: of fine-tuning; None for held-out text.
        score: in percent, unless the column is not a share.
        collapsed: the model gives one answer for everything.
    """

    pretrain_seed: int
    seed: int | None
    score: float
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
        return statistics.fmean(s.score for s in self.scores) if self.scores else math.nan

    @property
    def std(self) -> float:
        """Sample standard deviation over all finished runs; NaN for fewer than two."""
        return deviation([s.score for s in self.scores])

    @property
    def pretrain_std(self) -> float:
        """Sample standard deviation between the means of the pre-training seeds."""
        groups: dict[int, list[float]] = defaultdict(list)
        for score in self.scores:
            groups[score.pretrain_seed].append(score.score)
        return deviation([statistics.fmean(values) for values in groups.values()])

    @property
    def collapsed(self) -> tuple[Score, ...]:
        """The runs whose model gives one answer for everything."""
        return tuple(s for s in self.scores if s.collapsed)


Cells = Sequence[Sequence[Cell]]
"""By row and column."""


def cells(grid: Grid, ledger: Ledger) -> list[list[Cell]]:
    """The cells of all rows, with the scores that have been computed."""
    return [
        [
            _cell(grid, ledger, sources, bound.column)
            for sources, bound in zip(row.cells, grid.columns, strict=True)
        ]
        for row in grid.rows
    ]


def _cell(grid: Grid, ledger: Ledger, sources: Sequence[ScoreSource], column: Column) -> Cell:
    scores: list[Score] = []
    missing: list[str] = []
    diverged: list[str] = []
    for source in sources:
        step, pretrain_seed = grid.steps[source.step], source.pretrain_seed
        result = ledger.result(step)
        if reason := blocked(step, grid.steps, ledger):
            missing.append(reason)
        elif result is None:
            missing.append("not finished")
        elif "diverged_at" in result:
            diverged.append(f"{step.name} diverged: {result['diverged_at']}")
        elif column.of == HELDOUT:
            score = result["scores"][column.metric] * (100 if column.percent else 1)
            scores.append(Score(pretrain_seed, None, score))
        else:
            for part in source.parts:
                seed = int(part.rpartition(":")[2])
                if part in result.get("diverged", {}):
                    why = result["diverged"][part]
                    diverged.append(f"on pre-training {pretrain_seed}, diverged: {why}")
                elif (run := result["runs"].get(part)) is None:
                    missing.append(f"seed {seed} not finished")
                elif (found := _score(run, column)) is None:
                    missing.append(f"{step.name} has no {column.part} file with {column.metric}")
                else:
                    scores.append(Score(pretrain_seed, seed, 100 * found[0], found[1]))
    expected = sum(max(1, len(source.parts)) for source in sources)
    return Cell(tuple(scores), expected, tuple(missing), tuple(diverged))


def _score(run: dict[str, Any], column: Column) -> tuple[float, bool] | None:
    """A run's score as a share of 1, and whether it collapsed; None if the task lacks the score."""
    if "scores" not in run:  # feature-based tagging: the main metric of each file
        return (run[column.part], False) if column.part in run else None
    measured = run if column.part == "dev" else next(iter(run["further"].values()), None)
    if measured is None or (value := measured["scores"].get(column.metric)) is None:
        return None
    return value, measured["collapsed"]


# --------------------------------------------------------------------------------
# Precision and device of recorded steps, which are no part of their names.
#
# A finished step is not computed again when another precision or device is requested, so the reader
# is told which steps were kept, and which rows of a table were computed differently.

_KINDS = {"pretrain": "pre-training", "finetune": "fine-tuning", "features": "features"}
_NUMERICS = ("precision", "device")


def kept_steps(grid: Grid, ledger: Ledger, pending: Collection[str]) -> list[str]:
    """A line for each precision and device of finished steps that are not the requested ones.

    Args:
        grid: the steps, whose configs hold what is requested.
        ledger: the records.
        pending: names of the steps that will be computed.
    """
    kept: dict[tuple[str, str], list[str]] = defaultdict(list)
    for step in grid.steps.values():
        had = _recorded(step, ledger)
        asked = {name: getattr(step.config, name, "auto") for name in _NUMERICS}
        asked = {name: value for name, value in asked.items() if value != "auto"}
        # A card is recorded by its name.
        same = {k: "cuda" if k == "device" and v != "cpu" else v for k, v in had.items()}
        other = any(same.get(k, v) != v for k, v in asked.items())
        if other and step.name not in pending:
            kept[" on ".join(had.values()), " on ".join(asked.values())].append(step.name)
    return [
        f"Computed with {had}, not with {asked} as requested, and kept (a new --out computes them "
        f"again): {', '.join(names)}"
        for (had, asked), names in kept.items()
    ]


def different_rows(grid: Grid, ledger: Ledger) -> list[str]:
    """A line for each kind of step whose precision or device differs between rows."""
    lines = []
    for kind, title in _KINDS.items():
        rows: dict[str, dict[str, None]] = defaultdict(dict)  # labels, each once
        for row in grid.rows:
            measured = [grid.steps[source.step] for cell in row.cells for source in cell]
            read = [grid.steps[name] for step in measured for name in step.needs]
            for step in (*measured, *read):
                if step.kind == kind and (had := _recorded(step, ledger)):
                    rows[" on ".join(had.values())][" / ".join(filter(None, row.label))] = None
        if len(rows) > 1:
            shown = "; ".join(f"{had} for {', '.join(labels)}" for had, labels in rows.items())
            lines.append(f"Rows differ in how they were computed, {title}: {shown}.")
    return lines


def _recorded(step: Step, ledger: Ledger) -> dict[str, str]:
    """Precision and device with which a step began, as far as it has and records them."""
    record = ledger.record(step) or {}
    run = record.get("run") or {} if record.get("result") is not None else {}
    return {name: run[name] for name in _NUMERICS if name in run}


# --------------------------------------------------------------------------------
# What is more than chance. A table of small runs is easily read as a result where it shows noise.


def chance_notes(grid: Grid, ledger: Ledger) -> list[str]:
    """What a constant prediction scores, and which differences from the base row are above two
    standard errors, of seeds and of examples together."""
    table = cells(grid, ledger)
    base, clear = table[grid.table.base], []
    constant, judged = [], set()
    for number, bound in enumerate(grid.columns):
        if bound.column.metric != "accuracy" or bound.column.of == HELDOUT:
            continue  # of other scores the spread over examples is not known
        source = grid.rows[grid.table.base].cells[number][0]
        result = ledger.result(grid.steps[source.step])
        if result is None or "dev_examples" not in result:
            continue
        constant.append(f"{100 * result['baseline']['accuracy']:.1f} in {bound.title}")
        for row, row_cells in zip(grid.rows, table, strict=True):
            own, other = (
                [s.score / 100 for s in c.scores] for c in (row_cells[number], base[number])
            )
            if row_cells is base or not own or not other:
                continue
            judged.add(result["dev_examples"])
            if is_clear(own, other, result["dev_examples"]):
                difference = 100 * (statistics.fmean(own) - statistics.fmean(other))
                clear.append(f"{row.name} {difference:+.1f} in {bound.title}")
    if not constant:
        return []
    notes = [f"A constant prediction scores {', '.join(constant)}."]
    if judged:
        rows, count = grid.rows[grid.table.base].name, " or ".join(map(str, sorted(judged)))
        found = f"Above chance, compared with {rows}: {'; '.join(clear) or 'nothing'}."
        notes.append(
            f"{found} Every other difference of accuracies is within two standard errors, of seeds "
            f"and of the {count} dev examples together: it says nothing about the rows."
        )
    return notes


# --------------------------------------------------------------------------------
# A recomputed table, as Markdown and JSON.


def fingerprint(grid: Grid) -> str:
    """A digest of all that the table depends on: the steps, and the parts that each row reads."""
    rows = [[row.label, [[s.step, s.parts] for c in row.cells for s in c]] for row in grid.rows]
    columns = [(bound.task, bound.column.metric, bound.column.part) for bound in grid.columns]
    return digest([grid.table.name, grid.scale.name, columns, rows])


def markdown(grid: Grid, cells: Cells, ledger: Ledger, config: ReproduceConfig) -> str:
    """The page: the table, notes, settings, times."""
    table, now = grid.table, machine(config)
    missing = list(failures(grid, cells))
    packages = ", ".join(f"{k} {now[k]}" for k in ("bothways", "torch", "python"))
    return "\n".join(
        [
            f"# {table.name}, scale {grid.scale.name}: {table.title}",
            "",
            *_as_markdown(grid_rows(grid, cells)),
            *(["", f"Published: {table.source}."] if table.source else []),
            "",
            *(f"- {note}" for note in (what_scores_are(cells), *notes(grid, ledger))),
            *(["", f"## {FAILURES}", "", *(f"- {line}" for line in missing)] if missing else []),
            *("", "## Settings", "", *_as_markdown([("", ""), *settings(grid)])),
            *("", "## Steps", "", *_as_markdown(step_rows(grid, ledger))),
            "",
            f"Fingerprint {fingerprint(grid)}. Last run on {now['machine']}, {now['cores']} cores, "
            f"device {now['device']}, {now['jobs']} jobs; {packages}. Every run, with its seeds, "
            "settings and machine, is in table.json.\n",
        ]
    )


def record(grid: Grid, cells: Cells, ledger: Ledger, config: ReproduceConfig) -> dict[str, Any]:
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
            {"label": list(row.label), "cells": list(map(_cell_record, row_cells, row.published))}
            for row, row_cells in zip(grid.rows, cells, strict=True)
        ],
        "notes": notes(grid, ledger),
        "recipe": to_dict(grid.base.resolved()),
        "steps": [_step_record(ledger, step) for step in grid.steps.values()],
        "seconds": sum(map(ledger.seconds, grid.steps.values())),
        "machine": machine(config),
    }


def _cell_record(cell: Cell, published: float | None) -> dict[str, Any]:
    figures = {name: getattr(cell, name) for name in ("mean", "std", "pretrain_std")}
    return {
        **{name: None if math.isnan(value) else value for name, value in figures.items()},
        "published": published,
        "asked": cell.expected,
        "runs": [vars(score) for score in cell.scores],
        "missing": list(cell.missing),
        "diverged": list(cell.diverged),
    }


def _step_record(ledger: Ledger, step: Step) -> dict[str, Any]:
    recorded = ledger.record(step) or {}
    unbegun: dict[str, Any] = {
        "settings": step.settings(),
        "result": None,
        "attempts": [],
        "run": None,
    }
    return {
        **{name: getattr(step, name) for name in ("name", "kind", "needs", "inputs")},
        "finished": ledger.done(step),
        **{name: recorded.get(name, value) for name, value in unbegun.items()},
        "machine": recorded.get("machine"),
    }


def what_scores_are(cells: Cells) -> str:
    """A sentence for the reader."""
    counts = " or ".join(map(str, sorted({cell.expected for row in cells for cell in row})))
    return (
        "Scores are in percent, on dev unless stated otherwise, after the last epoch: mean ± "
        f"sample standard deviation over all runs of a cell ({counts}). No run was selected."
    )


def notes(grid: Grid, ledger: Ledger) -> list[str]:
    """For the reader: what is more than chance, of the table, of the scale and its recipe, of the
    corpus and the records."""
    masks = unrepeated_masks(grid.table, grid.steps.values())
    chance = chance_notes(grid, ledger) if grid.scale.chance else []
    return [*chance, *grid.table.notes, *grid.notes, *masks, *different_rows(grid, ledger)]


def shown(cell: Cell, metric: str = "accuracy") -> str:
    """A cell as printed."""
    if not cell.scores:
        return "diverged" if cell.diverged and not cell.missing else MISSING
    digits = {"bits_per_character": 3, "perplexity": 2}.get(metric, 1)
    text = f"{cell.mean:.{digits}f}"
    if not math.isnan(cell.std):
        text += f" ± {cell.std:.{digits}f}"
    if len(cell.scores) < cell.expected:
        text += f" ({len(cell.scores)} of {cell.expected})"
    if cell.collapsed:
        text += f" ({len(cell.collapsed)} collapsed)"
    return text


def as_published(figure: float | None) -> str:
    """A published figure with at least one decimal, and no more than were published."""
    if figure is None:
        return MISSING
    return f"{figure:.1f}" if round(figure, 1) == figure else f"{figure:g}"


def _as_markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, its header first."""
    header, *body = [
        f"| {' | '.join(row)} |" if any(row) else f"|{' |' * len(row)}" for row in rows
    ]
    return [header, f"|{'---|' * len(rows[0])}", *body]


def grid_rows(grid: Grid, cells: Cells) -> list[list[str]]:
    """The table as texts, its header first."""
    published = list(zip(*(row.published for row in grid.rows), strict=True))
    with_figures = [any(figure is not None for figure in column) for column in published]
    heads = [*grid.table.headings]
    for bound, has_figures in zip(grid.columns, with_figures, strict=True):
        heads += [bound.title, "published"] if has_figures else [bound.title]
    rows = [heads]
    for row, row_cells in zip(grid.rows, cells, strict=True):
        texts = [*row.label]
        for number, (bound, cell) in enumerate(zip(grid.columns, row_cells, strict=True)):
            texts.append(shown(cell, bound.column.metric))
            if with_figures[number]:
                texts.append(as_published(row.published[number]))
        rows.append(texts)
    return rows


def failures(grid: Grid, cells: Cells) -> Iterator[str]:
    """One line for each reason and row: runs that are missing, diverged or collapsed."""
    for row, row_cells in zip(grid.rows, cells, strict=True):
        missing: dict[str, list[str]] = {}
        failed = []
        for bound, cell in zip(grid.columns, row_cells, strict=True):
            for reason in dict.fromkeys(cell.missing):
                missing.setdefault(reason, []).append(bound.title)
            failed += [f"{bound.title}, {run}" for run in cell.diverged]
            if cell.collapsed:
                runs = "; ".join(score.name for score in cell.collapsed)
                failed.append(f"{bound.title}: collapsed: {runs}")
        for why, titles in missing.items():
            yield f"{row.name}: {why}: {', '.join(titles)}"
        yield from (f"{row.name}: {failure}" for failure in failed)


def settings(grid: Grid) -> list[tuple[str, str]]:
    """Pairs of what and how."""
    base: PretrainConfig = grid.base
    shape, masking, optimizer = base.model.resolve(vocab_size=1), base.masking, base.optimizer
    phases = "; ".join(
        f"{p.share:.0%} of steps: {p.batch} sequences of {p.length} tokens" for p in base.phases
    )
    repeated = f", repeated after {masking.duplicates} epochs" if masking.duplicates else ""
    steps = list(grid.steps.values())
    corpora = sorted({_corpus(step) for step in steps if step.kind == "pretrain"})
    tasks = [_task_settings(step) for step in steps if step.kind in ("finetune", "features")]
    return [
        ("base model", f"{shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads"),
        ("pre-training", f"{base.clock.steps:,} steps; {phases}"),
        (
            "its pairs and masking",
            f"pairs.kind {base.pairs.kind}; masking.kind {masking.kind}, masking.rate "
            f"{masking.rate:g}{repeated}; unless the row says otherwise",
        ),
        (
            "its optimizer",
            f"{optimizer.name}, learning rate {optimizer.lr:g}, warm-up {optimizer.warmup:.0%}, "
            f"bias correction {'on' if optimizer.bias_correction else 'off'}",
        ),
        ("corpora", ", ".join(corpora)),
        *dict.fromkeys(tasks),
    ]


def _task_settings(step: Step) -> tuple[str, str]:
    """A row with the settings of a run on a task."""
    recipe: FinetuneConfig | FeaturesConfig = step.config.resolved()
    name, by_features = recipe.task.name, isinstance(recipe, FeaturesConfig)
    seeds = dict.fromkeys(part.rpartition(":")[2] for part in step.wanted)
    settings = [
        f"learning rate {recipe.optimizer.lr:g}",
        f"batch {recipe.batch}",
        f"{recipe.epochs} epoch{'s' * (recipe.epochs > 1)}",
        f"length {recipe.length}",
    ]
    if isinstance(recipe, FeaturesConfig):
        settings.append(f"BiLSTM of {recipe.hidden} in each direction")
    if recipe.task.kind == "tagging":
        settings.append(f"context: the {recipe.task.tagging.context}")
    by = ", by features" * by_features
    return f"{name}{by}", f"{', '.join(settings)}; seeds {' '.join(seeds)}"


def _corpus(step: Step) -> str:
    """The digest of a run's corpus, its size, and how many times the run reads it."""
    recipe: PretrainConfig = step.config
    if (tokens := training_tokens(step)) is None:
        return step.inputs[0]
    read = sum(p.share * p.batch * p.length for p in recipe.phases) * (recipe.clock.steps or 0)
    return f"{step.inputs[0]}: {tokens:,} tokens, read about {read / tokens:.2g} times"


def step_rows(grid: Grid, ledger: Ledger) -> list[list[str]]:
    """What each step took, below a header."""
    rows, total = [["step", "minutes", "CPU minutes"]], 0.0
    for step in grid.steps.values():
        attempts, seconds = ledger.attempts(step), ledger.seconds(step)
        cpu = sum(a["cpu_seconds"] or 0.0 for a in attempts)
        killed = sum(a["seconds"] is None for a in attempts)
        note = f" (and {killed} killed, not timed)" if killed else ""
        state = "" if ledger.done(step) else " (unfinished)"
        total += seconds
        rows.append([f"{step.name}{state}", f"{seconds / 60:.1f}{note}", f"{cpu / 60:.1f}"])
    return [*rows, ["all", f"{total / 60:.1f}", ""]]


# --------------------------------------------------------------------------------
# A recomputed table, as a picture.
#
# Each column is a panel. Scores of different models and tasks do not fit on one axis, so rows are
# drawn as differences from the base row: ours with every run and the spread, and the published ones
# next to them. Curves are drawn as scores against steps.

_OURS, _PUBLISHED, _FAINT = "#1f5fa8", "#c8641b", "0.45"
_PANEL_WIDTH, _ROW_HEIGHT = 3.6, 0.42


def draw(grid: Grid, cells: Cells) -> bytes:
    """The bytes of a PNG."""
    from matplotlib.figure import Figure  # slow import

    names, columns = [row.name for row in grid.rows], len(grid.columns)
    size = (
        0.4 + 0.075 * max(map(len, names)) + _PANEL_WIDTH * columns,
        1.75 + _ROW_HEIGHT * len(names),
    )
    figure = Figure((5.2 * columns, 3.9) if grid.table.curve else size, layout="constrained")
    figure.suptitle(f"{grid.table.name}, scale {grid.scale.name}: {grid.table.title}", fontsize=11)
    panels = figure.subplots(1, columns, sharey=not grid.table.curve, squeeze=False)[0]
    for number, axes in enumerate(panels):
        (_curves if grid.table.curve else _differences)(axes, grid, cells, number)
        axes.set_title(grid.columns[number].title, fontsize=9)
        axes.tick_params(labelsize=8)
    if not grid.table.curve:
        panels[0].set_yticks(range(len(names)), names, fontsize=9)
        panels[0].set_ylabel(" / ".join(grid.table.headings), fontsize=8, color=_FAINT)
        panels[0].set_ylim(len(names) - 0.4, -0.6)
        _legend(figure, published=any(f is not None for row in grid.rows for f in row.published))
    data = io.BytesIO()
    figure.savefig(data, dpi=130, format="png")
    return data.getvalue()


def _legend(figure: Any, *, published: bool) -> None:
    from matplotlib.lines import Line2D

    ours = "ours: mean, runs, standard deviation"
    handles = [Line2D([], [], color=_OURS, marker="o", linestyle="", label=ours)]
    if published:
        style: Any = {"marker": "D", "linestyle": "", "fillstyle": "none", "label": "published"}
        handles.append(Line2D([], [], color=_PUBLISHED, **style))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def _differences(axes: Any, grid: Grid, cells: Cells, number: int) -> None:
    """One column: the differences of its rows from the base row."""
    bound, base = grid.columns[number], grid.table.base
    zero, base_figure = cells[base][number].mean, grid.rows[base].published[number]

    def difference(value: float, base: float) -> float:
        """In points for shares, otherwise in percent of the base."""
        return value - base if bound.column.percent else 100 * (value / base - 1)

    def beside(y: float, text: str, color: str) -> None:
        at = axes.get_yaxis_transform()
        axes.text(1.02, y, text, transform=at, ha="left", va="center", fontsize=7, color=color)

    axes.axvline(0, color="0.8", linewidth=1, zorder=0)
    for y, row in enumerate(grid.rows):
        cell, figure = cells[y][number], row.published[number]
        drawn = cell.scores and not math.isnan(zero)
        if drawn:
            values = [difference(score.score, zero) for score in cell.scores]
            mean = difference(cell.mean, zero)
            axes.plot(values, [y - 0.1] * len(values), "o", color=_OURS, alpha=0.3, markersize=3)
            spread = None if math.isnan(cell.std) else difference(zero + cell.std, zero)
            axes.errorbar(mean, y - 0.1, xerr=spread, fmt="o", color=_OURS, markersize=6, capsize=3)
        text = shown(cell, bound.column.metric).replace(MISSING, "missing")
        beside(y - 0.1, text, _OURS if drawn else _FAINT)
        if figure is not None and base_figure is not None:
            at, style = difference(figure, base_figure), {"fillstyle": "none", "markersize": 5}
            axes.plot(at, y + 0.2, "D", color=_PUBLISHED, **style)
            beside(y + 0.2, as_published(figure), _PUBLISHED)
    unit = "points" if bound.column.percent else "percent"
    axes.set_xlabel(f"{unit}, difference from {grid.rows[base].name}", fontsize=8)
    axes.margins(x=0.3)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _curves(axes: Any, grid: Grid, cells: Cells, number: int) -> None:
    """One column: a curve for each group of rows."""
    groups = dict.fromkeys(row.group for row in grid.rows)
    for group, color, marker in zip(groups, (_OURS, _PUBLISHED), "os", strict=False):
        points = [
            (row.x, row_cells[number])
            for row, row_cells in zip(grid.rows, cells, strict=True)
            if row.group == group and row_cells[number].scores
        ]
        for step, cell in points:
            values = [score.score for score in cell.scores]
            axes.plot([step] * len(values), values, marker, color=color, alpha=0.3, markersize=3)
        steps, means = [step for step, _ in points], [cell.mean for _, cell in points]
        spread = [0.0 if math.isnan(cell.std) else cell.std for _, cell in points]
        style = {"fmt": f"-{marker}", "color": color, "capsize": 3, "markersize": 5}
        axes.errorbar(steps, means, yerr=spread, label=group, **style)
    axes.set_xlabel("pre-training steps", fontsize=8)
    axes.set_ylabel("score on dev", fontsize=8)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
