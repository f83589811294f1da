"""Rows of the token embedding that are not trained: kept fixed, or left out of memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.model.shared import Embedding
from bothways.training.fsdp import divided_as
from bothways.training.optimizer import learning_rate
from bothways.training.options import OptimizerOptions

# --------------------------------------------------------------------------------
# Rows of parameters that are excluded from training.


class FrozenRows:
    """Rows of some parameters that get no gradient, no weight decay and no update.

    Their gradient is zeroed before clipping, so it does not count in the norm. LAMB's trust ratio
    is still that of the whole matrix, frozen rows included; the other rows move slightly further.

    Args:
        model: the model being trained; already sharded if it is going to be.
        rows: bool [rows], by name of the parameter; True is frozen.
    """

    def __init__(self, model: nn.Module, rows: Mapping[str, Tensor]):
        self._rows: list[tuple[nn.Parameter, Tensor]] = []
        for name, frozen in rows.items():
            parameter = model.get_parameter(name)
            mask = frozen.view(-1, *[1] * (parameter.ndim - 1)).to(parameter.device)
            self._rows.append((parameter, divided_as(parameter, mask)))

    def clear_gradients(self) -> None:
        """Set the gradient of the rows to zero; non-finite values stay non-finite."""
        for parameter, rows in self._rows:
            if parameter.grad is not None:
                parameter.grad.mul_(~rows)

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore the rows, at the end of the block, to their values at its start."""
        before = [parameter.detach().clone() for parameter, _ in self._rows]
        yield
        with torch.no_grad():
            for (parameter, rows), old in zip(self._rows, before, strict=True):
                parameter.copy_(torch.where(rows, old, parameter))


# --------------------------------------------------------------------------------
# Training an embedding table by only the rows that the data uses.
#
# Fine-tuning data uses a few thousand of the vocabulary's pieces. The other rows get no gradient:
# Adam's moments stay 0 there, and only weight decay changes them. Leaving them out of gradient,
# norm and update saves a sixth of a step on small batches of short texts, and more with a
# multilingual vocabulary.
#
# V rows of the table, R of them used, H hidden size.

_FULL = "whole table"  # its name in checkpoints


class PrunedEmbedding:
    """An embedding module whose weight is pruned, for training, to the R rows in use.

    The weight is pruned from construction on. Anything that may look up other rows (evaluation,
    saving the model) needs the full table: inside :meth:`full_table`, or after
    :meth:`restore_table`. Optimizers are made while it is pruned, and see the same parameter every
    time.

    The result equals that of training the full table up to rounding: the unused rows catch up on
    the weight decay of many steps in one multiplication.

    Args:
        table: the embedding module.
        ids: int [...]; the ids in use.
        options: of the optimizer, which must be Adam: LAMB's update of a row depends on all rows.
        total_steps: length of the schedule.
    """

    def __init__(
        self,
        table: Embedding,
        ids: NDArray[np.integer],
        options: OptimizerOptions,
        total_steps: int,
    ):
        self._table, self._options, self._total_steps = table, options, total_steps
        self._full = table.weight
        device = self._full.device
        occurs = np.zeros(len(self._full), np.bool_)
        occurs[ids] = True
        occurs[0] = True  # padding at the end of a flat batch
        used = np.flatnonzero(occurs)
        row_of_id = np.zeros(len(self._full), np.int64)
        row_of_id[used] = np.arange(len(used))
        self._used = torch.from_numpy(used).to(device)
        self._row_of_id = torch.from_numpy(row_of_id).to(device)
        self._pruned = nn.Parameter(self._full.detach()[self._used])
        self._decayed_steps = 0
        self._prune()

    def restore_table(self, step: int) -> None:
        """Put the full table back into the module, as it is after ``step`` steps."""
        steps = range(self._decayed_steps, step)
        rates = (learning_rate(s, self._total_steps, self._options) for s in steps)
        factor = math.prod(1 - rate * self._options.weight_decay for rate in rates)
        self._decayed_steps = step
        with torch.no_grad():
            self._full.mul_(factor)
            self._full[self._used] = self._pruned
        self._table.weight, self._table.row_of_id = self._full, None

    @contextmanager
    def full_table(self, step: int) -> Iterator[None]:
        """Restore the full table, as it is after ``step`` steps, and prune it again afterwards."""
        self.restore_table(step)
        try:
            yield
        finally:
            self._prune()

    def _prune(self) -> None:
        self._table.weight, self._table.row_of_id = self._pruned, self._row_of_id

    def state(self) -> dict[str, Any]:
        """For a checkpoint: the full table, and the steps of decay applied to it.

        The rows in use are not current in it: a checkpoint has them as the module's weight.
        """
        return {_FULL: self._full.detach(), "decayed": self._decayed_steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        with torch.no_grad():
            self._full.copy_(state[_FULL])
        self._decayed_steps = state["decayed"]
