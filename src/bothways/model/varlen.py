"""Self-attention on a flat batch as it lies, by a GPU's kernels that take the ends of sequences.

T tokens, N tokens that ask, A heads, D head size, S spans.

The kernels are FlashAttention 2's (Dao 2023), as torch has them. ``torch.nn.attention.varlen``
wraps them without dropout; the operations below it take it, so they are called here.
Constraints, from torch's flash_api.cpp: fp16 or bf16; last dimension contiguous; ends int32, on the
GPU, contiguous; head size a multiple of 8, at most 256 (above 128 not on every card); compute
capability 8.0. Rows that no span owns stay undefined, in the output and in gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bothways.config import ModelConfig
from bothways.model.batch import Spans

_LARGEST_HEAD = 128
_LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Flat:
    """A flat batch for the kernels.

    Attributes:
        spans: its sequences, and its tail.
        causal: a token sees itself and those before it, not those after.
    """

    spans: Spans
    causal: bool


def why_not_flat(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> str | None:
    """What keeps the kernels from being used, in words; None where they can be."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "FlashAttention's kernels need a GPU of NVIDIA"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"FlashAttention's kernels take bf16, not {str(dtype).removeprefix('torch.')}"
    if config.head_size % 8 or config.head_size > _LARGEST_HEAD:
        return (
            f"FlashAttention's kernels take head sizes that are multiples of 8 up to "
            f"{_LARGEST_HEAD}, not {config.head_size}"
        )
    if _capability(device) < _LEAST_CAPABILITY:
        return "FlashAttention's kernels need an Ampere card or a newer one"
    return None


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def attend_flat(
    q_NAD: Tensor,
    k_TAD: Tensor,
    v_TAD: Tensor,
    queries: Spans,
    keys: Spans,
    *,
    dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:
    """Attention of the rows of each span of queries over the same span of keys and values.

    Args:
        q_NAD: [N, A, D].
        k_TAD: [T, A, D].
        v_TAD: [T, A, D].
        queries: S spans that own all N rows; some may be empty.
        keys: S spans that own all T rows.
        dropout: probability with which attention probabilities are dropped, in steps of 1/256;
            drawn by the device's default generator.
        causal: needs the same spans for both.

    Returns:
        [N, A, D].
    """
    out: Tensor = _Flash.apply(q_NAD, k_TAD, v_TAD, queries, keys, dropout, causal)  # type: ignore[no-untyped-call]
    return out


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        queries: Spans,
        keys: Spans,
        dropout: float,
        causal: bool,
    ) -> Tensor:
        ends = (queries.ends, keys.ends)
        ctx.settings = (queries.longest, keys.longest, dropout, causal)
        out, logsumexp, rng, unused, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, *ends, *ctx.settings, False
        )
        ctx.save_for_backward(q, k, v, out, logsumexp, *ends, rng, unused)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, logsumexp, q_ends, k_ends, rng, unused = ctx.saved_tensors
        with _in_one_order():
            parts = torch.ops.aten._flash_attention_backward(
                grads[0], q, k, v, out, logsumexp, q_ends, k_ends, *ctx.settings, rng, unused
            )
        return (*parts, None, None, None, None)


@contextmanager
def _in_one_order() -> Iterator[None]:
    """Have the backward kernel add up the queries' gradients in one order, as a continued run must.

    With at least as many sequences times heads as the GPU has multiprocessors, the kernel works on
    the blocks of a sequence one after the other instead of together, and needs no more memory.
    """
    before, memory = torch.get_deterministic_debug_mode(), torch.utils.deterministic
    fills = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_deterministic_debug_mode("error")
    if before == 0:  # not for the kernel's own memory, which it writes
        memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
