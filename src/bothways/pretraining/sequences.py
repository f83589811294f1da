"""Rows of a plan as sequences: which tokens of the store, cut to fit, with [CLS] and [SEP].

B sequences, P pieces of text, T tokens. A piece is text that stands between two special tokens: A
and B of a pair, or a document's part of a ``full`` sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.config import PairKind
from bothways.corpus.store import TokenStore
from bothways.pretraining.plan import Plan, specials
from bothways.randomness import Purpose, bits

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """Text of sequences, each piece followed by [SEP].

    Attributes:
        start, stop: int64 [P]; tokens of the store's split, what was cut left out.
        sequence: int64 [P]; number of the sequence, increasing.
        segment: int64 [P]; 0 or 1.
        cut_front, cut_end: int64 [P]; tokens that were cut.
    """

    start: Ints
    stop: Ints
    sequence: Ints
    segment: Ints
    cut_front: Ints
    cut_end: Ints

    def then(self, other: Pieces) -> Pieces:
        """These sequences and then others."""
        shift = self.sequence[-1] + 1 if len(self.sequence) else 0
        own, others = vars(self), {**vars(other), "sequence": other.sequence + shift}
        return Pieces(**{name: np.concatenate([own[name], others[name]]) for name in own})


@dataclass(frozen=True)
class Sequences:
    """Sequences laid end to end.

    Attributes:
        tokens, segments: int64 [T].
        bounds: int64 [B + 1].
    """

    tokens: Ints
    segments: Ints
    bounds: Ints


def find_pieces(
    store: TokenStore,
    plan: Plan,
    rows: Ints,
    *,
    kind: PairKind,
    length: int,
    seed: int,
    epoch: int,
) -> Pieces:
    """The text of some instances, cut to fit.

    Args:
        store: that was planned.
        plan: of an epoch.
        rows: int64 [B]; rows of the plan.
        kind: it was made for.
        length: tokens of a sequence, specials included.
        seed: of the phase.
        epoch: of the plan.
    """
    ends, room = store.sentence_bounds, length - specials(kind)
    a = ends[plan.a[rows]]
    b = np.zeros_like(a) if plan.b is None else ends[plan.b[rows]]
    cut = truncation(a[:, 1] - a[:, 0], b[:, 1] - b[:, 0], room, seed=seed, epoch=epoch, index=rows)
    if kind == "full":
        return _cut_at_documents(store, plan.a[rows], cut[0], cut[1])
    number = np.arange(len(rows))
    if plan.b is None:
        return _pieces(a[:, 0], a[:, 1], number, np.zeros_like(number), cut[0], cut[1])
    return _pieces(
        np.stack([a[:, 0], b[:, 0]], 1).ravel(),
        np.stack([a[:, 1], b[:, 1]], 1).ravel(),
        np.repeat(number, 2),
        np.tile([0, 1], len(rows)),
        np.stack([cut[0], cut[2]], 1).ravel(),
        np.stack([cut[1], cut[3]], 1).ravel(),
    )


def _pieces(
    first: Ints, end: Ints, sequence: Ints, segment: Ints, cut_front: Ints, cut_end: Ints
) -> Pieces:
    return Pieces(first + cut_front, end - cut_end, sequence, segment, cut_front, cut_end)


def _cut_at_documents(store: TokenStore, a: Ints, front: Ints, end: Ints) -> Pieces:
    """Pieces of ``full`` sequences. Only a sentence too long for a sequence is cut; it is alone."""
    borders = store.document_bounds
    first = np.searchsorted(borders, a[:, 0], side="right")  # the first border inside
    count = np.searchsorted(borders, a[:, 1], side="left") - first + 1
    sequence = np.repeat(np.arange(len(a)), count)
    which = np.arange(len(sequence)) - np.repeat(np.cumsum(count) - count, count)
    border = first[sequence] + which
    starts = np.where(which == 0, a[sequence, 0], borders[border - 1])
    last = which == count[sequence] - 1
    stops = np.where(last, a[sequence, 1], borders[np.minimum(border, len(borders) - 1)])
    tokens = store.sentence_bounds
    none = np.zeros_like(sequence)
    # Where something is cut there is one piece, so front and end are its own.
    return _pieces(tokens[starts], tokens[stops], sequence, none, front[sequence], end[sequence])


def lay_out(store: TokenStore, pieces: Pieces) -> Sequences:
    """[CLS] piece [SEP] piece [SEP] ... for each sequence; [CLS] belongs to the first piece."""
    cls, sep = store.tokenizer.cls_id, store.tokenizer.sep_id
    lengths = pieces.stop - pieces.start
    opens = np.diff(pieces.sequence, prepend=-1) > 0
    ends = np.cumsum(lengths + 1 + opens)  # after each [SEP]
    begins = ends - lengths - 1 - opens
    tokens = np.empty(ends[-1], dtype=np.int64)
    is_text = np.ones(len(tokens), dtype=bool)
    is_text[begins[opens]] = is_text[ends - 1] = False
    spans = zip(pieces.start.tolist(), pieces.stop.tolist(), strict=True)
    tokens[is_text] = np.concatenate([store.tokens_between(*span) for span in spans])
    tokens[begins[opens]], tokens[ends - 1] = cls, sep
    edges = np.append(begins[opens], len(tokens))
    return Sequences(tokens, np.repeat(pieces.segment, ends - begins), edges)


def truncation(
    a: Ints, b: Ints, max_tokens: int, *, seed: int, epoch: int, index: Ints
) -> tuple[Ints, ...]:
    """Tokens to drop from each end so that pairs fit, as the original drops them one by one.

    The original takes one token at a time from the longer segment (from B when they are equal),
    with even chance from its front or its end. How many each segment loses follows from the
    lengths; how many of those at the front is binomial.

    Args:
        a: int64 [B]; tokens of A.
        b: int64 [B]; tokens of B; 0 where there is none.
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


def _coin_flips(count: Ints, seed: int, purpose: Purpose, epoch: int, index: Ints) -> Ints:
    """Heads among ``count`` flips, for each key."""
    heads = np.zeros_like(count)
    for word in range(-(-int(count.max(initial=0)) // 64)):
        left = np.flatnonzero(count > 64 * word)
        flips = np.minimum(count[left] - 64 * word, 64).astype(np.uint64)
        kept = bits(seed, purpose, epoch, index[left], word) >> (64 - flips)
        heads[left] += np.bitwise_count(kept)
    return heads
