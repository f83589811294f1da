"""The layers of the encoder, on flat batches.

B sequences, T tokens, N selected positions, H hidden size, I feed-forward size.

Every layer computes in the dtype of its input; parameters stay fp32 and are cast where they are
used, so the precision of a forward pass is decided once, at the embeddings.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bothways.families.config import ModelConfig
from bothways.model.attention import Attention
from bothways.model.batch import Inputs
from bothways.model.kernels import compiled
from bothways.model.kernels.layer import LayerRun, compiled_layer
from bothways.model.kernels.varlen import VarlenLayout
from bothways.model.shared import LayerNorm, Linear, Shared
from bothways.model.tiles import QueryTiles, Tiles


class Layer(nn.Module):
    """One post-LN transformer layer (Vaswani et al. 2017; Devlin et al. 2019, section 3).

    The compiled form reads the submodules' parameters and calls none of them: hooks on them are
    called in the plain form only.
    """

    def __init__(self, config: ModelConfig, shared: Shared):
        super().__init__()
        self.attention = Attention(config, shared)
        self.attention_norm = LayerNorm(config.hidden, config.norm_eps)
        self.expand = Linear(config.hidden, config.intermediate)
        self.contract = Linear(config.intermediate, config.hidden)
        self.norm = LayerNorm(config.hidden, config.norm_eps)
        self._shared, self._probability = shared, config.dropout

    def forward(
        self, x_TH: Tensor, layout: Tiles | VarlenLayout, weights: list[Tensor] | None = None
    ) -> Tensor:
        """[T, H] -> [T, H]."""
        if weights is None and self._shared.compiles(x_TH, layout):
            return self._compiled(x_TH, layout, None)
        return self._transform(x_TH, self.attention(x_TH, layout, weights))

    def forward_at(self, x_TH: Tensor, at: Tensor, layout: QueryTiles | VarlenLayout) -> Tensor:
        """The outputs at N selected positions only: [T, H] -> [N, H].

        Keys and values are computed for all tokens, everything else for the selected ones.

        Args:
            x_TH: hidden states.
            at: int64 [N]; the selected positions.
            layout: queries at these positions.
        """
        if self._shared.compiles(x_TH, layout):
            return self._compiled(x_TH, layout, at)
        x_NH = x_TH.index_select(0, at)
        return self._transform(x_NH, self.attention.forward_at(x_NH, x_TH, layout))

    def _transform(self, x: Tensor, mixed: Tensor) -> Tensor:
        dropout, p = self._shared.dropout, self._probability
        x = self.attention_norm(x + dropout(mixed, p))
        out: Tensor = self.norm(x + dropout(self.contract(F.gelu(self.expand(x))), p))
        return out

    def _compiled(
        self, x_TH: Tensor, layout: Tiles | QueryTiles | VarlenLayout, at: Tensor | None
    ) -> Tensor:
        shared, attention = self._shared, self.attention
        assert not isinstance(layout, VarlenLayout)
        plan = attention.plan(layout)
        draws = tuple(shared.dropout.draw(self._probability) for _ in range(2))
        run = LayerRun(
            *(shared.pool, shared.rounded, shared.transposes, plan, at, self.norm.eps, draws),
            shared.recomputes,
        )
        linears = (attention.qkv, attention.output, self.expand, self.contract)
        modules = (*linears, self.attention_norm, self.norm)
        return compiled_layer(run, x_TH, [p for m in modules for p in (m.weight, m.bias)])


class Embedding(nn.Embedding):
    """An embedding table that starts at zero; ``init_weights`` initialises it.

    The library's own normal initialisation, on the meta device, imports its compiler, which takes
    3 seconds per process.

    Attributes:
        row_of_id: int64 [V]; the row of each id while the weight holds only some of the rows
            (:class:`bothways.training.frozen_rows.PrunedEmbedding`); None: all of them.
    """

    row_of_id: Tensor | None = None

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of the weight that hold some ids, int64 [...]."""
        return ids if self.row_of_id is None else self.row_of_id.index_select(0, ids)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [...] -> [..., H]."""
        return F.embedding(self.rows(ids), self.weight)

    def reset_parameters(self) -> None:
        """All zeros."""
        nn.init.zeros_(self.weight)


class Embeddings(nn.Module):
    """Token + learned position + segment embeddings, normalised (Devlin et al. 2019, figure 2)."""

    def __init__(self, config: ModelConfig, shared: Shared):
        super().__init__()
        self.tokens = Embedding(config.padded_vocab, config.hidden)
        self.positions = Embedding(config.positions, config.hidden)
        self.segments = Embedding(config.segments, config.hidden)
        self.norm = LayerNorm(config.hidden, config.norm_eps)
        self._shared, self._probability = shared, config.dropout
        self._table = compiled.Table()

    def forward(self, inputs: Inputs, dtype: torch.dtype) -> Tensor:
        """A flat batch -> [T, H] in ``dtype``."""
        summed = (
            self._token_rows(inputs.tokens, dtype)
            + self.positions(inputs.positions)
            + self.segments(inputs.segments)
        )
        x_TH: Tensor = self.norm(summed.to(dtype))
        dropout, p = self._shared.dropout, self._probability
        if self._shared.compiles(x_TH):
            return compiled.dropped(x_TH, dropout.draw(p))
        return dropout.forward(x_TH, p)

    def output_weight(self, dtype: torch.dtype) -> Tensor:
        """The token embeddings as the weight of an output layer, [V padded, H] in this dtype."""
        tied = self._table.tied(self.tokens.weight, dtype) if torch.is_grad_enabled() else None
        return self.tokens.weight.to(dtype) if tied is None else tied

    def _token_rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """int64 [T] -> [T, H], in the parameter's dtype."""
        shared, weight = self._shared, self.tokens.weight
        if not shared.compiles(weight):
            rows: Tensor = self.tokens(ids)
            return rows
        copy = shared.rounded.of(weight, dtype)
        return self._table.rows(weight, copy, self.tokens.rows(ids), shared.pool)
