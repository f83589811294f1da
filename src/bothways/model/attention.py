"""Self-attention inside each sequence of a flat batch.

B sequences, T tokens, N selected positions, H hidden size, A heads, D = H / A, R rows of all tiles
together; of one tile, b sequences, L length, Q queries per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.families.config import ModelConfig
from bothways.model.kernels.compiled import AttentionPlan, AttentionTile
from bothways.model.kernels.varlen import VarlenLayout, attend_varlen
from bothways.model.shared import Linear, Shared
from bothways.model.tiles import QueryTiles, RowMap, Tiles


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017), with one fused projection."""

    def __init__(self, config: ModelConfig, shared: Shared):
        super().__init__()
        self.qkv = Linear(config.hidden, sum(config.qkv_rows), bias=config.biases)
        self.output = Linear(config.hidden, config.hidden, bias=config.biases)
        self._heads, self._head_size = config.heads, config.head_size
        self._widths = config.qkv_rows
        self._sharing = config.hidden // self._widths[1]  # queries' heads for one of keys
        self._shared, self._probability = shared, config.attention_dropout
        self._causal = config.layer(0).causal

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
        if self._sharing > 1:
            q, kv = qkv.split([self._widths[0], sum(self._widths[1:])], 1)
            qkv = torch.cat([q, self._for_all_heads(kv)], 1)
        if layout.rotation is not None:
            q, k, v = self._split_heads(qkv)
            qkv = torch.stack([layout.rotation(q), layout.rotation(k), v], 1).flatten(1)
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
            layout: queries at the selected positions, which attend to all tokens.
        """
        q, kv = self.qkv.divided([x_NH, x_TH], [self._widths[0], sum(self._widths[1:])])
        if self._sharing > 1:
            kv = self._for_all_heads(kv)
        if layout.rotation is not None and layout.key_rotation is not None:
            k, v = self._split_heads(kv)
            q = layout.rotation(*self._split_heads(q)).flatten(1)
            kv = torch.stack([layout.key_rotation(k), v], 1).flatten(1)
        if isinstance(layout, VarlenLayout):
            context = self._varlen((*self._split_heads(q), *self._split_heads(kv)), layout)
        else:
            context = self._tiled_at(q, kv, layout)
        mixed: Tensor = self.output(context)
        return mixed

    def plan(self, layout: Tiles | QueryTiles) -> AttentionPlan:
        """The same for compiled loops; draws the dropout of each tile."""
        maps: tuple[RowMap, ...] = (layout,)
        if isinstance(layout, Tiles):
            tiles = layout.tiles
            rows: list[tuple[NDArray[np.int64], ...]] = [(tile.rows,) for tile in tiles]
        else:
            tiles, maps = layout.keys.tiles, (layout, layout.keys)
            rows = [(q.rows, k.rows) for q, k in zip(layout.queries, tiles, strict=True)]
        planned = [
            AttentionTile(own, tile.lengths, self._shared.dropout.draw(self._probability))
            for tile, own in zip(tiles, rows, strict=True)
        ]
        return AttentionPlan(
            planned,
            flat_rows=tuple(len(m.tile_rows) for m in maps),
            unused=tuple(m.tail for m in maps),
            heads=self._heads,
            head_size=self._head_size,
            causal=self._causal,
        )

    def _tiled(self, qkv_T3H: Tensor, tiles: Tiles, weights: list[Tensor] | None) -> Tensor:
        rows = tiles.gather(qkv_T3H)
        places = tiles.places
        projected = None if places is None else places.projected(self.qkv, self._heads)
        contexts = []
        for tile in tiles.tiles:
            q, k, v = self._tile_rows(rows, tile.start, tile.sequences, tile.length)
            q, bias = q * self._head_size**-0.5, tile.bias
            if places is not None and projected is not None:
                q = q * places.terms**-0.5
                added = places.scores(q, k, projected)
                bias = added if bias is None else added + bias
            contexts.append(self._plain(q, k, v, bias, weights))
        return tiles.scatter(_concatenate(contexts))

    def _tiled_at(self, q_NH: Tensor, kv_T2H: Tensor, layout: QueryTiles) -> Tensor:
        q_rows, kv_rows = layout.gather(q_NH), layout.keys.gather(kv_T2H)
        contexts = []
        for tile, own in zip(layout.keys.tiles, layout.queries, strict=True):
            (q,) = self._tile_rows(q_rows, own.start, tile.sequences, own.queries)
            k, v = self._tile_rows(kv_rows, tile.start, tile.sequences, tile.length)
            scaled = q * self._head_size**-0.5
            contexts.append(self._plain(scaled, k, v, tile.bias, None))
        return layout.scatter(_concatenate(contexts))

    def _varlen(self, qkv: Sequence[Tensor], layout: VarlenLayout) -> Tensor:
        """Queries [N, A, D], keys and values [T, A, D] -> [N, H]."""
        q, k, v = qkv
        dropout = self._shared.dropout.for_kernel(self._probability, q.device)
        return attend_varlen(q, k, v, layout, dropout=dropout).flatten(1)

    def _for_all_heads(self, kv: Tensor) -> Tensor:
        """Keys and values that heads share, one for each head: [T, ...] -> [T, 2 H]."""
        shared = kv.view(len(kv), -1, 1, self._head_size)
        return shared.expand(-1, -1, self._sharing, -1).flatten(1)

    def _split_heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """[T, n * H] -> n times [T, A, D], views."""
        return x.view(len(x), -1, self._heads, self._head_size).unbind(1)

    def _tile_rows(self, x: Tensor, start: int, sequences: int, length: int) -> tuple[Tensor, ...]:
        """Rows of one tile, [R, n * H] -> n times [b, A, L, D], views."""
        rows = x[start : start + sequences * length]
        split = rows.view(sequences, length, -1, self._heads, self._head_size)
        return split.permute(2, 0, 3, 1, 4).unbind()

    def _plain(
        self,
        q_bAQD: Tensor,
        k_bALD: Tensor,
        v_bALD: Tensor,
        bias: Tensor | None,
        weights: list[Tensor] | None,
    ) -> Tensor:
        """Contexts of one tile, [b * Q, H], in library operations, from scaled queries."""
        scores = q_bAQD @ k_bALD.transpose(-1, -2)
        if bias is not None:
            scores += bias
        probabilities = scores.softmax(-1)
        if weights is not None:
            weights.append(probabilities)
        context = self._shared.dropout(probabilities, self._probability) @ v_bALD
        rows: Tensor = context.transpose(1, 2).flatten(2).flatten(0, 1)
        return rows


def _concatenate(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
