"""The engine of OpenVINO: no torch; a processor, fp32, or bf16 where it is fast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino

from bothways.runtime.onnx_engine import Floats, Given, GraphEngine, Session

# One for the process, and never let go. With each, OpenVINO's CPU plugin gives the thread a stack
# for signal handlers, and unmaps it when that one goes, whichever is in use by then: after the
# first of two had gone, Ctrl-C was a segmentation fault.
CORE = openvino.Core()


class OpenVinoEngine(GraphEngine):
    """Computes a model's outputs with OpenVINO."""

    name = "openvino"
    precisions = ("fp32", "bf16")

    @classmethod
    def session(cls, graph: Path | bytes, precision: str, threads: int) -> Session:
        """As :meth:`GraphEngine.session`."""
        return _OpenVinoSession(graph, precision, threads)


class _OpenVinoSession(Session):
    def __init__(self, graph: Path | bytes, precision: str, threads: int):
        model = CORE.read_model(graph if isinstance(graph, bytes) else str(graph))
        settings = {
            "INFERENCE_PRECISION_HINT": {"fp32": "f32"}.get(precision, precision),
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._compiled = CORE.compile_model(model, "CPU", settings)
        # Making one takes as long as a tenth of a short text. A thread that computes has its own.
        self._requests: list[openvino.InferRequest] = []
        self.inputs = frozenset(one.any_name for one in self._compiled.inputs)
        self.outputs = frozenset(name for one in self._compiled.outputs for name in one.names)

    def run(self, given: Given, wanted: Sequence[str]) -> list[Floats]:
        """As :meth:`Session.run`."""
        # Copying them in would take a tenth of a short text; they live until it is computed.
        own = {
            name: openvino.Tensor(np.ascontiguousarray(value), shared_memory=True)
            for name, value in given.items()
            if name in self.inputs
        }
        try:
            request = self._requests.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        request.infer(own, share_inputs=True, share_outputs=True)
        found = [request.get_tensor(name).data.copy() for name in wanted]
        self._requests.append(request)
        return found
