"""Which device computes, and how fast its data sheet says it is."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from bothways.errors import ConfigError
from bothways.use_options import DeviceName

CPU = torch.device("cpu")

# Dense bf16 matrix products with fp32 sums, operations a second, from NVIDIA's data sheets (those
# give most numbers with sparsity, which is twice as many). The first name that is part of the
# card's counts. Cards made in variants of one name are not here; they are measured.
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


@dataclass(frozen=True)
class Device:
    """A device and why.

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
    """What a device can do at most.

    Attributes:
        flops: floating-point operations a second of matrix products.
        source: where the number is from, in words.
    """

    flops: float
    source: str


def choose_device(wanted: DeviceName) -> Device:
    """The device to compute on; the current one of this process from then on.

    Under torchrun each process takes the card of its LOCAL_RANK.

    Args:
        wanted: ``auto`` takes a GPU where torch sees one.

    Raises:
        ConfigError: a GPU was asked for and torch sees none, or there are fewer cards than
            processes on this machine.
    """
    if wanted == "cpu":
        return Device(CPU, "cpu", "cpu: asked for")
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = (
            "no card or no driver was found"
            if built
            else f"torch {torch.__version__} was built without CUDA"
        )
        if wanted == "auto":
            return Device(CPU, "cpu", f"cpu: torch sees no GPU ({why})")
        raise ConfigError(
            f"device is cuda, but torch sees no GPU: {why}. Give --device cpu, or install what is "
            "missing; `python -c 'import torch; print(torch.cuda.is_available())'` tells."
        )
    rank, cards = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if rank >= cards:
        raise ConfigError(
            f"process {rank} of this machine (LOCAL_RANK, from 0) has no card of its own: torch "
            f"sees {cards}. Start at most {cards} with --nproc_per_node."
        )
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    name = torch.cuda.get_device_name(device)
    how = "asked for" if wanted == "cuda" else "torch sees it"
    return Device(device, name, f"{name}: {how}")


def find_peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """From the data sheet for bf16 on a card that is known; measured otherwise."""
    if device.type == "cuda" and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        for part, flops in _PEAK_BF16.items():
            if part in name:
                return Peak(flops, f"data sheet, {part}")
    return Peak(matrix_rate(dtype, device), "measured, large matrix product")


def matrix_rate(dtype: torch.dtype, device: torch.device = CPU) -> float:
    """Floating-point operations a second of a large matrix product, the best of several."""
    size = 2048 if device.type == "cpu" else 8192
    x, w = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    F.linear(x, w)
    best = float("inf")
    for _ in range(8):
        synchronize(device)
        start = time.perf_counter()
        F.linear(x, w)
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def synchronize(device: torch.device) -> None:
    """Wait for what a GPU has been given to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_note(device: torch.device) -> str:
    """The most that tensors held of the GPU's memory at once, for the log; empty on a CPU."""
    if device.type != "cuda":
        return ""
    used = torch.cuda.max_memory_allocated(device) / 2**30
    reserved = torch.cuda.max_memory_reserved(device) / 2**30
    return f"peak GPU memory: {used:.1f} GiB in tensors, {reserved:.1f} GiB with the allocator's"
