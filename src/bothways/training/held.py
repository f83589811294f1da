"""Rows of parameters that training leaves as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bothways.training.shards import divided_as


class HeldRows:
    """Some rows of some parameters, kept from gradient, decay and update.

    Their gradient is zero before it is clipped, so that it does not count in the norm. LAMB's trust
    ratio is that of the whole matrix, these rows in it: the others then move somewhat further.

    Args:
        model: that is trained, sharded already if it is to be.
        rows: bool [rows], by name of the parameter.
    """

    def __init__(self, model: nn.Module, rows: Mapping[str, Tensor]):
        self._rows: list[tuple[nn.Parameter, Tensor]] = []
        for name, own in rows.items():
            parameter = model.get_parameter(name)
            shaped = own.view(-1, *[1] * (parameter.ndim - 1)).to(parameter.device)
            self._rows.append((parameter, divided_as(parameter, shaped)))

    def clear_gradients(self) -> None:
        """Set the gradient of the rows to zero; one that is not finite stays so."""
        for parameter, rows in self._rows:
            if parameter.grad is not None:
                parameter.grad.mul_(~rows)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Give the rows back, afterwards, what they were."""
        before = [parameter.detach().clone() for parameter, _ in self._rows]
        yield
        with torch.no_grad():
            for (parameter, rows), old in zip(self._rows, before, strict=True):
                parameter.copy_(torch.where(rows, old, parameter))
