"""Rows of parameters that are excluded from training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bothways.training.fsdp import divided_as


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
