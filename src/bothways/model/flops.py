"""The cost of training or using an encoder in floating-point operations, from its shape.

H hidden size, E width of the embeddings, V vocabulary, L sequence length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from bothways.families.config import ModelConfig
from bothways.families.parameters import encoder_parameters


@dataclass(frozen=True)
class TrainingCost:
    """Floating-point operations of pre-training per token, at one sequence length.

    Attributes:
        matrix: operations of the matrix products that the result needs, forward and backward (twice
            the forward); a multiplication and an addition are two. The last layer and the output
            embedding count only for the positions with a loss, and left-to-right attention only for
            the tokens that are visible.
        whole: the same if every token went through the last layer and the output embedding, and
            attention were computed for all pairs, as implementations without these shortcuts do.
    """

    matrix: float
    whole: float


def training_cost(
    config: ModelConfig, *, length: int, targets: float, head: int | None = None
) -> TrainingCost:
    """Operations per token of a sequence.

    Args:
        config: the shape.
        length: L.
        targets: targets per sequence.
        head: operations of the head for a target, forward; default: those of the vocabulary's.
    """
    if head is None:
        E = config.embedding_width
        head = 2 * config.hidden * E + 2 * E * config.padded_vocab
    products = _products(config)
    attention = full_attention = 4 * length * config.hidden
    if config.layer(0).causal:
        attention = 2 * (length + 1) * config.hidden
    selected = min(1.0, (targets + 1) / length)  # fraction of positions with a loss; 1 for [CLS]
    key_value = 2 * config.hidden * sum(config.qkv_rows[1:])
    layer = products["layers.0"] + attention
    last = key_value + selected * (layer - key_value)
    once = products["pooler"] / length + products["embeddings.project"]
    forward = (config.layers - 1) * layer + last + targets / length * head + once
    whole = config.layers * (layer + full_attention - attention) + head + once
    return TrainingCost(matrix=3 * forward, whole=3 * whole)


Operations = Callable[[ModelConfig, int, float], TrainingCost]
"""From a shape, a length and the targets per sequence, as :func:`training_cost`."""


def mean_operations(
    config: ModelConfig,
    lengths: NDArray[np.int64],
    targets: float,
    operations: Operations | None = None,
) -> float:
    """Operations per token that the result needs (``matrix``), over sequences of various lengths.

    Args:
        config: the shape.
        lengths: int64 [B]; tokens of each sequence.
        targets: mean masked tokens per sequence; taken as spread evenly over the tokens.
        operations: the objective's; default: those of a masked LM.
    """
    distinct, counts = np.unique(lengths, return_counts=True)
    rate = targets / float(lengths.mean())
    cost = operations or (lambda c, n, t: training_cost(c, length=n, targets=t))
    costs = (cost(config, length, rate * length) for length in distinct.tolist())
    total = sum(
        count * length * cost.matrix
        for length, count, cost in zip(distinct.tolist(), counts.tolist(), costs, strict=True)
    )
    return float(total / lengths.sum())


def forward_operations(config: ModelConfig, lengths: NDArray[np.int64]) -> float:
    """Operations of the layers' matrix products for the states of all tokens of some sequences.

    Args:
        config: the shape.
        lengths: int64 [B]; tokens of each sequence.
    """
    per_token = _products(config)["layers.0"]
    pairs = float((lengths.astype(np.float64) ** 2).sum())
    attention = 4 * config.hidden * pairs * (0.5 if config.layer(0).causal else 1)
    return config.layers * (per_token * float(lengths.sum()) + attention)


@cache
def _products(config: ModelConfig) -> dict[str, int]:
    """Operations of the linear maps for a token, forward: of one layer, the embeddings' projection,
    and the pooler."""
    found = dict.fromkeys(("layers.0", "embeddings.project", "pooler"), 0)
    for name, entry in encoder_parameters(config).items():
        for part in found:
            if name.startswith(f"{part}.") and len(entry.shape) == 2:
                found[part] += 2 * math.prod(entry.shape)
    return found
