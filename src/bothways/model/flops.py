"""The cost of training or using an encoder in floating-point operations, from its shape.

H hidden size, I feed-forward size, E width of the embeddings, V vocabulary, L sequence length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.families.config import ModelConfig


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
    H, I, E = config.hidden, config.intermediate, config.embedding_width  # noqa: E741
    if head is None:
        head = 2 * H * E + 2 * E * config.padded_vocab
    selected = min(1.0, (targets + 1) / length)  # fraction of positions with a loss; 1 for [CLS]
    key_value, query, full_attention = 4 * H * H, 2 * H * H, 4 * length * H
    attention = 2 * (length + 1) * H if config.left_to_right else full_attention
    output_and_ffn = 2 * H * H + (6 if config.gated else 4) * H * I
    layer = key_value + query + attention + output_and_ffn
    last = key_value + selected * (query + attention + output_and_ffn)
    pooler = 2 * H * H / length if config.pooler else 0
    projection = 2 * config.embedding_width * H if config.projects else 0
    once = pooler + projection
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
    H, I = config.hidden, config.intermediate  # noqa: E741
    per_token = 8 * H * H + (6 if config.gated else 4) * H * I
    pairs = float((lengths.astype(np.float64) ** 2).sum())
    attention = 4 * H * pairs * (0.5 if config.left_to_right else 1)
    return config.layers * (per_token * float(lengths.sum()) + attention)
