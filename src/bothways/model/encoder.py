"""The encoder and its pooler: a flat batch in, hidden states out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from bothways.families.config import ModelConfig
from bothways.families.parameters import Parameter, encoder_parameters
from bothways.model.batch import Inputs, SelectedPositions
from bothways.model.kernels.varlen import VarlenLayout, why_not_varlen
from bothways.model.layers import Embeddings, Layer
from bothways.model.rotary import Rotation
from bothways.model.shared import LayerNorm, Linear, Shared
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
        self.final_norm = (
            LayerNorm(H, config.norm_eps, bias=config.norm_biases) if config.final_norm else None
        )
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
        self._check(inputs)
        layouts = self._layouts(inputs, dtype, weights=weights is not None)
        states = [self.embeddings(inputs, dtype)]
        for layer, layout in zip(self._sequence(), layouts, strict=True):
            if weights is None:
                hidden = self._run(layer, states[-1], layout)
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
        config = self.config
        windowed = config.is_local(config.layers - 1)
        if config.left_to_right or windowed or not self.shared.fast:
            x_TH = self.forward(inputs, dtype=dtype)
            return [
                x_TH.index_select(0, selected.positions.index_select(0, r)) for r in selected.rows
            ]
        self._check(inputs)
        *lower_layouts, layout = self._layouts(inputs, dtype)
        x_TH = self.embeddings(inputs, dtype)
        *lower, last = self._sequence()
        for layer, own in zip(lower, lower_layouts, strict=True):
            x_TH = self._run(layer, x_TH, own)
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

    def _run(self, layer: Layer, x_TH: Tensor, layout: Tiles | VarlenLayout) -> Tensor:
        return self.shared.run(layer, x_TH, layout, compiled=layer.compiles(x_TH, layout))

    def _finish(self, x_TH: Tensor) -> Tensor:
        return x_TH if self.final_norm is None else self.final_norm(x_TH)

    def reused_parameters(self) -> list[nn.Parameter]:
        """The weights that one forward pass uses several times, besides the token table."""
        sequence = self._sequence()
        reused = {id(layer): layer for layer in sequence if sequence.count(layer) > 1}
        return [parameter for layer in reused.values() for parameter in layer.parameters()]

    def _layouts(
        self, inputs: Inputs, dtype: torch.dtype, *, weights: bool = False
    ) -> list[Tiles | VarlenLayout]:
        """The batch's sequences in the form that each layer's attention takes."""
        config = self.config
        local = [config.is_local(number) for number in range(config.layers)]
        kinds = {kind: self._layout(inputs, dtype, kind, weights=weights) for kind in set(local)}
        return [kinds[kind] for kind in local]

    def _layout(
        self, inputs: Inputs, dtype: torch.dtype, local: bool = False, *, weights: bool = False
    ) -> Tiles | VarlenLayout:
        """The batch's sequences in the form that attention takes, of local layers or of others.

        A GPU's variable-length kernels work on the flat batch. Padded tiles work on every device
        and in every dtype, and give access to the attention probabilities (``weights``).
        """
        config = self.config
        device, causal = inputs.tokens.device, config.left_to_right
        rotation = None
        if config.place == "rotary":
            rotation = Rotation.of(inputs.positions, config, dtype, local=local)
        kernels = self.shared.fast and not weights and not local
        if kernels and why_not_varlen(config, dtype, device) is None:
            return VarlenLayout(inputs.spans, inputs.spans, causal, rotation, rotation)
        window = config.window if local else 0
        return make_tiles(inputs, dtype, causal=causal, window=window, rotation=rotation)

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
