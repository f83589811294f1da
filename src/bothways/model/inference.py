"""The encoder as inference computes it on a CPU: prepared once from the weights, no gradient.

The products are the library's, on weights that are laid out or packed so that they take the least
time for few tokens and many; what lies between them runs in compiled loops, and nothing is kept.
Attention reads the flat batch as it is: sequences are neither padded nor grouped.

Shapes that the compiled layers do not cover are computed by :class:`bothways.model.encoder.Encoder`
itself, here on weights that are rounded once.

T tokens, N selected positions, H hidden size, E width of the embeddings.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Sequence
from functools import cache, cached_property
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bothways.batch import round_up
from bothways.model.batch import Inputs, SelectedPositions
from bothways.model.device import measured_by_torch
from bothways.model.encoder import Encoder, HiddenStates
from bothways.model.kernels import compiled
from bothways.model.layers import Layer
from bothways.model.shared import LayerNorm
from bothways.runtime.speed import Seconds, least_seconds

# oneDNN prepares a kernel for each new number of rows, which takes longer than some more rows do.
_ROUND_FEW, _ROUND_MANY, _MANY = 16, 64, 128
_PACKED_FOR = 2048  # rows, for which oneDNN chooses the layout
_MIN_GAIN = 1.3  # in the time of a product, to take another library

Vector = NDArray[np.floating[Any]]


def prepare(encoder: Encoder, dtype: torch.dtype, *, share: bool = False) -> HiddenStates:
    """The fastest form of an encoder for inference, which gives its states in ``dtype`` alone.

    Args:
        encoder: on any device.
        dtype: arithmetic of the layers.
        share: lay the encoder's own weights out anew, instead of copies of them: their values, and
            everything that is computed with them but for rounding, stay the same.
    """
    covered = compiled.why_not_covered(encoder.config) is None
    weight = encoder.embeddings.tokens.weight
    if covered and encoder.shared.fast and compiled.compiles(weight.to(dtype=dtype)[:0]):
        return PreparedEncoder(encoder, dtype, share=share)
    if dtype == weight.dtype:
        return encoder
    rounded = copy.copy(encoder)
    rounded._modules = dict(encoder._modules)
    rounded.layers = copy.deepcopy(encoder.layers).to(dtype)
    return rounded


class PreparedEncoder:
    """An encoder whose shape the compiled loops cover, on a CPU.

    Args:
        encoder, dtype, share: as for :func:`prepare`.

    """

    def __init__(self, encoder: Encoder, dtype: torch.dtype, *, share: bool = False):
        self.config, self._encoder, self._dtype = encoder.config, encoder, dtype
        loop = compiled.GELU_LOOPS[encoder.config.activation] + "_of"
        own = cast("list[Layer]", list(encoder.layers))
        self._layers = [_Layer(layer, dtype, loop, share=share) for layer in own]
        self._rows = _EmbeddingRows(encoder, dtype)
        self._parameters = list(encoder.parameters())
        self._versions = self._count()

    def _count(self) -> int:
        return sum(0 if p.is_inference() else p._version for p in self._parameters)

    @property
    def is_current(self) -> bool:
        """Whether no weight was written to since."""
        return self._count() == self._versions

    def __call__(self, inputs: Inputs, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """As :meth:`bothways.model.encoder.Encoder.forward`, without the tail's rows."""
        last = self.config.layers
        return self._states(inputs, {last}, dtype)[last]

    def hidden_states(
        self, inputs: Inputs, *, dtype: torch.dtype = torch.float32
    ) -> Sequence[Tensor]:
        """As :meth:`bothways.model.encoder.Encoder.hidden_states`, without the tail's rows."""
        every = range(self.config.layers + 1)
        states = self._states(inputs, every, dtype)
        return [states[layer] for layer in every]

    def hidden_at(
        self, inputs: Inputs, selected: SelectedPositions, *, dtype: torch.dtype = torch.float32
    ) -> list[Tensor]:
        """As :meth:`bothways.model.encoder.Encoder.hidden_at`."""
        if not self.config.layer(self.config.layers - 1).reads_all:
            x_TH = self(inputs, dtype=dtype)
            return [x_TH.index_select(0, selected.positions[rows]) for rows in selected.rows]
        last = self.config.layers
        x_TH = self._states(inputs, {last - 1}, dtype, layers=last - 1)[last - 1]
        at = torch.from_numpy(selected.unique)
        x_NH = self._layers[self.config.group_of(last - 1)].at(
            _Pass(self, inputs, dtype), x_TH, at, np.searchsorted(selected.unique, inputs.bounds)
        )
        return [x_NH.index_select(0, rows) for rows in selected.rows]

    def _states(
        self, inputs: Inputs, kept: Container[int], dtype: torch.dtype, layers: int | None = None
    ) -> dict[int, Tensor]:
        """The states after some layers, by number, each [T, H]; 0 is the embeddings."""
        if dtype != self._dtype:
            raise ValueError(f"prepared for {self._dtype}, not {dtype}")
        self._encoder._check(inputs)
        run = _Pass(self, inputs, dtype)
        x_TH = self._rows(run, inputs)
        states = {0: x_TH} if 0 in kept else {}
        for number in range(1, 1 + (self.config.layers if layers is None else layers)):
            # The input is written over, unless it is asked for.
            into = torch.empty_like(x_TH) if number - 1 in kept else x_TH
            x_TH = self._layers[self.config.group_of(number - 1)](run, x_TH, into)
            if number in kept:
                states[number] = x_TH
        return {number: x_TH[: run.tokens] for number, x_TH in states.items()}


class _Pass:
    """One pass through the layers: how long it is, and the loops.

    Attributes:
        tokens: T, without a tail.
        rows: with the tail that products are given.
    """

    def __init__(self, prepared: PreparedEncoder, inputs: Inputs, dtype: torch.dtype):
        config = prepared.config
        self.bounds = inputs.bounds
        self.tokens = self.rows = int(inputs.bounds[-1])
        if _by_onednn(dtype):
            self.rows = round_up(self.tokens, _ROUND_MANY if self.tokens > _MANY else _ROUND_FEW)
        self.heads, self.causal = config.heads, config.layer(0).causal
        exact = np.float64 if dtype == torch.float64 else np.float32
        self.eps, self.scale = exact(config.norm_eps), exact(config.head_size**-0.5)
        self.run = compiled.runner()

    def attend(
        self, queries: Tensor, bounds: NDArray[np.int64], keys: Tensor, bias: Vector
    ) -> Tensor:
        """The contexts of queries, [N, H]."""
        context = keys.new_empty(len(queries), len(bias) // 3)
        if len(context) > bounds[-1]:
            context[bounds[-1] :] = 0
        given = (queries, bounds, keys, self.bounds, self.heads, bias, self.scale, self.causal)
        self.run("attention", *given, context)
        return context


class _EmbeddingRows:
    """The embeddings of a batch."""

    def __init__(self, encoder: Encoder, dtype: torch.dtype):
        own = encoder.embeddings
        self._own, self._dtype, self._offset = own, dtype, encoder.config.place_offset
        weight = own.tokens.weight.detach()
        none = weight.new_empty(0, weight.shape[1])
        tables = [own.positions, own.segments]
        self._tables = [none if t is None else t.weight.detach() for t in tables]
        norm = [none[:, 0], none[:, 0]] if own.norm is None else [own.norm.weight, own.norm.bias]
        self._norm = [_vector(vector, dtype) for vector in norm]
        self._project = None
        if own.project is not None:
            self._project = (own.project.weight.detach().to(dtype), own.project.bias.detach())

    def __call__(self, run: _Pass, inputs: Inputs) -> Tensor:
        own, rows = self._own, run.rows
        words = own.tokens.weight.detach()
        positions, kinds = self._tables
        ids = (own.tokens.rows(inputs.tokens), inputs.table_rows(self._offset), inputs.segments)
        out = torch.empty(rows, words.shape[1], dtype=self._dtype)
        run.run(
            "embed", *(i[:rows] for i in ids), words, positions, kinds, *self._norm, run.eps, out
        )
        if self._project is None:
            return out
        weight, bias = self._project
        return F.linear(out, weight, bias.to(self._dtype))


class _Layer:
    """A layer on prepared weights; ``loop`` computes its activation."""

    def __init__(self, layer: Layer, dtype: torch.dtype, loop: str, *, share: bool):
        maps = (layer.attention.qkv, layer.attention.output, layer.expand, layer.contract)
        self._qkv, self._output, self._expand, self._contract = (
            Product(own.weight, dtype, share=share) for own in maps
        )
        self._b_qkv, self._b_output, self._b_expand, self._b_contract = (
            _vector(own.bias, dtype) for own in maps
        )
        assert isinstance(layer.attention_norm, LayerNorm)
        self._norm_1, self._norm_2 = (
            (_vector(norm.weight, dtype), _vector(norm.bias, dtype))
            for norm in (layer.attention_norm, layer.norm)
        )
        self._loop = loop

    def __call__(self, run: _Pass, x_TH: Tensor, out: Tensor) -> Tensor:
        """[T, H] -> [T, H], in ``out``, which may be the input."""
        qkv = self._qkv(x_TH)
        context = run.attend(qkv, run.bounds, qkv, self._b_qkv)
        return self._rest(run, x_TH, context, out)

    def at(self, run: _Pass, x_TH: Tensor, at: Tensor, bounds: NDArray[np.int64]) -> Tensor:
        """The outputs at N selected positions, of which ``bounds`` says where those of each
        sequence are: [T, H] -> [N, H]."""
        x_NH = x_TH.index_select(0, at)
        context = run.attend(self._queries(x_NH), bounds, self._keys(x_TH), self._b_qkv)
        return self._rest(run, x_NH, context, x_NH)

    def _rest(self, run: _Pass, x: Tensor, context: Tensor, out: Tensor) -> Tensor:
        run.run(
            "residual_norm", x, self._output(context), self._b_output, *self._norm_1, run.eps, out
        )
        inner = self._expand(out)
        run.run(self._loop, inner, self._b_expand)
        branch = self._contract(inner)
        run.run("residual_norm", out, branch, self._b_contract, *self._norm_2, run.eps, out)
        return out

    @cached_property
    def _queries(self) -> Product:
        return self._qkv.part(0, len(self._b_output))

    @cached_property
    def _keys(self) -> Product:
        return self._qkv.part(len(self._b_output), len(self._b_qkv))


@cache
def onednn_pays() -> bool:
    """Whether oneDNN computes products in fp32 in less time than what torch takes for them, so much
    less that it is no chance: on AMD's processors MKL takes twice the time.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    x, transposed = torch.ones(256, 512), torch.ones(512, 1024)

    def measure() -> Seconds:
        usual, other = least_seconds(
            lambda: torch.mm(x, transposed), lambda: _onednn(x, transposed.t())
        )
        return {"usual": usual, "oneDNN": other}

    seconds = measured_by_torch("products in fp32", measure)
    return seconds is not None and seconds["usual"] >= _MIN_GAIN * seconds["oneDNN"]


def _by_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes products on a CPU: in bf16 where it can, in fp32 where it pays."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 and onednn_pays()


def _onednn(x: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return out


class Product:
    """Products with a weight [out, in]: [R, in] -> [R, out].

    In fp32 the library takes least time from the transposed weight: for few rows a half to a third
    of what it takes from the weight as it is. So does oneDNN, where it is taken instead; in bf16 it
    packs the weight, where it computes that.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype, *, share: bool = False):
        values = weight.detach()
        self._for_onednn: Tensor | None = None
        onednn = values.device.type == "cpu" and _by_onednn(dtype)
        if dtype == torch.bfloat16:
            self._transposed = values.to(dtype).t()
            if onednn:
                packed = self._transposed.t().contiguous()
                self._for_onednn = torch.ops.mkldnn._reorder_linear_weight(packed, _PACKED_FOR)
            return
        self._transposed = values.t().to(dtype).contiguous()
        if share and dtype == weight.dtype:
            weight.data = self._transposed.t()
        if onednn:
            self._for_onednn = self._transposed.t()  # oneDNN reads it as fast as if it were packed

    def __call__(self, x: Tensor) -> Tensor:
        if self._for_onednn is not None:
            return _onednn(x, self._for_onednn)
        return torch.mm(x, self._transposed)

    def part(self, first: int, end: int) -> Product:
        """The products that are outputs ``first`` to ``end - 1``."""
        return Product(self._transposed[:, first:end].t(), self._transposed.dtype)


def _vector(parameter: Tensor, dtype: torch.dtype) -> Vector:
    """A vector of parameters, in the dtype of arithmetic."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    values: Vector = parameter.detach().to(exact, copy=True).numpy()
    return values
