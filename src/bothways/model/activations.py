"""Activation functions by the names that shapes give them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def activate(name: str, x: Tensor) -> Tensor:
    """An activation of :data:`bothways.families.config.Activation`, element by element."""
    return _FUNCTIONS[name](x)
