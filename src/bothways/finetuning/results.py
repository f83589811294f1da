"""Results of fine-tuning: scores over the seeds of a setting and over settings, as tables."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bothways.finetuning.options import RunSeeds
from bothways.io import html
from bothways.io.terminal import table_text
from bothways.tasks.metrics import Measurement

Points = tuple[list[float], list[float]]


def _no_examples() -> dict[str, Any]:
    return {"panels": [], "errors_total": 0, "errors": []}


@dataclass(frozen=True)
class SeedResult:
    """The result of one seed.

    Attributes:
        seed: the seed.
        measurement: scores on dev after the last epoch.
        folder: where model and predictions are.
        seconds: for initialising, training and measuring.
        further: scores on the files of ``measure``, by the file's name without its ending.
        order: separate seed of the data order, if there is one.
        head: separate seed of the new weights, if there is one.
        fold: the part of the training file that is its dev, from 1, if there are folds.
        epoch: that whose model is kept, if it was chosen on dev.
        baseline: scores of a constant prediction on its dev, if that is a fold.
        examples: panels and errors on dev (:func:`bothways.finetuning.report.describe`).
    """

    seed: int
    measurement: Measurement
    folder: Path
    seconds: float
    further: dict[str, Measurement] = field(default_factory=dict)
    order: int | None = None
    head: int | None = None
    fold: int | None = None
    epoch: int | None = None
    baseline: dict[str, float] | None = None
    examples: dict[str, Any] = field(default_factory=_no_examples, repr=False, compare=False)

    @property
    def run_seeds(self) -> RunSeeds:
        """The seeds of this run."""
        return RunSeeds(self.seed, self.order, self.head, self.fold)

    @property
    def name(self) -> str:
        """The name in tables, such as ``seed 0``."""
        return self.run_seeds.name

    @property
    def model(self) -> Path:
        """The model folder."""
        return self.folder / "model"

    @property
    def history(self) -> list[dict[str, Any]]:
        """The records of its training: ``step``, and losses or scores."""
        from bothways.training.monitor import METRICS, read_metrics  # slow import

        return read_metrics(self.folder / METRICS)

    def record(self) -> dict[str, Any]:
        """As JSON-able data."""
        some = {name: getattr(self, name) for name in _OPTIONAL}
        return {
            "seed": self.seed,
            **{name: value for name, value in some.items() if value is not None},
            **self.measurement.record(),
            "seconds": self.seconds,
            "further": {name: scores.record() for name, scores in self.further.items()},
        }

    @staticmethod
    def from_record(record: dict[str, Any], folder: Path) -> SeedResult:
        """The inverse of :meth:`record`, with the examples if they are in it.

        Raises:
            KeyError, ValueError, TypeError: the record is damaged.
        """
        further = {str(k): Measurement.from_record(v) for k, v in record["further"].items()}
        some = {name: record[name] for name in (*_OPTIONAL, "examples") if name in record}
        measurement, seconds = Measurement.from_record(record), float(record["seconds"])
        return SeedResult(int(record["seed"]), measurement, folder, seconds, further, **some)


_OPTIONAL = ("order", "head", "fold", "epoch", "baseline")


@dataclass(frozen=True, repr=False)
class FinetuneResult:
    """The result of fine-tuning with one setting, over its seeds.

    Shown in a terminal it is its table, in a notebook the table and the curves.

    Attributes:
        run: the run folder.
        task: name of the task.
        metrics: the main one first.
        seeds: the results of its seeds, in the order of the config.
        baseline: scores of a constant prediction: the majority class (or the mean score) of the
            training file.
        dev_examples: number of examples in the dev file.
        notes: what was cut or empty.
        setting: learning rate, batch, epochs, bias correction.
        search: the search that chose this setting, if there was one.
        folds: into how many parts the training file was divided, each of which was dev once; 0: it
            was not.
        advice: what to try where a run collapsed, or the rarest class is lost.
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
    folds: int = 0
    advice: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the run folder; in a search it names the setting."""
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
    def further(self) -> dict[str, dict[str, list[float]]]:
        """By labelled file beyond dev (``measure``), the same as :attr:`scores`; a file that
        only some seeds were measured on is left out."""
        files = [f for f in self.seeds[0].further if all(f in s.further for s in self.seeds)]
        return {
            file: {m: [s.further[file].scores[m] for s in self.seeds] for m in self.metrics}
            for file in files
        }

    @property
    def collapsed(self) -> tuple[SeedResult, ...]:
        """The seeds whose model predicts the same for every example."""
        return tuple(s for s in self.seeds if s.measurement.collapsed)

    @property
    def at_baseline(self) -> tuple[SeedResult, ...]:
        """The seeds that did not collapse, but score no higher than a constant prediction."""
        metric = self.metrics[0]
        healthy = [s for s in self.seeds if not s.measurement.collapsed]
        return tuple(
            s
            for s in healthy
            if s.measurement.scores[metric] <= (s.baseline or self.baseline)[metric]
        )

    def mean(self, metric: str | None = None) -> float:
        """Mean over the seeds, of the main metric if none is named."""
        return _mean(self.scores[metric or self.metrics[0]])

    def std(self, metric: str | None = None) -> float:
        """Sample standard deviation over the seeds; NaN for a single one."""
        return deviation(self.scores[metric or self.metrics[0]])

    def spread(self) -> dict[str, dict[str, float]]:
        """How much each source of randomness varies the main metric, if the data order or the new
        weights have seeds of their own.

        Returns:
            For each source with two or more values: their number, and the sample standard deviation
            of their means over everything else. ``seed`` stands for dropout, and for a source
            without a seed of its own; ``division`` for repeated divisions into folds.
        """
        spread: dict[str, dict[str, float]] = {}
        if all(s.order is None and s.head is None and s.fold is None for s in self.seeds):
            return spread
        for source in ("seed", "order", "head", "division"):
            groups: dict[int | None, list[float]] = defaultdict(list)
            for run, score in zip(self.seeds, self.scores[self.metrics[0]], strict=True):
                division = None if run.fold is None else (run.fold - 1) // self.folds
                groups[division if source == "division" else getattr(run, source)].append(score)
            if len(groups) > 1:
                means = [statistics.fmean(scores) for scores in groups.values()]
                spread[source] = {"values": len(groups), "std": statistics.stdev(means)}
        return spread

    def cells(self) -> list[list[str]]:
        """Scores of each seed, under a header."""
        rows = [["", *self.metrics, "seconds"]]
        for seed in self.seeds:
            mark = " (collapsed)" if seed.measurement.collapsed else ""
            scores = [seed.measurement.scores[m] for m in self.metrics]
            rows.append([seed.name + mark, *_shown(scores), f"{seed.seconds:.0f}"])
        return rows

    def summary(self) -> list[list[str]]:
        """Mean, deviation and best of several seeds, and the baseline, on dev, then the same on
        each further labelled file, in the columns of :meth:`cells`."""
        several, rows = len(self.seeds) > 1, []
        if several:
            rows = [
                ["mean", *_shown([self.mean(m) for m in self.metrics])],
                ["standard deviation", *_shown([self.std(m) for m in self.metrics])],
            ]
        healthy = [s.measurement.scores for s in self.seeds if not s.measurement.collapsed]
        if 0 < len(healthy) < len(self.seeds):
            means = [statistics.fmean(scores[m] for scores in healthy) for m in self.metrics]
            rows.append([f"mean of the {len(healthy)} not collapsed", *_shown(means)])
        if several and not self.folds:  # folds are measured on different examples
            best = [self.best.measurement.scores[m] for m in self.metrics]
            rows.append([f"best ({self.best.name})", *_shown(best)])
        baseline = [self.baseline[m] for m in self.metrics]
        rows.append(["baseline: constant prediction", *_shown(baseline)])
        chosen = self.seeds.index(self.best)
        for file, scores in self.further.items():
            by_metric = list(scores.values())
            mean = f"{file}: mean" if several else file
            rows.append([mean, *_shown([_mean(v) for v in by_metric])])
            if several:
                spread = [deviation(values) for values in by_metric]
                rows.append([f"{file}: standard deviation", *_shown(spread)])
                best = [values[chosen] for values in by_metric]
                if not self.folds:
                    rows.append([f"{file}: {self.best.name}, the best on dev", *_shown(best)])
        return [[*row, ""] for row in rows]

    def lines(self) -> list[str]:
        """The lines below the table: whose F1 it is, collapsed seeds, spread, notes."""
        lines = [*self.best.measurement.whose(self.metrics)]
        if chosen := [s for s in self.seeds if s.epoch is not None]:
            names = ", ".join(f"{s.name} epoch {s.epoch}" for s in chosen)
            lines.append(
                f"kept for the best {self.metrics[0]} on dev, whose score is optimistic: {names}"
            )
        if self.collapsed:
            names = ", ".join(s.name for s in self.collapsed)
            lines.append(f"collapsed, {len(self.collapsed)} of {len(self.seeds)}: {names}")
        if self.at_baseline:
            names = ", ".join(s.name for s in self.at_baseline)
            lines.append(f"{self.metrics[0]} no higher than a constant prediction's: {names}")
        lines += self.advice
        for source, spread in self.spread().items():
            plural = _SOURCES[source]
            lines.append(
                f"standard deviation of {self.metrics[0]} between the means of "
                f"{spread['values']:.0f} {plural}: {spread['std']:.4f}"
            )
        seed_notes = [f"{s.name}: {note}" for s in self.seeds for note in s.measurement.notes]
        further_notes = [
            f"{s.name}, {file}: {note}"
            for s in self.seeds
            for file, measurement in s.further.items()
            for note in measurement.notes
        ]
        return [*lines, *seed_notes, *further_notes, *self.notes]

    def table(self) -> str:
        """Scores by seed with mean, deviation, best and baseline, as text; after a search, the
        table of its settings first."""
        title = f"{self.task}: {self.dev_examples:,} dev examples"
        if self.folds:
            title = f"{self.task}: {self.dev_examples:,} examples in {self.folds} folds"
        table = table_text(self.cells(), title, self.summary())
        text = "\n".join([table, *self.lines(), f"saved in {self.run}"])
        return text if self.search is None else f"{self.search.table()}\n\n{text}"

    @property
    def page(self) -> Path:
        """The report as a page, with curves, panels and errors."""
        return self.run / "report.html"

    @property
    def history(self) -> list[dict[str, Any]]:
        """The records of training, of all seeds: ``run``, ``step``, and losses or scores."""
        return [{"run": seed.name, **record} for seed in self.seeds for record in seed.history]

    def plot(self) -> html.Png:
        """The training loss and the main score by step: the bytes of a PNG, which a notebook
        shows; empty if there are none."""
        from bothways.training.monitor import draw_panels  # slow import

        drawn = self.curves()
        return html.Png(draw_panels(drawn) if drawn else b"")

    def curves(self, metrics: int = 1) -> dict[str, dict[str, Points]]:
        """The training loss and the first metrics by step, of each seed, by the title of a panel. A
        curve of one point, which is in the table, is left out."""
        by_seed = {seed.name: seed.history for seed in self.seeds}
        panels: dict[str, dict[str, Points]] = {}
        shown = {f"dev_{metric}": f"{metric} on dev" for metric in self.metrics[:metrics]}
        for name, title in {"loss": "training loss", **shown}.items():
            points = {
                seed: [(r["step"], r[name]) for r in records if r.get(name) is not None]
                for seed, records in by_seed.items()
            }
            panel = {n: ([x for x, _ in p], [y for _, y in p]) for n, p in points.items() if p[1:]}
            if panel:
                panels[title] = panel
                if name != "loss":
                    baseline = self.baseline[name.removeprefix("dev_")]
                    panel["constant prediction"] = ([0.0], [baseline])
        return panels

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        header, *rows = self.cells()
        parts = [html.table(header, [*rows, *self.summary()]), html.listing(self.lines())]
        if picture := self.plot():
            parts.append(html.picture(picture, "loss and score by step"))
        parts.append(html.paragraph(f"saved in {self.run}; the report is {self.page}"))
        if self.search is not None:
            settings, *ranked = self.search.cells()
            parts.insert(0, html.table(settings, ranked))
        return html.fragment(f"{self.task}: {self.dev_examples:,} dev examples", *parts)

    def report(self) -> dict[str, Any]:
        """As JSON-able data, for report.json."""
        return {
            "task": self.task,
            "metrics": list(self.metrics),
            "dev_examples": self.dev_examples,
            "seeds": [seed.record() for seed in self.seeds],
            "mean": {m: self.mean(m) for m in self.metrics},
            "std": {m: _number(self.std(m)) for m in self.metrics},
            "further": {
                file: {
                    "mean": {m: _mean(values) for m, values in scores.items()},
                    "std": {m: _number(deviation(values)) for m, values in scores.items()},
                }
                for file, scores in self.further.items()
            },
            "best_seed": self.best.seed,
            "best": self.best.name,
            "collapsed": [s.name for s in self.collapsed],
            "at_baseline": [s.name for s in self.at_baseline],
            "spread": self.spread(),
            "setting": dict(self.setting),
            "models": [s.model.relative_to(self.run).as_posix() for s in self.seeds],
            "baseline": self.baseline,
            "notes": list(self.notes),
            **({"folds": self.folds} if self.folds else {}),
            **({"advice": list(self.advice)} if self.advice else {}),
        }


_SOURCES = {
    "seed": "seeds",
    "order": "data orders",
    "head": "new heads",
    "division": "divisions into folds",
}


@dataclass(frozen=True)
class SearchResult:
    """The result of a search over settings.

    Attributes:
        run: the folder of the search; each setting has a run folder in it.
        settings: the results of the settings, in the order of the config.
        select: the rule: ``mean`` over the seeds of a setting, or the ``best`` single seed.
        diverged: settings without a result: name and reason.
    """

    run: Path
    settings: tuple[FinetuneResult, ...]
    select: str
    diverged: tuple[tuple[str, str], ...] = ()

    @property
    def by_mean(self) -> FinetuneResult:
        """The setting with the highest mean of the main metric over its seeds, collapsed ones
        included; the first of equals."""
        return max(self.settings, key=lambda s: s.mean())

    @property
    def by_best(self) -> FinetuneResult:
        """The setting of the best single seed; the first of equals."""
        return max(self.settings, key=lambda s: s.best.measurement.scores[s.metrics[0]])

    @property
    def chosen(self) -> FinetuneResult:
        """The setting chosen by the rule."""
        return self.by_mean if self.select == "mean" else self.by_best

    @property
    def ranked(self) -> list[FinetuneResult]:
        """The settings by mean, highest first."""
        return sorted(self.settings, key=lambda s: -s.mean())

    @property
    def collapsed(self) -> list[str]:
        """The seeds that collapsed, named by setting and seed."""
        return [f"{s.name} {run.name}" for s in self.settings for run in s.collapsed]

    def options(self) -> dict[str, dict[str, dict[str, float]]]:
        """For each option that was varied and each of its values: the number of seeds trained,
        their mean and best of the main metric, and how many collapsed."""
        summaries: dict[str, dict[str, dict[str, float]]] = {}
        for option in self.chosen.setting:
            groups: dict[Any, list[FinetuneResult]] = defaultdict(list)
            for setting in self.settings:
                groups[setting.setting[option]].append(setting)
            if len(groups) > 1:
                summaries[option] = {
                    setting_value(value): _summarize(results) for value, results in groups.items()
                }
        return summaries

    def cells(self) -> list[list[str]]:
        """The settings by mean, under a header: scores of the main metric, and collapsed seeds."""
        metric = self.chosen.metrics[0]
        options = [o for o in self.chosen.setting if o in self.options()]
        names = [option.replace("_", " ") for option in options]
        rows = [[*names, f"mean {metric}", "deviation", "best", "runs", "collapsed", "chosen by"]]
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
        """The lines below the table of settings."""
        runs = sum(len(s.seeds) for s in self.settings)
        minutes = sum(run.seconds for s in self.settings for run in s.seeds) / 60
        rule = {"mean": "mean over seeds", "best": "best single run"}[self.select]
        lines = [
            f"{len(self.settings)} settings, {runs} runs, {minutes:.1f} minutes of training and "
            f"measuring; chosen on dev by the {rule}: {self.chosen.name} (its dev score is "
            "optimistic, because it is the best of several)",
            f"collapsed: {', '.join(self.collapsed)}" if self.collapsed else "no run collapsed",
        ]
        for option, values in self.options().items():
            shown = [
                f"{value}: mean {v['mean']:.4f}, best {v['best']:.4f}, "
                f"{v['collapsed']:.0f} of {v['runs']:.0f} collapsed"
                for value, v in values.items()
            ]
            lines.append(f"{option.replace('_', ' ')} {'; '.join(shown)}")
        return [*lines, *(f"{name} has no result: {why}" for name, why in self.diverged)]

    def table(self) -> str:
        """The settings by mean, as text."""
        title = f"{self.chosen.task}: search over {len(self.settings)} settings"
        return "\n".join([table_text(self.cells(), title), *self.lines(), f"saved in {self.run}"])

    def report(self) -> dict[str, Any]:
        """As JSON-able data: the report of the chosen setting, with the key ``search``."""
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
    """A value of an option as text: ``5e-05``, ``16``, ``true``."""
    return str(value).lower()


def _mean(scores: Sequence[float]) -> float:
    return statistics.fmean(scores)


def deviation(scores: Sequence[float]) -> float:
    """Sample standard deviation; NaN for a single score."""
    return statistics.stdev(scores) if len(scores) > 1 else math.nan


def _number(value: float) -> float | None:
    """For JSON, which has no NaN."""
    return None if math.isnan(value) else value


def _shown(scores: Sequence[float]) -> list[str]:
    return ["-" if math.isnan(score) else f"{score:.4f}" for score in scores]


def _summarize(results: list[FinetuneResult]) -> dict[str, float]:
    scores = [score for result in results for score in result.scores[result.metrics[0]]]
    return {
        "runs": len(scores),
        "mean": statistics.fmean(scores),
        "best": max(scores),
        "collapsed": sum(len(result.collapsed) for result in results),
    }


def _short(report: dict[str, Any]) -> dict[str, Any]:
    """The part of a setting's report that is repeated in that of the search."""
    return {name: report[name] for name in ("mean", "std", "best_seed", "seeds")}
