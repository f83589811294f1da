"""The token store: a folder of ids on disk, memory-mapped.

    corpus.json            the manifest: options, vocabulary, shards with checksums, report
    vocab.txt, ...         the tokenizer that made the ids
    train-00000.arrow ...  uncompressed Arrow IPC files with one column, ``sentences``:
    heldout-00000.arrow    list<list<uint16>> (uint32 above 65,536 pieces), one document per row

A shard is one record batch, so its ids are one contiguous array on disk. A document never spans
two shards.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import Growing, bounds
from bothways.config.fields import digest
from bothways.errors import BothwaysError, StoreError
from bothways.io.files import sha256, write_json
from bothways.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 2
MANIFEST = "corpus.json"
Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
Ids = NDArray[np.uint16 | np.uint32]

# Offsets of Arrow's plain lists have 32 bits; a shard with more ids (one enormous document) gets
# large lists.
LARGEST_OFFSET = 2**31 - 1

_COLUMN = "sentences"
_BLOCK = 1 << 20  # lengths that are joined at once
_VOCABULARY_KEY = b"bothways.vocabulary"
_OPTIONS_KEY = b"bothways.options"
_PATH_OPTIONS = ("files", "tokenizer", "out")
_REBUILD = (
    f"Build the corpus again with `bothways corpus` ({MANIFEST} holds the options it was built "
    "with), or restore the file from a copy."
)


def id_type(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """The smallest type that can represent every id of a vocabulary."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def options_fingerprint(options: Mapping[str, Any]) -> str:
    """Digest of a build's options, without those that name files and folders."""
    return digest({name: value for name, value in options.items() if name not in _PATH_OPTIONS})


@dataclass(frozen=True)
class Shard:
    """One file of the store, as recorded in the manifest.

    Attributes:
        frame: sha256 of everything but the ids. It is checked on opening: damaged lengths or Arrow
            structure would give slices of the wrong text, or crash the process.
        ids_at: byte offset of the ids in the file.
    """

    file: str
    sha256: str
    frame: str
    ids_at: int
    bytes: int
    documents: int
    sentences: int
    tokens: int


@dataclass(frozen=True)
class Manifest:
    """The content of corpus.json.

    Attributes:
        options: the build's options, flattened to dotted names.
        vocabulary: the tokenizer's fingerprint.
        vocab_size: number of pieces; every id is below it.
        shards: of each split, in order.
        report: see :func:`bothways.corpus.build.build_corpus`.
    """

    options: dict[str, Any]
    vocabulary: str
    vocab_size: int
    shards: dict[Split, list[Shard]]
    report: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """Digest of the content: options, vocabulary and shards, but not paths."""
        shards = {split: [asdict(shard) for shard in self.shards[split]] for split in SPLITS}
        made_by = options_fingerprint(self.options)
        return digest([FORMAT, made_by, self.vocabulary, self.vocab_size, shards])

    @property
    def all_shards(self) -> list[Shard]:
        """The shards of all splits."""
        return [shard for split in SPLITS for shard in self.shards[split]]

    def write(self, folder: Path) -> None:
        """Write corpus.json."""
        write_json(
            folder / MANIFEST,
            {"format": FORMAT, "fingerprint": self.fingerprint, **asdict(self)},
        )

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read corpus.json.

        Raises:
            StoreError: missing, damaged, changed, or of another format.
        """
        path = folder / MANIFEST
        if not path.is_file():
            raise StoreError(
                f"{folder}: no {MANIFEST} here, so this is not a corpus folder, or its build was "
                "interrupted. Build one with `bothways corpus`."
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if (version := content.pop("format")) != FORMAT:
                raise StoreError(
                    f"{path}: format {version}, but this version of bothways reads format "
                    f"{FORMAT}. {_REBUILD}"
                )
            fingerprint = content.pop("fingerprint")
            content["shards"] = {
                split: [Shard(**shard) for shard in content["shards"][split]] for split in SPLITS
            }
            manifest = cls(**content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{path}: damaged, cannot be read ({error!r}). {_REBUILD}") from error
        if manifest.fingerprint != fingerprint:
            raise StoreError(f"{path}: changed since it was written. {_REBUILD}")
        return manifest


class TokenStore:
    """One split of a corpus folder, memory-mapped.

    Attributes:
        folder: the corpus folder.
        split: train or heldout.
        documents, sentences, tokens: their numbers; all 0 for an empty held-out split.
        document_bounds: int64 [D + 1] in sentences.
        sentence_bounds: int64 [S + 1] in tokens, over all shards of the split.
        fingerprint: digest of the folder's content (both splits).
    """

    def __init__(
        self, folder: Path, split: Split, manifest: Manifest, shards: Sequence[_ShardArrays]
    ):
        """Join shards end to end; use :meth:`open` or :meth:`from_arrays`."""
        self.folder = folder
        self.split = split
        self.fingerprint = manifest.fingerprint
        self._manifest = manifest
        self._ids = [shard.ids for shard in shards]
        self._tokenizer: Tokenizer | None = None  # read when it is first used
        self._starts: list[int] = bounds([ids.size for ids in self._ids]).tolist()
        self.document_bounds = _bounds_over([shard.document_bounds for shard in shards])
        self.sentence_bounds = _bounds_over([shard.sentence_bounds for shard in shards])
        self.documents = self.document_bounds.size - 1
        self.sentences = self.sentence_bounds.size - 1
        self.tokens = int(self.sentence_bounds[-1])

    @classmethod
    def open(cls, folder: str | Path, split: Split = "train") -> TokenStore:
        """Map a split into memory, checking everything but the ids themselves.

        Raises:
            StoreError: the manifest or a shard is missing, damaged, truncated, or belongs to
                another corpus or vocabulary.
        """
        folder = Path(folder)
        manifest = Manifest.read(folder)
        shards = [_read_shard(folder, shard, manifest) for shard in manifest.shards[split]]
        return cls(folder, split, manifest, shards)

    @classmethod
    def from_arrays(
        cls,
        ids: Ids,
        sentence_lengths: NDArray[np.int64],
        document_sentences: NDArray[np.int64],
        tokenizer: Tokenizer,
    ) -> TokenStore:
        """A training split in memory, without a corpus folder.

        Args:
            ids: [T] of all sentences, end to end.
            sentence_lengths: [S] tokens of each sentence, adding up to T.
            document_sentences: [D] sentences of each document, adding up to S.
            tokenizer: the one that made the ids.
        """
        shards: dict[Split, list[Shard]] = {split: [] for split in SPLITS}
        manifest = Manifest({}, tokenizer.fingerprint, tokenizer.vocab_size, shards, {})
        arrays = _ShardArrays(ids, bounds(sentence_lengths), bounds(document_sentences))
        store = cls(Path("memory"), "train", manifest, [arrays])
        store._tokenizer = tokenizer
        return store

    def tokens_between(self, start: int, stop: int) -> Ids:
        """Ids ``start`` to ``stop`` of the split, in the positions of ``sentence_bounds``.

        Returns:
            [stop - start], read-only; a view of the file if the range is within one shard, as every
            range within one document is.

        Raises:
            IndexError: the range is not within the split.
        """
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens {start} to {stop} of a split with {self.tokens} tokens")
        parts: list[Ids] = []
        while start < stop:
            shard = bisect_right(self._starts, start) - 1
            first = self._starts[shard]
            end = min(stop, self._starts[shard + 1])
            parts.append(self._ids[shard][start - first : end - first])
            start = end
        if not parts:
            return np.zeros(0, dtype=id_type(self._manifest.vocab_size))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids, from the corpus folder.

        Raises:
            StoreError: it is missing, or is not the one that made the ids.
        """
        if self._tokenizer is None:
            self._tokenizer = _read_tokenizer(self.folder, self._manifest)
        return self._tokenizer


def write_shard(
    path: Path,
    ids: Ids,
    sentence_lengths: NDArray[Any],
    document_sentences: NDArray[Any],
    vocabulary: str,
    options: str,
) -> Shard:
    """Write one shard; the caller syncs the folder.

    Args:
        path: file to write.
        ids: [T] of all sentences, end to end.
        sentence_lengths: [S] tokens of each sentence, adding up to T.
        document_sentences: [D] sentences of each document, adding up to S.
        vocabulary: the tokenizer's fingerprint.
        options: fingerprint of the build's options.

    Raises:
        OSError: the file could not be written.
    """
    import pyarrow as pa  # of the extra data, which only corpora need

    lists, offset = (
        (pa.ListArray, np.int32) if ids.size <= LARGEST_OFFSET else (pa.LargeListArray, np.int64)
    )
    rows = _arrow(ids)
    for lengths in (sentence_lengths, document_sentences):
        rows = lists.from_arrays(_arrow(bounds(lengths).astype(offset)), rows)
    made_by = {_VOCABULARY_KEY: vocabulary, _OPTIONS_KEY: options}
    schema = pa.schema([pa.field(_COLUMN, rows.type)], metadata=made_by)
    with path.open("wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch([rows], schema=schema))
    _, ids_at = _map_shard(path)
    return Shard(
        file=path.name,
        sha256=sha256(path),
        frame=_frame_checksum(path, ids_at, ids.nbytes),
        ids_at=ids_at,
        bytes=path.stat().st_size,
        documents=int(document_sentences.size),
        sentences=int(sentence_lengths.size),
        tokens=int(ids.size),
    )


def verify_store(folder: str | Path) -> list[str]:
    """Read a whole corpus folder and report its problems.

    Checks the manifest, the tokenizer, and every shard's checksum.

    Returns:
        Messages, each naming its file; empty for an intact folder.
    """
    folder = Path(folder)
    try:
        manifest = Manifest.read(folder)
    except StoreError as error:
        return [str(error)]
    problems: list[str] = []
    checks: list[Callable[[], object]] = [partial(_read_tokenizer, folder, manifest)]
    checks += [partial(_verify_shard, folder, shard) for shard in manifest.all_shards]
    for check in checks:
        try:
            check()
        except StoreError as error:
            problems.append(str(error))
    return problems


def refuse_damaged(folder: str | Path) -> None:
    """Read every shard once, before a run that takes long is started on them.

    Raises:
        StoreError: one is damaged; a flipped bit of an id would be trained on.
    """
    for shard in Manifest.read(Path(folder)).all_shards:
        _verify_shard(Path(folder), shard)


# ------------------------------------------------------------------------------ reading and checks


@dataclass(frozen=True)
class _ShardArrays:
    """A shard: ids [T], sentence_bounds [S + 1] in tokens, document_bounds [D + 1] in sentences."""

    ids: Ids
    sentence_bounds: NDArray[np.integer]
    document_bounds: NDArray[np.integer]


def _bounds_over(shards: Sequence[NDArray[np.integer]]) -> NDArray[np.int64]:
    """The bounds of all shards' rows from the bounds of each, from 0, in bounded memory."""
    result, last = Growing("lengths of the corpus"), np.int64(0)
    result.append(np.zeros(1, np.int64))
    for own in shards:
        for start in range(1, len(own), _BLOCK):
            result.append(own[start : start + _BLOCK] + last)
        last += own[-1]
    joined: NDArray[np.int64] = result.array()
    return joined


def _map_shard(path: Path) -> tuple[_ShardArrays, int]:
    """Map a shard known to be intact, as Arrow does not check the structure itself; and the byte
    offset of its ids."""
    import pyarrow as pa

    with path.open("rb") as opened:  # by Python: Arrow opens only names in UTF-8
        mapped = pa.py_buffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    file = pa.ipc.open_file(mapped)
    documents = file.get_batch(0).column(_COLUMN)
    sentences = documents.values
    arrays = _ShardArrays(
        _view(sentences.values), _view(sentences.offsets), _view(documents.offsets)
    )
    return arrays, sentences.values.buffers()[1].address - mapped.address


# Arrow's own conversions, `pa.array` and `to_numpy`, import pandas wherever it is installed.


def _arrow(numbers: NDArray[Any]) -> pa.Array:
    """A contiguous array as one of Arrow, not copied."""
    import pyarrow as pa

    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _view(numbers: pa.Array) -> NDArray[Any]:
    """An array of Arrow without a missing value, not copied."""
    kind = np.dtype(str(numbers.type))
    start = numbers.offset * kind.itemsize
    return np.frombuffer(numbers.buffers()[1], kind, len(numbers), start)


def _frame_checksum(path: Path, ids_at: int, ids_bytes: int) -> str:
    """Digest of a shard without its ids: Arrow's structure and the lengths."""
    with path.open("rb") as file:
        frame = hashlib.sha256(file.read(ids_at))
        file.seek(ids_at + ids_bytes)
        frame.update(file.read())
    return frame.hexdigest()


def _read_shard(folder: Path, shard: Shard, manifest: Manifest) -> _ShardArrays:
    path = folder / shard.file
    ids_bytes = shard.tokens * np.dtype(id_type(manifest.vocab_size)).itemsize
    _check(path, partial(_frame_checksum, path, shard.ids_at, ids_bytes), shard.frame)
    return _map_shard(path)[0]


def _verify_shard(folder: Path, shard: Shard) -> None:
    path = folder / shard.file
    _check(path, partial(sha256, path), shard.sha256)


def _check(path: Path, checksum: Callable[[], str], expected: str) -> None:
    try:
        found = checksum()
    except (OSError, BothwaysError) as error:
        raise StoreError(f"{path}: cannot be read: {error}. {_REBUILD}") from error
    if found != expected:
        raise StoreError(f"{path}: damaged: its checksum differs from {MANIFEST}. {_REBUILD}")


def _read_tokenizer(folder: Path, manifest: Manifest) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_folder(folder)
    except BothwaysError as error:
        raise StoreError(f"{error} It is part of the corpus. {_REBUILD}") from error
    if tokenizer.fingerprint != manifest.vocabulary:
        raise StoreError(f"{folder}: its tokenizer is not the one that made the ids. {_REBUILD}")
    return tokenizer
