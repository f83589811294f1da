"""The encoder with the heads of pre-training, or with a task's.

B sequences, T tokens, M masked positions, R rows of a task head, H hidden size, E width of the
embeddings, V vocabulary, C outputs.
Losses are sums: the caller divides by the step's global counts, not by those of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from bothways.errors import InputError, type_of
from bothways.families import HeadForm
from bothways.families.config import ModelConfig
from bothways.families.heads import (
    CHOICE,
    CLASSIFIER,
    HEADS,
    MASKED_LM,
    NEXT_SENTENCE,
    ON_LSTM,
    REPLACED,
    SPAN,
    TAGGER,
    form_of,
    has_pooler,
    parameters,
    task_head,
)
from bothways.families.parameters import Table, under
from bothways.model.batch import Inputs, SelectedPositions, item_means
from bothways.model.encoder import Encoder, HiddenStates, init_encoder, init_weights
from bothways.model.heads import MaskedLMHead, OutputHead
from bothways.model.kernels import compiled
from bothways.model.losses import fused_cross_entropy, masked_lm_loss
from bothways.model.recurrent import BiLSTM, final_states
from bothways.model.shared import Shared, Trainable
from bothways.randomness import Purpose

# The order of the parameters decides that of sums over them.
_BEFORE_LSTM = (MASKED_LM, NEXT_SENTENCE)

HIDDEN = "hidden"
"""The name of the last layer's states among the outputs."""


class EncoderModel(Trainable):
    """An encoder with its heads, as saved in a model folder.

    Args:
        config: the encoder's shape.
        masked_lm: with the head that predicts tokens.
        next_sentence: with the head that judges the second segment.
        classes: outputs of a head on whole sequences (classes; 1 for a score); 0 for none.
        tags: outputs of a head on single tokens; 0 for none.
        spans: with a head for the start and the end of an answer.
        choices: with a head for the score of each choice.
        replaced: with a head that tells replaced tokens from original ones.
        lstm: units of each direction of a BiLSTM between the encoder and the task head, instead of
            the family's own layers (section 5.1); 0 for none.
        seed: seed of the initial weights.
        heads: further ones of :data:`bothways.families.heads.HEADS`, with their numbers of
            outputs.
        pooler: whether the encoder has one; by default if its family's files do.
        shared: the dropout and kernels of another model that is computed together with this one.

    Attributes:
        shared: the dropout and the choice of kernels.
        parts: modules that an objective brings, such as a generator. They are trained with the
            model, but are none of it: its folder does not hold them.

    Raises:
        ModelError: the family has no such head.
    """

    masked_lm: MaskedLMHead | None
    next_sentence: OutputHead | None
    classifier: OutputHead | None
    tagger: OutputHead | None
    span: OutputHead | None
    choice: OutputHead | None
    replaced: OutputHead | None

    def __init__(
        self,
        config: ModelConfig,
        *,
        masked_lm: bool = False,
        next_sentence: bool = False,
        classes: int = 0,
        tags: int = 0,
        spans: bool = False,
        choices: bool = False,
        replaced: bool = False,
        lstm: int = 0,
        seed: int = 0,
        heads: Mapping[str, int] = MappingProxyType({}),
        pooler: bool | None = None,
        shared: Shared | None = None,
    ):
        super().__init__()
        self.config = config
        self.shared = shared or Shared()
        flags = {
            **{MASKED_LM: masked_lm, NEXT_SENTENCE: next_sentence, SPAN: spans},
            **{CHOICE: choices, REPLACED: replaced},
        }
        wanted = {name: HEADS[name].outputs for name, flag in flags.items() if flag}
        wanted |= {n: c for n, c in {CLASSIFIER: classes, TAGGER: tags, **heads}.items() if c}
        if pooler is None:
            pooler = has_pooler(config, wanted, lstm=bool(lstm))
        self.encoder = Encoder(config, self.shared, pooler=pooler)
        init_encoder(self.encoder, seed)
        self.parts = nn.ModuleDict()  # after the encoder, whose names its embeddings keep
        H, shared = config.hidden, self.shared
        for name in _BEFORE_LSTM:
            self._make_head(name, wanted.get(name, 0), H)
        self.lstm = BiLSTM(H, lstm, 1, dropout=0.0, shared=shared, seed=seed) if lstm else None
        for name in HEADS.keys() - set(_BEFORE_LSTM):
            setattr(self, name, None)
        for name in HEADS:
            if name not in _BEFORE_LSTM:
                width = 2 * lstm if lstm and HEADS[name].task else H
                self._make_head(name, wanted.get(name, 0), width)
        for name in self.heads:
            self._init_head(name, seed)

    def _make_head(self, name: str, outputs: int, width: int) -> None:
        """Set a head, without initial weights; None without outputs."""
        head: nn.Module | None = None
        if outputs and HEADS[name].reads == "masked":
            head = MaskedLMHead(self.config)
        elif outputs:
            on_lstm = HEADS[name].task and self.lstm is not None
            form = ON_LSTM if on_lstm else form_of(name, self.config)
            if on_lstm and name == SPAN:
                form = HeadForm(form.names)
            head = OutputHead(form, width, outputs, self.config, self.shared)
        setattr(self, name, head)

    def own_state(self) -> dict[str, Tensor]:
        """The weights that a model folder holds: all but those of :attr:`parts`."""
        return {n: v for n, v in self.state_dict().items() if not n.startswith("parts.")}

    @property
    def heads(self) -> dict[str, nn.Module]:
        """The heads that the model has, by name."""
        found = {name: getattr(self, name, None) for name in HEADS}
        return {name: head for name, head in found.items() if head is not None}

    @property
    def outputs(self) -> dict[str, int]:
        """The heads that the model has, with their numbers of outputs."""
        return {
            name: head.output.out_features if isinstance(head, OutputHead) else 1
            for name, head in self.heads.items()
        }

    def add_head(self, name: str, seed: int, outputs: int = 0) -> None:
        """Give the model a new head, as a new model with this seed has it; and a pooler, if the
        head reads one and the model has none.

        Args:
            name: of :data:`bothways.families.heads.HEADS`.
            seed: seed of its weights.
            outputs: how many, where that is not a matter of the head.

        Raises:
            ModelError: the family has no such head.
        """
        self._make_head(name, outputs or HEADS[name].outputs, self.config.hidden)
        self._init_head(name, seed)
        if self.encoder.pooler is None and has_pooler(self.config, [name]):  # as a tagger's
            new = Encoder(self.config, self.shared)
            init_encoder(new, seed)
            self.encoder.pooler = new.pooler

    def drop_task_heads(self) -> None:
        """Take the task head away, and a BiLSTM under it."""
        self.lstm = None
        for name, head in HEADS.items():
            if head.task:
                setattr(self, name, None)

    def _init_head(self, name: str, seed: int) -> None:
        head: nn.Module = getattr(self, name)
        own, std, key = under(self.table(), name), self.config.init_std, HEADS[name].key
        init_weights(head, own, std, seed=seed, purpose=Purpose.HEAD, index=key)

    def table(self, config: ModelConfig | None = None) -> Table:
        """The model's own parameters by name, or those of such a model of another shape."""
        pooler = self.encoder.pooler is not None
        return parameters(config or self.config, self.outputs, lstm=self.lstm_units, pooler=pooler)

    def stacked(self) -> dict[str, tuple[int, ...]]:
        """As :meth:`Trainable.stacked`, with those of :attr:`parts`."""
        found = {name: p.matrices for name, p in self.table().items() if len(p.matrices) > 1}
        for name, part in self.parts.items():
            if isinstance(part, Trainable):
                found |= {f"parts.{name}.{own}": rows for own, rows in part.stacked().items()}
        return found

    def forward(self, inputs: Inputs, *, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """The outputs by name, for every sequence and token.

        Args:
            inputs: a flat batch.
            dtype: arithmetic of the encoder.

        Returns:
            :data:`HIDDEN`, the last layer's states [T, H], and for each head its name: [T, V] for
            masked tokens, [B, C] for heads on sequences, [T, C] for heads on tokens. The rows of
            the batch's tail are left out.

        Raises:
            LengthError, ModelError: as :meth:`Encoder.hidden_states`.
            InputError: something else than a flat batch, such as a tensor of ids.
        """
        if not isinstance(inputs, Inputs):
            raise InputError(
                f"the network computes flat batches, not {type_of(inputs)}: make one with "
                "bothways.model.batch.collate([ids], [segments], max_positions=...), or give texts "
                "to bw.load(...).embed_tokens."
            )
        x_TH: Tensor = self.encoder(inputs, dtype=dtype)[: int(inputs.bounds[-1])]
        outputs = {HIDDEN: x_TH}
        for name, head in self.heads.items():
            if isinstance(head, MaskedLMHead):
                outputs[name] = self.masked_lm_logits(x_TH)[:, : self.config.vocab_size]
                continue
            read = x_TH
            if self.lstm is not None and HEADS[name].task:
                read = self.lstm(x_TH.float(), inputs.lengths.tolist())
                if HEADS[name].reads == "sequence":
                    read = final_states(read, inputs)
            elif HEADS[name].reads == "sequence":
                read = self._sequences(x_TH, inputs)
            outputs[name] = self.logits(name, read)
        return outputs

    @property
    def embedding_VH(self) -> Tensor:  # noqa: N802
        """The token embedding, tied to the masked-LM output."""
        return self.encoder.embeddings.tokens.weight

    def masked_lm_logits(self, x_MH: Tensor) -> Tensor:
        """Logits [M, V padded] from the hidden states of masked tokens."""
        logits: Tensor = self._masked_lm(x_MH, self.embedding_VH)
        return logits

    def piece_loss(
        self, x_MH: Tensor, ids: Tensor, head: MaskedLMHead | None = None
    ) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy over the pieces of the vocabulary and number of correct predictions,
        as :func:`masked_lm_loss`. Objectives reach the tied token table by this alone: further uses
        in a step add their gradients in fp32.

        Args:
            x_MH: hidden states.
            ids: int64 [M].
            head: of an objective's own, in ``parts``; default: the model's.
        """
        head = head or self._masked_lm
        if not self.shared.fast:
            return masked_lm_loss(head(x_MH, self.embedding_VH), ids)
        if self.shared.compiles(x_MH):
            x_ME = head.transform(x_MH)
            weight_VE = self._output_weight(head, x_ME.dtype)
            bias_V = head.bias_V(ids.device)
            return compiled.cross_entropy(x_ME, weight_VE, bias_V, ids, self.shared.pool)
        return fused_cross_entropy(*head.output(x_MH, self.embedding_VH), ids)

    def _output_weight(self, head: MaskedLMHead, dtype: torch.dtype) -> Tensor:
        """Of a masked-LM head's output, [V padded, E], in this dtype."""
        if head.decoder is not None:
            return head.decoder.weight.to(dtype)
        return self.encoder.embeddings.output_weight(dtype)

    @property
    def _masked_lm(self) -> MaskedLMHead:
        if self.masked_lm is None:
            raise ValueError("this model has no masked-LM head")
        return self.masked_lm

    def logits(self, name: str, x_RH: Tensor) -> Tensor:
        """Outputs [R, C] of a head on sequences or tokens, from :meth:`sequence_vectors` or hidden
        states. Those of next sentences: column 0 = B follows A.

        Raises:
            ValueError: the model has no such head.
        """
        head = self.heads.get(name)
        if not isinstance(head, OutputHead):
            raise ValueError(f"this model has no {HEADS[name].title if name in HEADS else name}")
        logits: Tensor = head(self.encoder.pool(x_RH) if head.form.pooled else x_RH)
        return logits

    def next_sentence_logits(self, x_BH: Tensor) -> Tensor:
        """Logits [B, 2] from the hidden states of each [CLS]; column 0 = B follows A."""
        return self.logits(NEXT_SENTENCE, x_BH)

    def task_vectors(
        self,
        inputs: Inputs,
        at: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        selected: SelectedPositions | None = None,
        encoder: HiddenStates | None = None,
    ) -> Tensor:
        """The vectors that the task head takes.

        Args:
            inputs: a flat batch.
            at: int64 [R]; flat positions. For a head on whole sequences, the first token of each.
            dtype: arithmetic of the encoder.
            selected: ``at`` alone, if already computed: on a GPU that avoids waiting for ``at``.
            encoder: another form of the model's encoder, for inference.

        Returns:
            :meth:`sequence_vectors` for heads on whole sequences, :meth:`token_vectors` for others.

        Raises:
            LengthError, ModelError: as :meth:`Encoder.hidden_states`.
        """
        if self.reads_sequences:
            assert len(at) == inputs.sequences, "such a head takes one vector per sequence"
            return self.sequence_vectors(
                inputs, dtype=dtype, first_tokens=selected, encoder=encoder
            )
        return self.token_vectors(inputs, at, dtype=dtype, selected=selected, encoder=encoder)

    def sequence_vectors(
        self,
        inputs: Inputs,
        *,
        dtype: torch.dtype = torch.float32,
        first_tokens: SelectedPositions | None = None,
        encoder: HiddenStates | None = None,
    ) -> Tensor:
        """One vector per sequence: [B, H], or with a BiLSTM [B, 2 * units] in fp32.

        With a BiLSTM it is the final state of both directions; otherwise what the shape's
        ``read_at`` says.
        """
        encoder = encoder or self.encoder
        if self.lstm is not None:
            return final_states(self._lstm_outputs(inputs, dtype, encoder), inputs)
        if self.config.read_at != "first":
            return self._sequences(encoder(inputs, dtype=dtype), inputs)
        first_tokens = first_tokens or SelectedPositions.of(inputs, inputs.starts)
        (x_BH,) = encoder.hidden_at(inputs, first_tokens, dtype=dtype)
        return x_BH

    def _sequences(self, x_TH: Tensor, inputs: Inputs) -> Tensor:
        """What stands for each sequence, [B, H], from the last layer's states."""
        if self.config.read_at == "last":
            return x_TH.index_select(0, inputs.lasts)
        if self.config.read_at == "mean":
            real = x_TH[: inputs.bounds[-1]]
            return item_means(real.to(compiled.exact(real)), inputs.bounds)
        return x_TH.index_select(0, inputs.starts)

    def token_vectors(
        self,
        inputs: Inputs,
        at: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        selected: SelectedPositions | None = None,
        encoder: HiddenStates | None = None,
    ) -> Tensor:
        """One vector per flat position in ``at``, [R]: [R, H], or with a BiLSTM [R, 2 * units] in
        fp32."""
        encoder = encoder or self.encoder
        if self.lstm is not None:
            return self._lstm_outputs(inputs, dtype, encoder)[at]
        if len(at) == int(inputs.bounds[-1]):  # most likely every token, in order
            every: Tensor = encoder(inputs, dtype=dtype)[: len(at)]
            # A GPU would have to be waited for to know.
            in_order = at.device.type == "cpu" and torch.equal(at, torch.arange(len(at)))
            return every if in_order else every.index_select(0, at)
        selected = selected or SelectedPositions.of(inputs, at)
        (x_RH,) = encoder.hidden_at(inputs, selected, dtype=dtype)
        return x_RH

    def _lstm_outputs(self, inputs: Inputs, dtype: torch.dtype, encoder: HiddenStates) -> Tensor:
        """The BiLSTM's outputs for all tokens except the tail, [T, 2 * units]."""
        assert self.lstm is not None
        x_TH = encoder(inputs, dtype=dtype)[: int(inputs.bounds[-1])]
        outputs: Tensor = self.lstm(x_TH.float(), inputs.lengths.tolist())
        return outputs

    def task_logits(self, x_RH: Tensor) -> Tensor:
        """Outputs [R, C] of the task head, from :meth:`task_vectors`."""
        return self.logits(self.task_name, x_RH)

    @property
    def lstm_units(self) -> int:
        """Of each direction of the BiLSTM under the task head; 0 without one."""
        return 0 if self.lstm is None else self.lstm.units

    @property
    def task_outputs(self) -> int:
        """C: outputs of the task head; 0 without one."""
        return 0 if self.task_head is None else self.task_head.output.out_features

    @property
    def task_name(self) -> str:
        """Which head is the task's; empty without one."""
        return task_head(self.heads)

    @property
    def task_head(self) -> OutputHead | None:
        """The task head; None without one."""
        head: OutputHead | None = self.heads.get(self.task_name)  # type: ignore[assignment]
        return head

    @property
    def reads_sequences(self) -> bool:
        """Whether the task head reads one vector per sequence."""
        return bool(self.task_name) and HEADS[self.task_name].reads == "sequence"

    def reused_parameters(self) -> list[nn.Parameter]:
        """The weights of which one backward pass may compute several gradients, to be added: those
        of layers that are computed several times, and those that several modules hold.

        Lookup and output layer of the token table have one gradient together, but a part of an
        objective may use the table once more.
        """
        seen: set[int] = set()
        shared: list[nn.Parameter] = []
        for _, parameter in self.named_parameters(remove_duplicate=False):
            if id(parameter) in seen:
                shared.append(parameter)
            seen.add(id(parameter))
        if len(self.parts):
            table: nn.Parameter = self.encoder.embeddings.tokens.weight  # type: ignore[assignment]
            shared.append(table)
        return [*self.encoder.reused_parameters(), *shared]
