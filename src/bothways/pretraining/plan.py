"""An epoch's instances as an integer table, made from sentence lengths alone.

Each kind walks through the corpus sentence by sentence. Where an instance ends, and so where the
next one starts, is a function of the sentence at which it starts: every draw is keyed by that
sentence. So ends are computed for all sentences at once, and the walk is a chain through them.

* ``next``: the paper's generator (``create_pretraining_data.py`` of the original release). Collect
  sentences of a document up to a target length, split them at random into A and B, and half of the
  time replace B by text of another document, putting the replaced sentences back.
* ``order``: sentence order (Lan et al. 2020, section 3.1). The same chunks and splits; half of the
  time A and B change places. A chunk takes two sentences or more, and a last single sentence of a
  document joins the chunk before it; a document of one sentence gives nothing.
* ``full``: RoBERTa's FULL-SENTENCES (Liu et al. 2019, section 4.2). Whole sentences as long as they
  fit, over document borders, where a separator stands; the same sequences in every epoch.
* ``single``: RoBERTa's DOC-SENTENCES: the same, never over a document's border. A document that
  fits is one sequence, so it serves unrelated short texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.config import PairKind, PairOptions
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.randomness import Purpose, below, permutation, uniform

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Sentences whose ends are computed at once.
_BLOCK = 1 << 16
# Share of sentence-order pairs that change places (Lan et al. 2020).
_SWAPPED = 0.5


@dataclass(frozen=True)
class Plan:
    """The instances of one epoch, in corpus order; N instances.

    Attributes:
        a: int64 [N, 2]; first sentence of A and the one after its last, numbered over the store.
        b: int64 [N, 2]; the same for B; None for the kinds of one segment.
        label: bool [N]; B is from another document, or A and B have changed places; None for the
            kinds of one segment.
    """

    a: Ints
    b: Ints | None
    label: Flags | None

    def __len__(self) -> int:
        return len(self.a)


def plan_epoch(
    store: TokenStore, *, length: int, options: PairOptions, seed: int, epoch: int
) -> Plan:
    """Plan one pass over a store.

    Args:
        store: what ``options.kind`` can be made from.
        length: tokens of a sequence, specials included.
        options: kind, shares of short targets and random next.
        seed: of the phase.
        epoch: from 0; every epoch draws anew.

    Raises:
        StoreError: the store gives no instance of this kind.
    """
    check_store(store, options.kind)
    draw = _Draw(store, length - specials(options.kind), options, seed, epoch)
    steps_of = _STEPS[options.kind]
    tables, at = [], 0
    for first in range(0, store.sentences, _BLOCK):
        sentences = np.arange(first, min(first + _BLOCK, store.sentences))
        steps = steps_of(draw, sentences)
        picked, at = _walk(steps.following, first, at)
        tables.append(_table(draw, steps, picked))
    table = np.concatenate(tables)
    if options.kind in ("full", "single"):
        return Plan(table[:, 0:2], None, None)
    return Plan(table[:, 0:2], table[:, 2:4], table[:, 4] == 1)


def training_order(size: int, *, seed: int, epoch: int) -> Ints:
    """The rows of a plan in the order of training, int64 [size]."""
    return permutation(size, seed, Purpose.SHUFFLE, epoch)


def specials(kind: PairKind) -> int:
    """[CLS] and [SEP]s of a sequence; a ``full`` one has another [SEP] at each border."""
    return 3 if kind in ("next", "order") else 2


def check_store(store: TokenStore, kind: PairKind) -> None:
    """Refuse a store that this kind cannot be made from.

    Raises:
        StoreError: saying what is missing, and what to do.
    """
    if problem := unfit(store, kind):
        raise StoreError(f"{store.folder}: {problem}")


def unfit(store: TokenStore, kind: PairKind) -> str:
    """Why a store gives no instance of this kind, and the remedy; empty where it does."""
    if store.split == "heldout" and not store.documents:
        return (
            "no document in the held-out part of the corpus; build it with --heldout above 0, or "
            "measure on another corpus."
        )
    part = f"{store.documents} document(s) in the {store.split} part of the corpus"
    if kind == "next" and store.documents < 2:
        return (
            f"{part}; next-sentence prediction needs at least 2, so that a random next segment can "
            "come from another. Add text, separate its documents with blank lines, or train "
            "without pairs (--pairs.kind single or full)."
        )
    longest = int(np.diff(store.document_bounds).max(initial=0))
    if kind == "order" and longest < 2:
        return (
            f"{part}, none of two sentences; sentence order needs two that follow one another. "
            "For unrelated short texts use --pairs.kind single."
        )
    return "" if store.sentences else f"{part}; there is nothing to read. Add text."


# -------------------------------------------------------------------- where instances may end


@dataclass(frozen=True)
class _Draw:
    """What every step needs: the text's lengths, the options, and the keys of the draws.

    ``room`` is the most tokens of text in a sequence.
    """

    store: TokenStore
    room: int
    options: PairOptions
    seed: int
    epoch: int


@dataclass(frozen=True)
class _Steps:
    """The instance that would start at each of n sentences.

    Attributes:
        start: int64 [n]; the sentence.
        document: int64 [n]; its document.
        target: int64 [n]; tokens aimed at.
        split: int64 [n]; where B starts.
        stop: int64 [n]; the sentence after the last.
        label: bool [n].
        following: int64 [n]; where the next instance starts.
    """

    start: Ints
    document: Ints
    target: Ints
    split: Ints
    stop: Ints
    label: Flags
    following: Ints

    def take(self, picked: Ints) -> _Steps:
        return _Steps(**{name: values[picked] for name, values in vars(self).items()})


def _chunks(draw: _Draw, start: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Document and its end, target, and the end of the chunk that reaches it, for each sentence."""
    bounds = draw.store.sentence_bounds
    document, end = _documents(draw.store, start)
    own = np.arange(document[0], document[-1] + 1)
    short = uniform(draw.seed, Purpose.SHORT, draw.epoch, own) < draw.options.short
    # The original draws a short target once a document, from 2 to the longest, both included.
    drawn = 2 + below(draw.room - 1, draw.seed, Purpose.TARGET, draw.epoch, own)
    target = np.where(short, drawn, draw.room)[document - own[0]]
    stop = np.searchsorted(bounds, bounds[start] + target)
    return document, end, target, np.minimum(stop, end)


def _documents(store: TokenStore, start: Ints) -> tuple[Ints, Ints]:
    """The document of each sentence, and the sentence after its last."""
    document = np.searchsorted(store.document_bounds, start, side="right") - 1
    return document, store.document_bounds[document + 1]


def _split(draw: _Draw, start: Ints, stop: Ints) -> Ints:
    """A random place between two sentences; the end where there is but one."""
    places = stop - start - 1
    return start + 1 + below(places, draw.seed, Purpose.SPLIT, draw.epoch, start)


def _next_steps(draw: _Draw, start: Ints) -> _Steps:
    document, _, target, stop = _chunks(draw, start)
    split = _split(draw, start, stop)
    chance = uniform(draw.seed, Purpose.RANDOM_NEXT, draw.epoch, start)
    label = (stop - start == 1) | (chance < draw.options.random_next)
    # The sentences that a random B takes the place of are put back.
    return _Steps(start, document, target, split, stop, label, np.where(label, split, stop))


def _order_steps(draw: _Draw, start: Ints) -> _Steps:
    document, end, target, stop = _chunks(draw, start)
    stop = np.minimum(np.maximum(stop, start + 2), end)
    stop = np.where(end - stop == 1, end, stop)
    label = uniform(draw.seed, Purpose.SWAP, draw.epoch, start) < _SWAPPED
    return _Steps(start, document, target, _split(draw, start, stop), stop, label, stop)


def _full_steps(draw: _Draw, start: Ints) -> _Steps:
    bounds = draw.store.sentence_bounds
    # No further than this, as a sentence has a token or more.
    ahead = np.arange(start[0], min(int(start[-1]) + draw.room + 1, draw.store.sentences))
    document, _ = _documents(draw.store, ahead)
    used = bounds[ahead + 1] + document  # a document's first sentence brings a separator
    own = document[: len(start)]
    stop = start[0] + np.searchsorted(used, bounds[start] + own + draw.room, side="right")
    return _one_segment(draw, start, own, np.maximum(stop, start + 1))


def _single_steps(draw: _Draw, start: Ints) -> _Steps:
    bounds = draw.store.sentence_bounds
    document, end = _documents(draw.store, start)
    stop = np.searchsorted(bounds, bounds[start] + draw.room, side="right") - 1
    return _one_segment(draw, start, document, np.clip(stop, start + 1, end))


def _one_segment(draw: _Draw, start: Ints, document: Ints, stop: Ints) -> _Steps:
    target, label = np.full_like(start, draw.room), np.zeros(len(start), dtype=bool)
    return _Steps(start, document, target, stop, stop, label, stop)


_STEPS: dict[PairKind, Callable[[_Draw, Ints], _Steps]] = {
    "next": _next_steps,
    "order": _order_steps,
    "full": _full_steps,
    "single": _single_steps,
}


# ------------------------------------------------------------------------- where they really do


def _walk(following: Ints, first: int, at: int) -> tuple[Ints, int]:
    """Which sentences of a block, counted from ``first``, start an instance; where to go on."""
    steps = (following - first).tolist()
    picked, place = [], at - first
    while place < len(steps):
        picked.append(place)
        place = steps[place]
    return np.array(picked, dtype=np.int64), place + first


def _table(draw: _Draw, steps: _Steps, picked: Ints) -> Ints:
    """Rows (A's first and end, B's first and end, label) of the picked starts."""
    if draw.options.kind == "order":  # a document of one sentence
        picked = picked[steps.stop[picked] - steps.start[picked] > 1]
    steps = steps.take(picked)
    a = np.stack([steps.start, steps.split], axis=1)
    b = np.stack([steps.split, steps.stop], axis=1)
    label = steps.label[:, None]
    if draw.options.kind == "next":
        b = np.where(label, _random_segments(draw, steps), b)
    elif draw.options.kind == "order":
        a, b = np.where(label, b, a), np.where(label, a, b)
    return np.concatenate([a, b, label], axis=1)


def _random_segments(draw: _Draw, steps: _Steps) -> Ints:
    """Sentences of another document from a random one on, at least one, as many tokens as A leaves
    of the target or more, if the document has them; int64 [n, 2]."""
    store, bounds, key = draw.store, draw.store.sentence_bounds, (draw.epoch, steps.start)
    other = below(store.documents - 1, draw.seed, Purpose.RANDOM_DOCUMENT, *key)
    other += other >= steps.document  # even over all but this one
    begin, end = store.document_bounds[other], store.document_bounds[other + 1]
    start = begin + below(end - begin, draw.seed, Purpose.RANDOM_START, *key)
    wanted = steps.target - (bounds[steps.split] - bounds[steps.start])
    stop = np.searchsorted(bounds, bounds[start] + np.maximum(wanted, 1))
    return np.stack([start, np.minimum(stop, end)], axis=1)
