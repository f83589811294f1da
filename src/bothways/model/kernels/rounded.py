"""Copies of weights in the dtype of the layers, kept from step to step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True)
class _Copy:
    """A copy, and what its weight was when it was made."""

    values: Tensor
    version: int
    address: int


class RoundedWeights:
    """The weights of a model, rounded to the dtype of its layers.

    A weight is rounded again only after it has changed, which torch counts. An optimizer that
    writes the copies itself says so, and no other pass over the weights is needed.

    Attributes:
        keeps: whether copies are kept. Those of sharded weights are not: they are gathered anew for
            every pass, which is not counted.
    """

    def __init__(self) -> None:
        self.keeps = True
        self._copies = WeakTensorKeyDictionary()

    def __reduce__(self) -> tuple[type[RoundedWeights], tuple[()]]:
        """A copy of a model, in this process or another, rounds its weights itself."""
        return RoundedWeights, ()

    def of(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """A weight's values in this dtype; not to be written to."""
        if weight.dtype == dtype:
            return weight.detach()
        if not self.keeps:
            return weight.detach().to(dtype)
        copy = self.kept(weight)
        if copy is not None and copy.dtype == dtype:
            if not self._is_current(weight):
                copy.copy_(weight.detach())
                self._note(weight, copy)
            return copy
        copy = weight.detach().to(dtype, memory_format=torch.contiguous_format)
        self._note(weight, copy)
        return copy

    def kept(self, weight: Tensor) -> Tensor | None:
        """The copy of a weight, which may be out of date; None if there is none of its shape."""
        copy: _Copy | None = self._copies.get(weight)  # type: ignore[no-untyped-call]
        return None if copy is None or copy.values.shape != weight.shape else copy.values

    def written(self, weight: Tensor) -> None:
        """Say that a weight and its copy have changed, in a way that torch did not notice."""
        increment_version(weight)
        if (copy := self.kept(weight)) is not None:
            self._note(weight, copy)

    def _is_current(self, weight: Tensor) -> bool:
        copy: _Copy = self._copies[weight]
        return copy.version == weight._version and copy.address == weight.data_ptr()

    def _note(self, weight: Tensor, copy: Tensor) -> None:
        self._copies[weight] = _Copy(copy, weight._version, weight.data_ptr())
