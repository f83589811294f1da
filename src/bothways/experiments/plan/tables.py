"""The tables that `bothways plan` prints."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from bothways.experiments.plan.plan import SHAPES_OVERHEAD, Forecast, PhaseForecast
from bothways.model.device import DTYPES, threads_phrase


def tables(forecast: Forecast) -> list[Table | str]:
    """A heading, the two tables, and notes on what they leave out."""
    return [_heading(forecast), _run_table(forecast), _phase_table(forecast), *_notes(forecast)]


def _heading(forecast: Forecast) -> str:
    model = forecast.model
    text = f"sequences of {forecast.corpus}" if forecast.corpus else "no corpus: full sequences"
    return (
        f"{model.layers} layers, hidden {model.hidden}, {model.heads} heads, feed-forward "
        f"{model.intermediate}, vocabulary {model.vocab_size:,}\n"
        f"{text}; {forecast.precision.reason}; {threads_phrase(forecast.threads)}"
    )


def _run_table(forecast: Forecast) -> Table:
    """Weights, memory that does not depend on the batch, disk, and the run."""
    table = Table(show_header=False)
    for name, count in forecast.parameters.items():
        table.add_row(f"weights: {name}", f"{count:,}")
    table.add_row("weights", f"{sum(forecast.parameters.values()):,}")
    table.add_section()
    for name, size in (
        ("memory: weights", forecast.weights),
        ("memory: gradients", forecast.gradients),
        ("memory: the optimizer's moments", forecast.moments),
        ("memory: Python and libraries", forecast.process),
    ):
        table.add_row(name, _bytes(size))
    table.add_section()
    for name, size in (
        ("disk: model folder", forecast.model_folder),
        ("disk: a checkpoint", forecast.checkpoint),
        ("disk: run folder at most", forecast.disk),
    ):
        table.add_row(name, _bytes(size))
    if forecast.steps is not None and forecast.hours is not None:
        table.add_section()
        table.add_row("steps", f"{forecast.steps:,}")
        table.add_row("tokens", _count(forecast.tokens or 0))
        table.add_row("operations", f"{forecast.operations or 0:.3g}")
        table.add_row("time", _time(forecast.hours))
        table.add_row("  evaluation on held-out text", _time(forecast.evaluation_hours or 0))
    return table


_ROWS: list[tuple[str, Callable[[PhaseForecast], str | None]]] = [
    ("sequences per step, per micro-batch", lambda p: f"{p.batch:,}, {p.micro_batch:,}"),
    ("tokens per sequence, without padding", lambda p: f"{p.sequence_tokens:.1f}"),
    ("operations per token", lambda p: f"{p.operations / 1e6:,.1f} M"),
    ("tokens per second", lambda p: f"{p.tokens_per_second:,.0f}"),
    ("seconds per step", lambda p: f"{p.step_seconds:.3g}"),
    ("activations", lambda p: _bytes(p.activations)),
    ("activations, --recompute", lambda p: _bytes(p.activations_recomputing)),
    ("peak memory", lambda p: _bytes(p.peak)),
    ("peak memory, --recompute", lambda p: _bytes(p.peak_recomputing)),
    ("steps", lambda p: None if p.steps is None else f"{p.steps:,}"),
    ("passes over the corpus", lambda p: None if p.epochs is None else f"{p.epochs:.2f}"),
    ("time", lambda p: None if p.hours is None else _time(p.hours)),
]


def _phase_table(forecast: Forecast) -> Table:
    table = Table("phase", *(f"length {p.length}" for p in forecast.phases))
    for name, figure in _ROWS:
        cells = [figure(phase) for phase in forecast.phases]
        if any(cell is not None for cell in cells):
            table.add_row(name, *(cell or "" for cell in cells))
    return table


def _notes(forecast: Forecast) -> list[str]:
    overhead = _bytes(SHAPES_OVERHEAD[DTYPES[forecast.precision.name]])
    notes = [
        f"peak memory includes tensors, libraries and, a measured value, {overhead} for matrix "
        "kernels and the allocator"
    ]
    if forecast.steps is None:
        notes.append(
            "no time estimate: the recipe has no clock; give --clock.steps, .tokens or .minutes"
        )
    return notes


def _bytes(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"


def _count(value: float) -> str:
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:,.0f}"


def _time(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:,.1f} days"
    return f"{hours:.1f} hours" if hours >= 1.5 else f"{hours * 60:.1f} minutes"
