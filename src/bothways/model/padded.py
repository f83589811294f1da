"""The padded form: rows of equal length and a mask, in library operations alone.

It holds the same parameters as the model, computes what the flat form computes in evaluation, and
branches on nothing in the data, so that ``torch.export`` and ``torch.compile`` accept it.

B rows, L their length, H hidden size, A heads, D = H / A, V vocabulary, C outputs of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bothways.errors import ModelError
from bothways.families.heads import HEADS
from bothways.model.heads import MaskedLMHead, OutputHead
from bothways.model.layers import Layer
from bothways.model.model import HIDDEN, EncoderModel
from bothways.model.rotary import Rotation
from bothways.model.shared import activate


class PaddedForm(nn.Module):
    """A model as a function of padded rows.

    Args:
        model: in fp32; its parameters are used, not copied.

    Raises:
        ModelError: a BiLSTM, which has no padded form.
    """

    def __init__(self, model: EncoderModel):
        super().__init__()
        if model.lstm is not None:
            raise ModelError(
                "this model has a BiLSTM under its task head, which has no padded form; fine-tune "
                "without --lstm to export it."
            )
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> dict[str, Tensor]:
        """The outputs by name.

        Args:
            input_ids: int64 [B, L].
            attention_mask: int64 [B, L]; 1 for tokens, 0 for padding, on the right.
            token_type_ids: int64 [B, L]; without effect where the family has no segments.

        Returns:
            :data:`HIDDEN` [B, L, H], and for each head the name that
            :data:`bothways.families.heads.HEADS` gives it: [B, L, V] for masked tokens, [B, C] for
            heads on sequences, [B, L, C] for heads on tokens. Values at padding mean nothing.
        """
        model, config = self.model, self.model.config
        real_BL = attention_mask.bool()
        x_BLH = self._embed(input_ids, token_type_ids)
        for number in range(config.layers):
            layer = model.encoder.layers[config.group_of(number)]
            assert isinstance(layer, Layer)
            x_BLH = self._layer(layer, x_BLH, real_BL, local=config.is_local(number))
        if model.encoder.final_norm is not None:
            x_BLH = model.encoder.final_norm(x_BLH)
        outputs = {HIDDEN: x_BLH}
        for name, head in model.heads.items():
            if isinstance(head, MaskedLMHead):
                logits: Tensor = head(x_BLH, model.embedding_VH)
                outputs[name] = logits[..., : config.vocab_size]
                continue
            assert isinstance(head, OutputHead)
            read = x_BLH
            if HEADS[name].reads == "sequence":
                read = self._sequence(x_BLH, real_BL)
            outputs[name] = head(model.encoder.pool(read) if head.form.pooled else read)
        return outputs

    def _embed(self, ids_BL: Tensor, segments_BL: Tensor) -> Tensor:
        """[B, L] -> [B, L, H]."""
        embeddings = self.model.encoder.embeddings
        x_BLE: Tensor = embeddings.tokens(ids_BL)
        if embeddings.positions is not None:
            x_BLE = x_BLE + embeddings.positions(self._table_rows(ids_BL))
        if embeddings.segments is not None:
            x_BLE = x_BLE + embeddings.segments(segments_BL)
        if embeddings.norm is not None:
            x_BLE = embeddings.norm(x_BLE)
        return x_BLE if embeddings.project is None else embeddings.project(x_BLE)

    def _table_rows(self, ids_BL: Tensor) -> Tensor:
        """As :meth:`bothways.batch.Batch.table_rows`, [L] or [B, L]."""
        offset = self.model.config.place_offset
        if not offset:
            return torch.arange(ids_BL.shape[1], device=ids_BL.device)
        real_BL = ids_BL != offset - 1
        return real_BL.cumsum(1) * real_BL + offset - 1

    def _layer(self, layer: Layer, x_BLH: Tensor, real_BL: Tensor, *, local: bool) -> Tensor:
        pre = self.model.config.norm_at == "pre"
        mixed = self._attend(
            layer, layer.attention_norm(x_BLH) if pre else x_BLH, real_BL, local=local
        )
        x_BLH = x_BLH + mixed
        x_BLH = x_BLH if pre else layer.attention_norm(x_BLH)
        inner = layer.expand(layer.norm(x_BLH) if pre else x_BLH)
        if self.model.config.gated:
            inner, gate = inner.chunk(2, -1)
            inner = activate(self.model.config.activation, inner) * gate
        else:
            inner = activate(self.model.config.activation, inner)
        x_BLH = x_BLH + layer.contract(inner)
        return x_BLH if pre else layer.norm(x_BLH)

    def _attend(self, layer: Layer, x_BLH: Tensor, real_BL: Tensor, *, local: bool) -> Tensor:
        config = self.model.config
        qkv = layer.attention.qkv(x_BLH).unflatten(-1, (3, config.heads, config.head_size))
        q, k, v = qkv.unbind(2)  # [B, L, A, D]
        places_L = torch.arange(x_BLH.shape[1], device=x_BLH.device)
        if config.place == "rotary":
            rotation = Rotation.of(places_L, config, x_BLH.dtype, local=local)
            q, k = rotation(q), rotation(k)
        distance_LL = places_L[None] - places_L[:, None]
        hidden = ~real_BL[:, None, None]
        if config.left_to_right:
            hidden = hidden | (distance_LL > 0)
        if local:
            hidden = hidden | (distance_LL.abs() > config.window)
        scores_BALL = torch.einsum("blad,bmad->balm", q * config.head_size**-0.5, k)
        # A row of padding alone would be hidden everywhere: a large number keeps it finite.
        lowest = torch.finfo(scores_BALL.dtype).min
        weights = scores_BALL.masked_fill(hidden, lowest).softmax(-1)
        context = torch.einsum("balm,bmad->blad", weights, v).flatten(2)
        mixed: Tensor = layer.attention.output(context)
        return mixed

    def _sequence(self, x_BLH: Tensor, real_BL: Tensor) -> Tensor:
        """What stands for each row, [B, H]: its first token, its last, or the mean of all."""
        if self.model.config.left_to_right:
            last = real_BL.sum(1) - 1
            return x_BLH[torch.arange(len(x_BLH), device=last.device), last]
        if self.model.config.pooling == "mean":
            share = real_BL.to(x_BLH.dtype)[..., None]
            return (x_BLH * share).sum(1) / share.sum(1)
        return x_BLH[:, 0]
