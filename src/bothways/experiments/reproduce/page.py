"""A recomputed table as a page that one can look at and hand over."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce.execute import Ledger, arguments, machine
from bothways.experiments.reproduce.grid import Grid
from bothways.experiments.reproduce.report import (
    FAILURES,
    Cells,
    failures,
    fingerprint,
    grid_rows,
    notes,
    settings,
    step_rows,
    what_scores_are,
)
from bothways.io import html


def page(grid: Grid, cells: Cells, ledger: Ledger, config: ReproduceConfig, plot: bytes) -> str:
    """The table, its picture, what is to be known of it, and how it was made.

    Args:
        grid: the table at a scale.
        cells: its scores so far.
        ledger: the records of its steps.
        config: the command.
        plot: a PNG.
    """
    title = f"{grid.table.title} ({grid.table.name}, scale {grid.scale.name})"
    header, *rows = grid_rows(grid, cells)
    missing = list(failures(grid, cells))
    source = f"Published: {grid.table.source}." if grid.table.source else ""
    steps = step_rows(grid, ledger)
    return html.page(
        title,
        [
            html.heading(title, 1),
            html.table(header, rows),
            *([html.note(source)] if source else []),
            html.picture(plot, "the scores of all runs as dots, beside the first row's"),
            html.heading("How to read it"),
            html.listing([what_scores_are(cells), *notes(grid, ledger)]),
            *([html.heading(FAILURES), html.listing(missing)] if missing else []),
            html.heading("Settings"),
            html.table(("", ""), settings(grid)),
            html.heading("How this was made"),
            html.command(_command(config)),
            html.paragraph(_made(grid, ledger, config)),
            html.folded("What each step took", html.table(steps[0], steps[1:])),
        ],
    )


def _command(config: ReproduceConfig) -> list[str]:
    """The words, each option with its values."""
    parts: list[list[str]] = [["bothways", "reproduce"]]
    for word in arguments(config):
        if word.startswith("--"):
            parts.append([])
        parts[-1].append(word)
    return [shlex.join(part) for part in parts]


def _made(grid: Grid, ledger: Ledger, config: ReproduceConfig) -> str:
    now = machine(config)
    begun: Sequence[str] = sorted(
        attempt["started"] for step in grid.steps.values() for attempt in ledger.attempts(step)
    )
    dates = f"begun {begun[0]}, last step begun {begun[-1]}; " if begun else ""
    packages = ", ".join(f"{name} {now[name]}" for name in ("bothways", "torch", "python"))
    return (
        f"{dates}on {now['machine']}, {now['cores']} cores, device {now['device']}, "
        f"{now['jobs']} jobs; {packages}. Fingerprint {fingerprint(grid)}."
    )
