"""The GLUE benchmark: all tasks, one table, submission files."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.errors import ConfigError, DivergenceError, InputError, Place, RunError
from bothways.families.config import ModelConfig
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig, GlueConfig
from bothways.finetuning.report import REPORT
from bothways.finetuning.results import FinetuneResult, SeedResult, deviation
from bothways.finetuning.setup import part_name, predictions_name
from bothways.io import html
from bothways.io.files import explain_disk_errors, write_json, write_text
from bothways.io.terminal import counted, line_printer
from bothways.model.device import borrowed_process
from bothways.runtime.folder import load_model
from bothways.shipped import DEFAULT
from bothways.tasks.catalogue import GLUE, declared, task_files, task_recipe
from bothways.tasks.options import TaskOptions
from bothways.tasks.task import submission_rows
from bothways.training.runfolder import locks_released, use_alone

# --------------------------------------------------------------------------------
# Predictions in the format of GLUE's evaluation server.
#
# One file per task, named as the server requires: a header ``index<TAB>prediction``, then for each
# example of the test file a line with its number from 0 and the label as the training file writes
# it, or the score. (https://gluebenchmark.com, its FAQ, and the sample submission there.)


def write_submission(
    options: TaskOptions, data: Path, seed: SeedResult, folder: Path
) -> list[Path]:
    """Write a task's files for the server, from the predictions of one seed.

    Args:
        options: the task; ``submission`` names the files, for ``test``, ``predict`` and
            ``optional`` in turn.
        data: the folder of the task's files; test files that do not exist are skipped.
        seed: the seed whose predictions are written.
        folder: to write to.

    Returns:
        The files written; none for a task without a test file or without ``submission``.

    Raises:
        RunError: the seed's folder lacks its predictions.
    """
    others = (*options.predict, *options.optional)
    predicted = {"test": options.test or "", **{part_name(name): name for name in others}}
    written = []
    for name, (stem, file) in zip(options.submission, predicted.items(), strict=False):
        if not file or not (data / file).exists() or folder / name in written:
            continue
        source = seed.folder / predictions_name(stem)
        try:
            lines = source.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except OSError as error:
            raise RunError(
                f"{source} cannot be read ({error.strerror}); remove it and run the command again, "
                "which writes it again."
            ) from None
        rows = submission_rows([line.split("\t") for line in lines])
        write_text(folder / name, "".join("\t".join(row) + "\n" for row in rows))
        written.append(folder / name)
    return written


# --------------------------------------------------------------------------------
# A table over tasks: our scores over seeds next to published ones, and the average of both.
#
# The average is that of the paper's table 1: the first metric of each task, MNLI with two rows,
# WNLI left out. Ours and the published one are over the same rows, and missing rows are named.

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
        return deviation(self.scores)


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
            f"{model}: {counted(shape.layers, 'layer')}, hidden {shape.hidden}",
            "base: 12 layers, hidden 768; large: 24 layers, hidden 1024",
        ),
        ("scores are for", "dev files, and further labelled ones", published("scores")),
        ("epochs", ours(lambda c: c.epochs), published("epochs")),
        ("batch", ours(lambda c: c.batch_size), published("batch")),
        ("learning rate", ours(lambda c: f"{c.optimizer.lr:g}"), published("lr")),
        ("dropout", ours(lambda c: _dropout(c, shape)), "0.1"),
        ("longest sequence", ours(lambda c: c.for_encoder(shape).max_length), published("length")),
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
    spreads = [None if math.isnan(row.std) else row.std for row in rows]
    return {
        "rows": [
            {**dataclasses.asdict(row), "mean": row.mean, "std": std}
            for row, std in zip(rows, spreads, strict=True)
        ],
        "average": dataclasses.asdict(average(rows)),
        "seconds": seconds,
    }


# --------------------------------------------------------------------------------
# Fine-tuning on several declared tasks, one after the other, and the table of their scores.
#
# Each task has a run folder below the common folder; running the same command again keeps what is
# finished. ``table.md`` and ``table.json`` are rewritten after every task, and so are the files for
# the evaluation server, each from the seed that is best on dev.


@dataclass(frozen=True, repr=False)
class GlueResult:
    """The results of fine-tuning on several tasks; shown, they are the table.

    Attributes:
        run: the common folder.
        rows: the rows of the table.
        results: by task.
        submission: files for the evaluation server.
        lines: the content of table.md.
    """

    run: Path
    rows: tuple[Row, ...]
    results: dict[str, FinetuneResult]
    submission: tuple[Path, ...]
    lines: tuple[str, ...]

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return html.fragment("", html.preformatted(self.text()))

    def text(self) -> str:
        """The table, and where the files are."""
        names = ", ".join(path.name for path in self.submission)
        server = [f"for the server, in {self.run / 'submission'}: {names}"] if names else []
        return "\n".join([*self.lines, *server, f"saved in {self.run}"])


@borrowed_process()
@locks_released()
def glue(config: GlueConfig) -> GlueResult:
    """Train each task, and write the table after each; tasks that diverge are left out of it.

    Raises:
        ConfigError, InputError: a task or file that does not exist, before anything is trained.
        DivergenceError: no task is left.
        BothwaysError: as :func:`bothways.finetune`; what was finished before is kept.
    """
    start = time.monotonic()
    say = line_printer()
    tasks, notes = _choose_tasks(config)
    folder = Path(config.run)
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    use_alone(folder)
    notes += _finished_earlier(config, tasks)
    for note in notes:
        say(note)
    shape = load_model(config.model).config
    results: dict[str, FinetuneResult] = {}
    for number, (name, recipe) in enumerate(tasks.items(), 1):
        say(f"--- {name} ({number} of {len(tasks)})")
        try:
            results[name] = finetune(_without_missing_files(recipe))
        except DivergenceError as error:
            if number == len(tasks) and not results:
                raise
            notes.append(f"{name} is left out: {error}")
            say(notes[-1])
            if not results:
                continue
        elapsed = time.monotonic() - start
        glue_result = _write_table(config, tasks, results, shape, notes, elapsed)
    return glue_result


def _choose_tasks(config: GlueConfig) -> tuple[dict[str, FinetuneConfig], list[str]]:
    """The recipes of the tasks that can be trained, and notes on files that are missing."""
    tasks: dict[str, FinetuneConfig] = {}
    notes = []
    for name in config.tasks or GLUE:
        recipe = _recipe(config, name)
        files = task_files(recipe.located().task)
        missing = {part: file for part, file in files.items() if not Path(file).exists()}
        needed = [missing[part] for part in ("train", "dev") if part in missing]
        if needed and config.tasks:
            raise InputError(f"there is no such file (task {name}).", place=Place(needed[0]))
        if needed:
            notes.append(f"{name} is left out: there is no {' and no '.join(needed)}")
        else:
            notes += [f"{name}: {file} does not exist and is skipped" for file in missing.values()]
            tasks[name] = recipe
    if not tasks:
        looked = "; ".join(notes[:3])
        raise InputError(
            f"no GLUE task has its train and dev file here ({looked} ...).",
            place=Place(config.data),
        )
    folders = [recipe.run for recipe in tasks.values()]
    if len(set(folders)) < len(folders):
        raise ConfigError(f"tasks: {', '.join(tasks)} would share run folders; rename a file.")
    return tasks, notes


def _finished_earlier(config: GlueConfig, tasks: dict[str, FinetuneConfig]) -> list[str]:
    """A note on the tasks in the folder that this table leaves out."""
    finished = {report.parent.name for report in Path(config.run).glob(f"*/{REPORT}")}
    others = sorted(finished - {Path(recipe.run).name for recipe in tasks.values()})
    if not others:
        return []
    return [
        f"finished earlier and not part of this table: {', '.join(others)}; name them too (--tasks)"
    ]


def _recipe(config: GlueConfig, name: str) -> FinetuneConfig:
    folder = Path(name).stem if name not in declared() else name
    changes: dict[str, Any] = {
        "data": config.data,
        "model": config.model,
        "run": str(Path(config.run) / folder),
        "seeds": config.seeds or None,
        "precision": config.precision,
        "threads": config.threads,
        "jobs": config.jobs,
        "device": config.device,
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "lr": config.lr,
        "max_length": config.max_length,
        "dropout": config.dropout,
    }
    for item in dataclasses.fields(config.search):
        value = getattr(config.search, item.name)
        if value != item.default:
            changes[f"search.{item.name}"] = value
    own = task_recipe(name).model
    if own not in (DEFAULT, config.model):
        raise ConfigError(
            f"the task {name} starts from {own}, and --model is {config.model}; all tasks of one "
            "table start from one model. Give --model, or take the model out of the task."
        )
    recipe = task_recipe(name, **{k: v for k, v in changes.items() if v is not None})
    for option in ("lr", "batch_size", "epochs"):
        if getattr(config, option) is not None and recipe.searched.values[option]:
            raise ConfigError(
                f"--{option} is given, and {name} searches it (search.{option}, given here "
                "or in the task); leave one of them out."
            )
    return recipe


def _without_missing_files(recipe: FinetuneConfig) -> FinetuneConfig:
    """The recipe without those of its files, other than train and dev, that do not exist."""
    folder, options = Path(recipe.data), recipe.task

    def existing(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if (folder / name).exists())

    options = dataclasses.replace(
        options,
        test=options.test if options.test and (folder / options.test).exists() else None,
        measure=existing(options.measure),
        predict=existing(options.predict),
    )
    return dataclasses.replace(recipe, task=options)


def _all_seeds(result: FinetuneResult) -> list[SeedResult]:
    """Every seed trained; after a search, those of all settings."""
    settings = [result] if result.search is None else result.search.settings
    return [seed for setting in settings for seed in setting.seeds]


def _with_chosen_setting(recipe: FinetuneConfig, result: FinetuneResult) -> FinetuneConfig:
    """The recipe with the setting of the result, which a search may have chosen."""
    chosen = result.setting
    return dataclasses.replace(
        recipe,
        batch_size=chosen["batch_size"],
        epochs=chosen["epochs"],
        optimizer=dataclasses.replace(
            recipe.optimizer, lr=chosen["lr"], bias_correction=chosen["bias_correction"]
        ),
    )


def _write_table(
    config: GlueConfig,
    tasks: dict[str, FinetuneConfig],
    results: dict[str, FinetuneResult],
    shape: ModelConfig,
    notes: list[str],
    elapsed: float,
) -> GlueResult:
    """Write the table and the submission of the tasks finished so far.

    Args:
        config: names the folders.
        tasks: the recipes by task, with all declared files.
        results: the results of the finished tasks.
        shape: of the model.
        notes: lines below the table.
        elapsed: seconds since the command started.
    """
    run = Path(config.run)
    rows = [row for name, r in results.items() for row in rows_of(name, tasks[name], r)]
    seconds = {name: sum(s.seconds for s in _all_seeds(r)) for name, r in results.items()}
    lines = [
        *markdown(rows, seconds),
        "",
        "Scores are in percent: mean and sample standard deviation over seeds. Minutes are for "
        f"training and measuring all seeds; this command took {elapsed / 60:.1f} minutes.",
        "",
        *settings(
            [_with_chosen_setting(tasks[n], r) for n, r in results.items()], shape, config.model
        ),
        *(["", *(f"- {note}" for note in notes)] if notes else []),
    ]
    written = [
        path
        for name, r in results.items()
        for path in write_submission(
            tasks[name].task, Path(config.data), r.best, run / "submission"
        )
    ]
    write_text(run / "table.md", "\n".join(lines) + "\n")
    write_json(run / "table.json", {**record(rows, seconds), "elapsed": elapsed, "notes": notes})
    return GlueResult(run, tuple(rows), dict(results), tuple(written), tuple(lines))
