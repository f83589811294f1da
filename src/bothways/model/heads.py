"""The heads on the encoder: masked LM, next sentence, and the output layers of tasks.

B sequences, T tokens, M masked positions, R rows of a task head, H hidden size, V vocabulary,
C outputs.
Losses are sums: the caller divides by the step's global counts, not by those of a micro-batch.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bothways.families.config import ModelConfig
from bothways.model.shared import LayerNorm, Linear, Shared


class MaskedLMHead(nn.Module):
    """Dense, GELU, LayerNorm, then the tied output embedding (Devlin et al. 2019, 3.1, task 1)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.dense = Linear(config.hidden, config.hidden)
        self.norm = LayerNorm(config.hidden, config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x_MH: Tensor, embedding_VH: Tensor) -> Tensor:
        """Logits over the padded vocabulary, [M, V padded]; padding rows are -inf."""
        return F.linear(*self.output(x_MH, embedding_VH))

    def output(self, x_MH: Tensor, embedding_VH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output layer's input, weight and bias: [M, H], [V padded, H], [V padded]."""
        extra = len(embedding_VH) - len(self.bias)
        bias = F.pad(self.bias, (0, extra), value=-math.inf)
        return self.transform(x_MH), embedding_VH.to(x_MH.dtype), bias.to(x_MH.dtype)

    def transform(self, x_MH: Tensor) -> Tensor:
        """The output layer's input, [M, H] -> [M, H]."""
        transformed: Tensor = self.norm(F.gelu(self.dense(x_MH)))
        return transformed


class NextSentenceHead(nn.Module):
    """Two classes on the pooled [CLS]: 0 = B follows A, 1 = B is random (section 3.1, task 2)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.output = Linear(config.hidden, 2)

    def forward(self, pooled_BH: Tensor) -> Tensor:
        """[B, H] -> logits [B, 2], in fp32 whatever the dtype of the layers."""
        logits: Tensor = self.output(pooled_BH.float())
        return logits


class ClassifierHead(nn.Module):
    """Dropout and one output layer on the pooled [CLS] (section 4.1), or on the final states of a
    BiLSTM. A single output is a regression."""

    def __init__(self, width: int, classes: int, shared: Shared, *, dropout: float):
        super().__init__()
        self.output = Linear(width, classes)
        self._dropout, self._probability = shared.dropout, dropout

    def forward(self, pooled_BH: Tensor) -> Tensor:
        """[B, width] -> logits [B, C], in fp32 whatever the dtype of the layers."""
        logits: Tensor = self.output(self._dropout(pooled_BH.float(), self._probability))
        return logits


class TokenHead(nn.Module):
    """One output layer on single tokens: tags (with dropout, section 5.3) or the start and end of
    an answer (without, section 4.2)."""

    def __init__(self, width: int, outputs: int, shared: Shared, *, dropout: float):
        super().__init__()
        self.output = Linear(width, outputs)
        self._dropout, self._probability = shared.dropout, dropout

    def forward(self, x_RH: Tensor) -> Tensor:
        """[R, width] -> [R, C], in fp32 whatever the dtype of the layers."""
        logits: Tensor = self.output(self._dropout(x_RH.float(), self._probability))
        return logits
