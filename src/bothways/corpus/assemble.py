"""From encoded units to the documents of a store: removing repeats, joining, choosing the split.

A document as read from the inputs is a *source document*. Three passes over the units on disk turn
source documents into the documents of the store. Each pass holds one unit in memory; its results
(16 bytes per source document, 24 per document of the store) are kept on disk when they are large.

1. :func:`find_repeats` finds repeated paragraphs and documents by their hashes.
2. :func:`plan_documents` decides which source documents make up each document of the store.
3. :func:`place_documents` assigns each of those to a split and returns its sentences in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import Growing, bounds
from bothways.corpus.duplicates import RepeatFinder, Repeats
from bothways.corpus.encode import EncodedUnit, hash_all
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import Ids

HELDOUT_FROM = 20
"""With this many documents or more, a held-out split that was requested has at least two."""
_BATCH = 2**14


@dataclass(frozen=True)
class NumberedUnit:
    """A unit whose documents and paragraphs are numbered across the whole corpus.

    Attributes:
        encoded: the unit.
        documents: int64 [D] number of the source document that each belongs to.
        first_paragraph: number of the unit's first paragraph.
    """

    encoded: EncodedUnit
    documents: NDArray[np.int64]
    first_paragraph: int


def number_documents(units: Iterable[EncodedUnit]) -> Iterator[NumberedUnit]:
    """Number documents and paragraphs; all parts of a document get the same number."""
    documents = paragraphs = 0
    last_file = -1
    for encoded in units:
        files = encoded.document_files
        starts_document = np.ones(files.size, dtype=np.int64)
        if encoded.continues[0] and files[0] == last_file:
            starts_document[0] = 0
        numbers = documents - 1 + np.cumsum(starts_document)
        yield NumberedUnit(encoded, numbers, paragraphs)
        if files.size:
            documents, last_file = int(numbers[-1]) + 1, int(files[-1])
        paragraphs += encoded.paragraph_sentences.size


# ------------------------------------------------------------------------------ first pass: repeats


@dataclass(frozen=True)
class RepeatIndex:
    """The result of the first pass.

    Attributes:
        document_hashes: uint64 [source documents, 2].
        documents, paragraphs: the repeats among each; empty ones are ignored.
    """

    document_hashes: NDArray[np.uint64]
    documents: Repeats
    paragraphs: Repeats


def find_repeats(units: Iterable[EncodedUnit], scratch: Path) -> RepeatIndex:
    """Hash every document, and find the documents and paragraphs that repeat an earlier one."""
    documents, paragraphs = (RepeatFinder(scratch, name) for name in ("documents", "paragraphs"))
    hasher = _DocumentHasher(documents)
    for unit in number_documents(units):
        hashes = unit.encoded.paragraph_hashes
        paragraphs.add(hashes, unit.first_paragraph + np.arange(len(hashes)))
        hasher.add(unit)
    hasher.finish()
    return RepeatIndex(
        document_hashes=hasher.hashes.array(),
        documents=documents.find(hasher.total),
        paragraphs=paragraphs.find(paragraphs.items),
    )


class _DocumentHasher:
    """Hashes documents by their paragraphs, including documents that span several units.

    The worker has hashed the documents inside a unit. The first and the last document of a unit may
    continue in the units around it, so these are hashed here.

    Args:
        repeats: receives the hashes of documents that have a paragraph.

    Attributes:
        hashes: of every document, in order.
        total: documents hashed so far.
    """

    def __init__(self, repeats: RepeatFinder):
        self.hashes = Growing("hashes of documents", np.uint64, columns=2)
        self.total = 0
        self._repeats = repeats
        self._open = -1  # number of the last document, which may continue; -1 for none
        self._hash = blake2b(digest_size=16)
        self._has_text = False

    def add(self, unit: NumberedUnit) -> None:
        """Hash the documents of the next unit."""
        encoded = unit.encoded
        last = unit.documents.size - 1
        if last < 0:
            return
        edges = bounds(encoded.document_paragraphs)
        self._extend(int(unit.documents[0]), encoded.paragraph_hashes[: edges[1]])
        if last > 0:
            self.finish()
            inner = slice(1, last)
            self._store(encoded.document_hashes[inner], encoded.document_paragraphs[inner] > 0)
            self._extend(int(unit.documents[last]), encoded.paragraph_hashes[edges[last] :])

    def finish(self) -> None:
        """Complete the document that is still open, if any."""
        if self._open >= 0:
            digest = np.frombuffer(self._hash.digest(), dtype="<u8").reshape(1, 2)
            self._store(digest, np.array([self._has_text]))
        self._open = -1

    def _extend(self, number: int, hashes: NDArray[np.uint64]) -> None:
        """Add paragraphs to the open document, or complete it and open document ``number``."""
        if number != self._open:
            self.finish()
            self._open = number
            self._hash = blake2b(digest_size=16)
            self._has_text = False
        self._hash.update(hashes.tobytes())
        self._has_text |= len(hashes) > 0

    def _store(self, hashes: NDArray[np.uint64], has_text: NDArray[np.bool_]) -> None:
        self.hashes.append(hashes)
        indices = np.flatnonzero(has_text)
        self._repeats.add(hashes[indices], self.total + indices)
        self.total += has_text.size


# --------------------------------------------------------------------------------- removing repeats


@dataclass(frozen=True)
class DeduplicatedUnit:
    """A unit without its repeats: the remaining sentences and their ids, by document.

    Attributes:
        documents: int64 [D] as in :class:`NumberedUnit`.
        files: uint32 [D].
        sentence_tokens: [S] of the remaining sentences.
        ids: [T] of the remaining sentences.
        sentences, tokens, characters: int64 [D] of each document.
    """

    documents: NDArray[np.int64]
    files: NDArray[np.uint32]
    sentence_tokens: NDArray[np.uint32]
    ids: Ids
    sentences: NDArray[np.int64]
    tokens: NDArray[np.int64]
    characters: NDArray[np.int64]


def remove_repeats(
    units: Iterable[EncodedUnit], repeats: RepeatIndex, config: CorpusConfig
) -> Iterator[DeduplicatedUnit]:
    """Remove the repeats that ``config.duplicates`` names."""
    for unit in number_documents(units):
        encoded = unit.encoded
        keep = np.ones(encoded.paragraph_sentences.size, dtype=np.bool_)
        document_of = np.repeat(unit.documents, encoded.document_paragraphs)
        if config.duplicates in ("documents", "both"):
            keep &= ~repeats.documents.repeated[document_of]
        if config.duplicates in ("paragraphs", "both"):
            first = unit.first_paragraph
            keep &= ~repeats.paragraphs.repeated[first : first + keep.size]
        keep_sentence = np.repeat(keep, encoded.paragraph_sentences)
        tokens, ids = encoded.sentence_tokens, encoded.ids
        # A document's sums are differences of running sums at its edges.
        edges = bounds(encoded.document_paragraphs)
        sentences_before = bounds(encoded.paragraph_sentences * keep)[edges]
        first_sentences = bounds(encoded.paragraph_sentences)[edges]
        tokens_before = bounds(tokens * keep_sentence)[first_sentences]
        yield DeduplicatedUnit(
            documents=unit.documents,
            files=encoded.document_files,
            sentence_tokens=tokens if keep.all() else tokens[keep_sentence],
            ids=ids if keep.all() else ids[np.repeat(keep_sentence, tokens)],
            sentences=np.diff(sentences_before),
            tokens=np.diff(tokens_before),
            characters=np.diff(bounds(encoded.paragraph_characters * keep)[edges]),
        )


# ---------------------------------------------------------------------------- second pass: planning


@dataclass(frozen=True)
class SourceRange:
    """Consecutive source documents that belong together.

    Attributes:
        start, stop: number of the first, and of the one after the last. Some in between may have
            no sentence left.
        sentences, tokens, characters: of all together.
        documents: those that have a sentence left.
        single: documents of one sentence that were joined into this range.
    """

    start: int
    stop: int
    sentences: int
    tokens: int
    characters: int
    documents: int = 1
    single: int = 0

    def join(self, other: SourceRange) -> SourceRange:
        """This range and a later one, as one."""
        return SourceRange(
            self.start,
            other.stop,
            self.sentences + other.sentences,
            self.tokens + other.tokens,
            self.characters + other.characters,
            self.documents + other.documents,
            self.single + other.single,
        )


@dataclass
class DocumentCounts:
    """What became of the source documents.

    Attributes:
        read: those that have a sentence left after repeats were removed.
        joined: documents of one sentence that were joined to another.
        dropped: documents of one sentence that were left out.
        short: documents left out because they are shorter than a minimum.
    """

    read: int = 0
    joined: int = 0
    dropped: int = 0
    short: int = 0


@dataclass(frozen=True)
class DocumentPlan:
    """Which source documents make up each of the D documents of the store.

    Attributes:
        starts, stops: int64 [D], see :class:`SourceRange`.
        keys: uint64 [D], a hash of the text of each.
        counts: what became of the source documents.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    keys: NDArray[np.uint64]
    counts: DocumentCounts


def plan_documents(
    units: Iterable[DeduplicatedUnit], repeats: RepeatIndex, config: CorpusConfig
) -> DocumentPlan:
    """Join or drop documents of one sentence, and drop those that are too short."""
    counts = DocumentCounts()
    starts, stops = Growing("documents"), Growing("documents")
    keys = Growing("documents", np.uint64)
    ranges = join_single_sentences(_source_documents(units), join=config.single_sentence == "join")
    for batch in _batches(ranges):
        chosen = _choose(batch, config, counts)
        firsts = np.array([item.start for item in chosen], dtype=np.int64)
        lasts = np.array([item.stop for item in chosen], dtype=np.int64)
        starts.append(firsts)
        stops.append(lasts)
        keys.append(_text_keys(firsts, lasts, repeats.document_hashes))
    return DocumentPlan(starts.array(), stops.array(), keys.array(), counts)


def _source_documents(units: Iterable[DeduplicatedUnit]) -> Iterator[tuple[int, SourceRange]]:
    """File and range of each source document that has a sentence left, in order."""
    file, document = -1, SourceRange(-1, 0, 0, 0, 0)
    for unit in units:
        columns = (unit.documents, unit.files, unit.sentences, unit.tokens, unit.characters)
        for number, part_file, *sizes in zip(*(c.tolist() for c in columns), strict=True):
            part = SourceRange(number, number + 1, *sizes)
            if number == document.start:
                document = replace(document.join(part), documents=1)
                continue
            if document.sentences:
                yield file, document
            file, document = part_file, part
    if document.sentences:
        yield file, document


def join_single_sentences(
    documents: Iterable[tuple[int, SourceRange]], *, join: bool
) -> Iterator[SourceRange]:
    """Join documents of one sentence, which have no next sentence of their own, to longer ones.

    A document of one sentence is joined to the start of the next longer document of its file,
    together with the others in between (title, chapter, heading). After the last longer document of
    the file, it is joined to the end of that one.

    Args:
        documents: file and range of each document, in order, each of at least one sentence.
        join: False to leave all documents as they are.

    Yields:
        Ranges in order, with every document in exactly one. A range of one sentence is a document
        that could not be joined.
    """
    for _, group in groupby(documents, key=lambda item: item[0]):
        ranges = (document for _, document in group)
        yield from _join_file(ranges) if join else ranges


def _join_file(documents: Iterable[SourceRange]) -> Iterator[SourceRange]:
    """:func:`join_single_sentences` within one file."""
    longer: SourceRange | None = None  # the last one; documents of one sentence may follow it
    waiting: SourceRange | None = None  # documents of one sentence since then
    for document in documents:
        if document.sentences == 1:
            single = replace(document, single=1)
            waiting = single if waiting is None else waiting.join(single)
        else:
            if longer:
                yield longer
            longer = document if waiting is None else waiting.join(document)
            waiting = None
    if longer is not None:
        yield longer if waiting is None else longer.join(waiting)
    elif waiting is not None:
        yield waiting


def _choose(
    ranges: Iterable[SourceRange], config: CorpusConfig, counts: DocumentCounts
) -> list[SourceRange]:
    """The ranges that become documents of the store; ``counts`` records what became of all."""
    chosen = []
    for item in ranges:
        counts.read += item.documents
        if item.sentences == 1 and config.single_sentence != "keep":
            counts.dropped += 1
            continue
        counts.joined += item.single
        if (
            item.sentences < config.min_sentences
            or item.tokens < config.min_tokens
            or item.characters < config.min_characters
        ):
            counts.short += 1
        else:
            chosen.append(item)
    return chosen


def _text_keys(
    starts: NDArray[np.int64], stops: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """A key for the text of each range: its document's hash, or a hash of several."""
    texts = [
        hashes[start:stop].tobytes()
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
    alone = stops - starts == 1
    keys: NDArray[np.uint64] = np.where(alone, hashes[starts, 0], hash_all(texts)[:, 0])
    return keys


def _batches(ranges: Iterable[SourceRange]) -> Iterator[list[SourceRange]]:
    iterator = iter(ranges)
    while batch := list(islice(iterator, _BATCH)):
        yield batch


# ------------------------------------------------------------------------------ third pass: placing


def heldout_below(keys: NDArray[np.uint64], share: float) -> int:
    """The threshold below which a document's key puts it into the held-out split.

    The choice depends on a document's text alone, so it is the same for any order of files, and
    copies of a document end up in the same split. Two exceptions move the threshold: the training
    split keeps at least two documents, and with 20 documents or more so does the held-out split
    (the smallest keys; unless copies make that impossible).

    Args:
        keys: [D] hashes of the documents' text, D at least 2; may be on disk.
        share: of the documents, in [0, 1).
    """
    if share == 0:
        return 0
    lowest = highest = np.zeros(0, dtype=np.uint64)
    for start in range(0, keys.size, _BATCH):
        batch = keys[start : start + _BATCH]
        lowest = np.sort(np.concatenate([lowest, batch]))[:2]
        highest = np.sort(np.concatenate([highest, batch]))[-2:]
    threshold = int(share * 2.0**64)
    if keys.size >= HELDOUT_FROM:
        threshold = max(threshold, min(int(lowest[1]) + 1, 2**64 - 1))
    return min(threshold, int(highest[0]))


@dataclass(frozen=True)
class PlacedSentences:
    """Consecutive sentences of one document of the store: all of it, or the part in one unit.

    Attributes:
        document: its number in the plan.
        heldout: whether it is in the held-out split.
        sentence_tokens: [S].
        ids: [T] of those sentences.
    """

    document: int
    heldout: bool
    sentence_tokens: NDArray[np.uint32]
    ids: Ids


def place_documents(
    units: Iterable[DeduplicatedUnit], plan: DocumentPlan, share: float
) -> Iterator[PlacedSentences]:
    """The documents of the store in order, each in one piece per unit that it appears in."""
    threshold = heldout_below(plan.keys, share)
    for unit in units:
        # Source documents that are in the plan and have sentences, and their document there.
        target = np.searchsorted(plan.starts, unit.documents, side="right") - 1
        planned = (target >= 0) & (unit.sentences > 0)
        planned[planned] = unit.documents[planned] < plan.stops[target[planned]]
        sources = np.flatnonzero(planned)
        # Those of one target follow each other; any in between have no sentences.
        group_starts = np.flatnonzero(np.diff(target[sources], prepend=-1))
        group_ends = np.append(group_starts[1:], sources.size)[: group_starts.size]
        firsts, lasts = sources[group_starts], sources[group_ends - 1]
        documents = target[firsts]
        heldout = plan.keys[documents] < np.uint64(threshold)
        sentence_edges, token_edges = bounds(unit.sentences), bounds(unit.tokens)
        for first, last, document, is_heldout in zip(
            *(column.tolist() for column in (firsts, lasts, documents, heldout)), strict=True
        ):
            yield PlacedSentences(
                document,
                is_heldout,
                unit.sentence_tokens[sentence_edges[first] : sentence_edges[last + 1]],
                unit.ids[token_edges[first] : token_edges[last + 1]],
            )
