"""Self-attention directly on a flat batch, by a GPU's variable-length attention kernels.

T tokens, N queries, A heads, D head size, S spans.

The kernels are FlashAttention 2 (Dao 2023) as shipped with torch. ``torch.nn.attention.varlen``
wraps them without dropout; the operations underneath have it, so these are called here.
Constraints, from torch's flash_api.cpp: fp16 or bf16; last dimension contiguous; cu_seqlens int32,
on the GPU, contiguous; head size a multiple of 8, at most 256 (above 128 not on every card);
compute capability 8.0. Rows outside all spans stay undefined, in the output and in gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bothways.families.config import ModelConfig
from bothways.model.batch import Inputs, SelectedPositions, VarlenBounds
from bothways.model.rotary import Rotation

_LARGEST_HEAD = 128
_MIN_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class VarlenLayout:
    """Which rows of a flat batch attend to each other: span s of queries to span s of keys.

    Attributes:
        queries: the sequences, and the tail; or the selected positions of each.
        keys: the sequences, and the tail.
        causal: a token attends to itself and earlier tokens only; needs queries equal to keys.
        window: a token attends to so many tokens on each side only; 0: to all.
        rotation: of the queries; None if they are not rotated.
        key_rotation: the same of the keys.
    """

    queries: VarlenBounds
    keys: VarlenBounds
    causal: bool
    window: int = 0
    rotation: Rotation | None = None
    key_rotation: Rotation | None = None

    def select(self, inputs: Inputs, selected: SelectedPositions) -> VarlenLayout:  # noqa: ARG002
        """Queries at the selected positions only, keys and values at all."""
        rotation = None if self.rotation is None else self.rotation.at(selected.positions)
        return replace(self, queries=selected.spans, rotation=rotation)


def why_not_varlen(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels cannot be used, in words; None where they can."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "FlashAttention's kernels need an NVIDIA GPU"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"FlashAttention's kernels need bf16, not {str(dtype).removeprefix('torch.')}"
    if config.layer(0).relative:
        return "FlashAttention's kernels have no scores of relative places"
    if config.head_size % 8 or config.head_size > _LARGEST_HEAD:
        return (
            f"FlashAttention's kernels need a head size that is a multiple of 8, at most "
            f"{_LARGEST_HEAD}, not {config.head_size}"
        )
    if _capability(device) < _MIN_CAPABILITY:
        return "FlashAttention's kernels need an Ampere card or a newer one"
    if not torch.backends.cuda.is_flash_attention_available():
        return "this build of torch has no FlashAttention"
    return None


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def attend_varlen(
    q_NAD: Tensor,
    k_TAD: Tensor,
    v_TAD: Tensor,
    layout: VarlenLayout,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of each span of queries over the span of keys and values with the same number.

    Args:
        q_NAD: [N, A, D].
        k_TAD: [T, A, D].
        v_TAD: [T, A, D].
        layout: S spans of queries that cover all N rows, some possibly empty, and S spans of keys
            that cover all T rows.
        dropout: probability of dropping an attention probability, in steps of 1/256; drawn from
            the device's default generator.

    Returns:
        [N, A, D].
    """
    out: Tensor = _FlashAttention.apply(q_NAD, k_TAD, v_TAD, layout, dropout)  # type: ignore[no-untyped-call]
    return out


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: VarlenLayout, dropout: float
    ) -> Tensor:
        queries, keys = layout.queries, layout.keys
        cu_seqlens = (queries.cu_seqlens, keys.cu_seqlens)
        ctx.settings = (queries.max_seqlen, keys.max_seqlen, dropout, layout.causal)
        side = layout.window or None
        ctx.window = {"window_size_left": side, "window_size_right": side}
        out, logsumexp, rng, unused, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, *cu_seqlens, *ctx.settings, False, **ctx.window
        )
        ctx.save_for_backward(q, k, v, out, logsumexp, *cu_seqlens, rng, unused)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, logsumexp, cu_seqlens_q, cu_seqlens_k, rng, unused = ctx.saved_tensors
        cu_seqlens = (cu_seqlens_q, cu_seqlens_k)
        with _deterministic():
            q_k_v_grads = torch.ops.aten._flash_attention_backward(
                *(grads[0], q, k, v, out, logsumexp, *cu_seqlens, *ctx.settings, rng, unused),
                **ctx.window,
            )
        return (*q_k_v_grads, None, None)


@contextmanager
def _deterministic() -> Iterator[None]:
    """Make the backward kernel sum the queries' gradients in a fixed order, so that a continued run
    gives the same bits.

    With at least as many sequences times heads as the GPU has multiprocessors, the kernel then
    processes the blocks of a sequence one after the other instead of in parallel, and needs no more
    memory.
    """
    before, memory = torch.get_deterministic_debug_mode(), torch.utils.deterministic
    fills = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_deterministic_debug_mode("error")
    if before == 0:  # the kernel writes all of its own memory: no need to fill it first
        memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
