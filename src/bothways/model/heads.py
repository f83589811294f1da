"""The two modules that compute all heads of :mod:`bothways.families.heads`.

B sequences, T tokens, M masked positions, R rows of a task head, H hidden size, E width of the
embeddings, V vocabulary, C outputs.
Losses are sums: the caller divides by the step's global counts, not by those of a micro-batch.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bothways.families import HeadForm, ModelConfig
from bothways.families.heads import MASKED_LM, activation_of, form_of
from bothways.model.shared import Linear, Shared, activate, make_norm


class MaskedLMHead(nn.Module):
    """The output over the vocabulary, of the embeddings' width, with the layers that the family has
    before it: in BERT dense, activation and norm (Devlin et al. 2019, 3.1, task 1).

    Attributes:
        decoder: the output's own weight; None where it is the token table.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        form, E = form_of(MASKED_LM, config), config.embedding_width
        self.dense = Linear(config.hidden, E, bias=config.head_biases) if form.dense else None
        self.norm = make_norm(config, E) if form.norm else None
        self.decoder = None if config.tied else Linear(E, config.padded_vocab, bias=False)
        biased = config.output_bias and "bias" in form.names
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if biased else None
        self._activation, self._vocabulary = activation_of(form, config), config.vocab_size

    def forward(self, x_MH: Tensor, embedding_VE: Tensor) -> Tensor:
        """Logits over the padded vocabulary, [M, V padded]; padding rows are -inf."""
        return F.linear(*self.output(x_MH, embedding_VE))

    def output(self, x_MH: Tensor, embedding_VE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output layer's input, weight and bias: [M, E], [V padded, E], [V padded]."""
        embedding_VE = embedding_VE if self.decoder is None else self.decoder.weight
        extra = len(embedding_VE) - self._vocabulary
        bias = F.pad(self.bias_V(x_MH.device), (0, extra), value=-math.inf)
        return self.transform(x_MH), embedding_VE.to(x_MH.dtype), bias.to(x_MH.dtype)

    def bias_V(self, device: torch.device) -> Tensor:  # noqa: N802
        """The output's bias, [V]; zeros without one."""
        return torch.zeros(self._vocabulary, device=device) if self.bias is None else self.bias

    def transform(self, x_MH: Tensor) -> Tensor:
        """The output layer's input, [M, H] -> [M, E]."""
        if self.dense is not None:
            x_MH = activate(self._activation, self.dense(x_MH))
        return x_MH if self.norm is None else self.norm(x_MH)


class OutputHead(nn.Module):
    """An output layer on vectors of sequences or tokens, with the layers that the family has before
    it: dropout, a dense layer, its activation and norm, dropout.

    Args:
        form: which of them.
        width: of the vectors.
        outputs: C.
        config: of the encoder.
        shared: provides the dropout.

    Attributes:
        form: which layers there are.
    """

    def __init__(
        self, form: HeadForm, width: int, outputs: int, config: ModelConfig, shared: Shared
    ):
        super().__init__()
        self.form = form
        biases = config.head_biases
        self.dense = Linear(width, width, bias=biases) if form.dense else None
        self.norm = make_norm(config, width) if form.norm else None
        self.output = Linear(width, outputs)
        self._activation = activation_of(form, config)
        probabilities = {"head": config.dropout_of_heads, "hidden": config.dropout, "": 0.0}
        self._dropout, self._probability = shared.dropout, probabilities[form.dropout]
        self._first_probability = probabilities[form.first_dropout]

    def forward(self, x_RH: Tensor) -> Tensor:
        """[R, width] -> [R, C], in fp32 whatever the dtype of the layers (fp64 stays)."""
        logits: Tensor = self.output(self._dropout(self.transformed(x_RH), self._probability))
        return logits

    def transformed(self, x_RH: Tensor) -> Tensor:
        """The output layer's input, before dropout: [R, width], in fp32 (fp64 stays)."""
        x_RH = x_RH if x_RH.dtype == torch.float64 else x_RH.float()
        if self.dense is not None:
            x_RH = self._dropout(x_RH, self._first_probability)
            x_RH = activate(self._activation, self.dense(x_RH))
        if self.norm is not None:
            x_RH = self.norm(x_RH)
        return x_RH
