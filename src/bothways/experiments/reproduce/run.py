"""`bothways reproduce`: a table of the paper, from data to a picture. Start reading here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bothways.corpus.store import MANIFEST
from bothways.errors import ConfigError, RunError, nearest
from bothways.experiments.reproduce.execute import (
    Ledger,
    blocked,
    compute,
    compute_all,
    files_to_read,
    to_compute,
)
from bothways.experiments.reproduce.forecast import forecast
from bothways.experiments.reproduce.grid import Grid, make_grid
from bothways.experiments.reproduce.options import ReproduceConfig
from bothways.experiments.reproduce.report import cells, draw, markdown, record
from bothways.experiments.reproduce.steps import Step
from bothways.experiments.reproduce.tables import SCALES, table_of
from bothways.io.files import write_bytes, write_json, write_text
from bothways.io.terminal import line_printer
from bothways.model.device import borrowed_process


@borrowed_process()
def reproduce(config: ReproduceConfig) -> str:
    """Compute the steps of a table that are not done yet, and write the table.

    Returns:
        The table in Markdown and its folder; with ``plan``, what would be computed.

    Raises:
        ConfigError, InputError, StoreError: options or data that cannot be used; raised before
            anything is computed.
        RunError: a step failed.
        KeyboardInterrupt: interrupted; finished cells are written, and the same call continues.
    """
    table, scale = table_of(config.name), SCALES[config.scale]
    grid = make_grid(table, scale, config)
    ledger = Ledger(Path(config.out))
    say = line_printer()
    if config.step is not None:
        return _compute_one(config.step, grid, ledger, config, say)
    if config.jobs > 1 and to_compute(grid.steps, ledger):
        _refuse_jobs_on_a_gpu(config)
    plan = forecast(grid, ledger, config)
    if config.plan:
        return plan
    say(plan)

    begun_with = _data_state(config)

    def before_step(step: Step) -> None:
        # Reading all files again takes its time, so only if one was touched.
        touched = _data_state(config) != begun_with
        if touched and step.name not in make_grid(table, scale, config).steps:
            raise RunError(
                f"{step.name}: the corpus or a task's files have changed since this command began. "
                "Restore them, or run it again to compute the table from what they hold now."
            )

    def after_step() -> None:
        _write(grid, ledger, config)

    try:
        compute_all(grid.steps, ledger, config, say, before_step, after_step)
    finally:
        folder = _write(grid, ledger, config, picture=True)
    text = (folder / "table.md").read_text(encoding="utf-8").partition("\n## Steps")[0]
    return f"{text}\nsaved in {folder}"


def _data_state(config: ReproduceConfig) -> list[tuple[str, int, int]]:
    """Name, size and time of change of the files that were given."""
    given = (config.glue, config.squad, config.ner, config.sick, *config.text)
    files = [Path(config.corpus or "") / MANIFEST]
    for path in (Path(name) for name in given if name):
        files += sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def _compute_one(name: str, grid: Grid, ledger: Ledger, config: ReproduceConfig, say: Any) -> str:
    """Compute one step of the plan."""
    if name not in grid.steps:
        suggestion = nearest(name, list(grid.steps))
        hint = f"did you mean {suggestion}?" if suggestion else "--plan lists the steps."
        raise ConfigError(f"--step {name}: there is no such step in this plan; {hint}")
    step = grid.steps[name]
    if reason := blocked(step, grid.steps, ledger):
        raise RunError(f"--step {name}: cannot be computed: {reason}.")
    files = files_to_read(step, grid.steps, to_compute(grid.steps, ledger))
    for needed in () if ledger.usable(step, files) else map(grid.steps.__getitem__, step.needs):
        if not ledger.usable(needed, step.reads(needed)):
            raise RunError(
                f"--step {name}: it needs {needed.name}, which is not computed, or whose files are "
                "gone."
            )
    compute(step, ledger, config, say, files)
    return f"{name}: finished"


def _refuse_jobs_on_a_gpu(config: ReproduceConfig) -> None:
    if config.device != "cpu" and torch.cuda.is_available():
        raise ConfigError(
            f"jobs is {config.jobs}, but a GPU computes one step at a time; leave --jobs out, or "
            "pass --device cpu."
        )


def _write(grid: Grid, ledger: Ledger, config: ReproduceConfig, *, picture: bool = False) -> Path:
    """Write table.md, table.json and, if requested, plot.png of the results so far."""
    folder = ledger.out / f"{grid.table.name}-{grid.scale.name}"
    with ledger.locked(folder.name, lambda _: None):
        computed = cells(grid, ledger)
        write_text(folder / "table.md", markdown(grid, computed, ledger, config))
        write_json(folder / "table.json", record(grid, computed, ledger, config))
        if picture:
            write_bytes(folder / "plot.png", draw(grid, computed))
    return folder
