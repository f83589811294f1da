"""`bothways reproduce`: a table of the paper, from data to a picture. Start reading here.

What is run follows from the declarations (:mod:`.tables`) and the command line as steps
(:mod:`.grid`). They are computed one after the other (:mod:`.steps`), and the table is written from
their records (:mod:`.report`) after each.
"""

from __future__ import annotations

from pathlib import Path

from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce.grid import Grid, make_grid
from bothways.experiments.reproduce.report import cells, draw, markdown, record
from bothways.experiments.reproduce.steps import Ledger
from bothways.experiments.reproduce.tables import SCALES, table_of
from bothways.io.files import write_bytes, write_json, write_text
from bothways.io.terminal import line_printer, table_text
from bothways.model.device import borrowed_process


@borrowed_process()
def reproduce(config: ReproduceConfig) -> str:
    """Compute the steps of a table that are not done yet, and write the table.

    Returns:
        The table in Markdown and its folder; with ``plan``, the steps with their state.

    Raises:
        ConfigError, InputError, StoreError: options or data that cannot be used; raised before
            anything is computed.
        BothwaysError: a step failed, but not where training diverged, which is a result.
        KeyboardInterrupt: interrupted; the same call continues.
    """
    grid = make_grid(table_of(config.name), SCALES[config.scale], config)
    ledger, say = Ledger(Path(config.out)), line_printer()
    pending = ledger.to_compute(grid.steps)
    if config.plan:
        return plan(grid, ledger, pending)
    for number, step in enumerate(grid.steps.values(), 1):
        if step.name in pending and not ledger.blocked(step, grid.steps):
            say(f"--- {number}/{len(grid.steps)} {step.name}")
            ledger.compute(step)
            write_table(grid, ledger)
    folder = write_table(grid, ledger)
    if grid.table.curve:
        write_bytes(folder / "plot.png", draw(grid, cells(grid, ledger)))
    text = (folder / "table.md").read_text(encoding="utf-8").partition("\n## Steps")[0]
    return f"{text}\nsaved in {folder}"


def plan(grid: Grid, ledger: Ledger, pending: set[str]) -> str:
    """The steps with their state, as text."""
    rows = [["step", "state"]]
    for step in grid.steps.values():
        blocked = ledger.blocked(step, grid.steps)
        done = "again: its files are gone" if step.name in pending else "done"
        state = done if ledger.done(step) else "to do"
        rows.append([step.name, f"impossible: {blocked} diverged" if blocked else state])
    title = f"{grid.table.name}, scale {grid.scale.name}: {len(pending)} steps to compute"
    return table_text(rows, title, left_columns=2, width=118)


def write_table(grid: Grid, ledger: Ledger) -> Path:
    """Write table.md and table.json of the results so far; their folder."""
    folder, found = ledger.out / f"{grid.table.name}-{grid.scale.name}", cells(grid, ledger)
    write_text(folder / "table.md", markdown(grid, found, ledger))
    write_json(folder / "table.json", record(grid, found, ledger))
    return folder
