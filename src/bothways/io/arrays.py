"""Arrays of variable-length rows that are stored end to end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


def bounds(lengths: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
    """Where rows stored end to end start and end: [N] lengths -> int64 [N + 1], from 0."""
    result = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=result[1:])
    return result


def ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """starts[0], ..., stops[0] - 1, starts[1], ..., stops[1] - 1, and so on."""
    if len(starts) == 1:  # of one text, where every microsecond shows
        return np.arange(starts[0], stops[0])
    lengths = stops - starts
    before = np.cumsum(lengths) - lengths
    indices: NDArray[np.int64] = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return indices


def split(values: NDArray[Any], edges: NDArray[np.int64]) -> list[NDArray[Any]]:
    """The rows of an array, [N + 1] bounds -> N parts."""
    return [values[start:stop] for start, stop in pairwise(edges.tolist())]
