"""What layers are made of: shared dropout and settings, linear layers and norms that compute in
their input's dtype, activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bothways.families.config import ModelConfig
from bothways.model.dropout import KeyedDropout
from bothways.model.kernels.compiled import compiles
from bothways.model.kernels.memory import Pool
from bothways.model.kernels.rounded import RoundedWeights
from bothways.model.kernels.varlen import VarlenLayout


class Shared(nn.Module):
    """Dropout and settings that one model's layers share.

    Args:
        fast: use the hand-written forms of layers, last layer and loss. Each is tested against a
            plain form in library operations.
        recompute: in training, keep only the input of each layer, and compute the layer again in
            the backward pass (gradient checkpointing, Chen et al. 2016).
    """

    def __init__(self, *, fast: bool = True, recompute: bool = False) -> None:
        super().__init__()
        self.dropout = KeyedDropout()
        self.fast, self.recompute = fast, recompute
        self.pool = Pool()
        self.rounded = RoundedWeights()
        self.transposes = False

    def compiles(self, x: Tensor, layout: object = None) -> bool:
        """Whether to use compiled loops on this array: in training, if it is on a CPU.

        Args:
            x: the array.
            layout: of attention, if that is to be computed: a layout for GPU kernels is not.
        """
        if not self.fast or not torch.is_grad_enabled() or isinstance(layout, VarlenLayout):
            return False
        return compiles(x)

    @property
    def recomputes(self) -> bool:
        """Whether layers are to be computed again in the backward pass."""
        return self.recompute and self.training and torch.is_grad_enabled()

    def run(self, layer: Callable[..., Tensor], *inputs: Any, compiled: bool) -> Tensor:
        """Compute a layer, with gradient checkpointing if ``recompute`` is set.

        The recomputation uses the same dropout masks, so results are the same to the bit.

        Args:
            layer: computes it.
            inputs: its arguments.
            compiled: it is the compiled form, which recomputes by itself.
        """
        if not self.recomputes or compiled:
            return layer(*inputs)
        out: Tensor = checkpoint(
            layer,
            *inputs,
            use_reentrant=False,
            preserve_rng_state=False,  # nothing draws from the library's own generator
            context_fn=self.dropout.replay,
        )
        return out


P = ParamSpec("P")
R = TypeVar("R")


class Trainable(nn.Module):
    """What a training needs of a model besides its parameters.

    Attributes:
        shared: the dropout, and the choice of kernels.
    """

    shared: Shared

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def compute(
        self, function: Callable[Concatenate[Self, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Returns ``function(self, *args, **kwargs)``, with sharded weights gathered meanwhile.

        FSDP gathers them around the module's methods that it was told of, and a loss uses the
        encoder and the heads one after the other, only where it needs them.
        """
        return function(self, *args, **kwargs)

    def stacked(self) -> dict[str, tuple[int, ...]]:
        """The parameters in which several matrices are stacked, by name, with the rows of each."""
        return {}

    def reused_parameters(self) -> list[nn.Parameter]:
        """The weights of which one backward pass may compute several gradients, to be added."""
        return []


class Linear(nn.Linear):
    """A linear layer in its input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return _linear(x, self.weight, self.bias)

    def divided(self, inputs: Sequence[Tensor], outputs: list[int]) -> list[Tensor]:
        """As many first outputs of the first input, the next of the second, and so on.

        Args:
            inputs: [..., in] each.
            outputs: how many of each; all of the layer's together.
        """
        # Not slices: the gradient of each would be as large as the whole.
        weights = torch.split(self.weight, outputs)
        own: Tensor | None = self.bias
        biases = [None] * len(outputs) if own is None else torch.split(own, outputs)
        return [_linear(*parts) for parts in zip(inputs, weights, biases, strict=True)]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class LayerNorm(nn.LayerNorm):
    """Layer normalisation in its input's dtype; the statistics are fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        own: Tensor | None = self.bias
        bias = None if own is None else own.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), bias, self.eps)


class RMSNorm(LayerNorm):
    """Division by the root mean square (Zhang and Sennrich 2019), without a bias."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def make_norm(config: ModelConfig, width: int = 0) -> LayerNorm:
    """A norm as the shape says, of the hidden size if no width is given."""
    kind = RMSNorm if config.norm == "rms" else LayerNorm
    return kind(width or config.hidden, config.norm_eps, bias=config.norm_biases)


class Embedding(nn.Embedding):
    """An embedding table that starts at zero; ``init_weights`` initialises it.

    The library's own normal initialisation, on the meta device, imports its compiler, which takes
    3 seconds per process.

    Attributes:
        row_of_id: int64 [V]; the row of each id while the weight holds only some of the rows
            (:class:`bothways.training.frozen_rows.PrunedEmbedding`); None: all of them.
    """

    row_of_id: Tensor | None = None

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of the weight that hold some ids, int64 [...]."""
        return ids if self.row_of_id is None else self.row_of_id.index_select(0, ids)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [...] -> [..., H]."""
        return F.embedding(self.rows(ids), self.weight)

    def reset_parameters(self) -> None:
        """All zeros."""
        nn.init.zeros_(self.weight)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def activate(name: str, x: Tensor) -> Tensor:
    """An activation of :data:`bothways.families.config.Activation`, element by element."""
    return _ACTIVATIONS[name](x)
