"""A transformer layer with a hand-written backward pass, for training on a CPU.

The matrix products are the library's; what is between them runs in compiled loops. Because one
function computes all of it, it knows how long each array is needed.

T tokens, N selected positions (T if all), H hidden size, I feed-forward size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bothways.model.dropout import Draw
from bothways.model.kernels.compiled import (
    AttentionPlan,
    Norm,
    add_gelu,
    add_norm,
    add_norm_backward,
    as_gradient,
    attend,
    attend_backward,
    gelu_backward,
    gradient_array,
    parameters_for,
    transpose,
)
from bothways.model.kernels.memory import Frame, Pool
from bothways.model.kernels.rounded import RoundedWeights


@dataclass(frozen=True)
class LayerRun:
    """What a layer needs besides hidden states and parameters.

    Attributes:
        pool: of the layer's arrays.
        rounded: of the weights.
        transposes: whether to compute gradients of weights from transposed arrays.
        plan: of attention.
        at: int64 [N]; the positions to compute; None for all.
        eps: of both LayerNorms.
        draws: of the dropout after attention and after the feed-forward part.
        recompute: keep only the input, and compute the layer again in the backward pass.
        activation: of the feed-forward part, one that a loop computes.
    """

    pool: Pool
    rounded: RoundedWeights
    transposes: bool
    plan: AttentionPlan
    at: Tensor | None
    eps: float
    draws: tuple[Draw, ...]
    recompute: bool
    activation: str


def compiled_layer(run: LayerRun, x_TH: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The layer's output, [T, H] -> [N, H].

    Args:
        run: what else decides the result.
        x_TH: hidden states.
        parameters: weight and bias of the projection to queries, keys and values, of that of the
            contexts, of the two of the feed-forward part, and of the two LayerNorms.
    """
    out: Tensor = _Layer.apply(run, x_TH.contiguous(), *parameters)  # type: ignore[no-untyped-call]
    return out


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: LayerRun, x: Tensor, *parameters: Tensor) -> Tensor:
        frame = run.pool.frame()
        out, saved = _Pass(run, frame, x, parameters).forward()
        if run.recompute:
            frame.release()
            saved = []
        ctx.save_for_backward(x, *parameters)
        # Not saved by autograd: a hook could hold arrays for longer than their frame lives.
        ctx.run, ctx.frame, ctx.saved = run, frame, saved
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        frame, saved = ctx.frame, ctx.saved
        recomputes = frame.released  # nothing was kept, or this is another backward pass
        if recomputes:
            frame = ctx.run.pool.frame()
        pass_ = _Pass(ctx.run, frame, x, parameters)
        if recomputes:
            _, saved = pass_.forward()
        gradients = pass_.backward(grads[0].contiguous(), saved)
        frame.release()
        return None, *gradients


class _Pass:
    """One forward or backward pass of a layer."""

    def __init__(self, run: LayerRun, frame: Frame, x: Tensor, parameters: Sequence[Tensor]):
        self.x, self.pool, self.frame, self.plan, self.at = x, run.pool, frame, run.plan, run.at
        pairs = list(zip(parameters[::2], parameters[1::2], strict=True))
        self.transposes, self.activation = run.transposes, run.activation
        self.weights = [weight for weight, _ in pairs[:4]]
        self.rounded = [run.rounded.of(weight, x.dtype) for weight in self.weights]
        b_qkv, b_output, b_expand, b_contract = (bias for _, bias in pairs[:4])
        b_qkv, self.b_expand = parameters_for(x, b_qkv, b_expand)
        biases, norms = (b_output, b_contract), pairs[4:]
        self.norms = []
        for bias, norm, draw in zip(biases, norms, run.draws, strict=True):
            bias, weight, shift = parameters_for(x, bias, *norm)
            self.norms.append(Norm(bias, weight, shift, run.eps, draw))
        H = x.shape[1]
        self.b_qkv = [b_qkv] if run.at is None else [b_qkv[:H], b_qkv[H:]]

    def forward(self) -> tuple[Tensor, list[Tensor]]:
        """The output, and what the backward pass needs, which is in the frame."""
        pool, frame, x = self.pool, self.frame, self.x
        w_qkv, w_output, w_expand, w_contract = self.rounded
        x_N = x if self.at is None else frame.take(x.dtype, len(self.at), x.shape[1])
        if self.at is not None:
            torch.index_select(x, 0, self.at, out=x_N)
        projections = [self._mm(inner, w.t()) for inner, w in self._projected(x_N, w_qkv)]
        context, attention = attend(pool, frame, projections, self.b_qkv, self.plan)
        pool.give(*projections)
        mixed = self._mm(context, w_output.t())
        x_1 = frame.take(x.dtype, *x_N.shape)
        norm_1 = add_norm(frame, x_N, mixed, self.norms[0], x_1)
        pool.give(mixed)
        z, h = (frame.take(x.dtype, len(x_1), len(w_expand)) for _ in range(2))
        torch.mm(x_1, w_expand.t(), out=z)
        add_gelu(z, self.b_expand, h, self.activation)  # z is its derivative from here on
        y = self._mm(h, w_contract.t())
        out = torch.empty_like(x_1)
        norm_2 = add_norm(frame, x_1, y, self.norms[1], out)
        pool.give(y)
        return out, [x_N, context, *norm_1, x_1, z, h, *norm_2, *attention]

    def backward(self, upstream: Tensor, saved: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the input and the parameters."""
        pool = self.pool
        w_qkv, w_output, w_expand, w_contract = self.rounded
        in_qkv, in_output, in_expand, in_contract = self.weights
        x_N, context, *rest = saved
        norm_1, (x_1, slope, h), norm_2, attention = rest[:3], rest[3:6], rest[6:9], rest[9:]

        d_1 = pool.take(x_1.dtype, *x_1.shape)
        d_y, (db_contract, *d_norm_2) = add_norm_backward(
            pool, upstream, norm_2, self.norms[1], d_1
        )
        d_contract = self._weight_gradient([(d_y, h)], in_contract)
        d_z = self._mm(d_y, w_contract)
        if d_y is not d_1:
            pool.give(d_y)
        db_expand = gelu_backward(d_z, slope)
        d_expand = self._weight_gradient([(d_z, x_1)], in_expand)
        torch.addmm(d_1, d_z, w_expand, out=d_1)
        pool.give(d_z)

        d_x = torch.empty_like(self.x)
        d_N = d_x if self.at is None else pool.take(x_N.dtype, *x_N.shape)
        d_mixed, (db_output, *d_norm_1) = add_norm_backward(pool, d_1, norm_1, self.norms[0], d_N)
        d_output = self._weight_gradient([(d_mixed, context)], in_output)
        d_context = self._mm(d_mixed, w_output)
        pool.give(d_1, *([] if d_mixed is d_N else [d_mixed]))
        d_projections, db_qkv = attend_backward(pool, d_context, attention, self.plan)
        inner = [inner for inner, _ in self._projected(x_N, w_qkv)]
        d_qkv = self._weight_gradient(list(zip(d_projections, inner, strict=True)), in_qkv)
        if self.at is None:
            torch.addmm(d_x, d_projections[0], w_qkv, out=d_x)
        else:
            H = d_x.shape[1]
            torch.addmm(d_N, d_projections[0], w_qkv[:H], out=d_N)
            torch.mm(d_projections[1], w_qkv[H:], out=d_x)
            d_x.index_add_(0, self.at, d_N)
            pool.give(d_N)
        pool.give(d_context, *d_projections)
        return [
            d_x,
            *(d_qkv, torch.cat(db_qkv)),
            *(d_output, db_output, d_expand, db_expand, d_contract, db_contract),
            *(*d_norm_1, *d_norm_2),
        ]

    def _projected(self, x_N: Tensor, w_qkv: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What is projected to queries, keys and values, and by which weights."""
        if self.at is None:
            return [(self.x, w_qkv)]
        H = self.x.shape[1]
        return [(x_N, w_qkv[:H]), (self.x, w_qkv[H:])]

    def _mm(self, a: Tensor, b: Tensor) -> Tensor:
        out = self.pool.take(a.dtype, a.shape[0], b.shape[1])
        torch.mm(a, b, out=out)
        return out

    def _weight_gradient(self, parts: Sequence[tuple[Tensor, Tensor]], weight: Tensor) -> Tensor:
        """The gradient of a weight [out, in], whose first rows come from the first part, the next
        from the second: gradients [N, rows] of the outputs and the inputs [N, in]."""
        product = gradient_array(self.pool, self.x.dtype, *weight.shape)
        rows = torch.split(product, [d.shape[1] for d, _ in parts])
        for (d, inner), out in zip(parts, rows, strict=True):
            self._transposed_product(d, inner, out)
        return as_gradient(self.pool, weight, product)

    def _transposed_product(self, d: Tensor, inner: Tensor, out: Tensor) -> None:
        """``out = d.t() @ inner``.

        Some processors' products are slow if the first factor is read across its rows. There the
        smaller of the two is transposed first, and for ``inner`` the product afterwards.
        """
        if not self.transposes:
            torch.mm(d.t(), inner, out=out)
        elif d.shape[1] <= inner.shape[1]:
            d_t = self._transposed(d)
            torch.mm(d_t, inner, out=out)
            self.pool.give(d_t)
        else:
            inner_t = self._transposed(inner)
            product_t = self._mm(inner_t, d)
            transpose(product_t, out)
            self.pool.give(inner_t, product_t)

    def _transposed(self, x: Tensor) -> Tensor:
        out = self.pool.take(x.dtype, x.shape[1], x.shape[0])
        transpose(x, out)
        return out
