"""A table over tasks: our scores over seeds next to published ones, and the average of both.

The average is that of the paper's table 1: the first metric of each task, MNLI with two rows, WNLI
left out. Ours and the published one are over the same rows, and missing rows are named.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.config import FinetuneConfig, ModelConfig
from bothways.errors import RunError
from bothways.finetuning.extra_files import part_name
from bothways.finetuning.results import FinetuneResult
from bothways.tasks.catalogue import GLUE, task_recipe

MODELS = ("BERT-base", "BERT-large")
"""The models whose published scores always get a column; those of others if there are any."""
_NOT_IN_AVERAGE = ("wnli",)


@dataclass(frozen=True)
class Row:
    """A task on one of its files.

    Attributes:
        task: as requested: a declared name, or a file.
        title: the task's name for reports.
        file: the file measured on: its name without suffix.
        metric: one of the task's.
        scores: of each seed, in percent.
        collapsed: how many seeds predict the same for every example.
        examples: number of examples measured on, if known.
        baseline: score of a constant prediction, in percent; None if not known.
        published: published scores by model, in percent, on the test file of this row.
        published_dev: the same on this very file.
        main: the task's first metric, which alone is part of the average.
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
    main: bool = True

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float:
        """Sample standard deviation over the seeds; NaN for a single one."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else math.nan


@dataclass(frozen=True)
class Average:
    """The average of the paper's table 1, over the rows that we have.

    Attributes:
        ours: our average; None without any row.
        published: by model, over the same rows.
        rows: the rows averaged, as "task file".
        missing: rows of the paper's average that we do not have.
    """

    ours: float | None
    published: dict[str, float]
    rows: tuple[str, ...]
    missing: tuple[str, ...]


def rows_of(name: str, config: FinetuneConfig, result: FinetuneResult) -> list[Row]:
    """The rows of a finished task: its dev file, and each further file that was measured, by each
    of its metrics.

    Args:
        name: the task, as requested.
        config: its recipe, with all files of the declaration.
        result: the result of fine-tuning.

    Raises:
        RunError: some seeds were measured on a file that had another name then.
    """
    options = config.task
    measured = [part_name(f) for f in (options.dev, *options.measure)]
    predicted = [part_name(f) for f in (options.test or "test", *options.predict)]
    rows = []
    for i, file in enumerate(measured):
        lacking = [s for s in result.seeds if i and file not in s.further]
        if len(lacking) == len(result.seeds):
            continue  # the file did not exist
        if lacking:
            raise RunError(
                f"{lacking[0].folder} was measured on {', '.join(lacking[0].further) or 'no file'} "
                f"in addition to dev, but not on {file}: it has been renamed since. Give the file "
                "its old name, or remove that folder and run the command again."
            )
        measurements = [s.further[file] if i else s.measurement for s in result.seeds]
        test = predicted[i] if i < len(predicted) else ""
        rows += [
            Row(
                task=name,
                title=options.name,
                file=file,
                metric=metric,
                scores=tuple(100 * m.scores[metric] for m in measurements),
                collapsed=sum(m.collapsed for m in measurements),
                examples=None if i else result.dev_examples,
                baseline=None if i else 100 * result.baseline[metric],
                published=_published(config, metric, test),
                published_dev=_published(config, metric, file),
                main=metric == result.metrics[0],
            )
            for metric in result.metrics
        ]
    return rows


def _published(config: FinetuneConfig, metric: str, split: str) -> dict[str, float]:
    references = config.task.reference
    return {r.model: r.score for r in references if r.metric == metric and r.split == split}


def average(rows: Sequence[Row]) -> Average:
    """The average of the paper's table 1 over those of its rows that are given."""
    averaged = [
        row for row in rows if row.main and row.task in GLUE and row.task not in _NOT_IN_AVERAGE
    ]
    present = {(row.task, row.file) for row in averaged}
    expected = []
    for name in GLUE:
        options = task_recipe(name).task
        if name not in _NOT_IN_AVERAGE:
            expected += [(name, Path(f).stem) for f in (options.dev, *options.measure)]
    published = {
        model: statistics.fmean(row.published[model] for row in averaged)
        for model in MODELS
        if averaged and all(model in row.published for row in averaged)
    }
    return Average(
        ours=statistics.fmean(row.mean for row in averaged) if averaged else None,
        published=published,
        rows=tuple(f"{row.task} {row.file}" for row in averaged),
        missing=tuple(f"{name} {file}" for name, file in expected if (name, file) not in present),
    )


def markdown(rows: Sequence[Row], seconds: dict[str, float]) -> list[str]:
    """The rows, the average and what is missing from it, as lines of Markdown.

    Args:
        rows: of all tasks.
        seconds: of training and measuring all seeds, by task.
    """
    with_dev, with_test = _columns(rows)
    header = [
        *("task", "measured on", "metric", "here", "constant prediction"),
        *(f"{model}, this file" for model in with_dev),
        *(f"{model}, test" for model in with_test),
        *("seeds", "minutes"),
    ]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for row in rows:
        spread = "" if math.isnan(row.std) else f" ± {row.std:.1f}"
        collapsed = f" ({row.collapsed} collapsed)" if row.collapsed else ""
        baseline = "" if row.baseline is None else f"{row.baseline:.1f}"
        cells = [
            row.title,
            row.file,
            row.metric,
            f"{row.mean:.1f}{spread}",
            baseline,
            *(_score(row.published_dev, model) for model in with_dev),
            *(_score(row.published, model) for model in with_test),
            f"{len(row.scores)}{collapsed}" if row.main else "",
            f"{seconds[row.task] / 60:.1f}" if row.main and row.examples is not None else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    means = average(rows)
    if means.ours is not None:
        cells = [
            f"**average** of {len(means.rows)}",
            *("", ""),
            f"{means.ours:.1f}",
            *[""] * (1 + len(with_dev)),
            *(_score(means.published, model) for model in with_test),
            "",
            f"{sum(seconds.values()) / 60:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        lines += ["", "The average is that of the paper's table 1 (WNLI left out)."]
        if means.missing:
            lines[-1] += f" Missing from it here: {', '.join(means.missing)}."
    return lines


def _columns(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """The models with published scores on the files of the rows, and on their test files."""
    dev = [model for row in rows for model in row.published_dev]
    test = [model for row in rows for model in row.published]
    known = dict.fromkeys([*MODELS, *dev])
    return [model for model in known if model in dev], [*dict.fromkeys([*MODELS, *test])]


def _score(scores: dict[str, float], model: str) -> str:
    return f"{scores[model]:.1f}" if model in scores else ""


def _dropout(config: FinetuneConfig, shape: ModelConfig) -> float:
    return shape.dropout if config.dropout is None else config.dropout


def settings(configs: Sequence[FinetuneConfig], shape: ModelConfig, model: str) -> list[str]:
    """Our settings next to those of the published results, as lines of Markdown.

    Args:
        configs: the tasks' recipes; after a search, with the setting that was chosen.
        shape: of the model.
        model: folder or name of the model.
    """

    def ours(value: Callable[[FinetuneConfig], Any]) -> str:
        return _by_task([(c.task.name, str(value(c))) for c in configs])

    def published(name: str) -> str:
        return _by_task([(c.task.name, getattr(c.task.published, name)) for c in configs])

    rows = [
        (
            "model",
            f"{model}: {shape.layers} layers, hidden {shape.hidden}",
            "base: 12 layers, hidden 768; large: 24 layers, hidden 1024",
        ),
        ("scores are for", "dev files, and further labelled ones", published("scores")),
        ("epochs", ours(lambda c: c.epochs), published("epochs")),
        ("batch", ours(lambda c: c.batch), published("batch")),
        ("learning rate", ours(lambda c: f"{c.optimizer.lr:g}"), published("lr")),
        ("dropout", ours(lambda c: _dropout(c, shape)), "0.1"),
        ("longest sequence", ours(lambda c: c.length), published("length")),
        (
            "bias correction",
            ours(lambda c: "on" if c.optimizer.bias_correction else "off"),
            "off",
        ),
        (
            "seeds",
            ours(lambda c: " ".join(map(str, c.seeds))),
            "not stated; large on GLUE: several restarts, the best on dev",
        ),
    ]
    lines = ["| setting | here | Devlin et al. 2019 |", "|---|---|---|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _by_task(values: Sequence[tuple[str, str]]) -> str:
    """The value that all tasks share; or each value with its tasks, those without one left out."""
    tasks: dict[str, list[str]] = {}
    for task, value in values:
        tasks.setdefault(value, []).append(task)
    if len(tasks) == 1:
        return next(iter(tasks))
    tasks.pop("", None)
    return "; ".join(f"{value} ({', '.join(names)})" for value, names in tasks.items())


def record(rows: Sequence[Row], seconds: dict[str, float]) -> dict[str, Any]:
    """The table as JSON-able data."""
    means = average(rows)
    return {
        "rows": [
            {
                "task": row.task,
                "file": row.file,
                "metric": row.metric,
                "main": row.main,
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
            "ours": means.ours,
            "published": means.published,
            "rows": list(means.rows),
            "missing": list(means.missing),
        },
        "seconds": seconds,
    }
