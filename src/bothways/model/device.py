"""Where and how weights are computed: the device, the precision, threads and memory."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F

from bothways.errors import ConfigError
from bothways.families.config import ModelConfig
from bothways.io.processes import usual_threads
from bothways.model.kernels.compiled import (
    compiles,
    is_first_use,
    transpose,
    why_not_compiled,
    why_not_covered,
)
from bothways.model.kernels.varlen import why_not_varlen
from bothways.runtime.speed import Seconds, least_seconds, measured_once, not_kept
from bothways.training.options import DeviceName

# --------------------------------------------------------------------------------
# The device to compute on: its kernels, its peak speed, its memory.

CPU = torch.device("cpu")

# Operations per second of dense bf16 matrix products with fp32 accumulation, from NVIDIA's data
# sheets (most of which give numbers with sparsity, twice as high). The first entry whose words are
# in the card's name counts. Cards with several variants under one name are left out and measured,
# and so are those whose name has one of the words after the table.
_PEAK_BF16 = {
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A30": 165e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
}
_OTHER_CARDS = re.compile(r"\b(MIG|Laptop|4090 D)\b")  # parts and weaker cards of the same name


@dataclass(frozen=True)
class Device:
    """A device and the reason for it.

    Attributes:
        torch: for tensors.
        name: ``cpu``, or the card's name; recorded with a run.
        reason: a sentence for the log.
    """

    torch: torch.device
    name: str
    reason: str


@dataclass(frozen=True)
class Peak:
    """A device's peak speed.

    Attributes:
        flops: floating-point operations per second of matrix products.
        source: where the number comes from, in words.
    """

    flops: float
    source: str


def choose_device(wanted: DeviceName) -> Device:
    """The device to compute on; also makes it this thread's current CUDA device, and its fp32 exact
    (:func:`borrowed_process` puts both back).

    Under torchrun each process takes the GPU of its LOCAL_RANK.

    Args:
        wanted: ``auto`` takes a GPU if torch sees one.

    Raises:
        ConfigError: a GPU was requested but torch sees none, or this machine has fewer GPUs than
            processes.
    """
    if wanted == "cpu":
        return Device(CPU, "cpu", "cpu: requested")
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = (
            "no GPU or no driver was found"
            if built
            else f"torch {torch.__version__} was built without CUDA"
        )
        if wanted == "auto":
            return Device(CPU, "cpu", f"cpu: torch sees no GPU ({why})")
        raise ConfigError(
            f"device is cuda, but torch sees no GPU: {why}. Pass --device cpu, or install what is "
            "missing; `python -c 'import torch; print(torch.cuda.is_available())'` checks it."
        )
    rank, cards = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if rank >= cards:
        raise ConfigError(
            f"process {rank} of this machine (LOCAL_RANK, from 0) has no GPU of its own: torch "
            f"sees {cards}. Start at most {cards} with --nproc_per_node."
        )
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.backends.cudnn.allow_tf32 = False  # fp32 is fp32, in LSTMs too
    name = torch.cuda.get_device_name(device)
    how = "requested" if wanted == "cuda" else "torch sees it"
    return Device(device, name, f"{name}: {how}")


def describe_kernels(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, *, fast: bool = True
) -> str:
    """What a user may want to know of the kernels of a training, for the log; empty if nothing.

    On a GPU the kind of attention and its cost; on a CPU why there are no compiled loops, or that
    they have yet to be compiled.
    """
    if device.type == "cpu":
        return _describe_loops(config) if fast else ""
    why = why_not_varlen(config, dtype, device) if fast else "plain kernels were requested"
    if why is None:
        return "attention: FlashAttention on flat batches, dropout within the kernel"
    return (
        f"attention: padded tiles, which hold all attention probabilities and their dropout masks "
        f"in memory ({why})"
    )


def _describe_loops(config: ModelConfig) -> str:
    if why := why_not_compiled() or why_not_covered(config):
        return f"kernels: plain, which are slower ({why})"
    if is_first_use():
        return "kernels: to be compiled for this processor, once; the first steps take longer"
    return ""


def find_peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """From the data sheet for bf16 on a known GPU; measured otherwise."""
    if device.type == "cuda" and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        for model, flops in _PEAK_BF16.items():
            if re.search(rf"\b{model}\b", name) and not _OTHER_CARDS.search(name):
                return Peak(flops, f"data sheet, {model}")
    return Peak(matrix_rate(dtype, device), "measured, large matrix product")


def matrix_rate(dtype: torch.dtype, device: torch.device = CPU) -> float:
    """Floating-point operations per second of a large matrix product, the best of those that a
    second is enough for; at least one, at most eight."""
    size = 2048 if device.type == "cpu" else 8192
    # Random numbers: a GPU multiplies constants faster, because fewer bits flip.
    x, w = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    F.linear(x, w)
    best, begin = float("inf"), time.perf_counter()
    for number in range(8):
        if number and time.perf_counter() - begin > 1:  # as where bf16 is emulated
            break
        synchronize(device)
        start = time.perf_counter()
        F.linear(x, w)
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all work submitted so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak_memory(device: torch.device) -> None:
    """Let :func:`peak_memory_note` tell the peak from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_note(device: torch.device) -> str:
    """Peak GPU memory since :func:`reset_peak_memory`, for the log; empty on a CPU."""
    if device.type != "cuda":
        return ""
    used = torch.cuda.max_memory_allocated(device) / 2**30
    reserved = torch.cuda.max_memory_reserved(device) / 2**30
    return (
        f"peak GPU memory: {used:.1f} GiB in tensors, {reserved:.1f} GiB reserved by the allocator"
    )


# --------------------------------------------------------------------------------
# The choice of bf16 or fp32 arithmetic, and of how it computes weights' gradients: measured
# once per machine.

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# bf16 must be faster than fp32 by this factor in the probe to be worth its rounding.
_MIN_SPEEDUP = 1.3
# And so must products after transposing, to be worth what the probe does not see.
_MIN_GAIN = 1.15
_SLOW = 0.005  # seconds of two small products in bf16, where a processor has no units for it


@dataclass(frozen=True)
class ChosenPrecision:
    """A precision and the reason for it.

    Attributes:
        name: ``bf16`` or ``fp32``.
        reason: a sentence for the log.
        transposes: whether gradients of weights are computed from transposed arrays.
    """

    name: Literal["bf16", "fp32"]
    reason: str
    transposes: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Arithmetic of the layers; parameters and optimizer stay fp32."""
        return DTYPES[self.name]


def choose_precision(
    wanted: Literal["auto", "bf16", "fp32"], device: torch.device = CPU
) -> ChosenPrecision:
    """Take the requested precision, or the one that is fast on this device.

    Args:
        wanted: ``auto`` takes bf16 on a GPU with hardware support for it, and on a CPU if a
            feed-forward layer's matrix product is faster in bf16.
        device: where the model is computed.
    """
    if wanted != "auto":
        return ChosenPrecision(wanted, f"{wanted}: requested")
    if device.type != "cpu":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return ChosenPrecision("bf16", "bf16: this GPU supports it in hardware")
        return ChosenPrecision("fp32", "fp32: this GPU has no hardware support for bf16")

    def measure() -> Seconds:
        exact, rounded = least_seconds(_product(torch.float32), _product(torch.bfloat16))
        return {"fp32": exact, "bf16": rounded}

    seconds = measured_by_torch("products of training", measure)
    if seconds is None:
        return ChosenPrecision("fp32", not_kept())
    ratio = seconds["fp32"] / seconds["bf16"]
    if ratio >= _MIN_SPEEDUP:
        return ChosenPrecision(
            "bf16",
            f"bf16: matrix products are {ratio:.1f} times as fast as in fp32 here",
        )
    return ChosenPrecision(
        "fp32",
        f"fp32: bf16 matrix products are only {ratio:.1f} times as fast here",
    )


def choose_for_training(
    wanted: Literal["auto", "bf16", "fp32"], device: torch.device = CPU
) -> ChosenPrecision:
    """The precision, and how gradients of weights are computed.

    Args:
        wanted, device: as for :func:`choose_precision`.
    """
    chosen = choose_precision(wanted, device)
    if device.type != "cpu":
        return chosen
    if not transposing_pays(chosen.dtype):
        return chosen
    reason = f"{chosen.reason}, with gradients of weights from transposed arrays"
    return replace(chosen, reason=reason, transposes=True)


def transposing_pays(dtype: torch.dtype) -> bool:
    """Whether a weight's gradient takes less time from transposed arrays, on this processor.

    It is a product whose first factor is read across its rows, which the units of some processors
    for bf16 products are slow at. In fp32 no processor is known where transposing pays.
    """
    if dtype != torch.bfloat16 or not compiles(torch.ones(1, dtype=dtype)):
        return False

    def measure() -> Seconds:
        direct, other = _gradient_seconds(256, dtype)
        if direct + other < _SLOW:  # otherwise the larger products would take half a minute
            direct, other = _gradient_seconds(2048, dtype)
        return {"direct": direct, "transposed": other}

    seconds = measured_by_torch("gradients of weights in bf16", measure)
    return seconds is not None and seconds["direct"] >= _MIN_GAIN * seconds["transposed"]


def measured_by_torch(what: str, measure: Callable[[], Seconds]) -> Seconds | None:
    """:func:`bothways.runtime.speed.measured_once` with torch, in the threads of this process."""
    return measured_once(what, measure, torch.get_num_threads(), ["torch"])


def _gradient_seconds(rows: int, dtype: torch.dtype) -> list[float]:
    """Of the gradient of ``rows / 4`` x ``rows`` weights, directly and from transposed arrays."""
    d, inner = torch.ones(rows, rows // 4, dtype=dtype), torch.ones(rows, rows, dtype=dtype)
    d_t = torch.empty(rows // 4, rows, dtype=dtype)

    def transposed() -> None:
        transpose(d, d_t)
        torch.mm(d_t, inner)

    return least_seconds(lambda: torch.mm(d.t(), inner), transposed)


def _product(dtype: torch.dtype) -> Callable[[], object]:
    x, w = torch.ones(1024, 512, dtype=dtype), torch.ones(1024, 512, dtype=dtype)
    return lambda: F.linear(x, w)


# --------------------------------------------------------------------------------
# How this process computes on a CPU: its threads and its memory allocator.

# Parameters of mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# What glibc's own adjustment ends at, in a process that has freed arrays as large as a training's.
_LARGEST_MMAP_THRESHOLD, _LARGEST_TRIM_THRESHOLD = 2**25, 2**26


@contextmanager
def borrowed_process() -> Iterator[None]:
    """Put back, after the block, the settings of the process that computing changes.

    For everything that Python code may call: the process is the caller's, who goes on with it. Put
    back are torch's number of threads (of this thread), the current GPU and the precision of its
    fp32 products, and torch's default generators. The allocator keeps freed memory until the last
    block of all threads ends. Numba's number of threads is as it was after each loop. Signals are
    :mod:`bothways.pretraining.pretrain`'s.
    """
    threads = torch.get_num_threads()
    tf32 = torch.backends.cudnn.allow_tf32
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    card = torch.cuda.current_device() if cuda else 0
    _ALLOCATOR.enter()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if cuda else ()):
            yield
    finally:
        _ALLOCATOR.leave()
        torch.backends.cudnn.allow_tf32 = tf32
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.set_device(card)
            if not cuda:  # as seeded when it is first used
                torch.cuda.manual_seed_all(torch.initial_seed())
        torch.set_num_threads(threads)


def set_threads(threads: int, *, processes: int = 1) -> int:
    """Set up this process for computing: its CPU threads, and an allocator that keeps freed memory.

    Every step allocates the same memory again, so returning it to the system in between is wasted.

    Args:
        threads: how many; 0 is the usual number (:func:`usual_threads`), divided by that of the
            processes.
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
    number = threads or max(1, usual_threads() // processes)
    torch.set_num_threads(number)
    _ALLOCATOR.keep_freed_memory()
    return number


class _Allocator:
    """glibc's allocator, which keeps freed memory if it is asked to; on other systems nothing.

    By default it returns every large block to the system at once, which clears each page again at
    the next allocation: 15 to 25 % of a training step.
    """

    def __init__(self) -> None:
        self._lock, self._blocks = threading.Lock(), 0
        self._keeps = self._owned = False

    def keep_freed_memory(self) -> None:
        """From now on; if asked within a block of :func:`borrowed_process`, until the last of these
        ends. Thresholds that the environment sets stay."""
        chosen = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
        if "malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(n in os.environ for n in chosen):
            return
        with self._lock:
            self._keeps, self._owned = True, self._owned or not self._blocks
            # Older releases refuse a threshold above 32 MiB. The second setting, never to trim,
            # stops glibc from raising the first by itself, so it must not stand alone.
            if any(_libc("mallopt", _M_MMAP_THRESHOLD, size) for size in (2**30, 2**25)):
                _libc("mallopt", _M_TRIM_THRESHOLD, -1)

    def enter(self) -> None:
        """A block begins."""
        with self._lock:
            self._blocks += 1

    def leave(self) -> None:
        """A block ends; after the last, memory goes back to the system.

        glibc does not tell its thresholds, and stops adjusting them when they are set. They become
        what they would have come to by themselves after arrays of this size.
        """
        with self._lock:
            self._blocks -= 1
            if self._blocks or self._owned or not self._keeps:
                return
            self._keeps = False
            _libc("mallopt", _M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
            _libc("mallopt", _M_TRIM_THRESHOLD, _LARGEST_TRIM_THRESHOLD)
            _libc("malloc_trim", 0)


_ALLOCATOR = _Allocator()


def _libc(name: str, *arguments: int) -> int:
    """Call a function of glibc; 0 where there is none."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    return 0 if function is None else int(function(*arguments))
