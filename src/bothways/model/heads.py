"""What is put on the encoder: masked LM, next sentence, classification and regression.

B sequences, T tokens, M masked positions, H hidden size, V vocabulary, C classes.
Losses are sums: the caller divides by the global counts of the step, never by a part's own.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bothways.config import ModelConfig
from bothways.model.batch import IGNORE, Inputs, MaskedTargets
from bothways.model.encoder import Encoder, init_weights
from bothways.model.layers import KeyedDropout, LayerNorm, Linear
from bothways.randomness import Purpose


class MaskedLMHead(nn.Module):
    """Dense, GELU, LayerNorm, then the tied output embedding (Devlin et al. 2019, 3.1, task 1)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.dense = Linear(config.hidden, config.hidden)
        self.norm = LayerNorm(config.hidden, config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x_MH: Tensor, embedding_VH: Tensor) -> Tensor:
        """Logits over the padded vocabulary, [M, V padded]; padding rows are -inf."""
        transformed = self.norm(F.gelu(self.dense(x_MH)))
        extra = len(embedding_VH) - len(self.bias)
        bias = F.pad(self.bias, (0, extra), value=-math.inf)
        return F.linear(transformed, embedding_VH.to(x_MH.dtype), bias.to(x_MH.dtype))


class NextSentenceHead(nn.Module):
    """Two classes on the pooled [CLS]: 0 = B follows A, 1 = B is random (section 3.1, task 2)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.output = Linear(config.hidden, 2)

    def forward(self, pooled_BH: Tensor) -> Tensor:
        """[B, H] -> logits [B, 2], in fp32 whatever the layers compute in."""
        logits: Tensor = self.output(pooled_BH.float())
        return logits


class ClassifierHead(nn.Module):
    """Dropout and one output layer on the pooled [CLS] (section 4.1); one class is regression."""

    def __init__(self, config: ModelConfig, classes: int, dropout: KeyedDropout):
        super().__init__()
        self.output = Linear(config.hidden, classes)
        self._dropout, self._probability = dropout, config.dropout

    def forward(self, pooled_BH: Tensor) -> Tensor:
        """[B, H] -> logits [B, C], in fp32 whatever the layers compute in."""
        logits: Tensor = self.output(self._dropout(pooled_BH.float(), self._probability))
        return logits


class Bert(nn.Module):
    """An encoder and the heads it has; what a model folder holds.

    Args:
        config: the encoder's shape.
        pretraining: with the masked-LM and next-sentence heads.
        classes: outputs of a classification or regression head; 0 for none.
        seed: of the new weights.
    """

    def __init__(
        self, config: ModelConfig, *, pretraining: bool = False, classes: int = 0, seed: int = 0
    ):
        super().__init__()
        self.config = config
        self.dropout = KeyedDropout()
        self.encoder = Encoder(config, self.dropout)
        init_weights(self.encoder, config, seed=seed, purpose=Purpose.WEIGHTS)
        self.masked_lm = MaskedLMHead(config) if pretraining else None
        self.next_sentence = NextSentenceHead(config) if pretraining else None
        self.classifier = ClassifierHead(config, classes, self.dropout) if classes else None
        for index, head in enumerate((self.masked_lm, self.next_sentence, self.classifier)):
            if head is not None:
                init_weights(head, config, seed=seed, purpose=Purpose.HEAD, index=index)

    @property
    def embedding_VH(self) -> Tensor:  # noqa: N802
        """The token embedding, tied to the masked-LM output."""
        return self.encoder.embeddings.tokens.weight

    def masked_lm_logits(self, x_TH: Tensor, at: Tensor) -> Tensor:
        """Logits [M, V padded] at the given flat positions alone."""
        if self.masked_lm is None:
            raise ValueError("this model has no masked-LM head")
        logits: Tensor = self.masked_lm(x_TH.index_select(0, at), self.embedding_VH)
        return logits

    def next_sentence_logits(self, x_TH: Tensor, inputs: Inputs) -> Tensor:
        """Logits [B, 2]; column 0 = B follows A."""
        if self.next_sentence is None:
            raise ValueError("this model has no next-sentence head")
        logits: Tensor = self.next_sentence(self.encoder.pool(x_TH, inputs))
        return logits

    def class_logits(self, x_TH: Tensor, inputs: Inputs) -> Tensor:
        """Logits [B, C] of the task head."""
        if self.classifier is None:
            raise ValueError("this model has no classification head")
        logits: Tensor = self.classifier(self.encoder.pool(x_TH, inputs))
        return logits


def masked_lm_loss(logits_MV: Tensor, targets: MaskedTargets) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy over the real targets, and how many were predicted right."""
    loss = F.cross_entropy(logits_MV.float(), targets.ids, ignore_index=IGNORE, reduction="sum")
    return loss, (logits_MV.detach().argmax(-1) == targets.ids).sum()


def class_loss(logits_BC: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy over the sequences, and how many were predicted right."""
    loss = F.cross_entropy(logits_BC.float(), labels, reduction="sum")
    return loss, (logits_BC.detach().argmax(-1) == labels).sum()


def regression_loss(logits_B1: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Summed squared error, and the summed absolute error."""
    difference = logits_B1.float().squeeze(-1) - scores
    return (difference**2).sum(), difference.detach().abs().sum()
