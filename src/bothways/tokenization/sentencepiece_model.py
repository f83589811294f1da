"""Reading the .model file of SentencePiece: pieces, scores, and how it normalises text.

The file is one message of Protocol Buffers. Only a few of its fields matter here, so they are read
by number; the package sentencepiece is not needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from bothways.errors import ModelError

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of the whole model
_PIECE, _SCORE, _TYPE = 1, 2, 3  # of a piece
_MODEL_TYPE, _SPACE_BEHIND, _BYTE_FALLBACK, _UNK_ID = 3, 24, 35, 40  # of the trainer
_CHARACTER_MAP, _SPACE_BEFORE, _SINGLE_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5  # of the normaliser
_MODEL_TYPES = {1: "Unigram", 2: "BPE", 3: "words", 4: "characters"}


class PieceType(IntEnum):
    """What a piece is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a .model file.

    Attributes:
        pieces: with their scores; the index of a piece is its id.
        types: of the pieces.
        unk_id: the id of what cannot be spelled.
        character_map: the compiled rules that replace characters; empty if there are none.
        space_before: whether a text gets a space before its first word.
        single_spaces: whether spaces at the ends are dropped, and runs of spaces are one.
        byte_fallback: whether what cannot be spelled becomes bytes.
    """

    pieces: list[tuple[str, float]] = field(default_factory=list)
    types: list[PieceType] = field(default_factory=list)
    unk_id: int = 0
    character_map: bytes = b""
    space_before: bool = True
    single_spaces: bool = True
    byte_fallback: bool = False


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read the .model file of a Unigram model.

    Raises:
        ModelError: it is damaged, or a model of another kind.
    """
    try:
        return _parse(path.read_bytes(), path)
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise ModelError(
            f"{path}: cannot be read as a model of SentencePiece ({error}); complete the download."
        ) from error


def _parse(data: bytes, path: Path) -> SentencePieceModel:
    pieces: list[tuple[str, float]] = []
    types: list[PieceType] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == _PIECES:
            piece = dict(_fields(_bytes(value)))
            score = struct.unpack("<f", _bytes(piece.get(_SCORE, b"\0\0\0\0")))[0]
            pieces.append((_bytes(piece[_PIECE]).decode(), score))
            types.append(PieceType(int(piece.get(_TYPE, PieceType.NORMAL))))
        elif number == _TRAINER:
            trainer = dict(_fields(_bytes(value)))
        elif number == _NORMALIZER:
            normalizer = dict(_fields(_bytes(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    kind = _MODEL_TYPES[int(trainer.get(_MODEL_TYPE, 1))]
    if kind != "Unigram":
        raise ModelError(
            f"{path}: a SentencePiece model of {kind}, and bothways reads Unigram models; save the "
            "tokenizer as a tokenizer.json."
        )
    if trainer.get(_SPACE_BEHIND, 0) or not normalizer.get(_ESCAPE_SPACES, 1):
        raise ModelError(
            f"{path}: its pieces end with spaces, or have none, and bothways reads models whose "
            "pieces begin with them; save the tokenizer as a tokenizer.json."
        )
    return SentencePieceModel(
        pieces,
        types,
        unk_id=int(trainer.get(_UNK_ID, 0)),
        character_map=_bytes(normalizer.get(_CHARACTER_MAP, b"")),
        space_before=bool(normalizer.get(_SPACE_BEFORE, 1)),
        single_spaces=bool(normalizer.get(_SINGLE_SPACES, 1)),
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: their numbers, with integers or bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            integer, position = _varint(data, position)
            yield number, integer
            continue
        if wire == _LENGTH:
            size, position = _varint(data, position)
        elif wire in (_FOUR_BYTES, _EIGHT_BYTES):
            size = 4 if wire == _FOUR_BYTES else 8
        else:
            raise ValueError(f"unknown wire type {wire} at byte {position}")
        if position + size > len(data):
            raise ValueError(f"it ends within a field, at byte {len(data)}")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The integer at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number stands where text is expected")
    return value
