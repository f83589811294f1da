"""The declared tasks, by name.

A declared task is a finetune recipe (``declared/NAME.yaml``): the columns of texts and labels in
its files, its metrics, published scores, and the usual length and epochs. No code depends on a
particular task, so users declare their own in files of the same form.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bothways.config.parsing import load_recipe
from bothways.config.recipes import find_recipe
from bothways.errors import ConfigError
from bothways.finetuning.options import FinetuneConfig
from bothways.io.terminal import table_text
from bothways.tasks.options import TaskOptions

_FOLDER = Path(__file__).parent / "declared"

GLUE = ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte", "wnli")
"""The tasks of GLUE in the order of the paper's table 1, and WNLI, which the paper leaves out."""


def declared() -> dict[str, Path]:
    """The declared tasks and their files, sorted by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.yaml"))}


def recipe_of(name: str) -> Path:
    """The file of a declared task.

    Args:
        name: a declared task, or the path of a ``.yaml`` file with a task of one's own.

    Raises:
        ConfigError: no task has this name; the message suggests the nearest.
    """
    return find_recipe(name, declared(), "declared task")


def task_recipe(name: str, **options: Any) -> FinetuneConfig:
    """The recipe of a declared task, ready for :func:`bothways.finetune`.

    Args:
        name: a declared task (`bothways tasks` lists them), or a file of one's own.
        options: to add or to change: ``data``, ``model``, ``run``, ``seeds`` ..., also with dotted
            names (``**{"lr": 5e-5}``).

    Raises:
        ConfigError: no such task or option.
    """
    return load_recipe(FinetuneConfig, recipe_of(name), options)


def show_tasks(name: str | None = None) -> str:
    """The declaration of a task, to copy, or a table of all tasks.

    Raises:
        ConfigError: no such task, or a file that cannot be read.
    """
    if name is not None:
        try:
            return recipe_of(name).read_text(encoding="utf-8").rstrip("\n")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name} cannot be read ({error}).") from None
    rows = [["task", "kind", "metrics", "files", "published"]]
    for known in declared():
        options = task_recipe(known).task
        rows.append(
            [
                known,
                options.kind,
                "\n".join(options.metrics),
                "\n".join(task_files(options).values()),
                "\n".join(f"{r.model} {r.score:g} ({r.split})" for r in options.reference),
            ]
        )
    table = table_text(rows, left_columns=len(rows[0]), width=118)
    return f"{table}\n`bothways tasks NAME` prints a declaration, to copy and change."


def task_files(options: TaskOptions) -> dict[str, str]:
    """A task's files by role: train, dev, test, measure, measure 2 ..., predict ..."""
    files = {"train": options.train, "dev": options.dev, "test": options.test or ""}
    for role, names in (("measure", options.measure), ("predict", options.predict)):
        files |= {f"{role} {i}" if i > 1 else role: name for i, name in enumerate(names, 1)}
    return {role: name for role, name in files.items() if name}
