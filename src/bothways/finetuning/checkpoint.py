"""The checkpoint of a fine-tuning run, from which it continues with the same bits."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bothways.files import explain_disk_errors, new_folder
from bothways.tasks.examples import TaskBatch
from bothways.tasks.metrics import Measurement
from bothways.training.checkpoint import (
    FOREIGN,
    STATE,
    read_state,
    rename_skipped,
    trained_tensors,
    verify_checkpoint,
    whose,
    write_state,
)
from bothways.training.fsdp import gather
from bothways.training.pruned_embedding import PrunedEmbedding
from bothways.training.ranks import SINGLE_PROCESS
from bothways.training.trainer import Stats, Trainer
from bothways.training.trial import try_save

FOLDER = "checkpoint"
_IDENTITY = {"recipe", "run"}  # of the key: these never change within a seed


@dataclass
class Progress:
    """How far the training of a seed is.

    Attributes:
        step: steps done.
        measured: dev scores after each epoch that is trained and measured.
        recent: statistics of the steps since the last record.
        seconds: spent by earlier processes, up to the checkpoint.
    """

    step: int = 0
    measured: list[Measurement] = field(default_factory=list)
    recent: list[Stats] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def recorded(self) -> int:
        """The step of the last record."""
        return self.step - len(self.recent)


class Checkpoint:
    """The only checkpoint of a seed, replaced by each save.

    Args:
        folder: of the seed.
        key: what the state depends on; a checkpoint with another key is not used.
        minutes: between saves.
        run: identity of the run.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any], minutes: float, *, run: str):
        self._path, self._key, self._interval = folder / FOLDER, dict(key), minutes * 60
        self._run = run
        self._started = self._saved = time.monotonic()
        self._seconds_before = 0.0

    def reject(self) -> str:
        """Take the checkpoint away if training cannot continue from it: one of another run or seed
        is renamed, others are removed.

        Returns:
            Why it cannot; empty if it can or there is none.

        Raises:
            RunError: it cannot be read, so it may be intact.
            DiskError: it cannot be renamed.
        """
        if not self.exists():
            return ""
        if damage := verify_checkpoint(self._path):
            self.remove()
            return f"its checkpoint is damaged ({'; '.join(damage)})"
        manifest = json.loads((self._path / STATE).read_text(encoding="utf-8"))
        key = manifest["extra"].get("key", {})  # pre-training's has none
        changed = [name for name, value in self._key.items() if key.get(name) != value]
        other = whose(self._path, self._run)
        if not other and not changed:
            return ""
        if other or not _IDENTITY.isdisjoint(changed):
            if not other:
                named = key.get("run") if "run" in changed else "another recipe"
                other = f"it is step {manifest['step']} of {named}; move it back there"
            kept = rename_skipped(self._path, FOREIGN)
            return f"its checkpoint is not its own: {other} (now {kept})"
        self.remove()
        return f"its checkpoint was made with another {', '.join(changed)}"

    def restore(self, trainer: Trainer[TaskBatch], rows: PrunedEmbedding | None) -> Progress | None:
        """Load the saved state, if there is one; the embedding table must be pruned."""
        if not self.exists():
            return None
        restored, tensors = read_state(self._path)
        with torch.no_grad():
            for name, tensor in trained_tensors(trainer.model, trainer.optimizer):
                tensor.copy_(tensors[name])
        if rows is not None:
            rows.set_state(tensors, restored.extra["decayed"])
        self._seconds_before = restored.extra["seconds"]
        measured = [Measurement.from_record(record) for record in restored.extra["measured"]]
        recent = restored.extra.get("recent", [])  # older ones were saved at records only
        return Progress(restored.step, measured, recent, self._seconds_before)

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self._saved >= self._interval

    def exists(self) -> bool:
        """Whether there is one."""
        return self._path.exists()

    def save(
        self, trainer: Trainer[TaskBatch], rows: PrunedEmbedding | None, progress: Progress
    ) -> None:
        """Replace the checkpoint, atomically. The embedding table must be pruned.

        Raises:
            DiskError: it could not be written; the previous checkpoint is intact.
        """
        tensors, extra = self._state(trainer, rows, progress)
        with new_folder(self._path) as partial:
            write_state(partial, progress.step, tensors, extra, run=self._run)
        self._saved = time.monotonic()

    def try_save(
        self, trainer: Trainer[TaskBatch], rows: PrunedEmbedding | None, progress: Progress
    ) -> int:
        """Try :meth:`save` before training, with nothing written in the end. Space is not
        reserved: training may end before the first one is due.

        Returns:
            Bytes of a checkpoint's tensors.

        Raises:
            DiskError: it could not be written.
            RunError: it could not be made.
        """
        tensors, extra = self._state(trainer, rows, progress)
        with try_save(self._path) as trial:
            write_state(
                trial.folder, progress.step, tensors, extra, run=self._run, write=trial.write
            )
            return trial.size

    def _state(
        self, trainer: Trainer[TaskBatch], rows: PrunedEmbedding | None, progress: Progress
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What is saved: tensors, and JSON-serialisable data."""
        tensors = gather(trained_tensors(trainer.model, trainer.optimizer), SINGLE_PROCESS)
        extra = {
            "key": self._key,
            "measured": [measurement.record() for measurement in progress.measured],
            "recent": [{k: float(v) for k, v in stats.items()} for stats in progress.recent],
            "seconds": self._seconds_before + time.monotonic() - self._started,
        }
        if rows is not None:
            unused_rows, extra["decayed"] = rows.state()
            tensors |= gather(unused_rows.items(), SINGLE_PROCESS)
        return tensors, extra

    def remove(self) -> None:
        """Remove the checkpoint: training is done, or cannot continue from it."""
        with explain_disk_errors(self._path):
            shutil.rmtree(self._path, ignore_errors=True)
