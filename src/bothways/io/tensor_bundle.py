"""Checkpoints of TensorFlow 1 (`V2` of its savers), read without it.

``NAME.index`` is a table as LevelDB has them: sorted keys in blocks, each key without what it has
in common with the one before; at the end the block of blocks, and a footer. Under the empty key it
holds a header, under the name of each variable its type, shape and place in one of
``NAME.data-00000-of-00001`` ...: protocol buffers, of which only the few fields that are needed are
read here; checksums are not compared. (tensorflow/core/lib/io/format.cc, table_builder.cc,
util/tensor_bundle, protobuf/tensor_bundle.proto.)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import ModelError

INDEX = ".index"
_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes at the end of the table
_TYPES = {
    **{1: "<f4", 2: "<f8", 3: "<i4", 4: "<u1", 5: "<i2", 6: "<i1", 9: "<i8", 10: "?", 17: "<u2"},
    **{14: "bfloat16", 19: "<f2", 22: "<u4", 23: "<u8"},
}
"""Numbers of TensorFlow's types -> NumPy's; bfloat16, which it lacks, is mapped as uint16."""
_OBJECTS = b"_CHECKPOINTABLE_OBJECT_GRAPH"

Variable = tuple[NDArray[Any], str]
"""Values, mapped, and the name of their type."""


def read_bundle(prefix: Path) -> dict[str, Variable]:
    """The variables of a checkpoint by name, mapped from its files.

    Args:
        prefix: the name that its files have in common, such as ``bert_model.ckpt``.

    Raises:
        ModelError: naming the file: it is truncated, compressed, a shard is missing, or a variable
            is divided into slices or of a type that no weights have.
    """
    index = prefix.with_name(prefix.name + INDEX)
    try:
        entries = dict(_table(index.read_bytes()))
        if _OBJECTS in entries:
            raise ValueError("it holds objects of TensorFlow 2; save the model with transformers")
        shards = _number(_fields(entries.pop(b"")), 1)
        files = [
            _mapped(prefix.with_name(f"{prefix.name}.data-{n:05d}-of-{shards:05d}"))
            for n in range(shards)
        ]
        found = {key.decode("utf-8", "replace"): _fields(value) for key, value in entries.items()}
        if sliced := next((name for name, entry in found.items() if entry.get(7)), None):
            raise ValueError(f"{sliced} is divided into slices; save it without a partitioner")
        return {name: _variable(name, entry, files) for name, entry in found.items()}
    except (KeyError, ValueError, IndexError, struct.error) as error:
        raise ModelError(f"{index} cannot be read as a checkpoint: {error}.") from None
    except OSError as error:
        raise ModelError(f"{index} cannot be read: {error}.") from None


def _mapped(path: Path) -> NDArray[np.uint8]:
    empty = not path.stat().st_size
    return np.zeros(0, np.uint8) if empty else np.memmap(path, np.uint8, "r")


def _variable(name: str, entry: dict[int, list[Any]], files: list[NDArray[np.uint8]]) -> Variable:
    if (code := _number(entry, 1)) not in _TYPES:
        raise ValueError(f"{name} has the type {code}, which no weights have")
    kind = _TYPES[code]
    dtype = np.dtype("<u2" if kind == "bfloat16" else kind)
    dims = _fields(entry[2][0]).get(2, []) if 2 in entry else []
    shape = tuple(_number(_fields(dim), 1) for dim in dims)
    start, size = _number(entry, 4), _number(entry, 5)
    values = files[_number(entry, 3)][start : start + size]
    if len(values) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} has {len(values)} bytes, not the shape {shape} of {dtype.name}")
    return values.view(dtype).reshape(shape), kind if kind == "bfloat16" else dtype.name


# ------------------------------------------------------------------------------------------ tables


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys of a table with their values, in order."""
    if len(content) < _FOOTER or struct.unpack("<Q", content[-8:])[0] != _MAGIC:
        raise ValueError("it has no footer")
    footer, at = content[-_FOOTER:], 0
    for _ in range(2):  # offset and size of a block that checkpoints lack
        _, at = _varint(footer, at)
    for _, handle in _block(content, footer[at:]):
        yield from _block(content, handle)


def _block(content: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    start, at = _varint(handle, 0)
    size, _ = _varint(handle, at)
    if content[start + size]:
        raise ValueError("its blocks are compressed")
    block = content[start : start + size]
    (restarts,) = struct.unpack_from("<I", block, size - 4)
    limit, at, key = size - 4 * (restarts + 1), 0, b""
    while at < limit:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + own]
        at += own + length
        yield key, block[at - length : at]


# -------------------------------------------------------------------------------- protocol buffers


def _fields(message: bytes) -> dict[int, list[Any]]:
    """The fields of a message by number: integers, and bytes."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value: Any
        if tag & 7 == 0:
            value, at = _varint(message, at)
        else:
            size, at = _varint(message, at) if tag & 7 == 2 else (8 if tag & 7 == 1 else 4, at)
            value, at = message[at : at + size], at + size
        found.setdefault(tag >> 3, []).append(value)
    return found


def _number(fields: dict[int, list[Any]], field: int) -> int:
    return int(fields.get(field, [0])[-1])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number at a place, and the place behind it."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at
