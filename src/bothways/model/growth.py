"""Extending a model to a larger vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bothways.model.bert import Bert
from bothways.model.folder import empty_model

_TOKENS, _BIAS = "encoder.embeddings.tokens.weight", "masked_lm.bias"


@torch.no_grad()
def grow_vocabulary(model: Bert, parts: Sequence[Sequence[int]]) -> Bert:
    """A copy of a model with more rows in its token embedding and masked-LM bias.

    All other weights are unchanged, and so are the hidden states of texts made of old pieces; the
    masked LM has more pieces to choose from.

    Args:
        model: with a vocabulary of V pieces.
        parts: for each new piece, the old ones; its row becomes their mean. Never empty.
    """
    old = model.config.vocab_size
    config = replace(model.config, vocab_size=old + len(parts))
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    rows = _with_means(state[_TOKENS][:old], parts)
    padding = rows.new_zeros(config.padded_vocab - config.vocab_size, config.hidden)
    state[_TOKENS] = torch.cat([rows, padding])
    if _BIAS in state:
        state[_BIAS] = _with_means(state[_BIAS], parts)
    grown = empty_model(config, state)
    grown.load_state_dict(state, assign=True)
    return grown.train(model.training)


def _with_means(rows: Tensor, parts: Sequence[Sequence[int]]) -> Tensor:
    means = [rows[torch.tensor(part)].float().mean(0).to(rows.dtype) for part in parts]
    return torch.cat([rows, torch.stack(means)]) if means else rows
