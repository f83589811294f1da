"""Bidirectional LSTMs, on frozen features or on top of an encoder.

B sequences, T tokens in total, D features per token, L layers, H hidden size, C outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from bothways.model.batch import Inputs
from bothways.model.shared import Linear, Shared, Trainable
from bothways.randomness import Purpose, derived_seed


class BiLSTM(nn.Module):
    """LSTM layers that process each sequence in both directions (Devlin et al. 2019, 5.1 and 5.3).

    Args:
        features: D.
        hidden: units of each direction.
        layers: how many; each takes the outputs of both directions of the one below.
        dropout: probability between the layers.
        shared: provides the dropout.
        seed: seed of the initial weights.
    """

    def __init__(
        self, features: int, hidden: int, layers: int, *, dropout: float, shared: Shared, seed: int
    ):
        super().__init__()
        sizes = [features, *[2 * hidden] * (layers - 1)]
        self.layers = nn.ModuleList(
            nn.LSTM(size, hidden, bidirectional=True, batch_first=True) for size in sizes
        )
        self._dropout, self._probability = shared.dropout, dropout
        generator = torch.Generator().manual_seed(derived_seed(seed, Purpose.RECURRENT))
        bound = 1 / math.sqrt(hidden)
        with torch.no_grad():
            for parameter in self.layers.parameters():
                if not parameter.is_meta:  # such parameters have only shapes
                    parameter.uniform_(-bound, bound, generator=generator)

    @property
    def units(self) -> int:
        """Units of each direction."""
        return int(cast("nn.LSTM", self.layers[0]).hidden_size)

    def forward(self, x_TD: Tensor, lengths: Sequence[int]) -> Tensor:
        """Outputs for concatenated sequences.

        Args:
            x_TD: float32 [T, D].
            lengths: tokens of each of the B sequences, at least 1 each, T in total.

        Returns:
            [T, 2 * hidden]: the forward direction's outputs, then the backward one's.
        """
        packed = pack_sequence([*torch.split(x_TD, list(lengths))], enforce_sorted=False)
        for number, layer in enumerate(self.layers):
            if number:
                dropped = self._dropout(packed.data, self._probability)
                packed = PackedSequence(dropped, *packed[1:])
            packed, _ = layer(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
        return torch.cat([row[:size] for row, size in zip(padded, lengths, strict=True)])


def final_states(x_T2U: Tensor, inputs: Inputs) -> Tensor:
    """The final output of each direction: the forward one at a sequence's last token, the backward
    one at its first.

    Args:
        x_T2U: the outputs for the tokens of a batch, [T, 2 * units].
        inputs: the batch.

    Returns:
        [B, 2 * units].
    """
    forward, backward = x_T2U.chunk(2, dim=-1)
    ends = forward.index_select(0, inputs.lasts), backward.index_select(0, inputs.starts)
    return torch.cat(ends, -1)


class LayerSum(nn.Module):
    """A weighted sum of layers: softmax weights and one scale, learned (Peters et al. 2018, 3.2).

    Args:
        layers: L.
    """

    def __init__(self, layers: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x_TLH: Tensor) -> Tensor:
        """[T, L, H] -> [T, H]."""
        return self.scale * torch.einsum("tlh,l->th", x_TLH, self.weights.softmax(0))


class FeatureTagger(Trainable):
    """A BiLSTM of two layers and an output layer, on layers of a frozen encoder.

    Args:
        layers: L, how many layers of the encoder are used.
        width: H.
        hidden: units of each direction.
        outputs: C.
        summed: sum the layers with learned weights instead of concatenating them.
        dropout: probability between the BiLSTM's layers, and before the output layer.
        seed: seed of the initial weights.
    """

    def __init__(
        self,
        layers: int,
        width: int,
        hidden: int,
        outputs: int,
        *,
        summed: bool,
        dropout: float,
        seed: int,
    ):
        super().__init__()
        self.shared = Shared()
        self.sum = LayerSum(layers) if summed else None
        self.lstm = BiLSTM(
            width if summed else layers * width,
            hidden,
            2,
            dropout=dropout,
            shared=self.shared,
            seed=seed,
        )
        self.output = Linear(2 * hidden, outputs)
        self._probability = dropout
        generator = torch.Generator().manual_seed(derived_seed(seed, Purpose.HEAD))
        bound = 1 / math.sqrt(2 * hidden)
        with torch.no_grad():
            self.output.weight.uniform_(-bound, bound, generator=generator)
            self.output.bias.zero_()

    def forward(self, x_TLH: Tensor, lengths: Sequence[int]) -> Tensor:
        """float32 [T, L, H] of concatenated sequences -> [T, C]."""
        x_TD = x_TLH.flatten(1) if self.sum is None else self.sum(x_TLH)
        x = self.shared.dropout(self.lstm(x_TD, lengths), self._probability)
        logits: Tensor = self.output(x)
        return logits
