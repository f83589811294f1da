"""The data that a table needs: what is missing, and each task as a fine-tuning recipe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from bothways.config.fields import changed
from bothways.errors import ConfigError, InputError
from bothways.experiments.reproduce.options import ReproduceConfig
from bothways.experiments.reproduce.steps import Step
from bothways.experiments.reproduce.tables import TASKS, BoundColumn, Scale, Table, TaskSource
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig
from bothways.finetuning.setup import file_digests
from bothways.io.files import sha256
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.kinds import KINDS
from bothways.tasks.options import SplitConfig, TaggingOptions, TaskOptions

_DESCRIPTIONS = {
    "glue": "GLUE's folder with MRPC, SST-2 ...",
    "squad": "SQuAD 1.1's train and dev files",
    "ner": "CoNLL-2003: eng.train, eng.testa, eng.testb",
    "sick": "SICK's three files",
    "corpus": "a corpus folder made by `bothways corpus`",
    "text": "text files",
}
_SQUAD = (("train-v1.1.json", "dev-v1.1.json"), ("train.json", "dev.json"))


@dataclass(frozen=True)
class TaskData:
    """A task with its files.

    Attributes:
        recipe: of fine-tuning, without model and run folder; its files may not exist yet.
        inputs: digests of the files, or of the step that makes them.
        needs: names of the steps that make the files.
        steps: the steps to add for that.
    """

    recipe: FinetuneConfig
    inputs: tuple[str, ...]
    needs: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()


def check_data(
    table: Table, scale: Scale, columns: tuple[BoundColumn, ...], config: ReproduceConfig
) -> None:
    """Refuse to start without the data that the table needs.

    Raises:
        ConfigError: some data were not given, or data that the scale does not read; the message
            names all of them.
    """
    if scale.embedded and (
        unread := [f"--{name}" for name in _DESCRIPTIONS if getattr(config, name)]
    ):
        raise ConfigError(
            f"scale {scale.name} makes its own text and tasks and does not read "
            f"{', '.join(unread)}; leave them out, or choose another --scale."
        )
    needed: dict[str, list[str]] = {}
    if not scale.embedded:
        needed["text" if table.learns_vocabulary else "corpus"] = ["pre-training"]
    for bound in columns:
        if bound.task and TASKS[bound.task].data != "text":
            needed.setdefault(TASKS[bound.task].data, []).append(TASKS[bound.task].title)
    lines = [
        f"  --{name} {'FILES' if name == 'text' else 'FOLDER'}  {_DESCRIPTIONS[name]} "
        f"(for {', '.join(dict.fromkeys(uses))})"
        for name, uses in needed.items()
        if not getattr(config, name)
    ]
    if lines:
        raise ConfigError(
            f"{table.name} at scale {scale.name} needs data that were not given:\n"
            + "\n".join(lines)
            + "\nGive them, or choose among its tasks with --tasks."
        )


def read_task(
    name: str,
    scale: Scale,
    config: ReproduceConfig,
    text: Step | None,
    folder: Path | None,
    runs: Path,
) -> TaskData:
    """A task at a scale.

    Args:
        name: of the task.
        scale: its changes are applied to the declared recipe.
        config: where the data are.
        text: the step that makes the smoke scale's tasks; None at other scales.
        folder: where that step writes them.
        runs: the folder below which steps are computed.

    Raises:
        InputError: a file is missing, or cannot be read as this task's.
    """
    source = TASKS[name]
    if text is not None and folder is not None:
        recipe = _smoke_recipe(name, source, folder / name)
        return TaskData(_at_scale(recipe, name, scale, config), (text.key, name), (text.name,))
    data = getattr(config, source.data)
    if source.split is not None:
        return _split_task(name, source, scale, config, Path(data), runs)
    if source.data == "squad":
        recipe = _squad(Path(data))
    else:
        recipe = _without_predictions(task_recipe(source.declared, data=data).located())
    if source.data == "ner":  # copies of CoNLL-2003 come in IOB1, as distributed, and in IOB2
        tagging = dataclasses.replace(recipe.task.tagging, scheme="auto")
        recipe = dataclasses.replace(recipe, task=dataclasses.replace(recipe.task, tagging=tagging))
    for file in (recipe.task.train, recipe.task.dev):
        if not Path(file).exists():
            raise InputError(f"there is no such file (--{source.data}).", path=file)
    _check_content(recipe.task, config)
    inputs = tuple(file_digests(recipe.task).values())
    return TaskData(_at_scale(recipe, name, scale, config), inputs)


def features_config(scale: Scale, task: TaskData, config: ReproduceConfig) -> FeaturesConfig:
    """The options of feature-based tagging on a task; its test file is measured too.

    Raises:
        ConfigError: the task is not a tagging task.
    """
    options = task.recipe.task
    test = options.measure[0] if options.measure else None
    return dataclasses.replace(
        scale.features,
        task=dataclasses.replace(options, measure=(), test=test),
        precision=config.precision,
        threads=config.threads,
    )


def _at_scale(
    recipe: FinetuneConfig, name: str, scale: Scale, config: ReproduceConfig
) -> FinetuneConfig:
    numerics = {
        "device": config.device,
        "precision": config.precision,
        "threads": config.threads,
    }
    return changed(
        recipe, {**scale.finetune.get("", {}), **scale.finetune.get(name, {}), **numerics}
    )


def _without_predictions(recipe: FinetuneConfig) -> FinetuneConfig:
    """The recipe with nothing to predict, and only those further files to measure that exist."""
    measure = tuple(name for name in recipe.task.measure if Path(name).exists())
    task = dataclasses.replace(recipe.task, test=None, predict=(), measure=measure)
    return dataclasses.replace(recipe, task=task)


def _squad(folder: Path) -> FinetuneConfig:
    """The declared task, on the official files or on a train.json and a dev.json."""
    for train, dev in _SQUAD:
        if (folder / train).exists() and (folder / dev).exists():
            files = {"task.train": str(folder / train), "task.dev": str(folder / dev)}
            return task_recipe("squad", **files)
    pairs = " nor ".join(f"{train} with {dev}" for train, dev in _SQUAD)
    raise InputError(f"there is neither {pairs}.", path=folder)


def _split_task(
    name: str, source: TaskSource, scale: Scale, config: ReproduceConfig, data: Path, runs: Path
) -> TaskData:
    """A task whose only labelled file is split into train and dev by a step."""
    assert source.split is not None
    file, column = source.split
    if not (data / file).exists():
        raise InputError("there is no such file (--glue).", path=data / file)
    folder = Path(file).parent
    options = SplitConfig(file=str(data / file), out=str(folder), by=column)
    step = Step("split", folder.name, options, (sha256(data / file)[:16],))
    recipe = task_recipe(source.declared, data=str(runs / step.name)).located()
    task = dataclasses.replace(recipe.task, name=source.title, test=None, predict=(), measure=())
    _check_content(dataclasses.replace(task, train=options.file, dev=options.file), config)
    recipe = dataclasses.replace(recipe, task=task)
    return TaskData(_at_scale(recipe, name, scale, config), (step.key,), (step.name,), (step,))


def _check_content(task: TaskOptions, config: ReproduceConfig) -> None:
    """Refuse files that cannot be read as the task's now, not after hours of pre-training."""
    if config.step is not None:  # one step, usually of a plan that was checked
        return
    kind = KINDS[task.kind]
    defined = kind.define(task, kind.read(Path(task.train), task, labelled=True))
    for file in {task.dev, *task.measure} - {task.train}:
        kind.read(Path(file), defined.options, labelled=True)


def _smoke_recipe(name: str, source: TaskSource, folder: Path) -> FinetuneConfig:
    """A task of the smoke scale."""
    if name == "capitals":
        task = TaskOptions(
            name=source.title,
            kind="tagging",
            train=str(folder / "train.conll"),
            dev=str(folder / "dev.conll"),
            measure=(str(folder / "test.conll"),),
            tagging=TaggingOptions(scheme="iob2", context="sentence"),
        )
        return FinetuneConfig(task=task)
    pair = name == "follows"
    task = TaskOptions(
        name=source.title,
        train=str(folder / "train.tsv"),
        dev=str(folder / "dev.tsv"),
        text_a="first" if pair else "sentence",
        text_b="second" if pair else None,
        metrics=("accuracy",),
    )
    return FinetuneConfig(task=task)
