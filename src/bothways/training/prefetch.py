"""Prefetching: a thread prepares batches while earlier ones are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def run_ahead(
    make: Callable[[int], T], steps: Iterable[int], *, ahead: int, device: torch.device
) -> Iterator[T]:
    """``make(step)`` of each step, in order.

    Args:
        make: called in a thread; it may move its result to ``device``.
        steps: in order.
        ahead: steps prepared in advance; 0 makes each on demand, without a thread.
        device: becomes the thread's current device.
    """
    if ahead == 0:
        yield from map(make, steps)
        return

    def prepare() -> None:
        if device.type == "cuda":  # a new thread starts with device 0, whatever its process uses
            torch.cuda.set_device(device)

    with ThreadPoolExecutor(1, initializer=prepare) as thread:
        waiting: list[Future[T]] = []
        try:
            for step in steps:
                waiting.append(thread.submit(make, step))
                if len(waiting) > ahead:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()
