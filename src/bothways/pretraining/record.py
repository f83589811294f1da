"""What a run records: averages over windows of steps, and curves of the whole run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from bothways.model.batch import PretrainingBatch
from bothways.model.device import Peak, find_peak
from bothways.model.model import EncoderModel
from bothways.objectives.objective import PretrainingObjective, Term
from bothways.training.fit import Means
from bothways.training.monitor import METRICS, Curves, Monitor, plot_panels, read_metrics
from bothways.training.ranks import Ranks
from bothways.training.trainer import Stats

# --------------------------------------------------------------------------------
# The share of a GPU's peak that pre-training reaches (MFU).


class Utilization:
    """Measures MFU over windows of steps, on GPUs only.

    On a CPU the peak would have to be measured, on a machine that is busy training.

    Args:
        model: the model in training.
        objective: what it is trained for.
        dtype: arithmetic of its layers.
    """

    def __init__(self, model: EncoderModel, objective: PretrainingObjective, dtype: torch.dtype):
        self._config, self._objective = model.config, objective
        gpu = model.device.type != "cpu"
        self.peak: Peak | None = find_peak(model.device, dtype) if gpu else None
        self._open()

    def _open(self) -> None:
        self._tokens = self._sequences = self._targets = 0

    def add(self, batches: Sequence[PretrainingBatch]) -> None:
        """Count the micro-batches of a step."""
        for batch in batches:
            self._tokens += int(batch.inputs.bounds[-1])
            self._sequences += batch.inputs.sequences
            self._targets += batch.masked.count

    def close(self, tokens_per_second: float) -> dict[str, float]:
        """``mfu``, the operations per second that training needs over the peak; empty on a CPU.

        Attention is counted for sequences of the mean length. Starts a new window.
        """
        record = {}
        if self.peak is not None and self._sequences:
            cost = self._objective.operations(
                self._config,
                round(self._tokens / self._sequences),
                self._targets / self._sequences,
            )
            record["mfu"] = tokens_per_second * cost.matrix / self.peak.flops
        self._open()
        return record


T = TypeVar("T")

CURVES = "curves.png"
_LOADER_WAIT_SHOWN = 0.03  # share of the time


class Window(Means[PretrainingBatch]):
    """Averages of the steps since the last record, with the speed of the whole run.

    Its sums are running ones: a window may be thousands of steps.
    """

    def __init__(self, utilization: Utilization, objective: PretrainingObjective) -> None:
        super().__init__()
        self._utilization = utilization
        self._weights = {term.metric("loss"): term.weight for term in objective.terms}
        self._steps = 0
        self._sums: Stats = {}
        self.start()

    def start(self) -> None:
        """Count tokens and time from now on."""
        self._start, self._tokens, self._waited = time.perf_counter(), 0, 0.0

    def state(self) -> dict[str, Any]:
        """The sums so far; without the speed."""
        sums = {name: float(value) for name, value in self._sums.items()}
        return {"window": {"steps": self._steps, "sums": sums}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the sums of an interrupted run."""
        if (saved := state.get("window")) is not None:  # older checkpoints have none
            self._steps, self._sums = int(saved["steps"]), dict(saved["sums"])

    def recorded(self, done: int) -> int:
        """Held-out scores have records of their own, up to the last step."""
        return done

    def waiting_for(self, batches: Iterator[T]) -> Iterator[T]:
        """The batches; the time spent on getting them counts as waiting for the loader."""
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            self._waited += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    def add(self, stats: Stats, batches: Sequence[PretrainingBatch]) -> None:
        """Count a step: its statistics and its micro-batches."""
        self._steps += 1
        self._utilization.add(batches)
        self._tokens += int(sum(b.inputs.bounds[-1] for b in batches))
        for name, value in stats.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def close(self, ranks: Ranks) -> dict[str, float]:
        """The record, with tokens per second of all processes; starts the next window."""
        means = {name: float(value) / self._steps for name, value in self._sums.items()}
        losses = [weight * means[name] for name, weight in self._weights.items() if name in means]
        record = {"loss": sum(losses), **means}
        seconds = time.perf_counter() - self._start
        (tokens,) = ranks.sum_counts(self._tokens)
        record["tokens_per_second"] = tokens / seconds
        record.update(self._utilization.close(self._tokens / seconds))
        record["loader_wait"] = self._waited / seconds
        self._steps, self._sums = 0, {}
        self.start()
        return record

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time spent inside this context."""
        start = time.perf_counter()
        yield
        self._start += time.perf_counter() - start


def log_window(watch: Monitor, step: int, record: dict[str, float]) -> None:
    """Record everything; show the time spent waiting for the loader only if it matters."""
    watch.record(step, record)
    slow_loader = record["loader_wait"] > _LOADER_WAIT_SHOWN
    watch.show(step, {k: v for k, v in record.items() if k != "loader_wait" or slow_loader})


def draw_curves(folder: Path, terms: Sequence[Term]) -> None:
    """Write curves.png from the metrics of a run with these losses."""
    if panels := curves_of(folder, terms):  # empty before the first record
        plot_panels(folder / CURVES, panels)


def curves_of(folder: Path, terms: Sequence[Term]) -> dict[str, Curves]:
    """The panels of a run's curves by their titles, from its metrics: the first loss, and what is
    measured beside each."""
    records = read_metrics(folder / METRICS)

    def curve(name: str) -> tuple[list[float], list[float]]:
        points = [(r["step"], r[name]) for r in records if r.get(name) is not None]
        return [x for x, _ in points], [y for _, y in points]

    def last(name: str) -> tuple[list[float], list[float]]:
        x, y = curve(name)
        return x[-1:], y[-1:]

    first = terms[0]
    panels: dict[str, Curves] = {
        f"{first.title} loss (nats)": {
            "training": curve(first.metric("loss")),
            "held out": curve(f"heldout_{first.metric('loss')}"),
        }
    }
    for term in terms:
        panels[f"{term.title} {term.measure.replace('_', ' ')}"] = {
            "training": curve(term.metric(term.measure)),
            "held out": curve(f"heldout_{term.metric(term.measure)}"),
            term.constant: last(f"heldout_{term.metric('baseline')}"),
        }
    panels = {title: {n: c for n, c in curves.items() if c[0]} for title, curves in panels.items()}
    return {title: curves for title, curves in panels.items() if curves}
