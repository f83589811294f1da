"""BERT: the encoder with the heads of pre-training, or with a task's.

B sequences, T tokens, M masked positions, R rows of a task head, H hidden size, V vocabulary,
C outputs.
Losses are sums: the caller divides by the step's global counts, not by those of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from bothways.families.config import ModelConfig
from bothways.model.batch import Inputs, SelectedPositions
from bothways.model.encoder import Encoder, init_weights
from bothways.model.heads import ClassifierHead, MaskedLMHead, NextSentenceHead, TokenHead
from bothways.model.kernels import compiled
from bothways.model.losses import fused_cross_entropy, masked_lm_loss
from bothways.model.recurrent import BiLSTM, final_states
from bothways.model.shared import Shared
from bothways.randomness import Purpose

HEADS = ("masked_lm", "next_sentence", "classifier", "tagger", "span")
"""The attributes of a model that hold its heads; a head's place here keys its new weights."""

P = ParamSpec("P")
R = TypeVar("R")


class Bert(nn.Module):
    """An encoder with its heads, as saved in a model folder.

    Args:
        config: the encoder's shape.
        masked_lm: with the head that predicts tokens.
        next_sentence: with the head that judges the second segment.
        classes: outputs of a head on the pooled [CLS] (classes; 1 for a score, or for the score of
            each choice); 0 for none.
        tags: outputs of a head on single tokens; 0 for none.
        spans: with a head for the start and the end of an answer.
        lstm: units of each direction of a BiLSTM between the encoder and the task head, instead of
            the pooler (section 5.1); 0 for none.
        seed: seed of the initial weights.

    Attributes:
        shared: the dropout and the choice of kernels.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        masked_lm: bool = False,
        next_sentence: bool = False,
        classes: int = 0,
        tags: int = 0,
        spans: bool = False,
        lstm: int = 0,
        seed: int = 0,
    ):
        super().__init__()
        self.config = config
        self.shared = Shared()
        self.encoder = Encoder(config, self.shared)
        init_weights(self.encoder, config, seed=seed, purpose=Purpose.WEIGHTS)
        self.masked_lm = MaskedLMHead(config) if masked_lm else None
        self.next_sentence = NextSentenceHead(config) if next_sentence else None
        H, shared = config.hidden, self.shared
        self.lstm = BiLSTM(H, lstm, 1, dropout=0.0, shared=shared, seed=seed) if lstm else None
        width, p = 2 * lstm or H, config.dropout
        self.classifier = ClassifierHead(width, classes, shared, dropout=p) if classes else None
        self.tagger = TokenHead(width, tags, shared, dropout=p) if tags else None
        self.span = TokenHead(width, 2, shared, dropout=0.0) if spans else None
        for name in HEADS:
            if getattr(self, name) is not None:
                self._init_head(name, seed)

    def add_masked_lm(self, seed: int) -> None:
        """Give the model a new masked-LM head, as a new model with this seed has it."""
        self.masked_lm = MaskedLMHead(self.config)
        self._init_head("masked_lm", seed)

    def add_next_sentence(self, seed: int) -> None:
        """Give the model a new next-sentence head, as a new model with this seed has it."""
        self.next_sentence = NextSentenceHead(self.config)
        self._init_head("next_sentence", seed)

    def _init_head(self, name: str, seed: int) -> None:
        index = HEADS.index(name)
        init_weights(getattr(self, name), self.config, seed=seed, purpose=Purpose.HEAD, index=index)

    def forward(
        self, compute: Callable[Concatenate[Bert, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Returns ``compute(self, *args, **kwargs)``.

        Training calls ``model(loss, batch, dtype)`` rather than ``loss(model, batch, dtype)``
        because FSDP gathers sharded weights only around a module's ``forward``. A loss uses the
        encoder and the heads one after the other, so all of it has to run inside.
        """
        return compute(self, *args, **kwargs)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.embedding_VH.device

    @property
    def embedding_VH(self) -> Tensor:  # noqa: N802
        """The token embedding, tied to the masked-LM output."""
        return self.encoder.embeddings.tokens.weight

    def masked_lm_logits(self, x_MH: Tensor) -> Tensor:
        """Logits [M, V padded] from the hidden states of masked tokens."""
        logits: Tensor = self._masked_lm(x_MH, self.embedding_VH)
        return logits

    def masked_lm_loss(self, x_MH: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy and number of correct predictions, as :func:`masked_lm_loss`."""
        if not self.shared.fast:
            return masked_lm_loss(self.masked_lm_logits(x_MH), ids)
        if self.shared.compiles(x_MH):
            x_MH, head = self._masked_lm.transform(x_MH), self._masked_lm
            weight_VH = self.encoder.embeddings.output_weight(x_MH.dtype)
            return compiled.cross_entropy(x_MH, weight_VH, head.bias, ids, self.shared.pool)
        return fused_cross_entropy(*self._masked_lm.output(x_MH, self.embedding_VH), ids)

    @property
    def _masked_lm(self) -> MaskedLMHead:
        if self.masked_lm is None:
            raise ValueError("this model has no masked-LM head")
        return self.masked_lm

    def next_sentence_logits(self, x_BH: Tensor) -> Tensor:
        """Logits [B, 2] from the hidden states of each [CLS]; column 0 = B follows A."""
        if self.next_sentence is None:
            raise ValueError("this model has no next-sentence head")
        logits: Tensor = self.next_sentence(self.encoder.pool(x_BH))
        return logits

    def class_logits(self, x_BH: Tensor) -> Tensor:
        """Logits [B, C] of the classifier from :meth:`sequence_vectors`."""
        if self.classifier is None:
            raise ValueError("this model has no classification head")
        pooled = self.encoder.pool(x_BH) if self.lstm is None else x_BH
        logits: Tensor = self.classifier(pooled)
        return logits

    def task_vectors(
        self,
        inputs: Inputs,
        at: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        selected: SelectedPositions | None = None,
    ) -> Tensor:
        """The vectors that the task head takes.

        Args:
            inputs: a flat batch.
            at: int64 [R]; flat positions. For a classifier, the first token of every sequence.
            dtype: arithmetic of the encoder.
            selected: ``at`` alone, if already computed: on a GPU that avoids waiting for ``at``.

        Returns:
            :meth:`sequence_vectors` for a classifier, :meth:`token_vectors` for other heads.

        Raises:
            LengthError, ModelError: as :meth:`Encoder.hidden_states`.
        """
        if self.classifier is not None:
            assert len(at) == inputs.sequences, "a classifier takes one vector per sequence"
            return self.sequence_vectors(inputs, dtype=dtype, first_tokens=selected)
        return self.token_vectors(inputs, at, dtype=dtype, selected=selected)

    def sequence_vectors(
        self,
        inputs: Inputs,
        *,
        dtype: torch.dtype = torch.float32,
        first_tokens: SelectedPositions | None = None,
    ) -> Tensor:
        """One vector per sequence: [B, H], or with a BiLSTM [B, 2 * units] in fp32.

        With a BiLSTM it is the final state of both directions. Otherwise it is the first token's
        hidden state or, left to right, the last token's, because the first token sees no other
        (as in Radford et al. 2018, 3.2).
        """
        if self.lstm is not None:
            return final_states(self._lstm_outputs(inputs, dtype), inputs)
        if self.config.left_to_right:
            x_TH: Tensor = self.encoder(inputs, dtype=dtype)
            return x_TH.index_select(0, inputs.lasts)
        first_tokens = first_tokens or SelectedPositions.of(inputs, inputs.starts)
        (x_BH,) = self.encoder.hidden_at(inputs, first_tokens, dtype=dtype)
        return x_BH

    def token_vectors(
        self,
        inputs: Inputs,
        at: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        selected: SelectedPositions | None = None,
    ) -> Tensor:
        """One vector per flat position in ``at``, [R]: [R, H], or with a BiLSTM [R, 2 * units] in
        fp32."""
        if self.lstm is not None:
            return self._lstm_outputs(inputs, dtype)[at]
        if len(at) == int(inputs.bounds[-1]):  # every token, in order: nothing to select
            every: Tensor = self.encoder(inputs, dtype=dtype)[: len(at)]
            return every
        selected = selected or SelectedPositions.of(inputs, at)
        (x_RH,) = self.encoder.hidden_at(inputs, selected, dtype=dtype)
        return x_RH

    def _lstm_outputs(self, inputs: Inputs, dtype: torch.dtype) -> Tensor:
        """The BiLSTM's outputs for all tokens except the tail, [T, 2 * units]."""
        assert self.lstm is not None
        x_TH = self.encoder(inputs, dtype=dtype)[: int(inputs.bounds[-1])]
        outputs: Tensor = self.lstm(x_TH.float(), inputs.lengths.tolist())
        return outputs

    def task_logits(self, x_RH: Tensor) -> Tensor:
        """Outputs [R, C] of the task head, from :meth:`task_vectors`."""
        if (head := self.tagger or self.span) is None:
            return self.class_logits(x_RH)
        logits: Tensor = head(x_RH)
        return logits

    @property
    def lstm_units(self) -> int:
        """Of each direction of the BiLSTM under the task head; 0 without one."""
        return 0 if self.lstm is None else self.lstm.units

    @property
    def task_outputs(self) -> int:
        """C: outputs of the task head; 0 without one."""
        return 0 if self.task_head is None else self.task_head.output.out_features

    @property
    def task_head(self) -> ClassifierHead | TokenHead | None:
        """The task head; None without one."""
        return self.classifier or self.tagger or self.span
