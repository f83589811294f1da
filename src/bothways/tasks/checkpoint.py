"""The state of a fine-tuning run in training, from which an interrupted one goes on to the bit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bothways.files import explain_disk_errors, new_folder
from bothways.tasks.examples import TaskBatch
from bothways.tasks.metrics import Measurement
from bothways.training.engine import Trainer
from bothways.training.pruned_embedding import PrunedEmbedding
from bothways.training.ranks import SINGLE_PROCESS
from bothways.training.shards import gather
from bothways.training.state import read_state, trained_tensors, verify_checkpoint, write_state

FOLDER = "checkpoint"


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        step: steps done.
        measured: dev scores after each finished epoch.
        seconds: spent before the process that goes on.
    """

    step: int = 0
    measured: list[Measurement] = field(default_factory=list)
    seconds: float = 0.0


class Checkpoint:
    """The one checkpoint of a run; each replaces the one before.

    Args:
        folder: of the run.
        key: what the state depends on; of another key it is not taken.
        minutes: between checkpoints.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any], minutes: float):
        self._path, self._key, self._seconds = folder / FOLDER, dict(key), minutes * 60
        self._begun = self._saved = time.monotonic()
        self._before = 0.0

    def problem(self) -> str:
        """Why the one that is there cannot be gone on from; empty if it can, or there is none."""
        if not self._path.exists():
            return ""
        if damage := verify_checkpoint(self._path):
            return f"its checkpoint is damaged ({'; '.join(damage)})"
        key = read_state(self._path)[0].extra["key"]
        changed = [name for name, value in self._key.items() if key.get(name) != value]
        return f"its checkpoint was made with another {', '.join(changed)}" if changed else ""

    def restore(self, trainer: Trainer[TaskBatch], rows: PrunedEmbedding | None) -> Progress | None:
        """Put the state back, if there is one; the embedding is pruned."""
        if not self._path.exists():
            return None
        restored, tensors = read_state(self._path)
        with torch.no_grad():
            for name, tensor in trained_tensors(trainer.model, trainer.optimizer):
                tensor.copy_(tensors[name])
        if rows is not None:
            rows.set_state(tensors, restored.extra["decayed"])
        self._before = restored.extra["seconds"]
        measured = [Measurement.from_record(record) for record in restored.extra["measured"]]
        return Progress(restored.step, measured, self._before)

    def due(self) -> bool:
        """Whether it is time to write one."""
        return time.monotonic() - self._saved >= self._seconds

    def save(
        self, trainer: Trainer[TaskBatch], rows: PrunedEmbedding | None, progress: Progress
    ) -> None:
        """Write one, whole or not at all; the embedding is pruned.

        Raises:
            DiskError: it could not be written; the one before is intact.
        """
        tensors = gather(trained_tensors(trainer.model, trainer.optimizer), SINGLE_PROCESS)
        extra = {
            "key": self._key,
            "measured": [found.record() for found in progress.measured],
            "seconds": self._before + time.monotonic() - self._begun,
        }
        if rows is not None:
            own, extra["decayed"] = rows.state()
            tensors |= gather(own.items(), SINGLE_PROCESS)
        with new_folder(self._path) as partial:
            write_state(partial, progress.step, tensors, extra)
        self._saved = time.monotonic()

    def remove(self) -> None:
        """What it was for is done."""
        with explain_disk_errors(self._path):
            shutil.rmtree(self._path, ignore_errors=True)
