"""Finding repeats among many hashes, in memory that hardly grows with their number.

Hashes are distributed over files by their first bits, so that equal ones are in the same file. The
files are then sorted one at a time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from bothways.corpus.encode import Hashes

# Memory is that of the largest file, about 100 bytes per 64 hashes, and a byte per item.
BUCKETS = 64
_BUFFER = 2**16  # hashes held in memory before they are distributed over the files
_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("item", "<i8")])
_SHIFT = np.uint64(64 - 6)
TOP = 20
"""How many of the most frequent items are listed."""


@dataclass(frozen=True)
class Repeats:
    """The repeats among a sequence of items.

    Attributes:
        items: how many items there are.
        repeated: bool [highest item + 1]: whether the item equals an earlier one.
        most_frequent: (occurrences, first item) of at most ``TOP`` repeated items, most frequent
            first.
        histogram: occurrences -> how many distinct items occur that often.
    """

    items: int
    repeated: NDArray[np.bool_]
    most_frequent: list[tuple[int, int]]
    histogram: dict[int, int]


class RepeatFinder:
    """Collects hashes in order and finds the repeated ones.

    Args:
        folder: for temporary files.
        name: prefix of their names.

    Attributes:
        items: how many were added.
    """

    def __init__(self, folder: Path, name: str):
        self._folder = folder
        self._name = name
        self._files: list[BinaryIO] = [self._path(n).open("w+b") for n in range(BUCKETS)]
        self._waiting: list[NDArray[np.void]] = []
        self._waiting_rows = 0
        self.items = 0

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{self._name}-{bucket:02}"

    def add(self, hashes: Hashes, items: NDArray[np.int64]) -> None:
        """Add the hashes [N, 2] of ``items`` [N], whose numbers increase from call to call."""
        rows = np.empty(items.size, dtype=_ROW)
        rows["high"], rows["low"], rows["item"] = hashes[:, 0], hashes[:, 1], items
        self._waiting.append(rows)
        self._waiting_rows += rows.size
        self.items += rows.size
        if self._waiting_rows >= _BUFFER:
            self._distribute()

    def _distribute(self) -> None:
        """Write the waiting hashes to their files."""
        rows = np.concatenate(self._waiting)
        bucket = (rows["high"] >> _SHIFT).astype(np.intp)
        order = np.argsort(bucket, kind="stable")
        parts = np.split(rows[order], np.searchsorted(bucket[order], np.arange(1, BUCKETS)))
        for file, part in zip(self._files, parts, strict=True):
            file.write(part.tobytes())
        self._waiting, self._waiting_rows = [], 0

    def find(self, size: int) -> Repeats:
        """Find the repeats among everything added; item numbers are below ``size``."""
        if self._waiting:
            self._distribute()
        repeated = np.zeros(size, dtype=np.bool_)
        top: list[tuple[int, int]] = []
        histogram: Counter[int] = Counter()
        for bucket, file in enumerate(self._files):
            file.seek(0)
            rows = np.frombuffer(file.read(), dtype=_ROW)
            file.close()
            self._path(bucket).unlink()
            if not rows.size:
                continue
            order = np.lexsort((rows["low"], rows["high"]))  # stable: equal hashes stay in order
            high, low, item = (rows[name][order] for name in ("high", "low", "item"))
            is_first = np.ones(rows.size, dtype=np.bool_)
            is_first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
            repeated[item[~is_first]] = True
            starts = np.flatnonzero(is_first)
            firsts, counts = item[starts], np.diff(starts, append=rows.size)
            histogram.update(counts.tolist())
            candidates = np.lexsort((firsts, -counts))[:TOP]
            top += [(int(counts[i]), int(firsts[i])) for i in candidates if counts[i] > 1]
            top = sorted(top, key=lambda entry: (-entry[0], entry[1]))[:TOP]
        return Repeats(self.items, repeated, top, dict(sorted(histogram.items())))
