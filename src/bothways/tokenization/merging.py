"""Merging pairs of pieces, the loop behind every vocabulary learner, in NumPy.

A text is a list of distinct words with counts, each word a sequence of pieces. In each round the
pair of adjacent pieces with the highest score becomes one piece, in every word, from the left. With

    count(s)    occurrences of piece s in the text as currently segmented
    count(st)   occurrences of s directly before t within a word ("aaa" has the pair aa twice)
    N           the sum of count(s) over all pieces: the current length of the text in pieces

the scores are

    likelihood  count(st) * log(count(st) * N / (count(s) * count(t)))
    ratio       count(st) / (count(s) * count(t))
    frequency   count(st)

The first is the gain in log-likelihood of the text under independent pieces, as seen from the pair
alone (the change of N and of the other pieces' probabilities is ignored, as usual); a pair without
a gain is never merged. The second is the same without the weight and without the logarithm, which
is monotonic. After a merge that joined m pairs, count(s) and count(t) are smaller by m (by 2m if s
is t), the count of the new piece is larger by m, N is smaller by m, and the pairs on either side of
each occurrence are counted again. Scores that agree to 12 digits are a tie (so that the last bit of
a logarithm, which differs between processors, decides nothing). Ties go to the pair whose first
piece is older, then to the one whose second piece is older. If a piece with the merged spelling
exists already, from another segmentation, the merge yields that piece.

All scores change in every round, because N does and because count(s) enters the score of every pair
with s in it. They are therefore computed again in every round, but only for pairs that can win: no
pair can have a higher likelihood score than count(st) * log(N / count(st)), since count(s) and
count(t) are at least count(st). Pairs too rare to reach the current best score by that bound are
left out until the best score has fallen far enough. The result is exactly that of the definition.

F positions (characters of the distinct words), R pairs seen so far, W words, V pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Score = Literal["likelihood", "ratio", "frequency"]
Scalar = TypeVar("Scalar", bound=np.generic)
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

_TIE = 1e-12
_CLEAN_EVERY = 256  # rounds


@dataclass(frozen=True)
class SegmentedWords:
    """Distinct words, segmented into their initial pieces.

    Attributes:
        symbols: int32 [F], the pieces of all words end to end.
        bounds: int64 [W + 1]; word w is ``symbols[bounds[w]:bounds[w + 1]]``.
        weights: int64 [W], how often each word occurs.
    """

    symbols: Ints
    bounds: Longs
    weights: Longs


def merge_pairs(
    words: SegmentedWords,
    pieces: list[str],
    *,
    size: int,
    score: Score,
    min_count: int,
    join: Callable[[str, str], str],
    progress: Callable[[int, int], None] | None = None,
) -> list[tuple[int, int]]:
    """Append merged pieces to ``pieces`` until there are ``size`` of them, or no pair to merge.

    Args:
        words: the text.
        pieces: the pieces by number (which is also their age); merged ones are appended.
        size: requested number of pieces.
        score: see above.
        min_count: pairs that occur less often are not merged.
        join: returns the spelling of two pieces merged into one.
        progress: called from time to time with the number of pieces so far, and ``size``.

    Returns:
        The merges in order, each as the ids of its two pieces.
    """
    ids = {piece: i for i, piece in enumerate(pieces)}
    text = _MergedText(words, vocabulary=max(size, len(pieces)))
    selector = _PairSelector(text, score, max(min_count, 1))
    merges: list[tuple[int, int]] = []
    while len(pieces) < size:
        pair = selector.best()
        if pair is None:
            break
        left, right = pair
        joined = join(pieces[left], pieces[right])
        new = ids.setdefault(joined, len(pieces))
        if new == len(pieces):
            pieces.append(joined)
        merges.append(pair)
        selector.offer(text.merge(left, right, new))
        if progress and len(merges) % _CLEAN_EVERY == 0:
            progress(len(pieces), size)
    if progress:
        progress(len(pieces), size)
    return merges


class _MergedText:
    """The words as currently segmented, and the positions of each pair.

    A piece is stored at the position of its first character; ``after`` and ``before`` link it to
    its neighbours in the word (-1 at the ends). Positions inside a piece hold -1.

    Attributes:
        counts: int64 [V], count(s).
        length: N.
        pairs: rows, counts and positions of the pairs.
    """

    def __init__(self, words: SegmentedWords, vocabulary: int):
        places = len(words.symbols)
        lengths = np.diff(words.bounds)
        self.symbols = words.symbols.astype(np.int32)
        self.weights = np.repeat(words.weights, lengths)
        at = np.arange(places, dtype=np.int32)
        self.after, self.before = at + 1, at - 1
        full = lengths > 0
        self.after[words.bounds[1:][full] - 1] = -1
        self.before[words.bounds[:-1][full]] = -1
        self.counts: Longs = np.zeros(vocabulary, dtype=np.int64)
        np.add.at(self.counts, self.symbols, self.weights)
        self.length = int(self.weights.sum())
        self.pairs = _PairTable(places)
        start = np.flatnonzero(self.after >= 0).astype(np.int32)
        self.pairs.add(self._keys(start), self.weights[start], start)

    def merge(self, left: int, right: int, new: int) -> list[int]:
        """Replace the pair by ``new`` everywhere; returns the rows of more frequent pairs."""
        first = self._positions(left, right)
        second = self.after[first]
        third, zeroth = self.after[second], self.before[first]
        # In "stst" the right neighbour of one occurrence is the left one of the next: count once.
        has_left = zeroth >= 0
        has_left[1:] &= zeroth[1:] != second[:-1]
        old = np.concatenate([zeroth[has_left], first, second[third >= 0]])
        self.pairs.remove(self._keys(old), self.weights[old])

        self.symbols[first], self.symbols[second] = new, -1
        self.after[first] = third
        inside = third >= 0
        self.before[third[inside]] = first[inside]
        merged = int(self.weights[first].sum())
        self.counts[left] -= merged
        self.counts[right] -= merged
        self.counts[new] += merged
        self.length -= merged

        zeroth = self.before[first]
        has_left = zeroth >= 0
        has_left[1:] &= zeroth[1:] != first[:-1]
        changed = np.concatenate([zeroth[has_left], first[inside]])
        return self.pairs.add(self._keys(changed), self.weights[changed], changed)

    def _positions(self, left: int, right: int) -> Ints:
        """The pair's occurrences in order; of overlapping ones ("aaa"), every second is skipped."""
        at = np.sort(self.pairs.positions(left, right))
        at = at[self.symbols[at] == left]
        following = self.after[at]
        at = at[(following >= 0) & (self.symbols[following] == right)]
        if left != right or len(at) < 2:
            return np.asarray(at)
        number = np.arange(len(at))
        fresh = np.ones(len(at), dtype=bool)
        fresh[1:] = self.after[at[:-1]] != at[1:]
        run_start = np.maximum.accumulate(np.where(fresh, number, 0))
        return np.asarray(at[(number - run_start) % 2 == 0])

    def _keys(self, at: Ints) -> Longs:
        keys: Longs = self.symbols[at].astype(np.int64)
        keys <<= 32
        keys |= self.symbols[self.after[at]]
        return keys


class _PairTable:
    """The count of each pair, and the positions where it was created.

    A pair has a row from its first occurrence until it has none left (it may get another later).
    Positions are never removed: whoever uses them checks that the pair is still there.
    """

    def __init__(self, places: int):
        self.rows: dict[int, int] = {}
        self.size = 0
        self.left: Ints = np.zeros(1024, dtype=np.int32)
        self.right: Ints = np.zeros(1024, dtype=np.int32)
        self.counts: Longs = np.zeros(1024, dtype=np.int64)
        self._starts: Longs = np.zeros(1024, dtype=np.int64)
        self._lengths: Ints = np.zeros(1024, dtype=np.int32)
        self._more: dict[int, list[Ints]] = {}  # further positions of pairs created again
        self._pool: Ints = np.zeros(max(2 * places, 1024), dtype=np.int32)
        self._pooled = 0

    def positions(self, left: int, right: int) -> Ints:
        """Where the pair was created."""
        row = self.rows[left << 32 | right]
        start = self._starts[row]
        found = self._pool[start : start + self._lengths[row]]
        return np.concatenate([found, *self._more[row]]) if row in self._more else found

    def remove(self, keys: Longs, weights: Longs) -> None:
        """Subtract occurrences; a pair without any left loses its row."""
        order = np.argsort(keys)
        keys, starts = _groups(keys[order])
        keys_list = keys.tolist()
        rows = np.array([self.rows[key] for key in keys_list], dtype=np.int64)
        self.counts[rows] -= np.add.reduceat(weights[order], starts)
        for i in np.flatnonzero(self.counts[rows] == 0).tolist():
            self._more.pop(self.rows.pop(keys_list[i]), None)

    def add(self, keys: Longs, weights: Longs, at: Ints) -> list[int]:
        """Add occurrences at positions; returns their rows."""
        if not len(keys):
            return []
        order = np.argsort(keys, kind="stable")
        at = at[order]
        keys, starts = _groups(keys[order])
        sums = np.add.reduceat(weights[order], starts)
        keys_list = keys.tolist()
        rows = [self.rows.get(key, -1) for key in keys_list]
        fresh = np.array(rows) < 0
        self._append(at)
        first = self._pooled - len(at) + starts
        lengths = np.diff(starts, append=len(at))
        self._new_rows(keys[fresh], sums[fresh], first[fresh], lengths[fresh])
        for i in np.flatnonzero(~fresh).tolist():
            self.counts[rows[i]] += sums[i]
            self._more.setdefault(rows[i], []).append(at[starts[i] : starts[i] + lengths[i]])
        return [self.rows[key] for key in keys_list]

    def _new_rows(self, keys: Longs, counts: Longs, starts: Longs, lengths: Longs) -> None:
        start, self.size = self.size, self.size + len(keys)
        for name in ("left", "right", "counts", "_starts", "_lengths"):
            setattr(self, name, _grown(getattr(self, name), self.size))
        rows = slice(start, self.size)
        self.left[rows], self.right[rows] = keys >> 32, keys & 0xFFFFFFFF
        self.counts[rows], self._starts[rows], self._lengths[rows] = counts, starts, lengths
        self.rows.update(zip(keys.tolist(), range(start, self.size), strict=True))

    def _append(self, at: Ints) -> None:
        end = self._pooled + len(at)
        self._pool = _grown(self._pool, end)
        self._pool[self._pooled : end] = at
        self._pooled = end


class _PairSelector:
    """Finds the best pair, looking only at pairs frequent enough to win.

    Pairs with a count of ``_threshold`` or more are candidates; rarer ones cannot have the best
    score, or the threshold is lowered.
    """

    def __init__(self, text: _MergedText, score: Score, min_count: int):
        self._text, self._score, self._min_count = text, score, min_count
        # The ratio prefers rare pairs, so no count is too low for it.
        above_all = int(text.pairs.counts.max(initial=0)) + 1
        self._threshold = min_count if score == "ratio" else max(above_all, min_count)
        self._rows: Longs = np.zeros(0, dtype=np.int64)
        self._arrived: list[int] = []
        self._rounds = 0
        self._collect()

    def offer(self, rows: list[int]) -> None:
        """Consider pairs that became more frequent."""
        counts = self._text.pairs.counts
        self._arrived += [row for row in rows if counts[row] >= self._threshold]

    def best(self) -> tuple[int, int] | None:
        """The pair to merge now."""
        self._rounds += 1
        if self._arrived or self._rounds % _CLEAN_EVERY == 0:
            self._update()
        while True:
            scores = self._scores()
            highest = float(scores.max(initial=-math.inf))
            tied = highest - _TIE * abs(highest)
            if tied > self._score_bound():
                rows, pairs = self._rows[scores >= tied], self._text.pairs
                return min(zip(pairs.left[rows].tolist(), pairs.right[rows].tolist(), strict=True))
            if self._threshold == self._min_count:
                return None
            self._lower_threshold(highest)

    def _scores(self) -> NDArray[np.float64]:
        """float64 [candidates]; -inf for pairs that must not be merged."""
        pairs, counts = self._text.pairs, self._text.counts
        count = scores = pairs.counts[self._rows].astype(np.float64)
        if self._score != "frequency":
            left, right = counts[pairs.left[self._rows]], counts[pairs.right[self._rows]]
            with np.errstate(divide="ignore", invalid="ignore"):
                scores = count / left
                if self._score == "ratio":
                    scores /= right
                else:
                    chance = scores * (self._text.length / right)
                    scores = np.where(chance > 1 + _TIE, count * np.log(chance), -np.inf)
        scores[count < self._min_count] = -np.inf
        return scores

    def _score_bound(self) -> float:
        """Upper bound for the scores of rarer pairs; at least 0, as merged pairs score above 0."""
        if self._threshold == self._min_count:
            return 0.0
        if self._score == "frequency":
            return float(self._threshold - 1)
        # The bound rises with the count up to N / e.
        rare = min(self._threshold - 1, self._text.length / math.e)
        return max(rare * math.log(self._text.length / rare), 0.0) * (1 + 1e-9)

    def _lower_threshold(self, highest: float) -> None:
        """Lower the threshold until rarer pairs cannot come near the best known score."""
        while self._threshold > self._min_count:
            self._threshold = max(self._threshold // 2, self._min_count)
            if highest <= 0 or self._score_bound() < 0.7 * highest:
                break
        self._collect()

    def _collect(self) -> None:
        pairs = self._text.pairs
        self._rows = np.flatnonzero(pairs.counts[: pairs.size] >= self._threshold)
        self._arrived.clear()

    def _update(self) -> None:
        """Add the pairs that arrived; from time to time drop those that have become rare."""
        rows = self._rows
        if self._arrived:
            rows = np.concatenate([rows, np.array(self._arrived, dtype=np.int64)])
            self._arrived.clear()
        if self._rounds % _CLEAN_EVERY == 0:
            rows = np.unique(rows)
            rows = rows[self._text.pairs.counts[rows] >= self._threshold]
        self._rows = rows


def _groups(ordered: Longs) -> tuple[Longs, Longs]:
    """Distinct values of a sorted array, and the index where each starts."""
    fresh = np.ones(len(ordered), dtype=bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    starts: Longs = np.flatnonzero(fresh)
    return ordered[starts], starts


def _grown(array: NDArray[Scalar], size: int) -> NDArray[Scalar]:
    """The array with space for ``size`` entries; it grows by half, so that copies are rare."""
    if size <= len(array):
        return array
    result = np.zeros(max(size, len(array) * 3 // 2), dtype=array.dtype)
    result[: len(array)] = array
    return result
