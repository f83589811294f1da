"""What the layers of a model share: its dropout, its kernels, and layers in their input's dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bothways.model.dropout import KeyedDropout


class Shared(nn.Module):
    """One instance serves a whole model.

    Args:
        fast: take the hand-written forms of attention, dropout, loss and last layer. Each has its
            plain form in library operations, which is what it is tested against.
        recompute: in training, keep the input of each layer alone, and compute the layer again in
            the backward pass (Chen et al. 2016).
    """

    def __init__(self, *, fast: bool = True, recompute: bool = False) -> None:
        super().__init__()
        self.dropout = KeyedDropout()
        self.fast, self.recompute = fast, recompute

    def run(self, part: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """A part of the network: computed now, and once more in the backward pass if asked for.

        The second time has the dropout masks of the first, so results do not change by a bit.
        """
        if not (self.recompute and self.training and torch.is_grad_enabled()):
            return part(*inputs)
        out: Tensor = checkpoint(
            part,
            *inputs,
            use_reentrant=False,
            preserve_rng_state=False,  # nothing draws from the library's own generator
            context_fn=self.dropout.replay,
        )
        return out


class Linear(nn.Linear):
    """A linear layer in its input's dtype."""

    def forward(self, x: Tensor, outputs: slice = slice(None)) -> Tensor:
        """[..., in] -> [..., out], or some of the outputs."""
        bias = None if self.bias is None else self.bias[outputs].to(x.dtype)
        return F.linear(x, self.weight[outputs].to(x.dtype), bias)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation in its input's dtype; the statistics are fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return F.layer_norm(
            x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps
        )
