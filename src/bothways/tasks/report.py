"""What fine-tuning gave: scores over the runs of a setting, and the table of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bothways.config import Restart
from bothways.tasks.console import table_text
from bothways.tasks.metrics import Measurement


@dataclass(frozen=True)
class SeedResult:
    """One seed's result.

    Attributes:
        seed: the seed.
        measurement: scores on dev after the last epoch.
        folder: where model and predictions are.
        seconds: of training, measuring and drawing weights.
        further: scores on the files of ``task.measure``, by the file's name.
        order: seed of the data order, where it has one of its own.
        head: seed of the new weights, where they have one of their own.
    """

    seed: int
    measurement: Measurement
    folder: Path
    seconds: float
    further: dict[str, Measurement] = field(default_factory=dict)
    order: int | None = None
    head: int | None = None

    @property
    def restart(self) -> Restart:
        """What was drawn."""
        return Restart(self.seed, self.order, self.head)

    @property
    def name(self) -> str:
        """For tables, such as ``seed 0``."""
        return self.restart.name

    @property
    def model(self) -> Path:
        """The model folder."""
        return self.folder / "model"

    def record(self) -> dict[str, Any]:
        """As JSON-able data."""
        own = {"order": self.order, "head": self.head}
        return {
            "seed": self.seed,
            **{name: seed for name, seed in own.items() if seed is not None},
            **self.measurement.record(),
            "seconds": self.seconds,
            "further": {name: more.record() for name, more in self.further.items()},
        }

    @staticmethod
    def from_record(record: dict[str, Any], folder: Path) -> SeedResult:
        """The inverse of :meth:`record`.

        Raises:
            KeyError, ValueError, TypeError: the record is damaged.
        """
        found = Measurement.from_record(record)
        more = record.get("further", {})
        return SeedResult(
            int(record["seed"]),
            found,
            folder,
            float(record["seconds"]),
            {str(k): Measurement.from_record(v) for k, v in more.items()},
            order=record.get("order"),
            head=record.get("head"),
        )


@dataclass(frozen=True)
class FinetuneResult:
    """The result of fine-tuning with one setting, over its seeds.

    Attributes:
        run: the run folder.
        task: its name.
        metrics: the main one first.
        seeds: its runs, in the order asked for.
        baseline: scores of the commonest class (or the mean score) of the training file.
        dev_examples: how many examples were measured on.
        notes: what was cut or empty.
        setting: learning rate, batch, epochs, bias correction.
        search: the search that chose this setting, if there was one.
    """

    run: Path
    task: str
    metrics: tuple[str, ...]
    seeds: tuple[SeedResult, ...]
    baseline: dict[str, float]
    dev_examples: int
    notes: tuple[str, ...] = ()
    setting: Mapping[str, Any] = field(default_factory=dict)
    search: SearchResult | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Of the run folder: in a search, that of the setting."""
        return self.run.name

    @property
    def scores(self) -> dict[str, list[float]]:
        """Each metric's scores over the seeds."""
        return {m: [s.measurement.scores[m] for s in self.seeds] for m in self.metrics}

    @property
    def best(self) -> SeedResult:
        """The seed with the highest main metric (chosen on dev, so its score is optimistic)."""
        return max(self.seeds, key=lambda s: s.measurement.scores[self.metrics[0]])

    @property
    def collapsed(self) -> tuple[SeedResult, ...]:
        """The runs that give the same answer to everything."""
        return tuple(s for s in self.seeds if s.measurement.collapsed)

    def mean(self, metric: str | None = None) -> float:
        """Mean over the seeds, of the main metric if none is named."""
        return statistics.fmean(self.scores[metric or self.metrics[0]])

    def std(self, metric: str | None = None) -> float:
        """Sample standard deviation over the seeds; NaN for a single one."""
        values = self.scores[metric or self.metrics[0]]
        return statistics.stdev(values) if len(values) > 1 else math.nan

    def spread(self) -> dict[str, dict[str, float]]:
        """How far each source of chance moves the main metric, where seeds of the data order or of
        the new weights were given apart from ``seeds``.

        Returns:
            For each source with two or more values: their number, and the sample standard deviation
            of their means over everything else. ``seed`` is dropout, and what has no seed of its
            own.
        """
        found: dict[str, dict[str, float]] = {}
        if all(s.order is None and s.head is None for s in self.seeds):
            return found
        for source in ("seed", "order", "head"):
            groups: dict[int | None, list[float]] = defaultdict(list)
            for run, score in zip(self.seeds, self.scores[self.metrics[0]], strict=True):
                groups[getattr(run, source)].append(score)
            if len(groups) > 1:
                means = [statistics.fmean(scores) for scores in groups.values()]
                found[source] = {"values": len(groups), "std": statistics.stdev(means)}
        return found

    def cells(self) -> list[list[str]]:
        """Scores of each run under a header."""
        rows = [["", *self.metrics, "seconds"]]
        for seed in self.seeds:
            mark = " (collapsed)" if seed.measurement.collapsed else ""
            scores = [seed.measurement.scores[m] for m in self.metrics]
            rows.append([seed.name + mark, *_shown(scores), f"{seed.seconds:.0f}"])
        return rows

    def summary(self) -> list[list[str]]:
        """Mean, deviation, best run and baseline, in the columns of :meth:`cells`."""
        rows = [
            ["mean", *_shown([self.mean(m) for m in self.metrics])],
            ["standard deviation", *_shown([self.std(m) for m in self.metrics])],
        ]
        sound = [s.measurement.scores for s in self.seeds if not s.measurement.collapsed]
        if 0 < len(sound) < len(self.seeds):
            means = [statistics.fmean(scores[m] for scores in sound) for m in self.metrics]
            rows.append([f"mean of the {len(sound)} not collapsed", *_shown(means)])
        best = [self.best.measurement.scores[m] for m in self.metrics]
        rows.append([f"best ({self.best.name})", *_shown(best)])
        rows.append(
            ["baseline: always the same", *_shown([self.baseline[m] for m in self.metrics])]
        )
        return [[*row, ""] for row in rows]

    def lines(self) -> list[str]:
        """What is to be said below the table: runs that collapsed, sources of the spread, notes."""
        said = []
        if self.collapsed:
            names = ", ".join(s.name for s in self.collapsed)
            said.append(f"collapsed, {len(self.collapsed)} of {len(self.seeds)}: {names}")
        for source, found in self.spread().items():
            named = {"seed": "seeds", "order": "data orders", "head": "new heads"}[source]
            said.append(
                f"standard deviation of {self.metrics[0]} between the means of "
                f"{found['values']:.0f} {named}: {found['std']:.4f}"
            )
        own = [f"{s.name}: {note}" for s in self.seeds for note in s.measurement.notes]
        return [*said, *own, *self.notes]

    def table(self) -> str:
        """Scores by run with mean, deviation, best and baseline, as text; after a search, the table
        of its settings first."""
        title = f"{self.task}: {self.dev_examples:,} dev examples"
        shown = table_text(self.cells(), title, self.summary())
        own = "\n".join([shown, *self.lines(), f"saved in {self.run}"])
        return own if self.search is None else f"{self.search.table()}\n\n{own}"

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
            "best": self.best.name,
            "collapsed": [s.name for s in self.collapsed],
            "spread": self.spread(),
            "setting": dict(self.setting),
            "models": [s.model.relative_to(self.run).as_posix() for s in self.seeds],
            "baseline": self.baseline,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class SearchResult:
    """What a search over settings gave.

    Attributes:
        run: the folder of the search; each setting has a run folder in it.
        settings: the results of the settings, in the order asked for.
        select: the rule: ``mean`` over the runs of a setting, or the ``best`` single run.
        diverged: settings without a result: name and reason.
    """

    run: Path
    settings: tuple[FinetuneResult, ...]
    select: str
    diverged: tuple[tuple[str, str], ...] = ()

    @property
    def by_mean(self) -> FinetuneResult:
        """The setting with the highest mean of the main metric over its runs, collapsed ones
        included; the first of equals."""
        return max(self.settings, key=lambda s: s.mean())

    @property
    def by_best(self) -> FinetuneResult:
        """The setting of the best single run; the first of equals."""
        return max(self.settings, key=lambda s: s.best.measurement.scores[s.metrics[0]])

    @property
    def chosen(self) -> FinetuneResult:
        """By the rule."""
        return self.by_mean if self.select == "mean" else self.by_best

    @property
    def ranked(self) -> list[FinetuneResult]:
        """The settings by mean, highest first."""
        return sorted(self.settings, key=lambda s: -s.mean())

    @property
    def collapsed(self) -> list[str]:
        """Runs that collapsed: setting and seed."""
        return [f"{s.name} {run.name}" for s in self.settings for run in s.collapsed]

    def options(self) -> dict[str, dict[str, dict[str, float]]]:
        """For each option that was varied and each of its values: the number of runs, their mean
        of the main metric over everything else, their best, and how many collapsed."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for option in self.chosen.setting:
            groups: dict[Any, list[FinetuneResult]] = defaultdict(list)
            for setting in self.settings:
                groups[setting.setting[option]].append(setting)
            if len(groups) > 1:
                found[option] = {
                    setting_value(value): _over(results) for value, results in groups.items()
                }
        return found

    def cells(self) -> list[list[str]]:
        """The settings by mean under a header: scores of the main metric, and who collapsed."""
        metric = self.chosen.metrics[0]
        options = [o for o in self.chosen.setting if o in self.options()]
        head = [*(o.replace("_", " ") for o in options), f"mean {metric}", "deviation", "best"]
        rows = [[*head, "runs", "collapsed", "chosen by"]]
        for result in self.ranked:
            chosen = [rule for rule in ("mean", "best") if result is getattr(self, f"by_{rule}")]
            scores = (result.mean(), result.std(), result.best.measurement.scores[metric])
            rows.append(
                [
                    *(setting_value(result.setting[o]) for o in options),
                    *_shown(scores),
                    str(len(result.seeds)),
                    ", ".join(run.name for run in result.collapsed),
                    ", ".join(chosen),
                ]
            )
        return rows

    def lines(self) -> list[str]:
        """What is to be said below the table of settings."""
        runs = sum(len(s.seeds) for s in self.settings)
        minutes = sum(run.seconds for s in self.settings for run in s.seeds) / 60
        rule = {"mean": "mean over seeds", "best": "best single run"}[self.select]
        said = [
            f"{len(self.settings)} settings, {runs} runs, {minutes:.1f} minutes of training and "
            f"measuring; chosen on dev by the {rule}: {self.chosen.name} (the best of several on "
            "dev is above what new data will give)",
            f"collapsed: {', '.join(self.collapsed)}" if self.collapsed else "no run collapsed",
        ]
        for option, values in self.options().items():
            shown = [
                f"{value}: mean {v['mean']:.4f}, best {v['best']:.4f}, "
                f"{v['collapsed']:.0f} of {v['runs']:.0f} collapsed"
                for value, v in values.items()
            ]
            said.append(f"{option.replace('_', ' ')} {'; '.join(shown)}")
        return [*said, *(f"{name} has no result: {why}" for name, why in self.diverged)]

    def table(self) -> str:
        """The settings by mean, as text."""
        title = f"{self.chosen.task}: search over {len(self.settings)} settings"
        shown = table_text(self.cells(), title)
        return "\n".join([shown, *self.lines(), f"saved in {self.run}"])

    def report(self) -> dict[str, Any]:
        """As JSON-able data: what was chosen as a run without a search has it, and ``search``."""
        return {
            **self.chosen.report(),
            "models": [s.model.relative_to(self.run).as_posix() for s in self.chosen.seeds],
            "search": {
                "select": self.select,
                "chosen": self.chosen.name,
                "by_mean": self.by_mean.name,
                "by_best": self.by_best.name,
                "options": self.options(),
                "settings": [
                    {"name": s.name, "setting": s.setting, **_short(s.report())}
                    for s in self.ranked
                ],
                "collapsed": self.collapsed,
                "diverged": [{"name": name, "reason": why} for name, why in self.diverged],
            },
        }


def setting_value(value: Any) -> str:
    """As it was given: ``5e-05``, ``16``, ``true``."""
    return str(value).lower()


def _shown(scores: Sequence[float]) -> list[str]:
    return ["-" if math.isnan(score) else f"{score:.4f}" for score in scores]


def _over(results: list[FinetuneResult]) -> dict[str, float]:
    scores = [score for result in results for score in result.scores[result.metrics[0]]]
    return {
        "runs": len(scores),
        "mean": statistics.fmean(scores),
        "best": max(scores),
        "collapsed": sum(len(result.collapsed) for result in results),
    }


def _short(report: dict[str, Any]) -> dict[str, Any]:
    """What a search's report has of a setting's."""
    return {name: report[name] for name in ("mean", "std", "best_seed", "seeds")}
