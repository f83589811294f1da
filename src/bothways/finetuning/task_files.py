"""Reads, checks and encodes the files of a task for fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bothways.config import FinetuneConfig
from bothways.errors import InputError
from bothways.finetuning.extra_files import ExtraFiles, check_files, read_extra_files
from bothways.model.folder import LoadedModel
from bothways.prediction.predict import check_length, check_segments, unknown_notes
from bothways.tasks.kinds import KINDS
from bothways.tasks.task import EncodedFile, Task


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
    check_length(loaded.model, config.length)
    train = kind.read(Path(options.train), options, labelled=True)
    task = kind.define(options, train)
    check_segments(loaded.model, pair=task.pair)
    dev = task.read(Path(options.dev), task.options, labelled=True)

    def encode(rows: Any) -> EncodedFile[Any]:
        return task.for_measuring().encode(loaded.tokenizer, rows, length=config.length)

    extra = read_extra_files(task, options, encode)
    encoded = task.encode(loaded.tokenizer, train, length=config.length)
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
