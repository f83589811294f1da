"""The ONNX graph of a model, built by hand from its shape and its weights: no torch, no tracing.

B rows, L their length, H hidden size, A heads, D = H / A, E width of the embeddings, V vocabulary,
R tokens that a head reads, C outputs of a head.

The portable form has operators of the standard alone. The fused form has those of onnxruntime
(domain com.microsoft) where they compute the same in fewer passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bothways.errors import ModelError
from bothways.families.config import ModelConfig
from bothways.families.heads import (
    CHOICE,
    HEADS,
    LSTM_WEIGHTS,
    MASKED_LM,
    NEXT_SENTENCE,
    ON_LSTM,
    SPAN,
    activation_of,
    form_of,
    parameters,
    task_head,
)
from bothways.families.parameters import under
from bothways.io.files import new_file
from bothways.runtime.weights import Weights

OPSET = 17
"""Of the standard's operators; the first with LayerNormalization."""
_IR = 8
_MS = "com.microsoft"
# Low enough that its exponential is zero, and still a number in bf16 and fp16: with the lowest
# fp32, OpenVINO's bf16 computes nonsense.
_HIDDEN_SCORE = -1e4
_TOKENS = "encoder.embeddings.tokens.weight"
# GELU's lowest value is -0.16997.
_GELU_SHIFT = 0.17
IDS, MASK, SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
"""Names of the inputs."""
READ = "read."
"""Begins the name of the input with the tokens that a head reads."""
HIDDEN, ATTENTIONS = "hidden", "attentions"
"""The last layer's states among the outputs; ``hidden.3`` are those of the third layer, and
``attentions.3`` its probabilities."""
EXTERNAL = 2**30
"""Bytes of weights from which a file keeps them in a second one beside it: a file of this format is
one message, of at most 2 GB."""
EXTERNAL_SUFFIX = "_data"
_ALIGNED = 4096  # of weights in such a file, so that they can be mapped


def output_names(heads: Collection[str]) -> dict[str, tuple[str, ...]]:
    """How optimum, transformers.js and sentence-transformers call the outputs of a model with these
    heads: of each head, or of the last layer where there is none. A head for answers has two."""
    if not heads:
        return {HIDDEN: ("last_hidden_state",)}
    main = task_head(heads) or next(name for name in HEADS if name in heads)
    names: dict[str, tuple[str, ...]] = {name: (f"{name}_logits",) for name in heads}
    names |= {MASKED_LM: ("prediction_logits",), NEXT_SENTENCE: ("seq_relationship_logits",)}
    names[main] = ("logits",)
    if main == SPAN:
        names[main] = ("start_logits", "end_logits")
    return {name: names[name] for name in HEADS if name in heads}


class Outputs(NamedTuple):
    """What a graph computes.

    Attributes:
        heads: by their names in :data:`bothways.families.heads.HEADS`.
        hidden: the last layer's states, [B, L, H].
        layers: of which layers the states are asked for, [B, L, H] each; 0 is the embeddings.
        attentions: of which layers the probabilities are asked for, [B, A, L, L] each; from 1.
        chosen: heads on tokens compute the tokens that further inputs name, ``read.HEAD``, int64
            [R], places in the rows end to end, and give [R, C]; otherwise all, [B, L, C].
        others: inputs and outputs have the names and shapes that other programs expect
            (:func:`output_names`): choices are [B, choices, L], answers two outputs [B, L].
        ranges: the largest absolute values of the inputs of each linear map of the layers,
            ``range.NAME``, [inputs] each, over all tokens, padding among them.
    """

    heads: tuple[str, ...] = ()
    hidden: bool = False
    layers: tuple[int, ...] = ()
    attentions: tuple[int, ...] = ()
    chosen: bool = False
    others: bool = False
    ranges: bool = False


@dataclass(frozen=True)
class Int8:
    """How the layers' linear maps compute in 8 bits.

    Activations have a scale for each token, computed as they come, so that a text's result does not
    depend on the others in its batch. Weights have one for each output. Channels of the input that
    are far larger than others are made smaller, and the weights that they meet larger (Xiao et al.
    2023, SmoothQuant, equation 4 with alpha 0.5).

    Attributes:
        largest: for each linear map of :func:`linear_maps`, the largest absolute value of each
            input channel on texts of its kind, [inputs], as ``ranges`` of :class:`Outputs` gives
            it; without it nothing is made smaller.
        exact: linear maps that stay in fp32.
    """

    largest: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    exact: Collection[str] = ()


def linear_maps(config: ModelConfig) -> list[str]:
    """The layers' linear maps by our names, in the order in which they are computed."""
    parts = ("attention.qkv", "attention.output", "expand", "contract")
    return [
        f"encoder.layers.{number}.{part}"
        for number in range(config.distinct_layers)
        for part in parts
    ]


def build_graph(
    config: ModelConfig,
    state: Mapping[str, NDArray[Any]],
    outputs: Outputs,
    *,
    fused: bool = False,
    int8: Int8 | None = None,
) -> onnx.ModelProto:
    """The graph of a model.

    Its inputs are int64 [B, L]: the tokens' ids, 1 where there is a token and 0 for padding, on the
    right, and segments where the shape has more than one.

    Args:
        config: the shape.
        state: the weights under our names, as arrays of any float type; they become fp32.
        outputs: what it computes.
        fused: with onnxruntime's own operators.
        int8: the layers' linear maps and the token table in 8 bits; needs ``fused``.

    Raises:
        ModelError: the weights of a head are not there, or the network has relative places.
    """
    builder = _Builder(config, state, outputs, fused=fused, int8=int8)
    graph = builder.model()
    for tensor in graph.graph.initializer:
        if tensor.name in builder.later:
            tensor.raw_data = builder.later[tensor.name]().tobytes()
    return graph


def graph_and_weights(
    config: ModelConfig, state: Mapping[str, NDArray[Any]], outputs: Outputs, *, fused: bool = False
) -> tuple[onnx.ModelProto, dict[str, NDArray[np.float32]]]:
    """The graph of a model as :func:`build_graph` has it, but with its weights beside it, by name:
    a session of onnxruntime takes them from memory."""
    builder = _Builder(config, state, outputs, fused=fused, int8=None)
    graph = builder.model()
    for tensor in graph.graph.initializer:
        if tensor.name in builder.later:
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=tensor.name)
    return graph, {name: np.ascontiguousarray(made()) for name, made in builder.later.items()}


def write_graph(
    path: Path,
    config: ModelConfig,
    state: Mapping[str, NDArray[Any]],
    outputs: Outputs,
    *,
    fused: bool = False,
    int8: Int8 | None = None,
    external: int = EXTERNAL,
) -> None:
    """Write the graph of a model; the same model gives the same bytes.

    Args:
        path: of the file; weights of ``external`` bytes and more lie in another one beside it, and
            are read, turned and written one after the other.
        config, state, outputs, fused, int8: as for :func:`build_graph`.
        external: from how many bytes of weights on.

    Raises:
        ModelError: as :func:`build_graph`.
        DiskError: it could not be written.
    """
    builder = _Builder(config, state, outputs, fused=fused, int8=int8)
    graph = builder.model()
    weights = [tensor for tensor in graph.graph.initializer if tensor.name in builder.later]
    if sum(map(_size, weights)) < external:
        for tensor in weights:
            tensor.raw_data = builder.later[tensor.name]().tobytes()
    else:
        beside, offset = path.name + EXTERNAL_SUFFIX, 0
        with new_file(path.with_name(beside)) as file:
            for tensor in weights:
                file.seek(offset)
                file.write(np.ascontiguousarray(builder.later[tensor.name]()).data)
                tensor.data_location = TensorProto.EXTERNAL
                size = _size(tensor)
                for key, value in (("location", beside), ("offset", offset), ("length", size)):
                    tensor.external_data.add(key=key, value=str(value))
                offset += -(-size // _ALIGNED) * _ALIGNED
    with new_file(path) as file:
        file.write(graph.SerializeToString(deterministic=True))


def _size(tensor: onnx.TensorProto) -> int:
    """Bytes of a weight in fp32."""
    return 4 * int(math.prod(tensor.dims))


class _Builder:
    def __init__(
        self,
        config: ModelConfig,
        state: Mapping[str, NDArray[Any]],
        outputs: Outputs,
        *,
        fused: bool,
        int8: Int8 | None,
    ):
        assert fused or int8 is None, "products of 8 bits are onnxruntime's own"
        if config.layer(0).relative:
            raise ModelError(
                f"no graph is built for the relative places of {config.family}; use engine torch."
            )
        self.config, self.state, self.asked = config, state, outputs
        self.fused, self.int8 = fused, int8
        self.shapes = state.shapes if isinstance(state, Weights) else _shapes(state)
        # Weights whose values are read when they are written.
        self.later: dict[str, Callable[[], NDArray[np.float32]]] = {}
        self.ranges: dict[str, list[str]] = {}
        self.reads: list[str] = []
        self.nodes: list[onnx.NodeProto] = []
        self.values: dict[str, onnx.TensorProto] = {}
        self.results: list[tuple[str, list[str | int]]] = []
        self.scope = self.key_mask = ""
        self.maps = frozenset(linear_maps(config))

    def model(self) -> onnx.ModelProto:
        """The whole."""
        config, asked = self.config, self.asked
        size: list[str | int] = ["batch_size", "sequence_length"]
        x = self._embeddings()
        self._mask()
        if 0 in asked.layers:
            self._result(f"{HIDDEN}.0", x, [*size, config.hidden])
        for number in range(config.layers):
            self.scope = f"layers.{number}/"
            x = self._layer(x, number)
            if number + 1 < config.layers and number + 1 in asked.layers:
                self._result(f"{HIDDEN}.{number + 1}", x, [*size, config.hidden])
        self.scope = ""
        if config.final_norm:
            x = self._norm(x, "encoder.final_norm")
        if config.layers in asked.layers:
            self._result(f"{HIDDEN}.{config.layers}", x, [*size, config.hidden])
        if asked.hidden:
            self._result(HIDDEN, x, [*size, config.hidden])
        for name in asked.heads:
            self.scope = f"{name}/"
            self._head(name, x)
        self.scope = ""
        for name, found in self.ranges.items():
            width = self.shapes[f"{name}.weight"][1]
            self._result(f"range.{name}", self._op("Max", found), [width])
        names = [IDS, MASK, *([SEGMENTS] if config.segments > 1 else [])]
        if asked.others and CHOICE in asked.heads:
            size = ["batch_size", "num_choices", "sequence_length"]
            self._take_choices(names)
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, size) for n in names]
        inputs += [
            helper.make_tensor_value_info(name, TensorProto.INT64, [name]) for name in self.reads
        ]
        graph = helper.make_graph(
            self.nodes,
            "encoder",
            inputs,
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                for name, shape in self.results
            ],
            list(self.values.values()),
        )
        versions = [helper.make_opsetid("", OPSET)]
        if any(node.domain for node in self.nodes):
            versions.append(helper.make_opsetid(_MS, 1))
        return helper.make_model(
            graph, opset_imports=versions, ir_version=_IR, producer_name="bothways"
        )

    # -- the pieces of a graph

    def _op(self, kind: str, inputs: Sequence[str], name: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        return self._ops(kind, inputs, 1, name, **attributes)[0]

    def _ops(
        self, kind: str, inputs: Sequence[str], count: int, name: str = "", **attributes: Any
    ) -> list[str]:
        own = f"{self.scope}{name or kind.lower()}_{len(self.nodes)}"
        names = [own] if count == 1 else [f"{own}.{i}" for i in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=own, **attributes))
        return names

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        if name not in self.values:
            self.values[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def _ints(self, *values: int) -> str:
        return self._constant(f"ints_{'_'.join(map(str, values))}", np.array(values, np.int64))

    def _int(self, value: int) -> str:
        return self._constant(f"int_{value}", np.array(value, np.int64))

    def _number(self, value: float) -> str:
        return self._constant(f"number_{value!r}", np.array(value, np.float32))

    def _weight(self, name: str, *, turned: bool = False) -> str:
        """A weight, as [inputs, outputs] where it is the matrix of a linear map."""
        shape = self.shapes[name]
        if turned:
            return self._later(
                f"{name}.turned", shape[::-1], lambda: self.state[name].astype(np.float32).T
            )
        return self._later(name, shape, lambda: self.state[name].astype(np.float32))

    def _later(
        self, name: str, shape: Sequence[int], values: Callable[[], NDArray[np.float32]]
    ) -> str:
        """A weight whose values are read when it is written."""
        if name not in self.values:
            self.values[name] = TensorProto(
                name=name, dims=list(shape), data_type=TensorProto.FLOAT
            )
            self.later[name] = values
        return name

    def _result(self, name: str, value: str, shape: list[str | int]) -> None:
        names = output_names(self.asked.heads).get(name, (name,)) if self.asked.others else (name,)
        if self.asked.others and name == CHOICE:
            size = self._op("Shape", [f"{IDS}.choices"], end=2)
            value, shape = self._op("Reshape", [value, size]), ["batch_size", "num_choices"]
        elif len(names) > 1:
            last = len(shape) - 1
            parts = self._ops("Split", [value, self._ints(*[1] * len(names))], len(names), axis=-1)
            for shown, part in zip(names, parts, strict=True):
                self._give(shown, self._op("Squeeze", [part, self._ints(last)]), shape[:-1])
            return
        self._give(names[0], value, shape)

    def _give(self, shown: str, value: str, shape: list[str | int]) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [shown], name=f"output/{shown}"))
        self.results.append((shown, shape))

    def _take_choices(self, names: Sequence[str]) -> None:
        """Before all nodes: inputs [B, choices, L] become rows."""
        for node in self.nodes:
            for i, name in enumerate(node.input):
                if name in names:
                    node.input[i] = f"{name}.rows"
                elif name == f"{IDS}.choices":
                    node.input[i] = IDS
        nodes, self.nodes = self.nodes, []
        length = self._op("Shape", [IDS], "length", start=2)
        size = self._op("Concat", [self._ints(-1), length], "rows", axis=0)
        for name in names:
            self.nodes.append(
                helper.make_node("Reshape", [name, size], [f"{name}.rows"], name=f"{name}.rows")
            )
        self.nodes += nodes

    def _linear(self, x: str, name: str) -> str:
        """[..., inputs] -> [..., outputs]."""
        y = self._product(x, name)
        own = self._bias(name)
        return self._op("Add", [y, own]) if own else y

    def _linear_of_rows(self, x: str, name: str) -> str:
        """[B, inputs] -> [B, outputs]. A product of one row adds up in another order than one of
        several; in 8 bits, where a text's bits do not depend on its batch, each row has its own."""
        if self.int8 is None:
            return self._linear(x, name)
        # [outputs, inputs] times [B, inputs, 1]: a product of rows would be made one of them all.
        columns = self._op("Unsqueeze", [x, self._ints(2)])
        y = self._op("MatMul", [self._weight(f"{name}.weight"), columns])
        y = self._op("Squeeze", [y, self._ints(2)])
        own = self._bias(name)
        return self._op("Add", [y, own]) if own else y

    def _product(self, x: str, name: str) -> str:
        """A linear map without its bias."""
        if self.asked.ranges and name in self.maps:
            seen = self._op("Abs", [self._shifted(x, name)])
            seen = self._op("ReduceMax", [seen], axes=[0, 1], keepdims=0)
            self.ranges.setdefault(name, []).append(seen)
        if self._in_8_bits(name):
            return self._product_of_8_bits(x, name)
        return self._op("MatMul", [x, self._weight(f"{name}.weight", turned=True)], name)

    def _bias(self, name: str) -> str:
        """The bias that a linear map's product needs; empty without one."""
        own = f"{name}.bias"
        if not (self._in_8_bits(name) and self._shift(name)):
            return self._weight(own) if own in self.state else ""
        shifted = f"{own}.shifted"
        if shifted not in self.values:
            weight, scale, factors = self._weight_of_8_bits(name)
            lost = (weight.astype(np.float64) * scale[:, None] / factors).sum(1) * self._shift(name)
            kept = self.state[own].astype(np.float64) if own in self.state else 0.0
            self._constant(shifted, (kept - lost).astype(np.float32))
        return shifted

    def _in_8_bits(self, name: str) -> bool:
        return self.int8 is not None and name in self.maps and name not in self.int8.exact

    def _shift(self, name: str) -> float:
        """What is added to a linear map's inputs so that none is negative: GELU's are at least
        -0.17, and unsigned numbers have twice the resolution for them."""
        config = self.config
        after_gelu = name.endswith(".contract") and not config.gated
        return _GELU_SHIFT if after_gelu and config.activation == "gelu" else 0.0

    def _shifted(self, x: str, name: str) -> str:
        shift = self._shift(name)
        return self._op("Add", [x, self._number(shift)]) if shift else x

    def _weight_of_8_bits(
        self, name: str
    ) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]:
        """A weight [outputs, inputs] in 8 bits, the scale of each output, and the factors that its
        inputs are divided by."""
        assert self.int8 is not None
        weight = self.state[f"{name}.weight"].astype(np.float32)
        factors = np.ones(weight.shape[1], np.float32)
        if name in self.int8.largest:
            inputs = np.maximum(self.int8.largest[name], 1e-5).astype(np.float32)
            factors = np.sqrt(inputs / np.maximum(np.abs(weight).max(0), 1e-5))
            factors /= np.exp(np.log(factors).mean())
        weight = weight * factors
        scale = np.abs(weight).max(1) / 127
        scale[scale == 0] = 1
        return np.rint(weight / scale[:, None]).astype(np.int8), scale, factors

    def _product_of_8_bits(self, x: str, name: str) -> str:
        weight, weight_scale, factors = self._weight_of_8_bits(name)
        outputs, inputs = weight.shape
        x = self._shifted(self._op("Reshape", [x, self._ints(-1, inputs)]), name)
        if (factors != 1).any():
            x = self._op("Mul", [x, self._constant(f"{name}.smaller", 1 / factors)])
        most = self._op("ReduceMax", [x], axes=[1], keepdims=0)
        zero = 0 if self._shift(name) else 128
        if zero:
            least = self._op("ReduceMin", [x], axes=[1], keepdims=0)
            most = self._op("Max", [most, self._op("Neg", [least])])
        scale = self._op("Mul", [most, self._number(1 / (127 if zero else 255))])
        scale = self._op("Max", [scale, self._number(1e-9)])
        point = np.array([zero], np.uint8)
        zeros = self._op(
            "ConstantOfShape",
            [self._op("Shape", [scale])],
            value=numpy_helper.from_array(point),
        )
        rows = self._op("QuantizeLinear", [x, scale, zeros], axis=0)
        y = self._op(
            "MatMulIntegerToFloat",
            [
                rows,
                self._constant(f"{name}.weight.int8", weight.T),
                self._number(1.0),
                self._constant(f"{name}.weight.scale", weight_scale),
                self._constant(f"zero_{zero}", point[0]),
            ],
            name,
            domain=_MS,
        )
        y = self._op("Mul", [y, self._op("Unsqueeze", [scale, self._ints(1)])])
        size = self._op("Concat", [self._op("Shape", [IDS]), self._ints(outputs)], axis=0)
        return self._op("Reshape", [y, size])

    def _norm(self, x: str, name: str) -> str:
        weights = [self._weight(f"{name}.{part}") for part in self._norm_parts(name)]
        if self.config.norm == "rms":
            mean = self._op("ReduceMean", [self._op("Mul", [x, x])], axes=[-1], keepdims=1)
            root = self._op("Sqrt", [self._op("Add", [mean, self._number(self.config.norm_eps)])])
            return self._op("Mul", [self._op("Div", [x, root]), *weights])
        return self._op(
            "LayerNormalization", [x, *weights], name, axis=-1, epsilon=self.config.norm_eps
        )

    def _norm_parts(self, name: str) -> list[str]:
        return [part for part in ("weight", "bias") if f"{name}.{part}" in self.state]

    def _activate(self, kind: str, x: str) -> str:
        if kind == "relu":
            return self._op("Relu", [x])
        if kind == "tanh":
            return self._op("Tanh", [x])
        if kind == "silu":
            return self._op("Mul", [x, self._op("Sigmoid", [x])])
        if kind == "gelu":  # x / 2 (1 + erf(x / sqrt 2)), in the order that engines recognise
            inner = self._op("Erf", [self._op("Div", [x, self._number(math.sqrt(2))])])
            whole = self._op("Mul", [x, self._op("Add", [inner, self._number(1.0)])])
            return self._op("Mul", [whole, self._number(0.5)])
        cube = self._op("Mul", [self._op("Mul", [x, x]), x])
        inner = self._op("Add", [x, self._op("Mul", [cube, self._number(0.044715)])])
        inner = self._op("Tanh", [self._op("Mul", [inner, self._number(math.sqrt(2 / math.pi))])])
        half = self._op("Mul", [x, self._number(0.5)])
        return self._op("Mul", [half, self._op("Add", [inner, self._number(1.0)])])

    # -- the encoder

    def _embeddings(self) -> str:
        """[B, L, H]."""
        config, own = self.config, "encoder.embeddings"
        x = self._tokens()
        ones = self._op("Add", [self._op("Mul", [IDS, self._int(0)]), self._int(1)])
        # A cumulative sum keeps the shape [batch, sequence], which onnxruntime needs to fuse.
        places = self._op("Sub", [self._op("CumSum", [ones, self._int(1)]), self._int(1)])
        self.places = places
        if config.place == "learned":
            at = self._table_rows(places)
            table = self._weight(f"{own}.positions.weight")
            x = self._op("Add", [x, self._op("Gather", [table, at], "positions")])
        if config.segments:
            table = self._weight(f"{own}.segments.weight")
            which = (
                SEGMENTS if config.segments > 1 else self._op("Mul", [IDS, self._int(0)], "segment")
            )
            x = self._op("Add", [x, self._op("Gather", [table, which], "segments")])
        if config.embedding_norm:
            x = self._norm(x, f"{own}.norm")
        return self._linear(x, f"{own}.project") if config.projects else x

    def _table_rows(self, places: str) -> str:
        """As :meth:`bothways.batch.Batch.table_rows`, [B, L]."""
        offset = self.config.place_offset
        if not offset:
            return self._op("Add", [places, self._int(0)])
        pads = self._op("Equal", [IDS, self._int(offset - 1)])
        real = self._op("Cast", [self._op("Not", [pads])], to=TensorProto.INT64)
        counted = self._op("Mul", [self._op("CumSum", [real, self._int(1)]), real])
        return self._op("Add", [counted, self._int(offset - 1)])

    def _tokens(self) -> str:
        """The rows of the token table, [B, L, E]."""
        if self.int8 is None:
            return self._op("Gather", [self._table(), IDS], "tokens")
        table, scale = self._table_of_8_bits()
        rows = self._op("Gather", [self._constant(f"{_TOKENS}.int8", table), IDS], "tokens")
        rows = self._op("Cast", [rows], to=TensorProto.FLOAT)
        scales = self._op("Gather", [self._constant(f"{_TOKENS}.scale", scale[:, None]), IDS])
        return self._op("Mul", [rows, scales])

    def _table(self, name: str = _TOKENS) -> str:
        """A table without the rows that only fill it up, [V, E]."""
        count = self.config.vocab_size
        return self._later(
            name,
            (count, self.config.embedding_width),
            lambda: self.state[name][:count].astype(np.float32),
        )

    def _table_of_8_bits(self) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        rows = self.state[_TOKENS][: self.config.vocab_size].astype(np.float32)
        scale = np.abs(rows).max(1) / 127
        scale[scale == 0] = 1
        return np.rint(rows / scale[:, None]).astype(np.int8), scale

    def _mask(self) -> None:
        """What is added to scores, 0 or very low, that broadcasts to [B, A, L, L]: for layers that
        attend to everything, and for local ones."""
        config = self.config
        real = self._op("Cast", [MASK], to=TensorProto.FLOAT)
        real = self._op("Unsqueeze", [real, self._ints(1, 2)])
        hidden = self._op("Sub", [self._number(1.0), real])
        self.whole = self.local = self._op("Mul", [hidden, self._number(_HIDDEN_SCORE)], "hidden")
        causal, window = config.layer(0).causal, max(spec.window for spec in config.attention)
        if causal or window:
            rows = self._op("Unsqueeze", [self.places, self._ints(1, 3)])  # [B, 1, L, 1]
            columns = self._op("Unsqueeze", [self.places, self._ints(1, 2)])
            distance = self._op("Sub", [columns, rows])
            if causal:
                later = self._op("Greater", [distance, self._int(0)])
                self.whole = self.local = self._hide(self.whole, later)
            if window:
                far = self._op("Greater", [self._op("Abs", [distance]), self._int(window)])
                self.local = self._hide(self.whole, far)
        bases = dict.fromkeys(spec.rotary for spec in config.attention if spec.rotary)
        self.rotations = {base: self._rotation(base) for base in bases}

    def _hide(self, scores: str, where: str) -> str:
        more = self._op("Cast", [where], to=TensorProto.FLOAT)
        more = self._op("Mul", [more, self._number(_HIDDEN_SCORE)])
        return self._op("Add", [scores, more])

    def _rotation(self, base: float) -> tuple[str, str]:
        """Cosines and sines of the places, [B, L, 1, D], from tables made in fp32."""
        size = self.config.head_size
        pairs = np.arange(0, size, 2, dtype=np.float32)
        steps = np.float32(1) / np.float32(base) ** (pairs / np.float32(size))
        angles = np.arange(self.config.positions, dtype=np.float32)[:, None] * steps
        adjacent = self.config.rotary_pairs == "adjacent"
        angles = np.repeat(angles, 2, -1) if adjacent else np.concatenate([angles, angles], -1)
        found = []
        for name, values in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
            table = self._constant(f"{name}_{base:g}", values.astype(np.float32))
            rows = self._op("Gather", [table, self.places])
            found.append(self._op("Unsqueeze", [rows, self._ints(2)]))
        return found[0], found[1]

    def _rotate(self, x: str, rotation: tuple[str, str]) -> str:
        """[B, L, A, D] -> [B, L, A, D]."""
        half, heads = self.config.head_size // 2, self.config.heads
        adjacent = self.config.rotary_pairs == "adjacent"
        parts = self._op("Reshape", [x, self._ints(0, 0, heads, half, 2)]) if adjacent else x
        width = 1 if adjacent else half
        first, second = self._ops("Split", [parts, self._ints(width, width)], 2, axis=-1)
        turned = self._op("Concat", [self._op("Neg", [second]), first], axis=-1)
        if adjacent:
            turned = self._op("Reshape", [turned, self._ints(0, 0, heads, 2 * half)])
        cos, sin = rotation
        return self._op("Add", [self._op("Mul", [x, cos]), self._op("Mul", [turned, sin])])

    def _layer(self, x: str, number: int) -> str:
        """[B, L, H] -> [B, L, H]."""
        config = self.config
        own = f"encoder.layers.{config.group_of(number)}"
        pre = config.norm_at == "pre"
        first = f"{own}.attention_norm"
        read = self._norm(x, first) if pre and self._norm_parts(first) else x
        mixed = self._attention(read, own, number)
        x = self._join(mixed, x, f"{own}.attention.output", "" if pre else first)
        read = self._norm(x, f"{own}.norm") if pre else x
        inner = self._feed_forward(read, own)
        return self._join(inner, x, f"{own}.contract", "" if pre else f"{own}.norm")

    def _join(self, branch: str, x: str, last: str, norm: str) -> str:
        """The sum of a branch, the bias of its last linear map and x, normalised where a norm is
        named."""
        parts = self._norm_parts(norm) if norm else []
        bias = self._bias(last)
        if self.fused and len(parts) == 2:
            weights = [self._weight(f"{norm}.{part}") for part in parts]
            more = [bias] if bias else []
            return self._op(
                "SkipLayerNormalization",
                [branch, x, *weights, *more],
                norm,
                domain=_MS,
                epsilon=self.config.norm_eps,
            )
        if bias:
            branch = self._op("Add", [branch, bias])
        x = self._op("Add", [branch, x])
        return self._norm(x, norm) if norm else x

    def _feed_forward(self, x: str, own: str) -> str:
        """Without the last bias."""
        config = self.config
        bias = self._bias(f"{own}.expand")
        if self.fused and not config.gated and config.activation == "gelu" and bias:
            inner = self._product(x, f"{own}.expand")
            inner = self._op("BiasGelu", [inner, bias], domain=_MS)
        else:
            inner = self._linear(x, f"{own}.expand")
            if config.gated:
                size = self._ints(config.intermediate, config.intermediate)
                inner, gate = self._ops("Split", [inner, size], 2, axis=-1)
                inner = self._op("Mul", [self._activate(config.activation, inner), gate])
            else:
                inner = self._activate(config.activation, inner)
        return self._product(inner, f"{own}.contract")

    def _attention(self, x: str, own: str, number: int) -> str:
        """Without the last bias, [B, L, H]."""
        config = self.config
        A, D, H = config.heads, config.head_size, config.hidden
        spec = config.layer(number)
        shown = number + 1 in self.asked.attentions
        scores_mask = self.local if spec.window else self.whole
        plainly = spec.reads_all and not (spec.rotary or shown or config.kv_heads)
        if self.fused and plainly:
            qkv = self._product(x, f"{own}.attention.qkv")
            q, k, v = self._ops("Split", [qkv, self._ints(H, H, H)], 3, axis=-1)
            biases = self._bias(f"{own}.attention.qkv")
            mixed = self._op(
                "MultiHeadAttention",
                [q, k, v, biases, self._key_mask()],
                domain=_MS,
                num_heads=A,
            )
            return self._product(mixed, f"{own}.attention.output")
        qkv = self._linear(x, f"{own}.attention.qkv")
        q, k, v = (
            self._op("Reshape", [part, self._ints(0, 0, width // D, D)])
            for part, width in zip(
                self._ops("Split", [qkv, self._ints(*config.qkv_rows)], 3, axis=-1),
                config.qkv_rows,
                strict=True,
            )
        )
        if config.kv_heads:
            heads = self._ints(*np.repeat(np.arange(config.kv_heads), A // config.kv_heads))
            k, v = (self._op("Gather", [part, heads], axis=2) for part in (k, v))
        if spec.rotary:
            rotation = self.rotations[spec.rotary]
            q, k = self._rotate(q, rotation), self._rotate(k, rotation)
        q = self._op("Transpose", [q], perm=[0, 2, 1, 3])
        k = self._op("Transpose", [k], perm=[0, 2, 3, 1])
        v = self._op("Transpose", [v], perm=[0, 2, 1, 3])
        scores = self._op("Mul", [self._op("MatMul", [q, k]), self._number(D**-0.5)])
        weights = self._op("Softmax", [self._op("Add", [scores, scores_mask])], axis=-1)
        if shown:
            size: list[str | int] = ["batch_size", A, "sequence_length", "sequence_length"]
            self._result(f"{ATTENTIONS}.{number + 1}", weights, size)
        mixed = self._op("Transpose", [self._op("MatMul", [weights, v])], perm=[0, 2, 1, 3])
        mixed = self._op("Reshape", [mixed, self._ints(0, 0, H)])
        return self._product(mixed, f"{own}.attention.output")

    def _key_mask(self) -> str:
        """The mask of padding as the fused operator takes it, int32 [B, L]."""
        if not self.key_mask:
            self.key_mask = self._op("Cast", [MASK], to=TensorProto.INT32)
        return self.key_mask

    # -- heads

    def _head(self, name: str, x: str) -> None:
        """Compute a head and add its output."""
        own = under(parameters(self.config, {name: 1}), name)
        if own and not any(f"{name}.{part}" in self.state for part in own):
            raise ModelError(f"this model has no weights of a {name} head.")
        form = form_of(name, self.config)
        reads = HEADS[name].reads
        shape: list[str | int] = ["batch_size", "sequence_length"]
        if self._on_lstm(name):
            form = ON_LSTM
            x, x_B = self._lstm(x)
        elif reads == "sequence":
            x_B = self._sequence(x)
        if reads == "sequence":
            x, shape = x_B, ["batch_size"]
        elif self.asked.chosen:
            size = self._ints(-1, self._width(name))
            read = f"{READ}{name}"
            self.reads.append(read)
            x = self._op("Gather", [self._op("Reshape", [x, size]), read], "read")
            shape = [read]
        linear = self._linear_of_rows if reads == "sequence" else self._linear
        if form.pooled:
            x = self._op("Tanh", [linear(x, "encoder.pooler")])
        if reads == "masked":
            self._result(name, self._vocabulary(x, name), [*shape, self.config.vocab_size])
            return
        if form.dense:
            dense = linear(x, f"{name}.dense")
            x = self._activate(activation_of(form, self.config), dense)
        if form.norm:
            x = self._norm(x, f"{name}.norm")
        outputs = self.shapes[f"{name}.output.weight"][0]
        self._result(name, linear(x, f"{name}.output"), [*shape, outputs])

    def _on_lstm(self, name: str) -> bool:
        return HEADS[name].task and LSTM_WEIGHTS[0] in self.state

    def _width(self, name: str) -> int:
        units = self.shapes["lstm.layers.0.weight_hh_l0"][1] if self._on_lstm(name) else 0
        return 2 * units or self.config.hidden

    def _vocabulary(self, x: str, name: str) -> str:
        """The masked-LM head, [..., H] -> [..., V]; the output's matrix is the token table."""
        config = self.config
        form = form_of(name, config)
        if form.dense:
            x = self._activate(activation_of(form, config), self._linear(x, f"{name}.dense"))
        if form.norm:
            x = self._norm(x, f"{name}.norm")
        output = self._table() if config.tied else self._table(f"{name}.decoder.weight")
        rows = self._op("Reshape", [x, self._ints(-1, config.embedding_width)])
        bias = [self._weight(f"{name}.bias")] if f"{name}.bias" in self.state else []
        logits = self._op("Gemm", [rows, output, *bias], "vocabulary", transB=1)
        if self.asked.chosen:
            return logits
        size = self._op("Concat", [self._op("Shape", [IDS]), self._ints(config.vocab_size)], axis=0)
        return self._op("Reshape", [logits, size])

    def _sequence(self, x: str) -> str:
        """What stands for each row, [B, L, H] -> [B, H]."""
        config = self.config
        if config.read_at == "last":
            return self._at(x, self._last())
        if config.read_at == "mean":
            real = self._op("Unsqueeze", [MASK, self._ints(2)])
            real = self._op("Cast", [real], to=TensorProto.FLOAT)
            sums = self._op("ReduceSum", [self._op("Mul", [x, real]), self._ints(1)], keepdims=0)
            return self._op("Div", [sums, self._op("ReduceSum", [real, self._ints(1)], keepdims=0)])
        return self._op("Gather", [x, self._int(0)], "first", axis=1)

    def _last(self) -> str:
        """The place of each row's last token, [B]."""
        counts = self._op("ReduceSum", [MASK, self._ints(1)], keepdims=0)
        return self._op("Sub", [counts, self._int(1)])

    def _at(self, x: str, places: str) -> str:
        """One place of each row, [B, L, H] and [B] -> [B, H]."""
        at = self._op("Unsqueeze", [places, self._ints(1)])
        return self._op("GatherND", [x, at], batch_dims=1)

    def _lstm(self, x: str) -> tuple[str, str]:
        """A BiLSTM's outputs for all tokens, [B, L, 2 U], and its final states, [B, 2 U]."""
        own = "lstm.layers.0."
        units = self.shapes[f"{own}weight_hh_l0"][1]

        def both(part: str) -> list[NDArray[np.float32]]:
            return [_in_order(self.state[f"{own}{part}_l0{way}"]) for way in ("", "_reverse")]

        lengths = self._op("ReduceSum", [MASK, self._ints(1)], keepdims=0)
        weights = [
            self._constant("lstm.W", np.stack(both("weight_ih"))),
            self._constant("lstm.R", np.stack(both("weight_hh"))),
            self._constant(
                "lstm.B", np.concatenate([np.stack(both("bias_ih")), np.stack(both("bias_hh"))], 1)
            ),
        ]
        y, y_h = self._ops(
            "LSTM",
            [
                self._op("Transpose", [x], perm=[1, 0, 2]),
                *weights,
                self._op("Cast", [lengths], to=TensorProto.INT32),
            ],
            2,
            hidden_size=units,
            direction="bidirectional",
        )
        y = self._op("Transpose", [y], perm=[2, 0, 1, 3])  # [L, 2, B, U] -> [B, L, 2, U]
        final = self._op("Transpose", [y_h], perm=[1, 0, 2])
        size = self._ints(0, 0, 2 * units)
        return self._op("Reshape", [y, size]), self._op("Reshape", [final, self._ints(0, -1)])


def _shapes(state: Mapping[str, NDArray[Any]]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in state.items()}


def _in_order(weight: NDArray[Any]) -> NDArray[np.float32]:
    """The gates of torch (input, forget, cell, output) in the order of ONNX (input, output, forget,
    cell)."""
    i, f, c, o = np.split(weight.astype(np.float32), 4)
    return np.concatenate([i, o, f, c])
