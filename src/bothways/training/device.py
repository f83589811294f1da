"""The device to compute on: its kernels, its peak speed, its memory."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from bothways.config import DeviceName, ModelConfig
from bothways.errors import ConfigError
from bothways.model.compiled import is_first_use, why_not_compiled
from bothways.model.varlen import why_not_varlen

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
    """The device to compute on; also makes it this process's current CUDA device.

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
        return _describe_loops() if fast else ""
    why = why_not_varlen(config, dtype, device) if fast else "plain kernels were requested"
    if why is None:
        return "attention: FlashAttention on flat batches, dropout within the kernel"
    return (
        f"attention: padded tiles, which hold all attention probabilities and their dropout masks "
        f"in memory ({why})"
    )


def _describe_loops() -> str:
    if why := why_not_compiled():
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
