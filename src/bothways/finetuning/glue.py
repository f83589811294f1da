"""Fine-tuning on several declared tasks, one after the other, and the table of their scores.

Each task has a run folder below the common folder; running the same command again keeps what is
finished. ``table.md`` and ``table.json`` are rewritten after every task, and so are the files for
the evaluation server, each from the seed that is best on dev.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.config import FinetuneConfig, GlueConfig, ModelConfig
from bothways.console import line_printer
from bothways.errors import ConfigError, DivergenceError, InputError
from bothways.files import explain_disk_errors, write_json, write_text
from bothways.finetuning.finetune import prepare
from bothways.finetuning.glue_table import Row, markdown, record, rows_of, settings
from bothways.finetuning.jobs import SeedRunner
from bothways.finetuning.report import REPORT
from bothways.finetuning.results import FinetuneResult, SeedResult
from bothways.finetuning.submission import write_submission
from bothways.model.folder import load_model
from bothways.shipped import DEFAULT
from bothways.tasks.catalogue import GLUE, declared, task_files, task_recipe
from bothways.training.runfolder import RunLock


@dataclass(frozen=True)
class GlueResult:
    """The results of fine-tuning on several tasks.

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

    def text(self) -> str:
        """The table, and where the files are."""
        names = ", ".join(path.name for path in self.submission)
        server = [f"for the server, in {self.run / 'submission'}: {names}"] if names else []
        return "\n".join([*self.lines, *server, f"saved in {self.run}"])


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
    _lock = RunLock(folder)  # held until this returns
    notes += _finished_earlier(config, tasks)
    for note in notes:
        say(note)
    shape = load_model(config.model).model.config
    results: dict[str, FinetuneResult] = {}
    with SeedRunner(config.jobs) as runner:
        prepared = {}
        if runner.parallel:  # workers train the seeds of all tasks at once
            for name, recipe in tasks.items():
                prepared[name] = prepare(_without_missing_files(recipe), runner)
        for number, (name, recipe) in enumerate(tasks.items(), 1):
            say(f"--- {name} ({number} of {len(tasks)})")
            run = prepared.get(name) or prepare(_without_missing_files(recipe), runner)
            try:
                results[name] = run.result()
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
            raise InputError(f"there is no such file (task {name}).", path=needed[0])
        if needed:
            notes.append(f"{name} is left out: there is no {' and no '.join(needed)}")
        else:
            notes += [f"{name}: {file} does not exist and is skipped" for file in missing.values()]
            tasks[name] = recipe
    if not tasks:
        looked = "; ".join(notes[:3])
        raise InputError(
            f"no GLUE task has its train and dev file here ({looked} ...).", path=config.data
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
        "batch": config.batch,
        "optimizer.lr": config.lr,
        "length": config.length,
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
    for option in ("lr", "batch", "epochs"):
        if getattr(config, option) is not None and recipe.search.values[option]:
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
        batch=chosen["batch"],
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
