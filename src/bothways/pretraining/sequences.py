"""Instances as sequences: which tokens of the store, cut to fit, with [CLS] and [SEP].

B sequences, S spans of text, T tokens. A span is the text between two special tokens: A or B of a
pair, or one document's share of a ``full`` sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.config import PairKind
from bothways.corpus.store import TokenStore
from bothways.pretraining.instances import Instances, special_tokens
from bothways.randomness import Purpose, bits

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TextSpans:
    """The text of sequences; a [SEP] follows each span.

    Attributes:
        start, stop: int64 [S]; the span's tokens in the store's split, after cutting.
        sequence: int64 [S]; the sequence it belongs to, increasing.
        segment: int64 [S]; 0 or 1.
        cut_front, cut_end: int64 [S]; how many tokens were cut.
    """

    start: Ints
    stop: Ints
    sequence: Ints
    segment: Ints
    cut_front: Ints
    cut_end: Ints

    def append(self, other: TextSpans) -> TextSpans:
        """These sequences followed by others."""
        shift = self.sequence[-1] + 1 if len(self.sequence) else 0
        first, second = vars(self), {**vars(other), "sequence": other.sequence + shift}
        return TextSpans(**{name: np.concatenate([first[name], second[name]]) for name in first})


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


def find_spans(
    store: TokenStore,
    instances: Instances,
    rows: Ints,
    *,
    kind: PairKind,
    length: int,
    seed: int,
    epoch: int,
) -> TextSpans:
    """The text of some instances, cut to fit.

    Args:
        store: the corpus the instances were made from.
        instances: of an epoch.
        rows: int64 [B]; which of them.
        kind: of the instances.
        length: tokens of a sequence, special tokens included.
        seed: of the phase.
        epoch: of the instances.
    """
    bounds, max_tokens = store.sentence_bounds, length - special_tokens(kind)
    a = bounds[instances.a[rows]]
    b = np.zeros_like(a) if instances.b is None else bounds[instances.b[rows]]
    cut = truncation(
        a[:, 1] - a[:, 0], b[:, 1] - b[:, 0], max_tokens, seed=seed, epoch=epoch, index=rows
    )
    if kind == "full":
        return _split_at_documents(store, instances.a[rows], cut[0], cut[1])
    number = np.arange(len(rows))
    if instances.b is None:
        return _cut_spans(a[:, 0], a[:, 1], number, np.zeros_like(number), cut[0], cut[1])
    return _cut_spans(
        np.stack([a[:, 0], b[:, 0]], 1).ravel(),
        np.stack([a[:, 1], b[:, 1]], 1).ravel(),
        np.repeat(number, 2),
        np.tile([0, 1], len(rows)),
        np.stack([cut[0], cut[2]], 1).ravel(),
        np.stack([cut[1], cut[3]], 1).ravel(),
    )


def _cut_spans(
    first: Ints, end: Ints, sequence: Ints, segment: Ints, cut_front: Ints, cut_end: Ints
) -> TextSpans:
    return TextSpans(first + cut_front, end - cut_end, sequence, segment, cut_front, cut_end)


def _split_at_documents(store: TokenStore, a: Ints, cut_front: Ints, cut_end: Ints) -> TextSpans:
    """The spans of ``full`` sequences: one for each document that a sequence crosses.

    A sentence too long for a sequence is alone in it, and nothing else is ever cut.
    """
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
    # A sequence that is cut has one span only, so the cuts are that span's.
    return _cut_spans(
        tokens[starts], tokens[stops], sequence, none, cut_front[sequence], cut_end[sequence]
    )


def join_spans(store: TokenStore, spans: TextSpans) -> Sequences:
    """[CLS] span [SEP] span [SEP] ... for each sequence; [CLS] counts as part of the first span."""
    cls, sep = store.tokenizer.cls_id, store.tokenizer.sep_id
    lengths = spans.stop - spans.start
    is_first = np.diff(spans.sequence, prepend=-1) > 0
    ends = np.cumsum(lengths + 1 + is_first)  # after each [SEP]
    begins = ends - lengths - 1 - is_first
    cls_at, sep_at = begins[is_first], ends - 1
    tokens = np.empty(ends[-1], dtype=np.int64)
    is_text = np.ones(len(tokens), dtype=bool)
    is_text[cls_at] = is_text[sep_at] = False
    edges = zip(spans.start.tolist(), spans.stop.tolist(), strict=True)
    tokens[is_text] = np.concatenate([store.tokens_between(*edge) for edge in edges])
    tokens[cls_at], tokens[sep_at] = cls, sep
    segments = np.repeat(spans.segment, ends - begins)
    return Sequences(tokens, segments, bounds=np.append(cls_at, len(tokens)))


def truncation(
    a: Ints, b: Ints, max_tokens: int, *, seed: int, epoch: int, index: Ints
) -> tuple[Ints, ...]:
    """How many tokens to drop from each end so that pairs fit.

    The original drops one token at a time from the longer segment (from B when they are equal),
    from its front or its end with even chance. So the lengths decide how many tokens each segment
    loses, and the number dropped from its front is binomial.

    Args:
        a: int64 [B]; tokens of A.
        b: int64 [B]; tokens of B; 0 if there is no B.
        max_tokens: limit for both together.
        seed: of the phase.
        epoch: of the instances.
        index: int64 [B]; the instances' rows in their epoch.

    Returns:
        int64 [B] each: dropped from A's front, A's end, B's front, B's end.
    """
    excess = np.maximum(a + b - max_tokens, 0)
    from_longer = np.minimum(excess, np.abs(a - b))  # until both are equally long
    rest = excess - from_longer  # then from B and A in turn
    drop_a = np.where(a > b, from_longer, 0) + rest // 2
    drop_b = np.where(a > b, 0, from_longer) + (rest + 1) // 2
    front_a = _coin_flips(drop_a, seed, Purpose.TRUNCATE_A, epoch, index)
    front_b = _coin_flips(drop_b, seed, Purpose.TRUNCATE_B, epoch, index)
    return front_a, drop_a - front_a, front_b, drop_b - front_b


def _coin_flips(count: Ints, seed: int, purpose: Purpose, epoch: int, index: Ints) -> Ints:
    """The number of heads among ``count`` flips, for each instance; 64 flips per random word."""
    heads = np.zeros_like(count)
    for word in range(-(-int(count.max(initial=0)) // 64)):
        unfinished = np.flatnonzero(count > 64 * word)
        flips = np.minimum(count[unfinished] - 64 * word, 64).astype(np.uint64)
        flipped = bits(seed, purpose, epoch, index[unfinished], word) >> (64 - flips)
        heads[unfinished] += np.bitwise_count(flipped)
    return heads
