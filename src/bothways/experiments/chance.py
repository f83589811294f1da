"""Whether the scores of two runs differ by more than chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def is_clear(first: Sequence[float], second: Sequence[float], examples: int) -> bool:
    """Whether mean accuracies differ by more than two standard errors, of seeds and of examples
    together.

    Args:
        first, second: accuracies in [0, 1], one per seed.
        examples: how many were measured.
    """
    error = 0.0
    for scores in (first, second):
        mean = statistics.fmean(scores)
        error += mean * (1 - mean) / examples
        error += statistics.variance(scores) / len(scores) if len(scores) > 1 else 0.0
    return abs(statistics.fmean(first) - statistics.fmean(second)) > 2 * math.sqrt(error)
