"""arrays.py: rows of different lengths, end to end, and arrays larger than memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bothways import arrays
from bothways.arrays import Growing, bounds, ranges
from bothways.errors import BothwaysError


def test_bounds() -> None:
    assert bounds(np.array([2, 0, 3], dtype=np.int32)).tolist() == [0, 2, 2, 5]
    assert bounds(np.zeros(0)).tolist() == [0]
    assert bounds([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert bounds([]).tolist() == [0]


def test_ranges() -> None:
    assert ranges(np.array([4, 0, 7]), np.array([6, 0, 10])).tolist() == [4, 5, 7, 8, 9]
    none = np.zeros(0, dtype=np.int64)
    assert ranges(none, none).tolist() == []


@pytest.mark.parametrize("large", [0, 100, 1 << 28])
@pytest.mark.parametrize("columns", [None, 3])
def test_rows_that_grow_are_one_array(
    large: int, columns: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "LARGE", large)
    rows = np.arange(60).reshape(-1, *([] if columns is None else [columns]))
    growing = Growing("rows", columns=columns)
    for start in range(0, len(rows), 7):
        growing.append(rows[start : start + 7])
    growing.append(rows[:0])
    joined = growing.array()
    assert type(joined) is np.ndarray
    assert joined.dtype == np.int64
    assert joined.tolist() == rows.tolist()
    assert (joined[[4, 1]] == rows[[4, 1]]).all()
    assert joined.flags.writeable == (large > 500)


def test_rows_of_nothing_and_of_columns_out_of_order() -> None:
    assert Growing("rows", columns=2).array().shape == (0, 2)
    growing = Growing("rows", np.int32, columns=2)
    growing.append(np.arange(6).reshape(2, 3).T)
    assert growing.array().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert growing.array().dtype == np.int32


def test_a_large_array_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "LARGE", 0)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # as a process that starts with it
    growing = Growing("rows")
    growing.append(np.arange(5))
    assert list(tmp_path.iterdir()) == []
    assert growing.array().sum() == 10


def test_no_room_for_a_large_array_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "LARGE", 0)
    monkeypatch.setattr(arrays, "_folder_of_large_files", lambda: "/dev/full-of-it")
    with pytest.raises(BothwaysError, match=r"full-of-it.*of the rows,.*TMPDIR"):
        Growing("the rows").append(np.arange(5))
