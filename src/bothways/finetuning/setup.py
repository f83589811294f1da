"""What a fine-tuning is given: the model, the files of the task, the run folder's conditions."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bothways.config.fields import to_dict
from bothways.errors import ConfigError, InputError
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig
from bothways.io.files import sha256
from bothways.model.device import ChosenPrecision, Device
from bothways.model.engine import TorchEngine, fast_kernels, network_of
from bothways.model.model import EncoderModel
from bothways.runtime.folder import LoadedModel
from bothways.runtime.pipeline import (
    check_length,
    check_segments,
    predict_outputs,
    unknown_notes,
    write_predictions,
)
from bothways.tasks.examples import Examples
from bothways.tasks.kinds import KINDS
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import TaskOptions
from bothways.tasks.task import EncodedFile, Outputs, Task
from bothways.training.runfolder import RunLock

# --------------------------------------------------------------------------------
# Files of a task other than train and dev: to measure on, or to predict.
#
# MNLI has two dev and two test files, and many data sets come with the labels of their test file. A
# model is chosen on ``task.dev`` alone; the scores on these files are only reported. So they may be
# added or replaced when a run is finished.

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
    model: EncoderModel,
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


def measured_outputs(model: EncoderModel, examples: Examples) -> Outputs:
    """Outputs for the scores and predictions of a training run, as ``evaluate`` and ``predict``
    compute them from the saved folder.

    They are in fp32, whatever the precision and the kernels of training, so that a run's scores
    are repeated to the last digit by whoever has its folder (with as many threads, on such a
    device).

    Raises:
        NonFiniteError: an output is not finite.
    """
    with fast_kernels(model):
        return predict_outputs(
            TorchEngine(model),
            examples,
            head=model.task_name,
            outputs=model.task_outputs,
            positions=model.config.positions,
        )


# --------------------------------------------------------------------------------
# Reads, checks and encodes the files of a task for fine-tuning.


@dataclass(frozen=True)
class FinetuningData:
    """A task and its files, encoded.

    Attributes:
        task: the task, with labels and metrics decided.
        train, dev: labelled files.
        extra: the other files, to measure on and to predict.
    """

    task: Task[Any, Any]
    train: EncodedFile[Any]
    dev: EncodedFile[Any]
    extra: ExtraFiles = field(default_factory=ExtraFiles)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut or empty in each file, as sentences."""
        files = (self.train, self.dev, *self.extra.files.values())
        return tuple(note for file in files for note in file.notes)


def load_data(config: FinetuneConfig, loaded: LoadedModel) -> FinetuningData:
    """Read, check and encode the task's files.

    Raises:
        ConfigError, InputError, LengthError, ModelError: see :func:`bothways.finetune`.
    """
    options, kind = config.located().task, KINDS[config.task.kind]
    check_files(options)
    check_length(loaded, config.sequence_length)
    train = kind.read(Path(options.train), options, labelled=True)
    task = kind.define(options, train)
    check_segments(loaded, pair=task.pair)
    dev = task.read(Path(options.dev), task.options, labelled=True)

    def encode(rows: Any) -> EncodedFile[Any]:
        return task.for_measuring().encode(loaded.tokenizer, rows, length=config.sequence_length)

    extra = read_extra_files(task, options, encode)
    encoded = task.encode(loaded.tokenizer, train, length=config.sequence_length)
    if not len(encoded.examples.trainable):
        raise InputError(
            "no answer is where answer_start says, so there is nothing to train on; set "
            "task.spans.misaligned to search, or correct the file.",
            path=options.train,
        )
    encoded = replace(
        encoded, notes=(*encoded.notes, *unknown_notes(loaded.tokenizer, encoded.examples, train))
    )
    return FinetuningData(task, encoded, encode(dev), extra)


# --------------------------------------------------------------------------------
# Steps before training that fine-tuning and the feature-based approach share: required options are
# checked, and the starting model is fingerprinted.


@dataclass(frozen=True)
class OpenedRun:
    """A run folder of fine-tuning, ready for training.

    Attributes:
        folder: the run folder.
        fingerprint: of everything the results depend on.
        identity: of the run, for its checkpoints.
        precision: arithmetic of the layers.
        threads: CPU threads.
        device: the device to train on.
        inputs: digests of the model and of the files that training reads.
        alone: no other process shows its progress on the same terminal.
        lock: keeps other commands out of the folder.
    """

    folder: Path
    fingerprint: str
    identity: str
    precision: ChosenPrecision
    threads: int
    device: Device
    inputs: dict[str, str]
    alone: bool = True
    lock: RunLock | None = None


def check_required(config: FinetuneConfig | FeaturesConfig) -> None:
    """Check that the options which have no default are given.

    Raises:
        ConfigError: one is missing.
    """
    for name, value, meaning in (
        ("model", config.model, "the model folder to start from"),
        ("run", config.run, "the folder to write to"),
        ("task.train", config.task.train, "the training file"),
        ("task.dev", config.task.dev, "the file to measure on"),
    ):
        if not value:
            raise ConfigError(f"{name} is missing: {meaning}.")


def recorded_without_effect(task: TaskOptions) -> list[str]:
    """Options that earlier versions recorded although they change nothing, by dotted name."""
    names = [f"task.{name}" for name in task.without_effect if name != "windows"]
    if "windows" in task.without_effect:
        names += ["task.windows.stride", "task.windows.pooling"]
    if task.kind != "multilabel":  # 0.1 had no such kind
        names += [f"task.multilabel.{name}" for name in to_dict(task.multilabel)]
    return names


def model_digest(loaded: LoadedModel, *, weights: bool, head: bool = False) -> str:
    """A digest of a starting model: shape and vocabulary, and the weights that are used.

    Args:
        loaded: the model.
        weights: include the weights of the encoder.
        head: include the weights of the task head.
    """
    content = hashlib.sha256()
    shape = loaded.config.recorded()
    content.update(json.dumps([shape, loaded.tokenizer.fingerprint]).encode())
    if not (weights or head):
        return content.hexdigest()[:16]
    model = network_of(loaded)
    modules = ((model.encoder, weights), (model.lstm, head), (model.task_head, head))
    for module, included in modules:
        if module is None or not included:
            continue
        for name, value in module.state_dict().items():
            content.update(name.encode())
            content.update(value.contiguous().numpy())
    return content.hexdigest()[:16]
