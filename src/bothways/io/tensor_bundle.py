"""Checkpoints of TensorFlow 1 (`V2` of its savers), read without it.

``NAME.index`` is a table as LevelDB has them: sorted keys in blocks, each key without what it has
in common with the one before, each block with a checksum; at the end the block of blocks, and a
footer. Under the empty key it holds a header, under the name of each variable its type, shape and
place in one of ``NAME.data-00000-of-00001`` ...: protocol buffers, of which only the few fields
that are needed are read here. (tensorflow/core/lib/io/format.cc, table_builder.cc,
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
from bothways.io.crc32c import crc32c, masked

INDEX = ".index"
_MAGIC = 0xDB4775248B80FB57
_FOOTER, _TRAILER = 48, 5  # bytes: at the end of the table, behind each block
_COMPRESSED = {1: "snappy"}
_TYPES = {
    **{1: "<f4", 2: "<f8", 3: "<i4", 4: "<u1", 5: "<i2", 6: "<i1", 9: "<i8", 10: "?", 17: "<u2"},
    **{14: "bfloat16", 19: "<f2", 22: "<u4", 23: "<u8"},
}
"""Numbers of TensorFlow's types -> NumPy's; bfloat16, which it lacks, is mapped as uint16."""
_TYPE_NAMES = {7: "string", 8: "complex64", 18: "complex128", 20: "resource", 21: "variant"}
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_AGAIN = "copy all files of the checkpoint again"

Variable = tuple[NDArray[Any], str]
"""Values, mapped, and the name of their type."""


def read_bundle(prefix: Path, *, unchecked: tuple[str, ...] = ()) -> dict[str, Variable]:
    """The variables of a checkpoint by name, mapped from its files after their checksums were
    compared.

    Args:
        prefix: the name that its files have in common, such as ``bert_model.ckpt``.
        unchecked: ends of the names of variables that are listed and not read.

    Raises:
        ModelError: naming the file: it is damaged or truncated, compressed, a shard is missing, or
            a variable is divided into slices or of a type that no weights have.
    """
    index = prefix.with_name(prefix.name + INDEX)
    entries = dict(_read_table(index))
    if _OBJECTS.encode() in entries:
        raise ModelError(
            f"{index} is a checkpoint of objects of TensorFlow 2, not of variables by name as "
            "TensorFlow 1 writes them; save the model with transformers, or its variables with "
            "tf.compat.v1.train.Saver."
        )
    try:
        header = _fields(entries.pop(b""))
        shards, big = _number(header, 1), _number(header, 2)
    except (KeyError, ValueError) as error:
        raise _damaged(index, f"no header ({error})") from None
    if big:
        raise ModelError(f"{index}: its numbers are big-endian, which are not read here.")
    named = {}
    for key, value in entries.items():
        name = key.decode("utf-8", "replace")
        try:
            named[name] = _fields(value)
        except ValueError as error:
            raise _damaged(index, f"the entry of {name}: {error}") from None
    if sliced := [name for name, entry in named.items() if entry.get(7)]:
        raise ModelError(
            f"{index}: {sliced[0]} is divided into slices, which are not read here; save the "
            "checkpoint again without a partitioner of variables."
        )
    data = _Shards(prefix, shards)
    return {
        name: _variable(name, entry, data, index, check=not name.endswith(unchecked))
        for name, entry in named.items()
    }


class _Shards:
    """The files with the values."""

    def __init__(self, prefix: Path, count: int):
        self._paths = [
            prefix.with_name(f"{prefix.name}.data-{n:05d}-of-{count:05d}") for n in range(count)
        ]
        self._mapped: dict[int, NDArray[np.uint8]] = {}

    def content(self, number: int) -> tuple[Path, NDArray[np.uint8]]:
        if not 0 <= number < len(self._paths):
            raise ValueError(f"it is said to be in file {number} of {len(self._paths)}")
        path = self._paths[number]
        if number not in self._mapped:
            if not path.is_file():
                raise ModelError(
                    f"{path} does not exist; the checkpoint has {len(self._paths)} such files "
                    f"beside its index; {_AGAIN}."
                )
            empty = not path.stat().st_size
            self._mapped[number] = (
                np.zeros(0, np.uint8) if empty else np.memmap(path, np.uint8, "r")
            )
        return path, self._mapped[number]


def _variable(
    name: str, entry: dict[int, list[Any]], data: _Shards, index: Path, *, check: bool
) -> Variable:
    code = _number(entry, 1)
    if code not in _TYPES:
        kind = _TYPE_NAMES.get(code, f"number {code}")
        raise ModelError(
            f"{index}: {name} has the type {kind}, which no weights have; save the model's "
            "variables alone."
        )
    kind = _TYPES[code]
    dtype = np.dtype("<u2" if kind == "bfloat16" else kind)
    try:
        dims = _fields(entry[2][0]).get(2, []) if 2 in entry else []
        shape = tuple(_number(_fields(dim), 1) for dim in dims)
        path, content = data.content(_number(entry, 3))
        start, size = _number(entry, 4), _number(entry, 5)
    except ValueError as error:
        raise _damaged(index, f"the entry of {name}: {error}") from None
    if size != math.prod(shape) * dtype.itemsize:
        raise _damaged(index, f"{name} has {size} bytes, and the shape {shape} of {dtype.name}")
    values = content[start : start + size]
    if len(values) < size:
        raise _damaged(path, f"it ends within {name}")
    if check and _number(entry, 6) != masked(crc32c(values)):
        raise _damaged(path, f"{name} does not match its checksum")
    shown = "bfloat16" if kind == "bfloat16" else dtype.name
    return values.view(dtype).reshape(shape), shown


# ------------------------------------------------------------------------------------------ tables


def _read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The keys of a table with their values, in order."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) < _FOOTER or struct.unpack("<Q", content[-8:])[0] != _MAGIC:
        raise _damaged(path, "it has no footer, so it is cut off or no index of a checkpoint")
    try:
        footer = content[-_FOOTER:]
        at = 0
        for _ in range(2):  # of what no checkpoint has: where that block begins and how long it is
            _, at = _varint(footer, at)
        blocks = _block(path, content, footer[at:])
        for _, handle in blocks:
            yield from _block(path, content, handle)
    except (ValueError, IndexError, struct.error) as error:
        raise _damaged(path, str(error)) from None


def _block(path: Path, content: bytes, handle: bytes) -> list[tuple[bytes, bytes]]:
    start, at = _varint(handle, 0)
    size, _ = _varint(handle, at)
    end = start + size
    if end + _TRAILER > len(content) - _FOOTER:
        raise ValueError("a block ends after the file")
    kind, checksum = struct.unpack_from("<BI", content, end)
    if checksum != masked(crc32c(content[start : end + 1])):
        raise ValueError(f"the block at byte {start} does not match its checksum")
    if kind:
        raise ModelError(
            f"{path}: its blocks are compressed ({_COMPRESSED.get(kind, kind)}), which TensorFlow "
            "does not do for checkpoints and is not read here; save the checkpoint again."
        )
    block = content[start:end]
    (restarts,) = struct.unpack_from("<I", block, size - 4)
    limit, at, key = size - 4 * (restarts + 1), 0, b""
    if limit < 0:
        raise ValueError(f"the block at byte {start} has no room for its restart points")
    found = []
    while at < limit:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        if shared > len(key) or at + own + length > limit:
            raise ValueError(f"the block at byte {start} has a key or value beyond its end")
        key = key[:shared] + block[at : at + own]
        at += own
        found.append((key, block[at : at + length]))
        at += length
    return found


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
        elif tag & 7 == 2:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        elif tag & 7 in (1, 5):
            size = 8 if tag & 7 == 1 else 4
            value, at = int.from_bytes(message[at : at + size], "little"), at + size
        else:
            raise ValueError("it is no protocol buffer")
        if at > len(message):
            raise ValueError("it breaks off")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _number(fields: dict[int, list[Any]], field: int) -> int:
    value = fields.get(field, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number at a place, and the place behind it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number breaks off")
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"{path} is damaged or truncated ({why}); {_AGAIN}.")
