"""A table over tasks: our scores over seeds, published ones beside them, and the average of both.

The average is that of the paper's table 1: of each task its first metric, MNLI with two rows, WNLI
left out. Ours and the published one are over the same rows, and rows that are missing are named.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.config import FinetuneConfig, ModelConfig
from bothways.errors import RunError
from bothways.tasks.catalogue import GLUE, task
from bothways.tasks.extra_files import part_name
from bothways.tasks.report import FinetuneResult

MODELS = ("BERT-base", "BERT-large")
"""Whose published scores get a column."""
_OUT_OF_AVERAGE = ("wnli",)


@dataclass(frozen=True)
class Row:
    """A task on one of its files.

    Attributes:
        task: as asked for: a declared name, or a file.
        title: the task's name for reports.
        file: what was measured on: the file's name without its ending.
        metric: the task's first.
        scores: of each seed, of 100.
        collapsed: how many seeds give one answer for everything.
        examples: measured on.
        baseline: score of the answer that needs no text, of 100; None if not known.
        published: by model, of 100; on the test file of this row.
        published_dev: by model, on this very file.
    """

    task: str
    title: str
    file: str
    metric: str
    scores: tuple[float, ...]
    collapsed: int
    examples: int | None
    baseline: float | None
    published: dict[str, float]
    published_dev: dict[str, float]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float:
        """Sample standard deviation over the seeds; NaN for a single one."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else math.nan


@dataclass(frozen=True)
class Average:
    """The average as in the paper's table 1, over the rows that are there.

    Attributes:
        ours: None without any row.
        published: by model, over the same rows.
        rows: of the average, as "task file".
        missing: rows of the paper's that are not there.
    """

    ours: float | None
    published: dict[str, float]
    rows: tuple[str, ...]
    missing: tuple[str, ...]


def rows_of(name: str, config: FinetuneConfig, result: FinetuneResult) -> list[Row]:
    """The rows of a finished task: its dev file, and each more that was measured.

    Args:
        name: the task, as asked for.
        config: its recipe, with all the files that the task is declared to have.
        result: of fine-tuning.

    Raises:
        RunError: some seeds were measured on a file when it had another name.
    """
    options, metric = config.task, result.metrics[0]
    measured = [part_name(f) for f in (options.dev, *options.measure)]
    predicted = [part_name(f) for f in (options.test or "test", *options.predict)]
    rows = []
    for i, file in enumerate(measured):
        lacking = [s for s in result.seeds if i and file not in s.further]
        if len(lacking) == len(result.seeds):
            continue  # the file was not there
        if lacking:
            raise RunError(
                f"{lacking[0].folder} was measured on {', '.join(lacking[0].further) or 'no file'} "
                f"beside dev, and not on {file}, which has been renamed since. Name it as before, "
                "or remove that folder and run the command again."
            )
        found = [s.further[file] if i else s.measurement for s in result.seeds]
        test = predicted[i] if i < len(predicted) else ""
        rows.append(
            Row(
                task=name,
                title=options.name,
                file=file,
                metric=metric,
                scores=tuple(100 * m.scores[metric] for m in found),
                collapsed=sum(m.collapsed for m in found),
                examples=None if i else result.dev_examples,
                baseline=None if i else 100 * result.baseline[metric],
                published=_published(config, metric, test),
                published_dev=_published(config, metric, file),
            )
        )
    return rows


def _published(config: FinetuneConfig, metric: str, split: str) -> dict[str, float]:
    found = [r for r in config.task.reference if r.metric == metric and r.split == split]
    return {r.model: r.score for r in found}


def average(rows: Sequence[Row]) -> Average:
    """The average of table 1 over the rows of GLUE's tasks that are there."""
    inside = [row for row in rows if row.task in GLUE and row.task not in _OUT_OF_AVERAGE]
    there = {(row.task, row.file) for row in inside}
    wanted = []
    for name in GLUE:
        options = task(name).task
        if name not in _OUT_OF_AVERAGE:
            wanted += [(name, Path(f).stem) for f in (options.dev, *options.measure)]
    published = {
        model: statistics.fmean(row.published[model] for row in inside)
        for model in MODELS
        if inside and all(model in row.published for row in inside)
    }
    return Average(
        ours=statistics.fmean(row.mean for row in inside) if inside else None,
        published=published,
        rows=tuple(f"{row.task} {row.file}" for row in inside),
        missing=tuple(f"{name} {file}" for name, file in wanted if (name, file) not in there),
    )


def markdown(rows: Sequence[Row], seconds: dict[str, float]) -> list[str]:
    """The rows, the average and what it lacks, as lines of Markdown.

    Args:
        rows: of all tasks.
        seconds: of each task, over its seeds.
    """
    own = [model for model in MODELS if any(model in row.published_dev for row in rows)]
    header = [
        *("task", "measured on", "metric", "here", "always the same"),
        *(f"{model}, this file" for model in own),
        *(f"{model}, test" for model in MODELS),
        *("seeds", "minutes"),
    ]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for row in rows:
        spread = "" if math.isnan(row.std) else f" ± {row.std:.1f}"
        fallen = f" ({row.collapsed} collapsed)" if row.collapsed else ""
        baseline = "" if row.baseline is None else f"{row.baseline:.1f}"
        cells = [
            row.title,
            row.file,
            row.metric,
            f"{row.mean:.1f}{spread}",
            baseline,
            *(_figure(row.published_dev, model) for model in own),
            *(_figure(row.published, model) for model in MODELS),
            f"{len(row.scores)}{fallen}",
            "" if row.examples is None else f"{seconds[row.task] / 60:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    found = average(rows)
    if found.ours is not None:
        cells = [
            f"**average** of {len(found.rows)}",
            *("", ""),
            f"{found.ours:.1f}",
            *[""] * (1 + len(own)),
            *(_figure(found.published, model) for model in MODELS),
            "",
            f"{sum(seconds.values()) / 60:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        lines += ["", "The average is that of the paper's table 1 (WNLI left out)."]
        if found.missing:
            lines[-1] += f" Missing from it here: {', '.join(found.missing)}."
    return lines


def _figure(scores: dict[str, float], model: str) -> str:
    return f"{scores[model]:.1f}" if model in scores else ""


def _dropout(config: FinetuneConfig, shape: ModelConfig) -> float:
    return shape.dropout if config.dropout is None else config.dropout


def settings(configs: Sequence[FinetuneConfig], shape: ModelConfig, model: str) -> list[str]:
    """What the two sides of the table differ in, as lines of Markdown.

    Args:
        configs: the tasks' recipes, of a search with the setting that was chosen.
        shape: of the model.
        model: its folder or name.
    """

    def values(*found: Any) -> str:
        return ", ".join(dict.fromkeys(map(str, found)))

    rows = [
        (
            "model",
            f"{model}: {shape.layers} layers, hidden {shape.hidden}",
            "base: 12 layers, hidden 768; large: 24 layers, hidden 1024",
        ),
        ("scores are of", "dev files", "the server's test files (or dev, where it says so)"),
        ("epochs", values(*(c.epochs for c in configs)), "3"),
        ("batch", values(*(c.batch for c in configs)), "32"),
        (
            "learning rate",
            values(*(f"{c.optimizer.lr:g}" for c in configs)),
            "the best on dev of 5e-05, 4e-05, 3e-05, 2e-05",
        ),
        ("dropout", values(*(_dropout(c, shape) for c in configs)), "0.1"),
        ("longest sequence", values(*(c.length for c in configs)), "128 in the released commands"),
        (
            "bias correction",
            values(*("on" if c.optimizer.bias_correction else "off" for c in configs)),
            "off",
        ),
        (
            "seeds",
            values(*(" ".join(map(str, c.seeds)) for c in configs)),
            "base: not stated; large: several restarts, the best on dev",
        ),
    ]
    lines = ["| setting | here | Devlin et al. 2019 |", "|---|---|---|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def record(rows: Sequence[Row], seconds: dict[str, float]) -> dict[str, Any]:
    """The table as JSON-able data."""
    found = average(rows)
    return {
        "rows": [
            {
                "task": row.task,
                "file": row.file,
                "metric": row.metric,
                "scores": list(row.scores),
                "mean": row.mean,
                "std": None if math.isnan(row.std) else row.std,
                "collapsed": row.collapsed,
                "baseline": row.baseline,
                "published": row.published,
                "published_dev": row.published_dev,
            }
            for row in rows
        ],
        "average": {
            "ours": found.ours,
            "published": found.published,
            "rows": list(found.rows),
            "missing": list(found.missing),
        },
        "seconds": seconds,
    }
