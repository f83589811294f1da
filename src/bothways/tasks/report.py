"""What fine-tuning gave: scores over the seeds, and the table of them."""

from __future__ import annotations

import io
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bothways.tasks.metrics import Measurement

_WIDTH = 100


@dataclass(frozen=True)
class SeedResult:
    """One seed's result.

    Attributes:
        seed: the seed.
        measurement: scores on dev after the last epoch.
        folder: where model and predictions are.
        seconds: of training, measuring and drawing weights.
        further: scores on the files of ``task.measure``, by the file's name.
    """

    seed: int
    measurement: Measurement
    folder: Path
    seconds: float
    further: dict[str, Measurement] = field(default_factory=dict)

    @property
    def model(self) -> Path:
        """The model folder."""
        return self.folder / "model"

    def record(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {
            "seed": self.seed,
            **self.measurement.record(),
            "seconds": self.seconds,
            "further": {name: more.record() for name, more in self.further.items()},
        }

    @staticmethod
    def from_record(record: dict[str, Any], folder: Path, seed: int) -> SeedResult:
        """The inverse of :meth:`record`.

        Raises:
            KeyError, ValueError, TypeError: the record is damaged.
        """
        found = Measurement.from_record(record)
        more = record.get("further", {})
        further = {str(k): Measurement.from_record(v) for k, v in more.items()}
        return SeedResult(seed, found, folder, float(record["seconds"]), further)


@dataclass(frozen=True)
class FinetuneResult:
    """The result of a fine-tuning run.

    Attributes:
        run: the run folder.
        task: its name.
        metrics: the main one first.
        seeds: in the order asked for.
        baseline: scores of the commonest class (or the mean score) of the training file.
        dev_examples: how many examples were measured on.
        notes: what was cut or empty.
    """

    run: Path
    task: str
    metrics: tuple[str, ...]
    seeds: tuple[SeedResult, ...]
    baseline: dict[str, float]
    dev_examples: int
    notes: tuple[str, ...] = ()

    @property
    def scores(self) -> dict[str, list[float]]:
        """Each metric's scores over the seeds."""
        return {m: [s.measurement.scores[m] for s in self.seeds] for m in self.metrics}

    @property
    def best(self) -> SeedResult:
        """The seed with the highest main metric (chosen on dev, so its score is optimistic)."""
        return max(self.seeds, key=lambda s: s.measurement.scores[self.metrics[0]])

    def mean(self, metric: str | None = None) -> float:
        """Mean over the seeds, of the main metric if none is named."""
        return statistics.fmean(self.scores[metric or self.metrics[0]])

    def std(self, metric: str | None = None) -> float:
        """Sample standard deviation over the seeds; NaN for a single one."""
        values = self.scores[metric or self.metrics[0]]
        return statistics.stdev(values) if len(values) > 1 else math.nan

    def table(self) -> str:
        """Scores by seed with mean, deviation, best and baseline, as text."""
        table = Table(title=f"{self.task}: {self.dev_examples:,} dev examples", title_style="")
        table.add_column("")
        for metric in self.metrics:
            table.add_column(metric, justify="right")
        table.add_column("seconds", justify="right")
        for seed in self.seeds:
            mark = " (collapsed)" if seed.measurement.collapsed else ""
            scores = [seed.measurement.scores[m] for m in self.metrics]
            _add(table, f"seed {seed.seed}{mark}", scores, f"{seed.seconds:.0f}")
        table.add_section()
        _add(table, "mean", [self.mean(m) for m in self.metrics])
        _add(table, "standard deviation", [self.std(m) for m in self.metrics])
        best = f"best (seed {self.best.seed})"
        _add(table, best, [self.best.measurement.scores[m] for m in self.metrics])
        _add(table, "baseline: always the same", [self.baseline[m] for m in self.metrics])
        text = io.StringIO()
        Console(file=text, width=_WIDTH, markup=False, highlight=False).print(table)
        own = [f"seed {s.seed}: {note}" for s in self.seeds for note in s.measurement.notes]
        return "\n".join([text.getvalue().rstrip("\n"), *own, *self.notes, f"saved in {self.run}"])

    def report(self) -> dict[str, Any]:
        """As JSON-able data, for report.json."""
        std = {m: self.std(m) for m in self.metrics}
        return {
            "task": self.task,
            "metrics": list(self.metrics),
            "dev_examples": self.dev_examples,
            "seeds": [seed.record() for seed in self.seeds],
            "mean": {m: self.mean(m) for m in self.metrics},
            "std": {m: None if math.isnan(v) else v for m, v in std.items()},
            "best_seed": self.best.seed,
            "baseline": self.baseline,
            "notes": list(self.notes),
        }


def _add(table: Table, name: str, scores: list[float], *more: str) -> None:
    table.add_row(name, *("-" if math.isnan(s) else f"{s:.4f}" for s in scores), *more)
