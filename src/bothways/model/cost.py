"""What a BERT costs: floating-point operations and bytes, from its shape alone.

H hidden size, I feed-forward size, V vocabulary, L tokens of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.config import ModelConfig


@dataclass(frozen=True)
class TrainingCost:
    """Of one token of pre-training at one length.

    Attributes:
        matrix: floating-point operations of matrix products that the result needs, forward and
            backward (twice the forward): a multiplication and an addition are two. Products of a
            reader (last layer, output embedding) count for the tokens that are read alone, those
            of attention left to right for the tokens that are seen alone.
        whole: the same if every token went through the last layer and the output embedding, and
            attention were computed for all pairs, as implementations without these shortcuts do.
    """

    matrix: float
    whole: float


def training_cost(config: ModelConfig, *, length: int, targets: float) -> TrainingCost:
    """Operations for each token of a sequence.

    Args:
        config: the shape.
        length: L.
        targets: masked tokens of a sequence.
    """
    H, I, V = config.hidden, config.intermediate, config.padded_vocab  # noqa: E741
    read = min(1.0, (targets + 1) / length)  # and [CLS]
    key_value, query, every = 4 * H * H, 2 * H * H, 4 * length * H
    attention = 2 * (length + 1) * H if config.left_to_right else every
    rest = 2 * H * H + 4 * H * I
    layer = key_value + query + attention + rest
    last = key_value + read * (query + attention + rest)
    head = 2 * H * H + 2 * H * V
    pooled = 2 * H * H / length
    forward = (config.layers - 1) * layer + last + targets / length * head + pooled
    whole = config.layers * (layer + every - attention) + head + pooled
    return TrainingCost(matrix=3 * forward, whole=3 * whole)


def mean_operations(config: ModelConfig, lengths: NDArray[np.int64], targets: float) -> float:
    """Operations that a result needs for each token (``matrix``), over sequences of many lengths.

    Args:
        config: the shape.
        lengths: int64 [B]; tokens of each sequence.
        targets: masked tokens, mean of a sequence; spread over the tokens evenly.
    """
    found, counts = np.unique(lengths, return_counts=True)
    share = targets / float(lengths.mean())
    total = sum(
        count * length * training_cost(config, length=length, targets=share * length).matrix
        for length, count in zip(found.tolist(), counts.tolist(), strict=True)
    )
    return float(total / lengths.sum())
