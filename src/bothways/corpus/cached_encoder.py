"""Encoding many sentences fast, with a cache of the ids of each chunk between spaces.

Text repeats its words. For most tokenizers no rule looks across a plain space, so the ids of a
sentence are the ids of its chunks, end to end, and a cache of chunks gives exactly the ids of the
library several times as fast. :func:`splits_at_spaces` tells for which tokenizers that holds. For
the others (byte-level BPE and Unigram, whose pieces start with the space) the library encodes every
sentence.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import ranges
from bothways.corpus.store import Ids, id_type
from bothways.errors import BothwaysError
from bothways.tokenization.normalization import ACCENTS, ZERO_WIDTH_SPACE
from bothways.tokenization.tokenizer import Tokenizer

# The cache is emptied when it exceeds one of these (about 100 MB).
MAX_CHUNKS = 2**19
MAX_CHARACTERS = 2**24

# Normalisers that treat each character alone, or together with the combining marks after it: a
# space ends both. And splitters that end a word at every space.
_SEPARABLE_NORMALIZERS = {
    *("BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD")
}
# The step of the `composed` preset that looks back at the letter before a mark, never at a space.
_WITHOUT_ACCENTS = {"type": "Replace", "pattern": {"Regex": ACCENTS}, "content": ""}
# The step of the `spaced` preset, for spaces without width.
_WITH_SPACES = {"type": "Replace", "pattern": {"String": ZERO_WIDTH_SPACE}, "content": " "}
_SEPARABLE_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_CHUNKS_PER_TEXT = 64  # chunks that the library encodes as one text
_WORD_MODELS = {"WordPiece", "WordLevel", "BPE"}


def pack(tokenizer: Tokenizer) -> bytes:
    """A tokenizer in a form that can be sent to a worker on another machine."""
    return zlib.compress(pickle.dumps(tokenizer))


@lru_cache(maxsize=1)
def unpack(data: bytes) -> SentenceEncoder:
    """An encoder with a tokenizer that was packed, unpacked once per process."""
    tokenizer: Tokenizer = pickle.loads(zlib.decompress(data))
    return SentenceEncoder(tokenizer, cache=splits_at_spaces(json.loads(tokenizer.to_json())))


def splits_at_spaces(settings: dict[str, Any]) -> bool:
    """Whether the ids of a text are those of its chunks between plain spaces, end to end.

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


class SentenceEncoder:
    """Sentences to ids, with a cache of chunks if the tokenizer allows one."""

    def __init__(self, tokenizer: Tokenizer, *, cache: bool):
        self.tokenizer = tokenizer
        self._id_type = id_type(tokenizer.vocab_size)
        self._plain = tokenizer.with_segmenter(None)
        self._cache = _ChunkCache(self._plain, self._id_type) if cache else None

    def encode(self, sentences: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """Ids of all sentences end to end [T], and tokens of each sentence, int64 [S]."""
        if self.tokenizer.segmenter is not None:  # by what is around a word, not by the word alone
            sentences = [*self.tokenizer.segmenter.divided(sentences)]
        if self._cache is None or not sentences:
            return _encode(self._plain, sentences, self._id_type)
        return self._cache.encode(sentences)


class _ChunkNumbers(dict[str, int]):
    """Numbers chunks in the order of their first occurrence; looking up a new one adds it."""

    def __init__(self) -> None:
        self.new: list[str] = []

    def __missing__(self, chunk: str) -> int:
        number = len(self)
        self[chunk] = number
        self.new.append(chunk)
        return number


class _ChunkCache:
    """The ids of all chunks end to end, with the start and length of each chunk's ids."""

    def __init__(self, tokenizer: Tokenizer, dtype: type[np.uint16] | type[np.uint32]):
        self._tokenizer = tokenizer
        self._id_type = dtype
        self._clear()

    def _clear(self) -> None:
        self._numbers = _ChunkNumbers()
        self._characters = 0
        self._ids: Ids = np.zeros(0, dtype=self._id_type)
        self._starts = np.zeros(0, dtype=np.int64)
        self._lengths = np.zeros(0, dtype=np.int64)

    def encode(self, sentences: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        chunks = " ".join(sentences).split(" ")
        numbers = np.fromiter(
            map(self._numbers.__getitem__, chunks), dtype=np.int64, count=len(chunks)
        )
        self._add_new()
        chunk_lengths = self._lengths[numbers]
        starts = self._starts[numbers]
        ids = self._ids[ranges(starts, starts + chunk_lengths)]
        counts = np.fromiter((s.count(" ") + 1 for s in sentences), np.int64, len(sentences))
        lengths = np.add.reduceat(chunk_lengths, np.cumsum(counts) - counts)
        if len(self._numbers) > MAX_CHUNKS or self._characters > MAX_CHARACTERS:
            self._clear()
        return ids, lengths

    def _add_new(self) -> None:
        """Encode the chunks that are new with the library."""
        new = self._numbers.new
        if not new:
            return
        try:
            ids, lengths = _encode_chunks(self._tokenizer, new, self._id_type)
        except BothwaysError:
            self._clear()  # the new chunks have numbers already, but no ids
            raise
        starts = self._ids.size + np.cumsum(lengths) - lengths
        self._ids = np.concatenate([self._ids, ids])
        self._starts = np.concatenate([self._starts, starts])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._characters += sum(map(len, new))
        self._numbers.new = []


def _encode_chunks(
    tokenizer: Tokenizer, chunks: Sequence[str], dtype: type[np.uint16] | type[np.uint32]
) -> tuple[Ids, NDArray[np.int64]]:
    """Encode each chunk with the library; many per text, because each text has a cost."""
    groups = [
        chunks[start : start + _CHUNKS_PER_TEXT]
        for start in range(0, len(chunks), _CHUNKS_PER_TEXT)
    ]
    # [SEP] is split off before any other rule is applied, so it marks where a chunk ends.
    mark = tokenizer.roles.sep
    if mark is None:
        return _encode(tokenizer, chunks, dtype)
    ids, _ = _encode(tokenizer, [f" {mark} ".join([*group, ""]) for group in groups], dtype)
    separators = np.flatnonzero(ids == tokenizer.id(mark))
    if separators.size != len(chunks):  # some chunk contains [SEP]
        return _encode(tokenizer, chunks, dtype)
    lengths: NDArray[np.int64] = np.diff(separators, prepend=-1) - 1
    return np.delete(ids, separators), lengths


def _encode(
    tokenizer: Tokenizer, texts: Sequence[str], dtype: type[np.uint16] | type[np.uint32]
) -> tuple[Ids, NDArray[np.int64]]:
    """Encode each text with the library: ids end to end, and how many each text has."""
    encoded = tokenizer.encode_plain(texts)
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    ids: Ids = np.fromiter(chain.from_iterable(encoded), dtype=dtype, count=int(lengths.sum()))
    return ids, lengths


def _all_of(step: dict[str, Any] | None, parts: str, allowed: set[str]) -> bool:
    """Whether a step, or each part of a sequence of steps, is one of ``allowed``."""
    if step is None:
        return True
    if step.get("type") == "Sequence":
        return all(_all_of(part, parts, allowed) for part in step[parts])
    return step.get("type") in allowed or step in (_WITHOUT_ACCENTS, _WITH_SPACES)
