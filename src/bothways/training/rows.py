"""Training of an embedding table only the rows that the data uses.

Fine-tuning reads a few thousand of the vocabulary's pieces. The other rows get no gradient: Adam's
moments stay 0 there and only the weight decay changes them. Leaving them aside spares their part of
gradient, norm and update, which on small batches of short texts is a sixth of a step, and more with
a multilingual vocabulary.

V rows of the table, R of them used, H hidden size.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.config import OptimizerOptions
from bothways.model.layers import Embedding
from bothways.training.schedules import learning_rate

_WHOLE = "whole table"


class UsedRows:
    """A table that is trained by its used rows alone, and made whole whenever other rows are read.

    The result is that of training the whole table, up to rounding: the decay of the other rows
    is one factor for many steps.

    Args:
        table: the module whose weight is exchanged.
        ids: int [...]; the rows used.
        options: of the optimizer, which must be Adam: LAMB's update of a row depends on all.
        total_steps: length of the schedule.
    """

    def __init__(
        self,
        table: Embedding,
        ids: NDArray[np.integer],
        options: OptimizerOptions,
        total_steps: int,
    ):
        self._table, self._options, self._total = table, options, total_steps
        self._whole = table.weight
        used = np.unique(ids)
        places = np.zeros(len(self._whole), np.int64)
        places[used] = np.arange(len(used))
        device = self._whole.device
        self._used = torch.from_numpy(used.astype(np.int64)).to(device)
        self._places = torch.from_numpy(places).to(device)
        self._own = nn.Parameter(self._whole.detach()[self._used])
        self._decayed = 0

    def take(self) -> None:
        """Give the module the used rows, R of V, as its weight: always the same parameter."""
        self._table.weight, self._table.places = self._own, self._places

    def state(self) -> tuple[dict[str, Tensor], int]:
        """What :meth:`set_state` takes back: the rows not trained, and how far they have decayed.
        The used ones are the module's weight, while they are taken."""
        return {_WHOLE: self._whole.detach()}, self._decayed

    def set_state(self, tensors: dict[str, Tensor], decayed: int) -> None:
        """Go on from there."""
        with torch.no_grad():
            self._whole.copy_(tensors[_WHOLE])
        self._decayed = decayed

    def put_back(self, step: int) -> None:
        """Give the module the whole table, as it is after so many steps."""
        rates = (learning_rate(s, self._total, self._options) for s in range(self._decayed, step))
        kept = math.prod(1 - rate * self._options.weight_decay for rate in rates)
        self._decayed = step
        with torch.no_grad():
            self._whole.mul_(kept)
            self._whole[self._used] = self._own
        self._table.weight, self._table.places = self._whole, None
