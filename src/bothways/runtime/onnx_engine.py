"""The engine of onnxruntime: no torch; a processor, fp32.

Graphs are built in memory (:mod:`bothways.runtime.onnx_graph`), one for each set of heads and
layers that is asked for together.

B sequences, L tokens of the longest, T tokens of the flat batch, R tokens that a head reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bothways.batch import Batch
from bothways.errors import ConfigError
from bothways.families.heads import HEADS
from bothways.io.processes import usual_threads
from bothways.runtime.engine import NONE, check_precision, layer_name
from bothways.runtime.folder import LoadedModel
from bothways.runtime.onnx_graph import HIDDEN, IDS, MASK, READ, SEGMENTS, Outputs, build_graph
from bothways.runtime.speed import PRODUCT, least_seconds

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


class OnnxEngine:
    """Computes a model's outputs with onnxruntime on padded rows.

    Args:
        loaded: a model folder with its weights.
        threads: of a computation; 0 is the usual number.
    """

    name, precision = "onnxruntime", "fp32"
    precisions = ("fp32",)
    batch_tokens = 512  # with 4,096 a token takes three times as long

    def __init__(self, loaded: LoadedModel, *, threads: int = 0):
        assert loaded.weights is not None, "a folder that was opened has weights"
        # The folder lets go of its weights when it has an engine; graphs are built later.
        self._config, self._weights = loaded.config, loaded.weights
        self._threads = threads or usual_threads()
        self._sessions: dict[Outputs, onnxruntime.InferenceSession] = {}
        self._lock = Lock()

    @classmethod
    def open(cls, loaded: LoadedModel) -> OnnxEngine:
        """The engine of a model folder.

        Raises:
            ConfigError: a GPU or a precision is requested which this engine does not have.
        """
        options = loaded.options
        if options.device == "cuda":
            raise ConfigError(
                f"the engine {cls.name} computes on the processor alone; choose another for a GPU."
            )
        check_precision(cls.name, cls.precisions, options.precision)
        return cls(loaded)

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
        session = _session(
            helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]),
            usual_threads(),
        )
        x = np.ones((rows, inner), np.float32)
        return {"fp32": least_seconds(lambda: session.run(None, {"x": x}))}

    def working(self) -> AbstractContextManager[None]:
        """As :meth:`bothways.runtime.engine.Engine.working`: nothing of the process is changed."""
        return nullcontext()

    def compute(
        self, batch: Batch, heads: Mapping[str, Integers] = NONE, layers: Sequence[int] = ()
    ) -> dict[str, Floats]:
        """As :meth:`bothways.runtime.engine.Engine.compute`, all in one pass."""
        self._config.refuse_outside(batch.longest, _ends(batch.tokens), _ends(batch.segments))
        places_BL = _padded_places(batch)
        real_BL = places_BL >= 0

        def rows(values: Integers) -> Integers:
            return np.where(real_BL, values[np.maximum(places_BL, 0)], 0)

        given = {IDS: rows(batch.tokens), MASK: real_BL.astype(np.int64)}
        if self._config.segments > 1:
            given[SEGMENTS] = rows(batch.segments)
        for head, at in heads.items():
            if HEADS[head].reads != "sequence":
                given[f"{READ}{head}"] = _in_rows(at, batch)
        asked = Outputs(tuple(sorted(heads)), layers=tuple(sorted(set(layers))), chosen=True)
        session = self._session(asked)
        names = [one.name for one in session.get_outputs()]
        found = dict(zip(names, session.run(names, given), strict=True))
        states = {layer_name(n): found.pop(f"{HIDDEN}.{n}")[real_BL] for n in asked.layers}
        return {**found, **states}

    def _session(self, asked: Outputs) -> onnxruntime.InferenceSession:
        with self._lock:  # of two threads that ask first, one builds it
            if asked not in self._sessions:
                self._sessions[asked] = self._build(asked)
            return self._sessions[asked]

    def _build(self, asked: Outputs) -> onnxruntime.InferenceSession:
        state: dict[str, NDArray[Any]] = dict(self._weights.read())
        graph = build_graph(self._config, state, asked, fused=True)
        return _session(graph, self._threads)


def _session(graph: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Threads that wait for work in a loop take the cores from others' work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _ends(ids: Integers) -> tuple[int, int]:
    """The lowest and the highest id."""
    return int(ids.min()), int(ids.max())


def _padded_places(batch: Batch) -> Integers:
    """The flat position at each place of rows as long as the longest, int64 [B, L]; -1: padding."""
    columns = np.arange(batch.longest)
    places = batch.bounds[:-1, None] + columns
    return np.where(columns < batch.lengths[:, None], places, -1)


def _in_rows(at: Integers, batch: Batch) -> Integers:
    """Flat positions, int64 [R] -> places in the padded rows end to end."""
    sequence = np.searchsorted(batch.bounds, at, side="right") - 1
    return sequence * batch.longest + at - batch.bounds[sequence]
