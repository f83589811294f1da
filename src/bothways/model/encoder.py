"""The encoder and its pooler: a flat batch in, hidden states out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from bothways.families.config import AttentionSpec, ModelConfig
from bothways.families.parameters import Parameter, encoder_parameters
from bothways.model.batch import Inputs, SelectedPositions
from bothways.model.kernels.varlen import VarlenLayout, why_not_varlen
from bothways.model.layers import Embeddings, Layer
from bothways.model.places import Disentangled
from bothways.model.rotary import Rotation
from bothways.model.shared import Linear, Shared, make_norm
from bothways.model.tiles import Tiles, make_tiles
from bothways.randomness import Purpose, derived_seed


class HiddenStates(Protocol):
    """What gives the last layer's states: an encoder, or :mod:`bothways.model.inference`."""

    def __call__(self, inputs: Inputs, *, dtype: torch.dtype = ...) -> Tensor:
        """As :meth:`Encoder.forward`."""

    def hidden_at(
        self, inputs: Inputs, selected: SelectedPositions, *, dtype: torch.dtype = ...
    ) -> list[Tensor]:
        """As :meth:`Encoder.hidden_at`."""

    def hidden_states(self, inputs: Inputs, *, dtype: torch.dtype = ...) -> Sequence[Tensor]:
        """As :meth:`Encoder.hidden_states`."""


class Encoder(nn.Module):
    """A stack of layers on embeddings, as its shape says (of BERT, Devlin et al. 2019, section 3).

    Args:
        config: the shape.
        shared: the dropout and kernels shared with the heads; new ones if not given.
        pooler: whether there is one, if the shape has one at all.
    """

    def __init__(self, config: ModelConfig, shared: Shared | None = None, *, pooler: bool = True):
        super().__init__()
        H = config.hidden
        self.config = config
        self.shared = shared or Shared()
        self.embeddings = Embeddings(config, self.shared)
        self.layers = nn.ModuleList(
            Layer(config, self.shared, number) for number in range(config.distinct_layers)
        )
        self.places = Disentangled(config, self.shared) if config.layer(0).relative else None
        self.final_norm = make_norm(config) if config.final_norm else None
        self.pooler = Linear(H, H) if pooler and config.pooler else None

    def forward(self, inputs: Inputs, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """The last layer's hidden states.

        Args:
            inputs: a flat batch.
            dtype: arithmetic of the layers.

        Returns:
            [T, H] in ``dtype``; rows of the tail are meaningless.
        """
        return self.hidden_states(inputs, dtype=dtype, keep_all=False)[-1]

    def hidden_states(
        self,
        inputs: Inputs,
        *,
        dtype: torch.dtype = torch.float32,
        keep_all: bool = True,
        weights: list[list[Tensor]] | None = None,
    ) -> list[Tensor]:
        """The embeddings and the output of each layer, [T, H] each, or only the last one, which is
        normalised where the shape has a final norm.

        Args:
            inputs: a flat batch.
            dtype: arithmetic of the layers.
            keep_all: return all layers + 1 tensors instead of the last one.
            weights: if given, receives for each layer its tiles' attention probabilities.

        Raises:
            LengthError: a sequence is longer than the encoder's positions.
            ModelError: a token or segment id is outside the model's range.
        """
        layouts = self.layouts(inputs, dtype, weights=weights is not None)
        return self.run(self.embed(inputs, dtype), layouts, keep_all=keep_all, weights=weights)

    def embed(self, inputs: Inputs, dtype: torch.dtype) -> Tensor:
        """The first layer's input, [T, H].

        Raises:
            LengthError, ModelError: as :meth:`hidden_states`.
        """
        self._check(inputs)
        x_TH: Tensor = self.embeddings(inputs, dtype)
        return x_TH

    def run(
        self,
        x_TH: Tensor,
        layouts: Sequence[Tiles | VarlenLayout],
        *,
        keep_all: bool = False,
        weights: list[list[Tensor]] | None = None,
    ) -> list[Tensor]:
        """Compute all layers on an input, from :meth:`embed` or elsewhere.

        Args:
            x_TH: [T, H], in the dtype of the layers.
            layouts: of each layer, from :meth:`layouts`.
            keep_all, weights: as for :meth:`hidden_states`.
        """
        states = [x_TH]
        for layer, layout in zip(self._sequence(), layouts, strict=True):
            if weights is None:
                hidden = self._compute(layer, states[-1], layout)
            else:
                weights.append([])
                hidden = layer(states[-1], layout, weights[-1])
            states = [*states, hidden] if keep_all else [hidden]
        return [*states[:-1], self._finish(states[-1])]

    def hidden_at(
        self,
        inputs: Inputs,
        selected: SelectedPositions,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> list[Tensor]:
        """The last layer's hidden states at some positions only, which is all that most heads need.

        For the other tokens the last layer computes nothing but keys and values. With dropout, its
        masks differ from those of :meth:`forward`, because fewer elements are drawn.

        Args:
            inputs: a flat batch.
            selected: the positions.
            dtype: arithmetic of the layers.

        Returns:
            [N, H] for each set of positions that ``selected`` was made from.

        Raises:
            LengthError, ModelError: as :meth:`hidden_states`.
        """
        # Left to right, the language model needs nearly all positions. Windows are masks of tiles
        # whose queries are all positions.
        reads_all = self.config.layer(self.config.layers - 1).reads_all
        if not (reads_all and self.shared.fast):
            x_TH = self.forward(inputs, dtype=dtype)
            return [
                x_TH.index_select(0, selected.positions.index_select(0, r)) for r in selected.rows
            ]
        *lower_layouts, layout = self.layouts(inputs, dtype)
        x_TH = self.embed(inputs, dtype)
        *lower, last = self._sequence()
        for layer, own in zip(lower, lower_layouts, strict=True):
            x_TH = self._compute(layer, x_TH, own)
        queries = layout.select(inputs, selected)
        x_NH = self.shared.run(
            *(last.forward_at, x_TH, selected.positions, queries),
            compiled=last.compiles(x_TH, queries),
        )
        x_NH = self._finish(x_NH)
        return [x_NH.index_select(0, rows) for rows in selected.rows]

    def _sequence(self) -> list[Layer]:
        """The layers in the order in which they are computed; some may be there several times."""
        own = cast("list[Layer]", list(self.layers))
        return [own[self.config.group_of(number)] for number in range(self.config.layers)]

    def _compute(self, layer: Layer, x_TH: Tensor, layout: Tiles | VarlenLayout) -> Tensor:
        return self.shared.run(layer, x_TH, layout, compiled=layer.compiles(x_TH, layout))

    def _finish(self, x_TH: Tensor) -> Tensor:
        return x_TH if self.final_norm is None else self.final_norm(x_TH)

    def reused_parameters(self) -> list[nn.Parameter]:
        """The weights that one forward pass uses several times, besides the token table."""
        sequence = self._sequence()
        reused = {id(layer): layer for layer in sequence if sequence.count(layer) > 1}
        return [parameter for layer in reused.values() for parameter in layer.parameters()]

    def layouts(
        self, inputs: Inputs, dtype: torch.dtype, *, weights: bool = False
    ) -> list[Tiles | VarlenLayout]:
        """The batch's sequences in the form that each layer's attention takes.

        A GPU's variable-length kernels work on the flat batch. Padded tiles work on every device
        and in every dtype, and give access to the attention probabilities (``weights``).
        """
        specs = self.config.attention
        kernels = self.shared.fast and not weights
        flat = kernels and why_not_varlen(self.config, dtype, inputs.tokens.device) is None
        made = {spec: self._layout(inputs, dtype, spec, flat=flat) for spec in set(specs)}
        return [made[spec] for spec in specs]

    def _layout(
        self, inputs: Inputs, dtype: torch.dtype, spec: AttentionSpec, *, flat: bool
    ) -> Tiles | VarlenLayout:
        rotation = None
        if spec.rotary:
            rotation = Rotation.of(inputs.positions, self.config, dtype, spec.rotary)
        if flat:
            spans = inputs.spans
            return VarlenLayout(spans, spans, spec.causal, spec.window, rotation, rotation)
        places = None if self.places is None else self.places(dtype)
        return make_tiles(
            inputs,
            dtype,
            causal=spec.causal,
            window=spec.window,
            rotation=rotation,
            places=places,
        )

    def pool(self, x_BH: Tensor) -> Tensor:
        """[B, H] -> [B, H]: a dense layer and tanh over each sequence's [CLS]."""
        assert self.pooler is not None, "this encoder has no pooler"
        return torch.tanh(self.pooler(x_BH))

    def _check(self, inputs: Inputs) -> None:
        if inputs.tokens.device.type != "cpu":
            # Reading ids back would synchronise; batches are checked where they are made.
            self.config.refuse_longer(inputs.longest)
            return
        self.config.refuse_outside(inputs.longest, _ends(inputs.tokens), _ends(inputs.segments))


def _ends(ids: Tensor) -> tuple[int, int]:
    """The lowest and the highest id."""
    lowest, highest = ids.aminmax()
    return int(lowest), int(highest)


def init_encoder(encoder: Encoder, seed: int) -> None:
    """Initialise a new encoder."""
    table, std = encoder_parameters(encoder.config), encoder.config.init_std
    init_weights(encoder, table, std, seed=seed, purpose=Purpose.WEIGHTS)


def init_weights(
    module: nn.Module,
    table: Mapping[str, Parameter],
    std: float,
    *,
    seed: int,
    purpose: Purpose,
    index: int = 0,
) -> None:
    """Initialise weights as their table says: truncated normal (2 deviations), 1, or 0.

    The draw is keyed by the seed and follows the order of the parameters, so the same seed gives
    the same network. ``index`` distinguishes modules with the same purpose. Parameters on the meta
    device, which have only shapes, are skipped.
    """
    own = [(name, values) for name, values in module.named_parameters() if not values.is_meta]
    if not own:
        return
    generator = torch.Generator().manual_seed(derived_seed(seed, purpose, index))
    with torch.no_grad():
        for name, parameter in own:
            entry = table[name]
            if entry.initial == "normal":
                _truncated_normal(parameter, std, generator)
                parameter[entry.pieces or len(parameter) :] = 0
            else:
                parameter.fill_(entry.initial == "one")


def _truncated_normal(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    """Fill with normal values, redrawing those beyond two deviations.

    The same distribution as ``nn.init.trunc_normal_`` at a tenth of its cost.
    """
    values = parameter.view(-1).normal_(generator=generator)
    while len(beyond := (values.abs() > 2).nonzero().squeeze(1)):
        values[beyond] = torch.randn(len(beyond), generator=generator)
    values.mul_(std)
