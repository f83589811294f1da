"""Self-attention inside each sequence of a flat batch.

B sequences, T tokens, N selected positions, H hidden size, A heads, D = H / A, R rows of all tiles
together; of one tile, b sequences, L length, Q queries per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bothways.config import ModelConfig
from bothways.model.shared import Linear, Shared
from bothways.model.tiles import QueryTiles, Tile, Tiles
from bothways.model.varlen import VarlenLayout, attend_varlen


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017), with one fused projection."""

    def __init__(self, config: ModelConfig, shared: Shared):
        super().__init__()
        self.qkv = Linear(config.hidden, 3 * config.hidden)
        self.output = Linear(config.hidden, config.hidden)
        self._heads, self._head_size = config.heads, config.head_size
        self._shared, self._probability = shared, config.attention_dropout

    def forward(
        self, x_TH: Tensor, layout: Tiles | VarlenLayout, weights: list[Tensor] | None = None
    ) -> Tensor:
        """[T, H] -> [T, H].

        Args:
            x_TH: hidden states.
            layout: the sequences, in padded tiles or for variable-length kernels.
            weights: if given, receives one [b, A, L, L] of probabilities for each tile.
        """
        qkv = self.qkv(x_TH)
        if isinstance(layout, VarlenLayout):
            context = self._varlen(self._split_heads(qkv), layout)
        else:
            context = self._tiled(qkv, layout, weights)
        mixed: Tensor = self.output(context)
        return mixed

    def forward_at(self, x_NH: Tensor, x_TH: Tensor, layout: QueryTiles | VarlenLayout) -> Tensor:
        """Attention of N selected positions over all tokens: [N, H], [T, H] -> [N, H].

        Args:
            x_NH: hidden states of the selected positions.
            x_TH: hidden states of all tokens.
            layout: queries at the selected positions; not left to right.
        """
        H = x_TH.shape[-1]
        q, kv = self.qkv.divided([x_NH, x_TH], [H, 2 * H])
        if isinstance(layout, VarlenLayout):
            context = self._varlen((*self._split_heads(q), *self._split_heads(kv)), layout)
        else:
            context = self._tiled_at(q, kv, layout)
        mixed: Tensor = self.output(context)
        return mixed

    def _tiled(self, qkv_T3H: Tensor, tiles: Tiles, weights: list[Tensor] | None) -> Tensor:
        rows = tiles.gather(qkv_T3H)
        contexts = []
        for tile in tiles.tiles:
            qkv = self._tile_rows(rows, tile.start, tile.sequences, tile.length)
            if self._shared.fast and weights is None:
                mask = self._dropout_mask(qkv, tile, tile.length)
                contexts.append(_Attend.apply(qkv, tile.bias, mask, self._scale))  # type: ignore[no-untyped-call]
            else:
                contexts.append(self._plain(qkv, tile, weights))
        return tiles.scatter(_concatenate(contexts))

    def _tiled_at(self, q_NH: Tensor, kv_T2H: Tensor, layout: QueryTiles) -> Tensor:
        q_rows, kv_rows = layout.gather(q_NH), layout.keys.gather(kv_T2H)
        contexts = []
        for tile, (start, queries) in zip(layout.keys.tiles, layout.queries, strict=True):
            q = self._tile_rows(q_rows, start, tile.sequences, queries)
            kv = self._tile_rows(kv_rows, tile.start, tile.sequences, tile.length)
            mask = self._dropout_mask(q, tile, queries)
            contexts.append(_AttendFrom.apply(q, kv, tile.bias, mask, self._scale))  # type: ignore[no-untyped-call]
        return layout.scatter(_concatenate(contexts))

    def _varlen(self, qkv: Sequence[Tensor], layout: VarlenLayout) -> Tensor:
        """Queries [N, A, D], keys and values [T, A, D] -> [N, H]."""
        q, k, v = qkv
        dropout = self._shared.dropout.for_kernel(self._probability, q.device)
        return attend_varlen(q, k, v, layout, dropout=dropout).flatten(1)

    def _split_heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """[T, n * H] -> n times [T, A, D], views."""
        return x.view(len(x), -1, self._heads, self._head_size).unbind(1)

    @property
    def _scale(self) -> float:
        return 1 / (1 - self._probability)

    def _tile_rows(self, x: Tensor, start: int, sequences: int, length: int) -> Tensor:
        """Rows of one tile, [b, L, n, A, D]."""
        rows = x[start : start + sequences * length]
        return rows.view(sequences, length, -1, self._heads, self._head_size)

    def _dropout_mask(self, like: Tensor, tile: Tile, queries: int) -> Tensor | None:
        shape = (tile.sequences * self._heads, queries, tile.length)
        return self._shared.dropout.mask(shape, self._probability, like=like)

    def _plain(self, qkv: Tensor, tile: Tile, weights: list[Tensor] | None) -> Tensor:
        """One tile in plain library operations: the reference for :class:`_Attend`."""
        q_bALD, k_bALD, v_bALD = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q_bALD * self._head_size**-0.5) @ k_bALD.transpose(-1, -2)
        if tile.bias is not None:
            scores = scores + tile.bias
        probabilities = scores.softmax(-1)
        if weights is not None:
            weights.append(probabilities)
        context = self._shared.dropout(probabilities, self._probability) @ v_bALD
        rows: Tensor = context.transpose(1, 2).reshape(tile.sequences * tile.length, -1)
        return rows


def _concatenate(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


# -------------------------------------------------------------- hand-written forward and backward
#
# Compared with autograd on the plain form, this makes no copies of the scores for scaling, bias and
# dropout, and one copy each way between the memory layouts of projections and products. The
# library's fused CPU attention is slow in the backward pass and has no dropout. Dropout's scale is
# applied to the contexts, which are smaller than the probabilities by a factor of L / D.


class _Attend(torch.autograd.Function):
    """Attention of a tile from its packed projections, [b, L, 3, A, D] -> [b * L, H]."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float
    ) -> Tensor:
        q, k, v = (_heads_first(qkv[:, :, i]) for i in range(3))
        return _attend(ctx, q, k, v, bias, mask, scale, qkv.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        d_qkv = grads[0].new_empty(ctx.shape)
        for i, gradient in enumerate(_attend_backward(ctx, grads[0])):
            d_qkv[:, :, i] = _tokens_first(gradient, ctx.shape)
        return d_qkv, None, None, None


class _AttendFrom(torch.autograd.Function):
    """Attention of Q queries per sequence, [b, Q, 1, A, D], over a tile's keys and values,
    [b, L, 2, A, D], -> [b * Q, H]."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, kv: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float
    ) -> Tensor:
        ctx.kv_shape = kv.shape
        k, v = (_heads_first(kv[:, :, i]) for i in range(2))
        return _attend(ctx, _heads_first(q[:, :, 0]), k, v, bias, mask, scale, q.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dq, dk, dv = _attend_backward(ctx, grads[0])
        d_kv = grads[0].new_empty(ctx.kv_shape)
        for i, gradient in enumerate((dk, dv)):
            d_kv[:, :, i] = _tokens_first(gradient, ctx.kv_shape)
        return _tokens_first(dq, ctx.shape).unsqueeze(2), d_kv, None, None, None


def _attend(
    ctx: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    scale: float,
    shape: torch.Size,
) -> Tensor:
    """Forward from q, k, v, [b * A, L, D] each, to [b * Q, H].

    ``shape`` is that of the packed queries, [b, Q, n, A, D].
    """
    b, A = shape[0], shape[3]
    q = q * shape[4] ** -0.5
    scores = torch.bmm(q, k.transpose(1, 2))
    if bias is not None:
        scores.view(b, A, *scores.shape[1:]).add_(bias)
    probabilities = scores.softmax(-1)
    del scores
    context = torch.bmm(probabilities if mask is None else probabilities * mask, v)
    if mask is not None:
        context.mul_(scale)
    ctx.save_for_backward(q, k, v, probabilities, mask)
    ctx.shape, ctx.scale = shape, scale
    return _tokens_first(context, shape).reshape(b * shape[1], -1)


def _attend_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, [b * A, L, D] each, from the contexts' gradient, [b * Q, H]."""
    q, k, v, probabilities, mask = ctx.saved_tensors
    b, Q, _, A, D = ctx.shape
    d_context = _heads_first(gradient.view(b, Q, A, D))
    if mask is not None:
        d_context = d_context * ctx.scale
    d_probabilities = torch.bmm(d_context, v.transpose(1, 2))
    dropped = probabilities
    if mask is not None:
        d_probabilities.mul_(mask)
        dropped = probabilities * mask
    dv = torch.bmm(dropped.transpose(1, 2), d_context)
    d_scores = torch._softmax_backward_data(d_probabilities, probabilities, -1, probabilities.dtype)
    dq = torch.bmm(d_scores, k).mul_(D**-0.5)
    return dq, torch.bmm(d_scores.transpose(1, 2), q), dv


def _heads_first(x: Tensor) -> Tensor:
    """[b, L, A, D] -> [b * A, L, D]."""
    b, L, A, D = x.shape
    return x.transpose(1, 2).reshape(b * A, L, D)


def _tokens_first(x: Tensor, shape: torch.Size) -> Tensor:
    """[b * A, L, D] -> [b, L, A, D], a view; b and A are taken from ``shape``."""
    return x.view(shape[0], shape[3], *x.shape[1:]).transpose(1, 2)
