"""How this process computes on a CPU: its threads and its memory allocator."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

from bothways.errors import ConfigError

# Parameters of mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def set_threads(threads: int, *, processes: int = 1) -> int:
    """Set up this process for computing: its CPU threads, and an allocator that keeps freed memory.

    Every step allocates the same memory again, so returning it to the system in between is wasted.

    Args:
        threads: how many; 0 is one per core that this process may use, at most OMP_NUM_THREADS,
            divided by the number of processes. Under ``torchrun`` OMP_NUM_THREADS is ignored,
            because torchrun sets it itself.
        processes: how many work here at once; multiplied by those that ``torchrun`` started on
            this machine.

    Returns:
        The number of threads.

    Raises:
        ConfigError: the number is negative.
    """
    if threads < 0:
        raise ConfigError(f"threads is {threads}; it must be at least 0, which is one per core.")
    processes *= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    available = usable_cores()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdecimal() and int(limit) and "LOCAL_WORLD_SIZE" not in os.environ:
        available = min(available, int(limit))
    number = threads or max(1, available // processes)
    torch.set_num_threads(number)
    _keep_freed_memory()
    return number


def usable_cores() -> int:
    """The cores that this process may use; all of the machine's where the system cannot tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_phrase(number: int) -> str:
    """For the log: "1 thread", "2 threads"."""
    return f"{number} thread{'s' if number > 1 else ''}"


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory; on other systems do nothing.

    By default it returns every large block to the system at once, which clears each page again at
    the next allocation: 15 to 25 % of a training step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # Older releases refuse a threshold above 32 MiB. The second setting, never to trim, stops glibc
    # from raising the first by itself, so it must not stand alone.
    if mallopt is not None and any(mallopt(_M_MMAP_THRESHOLD, size) for size in (2**30, 2**25)):
        mallopt(_M_TRIM_THRESHOLD, -1)
