"""What a run of fine-tuning works with: the files of its task, encoded, and its folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bothways.config import FinetuneConfig
from bothways.model.folder import Loaded
from bothways.tasks.further import Further, check_files, read_further
from bothways.tasks.kinds import KINDS
from bothways.tasks.predict import check_length, check_segments
from bothways.tasks.task import Part, Task
from bothways.training.device import Device
from bothways.training.precision import Choice
from bothways.training.runfolder import RunLock


@dataclass(frozen=True)
class Data:
    """The files of a task, encoded.

    Attributes:
        task: what is predicted.
        train, dev: labelled.
        test: unlabelled; None if there is no test file.
        further: more files to measure on and to predict.
    """

    task: Task[Any, Any]
    train: Part[Any]
    dev: Part[Any]
    test: Part[Any] | None
    further: Further = field(default_factory=Further)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut or empty, a sentence each."""
        parts = [self.train, self.dev, *([self.test] if self.test else []), *self.further.parts]
        return tuple(note for part in parts for note in part.notes)


# More than what any vocabulary leaves out of text of its language.
_MANY_UNKNOWN = 0.05


@dataclass(frozen=True)
class Opened:
    """A run folder ready for work.

    Attributes:
        folder: the run folder.
        fingerprint: of everything the results depend on.
        precision: what the layers compute in.
        threads: CPU threads.
        device: what computes.
        alone: no other process shows its progress on the same terminal.
        hold: keeps other commands out of the folder.
    """

    folder: Path
    fingerprint: str
    precision: Choice
    threads: int
    device: Device
    alone: bool = True
    hold: RunLock | None = None


def load_data(config: FinetuneConfig, loaded: Loaded) -> Data:
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
    test = task.read(Path(options.test), task.options, labelled=False) if options.test else None

    def encode(rows: Any) -> Part[Any]:
        return task.encode(loaded.tokenizer, rows, length=config.length)

    further = read_further(task, options, encode)
    encoded = encode(train)
    unknown = float((encoded.examples.tokens == loaded.tokenizer.unk_id).mean())
    if unknown > _MANY_UNKNOWN:
        note = (
            f"{Path(options.train).name}: {unknown:.0%} of the tokens are [UNK]: the vocabulary of "
            f"{config.model} is for other text"
        )
        encoded = replace(encoded, notes=(*encoded.notes, note))
    return Data(task, encoded, encode(dev), None if test is None else encode(test), further)
