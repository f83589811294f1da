"""Probabilities from logits, in float64: what SciPy has, which predicting does not need for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(logits: Any, axis: int = -1) -> Array:
    """Probabilities along an axis, in the type of the logits."""
    logits = np.asarray(logits)
    powers = np.exp(logits - logits.max(axis, keepdims=True))
    found: Array = powers / powers.sum(axis, keepdims=True)
    return found


def expit(logits: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    powers = np.exp(-np.abs(logits))
    found: Array = np.where(logits >= 0, 1 / (1 + powers), powers / (1 + powers))
    return found


def log_expit(logits: Array) -> Array:
    """The logarithm of :func:`expit`."""
    found: Array = np.minimum(logits, 0) - np.log1p(np.exp(-np.abs(logits)))
    return found


def logsumexp(logits: Array, axis: int, *, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) along an axis."""
    most = logits.max(axis, keepdims=True)
    sums = most + np.log(np.exp(logits - most).sum(axis, keepdims=True))
    found: Array = sums if keepdims else sums.squeeze(axis)
    return found
