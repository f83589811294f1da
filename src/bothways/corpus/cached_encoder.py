"""Encoding many sentences fast: what stands between spaces is encoded once and remembered.

Text repeats its words. For most tokenizers no rule looks across a plain space, so the ids of a
sentence are the ids of its chunks, end to end, and a table of chunks gives the very same ids as
the library several times as fast. :func:`splits_at_spaces` says for which tokenizers that is so;
for the others (byte-level BPE, whose pieces begin with the space) every sentence goes to the
library.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bothways.arrays import ranges
from bothways.corpus.store import Ids, id_type
from bothways.errors import BothwaysError
from bothways.tokenization.normalization import ACCENTS
from bothways.tokenization.tokenizer import SEP, Tokenizer

# What a table may hold before it is begun anew: some 100 MB.
MOST_CHUNKS = 2**19
MOST_CHARACTERS = 2**24

# Normalisers that treat each character alone, or with the combining marks behind it: a space ends
# both. And splitters that end a word at every space.
_SEPARABLE_NORMALIZERS = {
    *("BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD")
}
# The step of the `composed` preset that looks back at the letter before a mark, never at a space.
_WITHOUT_ACCENTS = {"type": "Replace", "pattern": {"Regex": ACCENTS}, "content": ""}
_SEPARABLE_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_LOT = 64  # chunks that the library is given as one text
_WORD_MODELS = {"WordPiece", "WordLevel", "BPE"}


@dataclass(frozen=True)
class PackedTokenizer:
    """A tokenizer as a worker on another machine needs it.

    Attributes:
        data: compressed tokenizer.json.
        fingerprint: of the tokenizer.
    """

    data: bytes
    fingerprint: str

    @classmethod
    def pack(cls, text: bytes, fingerprint: str) -> PackedTokenizer:
        """Pack the content of a tokenizer.json."""
        return cls(zlib.compress(text, 6), fingerprint)

    def unpack(self) -> Encoder:
        """The encoder on this tokenizer."""
        text = zlib.decompress(self.data).decode()
        tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(text))
        assert tokenizer.fingerprint == self.fingerprint
        return Encoder(tokenizer, remember=splits_at_spaces(json.loads(text)))


def splits_at_spaces(settings: dict[str, Any]) -> bool:
    """Whether the ids of a text are those of its parts between plain spaces, end to end.

    Args:
        settings: the content of a tokenizer.json.
    """
    added = settings["added_tokens"]
    return (
        _all_of(settings["normalizer"], "normalizers", _SEPARABLE_NORMALIZERS)
        and settings["pre_tokenizer"] is not None
        and _all_of(settings["pre_tokenizer"], "pretokenizers", _SEPARABLE_SPLITTERS)
        and settings["model"].get("type") in _WORD_MODELS
        and not settings["model"].get("dropout")
        and not any(" " in token["content"] for token in added)
        and not any(token[key] for token in added for key in ("lstrip", "rstrip", "single_word"))
    )


class Encoder:
    """Sentences to ids, with a memory of chunks if the tokenizer allows one."""

    def __init__(self, tokenizer: Tokenizer, *, remember: bool):
        self.tokenizer = tokenizer
        self._id_type = id_type(tokenizer.vocab_size)
        self._chunks = _Chunks(tokenizer, self._id_type) if remember else None

    def encode(self, sentences: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """Ids of all sentences end to end [T], and tokens of each sentence, int64 [S]."""
        if self._chunks is None or not sentences:
            return _encode(self.tokenizer, sentences, self._id_type)
        return self._chunks.encode(sentences)


class _Codes(dict[str, int]):
    """Numbers of chunks in the order they were met; asking for a new one adds it."""

    def __init__(self) -> None:
        self.new: list[str] = []

    def __missing__(self, chunk: str) -> int:
        code = len(self)
        self[chunk] = code
        self.new.append(chunk)
        return code


class _Chunks:
    """Table of chunks: ids end to end, and where each chunk's begin."""

    def __init__(self, tokenizer: Tokenizer, dtype: type[np.uint16] | type[np.uint32]):
        self._tokenizer = tokenizer
        self._id_type = dtype
        self._codes = _Codes()
        self._characters = 0
        self._ids: Ids = np.zeros(0, dtype=dtype)
        self._starts = np.zeros(0, dtype=np.int64)
        self._lengths = np.zeros(0, dtype=np.int64)

    def encode(self, sentences: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        chunks = " ".join(sentences).split(" ")
        codes = np.fromiter(map(self._codes.__getitem__, chunks), dtype=np.int64, count=len(chunks))
        self._learn()
        chunk_lengths = self._lengths[codes]
        starts = self._starts[codes]
        ids = self._ids[ranges(starts, starts + chunk_lengths)]
        counts = np.fromiter((s.count(" ") + 1 for s in sentences), np.int64, len(sentences))
        lengths = np.add.reduceat(chunk_lengths, np.cumsum(counts) - counts)
        if len(self._codes) > MOST_CHUNKS or self._characters > MOST_CHARACTERS:
            self._forget()
        return ids, lengths

    def _learn(self) -> None:
        """Let the library encode the chunks that are new."""
        new = self._codes.new
        if not new:
            return
        try:
            ids, lengths = _encode_chunks(self._tokenizer, new, self._id_type)
        except BothwaysError:
            self._forget()  # they have numbers already, but no ids
            raise
        starts = self._ids.size + np.cumsum(lengths) - lengths
        self._ids = np.concatenate([self._ids, ids])
        self._starts = np.concatenate([self._starts, starts])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._characters += sum(map(len, new))
        self._codes.new = []

    def _forget(self) -> None:
        self._codes = _Codes()
        self._characters = 0
        self._ids = self._ids[:0].copy()
        self._starts = self._starts[:0].copy()
        self._lengths = self._lengths[:0].copy()


def _encode_chunks(
    tokenizer: Tokenizer, chunks: Sequence[str], dtype: type[np.uint16] | type[np.uint32]
) -> tuple[Ids, NDArray[np.int64]]:
    """What the library gives for each chunk; many at once, because a call has a price."""
    lots = [chunks[at : at + _LOT] for at in range(0, len(chunks), _LOT)]
    # [SEP] is cut out before anything else looks at the text, so it tells where a chunk ends.
    found, sizes = _encode(tokenizer, [f" {SEP} ".join([*lot, ""]) for lot in lots], dtype)
    separators = np.flatnonzero(found == tokenizer.sep_id)
    if separators.size != len(chunks):  # a chunk with [SEP] in it
        return _encode(tokenizer, chunks, dtype)
    lengths: NDArray[np.int64] = np.diff(separators, prepend=-1) - 1
    assert int(lengths.sum()) + len(chunks) == int(sizes.sum())
    return np.delete(found, separators), lengths


def _encode(
    tokenizer: Tokenizer, texts: Sequence[str], dtype: type[np.uint16] | type[np.uint32]
) -> tuple[Ids, NDArray[np.int64]]:
    """What the library gives."""
    found = tokenizer.encode_plain(texts)
    lengths = np.fromiter(map(len, found), dtype=np.int64, count=len(found))
    ids: Ids = np.fromiter(chain.from_iterable(found), dtype=dtype, count=int(lengths.sum()))
    return ids, lengths


def _all_of(step: dict[str, Any] | None, parts: str, allowed: set[str]) -> bool:
    """Whether a step, or each part of a sequence of steps, is one of ``allowed``."""
    if step is None:
        return True
    if step.get("type") == "Sequence":
        return all(_all_of(part, parts, allowed) for part in step[parts])
    return step.get("type") in allowed or step == _WITHOUT_ACCENTS
