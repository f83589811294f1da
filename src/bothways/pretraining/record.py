"""What a run records: averages over windows of steps, and curves of the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from bothways.model.batch import PretrainingBatch
from bothways.model.device import Peak, find_peak
from bothways.model.model import EncoderModel
from bothways.objectives.objective import PretrainingObjective, Term
from bothways.training.fit import Step, Window
from bothways.training.monitor import METRICS, Curves, Monitor, plot_panels, read_metrics
from bothways.training.ranks import Ranks

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


CURVES = "curves.png"
_LOADER_WAIT_SHOWN = 0.03  # share of the time


class Records:
    """The records of metrics.jsonl: means over a window of steps, and its speed.

    Args:
        model: in training.
        objective: what it is trained for.
        dtype: arithmetic of its layers.
        ranks: the processes.

    Attributes:
        window: the means.
    """

    def __init__(
        self,
        model: EncoderModel,
        objective: PretrainingObjective,
        dtype: torch.dtype,
        ranks: Ranks,
    ) -> None:
        self.window, self._terms, self._ranks = Window(), objective.terms, ranks
        self._utilization = Utilization(model, objective, dtype)
        self._tokens, self._since = 0, (0.0, 0.0)

    def add(self, step: Step[PretrainingBatch]) -> None:
        """Count a step."""
        self.window.add(step)
        self._utilization.add(step.batches)
        self._tokens += int(sum(batch.inputs.bounds[-1] for batch in step.batches))

    def close(self, step: Step[PretrainingBatch]) -> dict[str, float]:
        """The record of the steps since the last one, with tokens per second of all processes."""
        means = self.window.close()
        losses = ((term.weight, term.metric("loss")) for term in self._terms)
        loss = sum(weight * means[name] for weight, name in losses if name in means)
        (tokens,), own = self._ranks.sum_counts(self._tokens), self._tokens
        now = step.clock.seconds, step.clock.waited
        seconds, waited = (a - b for a, b in zip(now, self._since, strict=True))
        self._tokens, self._since = 0, now
        speed = {"tokens_per_second": tokens / seconds, **self._utilization.close(own / seconds)}
        return {"loss": loss, **means, **speed, "loader_wait": waited / seconds}


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
