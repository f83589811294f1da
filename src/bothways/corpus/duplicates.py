"""Which of many hashes were there before, in memory that hardly grows with their number.

Hashes are spread over files by their first bits, so that copies meet in one file; the files are
then sorted one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from bothways.corpus.encode import Hashes

# Memory is that of the fullest file: about 100 bytes for each 64 hashes.
BUCKETS = 64
_FLAGS = 2**20  # written at once
_BUFFER = 2**16  # hashes kept before they are spread over the files
_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("item", "<i8")])
_SHIFT = np.uint64(64 - 6)
TOP = 20
"""Repeated items that are listed."""


@dataclass(frozen=True)
class Repeats:
    """What is repeated.

    Attributes:
        items: how many were looked at.
        repeated: bool [highest item + 1], on disk: whether an earlier item is the same.
        ranks: (how often, first item) of those that occur most often, most first; at most ``TOP``.
        histogram: occurrences -> how many distinct items have that many.
    """

    items: int
    repeated: NDArray[np.bool_]
    ranks: list[tuple[int, int]]
    histogram: dict[int, int]


class RepeatFinder:
    """Takes hashes in order, and tells which were there before.

    Args:
        folder: for temporary files.
        name: what these are called.

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
        """Add the hashes of ``items``, numbers that grow from call to call."""
        rows = np.empty(items.size, dtype=_ROW)
        rows["high"], rows["low"], rows["item"] = hashes[:, 0], hashes[:, 1], items
        self._waiting.append(rows)
        self._waiting_rows += rows.size
        self.items += rows.size
        if self._waiting_rows >= _BUFFER:
            self._spread()

    def _spread(self) -> None:
        rows = np.concatenate(self._waiting)
        bucket = (rows["high"] >> _SHIFT).astype(np.intp)
        order = np.argsort(bucket, kind="stable")
        parts = np.split(rows[order], np.searchsorted(bucket[order], np.arange(1, BUCKETS)))
        for file, part in zip(self._files, parts, strict=True):
            file.write(part.tobytes())
        self._waiting, self._waiting_rows = [], 0

    def find(self, size: int) -> Repeats:
        """Sort all that was added; ``size`` is one more than the highest item may be."""
        if self._waiting:
            self._spread()
        path = self._folder / f"{self._name}-repeated"
        size_on_disk = max(size, 1)
        with path.open("wb") as flags:  # all of it now: a mapped file that outgrows a disk kills
            for at in range(0, size_on_disk, _FLAGS):
                flags.write(bytes(min(_FLAGS, size_on_disk - at)))
        repeated = np.memmap(path, np.bool_, mode="r+", shape=size_on_disk)
        ranks: list[tuple[int, int]] = []
        histogram: dict[int, int] = {}
        for bucket, file in enumerate(self._files):
            file.seek(0)
            rows = np.frombuffer(file.read(), dtype=_ROW)
            file.close()
            self._path(bucket).unlink()
            if not rows.size:
                continue
            order = np.lexsort((rows["low"], rows["high"]))  # stable: copies stay in order
            high, low, item = (rows[name][order] for name in ("high", "low", "item"))
            first = np.ones(rows.size, dtype=np.bool_)
            first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
            repeated[item[~first]] = True
            starts = np.flatnonzero(first)
            counts = np.diff(starts, append=rows.size)
            for often, how_many in zip(*np.unique(counts, return_counts=True), strict=True):
                histogram[int(often)] = histogram.get(int(often), 0) + int(how_many)
            firsts = item[starts]
            most = [int(at) for at in np.lexsort((firsts, -counts))[:TOP] if counts[at] > 1]
            ranks += [(int(counts[at]), int(firsts[at])) for at in most]
            ranks = sorted(ranks, key=lambda rank: (-rank[0], rank[1]))[:TOP]
        return Repeats(self.items, repeated[:size], ranks, dict(sorted(histogram.items())))
