"""Files of a task other than train and dev: to measure on, or to predict.

MNLI has two dev and two test files, and many data sets come with the labels of their test file. A
model is chosen on ``task.dev`` alone; the scores on these files are only reported. So they may be
added or replaced when a run is finished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bothways.config import TaskOptions
from bothways.errors import ConfigError, InputError
from bothways.files import sha256
from bothways.model.bert import Bert
from bothways.prediction.predict import measured_outputs, write_predictions
from bothways.tasks.metrics import Measurement
from bothways.tasks.task import EncodedFile, Task

# Suffixes that name a format. Other dots belong to the file's name: eng.testa, eng.testb.
_ENDINGS = (".tsv", ".txt", ".csv", ".json", ".jsonl", ".conll")


def part_name(file: str) -> str:
    """The name of a task's file in tables and in the file names of its predictions."""
    path = Path(file)
    return path.stem if path.suffix.lower() in _ENDINGS else path.name


WITH_LABELS = " with labels"
"""Ends the digest of a file whose labels were read."""


def predictions_name(part: str) -> str:
    """The name of the file with the predictions for a part such as ``dev``."""
    return f"{part}_predictions.tsv"


@dataclass(frozen=True)
class ExtraFiles:
    """Further files of a task, encoded.

    Attributes:
        files: by name: ``test``, and those of ``task.measure`` and ``task.predict`` as
            :func:`part_name` calls them.
        labelled: the names of ``task.measure``.
        digests: by name, of the files' contents and of whether labels are read: without them,
            lines without a label are predicted too.
    """

    files: dict[str, EncodedFile[Any]] = field(default_factory=dict)
    labelled: tuple[str, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)


def check_files(options: TaskOptions) -> None:
    """Refuse a task whose files do not all exist, before any is read.

    Raises:
        InputError: a file is missing.
        ConfigError: two files would write predictions of the same name.
    """
    empty_values = {"test": "null", "measure": "[]", "predict": "[]"}
    for option in ("train", "dev", "test", "measure", "predict"):
        value = getattr(options, option) or ()
        for name in (value,) if isinstance(value, str) else value:
            if Path(name).exists():
                continue
            remedy = ""
            if option in empty_values:
                remedy = f" --task.{option} {empty_values[option]} leaves it out."
            raise InputError(
                f"there is no such file (task.{option}, relative to --data if given).{remedy}",
                path=name,
            )
    stems = [part_name(name) for name in (*options.measure, *options.predict)]
    counts = Counter(["dev", *(["test"] if options.test else []), *stems])
    for name, count in counts.items():
        if count > 1:
            raise ConfigError(
                f"task.measure and task.predict: {count} files would write "
                f"{predictions_name(name)}; rename one of them."
            )


EXTRA_INPUTS = ("input.task.test", "input.task.measure", "input.task.predict")
"""Digests of these files in run.json, which earlier versions made part of the recipe."""


def training_digests(options: TaskOptions) -> dict[str, str]:
    """A short digest of the contents of the files that a model depends on, for run.json."""
    return {"task.train": _digest(options.train), "task.dev": _digest(options.dev)}


def file_digests(options: TaskOptions) -> dict[str, str]:
    """A short digest of the contents of each file of a task, for run.json."""
    files = {"task.test": options.test or ""}
    for option, names in (("measure", options.measure), ("predict", options.predict)):
        files |= {f"task.{option}[{i}]": name for i, name in enumerate(names)}
    digests = {option: _digest(file) for option, file in files.items()}
    return {**training_digests(options), **digests}


def _digest(file: str) -> str:
    return sha256(Path(file))[:16] if file else ""


def read_extra_files(
    task: Task[Any, Any], options: TaskOptions, encode: Callable[[Any], EncodedFile[Any]]
) -> ExtraFiles:
    """Read and encode ``task.test``, ``task.measure`` and ``task.predict``.

    Args:
        task: the task, with labels and metrics decided.
        options: name the files.
        encode: encodes the rows of a file, as for train and dev.

    Raises:
        InputError, LengthError: as for the other files.
    """
    paths = {"test": options.test} if options.test else {}
    paths |= {part_name(path): path for path in (*options.measure, *options.predict)}
    labelled = tuple(part_name(path) for path in options.measure)
    files = {
        name: encode(task.read(Path(path), task.options, labelled=name in labelled))
        for name, path in paths.items()
    }
    digests = {
        name: _digest(path) + WITH_LABELS * (name in labelled) for name, path in paths.items()
    }
    return ExtraFiles(files, labelled, digests)


def measure_extra_files(
    extra: ExtraFiles,
    names: Iterable[str],
    task: Task[Any, Any],
    model: Bert,
    folder: Path,
) -> dict[str, Measurement]:
    """Predict files into ``NAME_predictions.tsv`` and measure the labelled ones.

    Args:
        extra: the files.
        names: those to predict.
        task: after tuning on dev.
        model: trained.
        folder: where predictions are written.

    Returns:
        The measurements of the labelled files by name.
    """
    measurements = {}
    for name in names:
        file = extra.files[name]
        predictions = task.decode(file, measured_outputs(model, file.examples))
        write_predictions(folder / predictions_name(name), task, file, predictions)
        if name in extra.labelled:
            measurements[name] = task.measure(file, predictions)
    return measurements
