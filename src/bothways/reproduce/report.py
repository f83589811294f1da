"""A table that was recomputed, as Markdown and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bothways.config import FinetuneConfig, PretrainConfig, ReproduceConfig, digest, to_dict
from bothways.reproduce.execute import Ledger, machine
from bothways.reproduce.grid import Grid
from bothways.reproduce.results import Cell

MISSING = "–"


def fingerprint(grid: Grid) -> str:
    """A digest of all that the table depends on: the steps' keys, what each row reads of them."""
    rows = [[row.label, [[s.step, s.parts] for c in row.cells for s in c]] for row in grid.rows]
    columns = [(bound.task, bound.column.metric, bound.column.part) for bound in grid.columns]
    return digest([grid.table.name, grid.scale.name, columns, rows])


def markdown(
    grid: Grid, cells: Sequence[Sequence[Cell]], ledger: Ledger, config: ReproduceConfig
) -> str:
    """The page: the table, what to know of it, settings, times."""
    table, scale = grid.table, grid.scale
    lines = [f"# {table.name}, scale {scale.name}: {table.title}", ""]
    lines += _grid_lines(grid, cells)
    lines += ["", f"Published: {table.source}."] if table.source else []
    lines += ["", *_reading(cells)]
    lines += [f"- {note}" for note in (*table.notes, *grid.notes)]
    if found := _not_there(grid, cells):
        lines += ["", "## Missing, diverged, collapsed", "", *found]
    lines += ["", "## Settings", "", *_settings(grid)]
    lines += ["", "## Steps", "", *_steps(grid, ledger)]
    now = machine(config)
    packages = ", ".join(f"{k} {now[k]}" for k in ("bothways", "torch", "python"))
    lines += [
        "",
        f"Fingerprint {fingerprint(grid)}. Last on {now['machine']}, {now['cores']} cores, device "
        f"{now['device']}, {now['jobs']} jobs; {packages}. Every run, with its seeds, settings and "
        "machine, is in table.json.",
    ]
    return "\n".join(lines) + "\n"


def record(
    grid: Grid, cells: Sequence[Sequence[Cell]], ledger: Ledger, config: ReproduceConfig
) -> dict[str, Any]:
    """The table as JSON-able data: every run, with nothing left out."""
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
                    for cell, published in zip(found, row.published, strict=True)
                ],
            }
            for row, found in zip(grid.rows, cells, strict=True)
        ],
        "notes": [*grid.table.notes, *grid.notes],
        "recipe": to_dict(grid.base),
        "steps": [_step_record(ledger, name, grid) for name in grid.steps],
        "seconds": sum(ledger.seconds(step) for step in grid.steps.values()),
        "machine": machine(config),
    }


def shown(cell: Cell, *, digits: int = 1) -> str:
    """A cell for a reader."""
    if not cell.scores:
        return "diverged" if cell.diverged and not cell.missing else MISSING
    text = f"{cell.mean:.{digits}f}"
    if not math.isnan(cell.std):
        text += f" ± {cell.std:.{digits}f}"
    if len(cell.scores) < cell.asked:
        text += f" ({len(cell.scores)} of {cell.asked})"
    if cell.collapsed:
        text += f" ({len(cell.collapsed)} collapsed)"
    return text


def as_published(figure: float) -> str:
    """A published figure with one decimal at least, and no more than were printed."""
    return f"{figure:.1f}" if round(figure, 1) == figure else f"{figure:g}"


def digits_of(metric: str) -> int:
    """Decimals shown."""
    return {"bits_per_character": 3, "perplexity": 2}.get(metric, 1)


def _grid_lines(grid: Grid, cells: Sequence[Sequence[Cell]]) -> list[str]:
    heads = [*grid.table.headings]
    for number, bound in enumerate(grid.columns):
        heads.append(bound.title)
        if _has_published(grid, number):
            heads.append("published")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row, found in zip(grid.rows, cells, strict=True):
        texts = [*row.label]
        for number, (bound, cell) in enumerate(zip(grid.columns, found, strict=True)):
            texts.append(shown(cell, digits=digits_of(bound.column.metric)))
            if _has_published(grid, number):
                figure = row.published[number]
                texts.append(MISSING if figure is None else as_published(figure))
        lines.append(f"| {' | '.join(texts)} |")
    return lines


def _has_published(grid: Grid, column: int) -> bool:
    return any(row.published[column] is not None for row in grid.rows)


def _reading(cells: Sequence[Sequence[Cell]]) -> list[str]:
    """How the figures are to be read."""
    counts = sorted({cell.asked for row in cells for cell in row})
    runs = " or ".join(map(str, counts))
    return [
        "- Scores are of 100, on dev unless said otherwise, after the last epoch: mean ± sample "
        f"standard deviation over all runs of a cell ({runs}). Nothing was chosen among runs."
    ]


def _not_there(grid: Grid, cells: Sequence[Sequence[Cell]]) -> list[str]:
    lines = []
    for row, found in zip(grid.rows, cells, strict=True):
        missing: dict[str, list[str]] = {}
        others = []
        for bound, cell in zip(grid.columns, found, strict=True):
            for reason in dict.fromkeys(cell.missing):
                missing.setdefault(reason, []).append(bound.title)
            others += [f"{bound.title}, {run}" for run in cell.diverged]
            if cell.collapsed:
                runs = "; ".join(score.name for score in cell.collapsed)
                others.append(f"{bound.title}: collapsed: {runs}")
        name = " / ".join(row.label)
        lines += [f"- {name}: {reason}: {', '.join(at)}" for reason, at in missing.items()]
        lines += [f"- {name}: {other}" for other in others]
    return lines


def _settings(grid: Grid) -> list[str]:
    base: PretrainConfig = grid.base
    shape = base.model.resolve(vocab_size=1)
    optimizer = base.optimizer
    phases = "; ".join(
        f"{p.share:.0%} of steps: {p.batch} of {p.length} tokens" for p in base.phases
    )
    lines = [
        "| | |",
        "|---|---|",
        f"| base model | {shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads |",
        f"| pre-training | {base.clock.steps:,} steps; {phases} |",
        f"| its optimizer | {optimizer.name}, learning rate {optimizer.lr:g}, warm-up "
        f"{optimizer.warmup:.0%}, bias correction {'on' if optimizer.bias_correction else 'off'} |",
    ]
    corpus = [s for s in grid.steps.values() if s.kind == "pretrain"]
    lines.append(f"| corpora | {', '.join(sorted({s.inputs[0] for s in corpus}))} |")
    seen: dict[str, None] = {}
    for step in grid.steps.values():
        if step.kind == "finetune":
            own: FinetuneConfig = step.config
            seen[
                f"| {own.task.name} | learning rate {own.optimizer.lr:g}, batch {own.batch}, "
                f"{own.epochs} epochs, length {own.length}; seeds {' '.join(step.wanted)} |"
            ] = None
    return [*lines, *seen]


def _steps(grid: Grid, ledger: Ledger) -> list[str]:
    lines = ["| step | minutes | CPU minutes |", "|---|---|---|"]
    total = 0.0
    for step in grid.steps.values():
        attempts = (ledger.record(step) or {}).get("attempts", [])
        seconds = ledger.seconds(step)
        cpu = sum(a["cpu_seconds"] or 0.0 for a in attempts)
        broken = sum(a["seconds"] is None for a in attempts)
        note = f" (and {broken} killed, not timed)" if broken else ""
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
        "asked": cell.asked,
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
    found = ledger.record(step) or {}
    return {
        "name": name,
        "kind": step.kind,
        "needs": list(step.needs),
        "inputs": list(step.inputs),
        "finished": ledger.done(step),
        "settings": found.get("settings", step.settings()),
        "result": found.get("result"),
        "attempts": found.get("attempts", []),
        "machine": found.get("machine"),
    }
