"""The kinds of tasks, by the name that a task's options and a model folder give them."""

from __future__ import annotations

import dataclasses
import shlex
from importlib import import_module
from typing import Any, Protocol

from bothways.config.fields import from_dict
from bothways.errors import ConfigError, ModelError
from bothways.families.heads import HEADS, no_task_of
from bothways.io.lines import listed
from bothways.tasks.options import TRAITS, TaskOptions
from bothways.tasks.task import Task


def _class(place: str) -> type[Task[Any, Any]]:
    module, _, name = place.partition(":")
    found: type[Task[Any, Any]] = getattr(import_module(module), name)
    return found


KINDS = {name: _class(traits.task) for name, traits in TRAITS.items()}
"""The classes of :data:`~bothways.tasks.options.TRAITS`."""


def other_kind(task: Task[Any, Any], wanted: str) -> ModelError:
    """That a model's task is not what a verb is for, and which verb it is for.

    Args:
        task: the model's.
        wanted: what the verb needs, such as ``a model of questions``.
    """
    kind, usage = task.options.kind, task.traits.usage
    example = f"`bothways predict MODEL {shlex.join(usage.arguments)}`, or in Python {usage.call}"
    return ModelError(
        f"this model's task is of the kind {kind!r}, and this needs {wanted}. For {kind}: "
        f"{example}; a file of its format takes --file."
    )


class HasTask(Protocol):
    """What is known of a model folder's task."""

    @property
    def about(self) -> dict[str, Any]:
        """The content of bothways.json."""

    @property
    def task_head(self) -> str:
        """Which head is the task's; empty without one."""

    @property
    def task_outputs(self) -> int:
        """Outputs of the task head; 0 without one."""

    @property
    def refused(self) -> dict[str, str]:
        """Heads that are not computed -> why."""

    @property
    def unused(self) -> list[str]:
        """Weights of the file that no part of the model has."""


def task_of(loaded: HasTask) -> Task[Any, Any]:
    """The task that a model folder was fine-tuned on.

    Folders of transformers name their outputs, but not the columns of the files they were trained
    on, so their task has no columns, and only the metrics of its kind.

    Raises:
        ModelError: the folder has no task head, or one that no task has, or its files contradict
            each other.
    """
    about = loaded.about
    if reason := loaded.refused.get(loaded.task_head):
        raise ModelError(reason)
    if not loaded.task_outputs:
        own = (
            f"its weights {listed(loaded.unused, 4)} are of no head that bothways computes: the "
            "code that made them does; or "
            if loaded.unused
            else ""
        )
        raise ModelError(
            f"this model folder has no task head (classification, regression ...); {own}"
            "fine-tune it first (`bothways finetune`; to tag words --kind ner, to answer questions "
            "--kind qa), then use the model folder that it writes."
        )
    if not HEADS[loaded.task_head].kind:
        raise ModelError(no_task_of(loaded.task_head))
    kind = about.get("kind", "classification")
    if kind not in KINDS:
        raise ModelError(
            f"bothways.json names the task kind {kind!r}; this version knows {', '.join(KINDS)}."
        )
    task = KINDS[kind](stored_options(about, kind, loaded.task_outputs))
    if task.outputs != loaded.task_outputs:
        raise ModelError(
            f"bothways.json names {task.outputs} labels, but the head has {loaded.task_outputs} "
            "outputs; the folder's files do not belong together."
        )
    return task


def stored_options(about: dict[str, Any], kind: str, outputs: int) -> TaskOptions:
    """The task options stored in a model folder, with labels and metrics decided.

    Args:
        about: the content of bothways.json.
        kind: of the task.
        outputs: number of outputs of the head; without label names, labels are numbered.

    Raises:
        ModelError: the options are damaged, or of another version.
    """
    labels, traits = about.get("labels"), TRAITS[kind]
    if not labels and (traits.has_labels or traits.several or traits.per_word):
        labels = [f"LABEL_{i}" for i in range(outputs)]
    try:
        # Earlier versions stored options that have no effect on this kind.
        stored = dict(about.get("options") or {})
        if "text_a" in stored:
            stored["text"] = stored.pop("text_a")
        others = {other.own for other in TRAITS.values()} - {traits.own}
        unused = TaskOptions(kind=kind, long=stored.get("long", "cut")).without_effect
        unused += (*others, *(() if traits.has_columns else ("text_b",)))
        for name in unused:
            stored.pop(name, None)
        options = from_dict(TaskOptions, {**stored, "kind": kind})
        return dataclasses.replace(options, labels=tuple(labels or ()))
    except (ConfigError, TypeError, AttributeError) as error:
        raise ModelError(
            f"bothways.json: the task's options cannot be read ({error}); it is damaged, or was "
            "written by another version of bothways."
        ) from None


def has_head_for(loaded: HasTask, task: Task[Any, Any]) -> bool:
    """Whether a model folder has a head for a task of the same kind with the same labels.

    Labels of choices only name them in a file, so they may differ.
    """
    if loaded.task_head in loaded.refused or not loaded.task_outputs:
        return False  # a new one is trained
    if loaded.about.get("kind") != task.options.kind:
        return False
    stored = task_of(loaded)
    same_labels = task.loss == "place" or stored.options.labels == task.options.labels
    return same_labels and (stored.outputs, stored.head) == (task.outputs, task.head)
