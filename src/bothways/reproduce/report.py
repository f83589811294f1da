"""A recomputed table, as Markdown and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bothways.config import (
    FeaturesConfig,
    FinetuneConfig,
    PretrainConfig,
    ReproduceConfig,
    digest,
    to_dict,
)
from bothways.reproduce.execute import Ledger, machine
from bothways.reproduce.grid import Grid
from bothways.reproduce.notes import training_tokens, unrepeated_masks
from bothways.reproduce.numerics import different_rows
from bothways.reproduce.results import Cell
from bothways.reproduce.steps import Step

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
        "recipe": to_dict(grid.base),
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
    recipe: FinetuneConfig | FeaturesConfig = step.config
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
