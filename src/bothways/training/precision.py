"""Which arithmetic and how many threads; chosen once, with the reason."""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from bothways.errors import ConfigError
from bothways.training.device import CPU

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# bf16 must beat fp32 by this much in the probe to be worth its rounding.
_WORTH = 1.3
# Parameters of mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True)
class Choice:
    """A precision and why.

    Attributes:
        name: ``bf16`` or ``fp32``.
        reason: a sentence for the log.
    """

    name: Literal["bf16", "fp32"]
    reason: str

    @property
    def dtype(self) -> torch.dtype:
        """Arithmetic of the layers; parameters and optimizer stay fp32."""
        return DTYPES[self.name]


def set_threads(threads: int, *, processes: int = 1) -> int:
    """Use this many CPU threads; returns the number.

    0 is one per core that this process may use, at most OMP_NUM_THREADS, or its part of them where
    it is one of several ``processes``, or ``torchrun`` has started several on this machine (it sets
    OMP_NUM_THREADS itself, so that there the variable says nothing).

    Also has this process keep the memory it frees, as every step asks for the same again.

    Raises:
        ConfigError: the number is negative.
    """
    if threads < 0:
        raise ConfigError(f"threads is {threads}; it must be at least 0, which is one per core.")
    here = processes * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    most = len(os.sched_getaffinity(0))
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) and "LOCAL_WORLD_SIZE" not in os.environ:
        most = min(most, int(given))
    number = threads or max(1, most // here)
    torch.set_num_threads(number)
    _keep_freed_memory()
    return number


def threads_said(number: int) -> str:
    """For a log: "1 thread", "2 threads"."""
    return f"{number} thread{'s' if number > 1 else ''}"


def _keep_freed_memory() -> None:
    """Tell glibc to give nothing back to the system; elsewhere do nothing.

    By default it returns every large block at once, and the system clears each page anew when it is
    asked for again: 15 to 25 % of a training step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 2**30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def choose_precision(wanted: Literal["auto", "bf16", "fp32"], device: torch.device = CPU) -> Choice:
    """Take what was asked for, or find out what the device is fast at.

    Args:
        wanted: ``auto`` probes a feed-forward layer's product in both dtypes on a CPU, and asks
            whether a GPU has units for bf16.
        device: what computes.
    """
    if wanted != "auto":
        return Choice(wanted, f"{wanted}: asked for")
    if device.type != "cpu":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Choice("bf16", "bf16: this card has units for it")
        return Choice("fp32", "fp32: this card has no units for bf16")
    seconds = {name: _time_product(dtype) for name, dtype in DTYPES.items()}
    ratio = seconds["fp32"] / seconds["bf16"]
    if ratio >= _WORTH:
        return Choice(
            "bf16", f"bf16: its matrix products run {ratio:.1f} times as fast as fp32's here"
        )
    return Choice("fp32", f"fp32: bf16 matrix products run at {ratio:.1f} times its speed")


def _time_product(dtype: torch.dtype) -> float:
    x, w = torch.ones(2048, 512, dtype=dtype), torch.ones(2048, 512, dtype=dtype)
    F.linear(x, w)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        F.linear(x, w)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
