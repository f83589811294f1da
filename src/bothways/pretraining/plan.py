"""An epoch's segment pairs as an integer table, made from sentence lengths alone.

The paper's data generator (``create_pretraining_data.py`` of the original release) walks through
each document, collects sentences up to a target length, splits them at random into A and B, and
half of the time replaces B by text of another document, putting the replaced sentences back. What
it draws depends on what it drew before in the same document, never on another document. Here each
draw is keyed by the sentence at which an instance starts (no two instances of an epoch start at the
same one), so a plan is a function of (seed, epoch).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.config import PairOptions
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.randomness import Purpose, below, bits, permutation, uniform

# Sentences whose random numbers are drawn at once.
_BLOCK = 1 << 16

SPECIALS_IN_PAIR = 3  # [CLS] A [SEP] B [SEP]


@dataclass(frozen=True)
class Plan:
    """The instances of one epoch, in corpus order; N instances.

    Attributes:
        a: int64 [N, 2]; first sentence of A and the one after its last, numbered over the store.
        b: int64 [N, 2]; the same for B.
        random_next: bool [N]; B is from another document.
        order: int64 [N]; the order of training.
    """

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    random_next: NDArray[np.bool_]
    order: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.random_next)


def plan_epoch(
    store: TokenStore, *, length: int, options: PairOptions, seed: int, epoch: int
) -> Plan:
    """Plan one pass over a store.

    Args:
        store: at least two documents, for a random next to exist.
        length: tokens of a sequence, specials included.
        options: shares of short targets and random next.
        seed: of the phase.
        epoch: from 0; every epoch draws anew.

    Raises:
        StoreError: the store has fewer than two documents.
    """
    check_documents(store)
    rows: list[tuple[int, int, int, int, int]] = []
    for first, last in _blocks(store):
        rows.extend(
            _plan_block(store, first, last, length - SPECIALS_IN_PAIR, options, seed, epoch)
        )
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return Plan(
        a=table[:, 0:2],
        b=table[:, 2:4],
        random_next=table[:, 4] == 1,
        order=permutation(len(table), seed, Purpose.SHUFFLE, epoch),
    )


def check_documents(store: TokenStore) -> None:
    """Refuse a store that pairs cannot be made from.

    Raises:
        StoreError: it has fewer than two documents.
    """
    if store.documents < 2:
        raise StoreError(
            f"{store.folder}: {store.documents} document(s) in the {store.split} part of the "
            "corpus; next-sentence prediction needs at least 2, so that a random next segment can "
            "come from another. Add text, or separate its documents with blank lines."
        )


def _blocks(store: TokenStore) -> Iterator[tuple[int, int]]:
    """Runs of documents with about _BLOCK sentences together."""
    bounds, first = store.document_bounds, 0
    while first < store.documents:
        last = int(np.searchsorted(bounds, bounds[first] + _BLOCK))
        last = min(max(last, first + 1), store.documents)
        yield first, last
        first = last


def _plan_block(
    store: TokenStore,
    first: int,
    last: int,
    max_tokens: int,
    options: PairOptions,
    seed: int,
    epoch: int,
) -> Iterator[tuple[int, int, int, int, int]]:
    documents = np.arange(first, last)
    short = uniform(seed, Purpose.SHORT, epoch, documents) < options.short
    # The original draws a short target once a document, from 2 to the longest, both included.
    drawn = 2 + below(max_tokens - 1, seed, Purpose.TARGET, epoch, documents)
    targets = np.where(short, drawn, max_tokens).tolist()
    base = int(store.document_bounds[first])
    sentences = np.arange(base, store.document_bounds[last])
    random_next = uniform(seed, Purpose.RANDOM_NEXT, epoch, sentences) < options.random_next
    draws = _Draws(
        base=base,
        random=random_next.tolist(),
        split=bits(seed, Purpose.SPLIT, epoch, sentences).tolist(),
        document=bits(seed, Purpose.RANDOM_DOCUMENT, epoch, sentences).tolist(),
        start=bits(seed, Purpose.RANDOM_START, epoch, sentences).tolist(),
    )
    for document in range(first, last):
        yield from _plan_document(store, document, targets[document - first], draws)


@dataclass(frozen=True)
class _Draws:
    """Random numbers by the sentence at which an instance starts, from sentence ``base``."""

    base: int
    random: list[bool]
    split: list[int]
    document: list[int]
    start: list[int]


def _plan_document(
    store: TokenStore, document: int, target: int, draws: _Draws
) -> Iterator[tuple[int, int, int, int, int]]:
    begin, end = (int(v) for v in store.document_bounds[document : document + 2])
    ends = store.sentence_bounds[begin : end + 1].tolist()  # tokens before each sentence
    at = begin
    while at < end:
        key = at - draws.base
        # The chunk: sentences until the target is reached, or the document ends.
        stop = begin + bisect_left(ends, ends[at - begin] + target, lo=at - begin + 1)
        stop = min(stop, end)
        split = at + 1
        if stop - at >= 2:
            split = at + 1 + _scaled(draws.split[key], stop - at - 1)
        if stop - at == 1 or draws.random[key]:
            wanted = target - (ends[split - begin] - ends[at - begin])
            yield at, split, *_random_segment(store, document, wanted, draws, key), 1
            at = split  # the sentences that B would have had are put back
        else:
            yield at, split, split, stop, 0
            at = stop


def _random_segment(
    store: TokenStore, document: int, wanted: int, draws: _Draws, key: int
) -> tuple[int, int]:
    """Sentences of another document from a random one on, at least one, ``wanted`` tokens or more
    if the document has them."""
    other = _scaled(draws.document[key], store.documents - 1)
    other += other >= document  # uniform over all but this one
    begin, end = store.document_bounds[other : other + 2].tolist()
    start = begin + _scaled(draws.start[key], end - begin)
    goal = store.sentence_bounds[start] + max(wanted, 1)
    stop = int(np.searchsorted(store.sentence_bounds[start + 1 : end + 1], goal)) + start + 1
    return start, min(stop, end)


def _scaled(word: int, limit: int) -> int:
    """:func:`bothways.randomness.below` for one word already drawn."""
    return ((word >> 32) * limit) >> 32


def truncation(
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    max_tokens: int,
    *,
    seed: int,
    epoch: int,
    index: NDArray[np.int64],
) -> tuple[NDArray[np.int64], ...]:
    """Tokens to drop from each end so that pairs fit, as the original drops them one by one.

    The original takes one token at a time from the longer segment (from B when they are equal),
    with even chance from its front or its end. How many each segment loses follows from the
    lengths; how many of those at the front is binomial.

    Args:
        a: int64 [B]; tokens of A.
        b: int64 [B]; tokens of B.
        max_tokens: limit for both together.
        seed: of the phase.
        epoch: of the instances.
        index: int64 [B]; the instances' rows in the plan.

    Returns:
        int64 [B] each: A's front, A's end, B's front, B's end.
    """
    excess = np.maximum(a + b - max_tokens, 0)
    alone = np.minimum(excess, np.abs(a - b))  # until both are equally long
    rest = excess - alone  # then in turn, B first
    drop_a = np.where(a > b, alone, 0) + rest // 2
    drop_b = np.where(a > b, 0, alone) + (rest + 1) // 2
    front_a = _coin_flips(drop_a, seed, Purpose.TRUNCATE_A, epoch, index)
    front_b = _coin_flips(drop_b, seed, Purpose.TRUNCATE_B, epoch, index)
    return front_a, drop_a - front_a, front_b, drop_b - front_b


def _coin_flips(
    count: NDArray[np.int64], seed: int, purpose: Purpose, epoch: int, index: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Heads among ``count`` flips, for each key."""
    heads = np.zeros_like(count)
    for word in range(-(-int(count.max(initial=0)) // 64)):
        flips = np.clip(count - 64 * word, 0, 64)
        # A shift by 64 is undefined, so shift by the rest and zero the words without flips.
        kept = bits(seed, purpose, epoch, index, word) >> (64 - np.maximum(flips, 1)).astype(
            np.uint64
        )
        heads += np.where(flips > 0, np.bitwise_count(kept).astype(np.int64), 0)
    return heads
