"""The files of a task besides train, dev and test: more to measure on, more to predict.

MNLI has two dev and two test files, and many data sets come with the labels of their test file. A
model is chosen on ``task.dev`` alone; what is measured here is only reported.
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
from bothways.tasks.task import Part, Task

# The endings that say what a file holds. Other dots belong to its name: eng.testa, eng.testb.
_ENDINGS = (".tsv", ".txt", ".csv", ".json", ".jsonl", ".conll")


def part_name(file: str) -> str:
    """What a file of a task is called in tables and in the names of its predictions."""
    path = Path(file)
    return path.stem if path.suffix.lower() in _ENDINGS else path.name


@dataclass(frozen=True)
class Further:
    """More files of a task, encoded.

    Attributes:
        measured: labelled, by name (the file's, without its ending).
        predicted: the others, by name.
    """

    measured: dict[str, Part[Any]] = field(default_factory=dict)
    predicted: dict[str, Part[Any]] = field(default_factory=dict)

    @property
    def parts(self) -> list[Part[Any]]:
        """All of them."""
        return [*self.measured.values(), *self.predicted.values()]


def check_files(options: TaskOptions) -> None:
    """Refuse a task whose files are not there, before any is read.

    Raises:
        InputError: a file is missing.
        ConfigError: two files would write predictions of the same name.
    """
    leave_out = {"test": "null", "measure": "[]", "predict": "[]"}
    for part in ("train", "dev", "test", "measure", "predict"):
        value = getattr(options, part) or ()
        for name in (value,) if isinstance(value, str) else value:
            if Path(name).exists():
                continue
            remedy = f" --task.{part} {leave_out[part]} leaves it out." if part in leave_out else ""
            raise InputError(
                f"there is no such file (task.{part}, relative to --data if given).{remedy}",
                path=name,
            )
    stems = [part_name(name) for name in (*options.measure, *options.predict)]
    taken = Counter(["dev", *(["test"] if options.test else []), *stems])
    for name, count in taken.items():
        if count > 1:
            raise ConfigError(
                f"task.measure and task.predict: {count} files would write {name}_predictions.tsv; "
                "rename one of them."
            )


def file_digests(options: TaskOptions) -> dict[str, str]:
    """What run.json says of the contents of a task's files: a name and a short digest each."""
    files = {"train": options.train, "dev": options.dev, "test": options.test}
    for part, names in (("measure", options.measure), ("predict", options.predict)):
        files |= {f"{part}[{i}]": name for i, name in enumerate(names)}
    return {f"task.{part}": sha256(Path(f))[:16] if f else "" for part, f in files.items()}


def read_further(
    task: Task[Any, Any], options: TaskOptions, encode: Callable[[Any], Part[Any]]
) -> Further:
    """Read and encode the files.

    Args:
        task: the task, decided.
        options: name the files.
        encode: what the other files are encoded with.

    Raises:
        InputError, LengthError: as for the other files.
    """

    def read(names: tuple[str, ...], *, labelled: bool) -> dict[str, Part[Any]]:
        found = {}
        for name in names:
            rows = task.read(Path(name), task.options, labelled=labelled)
            found[part_name(name)] = encode(rows)
        return found

    return Further(
        measured=read(options.measure, labelled=True),
        predicted=read(options.predict, labelled=False),
    )


def measure_further(
    further: Further, task: Task[Any, Any], model: Bert, folder: Path, *, dtype: torch.dtype
) -> dict[str, Measurement]:
    """Predict all files into ``NAME_predictions.tsv`` and measure the labelled ones.

    Args:
        further: the files.
        task: after tuning on dev.
        model: trained.
        folder: to write to.
        dtype: arithmetic of the layers.

    Returns:
        The measurements by the file's name.
    """
    found = {}
    for name, part in (further.measured | further.predicted).items():
        predictions = task.decode(part, predict_outputs(model, part.examples, dtype=dtype))
        write_predictions(folder / f"{name}_predictions.tsv", task, part, predictions)
        if name in further.measured:
            found[name] = task.measure(part, predictions)
    return found
