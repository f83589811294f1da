"""Initial weights with two kinds of useful heads in the first layer: relative-offset heads, which
attend to a neighbour, and duplicate-token heads, which attend to copies of the same token.

From random weights BERT first learns how frequent words are and which ones share a sequence. Only
after a long plateau does it develop heads that find the neighbours of a masked token, and later
still heads that find a word of one sentence in the other. Here the first layer starts with both.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from bothways.families.config import ModelConfig
from bothways.model.encoder import Encoder
from bothways.model.layers import Layer

# Standard deviation of the position embeddings as a multiple of the token embeddings': offset heads
# go by the position, so the token's embedding must not drown it.
_POSITION_SCALE = 1.5
# Sharpness of the attention for heads of 64: in sequences of 128, an offset head spends a third of
# its attention on its offset, a duplicate head most of it on copies of the token, itself included.
_OFFSET_SHARPNESS, _DUPLICATE_SHARPNESS = 1.0, 1.4


@torch.no_grad()
def prime_first_layer(encoder: Encoder) -> None:
    """Write sinusoidal position embeddings, offset heads and duplicate-token heads.

    The hidden dimensions are divided among the heads. The first half of the heads (rounded up) are
    offset heads, and their dimensions hold the positions. Position i is

        sin(w i), cos(w i)    for frequencies w from pi down to a wavelength of 4 * positions

    (Vaswani et al. 2017, section 3.5, with a shorter and a longer end). A head with offset o uses
    some of the frequencies. It projects

        query at i:  sin(w i), cos(w i)
        key at j:    sin(w (j - o)), cos(w (j - o))

    so their dot product, the sum of cos(w (i - j + o)), is largest at j = i + o. The offsets are
    -1, +1, -2, +2, ... by head; left to right -1, -2, -3, ...

    The other heads are duplicate-token heads. In their dimensions the position and segment
    embeddings are 0, and query and key are both the head's own dimensions of the token embedding,
    so their dot product is largest between equal tokens.

    All other weights stay as initialised. Pre-training freezes queries and keys of the
    duplicate-token heads (:func:`primed_rows`), which it would unlearn before it has a use for
    them, and trains everything else.

    Args:
        encoder: newly initialised, on the CPU; changed in place.
    """
    config = encoder.config
    offset_heads = _num_offset_heads(config)
    width = offset_heads * config.head_size  # the dimensions that hold the positions
    count = width // 2
    frequencies = math.pi * (2 * config.positions) ** (-torch.arange(count) / count)
    angles = torch.arange(config.positions)[:, None] * frequencies
    embeddings = encoder.embeddings
    assert embeddings.positions is not None, "positions are learned"
    positions = embeddings.positions.weight[config.place_offset :]
    amplitude = _POSITION_SCALE * config.init_std * math.sqrt(2)
    positions[:, :count] = angles.sin() * amplitude
    positions[:, count : 2 * count] = angles.cos() * amplitude
    positions[:, width:] = 0
    if embeddings.segments is not None:
        embeddings.segments.weight[:, width:] = 0
    q, k, _ = cast(Layer, encoder.layers[0]).attention.qkv.weight.chunk(3)
    sharpness = (64 / config.head_size) ** 0.25
    for head, offset in enumerate(_offsets(offset_heads, config)):
        rows = slice(head * config.head_size, (head + 1) * config.head_size)
        own = torch.arange(count)[head::offset_heads][: config.head_size // 2]
        _write_offset_head(
            q[rows], k[rows], frequencies, own, offset, _OFFSET_SHARPNESS * sharpness
        )
    q[width:] = k[width:] = _DUPLICATE_SHARPNESS * sharpness * torch.eye(config.hidden)[width:]


def primed_rows(encoder: Encoder, name: str) -> dict[str, Tensor]:
    """The rows of parameters with the duplicate-token heads' queries and keys, if still primed.

    They are recognised by being equal: in weights that were initialised otherwise, or that have
    been fine-tuned, queries and keys differ.

    Args:
        encoder: whole, not sharded.
        name: the encoder's name, a prefix of its parameters' names.

    Returns:
        bool [3 H] by parameter, or nothing.
    """
    config, qkv = encoder.config, cast(Layer, encoder.layers[0]).attention.qkv
    if config.place != "learned" or config.kv_heads or qkv.bias is None:
        return {}
    duplicate = torch.arange(config.hidden) >= _num_offset_heads(config) * config.head_size
    rows = torch.cat([duplicate, duplicate, torch.zeros_like(duplicate)])
    for parameter in (qkv.weight, qkv.bias):
        q, k, _ = parameter.detach().cpu().chunk(3)
        if not torch.equal(q[duplicate], k[duplicate]):
            return {}
    if not qkv.weight.detach().cpu()[rows].any():  # no duplicate-token heads, or all weights are 0
        return {}
    return {f"{name}.layers.0.attention.qkv.{kind}": rows for kind in ("weight", "bias")}


def _num_offset_heads(config: ModelConfig) -> int:
    """How many heads, from the first, are offset heads; the others are duplicate-token heads."""
    return (config.heads + 1) // 2


def _offsets(heads: int, config: ModelConfig) -> list[int]:
    if config.left_to_right:
        return [-1 - head for head in range(heads)]
    return [(head // 2 + 1) * (1 if head % 2 else -1) for head in range(heads)]


def _write_offset_head(
    q: Tensor, k: Tensor, frequencies: Tensor, own: Tensor, offset: int, gain: float
) -> None:
    """Projections of one head to [sin, cos] of its frequencies, the key's shifted by the offset.

    The shift is the rotation sin(w (j - o)) = cos(w o) sin(w j) - sin(w o) cos(w j), and
    cos(w (j - o)) = cos(w o) cos(w j) + sin(w o) sin(w j).

    Args:
        q, k: the head's rows of the query and key projections; written.
        frequencies: w of every dimension pair.
        own: int64; which of them this head uses.
        offset: o.
        gain: scale of both projections.
    """
    half = len(q) // 2
    sin_rows, cos_rows = torch.arange(len(own)), half + torch.arange(len(own))
    sin_columns, cos_columns = own, own + len(frequencies)
    angle = frequencies[own] * offset
    q[: 2 * half] = 0
    k[: 2 * half] = 0
    q[sin_rows, sin_columns] = q[cos_rows, cos_columns] = gain
    k[sin_rows, sin_columns] = k[cos_rows, cos_columns] = gain * angle.cos()
    k[sin_rows, cos_columns] = -gain * angle.sin()
    k[cos_rows, sin_columns] = gain * angle.sin()
