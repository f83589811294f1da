"""What NumPy lacks: rows of any length end to end, arrays larger than memory, probabilities."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import BothwaysError

Array = NDArray[np.float64]

LARGE = 1 << 28
"""Bytes of an array that is kept in memory; one that grows beyond lies in a file."""


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


class Growing:
    """Rows that arrive in blocks and are then read as one array.

    They are kept in memory up to :data:`LARGE` bytes, and beyond that in a file that is mapped, of
    which the system keeps in memory what fits. The file has no name: it goes with the array, and
    nothing of it is left by a kill. It lies in the folder that ``TMPDIR`` names, or in /var/tmp:
    /tmp itself is memory on many systems.

    Args:
        what: the rows hold; for messages.
        dtype: of the numbers.
        columns: of a row; None for rows that are numbers.
    """

    def __init__(self, what: str, dtype: type[np.generic] = np.int64, columns: int | None = None):
        self._what, self._dtype = what, np.dtype(dtype)
        self._row = () if columns is None else (columns,)
        self._blocks: list[NDArray[Any]] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def append(self, rows: NDArray[Any]) -> None:
        """Add a block of rows.

        Raises:
            BothwaysError: the disk is full, or there is no folder for the file.
        """
        rows = np.ascontiguousarray(rows, self._dtype)
        self._blocks.append(rows)
        self._bytes += rows.nbytes
        if self._file or self._bytes > LARGE:
            self._write()

    def array(self) -> NDArray[Any]:
        """All rows [N] or [N, columns]; read-only where they lie in a file."""
        if self._file is None:
            return np.concatenate([np.empty((0, *self._row), self._dtype), *self._blocks])
        size = self._bytes // (self._dtype.itemsize * int(np.prod(self._row, dtype=int)))
        with self._file as file:
            file.flush()
            return np.asarray(np.memmap(file, self._dtype, mode="r", shape=(size, *self._row)))

    def _write(self) -> None:
        folder = _folder_of_large_files()
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (open until array())
            for rows in self._blocks:
                self._file.write(rows.data)
        except OSError as error:
            raise BothwaysError(
                f"{folder}: {error.strerror} after {self._bytes:,} bytes of {self._what}, which "
                "are kept in a file as they are large. Free some space, or name a folder on "
                "another disk in the variable TMPDIR."
            ) from error
        self._blocks.clear()


def _folder_of_large_files() -> str:
    if not os.environ.get("TMPDIR") and os.access("/var/tmp", os.W_OK):
        return "/var/tmp"
    return tempfile.gettempdir()
