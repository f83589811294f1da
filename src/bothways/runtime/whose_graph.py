"""Whether the file of a graph was made from the weights that lie beside it.

Shapes and names do not tell: another training of the same model has them, too. Vectors do, such as
the gains of norms, which exporting, fusing and quantising leave as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.runtime.weights import Weights

OF_ANOTHER_MODEL = (
    "{} was not made from the weights beside it: it has none of their vectors. Export the model "
    "again (`bothways export`), or remove the one that is not meant."
)
_FEWEST = 8  # numbers of a vector by which one can be known


def is_anothers(graph: Path, weights: Weights) -> bool:
    """Whether a graph has none of the vectors of these weights, but others in their place; false
    where that cannot be told.

    Raises:
        Exception: of the protobuf library's own types, if the file is no graph.
    """
    sizes = {shape[0] for shape in weights.shapes.values() if len(shape) == 1}
    own = _digests(weights[name] for name, shape in weights.shapes.items() if len(shape) == 1)
    found = list(_vectors(graph, sizes))
    return bool(own and found) and not own & _digests(found)


def stored_beside(path: Path) -> list[str]:
    """The names of the files in which a graph has its values, but for its own; none for a file that
    is no graph."""
    import onnx

    try:
        graph = onnx.load_model(path, load_external_data=False).graph
    except Exception:  # of the protobuf library's own types
        return []
    entries = (entry for tensor in graph.initializer for entry in tensor.external_data)
    names = {entry.value for entry in entries if entry.key == "location"}
    return sorted(name for name in names if Path(name).name == name)


def _digests(vectors: Iterable[NDArray[Any]]) -> set[bytes]:
    """Of vectors that are not one number, in 16 bits, in which graphs may be."""
    with np.errstate(over="ignore"):
        rounded = [vector.astype(np.float16) for vector in vectors if _tells(vector)]
    return {vector.tobytes() for vector in rounded}


def _tells(vector: NDArray[Any]) -> bool:
    return len(vector) >= _FEWEST and bool((vector != vector[0]).any())


def _vectors(path: Path, sizes: set[int]) -> Iterator[NDArray[Any]]:
    """The vectors of floats in a graph that have one of these sizes."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model(path, load_external_data=False).graph
    constants = [a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute]
    for tensor in (*graph.initializer, *constants):
        if len(tensor.dims) == 1 and tensor.dims[0] in sizes and tensor.data_type in _FLOATS:
            vector = numpy_helper.to_array(tensor, base_dir=str(path.parent))
            if _tells(vector):
                yield vector


_FLOATS: Mapping[int, str] = {1: "FLOAT", 10: "FLOAT16"}  # of onnx.TensorProto.DataType
