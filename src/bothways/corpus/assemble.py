"""From the units of a text to the documents of a store: what is removed, joined, held out.

Three passes over the units on disk, each one unit at a time; what they tell each other is on disk
too (16 bytes a document as read, 24 a document of the store, a byte a paragraph), so memory does
not grow with the corpus.

1. :func:`find_repeats` hashes documents whole, those that go over several units too.
2. :func:`plan_spans` decides which documents, as read, make a document of the store.
3. :func:`place_documents` gives each of those its split, and hands out its ids in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.config import CorpusConfig
from bothways.corpus.duplicates import RepeatFinder, Repeats
from bothways.corpus.encode import Columns, hash_all
from bothways.corpus.store import Ids, bounds

HELDOUT_FROM = 20
"""From this many documents on, a held-out part that was asked for has at least two."""
_BUFFER = 2**14

Row = tuple[int, int, int, int]
"""Of a document as read: number of its file, sentences, tokens, characters."""


@dataclass
class Span:
    """Documents as read, from ``start`` to before ``stop``, that make one document of the store."""

    start: int
    stop: int
    sentences: int
    tokens: int
    characters: int


@dataclass(frozen=True)
class Numbered:
    """A unit with its documents and paragraphs numbered over the whole corpus.

    Attributes:
        columns: the unit.
        documents: int64 [D] number of the document that each is, or is a part of.
        first_paragraph: number of its first paragraph.
    """

    columns: Columns
    documents: NDArray[np.int64]
    first_paragraph: int


def numbered(units: Iterable[Columns]) -> Iterator[Numbered]:
    """Put the parts of documents that go over several units together, by number."""
    documents = paragraphs = 0
    last_file = -1
    for columns in units:
        files = columns.document_files
        opens = np.ones(files.size, dtype=np.int64)
        if columns.continues[0] and files[0] == last_file:
            opens[0] = 0
        numbers = documents - 1 + np.cumsum(opens)
        yield Numbered(columns, numbers, paragraphs)
        if files.size:
            documents, last_file = int(numbers[-1]) + 1, int(files[-1])
        paragraphs += columns.paragraph_sentences.size


# ------------------------------------------------------------------------------ first pass: repeats


@dataclass(frozen=True)
class Text:
    """What the first pass finds.

    Attributes:
        document_hashes: uint64 [documents, 2], on disk.
        documents, paragraphs: what is repeated of each; empty ones are not looked at.
    """

    document_hashes: NDArray[np.uint64]
    documents: Repeats
    paragraphs: Repeats


def find_repeats(units: Iterable[Columns], scratch: Path) -> Text:
    """Hash every document, and find documents and paragraphs that were there before."""
    documents, paragraphs = (RepeatFinder(scratch, name) for name in ("documents", "paragraphs"))
    path = scratch / "document-hashes"
    total = 0
    with path.open("wb") as file:
        for first, hashes, full in _whole_documents(units, paragraphs):
            file.write(hashes.tobytes())
            items = np.flatnonzero(full)
            documents.add(hashes[items], first + items)
            total = first + full.size
    return Text(
        document_hashes=_mapped(path, np.uint64, 2),
        documents=documents.find(total),
        paragraphs=paragraphs.find(paragraphs.items),
    )


def _whole_documents(
    units: Iterable[Columns], paragraphs: RepeatFinder
) -> Iterator[tuple[int, NDArray[np.uint64], NDArray[np.bool_]]]:
    """First number, hashes, and which have a paragraph, of documents as they become whole."""
    open_hash = blake2b(digest_size=16)  # of the last document, which may go on
    open_number, open_full = -1, False
    for unit in numbered(units):
        columns = unit.columns
        items = unit.first_paragraph + np.arange(columns.paragraph_sentences.size)
        paragraphs.add(columns.paragraph_hashes, items)
        edges = bounds(columns.document_paragraphs)
        for number, start, stop in _ends(unit.documents, edges):
            part = columns.paragraph_hashes[start:stop].tobytes()
            if number == open_number:
                open_hash.update(part)
                open_full |= bool(part)
                continue
            if open_number >= 0:
                yield open_number, _one(open_hash.digest()), np.array([open_full])
            if number > open_number + 1:
                inner = slice(*np.searchsorted(unit.documents, [open_number + 1, number]).tolist())
                full = columns.document_paragraphs[inner] > 0
                yield open_number + 1, columns.document_hashes[inner], full
            open_hash = blake2b(part, digest_size=16)
            open_number, open_full = number, bool(part)
    if open_number >= 0:
        yield open_number, _one(open_hash.digest()), np.array([open_full])


def _ends(numbers: NDArray[np.int64], edges: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Number and paragraphs of a unit's first and last document, which may go beyond it."""
    if not numbers.size:
        return []
    places = sorted({0, numbers.size - 1})
    return [(int(numbers[at]), int(edges[at]), int(edges[at + 1])) for at in places]


def _one(digest: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(digest, dtype="<u8").reshape(1, 2)


# --------------------------------------------------------------------------------- what is left out


@dataclass(frozen=True)
class Kept:
    """A unit without what is repeated: sentences and their ids that stay, by document.

    Attributes:
        documents: int64 [D] as in :class:`Numbered`.
        files: uint32 [D].
        sentence_tokens: [S] of the sentences that stay.
        ids: [T] of theirs.
        sentences, tokens, characters: int64 [D] of each document.
    """

    documents: NDArray[np.int64]
    files: NDArray[np.uint32]
    sentence_tokens: NDArray[np.uint32]
    ids: Ids
    sentences: NDArray[np.int64]
    tokens: NDArray[np.int64]
    characters: NDArray[np.int64]


def kept(units: Iterable[Columns], text: Text, config: CorpusConfig) -> Iterator[Kept]:
    """Leave out the repetitions that ``config.duplicates`` says."""
    for unit in numbered(units):
        columns = unit.columns
        stay = np.ones(columns.paragraph_sentences.size, dtype=np.bool_)
        document_of = np.repeat(unit.documents, columns.document_paragraphs)
        if config.duplicates in ("documents", "both"):
            stay &= ~text.documents.repeated[document_of]
        if config.duplicates in ("paragraphs", "both"):
            first = unit.first_paragraph
            stay &= ~text.paragraphs.repeated[first : first + stay.size]
        sentences = np.repeat(stay, columns.paragraph_sentences)
        tokens, ids = columns.sentence_tokens, columns.ids
        # A document's sums are differences of running sums at its edges.
        edges = bounds(columns.document_paragraphs)
        by_paragraph = bounds(columns.paragraph_sentences * stay)[edges]
        by_sentence = bounds(tokens * sentences)[bounds(columns.paragraph_sentences)[edges]]
        yield Kept(
            documents=unit.documents,
            files=columns.document_files,
            sentence_tokens=tokens if stay.all() else tokens[sentences],
            ids=ids if stay.all() else ids[np.repeat(sentences, tokens)],
            sentences=np.diff(by_paragraph),
            tokens=np.diff(by_sentence),
            characters=np.diff(bounds(columns.paragraph_characters * stay)[edges]),
        )


# ------------------------------------------------------------------------------- second pass: spans


@dataclass
class Plan:
    """Which documents make up the store.

    Attributes:
        starts, stops: int64 [documents of the store], see :class:`Span`; on disk.
        keys: uint64 [documents of the store], a hash of the text of each; on disk.
        read: documents, as read, that have any sentence left.
        joined: documents of one sentence that were joined to another.
        dropped: documents of one sentence that were left out.
        short: documents left out because they are shorter than a minimum.
    """

    starts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    stops: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    read: int = 0
    joined: int = 0
    dropped: int = 0
    short: int = 0


def plan_spans(parts: Iterable[Kept], text: Text, config: CorpusConfig, scratch: Path) -> Plan:
    """Join or drop documents of one sentence, and drop those that are too short."""
    plan = Plan()
    files = [(scratch / name).open("w+b") for name in ("starts", "stops", "keys")]
    for spans in _in_lots(join_single_sentences(_rows(parts, plan), config, plan)):
        hashes = text.document_hashes
        keys = hash_all([hashes[s.start : s.stop].tobytes() for s in spans])[:, 0]
        alone = np.array([s.stop - s.start == 1 for s in spans])
        starts, stops = (np.array([getattr(s, n) for s in spans]) for n in ("start", "stop"))
        keys = np.where(alone, hashes[starts, 0], keys)
        for file, values in zip(files, (starts, stops, keys), strict=True):
            file.write(values.tobytes())
    for file in files:
        file.close()
    plan.starts, plan.stops = (_mapped(scratch / n, np.int64) for n in ("starts", "stops"))
    plan.keys = _mapped(scratch / "keys", np.uint64)
    return plan


def _rows(parts: Iterable[Kept], plan: Plan) -> Iterator[tuple[int, Row]]:
    """Number and row of each document that has any sentence left, in order."""
    number, row = -1, (0, 0, 0, 0)
    for part in parts:
        columns = (part.documents, part.files, part.sentences, part.tokens, part.characters)
        for at, file, sentences, tokens, characters in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            if at == number:
                row = (file, row[1] + sentences, row[2] + tokens, row[3] + characters)
                continue
            if row[1]:
                plan.read += 1
                yield number, row
            number, row = at, (file, sentences, tokens, characters)
    if row[1]:
        plan.read += 1
        yield number, row


def join_single_sentences(
    rows: Iterable[tuple[int, Row]], config: CorpusConfig, plan: Plan
) -> Iterator[Span]:
    """Which documents, as read, make a document of the store.

    A document of one sentence has no next sentence of its own. ``join`` puts it before the next
    longer document of its file, together with the others on the way there (title, chapter,
    heading); after the last longer document, it is put behind that one; the only document of its
    file is left out. ``drop`` leaves it out.

    Args:
        rows: number and row of each document, in order, of at least one sentence.
        config: ``single_sentence``, and the minima that are applied to the result.
        plan: its counts are raised.
    """
    for _, group in groupby(rows, key=lambda item: item[1][0]):
        for span in _join_file(group, config.single_sentence == "join", plan):
            if (
                span.sentences < config.min_sentences
                or span.tokens < config.min_tokens
                or span.characters < config.min_characters
            ):
                plan.short += 1
            else:
                yield span


def _join_file(rows: Iterable[tuple[int, Row]], join: bool, plan: Plan) -> Iterator[Span]:
    ready: Span | None = None  # the last longer document, until it is known what comes behind it
    waiting: Span | None = None  # documents of one sentence since then
    single = 0
    for number, (_, sentences, tokens, characters) in rows:
        span = Span(number, number + 1, sentences, tokens, characters)
        if sentences == 1 and not join:
            plan.dropped += 1
        elif sentences == 1:
            single += 1
            waiting = _joined(waiting, span)
        else:
            if ready:
                yield ready
            ready, waiting = _joined(waiting, span), None
    if waiting and (ready or single > 1):
        ready = _joined(ready, waiting)
    plan.joined += single if ready else 0
    plan.dropped += 0 if ready else single
    if ready:
        yield ready


def _joined(one: Span | None, other: Span) -> Span:
    if one is None:
        return other
    return Span(
        one.start,
        other.stop,
        one.sentences + other.sentences,
        one.tokens + other.tokens,
        one.characters + other.characters,
    )


def _in_lots(spans: Iterable[Span]) -> Iterator[list[Span]]:
    lot: list[Span] = []
    for span in spans:
        lot.append(span)
        if len(lot) == _BUFFER:
            yield lot
            lot = []
    if lot:
        yield lot


def _mapped(path: Path, dtype: type[Any], width: int = 1) -> NDArray[Any]:
    shape = (-1,) if width == 1 else (-1, width)
    if not path.stat().st_size:
        return np.zeros((0, *shape[1:]), dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r").reshape(shape)


# ------------------------------------------------------------------------------ third pass: placing


def heldout_below(keys: NDArray[np.uint64], share: float) -> int:
    """The threshold below which a document's key puts it into the held-out part.

    The choice depends on a document's text alone, so it is the same in any order of files, and
    copies of a document fall on the same side. Two exceptions move the threshold: training keeps
    at least two documents, and from 20 documents on so does the held-out part (the
    smallest keys; unless copies make that impossible).

    Args:
        keys: [D] hashes of the documents' text, D at least 2; may be on disk.
        share: of the documents, in [0, 1).
    """
    if share == 0:
        return 0
    low = high = np.zeros(0, dtype=np.uint64)
    for start in range(0, keys.size, _BUFFER):
        some = keys[start : start + _BUFFER]
        low = np.sort(np.concatenate([low, some]))[:2]
        high = np.sort(np.concatenate([high, some]))[-2:]
    threshold = int(share * 2.0**64)
    if keys.size >= HELDOUT_FROM:
        threshold = max(threshold, min(int(low[1]) + 1, 2**64 - 1))
    return min(threshold, int(high[0]))


@dataclass(frozen=True)
class Stretch:
    """Sentences in a row that are of one document of the store, or of a part of it.

    Attributes:
        document: its number in the plan.
        heldout: its split.
        sentence_tokens: [S].
        ids: [T] of those sentences.
    """

    document: int
    heldout: bool
    sentence_tokens: NDArray[np.uint32]
    ids: Ids


def place_documents(parts: Iterable[Kept], plan: Plan, share: float) -> Iterator[Stretch]:
    """The documents of the store, in order, in one stretch for each unit they are in."""
    threshold = heldout_below(plan.keys, share)
    for part in parts:
        at = np.searchsorted(plan.starts, part.documents, side="right") - 1
        inside = (at >= 0) & (part.sentences > 0)
        inside[inside] = part.documents[inside] < plan.stops[at[inside]]
        sentence_edges, token_edges = bounds(part.sentences), bounds(part.tokens)
        places = np.flatnonzero(inside)
        # Documents of one span are neighbours, but for some that were left out, without sentences.
        begins = np.flatnonzero(np.diff(at[places], prepend=-1))
        firsts = places[begins]
        lasts = places[np.append(begins[1:], places.size) - 1] + 1 if begins.size else begins
        documents = at[firsts]
        heldout = plan.keys[documents] < np.uint64(threshold)
        for first, last, document, is_heldout in zip(
            *(column.tolist() for column in (firsts, lasts, documents, heldout)), strict=True
        ):
            yield Stretch(
                document,
                is_heldout,
                part.sentence_tokens[sentence_edges[first] : sentence_edges[last]],
                part.ids[token_edges[first] : token_edges[last]],
            )
