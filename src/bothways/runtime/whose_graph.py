"""Whether the file of a graph was made from the weights, or is of the graph, that lie beside it.

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

_FEWEST = 8  # numbers of a vector by which one can be known


def of_another_model(graph: Path, beside: Weights | Path) -> str:
    """That a graph has none of the vectors of what lies beside it, but others in their place; empty
    where it has some, or that cannot be told.

    Args:
        graph: the file.
        beside: the weights; or where there are none, the graph that these would be in.

    Raises:
        Exception: of the protobuf library's own types, if a file is no graph.
    """
    if isinstance(beside, Path):
        vectors = [*_vectors(beside)]
    else:
        names = [name for name, shape in beside.shapes.items() if len(shape) == 1]
        vectors = [beside[name] for name in names]
    sizes, own = {len(vector) for vector in vectors}, _digests(vectors)
    found = [vector for vector in _vectors(graph) if len(vector) in sizes]
    if not (own and found) or own & _digests(found):
        return ""
    what = f"of {beside.name}" if isinstance(beside, Path) else "made from the weights"
    return (
        f"{graph} was not {what} beside it: it has none of the vectors there. Export the model "
        "again (`bothways export`), or remove the one that is not meant."
    )


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
    return sorted(name for name in names if Path(name).name == name != "")


def _digests(vectors: Iterable[NDArray[Any]]) -> set[bytes]:
    """Of vectors that are not one number, in 16 bits, in which graphs may be."""
    with np.errstate(over="ignore"):
        rounded = [vector.astype(np.float16) for vector in vectors if _tells(vector)]
    return {vector.tobytes() for vector in rounded}


def _tells(vector: NDArray[Any]) -> bool:
    return len(vector) >= _FEWEST and bool((vector != vector[0]).any())


def _vectors(path: Path) -> Iterator[NDArray[Any]]:
    """The vectors of floats in a graph by which one can be known."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model(path, load_external_data=False).graph
    constants = [a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute]
    for tensor in (*graph.initializer, *constants):
        if len(tensor.dims) == 1 and tensor.data_type in _FLOATS:
            vector = numpy_helper.to_array(tensor, base_dir=str(path.parent))
            if _tells(vector):
                yield vector


_FLOATS: Mapping[int, str] = {1: "FLOAT", 10: "FLOAT16"}  # of onnx.TensorProto.DataType
