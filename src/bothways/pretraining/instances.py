"""The instances of an epoch as an integer table, computed from sentence lengths alone.

Every kind reads the corpus sentence by sentence. The draws that shape an instance are keyed by the
sentence it starts at, so that sentence alone decides where the instance ends and where the next one
starts. That makes two stages possible:

1. Every sentence is a candidate: compute, for all of them at once, the instance that would start
   there.
2. Follow the chain from sentence 0, from each instance's start to the next one's. The candidates on
   the chain are the instances of the epoch.

The kinds:

* ``next``: the paper's generator (``create_pretraining_data.py`` of the original release). Collect
  sentences of a document up to a target length, split them at random into A and B, and half of the
  time replace B by text of another document, putting the replaced sentences back.
* ``order``: sentence order (Lan et al. 2020, section 3.1). The same chunks and splits; half of the
  time A and B are swapped. A chunk has at least two sentences, and a last single sentence of a
  document joins the chunk before it; a document of one sentence gives no instance.
* ``full``: RoBERTa's FULL-SENTENCES (Liu et al. 2019, section 4.2). Whole sentences as long as they
  fit, across document borders, which a separator marks; the same sequences in every epoch.
* ``single``: RoBERTa's DOC-SENTENCES: the same, but never across a document border. A document that
  fits is one sequence, so this kind suits short unrelated texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import Growing
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.pretraining.options import PairOptions
from bothways.randomness import Purpose, below, permutation_in_parts, uniform
from bothways.training.options import PairKind

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Sentences whose candidates are computed at once.
_BLOCK = 1 << 16
RANDOM_NEXT = 0.5
"""Fraction of next-sentence pairs whose second segment comes from another document."""
# Share of sentence-order pairs that are swapped (Lan et al. 2020).
_SWAPPED = 0.5


@dataclass(frozen=True)
class Instances:
    """The N instances of one epoch, in corpus order.

    Attributes:
        a: int64 [N, 2]; A's first sentence and the one after its last, numbered over the store.
        b: int64 [N, 2]; the same for B; None for the kinds with one segment.
        label: bool [N]; B is from another document, or A and B are swapped; None for the kinds
            with one segment.
    """

    a: Ints
    b: Ints | None
    label: Flags | None

    def __len__(self) -> int:
        return len(self.a)


def create_instances(
    store: TokenStore, *, length: int, options: PairOptions, seed: int, epoch: int
) -> Instances:
    """The instances of one pass over a store, in memory that does not grow with it.

    Args:
        store: a corpus that ``options.kind`` can be made from.
        length: tokens of a sequence, special tokens included.
        options: the kind, and the shares of short targets and random next segments.
        seed: of the phase.
        epoch: from 0; every epoch draws its own instances.

    Raises:
        StoreError: the store gives no instance of this kind.
        BothwaysError: the table is large, and there is no room for its file.
    """
    check_store(store, options.kind)
    max_tokens = store.tokenizer.template.room(length, texts_of(options.kind))
    context = _Context(store, max_tokens, options, seed, epoch)
    candidates_at = _CANDIDATES[options.kind]
    one_segment = options.kind in ("full", "single")
    table = Growing("the instances of an epoch", columns=2 if one_segment else 4)
    label = Growing("the labels of an epoch", np.bool_)
    start = 0
    for first in range(0, store.sentences, _BLOCK):
        sentences = np.arange(first, min(first + _BLOCK, store.sentences))
        candidates = candidates_at(context, sentences)
        on_chain, start = _follow_chain(candidates.next_start, first, start)
        rows, labels = _rows(context, candidates.select(on_chain))
        table.append(rows)
        label.append(labels)
    rows = table.array()
    if one_segment:
        return Instances(rows, None, None)
    return Instances(rows[:, 0:2], rows[:, 2:4], label.array())


def training_order(size: int, *, seed: int, epoch: int) -> Ints:
    """The rows of an epoch's instances in the order of training, int64 [size].

    Raises:
        BothwaysError: the order is large, and there is no room for its file.
    """
    order = Growing("the order of an epoch")
    for part in permutation_in_parts(size, seed, Purpose.SHUFFLE, epoch):
        order.append(part)
    return order.array()


def texts_of(kind: PairKind) -> int:
    """How many texts a sequence has by its template. Those of ``full`` have one, with a separator
    at each document border in it."""
    return 2 if kind in ("next", "order") else 1


def check_store(store: TokenStore, kind: PairKind) -> None:
    """Refuse a store that this kind cannot be made from.

    Raises:
        StoreError: naming what is missing, and the remedy.
    """
    if problem := store_problem(store, kind):
        raise StoreError(f"{store.folder}: {problem}")


def store_problem(store: TokenStore, kind: PairKind) -> str:
    """Why a store gives no instance of this kind, with the remedy; empty if it gives some."""
    if store.split == "heldout" and not store.documents:
        return (
            "no document in the held-out part of the corpus; build it from more documents or with "
            "a larger share (--heldout; of few documents, none may be selected), or measure on "
            "another corpus."
        )
    part = f"{store.documents} document(s) in the {store.split} part of the corpus"
    if kind == "next" and store.documents < 2:
        return (
            f"{part}; next-sentence prediction needs at least 2, so that a random next segment can "
            "come from another. Add text, separate its documents with blank lines, or train "
            "without pairs (--pairs-kind single or full)."
        )
    if kind == "order" and store.sentences == store.documents:  # none is empty
        return (
            f"{part}, none of two sentences; sentence order needs two that follow one another. "
            "For unrelated short texts use --pairs-kind single, on a corpus that was built with "
            "--single-sentence keep."
        )
    return "" if store.sentences else f"{part}; there is nothing to read. Add text."


# -------------------------------------------------- stage 1: the candidate at every sentence


@dataclass(frozen=True)
class _Context:
    """What both stages need: the text's lengths, the options, and the keys of the draws.

    ``max_tokens`` is the most text tokens a sequence has room for.
    """

    store: TokenStore
    max_tokens: int
    options: PairOptions
    seed: int
    epoch: int


@dataclass(frozen=True)
class _Candidates:
    """The instances that would start at each of n sentences.

    Attributes:
        start: int64 [n]; the first sentence.
        document: int64 [n]; its document.
        target: int64 [n]; the number of tokens to reach.
        split: int64 [n]; B's first sentence.
        stop: int64 [n]; the sentence after the last.
        label: bool [n].
        next_start: int64 [n]; where the instance after this one starts.
    """

    start: Ints
    document: Ints
    target: Ints
    split: Ints
    stop: Ints
    label: Flags
    next_start: Ints

    def select(self, index: Ints) -> _Candidates:
        return _Candidates(**{name: values[index] for name, values in vars(self).items()})


@dataclass(frozen=True)
class _Chunks:
    """Sentences of one document that reach the target length, or the document's end.

    Attributes:
        document: int64 [n]; the document.
        document_end: int64 [n]; the sentence after the document's last.
        target: int64 [n]; the number of tokens to reach.
        stop: int64 [n]; the sentence after the chunk's last.
    """

    document: Ints
    document_end: Ints
    target: Ints
    stop: Ints


def _chunks(context: _Context, start: Ints) -> _Chunks:
    """The chunk that starts at each sentence."""
    bounds = context.store.sentence_bounds
    document, document_end = _documents(context.store, start)
    drawn_for = np.arange(document[0], document[-1] + 1)
    key = (context.epoch, drawn_for)
    short = uniform(context.seed, Purpose.SHORT, *key) < context.options.short
    # The original draws one short target per document, from 2 to the maximum, both included.
    short_target = 2 + below(context.max_tokens - 1, context.seed, Purpose.TARGET, *key)
    target = np.where(short, short_target, context.max_tokens)[document - document[0]]
    reach = _reach(context, start)
    stop = start[0] + np.searchsorted(reach, bounds[start] + target)
    return _Chunks(document, document_end, target, np.minimum(stop, document_end))


def _reach(context: _Context, start: Ints) -> Ints:
    """The bounds of all sentences that instances which start at consecutive ones can reach: a
    sentence has at least one token. A search in them stays in the processor's cache."""
    return context.store.sentence_bounds[start[0] : start[-1] + context.max_tokens + 1]


def _documents(store: TokenStore, sentence: Ints) -> tuple[Ints, Ints]:
    """The document of each of consecutive sentences, and the sentence after that document's
    last."""
    first, last = np.searchsorted(store.document_bounds, sentence[[0, -1]], side="right") - 1
    ends = store.document_bounds[first + 1 : last + 2]
    document = first + np.searchsorted(ends, sentence, side="right")
    return document, ends[document - first]


def _random_split(context: _Context, start: Ints, stop: Ints) -> Ints:
    """A random boundary between two sentences; the end if there is only one sentence."""
    boundaries = stop - start - 1
    return start + 1 + below(boundaries, context.seed, Purpose.SPLIT, context.epoch, start)


def _next_sentence_candidates(context: _Context, start: Ints) -> _Candidates:
    chunk = _chunks(context, start)
    split = _random_split(context, start, chunk.stop)
    chance = uniform(context.seed, Purpose.RANDOM_NEXT, context.epoch, start)
    is_random = (chunk.stop - start == 1) | (chance < RANDOM_NEXT)
    # The sentences that a random B replaces are put back.
    next_start = np.where(is_random, split, chunk.stop)
    return _Candidates(
        start, chunk.document, chunk.target, split, chunk.stop, is_random, next_start
    )


def _sentence_order_candidates(context: _Context, start: Ints) -> _Candidates:
    chunk = _chunks(context, start)
    stop = np.minimum(np.maximum(chunk.stop, start + 2), chunk.document_end)
    stop = np.where(chunk.document_end - stop == 1, chunk.document_end, stop)
    split = _random_split(context, start, stop)
    swapped = uniform(context.seed, Purpose.SWAP, context.epoch, start) < _SWAPPED
    return _Candidates(start, chunk.document, chunk.target, split, stop, swapped, stop)


def _full_candidates(context: _Context, start: Ints) -> _Candidates:
    bounds = context.store.sentence_bounds
    border = context.store.tokenizer.template.border_cost
    # A sentence has at least one token, so no candidate reaches beyond these.
    last = min(int(start[-1]) + context.max_tokens + 1, context.store.sentences)
    reach = np.arange(start[0], last)
    document, _ = _documents(context.store, reach)
    # The first sentence of a document costs a separator.
    used = bounds[reach + 1] + border * document
    document = document[: len(start)]
    limit = bounds[start] + border * document + context.max_tokens
    stop = start[0] + np.searchsorted(used, limit, side="right")
    return _one_segment(context, start, document, np.maximum(stop, start + 1))


def _single_candidates(context: _Context, start: Ints) -> _Candidates:
    bounds = context.store.sentence_bounds
    document, document_end = _documents(context.store, start)
    stop = np.searchsorted(bounds, bounds[start] + context.max_tokens, side="right") - 1
    return _one_segment(context, start, document, np.clip(stop, start + 1, document_end))


def _one_segment(context: _Context, start: Ints, document: Ints, stop: Ints) -> _Candidates:
    target, label = np.full_like(start, context.max_tokens), np.zeros(len(start), dtype=bool)
    return _Candidates(start, document, target, stop, stop, label, stop)


_CANDIDATES: dict[PairKind, Callable[[_Context, Ints], _Candidates]] = {
    "next": _next_sentence_candidates,
    "order": _sentence_order_candidates,
    "full": _full_candidates,
    "single": _single_candidates,
}


# ------------------------------------------------ stage 2: the candidates that are instances


def _follow_chain(next_start: Ints, first: int, start: int) -> tuple[Ints, int]:
    """Follow the chain of starts through a block of sentences.

    Args:
        next_start: int64 [n]; for each sentence of the block, where the next instance starts.
        first: the block's first sentence.
        start: where the chain enters the block.

    Returns:
        The sentences on the chain, counted from ``first``, and the first start after the block.
    """
    following = (next_start - first).tolist()
    on_chain, position = [], start - first
    while position < len(following):
        on_chain.append(position)
        position = following[position]
    return np.array(on_chain, dtype=np.int64), position + first


def _rows(context: _Context, chosen: _Candidates) -> tuple[Ints, Flags]:
    """One row per instance: A's first sentence and its end, and but for the kinds with one segment
    the same for B; and the labels."""
    if context.options.kind == "order":  # a document of one sentence gives no pair
        chosen = chosen.select(np.flatnonzero(chosen.stop - chosen.start > 1))
    a = np.stack([chosen.start, chosen.split], axis=1)
    if context.options.kind in ("full", "single"):
        return a, chosen.label
    b = np.stack([chosen.split, chosen.stop], axis=1)
    label = chosen.label[:, None]
    if context.options.kind == "next":
        b = np.where(label, _random_segments(context, chosen), b)
    else:
        a, b = np.where(label, b, a), np.where(label, a, b)
    return np.concatenate([a, b], axis=1), chosen.label


def _random_segments(context: _Context, chosen: _Candidates) -> Ints:
    """A random B for each instance: sentences of another document, from a random one on.

    At least one sentence, and enough to fill what A leaves of the target, or up to the end of the
    document.

    Returns:
        int64 [n, 2]; the first sentence and the one after the last.
    """
    store, bounds = context.store, context.store.sentence_bounds
    seed, key = context.seed, (context.epoch, chosen.start)
    other = below(store.documents - 1, seed, Purpose.RANDOM_DOCUMENT, *key)
    other += other >= chosen.document  # skip the instance's own document
    begin, end = store.document_bounds[other], store.document_bounds[other + 1]
    start = begin + below(end - begin, seed, Purpose.RANDOM_START, *key)
    remaining = chosen.target - (bounds[chosen.split] - bounds[chosen.start])
    stop = _reaching(bounds, start, np.maximum(remaining, 1), end)
    return np.stack([start, stop], axis=1)


def _reaching(bounds: Ints, start: Ints, tokens: Ints, end: Ints) -> Ints:
    """Where sentences from ``start`` on have so many tokens, or ``end``.

    A binary search by each between these two; one over all bounds would look at places that no
    cache holds.
    """
    wanted = bounds[start] + tokens
    low, high = start, np.minimum(end, start + tokens)  # a sentence has at least one token
    while (apart := low < high).any():
        middle = (low + high) // 2
        reached = bounds[middle] >= wanted
        low = np.where(apart & ~reached, middle + 1, low)
        high = np.where(apart & reached, middle, high)
    return low
