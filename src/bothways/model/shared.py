"""What the layers of a model share: its dropout, its kernels, and layers in their input's dtype."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bothways.model.dropout import KeyedDropout


class Shared(nn.Module):
    """One instance serves a whole model.

    Args:
        fast: take the hand-written forms of attention, dropout, loss and last layer. Each has its
            plain form in library operations, which is what it is tested against.
    """

    def __init__(self, *, fast: bool = True) -> None:
        super().__init__()
        self.dropout = KeyedDropout()
        self.fast = fast


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
