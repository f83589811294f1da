"""The engine of onnxruntime, and what engines of ONNX graphs have in common: no torch; a processor.

A graph is built from a folder's weights (:mod:`bothways.runtime.onnx_graph`), one for each set of
heads and layers that is asked for together. A folder without weights has its graph in a file.

B sequences, L tokens of the longest, T tokens of the flat batch, R tokens that a head reads.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bothways.batch import Batch
from bothways.errors import InputError, ModelError, is_out_of_memory
from bothways.families.heads import CHOICE, HEADS
from bothways.io.folder_files import checked
from bothways.io.processes import usual_threads
from bothways.runtime.checksums import NOT_LISTED, NOT_LISTED_REMEDY, changed_files
from bothways.runtime.engine import NONE, Inside, UnsuitedError, check_precision, layer_name
from bothways.runtime.folder import GRAPH, GRAPH_OF_8_BITS, LoadedModel, graph_in
from bothways.runtime.onnx_graph import (
    ATTENTIONS,
    HIDDEN,
    IDS,
    MASK,
    READ,
    SEGMENTS,
    Outputs,
    graph_and_weights,
    output_names,
    write_graph,
)
from bothways.runtime.speed import PRODUCT, least_seconds
from bothways.runtime.weights import Weights
from bothways.runtime.whose_graph import of_another_model, stored_beside

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Given = Mapping[str, NDArray[Any]]

EXACT_8_BITS = ("session.x64quantprecision", "1")
"""An entry of onnxruntime's sessions. On x86 processors without VNNI sums of two products
in 8 bits do not fit the 16 bits that they are kept in, and are cut off: outputs are up to a fifth
off. With it they are computed right there; on others it changes nothing."""


class Session(ABC):
    """A graph that can be computed.

    Attributes:
        inputs: their names.
        outputs: their names.
    """

    inputs: frozenset[str]
    outputs: frozenset[str]

    @abstractmethod
    def run(self, given: Given, wanted: Sequence[str]) -> list[Floats]:
        """The outputs of these names."""


class GraphEngine(ABC):
    """Computes a model's outputs on padded rows, as a graph.

    Args:
        loaded: a model folder.
        precision: one of its precisions.
        threads: of a computation; 0 is the usual number.
    """

    name: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]]
    """Of every folder."""
    graphs: ClassVar[bool] = True
    """It computes folders that have a graph alone."""
    fused: ClassVar[bool] = False
    """Whether it has the operators of onnxruntime."""
    batch_tokens: ClassVar[int] = 512
    """Of a batch; with 4,096 a token takes three times as long."""
    pads: ClassVar[bool] = True

    def __init__(self, loaded: LoadedModel, *, precision: str = "fp32", threads: int = 0):
        self.precision = precision
        # The folder lets go of its weights when it has an engine; graphs are built later.
        self._config, self._weights, self._heads = loaded.config, loaded.weights, loaded.heads
        self._folder, self._threads = loaded.folder, threads or usual_threads()
        self._file: Path | None = None
        if precision == "int8" or self._weights is None:
            assert loaded.folder is not None, "a folder that was opened is somewhere"
            own = (
                loaded.folder / GRAPH_OF_8_BITS if precision == "int8" else graph_in(loaded.folder)
            )
            self._file = own or loaded.folder / GRAPH
            _check_file(self._file, loaded.folder, self._weights)
        self._sessions: dict[Outputs | Path, Session] = {}
        self._lock = Lock()

    @classmethod
    def open(cls, loaded: LoadedModel) -> Self:
        """The engine of a model folder.

        Raises:
            UnsuitedError: a GPU or a precision is requested that this engine does not have.
            ModelError: the file of a graph is damaged, or not of its folder.
        """
        options = loaded.options
        if options.device == "cuda":
            raise UnsuitedError(
                f"the engine {cls.name} computes on the processor alone; choose another for a GPU"
            )
        cls.check(loaded)
        return cls(loaded, precision=options.precision)

    @classmethod
    def check(cls, loaded: LoadedModel) -> None:
        """Refuse a network or a precision that this engine does not have for a folder.

        Raises:
            UnsuitedError: naming it.
        """
        if loaded.config.layer(0).relative:
            raise UnsuitedError(
                f"the engine {cls.name} does not compute relative places; choose torch"
            )
        check_precision(cls.name, cls.precisions, loaded.options.precision)

    @classmethod
    @abstractmethod
    def session(cls, graph: Path | bytes, precision: str, threads: int) -> Session:
        """A session of a graph, in a file or serialized."""

    def load(self, graph: Path | bytes) -> Session:
        """A session of a graph, as this engine computes."""
        return self.session(graph, self.precision, self._threads)

    @classmethod
    def product_seconds(cls, device: str) -> dict[str, float]:
        """Seconds of a product, by precision, on the processor; nothing for a GPU."""
        if device == "cuda":
            return {}
        rows, inner, columns = PRODUCT
        weight = np.ones((inner, columns), np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "product",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", inner])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", columns])],
            [numpy_helper.from_array(weight, "w")],
        )
        model = helper.make_model(
            graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]
        ).SerializeToString()
        x = np.ones((rows, inner), np.float32)
        sessions = [cls.session(model, name, usual_threads()) for name in cls.precisions]
        seconds = least_seconds(*(partial(own.run, {"x": x}, ["y"]) for own in sessions))
        return dict(zip(cls.precisions, seconds, strict=True))

    def working(self) -> AbstractContextManager[None]:
        """As :meth:`bothways.runtime.engine.Engine.working`: nothing of the process is changed."""
        return nullcontext()

    def compute(
        self, batch: Batch, heads: Mapping[str, Integers] = NONE, layers: Sequence[int] = ()
    ) -> dict[str, Floats]:
        """As :meth:`bothways.runtime.engine.Engine.compute`, all in one pass."""
        given, real_BL = self._rows(batch)
        at = {
            head: _in_rows(places, batch)
            for head, places in heads.items()
            if HEADS[head].reads != "sequence"
        }
        if self._file is not None:
            return self._compute_file(self._file, given, real_BL, heads, at, layers)
        given |= {f"{READ}{head}": places for head, places in at.items()}
        asked = Outputs(tuple(sorted(heads)), layers=tuple(sorted(set(layers))), chosen=True)
        session = self._session(asked)
        states = session.run(given, [*asked.heads, *(f"{HIDDEN}.{n}" for n in asked.layers)])
        found = {head: states.pop(0) for head in asked.heads}
        for layer, own in zip(asked.layers, states, strict=True):
            found[layer_name(layer)] = _tokens(own, real_BL)
        return found

    def inspect(self, batch: Batch) -> Inside:
        """As :class:`bothways.runtime.engine.Engine` has it: from a graph of its own, in which
        attention is not fused.

        Raises:
            ModelError: the folder's graph is in a file, which gives only its outputs.
        """
        if self._file is not None:
            raise ModelError(
                f"{self._file} does not give states and attention; use the model folder with the "
                "weights that it was made from, in fp32."
            )
        numbers = range(1, self._config.layers + 1)
        asked = Outputs(layers=(0, *numbers), attentions=tuple(numbers))
        given, _ = self._rows(batch)
        names = [f"{HIDDEN}.{n}" for n in asked.layers], [f"{ATTENTIONS}.{n}" for n in numbers]
        found = self._session(asked).run(given, [*names[0], *names[1]])
        states = found[: len(names[0])]
        return np.concatenate(states), np.concatenate(found[len(states) :])

    def _rows(self, batch: Batch) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_] | None]:
        """A graph's inputs, and where they are tokens, bool [B, L]; None if there is no padding."""
        self._config.refuse_outside(batch.longest, _ends(batch.tokens), _ends(batch.segments))
        shape, end = (batch.sequences, batch.longest), int(batch.bounds[-1])
        if end == batch.sequences * batch.longest:  # as of one text, whose microseconds show
            ids, segments = batch.tokens[:end].reshape(shape), batch.segments[:end].reshape(shape)
            return {IDS: ids, MASK: np.ones(shape, np.int64), SEGMENTS: segments}, None
        places_BL = _padded_places(batch)
        real_BL = places_BL >= 0

        def rows(values: Integers) -> Integers:
            return np.where(real_BL, values[np.maximum(places_BL, 0)], 0)

        given: dict[str, NDArray[Any]] = {IDS: rows(batch.tokens), MASK: real_BL.astype(np.int64)}
        return {**given, SEGMENTS: rows(batch.segments)}, real_BL

    def _compute_file(
        self,
        file: Path,
        given: Given,
        real_BL: NDArray[np.bool_] | None,
        heads: Mapping[str, Integers],
        at: Mapping[str, Integers],
        layers: Sequence[int],
    ) -> dict[str, Floats]:
        """The outputs that a file has, at the tokens that are asked for."""
        session, shape = self._session(file), given[IDS].shape
        names = output_names(self._heads)
        missing = [head for head in heads if head not in names]
        if missing or (layers and (self._heads or set(layers) != {self._config.layers})):
            what = HEADS[missing[0]].title if missing else f"states of layer {layers[0]}"
            raise ModelError(
                f"{file} gives {', '.join(sorted(session.outputs))}, not the {what}; use the model "
                "folder with the weights that it was made from."
            )
        if CHOICE in self._heads:
            given = {name: rows[:, None] for name, rows in given.items()}
        asked = {
            **{head: names[head] for head in heads},
            **({HIDDEN: names[HIDDEN]} if layers else {}),
        }
        outputs = [name for own in asked.values() for name in own]
        values = dict(zip(outputs, self._run_file(file, session, given, outputs), strict=True))
        found: dict[str, Floats] = {}
        for name, own in asked.items():
            value = values[own[0]]
            for part in own:
                one = len(own) > 1  # an output for each column
                self._check_output(file, part, name, values[part], shape, one=one)
            if len(own) > 1:
                value = np.stack([values[part] for part in own], -1)
            if name == HIDDEN:
                found[layer_name(self._config.layers)] = _tokens(value, real_BL)
            elif name in at:
                value = value.reshape(math.prod(shape), -1)[at[name]]
                masked = HEADS[name].reads == "masked"
                found[name] = value[:, : self._config.vocab_size] if masked else value
            else:
                found[name] = value
        return found

    def _run_file(
        self, file: Path, session: Session, given: Given, outputs: Sequence[str]
    ) -> list[Floats]:
        try:
            return session.run(given, outputs)
        except Exception as error:  # of types of its own in every library
            if is_out_of_memory(error):
                raise
            if "invalid dimensions for input" in str(error):
                raise ModelError(
                    f"{file} was exported for texts of one length or one number of texts. Export "
                    "it again with axes that vary (dynamic_axes of torch.onnx.export; optimum and "
                    "`bothways export` do so)."
                ) from None
            raise ModelError(
                f"{file} cannot be computed ({str(error).strip()[:300]}); it is damaged, or not a "
                "graph of this model. Export it again."
            ) from None

    def _check_output(
        self, file: Path, output: str, head: str, value: Floats, rows: tuple[int, ...], *, one: bool
    ) -> None:
        """Refuse what has not the shape that a graph of the model gives.

        Args:
            file: the graph.
            output, head: its name, and the head that it is of, or :data:`HIDDEN`.
            value: [B, C] of a head on sequences, otherwise [B, L, C].
            rows: B and L.
            one: it is a single column of the head's, without C.

        Raises:
            ModelError: naming the output.
        """
        reads = "tokens" if head == HIDDEN else HEADS[head].reads
        last: tuple[int, ...]
        if head == HIDDEN:
            last = (self._config.hidden,)
        elif one:
            last = ()
        elif reads == "masked":
            last = value.shape[2:] if value.shape[-1] >= self._config.vocab_size else (0,)
        else:
            last = (self._heads[head],)
        wanted = (*(rows[:1] if reads == "sequence" else rows), *last)
        if value.shape != wanted or not np.issubdtype(value.dtype, np.floating):
            raise ModelError(
                f"{file}: the output {output} has the shape {list(value.shape)} of {value.dtype}, "
                "which a graph of this model does not give; it is damaged, or of another model. "
                "Export it again."
            )

    def _session(self, key: Outputs | Path) -> Session:
        with self._lock:  # of two threads that ask first, one builds it
            if key not in self._sessions:
                found = self._open_file(key) if isinstance(key, Path) else self._build(key)
                self._sessions[key] = found
            return self._sessions[key]

    def _open_file(self, file: Path) -> Session:
        try:
            session = self.load(file)
        except Exception as error:  # of types of its own in every library
            _refuse_other_data(file)
            raise ModelError(
                f"{file} cannot be loaded ({str(error).strip()[:300]}); it is damaged, truncated, "
                f"or not a graph that {self.name} computes. Export it again."
            ) from None
        known = {IDS, MASK, SEGMENTS}
        if others := sorted(session.inputs - known):
            raise ModelError(
                f"{file} has the inputs {', '.join(others)}, which are not known here: a graph of "
                f"an encoder has {IDS}, {MASK} and, for pairs, {SEGMENTS}. Export it with these."
            )
        return session

    def _build(self, asked: Outputs) -> Session:
        assert self._weights is not None, "checked when the engine was made"
        with TemporaryDirectory() as folder:  # a graph in memory has at most 2 GB
            path = Path(folder) / "model.onnx"
            write_graph(path, self._config, self._weights, asked, fused=self.fused)
            return self.load(path)


def _check_file(file: Path, folder: Path, weights: Weights | None) -> None:
    """Refuse the file of a graph that is not the one that was exported.

    Args:
        file: the graph.
        folder: that it is in.
        weights: beside it, if there are any.

    Raises:
        ModelError: it is missing, or its content is another.
    """
    if not file.exists():
        raise ModelError(f"{file} does not exist; export the model again (`bothways export`).")
    own = file.relative_to(folder).as_posix()
    changed = changed_files(folder, whole=True, of=own, computed=(own,))
    beside = graph_in(folder) if weights is None else weights
    try:
        checked(file)
        other = of_another_model(file, beside) if beside not in (None, file) else ""
    except InputError as error:
        raise ModelError(str(error)) from None
    except Exception:  # said when it is computed, or by its checksum
        other = ""
    if other:
        raise ModelError(other)
    for name, what in changed.items():
        remedy = (
            NOT_LISTED_REMEDY
            if what == NOT_LISTED
            else "it is truncated, or not the file that belongs to this folder. Copy it again, or "
            "export the model again."
        )
        raise ModelError(f"{folder / name} {what}: {remedy}")


def _refuse_other_data(file: Path) -> None:
    """Refuse a graph whose values lie in files beside it that are missing or none.

    Raises:
        ModelError: naming the file.
    """
    try:
        for name in stored_beside(file):
            checked(file.with_name(name))
    except InputError as error:
        raise ModelError(f"{error} It holds values of {file.name}.") from None


class OnnxEngine(GraphEngine):
    """Computes a model's outputs with onnxruntime."""

    name = "onnxruntime"
    precisions = ("fp32",)
    fused = True

    @classmethod
    def check(cls, loaded: LoadedModel) -> None:
        """As :meth:`GraphEngine.check`: there is int8 where a folder has a graph in 8 bits."""
        if loaded.options.precision != "int8":
            super().check(loaded)
        elif not (loaded.folder and (loaded.folder / GRAPH_OF_8_BITS).exists()):
            raise UnsuitedError(
                f"the engine {cls.name} computes in int8 a folder that was exported and measured "
                "so (`bothways export FOLDER OUT --int8 --gate DEV`): one that nothing has "
                "calibrated would be wrong in silence"
            )

    @classmethod
    def session(cls, graph: Path | bytes, precision: str, threads: int) -> Session:  # noqa: ARG003
        """As :meth:`GraphEngine.session`."""
        return _OnnxSession(graph, threads)

    def _build(self, asked: Outputs) -> Session:
        assert self._weights is not None, "checked when the engine was made"
        graph, weights = graph_and_weights(self._config, self._weights, asked, fused=self.fused)
        return _OnnxSession(graph.SerializeToString(), self._threads, weights)


def _with_own_weights(graph: Path | bytes) -> bytes:
    """A graph whose products in 8 bits share no weights, as those of ALBERT's layers do: where
    :data:`EXACT_8_BITS` has an effect, onnxruntime does not take them."""
    model = onnx.load_from_string(graph) if isinstance(graph, bytes) else onnx.load_model(graph)
    known = {t.name: t for t in model.graph.initializer if t.data_type == TensorProto.INT8}
    seen: set[str] = set()
    for number, node in enumerate(model.graph.node):
        for at, name in enumerate(node.input):
            if name in seen:
                own = model.graph.initializer.add()
                own.CopyFrom(known[name])
                own.name = node.input[at] = f"{name}.{number}"
            if name in known:
                seen.add(name)
    content: bytes = model.SerializeToString()
    return content


class _OnnxSession(Session):
    """A graph in a file or serialized; ``weights`` that it has beside it are copied."""

    def __init__(
        self, graph: Path | bytes, threads: int, weights: Mapping[str, NDArray[Any]] = NONE
    ):
        options = onnxruntime.SessionOptions()
        if weights:
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(one) for one in weights.values()]
            options.add_external_initializers([*weights], values)
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4  # errors are raised, and printed nowhere
        # Threads that wait for work in a loop answer one text sooner (1.3 times as fast; 20 us are
        # not always enough), but take the cores from others' work: they do so briefly, and not
        # between computations.
        options.add_session_config_entry("session.intra_op.spin_duration_us", "100")
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_session_config_entry(*EXACT_8_BITS)
        make = partial(
            onnxruntime.InferenceSession,
            sess_options=options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # to the same provider, with lines on standard output
        )
        try:
            self._session = make(graph if isinstance(graph, bytes) else str(graph))
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
            if "replace the existing tensor" not in str(error):
                raise
            self._session = make(_with_own_weights(graph))
        self.inputs = frozenset(one.name for one in self._session.get_inputs())
        self._types = {
            one.name: np.int32
            for one in self._session.get_inputs()
            if one.type == "tensor(int32)"  # such as from TensorFlow
        }
        self.outputs = frozenset(one.name for one in self._session.get_outputs())

    def run(self, given: Given, wanted: Sequence[str]) -> list[Floats]:
        """As :meth:`Session.run`."""
        own = {name: value for name, value in given.items() if name in self.inputs}
        for name in own.keys() & self._types.keys():
            own[name] = own[name].astype(self._types[name])
        found: list[Floats] = self._session.run(list(wanted), own)
        return found


def _ends(ids: Integers) -> tuple[int, int]:
    """The lowest and the highest id."""
    values = ids.tolist()  # of one text sooner than two reductions by NumPy
    return min(values), max(values)


def _padded_places(batch: Batch) -> Integers:
    """The flat position at each place of rows as long as the longest, int64 [B, L]; -1: padding."""
    columns = np.arange(batch.longest)
    places = batch.bounds[:-1, None] + columns
    return np.where(columns < batch.lengths[:, None], places, -1)


def _tokens(values_BLD: Floats, real_BL: NDArray[np.bool_] | None) -> Floats:
    """Those of tokens, [T, D]."""
    if real_BL is None:
        return values_BLD.reshape(-1, values_BLD.shape[-1])
    return values_BLD[real_BL]


def _in_rows(at: Integers, batch: Batch) -> Integers:
    """Flat positions, int64 [R] -> places in the padded rows end to end."""
    sequence = np.searchsorted(batch.bounds, at, side="right") - 1
    return sequence * batch.longest + at - batch.bounds[sequence]
