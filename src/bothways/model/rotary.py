"""Rotary positions: queries and keys are rotated by angles that grow with the position.

T tokens, A heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bothways.model.kernels.compiled import exact


@dataclass(frozen=True)
class Rotation:
    """Rotations of some rows (Su et al. 2021), of pairs of dimensions that lie D / 2 apart.

    Attributes:
        cos, sin: [T, 1, D], in the dtype of arithmetic.
    """

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, positions: Tensor, size: int, base: float, dtype: torch.dtype) -> Rotation:
        """The rotations of tokens at some positions.

        Angles are computed in fp32, as the models were trained with them.

        Args:
            positions: int64 [T].
            size: D.
            base: the longest wavelength is about this many tokens, times 2 pi.
            dtype: of the layers.
        """
        pairs = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device)
        angles = positions.float()[:, None] * (1.0 / base ** (pairs / size))
        both = torch.cat([angles, angles], -1)[:, None]
        like = exact(torch.empty(0, dtype=dtype))
        return cls(both.cos().to(like), both.sin().to(like))

    def at(self, rows: Tensor) -> Rotation:
        """The rotations of some of the rows, int64 [N]."""
        return Rotation(self.cos.index_select(0, rows), self.sin.index_select(0, rows))

    def __call__(self, x_TAD: Tensor) -> Tensor:
        """[T, A, D] -> [T, A, D], rounded once."""
        x = x_TAD.to(self.cos.dtype)
        first, second = x.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
        return (x * self.cos + turned * self.sin).to(x_TAD.dtype)
