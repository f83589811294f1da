"""Memory for the arrays of compiled layers, which train on a CPU.

Their sizes change from step to step, with the lengths of the texts. The C library's allocator
spreads such arrays over ever more memory, which on small batches costs a tenth of a step.
"""

from __future__ import annotations

import itertools
import math
import threading

import torch
from torch import Tensor

_SMALLEST_BLOCK = 4096
_SMALLEST_CHUNK = 2**26
_ALIGNMENT = 64  # a line of the cache


class Pool:
    """Memory for arrays that live within a step.

    Those that one pass of a layer needs for itself are taken and given back in any order: there are
    few, and what was given back last is taken first, because it is still in cache.

    Those that are kept for the backward pass are taken in frames, one for each layer. An array lies
    in the lowest gap that it fits into. So frames lie one after the other, like those of a stack of
    calls, and together take the room that the largest micro-batch needs. In blocks by size they
    would take more with each new combination of sizes: a run of base grew by a quarter within some
    steps.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[torch.UntypedStorage]] = {}  # by size
        self._chunks: list[torch.UntypedStorage] = []
        # What each frame occupies: starts and ends, counted as if chunks lay one after the other.
        self._occupied: dict[int, list[tuple[int, int]]] = {}
        self._numbers = itertools.count()
        # A frame may be released, by the garbage collector, while its thread takes an array.
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type[Pool], tuple[()]]:
        """A copy of a model, in this process or another, has a pool of its own."""
        return Pool, ()

    def take(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """An array with undefined values."""
        wanted = _block_size(_bytes(dtype, shape))
        with self._lock:
            # Pages that nobody touches take no memory, so a larger block serves as well.
            for size in (wanted, 2 * wanted, 4 * wanted):
                if free := self._free.get(size):
                    return _array(free.pop(), 0, dtype, shape)
        return _array(_storage(wanted), 0, dtype, shape)

    def give(self, *arrays: Tensor) -> None:
        """Give back arrays that were taken, or parts that stand for the whole. They may not be used
        any more. Others are not kept, because their sizes would not be asked for."""
        with self._lock:
            for array in arrays:
                storage = array.untyped_storage()
                if (size := storage.nbytes()) == _block_size(size):
                    self._free.setdefault(size, []).append(storage)

    def frame(self) -> Frame:
        """A frame without arrays."""
        return Frame(self)

    @property
    def kept(self) -> int:
        """Bytes of the arrays in frames."""
        with self._lock:
            return sum(end - start for spans in self._occupied.values() for start, end in spans)

    def _place(self, size: int) -> tuple[torch.UntypedStorage, int, int]:
        """The lowest gap of ``size`` bytes: its chunk, which is made if there is none, where the
        chunk starts, and where the gap does."""
        spans = sorted(span for spans in list(self._occupied.values()) for span in spans)
        start = 0
        for chunk in self._chunks:
            gap, end = start, start + chunk.nbytes()
            inside = [span for span in spans if start <= span[0] < end]
            for first, after in [*inside, (end, end)]:
                if first - gap >= size:
                    return chunk, start, gap
                gap = after
            start = end
        self._chunks.append(_storage(max(_SMALLEST_CHUNK, size, start)))
        return self._chunks[-1], start, start


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
        assert not self.released
        pool, size = self._pool, _aligned(_bytes(dtype, shape))
        with pool._lock:
            chunk, chunk_start, start = pool._place(size)
            own = pool._occupied.setdefault(self._number, [])
            if start > chunk_start and own and own[-1][1] == start:
                own[-1] = (own[-1][0], start + size)
            else:
                own.append((start, start + size))
            return _array(chunk, start - chunk_start, dtype, shape)

    def release(self) -> None:
        """Give back all arrays of the frame. They may not be used any more."""
        self.released = True
        with self._pool._lock:
            self._pool._occupied.pop(self._number, None)

    def __del__(self) -> None:
        self.release()  # such as when there was no backward pass


def _block_size(size: int) -> int:
    """Of the block for an array of this size: a power of two."""
    return max(_SMALLEST_BLOCK, 1 << (size - 1).bit_length())


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
