"""Precision and device of recorded steps, which are no part of their names.

A finished step is not computed again when another precision or device is requested, so the reader
is told which steps were kept, and which rows of a table were computed differently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from bothways.reproduce.execute import Ledger
from bothways.reproduce.grid import Grid
from bothways.reproduce.steps import Kind, Step

_KINDS: dict[Kind, str] = {
    "pretrain": "pre-training",
    "finetune": "fine-tuning",
    "features": "features",
}


def kept_steps(grid: Grid, ledger: Ledger, pending: Collection[str]) -> list[str]:
    """A line for each precision and device of finished steps that are not the requested ones.

    Args:
        grid: the steps, whose configs hold what is requested.
        ledger: the records.
        pending: names of the steps that will be computed.
    """
    kept: dict[tuple[str, str], list[str]] = defaultdict(list)
    for step in grid.steps.values():
        had, asked = _recorded(step, ledger), _requested(step)
        if step.name not in pending and had and not _fits(had, asked):
            kept[_phrase(had), _phrase(asked)].append(step.name)
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
                    rows[_phrase(had)][" / ".join(filter(None, row.label))] = None
        if len(rows) > 1:
            shown = "; ".join(f"{had} for {', '.join(labels)}" for had, labels in rows.items())
            lines.append(f"Rows differ in how they were computed, {title}: {shown}.")
    return lines


def _recorded(step: Step, ledger: Ledger) -> dict[str, str]:
    """Precision and device with which a step began, as far as it has and records them."""
    record = ledger.record(step)
    if record is None or record.get("result") is None:
        return {}
    run = record.get("run") or {}
    return {name: run[name] for name in ("precision", "device") if name in run}


def _requested(step: Step) -> dict[str, str]:
    """Precision and device, unless they are left to this machine."""
    asked = {name: getattr(step.config, name, "auto") for name in ("precision", "device")}
    return {name: value for name, value in asked.items() if value != "auto"}


def _fits(had: dict[str, str], asked: dict[str, str]) -> bool:
    """Whether a step has the requested precision and device; a card is recorded by its name."""
    device = "cpu" if had.get("device") == "cpu" else "cuda"
    had = {**had, "device": device} if "device" in had else had
    return all(had.get(name, value) == value for name, value in asked.items())


def _phrase(values: dict[str, str]) -> str:
    return " on ".join(values[name] for name in ("precision", "device") if name in values)
