"""Files of a task other than train, dev and test: more to measure on, more to predict.

MNLI has two dev and two test files, and many data sets come with the labels of their test file. A
model is chosen on ``task.dev`` alone; the scores on these files are only reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bothways.config import TaskOptions
from bothways.errors import ConfigError, InputError
from bothways.files import sha256
from bothways.model.heads import Bert
from bothways.tasks.metrics import Measurement
from bothways.tasks.predict import predict_outputs, write_predictions
from bothways.tasks.task import EncodedFile, Task

# Suffixes that name a format. Other dots belong to the file's name: eng.testa, eng.testb.
_ENDINGS = (".tsv", ".txt", ".csv", ".json", ".jsonl", ".conll")


def part_name(file: str) -> str:
    """The name of a task's file in tables and in the file names of its predictions."""
    path = Path(file)
    return path.stem if path.suffix.lower() in _ENDINGS else path.name


@dataclass(frozen=True)
class ExtraFiles:
    """Further files of a task, encoded.

    Attributes:
        measured: labelled files by name (:func:`part_name`).
        predicted: unlabelled files by name.
    """

    measured: dict[str, EncodedFile[Any]] = field(default_factory=dict)
    predicted: dict[str, EncodedFile[Any]] = field(default_factory=dict)

    @property
    def files(self) -> list[EncodedFile[Any]]:
        """All files."""
        return [*self.measured.values(), *self.predicted.values()]


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
                f"task.measure and task.predict: {count} files would write {name}_predictions.tsv; "
                "rename one of them."
            )


def file_digests(options: TaskOptions) -> dict[str, str]:
    """A short digest of the contents of each file of a task, for run.json."""
    files = {"train": options.train, "dev": options.dev, "test": options.test}
    for option, names in (("measure", options.measure), ("predict", options.predict)):
        files |= {f"{option}[{i}]": name for i, name in enumerate(names)}
    return {f"task.{option}": sha256(Path(f))[:16] if f else "" for option, f in files.items()}


def read_extra_files(
    task: Task[Any, Any], options: TaskOptions, encode: Callable[[Any], EncodedFile[Any]]
) -> ExtraFiles:
    """Read and encode ``task.measure`` and ``task.predict``.

    Args:
        task: the task, with labels and metrics decided.
        options: name the files.
        encode: encodes the rows of a file, as for train and dev.

    Raises:
        InputError, LengthError: as for the other files.
    """

    def read(names: tuple[str, ...], *, labelled: bool) -> dict[str, EncodedFile[Any]]:
        return {
            part_name(name): encode(task.read(Path(name), task.options, labelled=labelled))
            for name in names
        }

    return ExtraFiles(
        measured=read(options.measure, labelled=True),
        predicted=read(options.predict, labelled=False),
    )


def measure_extra_files(
    extra: ExtraFiles, task: Task[Any, Any], model: Bert, folder: Path, *, dtype: torch.dtype
) -> dict[str, Measurement]:
    """Predict all files into ``NAME_predictions.tsv`` and measure the labelled ones.

    Args:
        extra: the files.
        task: after tuning on dev.
        model: trained.
        folder: where predictions are written.
        dtype: arithmetic of the layers.

    Returns:
        The measurements of the labelled files by name.
    """
    measurements = {}
    for name, file in (extra.measured | extra.predicted).items():
        predictions = task.decode(file, predict_outputs(model, file.examples, dtype=dtype))
        write_predictions(folder / f"{name}_predictions.tsv", task, file, predictions)
        if name in extra.measured:
            measurements[name] = task.measure(file, predictions)
    return measurements
