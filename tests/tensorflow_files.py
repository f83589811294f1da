"""The files of BERT's authors, written for tests of their reader."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bothways.families import FAMILIES
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.runtime.weights import weights_by_name
from bothways.tokenization.tokenizer import Tokenizer

_MAGIC, _RESTART = 0xDB4775248B80FB57, 16


def write_original(folder: Path, model: EncoderModel, tokenizer: Tokenizer) -> None:
    """A model's folder in ``ours``, and in ``tf1`` the same as BERT's authors had it."""
    save_model(folder / "ours", model, tokenizer, {})
    weights = load_model(folder / "ours").weights
    assert weights is not None
    found = {}
    for name, value in weights_by_name(weights).items():
        theirs, transposed = _original_name(name)
        found[theirs] = value.T if transposed else value
    (folder / "tf1").mkdir()
    write_bundle(folder / "tf1" / "bert_model.ckpt", found)
    values = json.loads((folder / "ours" / "config.json").read_text())
    for key in ("architectures", "model_type", "layer_norm_eps", "pad_token_id"):
        values.pop(key, None)
    (folder / "tf1" / "bert_config.json").write_text(json.dumps(values))
    (folder / "tf1" / "vocab.txt").write_bytes((folder / "ours" / "vocab.txt").read_bytes())


def _original_name(name: str) -> tuple[str, bool]:
    special = FAMILIES["bert"].original
    if name in special:
        return special[name], False
    stem, _, kind = re.sub(r"\.(\d+)\.", r"_\1.", name).rpartition(".")
    path = stem.replace(".", "/")
    if path.endswith("Norm"):
        return f"{path}/{'gamma' if kind == 'weight' else 'beta'}", False
    return (f"{path}/kernel", True) if kind == "weight" else (f"{path}/{kind}", False)


def write_bundle(prefix: Path, variables: Mapping[str, NDArray[np.float32]]) -> None:
    """Variables as a checkpoint of TensorFlow 1 in one shard."""
    entries = [(b"", _message((1, 1), (3, _message((1, 1)))))]
    content = b""
    for name in sorted(variables, key=str.encode):
        values = np.ascontiguousarray(variables[name], "<f4")
        shape = _message(*((2, _message((1, size))) for size in values.shape))
        place = _message((1, 1), (2, shape), (4, len(content)), (5, values.nbytes))
        entries.append((name.encode(), place))
        content += values.tobytes()
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(content)
    prefix.with_name(prefix.name + ".index").write_bytes(_table(entries))


def _table(entries: list[tuple[bytes, bytes]]) -> bytes:
    content = bytearray()

    def add(block: bytes) -> bytes:
        handle = _to_varint(len(content)) + _to_varint(len(block))
        content.extend(block + bytes(5))  # not compressed, no checksum
        return handle

    last, empty = add(_block(entries)), add(_block([]))
    index = add(_block([(entries[-1][0] + b"\0", last)]))
    return bytes(content) + (empty + index).ljust(40, b"\0") + struct.pack("<Q", _MAGIC)


def _block(entries: list[tuple[bytes, bytes]]) -> bytes:
    block, restarts, before = bytearray(), [0], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % _RESTART:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        elif number:
            restarts.append(len(block))
        block += _to_varint(shared) + _to_varint(len(key) - shared) + _to_varint(len(value))
        block += key[shared:] + value
        before = key
    return bytes(block) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _message(*fields: tuple[int, int | bytes]) -> bytes:
    message = b""
    for field, value in fields:
        if isinstance(value, bytes):
            message += _to_varint(field << 3 | 2) + _to_varint(len(value)) + value
        elif value:
            message += _to_varint(field << 3) + _to_varint(value)
    return message


def _to_varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
