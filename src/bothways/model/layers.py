"""The layers of the encoder, on flat batches.

B sequences, T tokens, N selected positions, H hidden size, I feed-forward size.

Every layer computes in the dtype of its input; parameters stay fp32 and are cast where they are
used, so the precision of a forward pass is decided once, at the embeddings.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bothways.families.config import ModelConfig
from bothways.model.attention import Attention
from bothways.model.batch import Inputs
from bothways.model.kernels import compiled
from bothways.model.kernels.layer import LayerRun, compiled_layer
from bothways.model.kernels.varlen import VarlenLayout
from bothways.model.shared import Embedding, Linear, Shared, activate, make_norm
from bothways.model.tiles import QueryTiles, Tiles


class Layer(nn.Module):
    """One transformer layer (Vaswani et al. 2017; Devlin et al. 2019, section 3).

    The compiled form reads the submodules' parameters and calls none of them: hooks on them are
    called in the plain form only.

    Args:
        config: the shape of the encoder.
        shared: its dropout and kernels.
        number: which of the layers with weights of their own it is.
    """

    def __init__(self, config: ModelConfig, shared: Shared, number: int = 0):
        super().__init__()
        H, I, biases = config.hidden, config.intermediate, config.biases  # noqa: E741
        self.attention = Attention(config, shared)
        pre = config.norm_at == "pre"
        self.attention_norm: nn.Module = (
            nn.Identity() if pre and not config.first_norm and number == 0 else make_norm(config)
        )
        self.expand = Linear(H, sum(config.expand_rows), bias=biases)
        self.contract = Linear(I, H, bias=biases)
        self.norm = make_norm(config)
        self._shared, self._probability = shared, config.dropout
        self._pre, self._gated, self._activation = pre, config.gated, config.activation
        self._covered = compiled.why_not_covered(config) is None

    def forward(
        self, x_TH: Tensor, layout: Tiles | VarlenLayout, weights: list[Tensor] | None = None
    ) -> Tensor:
        """[T, H] -> [T, H]."""
        if weights is None and self.compiles(x_TH, layout):
            return self._compiled(x_TH, layout, None)
        inner_TH = self.attention_norm(x_TH) if self._pre else x_TH
        return self._transform(x_TH, self.attention(inner_TH, layout, weights))

    def forward_at(self, x_TH: Tensor, at: Tensor, layout: QueryTiles | VarlenLayout) -> Tensor:
        """The outputs at N selected positions only: [T, H] -> [N, H].

        Keys and values are computed for all tokens, everything else for the selected ones.

        Args:
            x_TH: hidden states.
            at: int64 [N]; the selected positions.
            layout: queries at these positions.
        """
        if self.compiles(x_TH, layout):
            return self._compiled(x_TH, layout, at)
        x_NH = x_TH.index_select(0, at)
        if self._pre:
            x_TH = self.attention_norm(x_TH)
        inner_NH = x_TH.index_select(0, at) if self._pre else x_NH
        return self._transform(x_NH, self.attention.forward_at(inner_NH, x_TH, layout))

    def compiles(self, x_TH: Tensor, layout: object) -> bool:
        """Whether the compiled form computes this."""
        return self._covered and self._shared.compiles(x_TH, layout)

    def _transform(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of the layer, from the input and what attention makes of it."""
        dropout, p = self._shared.dropout, self._probability
        x = x + dropout(mixed, p)
        x = x if self._pre else self.attention_norm(x)
        inner = self._feed_forward(self.norm(x) if self._pre else x)
        out: Tensor = x + dropout(inner, p)
        return out if self._pre else self.norm(out)

    def _feed_forward(self, x: Tensor) -> Tensor:
        inner = self.expand(x)
        if self._gated:
            inner, gate = inner.chunk(2, -1)
            inner = activate(self._activation, inner) * gate
        else:
            inner = activate(self._activation, inner)
        out: Tensor = self.contract(inner)
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
            self._activation,
        )
        linears = (attention.qkv, attention.output, self.expand, self.contract)
        modules = (*linears, self.attention_norm, self.norm)
        parameters = [getattr(m, kind) for m in modules for kind in ("weight", "bias")]
        return compiled_layer(run, x_TH, parameters)


class Embeddings(nn.Module):
    """Token embeddings, and where the shape has them: learned positions, segments, a norm (Devlin
    et al. 2019, figure 2), a projection to the layers' width (Lan et al. 2020, 3.1).

    E is the embeddings' width, which is the hidden size H without a projection.
    """

    def __init__(self, config: ModelConfig, shared: Shared):
        super().__init__()
        E, rows, segments = config.embedding_width, config.place_rows, config.segments
        self.tokens = Embedding(config.padded_vocab, E)
        self.positions = Embedding(rows, E) if rows else None
        self.segments = Embedding(segments, E) if segments else None
        self.norm = make_norm(config, E) if config.embedding_norm else None
        self.project = Linear(E, config.hidden) if config.projects else None
        self._shared, self._probability = shared, config.dropout
        self._offset = config.place_offset
        self._table = compiled.Table()

    def forward(self, inputs: Inputs, dtype: torch.dtype) -> Tensor:
        """A flat batch -> [T, H] in ``dtype``."""
        summed = inputs.embedded
        if summed is None:
            summed = self._token_rows(inputs.tokens, dtype)
        if self.positions is not None:
            summed = summed + self.positions(inputs.table_rows(self._offset))
        if self.segments is not None:
            summed = summed + self.segments(inputs.segments)
        x_TE = summed.to(dtype)
        if self.norm is not None:
            x_TE = self.norm(x_TE)
        dropout, p = self._shared.dropout, self._probability
        if self._shared.compiles(x_TE):
            x_TE = compiled.dropped(x_TE, dropout.draw(p))
        else:
            x_TE = dropout.forward(x_TE, p)
        return x_TE if self.project is None else self.project(x_TE)

    def output_weight(self, dtype: torch.dtype) -> Tensor:
        """The token embeddings as the weight of an output layer, [V padded, E] in this dtype."""
        tied = self._table.tied(self.tokens.weight, dtype) if torch.is_grad_enabled() else None
        return self.tokens.weight.to(dtype) if tied is None else tied

    def _token_rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """int64 [T] -> [T, E], in the parameter's dtype."""
        shared, weight = self._shared, self.tokens.weight
        if not shared.compiles(weight):
            rows: Tensor = self.tokens(ids)
            return rows
        copy = shared.rounded.of(weight, dtype)
        return self._table.rows(weight, copy, self.tokens.rows(ids), shared.pool)
