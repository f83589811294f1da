"""arrays.py: rows of different lengths, end to end."""

from __future__ import annotations

import numpy as np

from bothways.io.arrays import bounds, ranges


def test_bounds() -> None:
    assert bounds(np.array([2, 0, 3], dtype=np.int32)).tolist() == [0, 2, 2, 5]
    assert bounds(np.zeros(0)).tolist() == [0]
    assert bounds([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert bounds([]).tolist() == [0]


def test_ranges() -> None:
    assert ranges(np.array([4, 0, 7]), np.array([6, 0, 10])).tolist() == [4, 5, 7, 8, 9]
    none = np.zeros(0, dtype=np.int64)
    assert ranges(none, none).tolist() == []
