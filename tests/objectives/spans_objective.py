"""SpanBERT's objective (Joshi et al. 2020) as a user would write it: one span of each sequence is
hidden, and predicted also from the tokens around it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from bothways.families.heads import MASKED_LM
from bothways.model.batch import PretrainingBatch
from bothways.model.heads import MaskedLMHead
from bothways.model.model import EncoderModel
from bothways.objectives.objective import (
    ChooseTargets,
    Draw,
    Ints,
    PretrainingObjective,
    Sums,
    Targets,
    Term,
)
from bothways.pretraining.options import MaskOptions
from bothways.randomness import Purpose, below
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.options import PairKind


class Boundaries(nn.Module):
    """Two layers on the states at both edges of a span, and the output layer."""

    def __init__(self, model: EncoderModel, seed: int):
        super().__init__()
        hidden = model.config.hidden
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.dense = nn.Linear(2 * hidden, hidden)
            self.head = MaskedLMHead(model.config)
            nn.init.normal_(self.head.dense.weight, std=0.02)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        made: Tensor = torch.relu(self.dense(torch.cat([left, right], -1).float()))
        return made.to(left.dtype)


class Spans(PretrainingObjective):
    """The language model of a span, from its tokens and from its edges."""

    heads = (MASKED_LM,)
    terms = (
        Term("mlm", "masked-LM", "most frequent token"),
        Term("sbo", "span-boundary", "", measure="error"),
    )

    def __init__(self, pairs: PairKind, *, width: int = 3):  # noqa: ARG002
        self._width = width

    def parts(self, model: EncoderModel, seed: int) -> Mapping[str, nn.Module]:
        return {"boundaries": Boundaries(model, seed)}

    def targets(self, tokenizer: Tokenizer, masking: MaskOptions, length: int) -> ChooseTargets:  # noqa: ARG002
        def choose(tokens: Ints, bounds: Ints, draw: Draw) -> Targets:
            lengths = np.diff(bounds)
            room = np.maximum(lengths - 1 - self._width, 1)
            starts = bounds[:-1] + 1 + below(room, draw.seed, Purpose.MASK, draw.epoch, draw.row)
            at = (starts[:, None] + np.arange(self._width)).ravel()
            at = at[at < np.repeat(bounds[1:] - 1, self._width)]
            row = np.searchsorted(bounds, at, side="right") - 1
            shown = tokens.copy()
            shown[at] = tokenizer.mask_id
            stops = np.minimum(starts + self._width, bounds[1:] - 1)
            return Targets(shown, at, tokens[at], (starts[row] - 1, stops[row]))

        return choose

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        return {"mlm": batch.masked.count, "sbo": batch.masked.count}

    def sums(
        self, model: EncoderModel, batch: PretrainingBatch, dtype: torch.dtype
    ) -> dict[str, Sums]:
        x_MH, left, right = model.encoder.hidden_at(batch.inputs, batch.selected, dtype=dtype)
        edges = model.parts["boundaries"]
        assert isinstance(edges, Boundaries)
        count = batch.masked.count
        ids = batch.masked.ids[:count]
        loss, right_ones = model.piece_loss(edges(left, right), ids, edges.head)
        return {
            "mlm": Sums(*model.piece_loss(x_MH, batch.masked.ids)),
            "sbo": Sums(loss, count - right_ones),
        }
