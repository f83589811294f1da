"""Initial weights with which a narrow encoder learns in few steps where its neighbours stand.

From random weights BERT first learns how frequent words are and which ones share a sequence; only
after a long plateau do heads of it find the tokens beside a masked one. Here they begin there.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from bothways.config import ModelConfig
from bothways.model.encoder import Encoder
from bothways.model.layers import Layer

# Deviation of positions as a multiple of that of tokens: where a token stands is what the first
# layer's heads go by, so it must not drown in what stands there.
_SHARE = 1.5
# How sharp: with heads of 64 about half of a head's attention is on its offset and the token's own.
_GAIN = 1.2


@torch.no_grad()
def look_at_neighbours(encoder: Encoder) -> None:
    """Write positions as waves, and first-layer heads that look at fixed offsets.

    Position i becomes sin(w i), cos(w i) for frequencies w from pi down to a wave of four tables
    (Vaswani et al. 2017, section 3.5, with a shorter and a longer end). Query and key of head h
    read its share of the waves, the key's turned by w times the head's offset, so that their
    product is largest where key and query stand that far apart: -1, +1, -2, +2, ... by head; left
    to right -1, -2, -3, ... Everything else keeps its draw, and all of it is trained on.

    Args:
        encoder: with new weights, on the CPU; changed in place.
    """
    config = encoder.config
    count = config.hidden // 2
    waves = math.pi * (2 * config.positions) ** (-torch.arange(count) / count)
    angles = torch.arange(config.positions)[:, None] * waves
    table = encoder.embeddings.positions.weight
    amplitude = _SHARE * config.init_std * math.sqrt(2)
    table[:, :count] = angles.sin() * amplitude
    table[:, count : 2 * count] = angles.cos() * amplitude
    first_layer = cast(Layer, encoder.layers[0])
    q, k, _ = first_layer.attention.qkv.weight.chunk(3)
    for head, offset in enumerate(_offsets(config)):
        first = head * config.head_size
        _find(q[first:], k[first:], waves, head, offset, config)


def _offsets(config: ModelConfig) -> list[int]:
    if config.left_to_right:
        return [-1 - head for head in range(config.heads)]
    return [(head // 2 + 1) * (1 if head % 2 else -1) for head in range(config.heads)]


def _find(q: Tensor, k: Tensor, waves: Tensor, head: int, offset: int, config: ModelConfig) -> None:
    """Weights of one head, rows from its first on: [sin, cos] of its waves, the key's turned back.

    A wave of the key at position j then stands as that of position j - offset.
    """
    half = config.head_size // 2
    own = torch.arange(len(waves))[head :: config.heads][:half]
    sines, cosines = torch.arange(len(own)), half + torch.arange(len(own))
    sin, cos = own, own + len(waves)
    gain = _GAIN * (64 / config.head_size) ** 0.25
    turn = waves[own] * offset
    q[: 2 * half] = 0
    k[: 2 * half] = 0
    q[sines, sin] = q[cosines, cos] = gain
    k[sines, sin] = k[cosines, cos] = gain * turn.cos()
    k[sines, cos] = -gain * turn.sin()
    k[cosines, sin] = gain * turn.sin()
