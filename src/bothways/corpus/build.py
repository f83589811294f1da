"""Building a token store from text files.

Two passes. The first streams documents through sentence splitting and the tokenizer, in any number
of processes, into one temporary file of ids in the order of the text. The second works on lengths
and hashes alone: it joins documents of one sentence, splits off the held-out part, cuts shards,
and copies the ids there. So nothing depends on how the work was shared out, and memory holds one
document, a few batches, one shard and some tens of bytes a sentence.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from bothways.config import CorpusConfig, recipe_fields
from bothways.corpus.documents import list_files, read_documents
from bothways.corpus.report import heldout_note, summarise_split
from bothways.corpus.sentences import check_language, split_lines
from bothways.corpus.store import (
    MANIFEST,
    SPLITS,
    Ids,
    Manifest,
    Shard,
    Split,
    bounds,
    id_type,
    write_shard,
)
from bothways.errors import ConfigError, InputError, StoreError
from bothways.files import new_folder
from bothways.tokenization.tokenizer import (
    SETTINGS_FILE,
    TOKENIZER_FILE,
    VOCABULARY_FILE,
    Tokenizer,
)

# Characters of text handed to a worker at once.
BATCH_CHARACTERS = 2**19
# From this many documents on, a held-out part that was asked for has at least two.
HELDOUT_FROM = 20

_SPOOL = "ids.spool"
_OWN_FILES = re.compile(
    "|".join(map(re.escape, (MANIFEST, VOCABULARY_FILE, TOKENIZER_FILE, SETTINGS_FILE)))
    + r"|(train|heldout)-\d{5,}\.arrow"
)
_CORPUS_FILES = re.compile(re.escape(MANIFEST) + r"|(train|heldout)-\d{5,}\.arrow")

Span = tuple[int, int]
"""First and one past the last document, as read, that make one document of the store."""


def build_corpus(
    config: CorpusConfig, *, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Build the corpus folder ``config.out``; an older corpus there is replaced at the very end.

    Args:
        config: the options.
        progress: called with bytes of the files on disk done, and in all.

    Returns:
        The report, which corpus.json keeps too: sizes and length quantiles of ``train`` and
        ``heldout``; ``unknown_rate``, the share of ids that are [UNK]; what became of documents
        of one sentence; ``heldout_note`` where held-out text cannot be measured on; ``seconds``
        and ``mb_per_second`` (of text, 10**6 bytes).

    Raises:
        ConfigError: an option out of range.
        InputError: text that cannot be read, none at all, or fewer than two documents.
        ModelError: the tokenizer cannot be read.
        StoreError: ``config.out`` holds something else than a corpus.
        DiskError: a file could not be written; what was there before is intact.
    """
    started = time.perf_counter()
    _check_options(config)
    tokenizer = Tokenizer.from_folder(config.tokenizer)
    files = list_files(config.files)
    out = Path(config.out)
    _refuse_foreign_folder(out)
    with new_folder(out) as folder:
        tokenizer.save(folder)
        text = _encode_files(config, files, folder, tokenizer, progress)
        spans, joined, dropped = join_single_sentences(
            text.document_sentences, text.document_files, how=config.single_sentence
        )
        _refuse_one_document(config, text, len(spans), joined, dropped)
        heldout = choose_heldout(_span_hashes(text, spans), config.heldout)
        parts: dict[Split, list[Span]] = {"train": [], "heldout": []}
        for span, is_heldout in zip(spans, heldout.tolist(), strict=True):
            parts["heldout" if is_heldout else "train"].append(span)
        written = {
            split: _write_split(folder, split, text, parts[split], config, tokenizer)
            for split in SPLITS
        }
        (folder / _SPOOL).unlink()
        seconds = time.perf_counter() - started
        tokens = sum(part.summary["tokens"] for part in written.values())
        report: dict[str, Any] = {
            "files": len(files),
            "text_mb": text.text_bytes / 1e6,
            **{split: written[split].summary for split in SPLITS},
            "unknown_rate": sum(part.unknown for part in written.values()) / tokens,
            "single_sentence_documents": {"joined": joined, "dropped": dropped},
            "empty_sentences_dropped": text.empty_sentences,
            "heldout_note": heldout_note(len(parts["heldout"]), config.heldout),
            "seconds": round(seconds, 2),
            "mb_per_second": round(text.text_bytes / 1e6 / seconds, 3),
        }
        Manifest(
            options=recipe_fields(config),
            vocabulary=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            shards={split: written[split].shards for split in SPLITS},
            report=report,
        ).write(folder)
    return report


# ----------------------------------------------------------------------------- what can be refused


def _check_options(config: CorpusConfig) -> None:
    check_language(config.language)
    for name in ("shard_tokens", "max_line_mib", "workers"):
        if getattr(config, name) <= 0:
            raise ConfigError(f"{name} is {getattr(config, name)}; it must be above 0.")
    if not config.out:
        raise ConfigError("out is empty; name the folder to write the corpus to.")


def _refuse_foreign_folder(out: Path) -> None:
    """Replacing a folder deletes what is in it: only ever a corpus, or nothing."""
    if not out.exists():
        return
    if not out.is_dir():
        raise StoreError(f"{out}: a file of this name exists; choose another folder.")
    names = sorted(path.name for path in out.iterdir())
    foreign = [name for name in names if not _OWN_FILES.fullmatch(name)]
    if foreign or (names and not any(_CORPUS_FILES.fullmatch(name) for name in names)):
        raise StoreError(
            f"{out}: the folder exists and holds {', '.join((foreign or names)[:3])}, which is not "
            "part of a corpus. Building would delete it: choose another folder, or move it away."
        )


def _refuse_one_document(
    config: CorpusConfig, text: _Text, documents: int, joined: int, dropped: int
) -> None:
    read = text.document_sentences.size
    if not read:
        raise InputError(
            f"no text in {', '.join(config.files)}: every file is empty or blank. Give files "
            "with text in them."
        )
    if documents < 2:
        raise InputError(
            f"the corpus has {documents} document{'' if documents == 1 else 's'} ({read} read; of "
            f"one sentence: {joined} joined to another, {dropped} dropped), so there is no other "
            "document to take a random next sentence from; it needs 2. Give more text, put a "
            "blank line between documents, or check the options documents and single_sentence."
        )


# ----------------------------------------------------------------------------- first pass: encoding


@dataclass(frozen=True)
class _Batch:
    """Documents for one worker.

    Attributes:
        documents: lines of each document.
        files: number of the file each comes from.
        read: bytes of the files on disk that were read up to here.
    """

    documents: list[list[str]]
    files: list[int]
    read: int


@dataclass(frozen=True)
class _Encoded:
    """A batch as ids: T ids, S sentences and D documents that have any.

    Attributes:
        ids: [T].
        sentence_lengths: int32 [S].
        document_sentences, document_files: int32 [D].
        document_hashes: uint64 [D], of the text.
        text_bytes: UTF-8 bytes of the text.
        empty_sentences: left out because the tokenizer finds nothing in them.
        read: see :class:`_Batch`.
    """

    ids: Ids
    sentence_lengths: NDArray[np.int32]
    document_sentences: NDArray[np.int32]
    document_files: NDArray[np.int32]
    document_hashes: NDArray[np.uint64]
    text_bytes: int
    empty_sentences: int
    read: int


@dataclass(frozen=True)
class _Text:
    """All batches in order, named as in :class:`_Encoded`; the ids are on disk."""

    ids: Ids
    sentence_lengths: NDArray[np.int32]
    document_sentences: NDArray[np.int32]
    document_files: NDArray[np.int32]
    document_hashes: NDArray[np.uint64]
    text_bytes: int
    empty_sentences: int


def _encode_files(
    config: CorpusConfig,
    files: Sequence[Path],
    folder: Path,
    tokenizer: Tokenizer,
    progress: Callable[[int, int], None] | None,
) -> _Text:
    """Run the first pass; the ids go to a file in ``folder``."""
    total = sum(path.stat().st_size for path in files)
    # Generators at both ends keep no more than a few batches in memory.
    run = joblib.Parallel(
        n_jobs=config.workers, return_as="generator", pre_dispatch="2*n_jobs", batch_size=1
    )
    results = run(
        joblib.delayed(_encode_batch)(batch, config, folder, tokenizer.fingerprint)
        for batch in _batches(files, config)
    )
    kept: list[_Encoded] = []
    spool = folder / _SPOOL
    with spool.open("wb") as file:
        for result in results:
            file.write(result.ids.data)
            kept.append(_without_ids(result))
            if progress:
                progress(result.read, total)
    dtype = id_type(tokenizer.vocab_size)
    size = spool.stat().st_size
    return _Text(
        ids=np.memmap(spool, dtype=dtype, mode="r") if size else np.zeros(0, dtype=dtype),
        sentence_lengths=_concatenate([part.sentence_lengths for part in kept], np.int32),
        document_sentences=_concatenate([part.document_sentences for part in kept], np.int32),
        document_files=_concatenate([part.document_files for part in kept], np.int32),
        document_hashes=_concatenate([part.document_hashes for part in kept], np.uint64),
        text_bytes=sum(part.text_bytes for part in kept),
        empty_sentences=sum(part.empty_sentences for part in kept),
    )


def _batches(files: Sequence[Path], config: CorpusConfig) -> Iterator[_Batch]:
    documents: list[list[str]] = []
    numbers: list[int] = []
    characters = finished = read = 0

    def on_read(done: int) -> None:
        nonlocal read
        read = finished + done

    for number, path in enumerate(files):
        for lines in read_documents(
            path, documents=config.documents, max_line_mib=config.max_line_mib, on_read=on_read
        ):
            documents.append(lines)
            numbers.append(number)
            characters += sum(map(len, lines))
            if characters >= BATCH_CHARACTERS:
                yield _Batch(documents, numbers, read)
                documents, numbers, characters = [], [], 0
        finished = read
    yield _Batch(documents, numbers, read)


def _encode_batch(batch: _Batch, config: CorpusConfig, folder: Path, vocabulary: str) -> _Encoded:
    """The work of a worker: sentences and ids of a batch."""
    if config.workers > 1:
        # Several processes already use the cores; the tokenizer's own threads would fight them.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = ["\n".join(lines).encode() for lines in batch.documents]
    split = [
        split_lines(lines, sentences=config.sentences, language=config.language)
        for lines in batch.documents
    ]
    found = _tokenizer(folder, vocabulary).encode_plain(list(chain.from_iterable(split)))
    lengths = np.fromiter(map(len, found), dtype=np.int32, count=len(found))
    # Which document each sentence is of, counted without the sentences that have no ids.
    owners = np.repeat(np.arange(len(split)), [len(sentences) for sentences in split])
    document_sentences = np.bincount(owners[lengths > 0], minlength=len(split)).astype(np.int32)
    full = document_sentences > 0
    hashes = np.array([_hash(text) for text in texts], dtype=np.uint64)
    vocab_size = _tokenizer(folder, vocabulary).vocab_size
    return _Encoded(
        ids=np.fromiter(
            chain.from_iterable(found), dtype=id_type(vocab_size), count=int(lengths.sum())
        ),
        sentence_lengths=lengths[lengths > 0],
        document_sentences=document_sentences[full],
        document_files=np.array(batch.files, dtype=np.int32)[full],
        document_hashes=hashes[full],
        text_bytes=sum(map(len, texts)),
        empty_sentences=int((lengths == 0).sum()),
        read=batch.read,
    )


@lru_cache(maxsize=1)
def _tokenizer(folder: Path, vocabulary: str) -> Tokenizer:
    """Read once a process. The fingerprint keeps a worker that serves two builds from mixing."""
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.fingerprint == vocabulary
    return tokenizer


def _without_ids(part: _Encoded) -> _Encoded:
    return _Encoded(**{**vars(part), "ids": part.ids[:0].copy()})


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _concatenate(parts: list[NDArray[Any]], dtype: type[Any]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts])


# ------------------------------------------------------------------------ second pass: arrangement


def join_single_sentences(
    document_sentences: NDArray[np.int32], document_files: NDArray[np.int32], *, how: str
) -> tuple[list[Span], int, int]:
    """Which documents, as read, make a document of the store.

    A document of one sentence has no next sentence of its own. ``join`` puts it before the next
    longer document of its file, together with the others on the way there (title, chapter,
    heading); after the last longer document, it is put behind that one. ``drop`` leaves it out.

    Args:
        document_sentences: [D] sentences of each document, at least 1.
        document_files: [D] file of each, ascending.
        how: join or drop.

    Returns:
        The spans in order, how many documents of one sentence were joined to another, and how
        many dropped (with ``join``: the only document of its file).
    """
    spans: list[Span] = []
    single = document_sentences == 1
    if how == "drop":
        spans = [(int(at), int(at) + 1) for at in np.flatnonzero(~single)]
        return spans, 0, int(single.sum())
    dropped = stop = 0
    long = (~single).tolist()
    for _, group in groupby(document_files.tolist()):
        start, stop = stop, stop + sum(1 for _ in group)
        file_spans: list[Span] = []
        for at in range(start, stop):
            if long[at]:
                file_spans.append((start, at + 1))
                start = at + 1
        if start < stop:
            if file_spans:
                file_spans[-1] = (file_spans[-1][0], stop)
            elif stop - start > 1:
                file_spans.append((start, stop))
            else:
                dropped += 1
        spans.extend(file_spans)
    return spans, int(single.sum()) - dropped, dropped


def choose_heldout(hashes: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Which documents are held out: those whose hash is below a threshold.

    The choice depends on a document's text alone, so it is the same in any order of files, and
    copies of a document fall on the same side. Two exceptions move the threshold: training keeps
    at least two documents, and from 20 documents on so does the held-out part (the
    smallest hashes; unless copies make that impossible).

    Args:
        hashes: [D] of the documents' text, D at least 2.
        share: of the documents, in [0, 1).

    Returns:
        bool [D].
    """
    if share == 0:
        return np.zeros(hashes.size, dtype=np.bool_)
    threshold = int(share * 2.0**64)
    ordered = np.sort(hashes)
    if hashes.size >= HELDOUT_FROM:
        threshold = max(threshold, min(int(ordered[1]) + 1, 2**64 - 1))
    threshold = min(threshold, int(ordered[-2]))
    return np.asarray(hashes < np.uint64(threshold))


def _span_hashes(text: _Text, spans: list[Span]) -> NDArray[np.uint64]:
    hashes = text.document_hashes
    return np.array(
        [
            hashes[start] if stop - start == 1 else _hash(hashes[start:stop].tobytes())
            for start, stop in spans
        ],
        dtype=np.uint64,
    )


@dataclass(frozen=True)
class _Written:
    """A split's shards, its summary for the report, and how many of its ids are [UNK]."""

    shards: list[Shard]
    summary: dict[str, Any]
    unknown: int


def _write_split(
    folder: Path,
    split: Split,
    text: _Text,
    spans: list[Span],
    config: CorpusConfig,
    tokenizer: Tokenizer,
) -> _Written:
    edges = np.array(spans, dtype=np.int64).reshape(-1, 2)
    sentence_edges = bounds(text.document_sentences)[edges]
    token_edges = bounds(text.sentence_lengths)[sentence_edges]
    document_tokens = token_edges[:, 1] - token_edges[:, 0]
    # A document is in the shard that its first token falls into.
    place = bounds(document_tokens)[:-1] // config.shard_tokens
    shards: list[Shard] = []
    unknown = 0
    for chosen in [np.flatnonzero(place == number) for number in np.unique(place)]:
        ids = _gather(text.ids, token_edges[chosen])
        unknown += int((ids == tokenizer.unk_id).sum())
        shards.append(
            write_shard(
                folder / f"{split}-{len(shards):05}.arrow",
                ids,
                _gather(text.sentence_lengths, sentence_edges[chosen]),
                sentence_edges[chosen, 1] - sentence_edges[chosen, 0],
                tokenizer.fingerprint,
            )
        )
    lengths = _gather(text.sentence_lengths, sentence_edges).astype(np.int64)
    return _Written(shards, summarise_split(lengths, document_tokens), unknown)


def _gather(values: NDArray[Any], edges: NDArray[np.int64]) -> NDArray[Any]:
    """Stretches of ``values`` end to end; edges are [N, 2], first and one past the last."""
    return _concatenate([values[start:stop] for start, stop in edges.tolist()], values.dtype.type)
