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

from bothways.model.compiled import (
    AttentionPlan,
    Norm,
    add_norm,
    add_norm_backward,
    attend,
    attend_backward,
    exact,
    parameters_for,
)
from bothways.model.dropout import Draw
from bothways.model.memory import Frame, Pool


@dataclass(frozen=True)
class LayerRun:
    """What a layer needs besides hidden states and parameters.

    Attributes:
        pool: of the layer's arrays.
        plan: of attention.
        at: int64 [N]; the positions to compute; None for all.
        eps: of both LayerNorms.
        draws: of the dropout after attention and after the feed-forward part.
        recompute: keep only the input, and compute the layer again in the backward pass.
    """

    pool: Pool
    plan: AttentionPlan
    at: Tensor | None
    eps: float
    draws: tuple[Draw, ...]
    recompute: bool


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
        self.weights = [weight for weight, _ in pairs[:4]]
        b_qkv, b_output, self.b_expand, b_contract = (bias for _, bias in pairs[:4])
        (b_qkv,) = parameters_for(x, b_qkv)
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
        weights = [self._cast(w) for w in self.weights]
        w_qkv, w_output, w_expand, w_contract = weights
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
        torch.addmm(self.b_expand.to(x.dtype), x_1, w_expand.t(), out=z)
        torch.ops.aten.gelu.out(z, out=h)
        y = self._mm(h, w_contract.t())
        out = torch.empty_like(x_1)
        norm_2 = add_norm(frame, x_1, y, self.norms[1], out)
        pool.give(y)
        return out, [*weights, x_N, context, *norm_1, x_1, z, h, *norm_2, *attention]

    def backward(self, upstream: Tensor, saved: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the input and the parameters."""
        pool = self.pool
        w_qkv, w_output, w_expand, w_contract, x_N, context = saved[:6]
        norm_1, (x_1, z, h), norm_2, attention = saved[6:9], saved[9:12], saved[12:15], saved[15:]

        d_1, d_y, (db_contract, *d_norm_2) = add_norm_backward(
            pool, upstream, norm_2, self.norms[1]
        )
        d_contract = self._weight_gradient(d_y, h)
        d_z = self._mm(d_y, w_contract)
        if d_y is not d_1:
            pool.give(d_y)
        torch.ops.aten.gelu_backward.grad_input(d_z, z, grad_input=d_z)
        d_expand = self._weight_gradient(d_z, x_1)
        db_expand = d_z.sum(0, dtype=exact(d_z))
        torch.addmm(d_1, d_z, w_expand, out=d_1)
        pool.give(d_z)

        d_N, d_mixed, (db_output, *d_norm_1) = add_norm_backward(pool, d_1, norm_1, self.norms[0])
        d_output = self._weight_gradient(d_mixed, context)
        d_context = self._mm(d_mixed, w_output)
        pool.give(d_1, *([] if d_mixed is d_N else [d_mixed]))
        d_projections, db_qkv = attend_backward(pool, d_context, attention, self.plan)
        d_x = torch.empty_like(self.x)
        d_qkv = [
            self._weight_gradient(d, inner)
            for d, (inner, _) in zip(d_projections, self._projected(x_N, w_qkv), strict=True)
        ]
        if self.at is None:
            torch.addmm(d_N, d_projections[0], w_qkv, out=d_x)
        else:
            H = d_x.shape[1]
            torch.addmm(d_N, d_projections[0], w_qkv[:H], out=d_N)
            torch.mm(d_projections[1], w_qkv[H:], out=d_x)
            d_x.index_add_(0, self.at, d_N)
        pool.give(d_context, d_N, *d_projections)
        return [
            d_x,
            *(torch.cat(d_qkv) if len(d_qkv) > 1 else d_qkv[0], torch.cat(db_qkv)),
            *(d_output, db_output, d_expand, db_expand, d_contract, db_contract),
            *(*d_norm_1, *d_norm_2),
        ]

    def _projected(self, x_N: Tensor, w_qkv: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What is projected to queries, keys and values, and by which weights."""
        if self.at is None:
            return [(self.x, w_qkv)]
        H = self.x.shape[1]
        return [(x_N, w_qkv[:H]), (self.x, w_qkv[H:])]

    @property
    def _casts(self) -> bool:
        """Whether weights are copied to the dtype of the arrays."""
        return self.x.dtype != self.weights[0].dtype

    def _cast(self, weight: Tensor) -> Tensor:
        if not self._casts:
            return weight
        return self.frame.take(self.x.dtype, *weight.shape).copy_(weight)

    def _mm(self, a: Tensor, b: Tensor) -> Tensor:
        out = self.pool.take(a.dtype, a.shape[0], b.shape[1])
        torch.mm(a, b, out=out)
        return out

    def _weight_gradient(self, d: Tensor, inner: Tensor) -> Tensor:
        """[N, out], [N, in] -> [out, in], in the parameter's dtype."""
        if not self._casts:
            return torch.mm(d.t(), inner)
        product = self._mm(d.t(), inner)
        gradient = product.to(self.weights[0].dtype)
        self.pool.give(product)
        return gradient
