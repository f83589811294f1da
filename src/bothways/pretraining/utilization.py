"""The share of a GPU's peak that pre-training reaches (MFU)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bothways.model.batch import PretrainingBatch
from bothways.model.cost import training_cost
from bothways.model.heads import Bert
from bothways.training.device import Peak, find_peak


class Utilization:
    """Counts what a window of steps computed. On a CPU, where a peak would have to be measured on a
    busy machine, it says nothing.

    Args:
        model: what is trained.
        dtype: arithmetic of its layers.
    """

    def __init__(self, model: Bert, dtype: torch.dtype):
        self._config = model.config
        gpu = model.device.type != "cpu"
        self.peak: Peak | None = find_peak(model.device, dtype) if gpu else None
        self._open()

    def _open(self) -> None:
        self._tokens = self._sequences = self._targets = 0

    def add(self, batches: Sequence[PretrainingBatch]) -> None:
        """Count the micro-batches of a step."""
        for batch in batches:
            self._tokens += int(batch.inputs.bounds[-1])
            self._sequences += batch.inputs.sequences
            self._targets += batch.masked.count

    def close(self, tokens_per_second: float) -> dict[str, float]:
        """``mfu``: operations that the result needs, a second, over the peak; starts anew.

        Those of attention are counted for sequences of the mean length.
        """
        found = {}
        if self.peak is not None and self._sequences:
            cost = training_cost(
                self._config,
                length=round(self._tokens / self._sequences),
                targets=self._targets / self._sequences,
            )
            found["mfu"] = tokens_per_second * cost.matrix / self.peak.flops
        self._open()
        return found
