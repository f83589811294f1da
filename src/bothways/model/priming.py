"""Initial weights whose first heads know two things to do: look beside, and look for the same word.

From random weights BERT first learns how frequent words are and which ones share a sequence; only
after a long plateau do heads of it find the tokens beside a masked one, and later still those that
find a word of one sentence in the other. Here the first layer begins with both kinds of heads.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from bothways.config import ModelConfig
from bothways.model.encoder import Encoder
from bothways.model.layers import Layer

# Deviation of positions as a multiple of that of tokens: where a token stands is what the heads for
# places go by, so it must not drown in what stands there.
_SHARE = 1.5
# How sharp, with heads of 64: in sequences of 128 a third of a head's attention is on its offset,
# and most of it on copies of the token, itself among them.
_BESIDE, _SAME = 1.0, 1.4


@torch.no_grad()
def prime_first_layer(encoder: Encoder) -> None:
    """Write positions as waves, and first-layer heads that look beside and for the same token.

    The width is parted by head. Half of the heads (more, if odd) are for places; in their part
    position i is sin(w i), cos(w i) for frequencies w from pi down to a wave of four tables
    (Vaswani et al. 2017, section 3.5, with a shorter and a longer end). Query and key of such a
    head read some of the waves, the key's turned by w times the head's offset, so that their
    product is largest where key and query stand that far apart: -1, +1, -2, +2, ... by head; left
    to right -1, -2, -3, ... The other heads are for words; in their part positions and segments are
    zero, and query and key both read the head's own numbers of it, so that their product is largest
    where both are the same token. Everything else keeps its draw.

    Pre-training holds queries and keys for words where they are (:func:`primed_rows`): it would
    unlearn them before it has a use for them. All the rest is trained on.

    Args:
        encoder: with new weights, on the CPU; changed in place.
    """
    config = encoder.config
    places = _places(config)
    width = places * config.head_size
    count = width // 2
    waves = math.pi * (2 * config.positions) ** (-torch.arange(count) / count)
    angles = torch.arange(config.positions)[:, None] * waves
    positions = encoder.embeddings.positions.weight
    amplitude = _SHARE * config.init_std * math.sqrt(2)
    positions[:, :count] = angles.sin() * amplitude
    positions[:, count : 2 * count] = angles.cos() * amplitude
    positions[:, width:] = 0
    encoder.embeddings.segments.weight[:, width:] = 0
    q, k, _ = cast(Layer, encoder.layers[0]).attention.qkv.weight.chunk(3)
    sharpness = (64 / config.head_size) ** 0.25
    for head, offset in enumerate(_offsets(places, config)):
        rows = slice(head * config.head_size, (head + 1) * config.head_size)
        own = torch.arange(count)[head::places][: config.head_size // 2]
        _look_beside(q[rows], k[rows], waves, own, offset, _BESIDE * sharpness)
    q[width:] = k[width:] = _SAME * sharpness * torch.eye(config.hidden)[width:]


def primed_rows(encoder: Encoder, name: str) -> dict[str, Tensor]:
    """The rows of parameters that hold queries and keys for words, if they are still as primed.

    They are where they equal each other: in weights that began otherwise, or that have been
    fine-tuned, they do not.

    Args:
        encoder: whole, not sharded.
        name: of the encoder, before those of its parameters.

    Returns:
        bool [3 H] by parameter, or nothing.
    """
    config, qkv = encoder.config, cast(Layer, encoder.layers[0]).attention.qkv
    words = torch.arange(config.hidden) >= _places(config) * config.head_size
    rows = torch.cat([words, words, torch.zeros_like(words)])
    for parameter in (qkv.weight, qkv.bias):
        q, k, _ = parameter.detach().cpu().chunk(3)
        if not torch.equal(q[words], k[words]):
            return {}
    if not qkv.weight.detach().cpu()[rows].any():  # no heads for words, or an empty model
        return {}
    return {f"{name}.layers.0.attention.qkv.{kind}": rows for kind in ("weight", "bias")}


def _places(config: ModelConfig) -> int:
    """How many heads, from the first, are for places."""
    return (config.heads + 1) // 2


def _offsets(places: int, config: ModelConfig) -> list[int]:
    if config.left_to_right:
        return [-1 - head for head in range(places)]
    return [(head // 2 + 1) * (1 if head % 2 else -1) for head in range(places)]


def _look_beside(
    q: Tensor, k: Tensor, waves: Tensor, own: Tensor, offset: int, gain: float
) -> None:
    """Weights of one head: [sin, cos] of its own waves, the key's turned back.

    A wave of the key at position j then stands as that of position j - offset.
    """
    half = len(q) // 2
    sines, cosines = torch.arange(len(own)), half + torch.arange(len(own))
    sin, cos = own, own + len(waves)
    turn = waves[own] * offset
    q[: 2 * half] = 0
    k[: 2 * half] = 0
    q[sines, sin] = q[cosines, cos] = gain
    k[sines, sin] = k[cosines, cos] = gain * turn.cos()
    k[sines, cos] = -gain * turn.sin()
    k[cosines, sin] = gain * turn.sin()
