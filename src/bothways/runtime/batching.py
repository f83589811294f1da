"""The loop of inference: encode ahead in a thread, compute by length, keep the order.

R rows of outputs, such as one per token that a head reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways import arrays
from bothways.io.terminal import ShowProgress
from bothways.runtime.engine import Engine, batches_for

_T = TypeVar("_T")
_R = TypeVar("_R")
_N = TypeVar("_N", bound=np.generic)
_TOGETHER = 1024  # texts; batches are sorted by length among so many
_FIRST = 128  # of many texts: nothing is computed before they are tokenized

Computed = tuple[NDArray[_N], NDArray[np.int64]]
"""Outputs of a batch, [R, ...], and where the rows of each item begin and end."""


def computed(
    engine: Engine,
    lengths: NDArray[np.int64],
    compute: Callable[[NDArray[np.int64]], Computed[_N]],
    progress: ShowProgress | None = None,
) -> Iterator[tuple[int, NDArray[_N]]]:
    """The number of each item and its outputs, longest items first.

    Args:
        engine: decides how large batches are.
        lengths: of the items in tokens, int64 [N].
        compute: the outputs of some items, by their numbers.
        progress: called with the items done and in all.
    """
    done = 0
    for indices in batches_for(engine, lengths):
        outputs, bounds = compute(indices)
        yield from zip(indices.tolist(), arrays.split(outputs, bounds), strict=True)
        done += len(indices)
        if progress is not None:
            progress(done, len(lengths))


def text_parts(texts: Sequence[str]) -> list[slice]:
    """The parts of texts that are tokenized together; at least one. The first are smaller, but few
    texts are one part: tokenizing them takes no time, and sorted together they need less padding.
    """
    count = len(texts)
    if count <= _TOGETHER // 2:
        return [slice(0, count)]
    parts, size, at = [], min(_FIRST, _TOGETHER), 0
    while at < count:
        parts.append(slice(at, at + size))
        at += size
        size = min(_TOGETHER, 2 * size)
    return parts


def ahead(parts: Iterable[_T], make: Callable[[_T], _R]) -> Iterator[_R]:
    """What ``make`` makes of each part: the next in a thread, while the caller works on the last.

    Tokenizing leaves the interpreter to others, and an engine computes; so with one part made
    ahead, neither waits for the other. Parts that are read are read in the thread, too.
    """
    if isinstance(parts, Sequence) and len(parts) == 1:
        yield make(parts[0])
        return
    source = iter(parts)

    def step() -> tuple[_R] | None:
        for part in source:
            return (make(part),)
        return None

    with ThreadPoolExecutor(1, "tokenizing") as pool:
        coming = pool.submit(step)
        while (made := coming.result()) is not None:
            coming = pool.submit(step)
            yield made[0]


def share_of(
    progress: ShowProgress | None, start: int, count: int, total: int
) -> ShowProgress | None:
    """The progress of a part, ``count`` of the whole's ``total`` items from ``start`` on, as that
    of the whole."""
    if progress is None:
        return None
    return lambda done, of: progress(start + count * done // max(1, of), total)
