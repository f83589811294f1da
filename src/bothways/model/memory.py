"""Memory for the arrays of compiled layers, which train on a CPU.

Their sizes change from step to step, with the lengths of the texts. The C library's allocator
spreads such arrays over ever more memory, which on small batches costs a tenth of a step.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

_SMALLEST_BLOCK = 4096
_SMALLEST_CHUNK = 2**26
_ALIGNMENT = 64  # a line of the cache


class Pool:
    """Memory for arrays that live within a step.

    Those that one pass of a layer needs for itself are taken and given back in any order: there are
    few, and what was given back last is taken first, because it is still in cache.

    Those that are kept for the backward pass are taken in frames, one for each layer. Frames lie
    one after the other, like those of a stack of calls, so that together they take the room that
    the largest micro-batch needs. In blocks by size they would take more with each new combination
    of sizes: a run of base grew by a quarter within some steps.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[torch.UntypedStorage]] = {}  # by size
        self._chunks: list[torch.UntypedStorage] = []
        self._ends: dict[int, int] = {}  # of each frame, as if chunks lay one after the other
        self._numbers = itertools.count()

    def __reduce__(self) -> tuple[type[Pool], tuple[()]]:
        """A copy of a model, in this process or another, has a pool of its own."""
        return Pool, ()

    def take(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """An array with undefined values."""
        wanted = max(_SMALLEST_BLOCK, 1 << (_bytes(dtype, shape) - 1).bit_length())
        # Pages that nobody touches take no memory, so a larger block serves as well.
        for size in (wanted, 2 * wanted, 4 * wanted):
            if free := self._free.get(size):
                return _array(free.pop(), 0, dtype, shape)
        return _array(_storage(wanted), 0, dtype, shape)

    def give(self, *arrays: Tensor) -> None:
        """Give back arrays that were taken, or parts that stand for the whole. They may not be used
        any more."""
        for array in arrays:
            storage = array.untyped_storage()
            self._free.setdefault(storage.nbytes(), []).append(storage)

    def frame(self) -> Frame:
        """A frame without arrays."""
        return Frame(self)


class Frame:
    """Arrays that live until the frame is released, or nobody has the frame any more.

    Attributes:
        released: whether the frame is released.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool, self._number = pool, next(pool._numbers)
        self.released = False

    def take(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """An array with undefined values."""
        pool, size = self._pool, _aligned(_bytes(dtype, shape))
        top = max([*pool._ends.values(), 0])
        start = 0
        for chunk in pool._chunks:
            end = start + chunk.nbytes()
            first = max(top, start)
            if first + size <= end:
                break
            start = end
        else:
            chunk, first = _storage(max(_SMALLEST_CHUNK, size, start)), start
            pool._chunks.append(chunk)
        pool._ends[self._number] = first + size
        return _array(chunk, first - start, dtype, shape)

    def release(self) -> None:
        """Give back all arrays of the frame. They may not be used any more."""
        self.released = True
        self._pool._ends.pop(self._number, None)

    def __del__(self) -> None:
        self.release()  # such as when there was no backward pass


def _bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _storage(size: int) -> torch.UntypedStorage:
    return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]


def _array(
    storage: torch.UntypedStorage, start: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> Tensor:
    offset = start // dtype.itemsize
    array: Tensor = torch.empty(0, dtype=dtype).set_(storage, offset, shape)  # type: ignore[call-overload]
    return array
