"""Fine-tuning on several declared tasks, one after the other, and the table over them.

A run folder of each task stands below the folder of the whole; running the same command again keeps
what is finished. ``table.md`` and ``table.json`` are written anew after every task, and so are the
files for the evaluation server, each from the seed that is best on dev.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bothways.config import FinetuneConfig, GlueConfig, ModelConfig
from bothways.errors import ConfigError, InputError
from bothways.files import write_json, write_text
from bothways.model.folder import load_model
from bothways.tasks.catalogue import GLUE, declared, task, task_files
from bothways.tasks.finetune import begin
from bothways.tasks.jobs import Jobs
from bothways.tasks.report import FinetuneResult, SeedResult
from bothways.tasks.submission import write_submission
from bothways.tasks.table import Row, markdown, record, rows_of, settings


@dataclass(frozen=True)
class GlueResult:
    """What fine-tuning on several tasks gave.

    Attributes:
        run: the folder.
        rows: of the table.
        results: by task.
        submission: files for the evaluation server.
        lines: table.md.
    """

    run: Path
    rows: tuple[Row, ...]
    results: dict[str, FinetuneResult]
    submission: tuple[Path, ...]
    lines: tuple[str, ...]

    def text(self) -> str:
        """The table, and where it is."""
        named = ", ".join(path.name for path in self.submission)
        where = f"for the server, in {self.run / 'submission'}: {named}" if named else ""
        return "\n".join([*self.lines, *([where] if where else []), f"saved in {self.run}"])


def glue(config: GlueConfig) -> GlueResult:
    """Train each task, write the table after each.

    Raises:
        ConfigError, InputError: a task or file that is not there, before anything is trained.
        BothwaysError: as :func:`bothways.finetune`; what was finished before is kept.
    """
    start = time.monotonic()
    say = Console(markup=False, highlight=False, soft_wrap=True).print
    tasks, notes = _choose(config)
    for note in notes:
        say(note)
    shape = load_model(config.model).model.config
    results: dict[str, FinetuneResult] = {}
    with Jobs(config.jobs) as jobs:
        # Processes are given the runs of all tasks at once, and read each task's data themselves.
        names = list(tasks)
        begun = {n: begin(_without_missing(tasks[n]), jobs) for n in names if jobs.several}
        for name in names:
            say(f"--- {name} ({len(results) + 1} of {len(names)})")
            own = begun.get(name) or begin(_without_missing(tasks[name]), jobs)
            results[name] = own()
            done = {n: tasks[n] for n in results}
            found = _write(config, done, results, shape, notes, time.monotonic() - start)
    return found


def _choose(config: GlueConfig) -> tuple[dict[str, FinetuneConfig], list[str]]:
    """The recipes of the tasks that can be trained, and what is missing, a sentence each."""
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
            notes += [f"{name}: {file} is not there and passed over" for file in missing.values()]
            tasks[name] = recipe
    if not tasks:
        raise InputError("no task of GLUE has its train and dev file here.", path=config.data)
    folders = [recipe.run for recipe in tasks.values()]
    if len(set(folders)) < len(folders):
        raise ConfigError(f"tasks: {', '.join(tasks)} would share run folders; rename a file.")
    return tasks, notes


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
    found = task(name, **{k: v for k, v in changes.items() if v is not None})
    for option in ("lr", "batch", "epochs"):
        if getattr(config, option) is not None and found.search.values[option]:
            raise ConfigError(
                f"--{option} is given, and the task {name} searches it (search.{option}); leave "
                "one of them out."
            )
    return found


def _without_missing(recipe: FinetuneConfig) -> FinetuneConfig:
    """The recipe without the files besides train and dev that are not there."""
    folder, options = Path(recipe.data), recipe.task

    def there(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if (folder / name).exists())

    present = dataclasses.replace(
        options,
        test=options.test if options.test and (folder / options.test).exists() else None,
        measure=there(options.measure),
        predict=there(options.predict),
    )
    return dataclasses.replace(recipe, task=present)


def _trained(result: FinetuneResult) -> list[SeedResult]:
    """Every run, of a search those of all settings."""
    found = [result] if result.search is None else result.search.settings
    return [seed for one in found for seed in one.seeds]


def _chosen(recipe: FinetuneConfig, result: FinetuneResult) -> FinetuneConfig:
    """The recipe with the setting that a search chose."""
    chosen = result.setting if result.search is not None else recipe.setting
    return dataclasses.replace(
        recipe,
        batch=chosen["batch"],
        epochs=chosen["epochs"],
        optimizer=dataclasses.replace(
            recipe.optimizer, lr=chosen["lr"], bias_correction=chosen["bias_correction"]
        ),
    )


def _write(
    config: GlueConfig,
    tasks: dict[str, FinetuneConfig],
    results: dict[str, FinetuneResult],
    shape: ModelConfig,
    notes: list[str],
    elapsed: float,
) -> GlueResult:
    """Write table, records and submission of what is finished after so many seconds."""
    run = Path(config.run)
    rows = [row for name, r in results.items() for row in rows_of(name, tasks[name], r)]
    seconds = {name: sum(s.seconds for s in _trained(r)) for name, r in results.items()}
    lines = [
        *markdown(rows, seconds),
        "",
        "Scores are of 100; mean and sample standard deviation over seeds. Minutes are of training "
        f"and measuring, over all seeds; this command took {elapsed / 60:.1f} in all.",
        "",
        *settings([_chosen(tasks[n], r) for n, r in results.items()], shape, config.model),
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
