"""The share of a GPU's peak that pre-training reaches (MFU)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bothways.model.batch import PretrainingBatch
from bothways.model.bert import Bert
from bothways.model.flops import training_cost
from bothways.training.device import Peak, find_peak


class Utilization:
    """Measures MFU over windows of steps, on GPUs only.

    On a CPU the peak would have to be measured, on a machine that is busy training.

    Args:
        model: the model in training.
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
        """``mfu``, the operations per second that training needs over the peak; empty on a CPU.

        Attention is counted for sequences of the mean length. Starts a new window.
        """
        record = {}
        if self.peak is not None and self._sequences:
            cost = training_cost(
                self._config,
                length=round(self._tokens / self._sequences),
                targets=self._targets / self._sequences,
            )
            record["mfu"] = tokens_per_second * cost.matrix / self.peak.flops
        self._open()
        return record
