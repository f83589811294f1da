"""The choice of bf16 or fp32 arithmetic, and of how it computes weights' gradients, made once per
run by measuring."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F

from bothways.model.compiled import compiles, transpose
from bothways.training.device import CPU

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# bf16 must be faster than fp32 by this factor in the probe to be worth its rounding.
_MIN_SPEEDUP = 1.3
# And so must products after transposing, to be worth what the probe does not see.
_MIN_GAIN = 1.15


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
    seconds = {name: _time_product(dtype) for name, dtype in DTYPES.items()}
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
    return replace(chosen, transposes=transposing_pays(chosen.dtype))


def transposing_pays(dtype: torch.dtype) -> bool:
    """Whether a weight's gradient takes less time from transposed arrays, on this processor.

    It is a product whose first factor is read across its rows, which the units of some processors
    for bf16 products are slow at. In fp32 no processor is known where transposing pays.
    """
    d, inner = torch.ones(2048, 512, dtype=dtype), torch.ones(2048, 2048, dtype=dtype)
    if dtype != torch.bfloat16 or not compiles(d):
        return False
    d_t = torch.empty(512, 2048, dtype=dtype)

    def transposed() -> None:
        transpose(d, d_t)
        torch.mm(d_t, inner)

    direct, other = _least_seconds(lambda: torch.mm(d.t(), inner), transposed)
    return direct >= _MIN_GAIN * other


def _time_product(dtype: torch.dtype) -> float:
    x, w = torch.ones(2048, 512, dtype=dtype), torch.ones(2048, 512, dtype=dtype)
    return _median_seconds(lambda: F.linear(x, w))


def _median_seconds(action: Callable[[], object]) -> float:
    action()
    seconds: list[float] = []
    while len(seconds) < 7 and sum(seconds) < 0.5:  # fewer where bf16 is emulated
        seconds.append(_seconds(action))
    return statistics.median(seconds)


def _least_seconds(*actions: Callable[[], object]) -> list[float]:
    """The shortest time of each action, in turns: other programs only ever make one longer, and
    so decide the order of two that are close less often than by medians."""
    for action in actions:
        action()
    rounds: list[list[float]] = []
    while len(rounds) < 15 and sum(map(sum, rounds)) < 0.5:
        rounds.append([_seconds(action) for action in actions])
    return [min(column) for column in zip(*rounds, strict=True)]


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
