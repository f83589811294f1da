"""Places that add to the scores of attention; the encoder holds them, and all layers share them.

b sequences, L length, H hidden size, A heads, D = H / A, S buckets to each side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bothways.families.config import ModelConfig
from bothways.model.shared import Embedding, Linear, Shared, make_norm


@dataclass(frozen=True)
class PlaceScores:
    """Relative places of one batch.

    Attributes:
        rows: a row for each bucket, [2 S, H].
        reach: the distance that the last bucket begins at.
        terms: how many the scores are the sum of, by the root of which they are divided.
    """

    rows: Tensor
    reach: int
    terms: int = 3
    _buckets: dict[int, Tensor] = field(default_factory=dict)

    def projected(self, qkv: Linear, heads: int) -> tuple[Tensor, Tensor]:
        """Scaled queries and keys of the buckets by a layer's own maps, [A, 2 S, D] each."""
        q, k, _ = qkv(self.rows).view(len(self.rows), 3, heads, -1).permute(1, 2, 0, 3)
        return q * (self.terms * q.shape[-1]) ** -0.5, k

    def scores(self, q_bALD: Tensor, k_bALD: Tensor, projected: tuple[Tensor, Tensor]) -> Tensor:
        """What they add to the scores of scaled queries, [b, A, L, L]: those of contents with
        places, and the reverse."""
        places_q, places_k = projected
        at = self._at(q_bALD.shape[-2]).expand(*q_bALD.shape[:3], -1)
        found = (q_bALD @ places_k.transpose(-1, -2)).gather(-1, at)
        reverse = (k_bALD @ places_q.transpose(-1, -2)).gather(-1, at.transpose(-1, -2))
        return found + reverse.transpose(-1, -2)

    def _at(self, length: int) -> Tensor:
        """The bucket of each query's distance from each key, int64 [L, L]: one for each distance up
        to S / 2, beyond that by its logarithm (He et al. 2021; DeBERTa-v2)."""
        if length not in self._buckets:
            span = len(self.rows) // 2
            places = torch.arange(length, device=self.rows.device)
            distance = places[:, None] - places
            middle = span // 2
            far = distance.abs().clamp(min=middle).float()
            widest = torch.tensor((self.reach - 1) / middle).log()  # in fp32, as theirs
            steps = (far / middle).log() / widest * (middle - 1)
            beyond = (steps.ceil() + middle).long() * distance.sign()
            bucket = torch.where(distance.abs() <= middle, distance, beyond)
            self._buckets[length] = (bucket + span).clamp(0, 2 * span - 1)
        return self._buckets[length]


class Disentangled(nn.Module):
    """Relative places of disentangled attention (He et al. 2021, section 3.1), in the form of
    DeBERTa-v2 and v3: buckets, whose queries and keys are made by the maps of the contents."""

    def __init__(self, config: ModelConfig, shared: Shared):
        super().__init__()
        self.table = Embedding(2 * config.buckets, config.hidden)
        self.norm = make_norm(config)
        self._reach, self._shared, self._probability = config.positions, shared, config.dropout

    def forward(self, dtype: torch.dtype) -> PlaceScores:
        """Of a batch, in the dtype of the layers."""
        rows = self.norm(self.table.weight.to(dtype))
        return PlaceScores(self._shared.dropout(rows, self._probability), self._reach)
