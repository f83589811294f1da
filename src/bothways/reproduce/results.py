"""Results of the steps as cells of a table: every run, means, spread, and what is missing."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from bothways.reproduce.execute import Ledger, blocked
from bothways.reproduce.grid import Grid, ScoreSource
from bothways.reproduce.tables import HELDOUT, Column


@dataclass(frozen=True)
class Score:
    """The score of one run.

    Attributes:
        value: in percent, unless the column is not a share.
        pretrain_seed: of its model.
        seed: of fine-tuning; None for held-out text.
        collapsed: the model gives one answer for everything.
    """

    value: float
    pretrain_seed: int
    seed: int | None
    collapsed: bool = False

    @property
    def name(self) -> str:
        """The run's seeds, as printed."""
        seed = "" if self.seed is None else f" seed {self.seed}"
        return f"pre-training {self.pretrain_seed}{seed}"


@dataclass(frozen=True)
class Cell:
    """The scores of a row in a column.

    Attributes:
        scores: of the finished runs.
        expected: how many runs there should be.
        missing: the reasons why runs are missing.
        diverged: runs that have no score because training diverged.
    """

    scores: tuple[Score, ...]
    expected: int
    missing: tuple[str, ...] = ()
    diverged: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Over all finished runs; NaN if there are none."""
        return statistics.fmean(s.value for s in self.scores) if self.scores else math.nan

    @property
    def std(self) -> float:
        """Sample standard deviation over all finished runs; NaN for fewer than two."""
        values = [s.value for s in self.scores]
        return statistics.stdev(values) if len(values) > 1 else math.nan

    @property
    def pretrain_std(self) -> float:
        """Sample standard deviation between the means of the pre-training seeds."""
        groups: dict[int, list[float]] = defaultdict(list)
        for score in self.scores:
            groups[score.pretrain_seed].append(score.value)
        means = [statistics.fmean(values) for values in groups.values()]
        return statistics.stdev(means) if len(means) > 1 else math.nan

    @property
    def collapsed(self) -> tuple[Score, ...]:
        """The runs whose model gives one answer for everything."""
        return tuple(s for s in self.scores if s.collapsed)


def cells(grid: Grid, ledger: Ledger) -> list[list[Cell]]:
    """The cells of all rows, with the scores that have been computed."""
    return [
        [
            _cell(grid, ledger, row.cells[number], bound.column)
            for number, bound in enumerate(grid.columns)
        ]
        for row in grid.rows
    ]


def _cell(grid: Grid, ledger: Ledger, sources: tuple[ScoreSource, ...], column: Column) -> Cell:
    scores: list[Score] = []
    missing: list[str] = []
    diverged: list[str] = []
    for source in sources:
        step = grid.steps[source.step]
        result = ledger.result(step)
        if reason := blocked(step, grid.steps, ledger):
            missing.append(reason)
        elif result is None:
            missing.append("not finished")
        elif "diverged_at" in result:
            diverged.append(f"{step.name} diverged: {result['diverged_at']}")
        elif column.of == HELDOUT:
            value = result["scores"][column.metric]
            scores.append(Score(value * (100 if column.percent else 1), source.pretrain_seed, None))
        else:
            _read_runs(result, source, column, scores, missing, diverged)
    expected = sum(max(1, len(source.parts)) for source in sources)
    return Cell(tuple(scores), expected, tuple(missing), tuple(diverged))


def _read_runs(
    result: dict[str, Any],
    source: ScoreSource,
    column: Column,
    scores: list[Score],
    missing: list[str],
    diverged: list[str],
) -> None:
    for part, seed in zip(source.parts, source.seeds, strict=True):
        run = result["runs"].get(part)
        if part in result.get("diverged", {}):
            diverged.append(
                f"on pre-training {source.pretrain_seed}, diverged: {result['diverged'][part]}"
            )
        elif run is None:
            missing.append(f"seed {seed} not finished")
        else:
            score = _score(run, column)
            if score is None:
                missing.append(f"{source.step} has no {column.part} file with {column.metric}")
            else:
                value, collapsed = score
                scores.append(Score(100 * value, source.pretrain_seed, seed, collapsed))


def _score(run: dict[str, Any], column: Column) -> tuple[float, bool] | None:
    """A run's score as a share of 1, and whether it collapsed; None if the task lacks the score."""
    if "scores" not in run:  # feature-based tagging: the main metric of each file
        return None if column.part not in run else (run[column.part], False)
    measured = run
    if column.part == "test":
        if not run["further"]:
            return None
        measured = next(iter(run["further"].values()))
    value = measured["scores"].get(column.metric)
    return None if value is None else (value, measured["collapsed"])
