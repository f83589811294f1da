"""Rotary positions: queries and keys are rotated by angles that grow with the position.

T tokens, A heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bothways.families.config import ModelConfig
from bothways.model.kernels.compiled import exact


@dataclass(frozen=True)
class Rotation:
    """Rotations of some rows (Su et al. 2021), of pairs of dimensions.

    Attributes:
        cos, sin: [T, 1, D], in the dtype of arithmetic.
        adjacent: the pairs are neighbours; otherwise they lie D / 2 apart.
    """

    cos: Tensor
    sin: Tensor
    adjacent: bool = False

    @classmethod
    def of(
        cls, positions: Tensor, config: ModelConfig, dtype: torch.dtype, base: float
    ) -> Rotation:
        """The rotations of tokens at some positions.

        Angles are computed in fp32, as most models were trained with them.

        Args:
            positions: int64 [T].
            config: the shape.
            dtype: of the layers.
            base: about the longest wavelength in tokens, divided by 2 pi.
        """
        size = config.head_size
        pairs = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device)
        angles = positions.float()[:, None] * (1.0 / base ** (pairs / size))
        adjacent = config.rotary_pairs == "adjacent"
        both = torch.stack([angles, angles], -1).flatten(-2) if adjacent else angles.repeat(1, 2)
        like = exact(torch.empty(0, dtype=dtype))
        return cls(both[:, None].cos().to(like), both[:, None].sin().to(like), adjacent)

    def at(self, rows: Tensor) -> Rotation:
        """The rotations of some of the rows, int64 [N]."""
        cos, sin = (table.index_select(0, rows) for table in (self.cos, self.sin))
        return replace(self, cos=cos, sin=sin)

    def __call__(self, x_TAD: Tensor) -> Tensor:
        """[T, A, D] -> [T, A, D], rounded once."""
        x = x_TAD.to(self.cos.dtype)
        if self.adjacent:
            turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        else:
            first, second = x.chunk(2, -1)
            turned = torch.cat([-second, first], -1)
        return (x * self.cos + turned * self.sin).to(x_TAD.dtype)
