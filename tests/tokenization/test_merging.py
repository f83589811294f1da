"""The merge loop against its definition, recounted from nothing before every merge."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bothways.tokenization import merging
from bothways.tokenization.merging import Score, SegmentedWords, merge_pairs

TIE = 1e-12
SCORES: tuple[Score, ...] = ("likelihood", "ratio", "frequency")


def slow_merges(
    words: dict[str, int], pieces: list[str], *, size: int, score: Score, least: int
) -> list[tuple[str, str]]:
    """The docstring of ``merging``, word for word. Appends to ``pieces``."""
    cut = {word: [word[0], *("##" + c for c in word[1:])] for word in words}
    merges: list[tuple[str, str]] = []
    while len(pieces) < size:
        age = {piece: i for i, piece in enumerate(pieces)}
        counts: Counter[str] = Counter()
        pairs: Counter[tuple[str, str]] = Counter()
        for word, symbols in cut.items():
            for symbol in symbols:
                counts[symbol] += words[word]
            for pair in pairwise(symbols):
                pairs[pair] += words[word]
        length = sum(counts.values())
        scores = {
            (s, t): value
            for (s, t), st in pairs.items()
            if st >= least and (value := slow_score(score, st, counts[s], counts[t], length)) > 0
        }
        if not scores:
            break
        highest = max(scores.values())
        tied = [pair for pair, value in scores.items() if value >= highest * (1 - TIE)]
        best = min(tied, key=lambda pair: (age[pair[0]], age[pair[1]]))
        joined = best[0] + best[1].removeprefix("##")
        if joined not in age:
            pieces.append(joined)
        merges.append(best)
        cut = {word: joined_in(symbols, best, joined) for word, symbols in cut.items()}
    return merges


def slow_score(score: Score, st: int, s: int, t: int, length: int) -> float:
    if score == "frequency":
        return st
    if score == "ratio":
        return st / (s * t)
    return st * math.log(st * length / (s * t)) if st * length > s * t else 0.0


def joined_in(symbols: list[str], pair: tuple[str, str], joined: str) -> list[str]:
    result: list[str] = []
    at = 0
    while at < len(symbols):
        if tuple(symbols[at : at + 2]) == pair:
            result.append(joined)
            at += 2
        else:
            result.append(symbols[at])
            at += 1
    return result


def fast_merges(
    words: dict[str, int], pieces: list[str], *, size: int, score: Score, least: int
) -> list[tuple[str, str]]:
    ids = {piece: i for i, piece in enumerate(pieces)}
    symbols = [ids[c] if i == 0 else ids["##" + c] for word in words for i, c in enumerate(word)]
    found = merge_pairs(
        SegmentedWords(
            np.array(symbols, dtype=np.int32),
            np.cumsum([0, *map(len, words)]),
            np.array(list(words.values()), dtype=np.int64),
        ),
        pieces,
        size=size,
        score=score,
        min_count=least,
        join=lambda left, right: left + right.removeprefix("##"),
    )
    return [(pieces[left], pieces[right]) for left, right in found]


def alphabet(words: dict[str, int]) -> list[str]:
    characters = sorted(set("".join(words)))
    return [*characters, *("##" + c for c in characters)]


WORDS = st.dictionaries(
    st.text("abc", min_size=1, max_size=12), st.integers(1, 40), min_size=1, max_size=25
)


@pytest.mark.parametrize("score", SCORES)
@settings(max_examples=150)
@given(words=WORDS, least=st.integers(1, 4), size=st.integers(6, 60))
@example(words={"aaaa": 3, "aaaaa": 2, "baaab": 1}, least=1, size=60)
@example(words={"abab": 5, "ababab": 2, "bababa": 3}, least=1, size=60)
def test_same_merges_as_the_definition(
    score: Score, words: dict[str, int], least: int, size: int
) -> None:
    slow, fast = alphabet(words), alphabet(words)
    expected = slow_merges(words, slow, size=size, score=score, least=least)
    assert fast_merges(words, fast, size=size, score=score, least=least) == expected
    assert fast == slow


@pytest.mark.parametrize("score", SCORES)
def test_same_merges_on_english_words(
    score: Score, tiny_documents: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enough pairs for the rarer ones to be left out, and for all bookkeeping to come up."""
    monkeypatch.setattr(merging, "_CLEAN_EVERY", 7)
    lines = [line for document in tiny_documents for line in document]
    lines += [__doc__ or "", merging.__doc__ or "", slow_merges.__doc__ or ""]
    counts = Counter(word for line in lines for word in line.lower().split())
    words = {word: counts[word] for word in sorted(counts)}
    slow, fast = alphabet(words), alphabet(words)
    expected = slow_merges(words, slow, size=400, score=score, least=1)
    assert fast_merges(words, fast, size=400, score=score, least=1) == expected
    assert fast == slow
    assert len(fast) == 400


def test_rare_pairs_are_left_out_of_the_scores_until_they_can_win() -> None:
    """The bound must exclude something, or the test above would not test it."""
    words = {"ab": 1000, "cd": 900} | {f"{a}{b}": 1 for a in "efgh" for b in "ijkl"}
    ids = alphabet(words)
    cut = [(ids.index(w[0]), ids.index("##" + w[1])) for w in words]
    text = merging._MergedText(
        SegmentedWords(
            np.array(cut, dtype=np.int32).ravel(),
            np.arange(0, 2 * len(words) + 1, 2),
            np.array(list(words.values())),
        ),
        100,
    )
    choice = merging._PairSelector(text, "likelihood", 1)
    assert choice.best() in cut[:2]
    assert len(choice._rows) < len(words)


def test_a_pair_that_lowers_the_likelihood_is_never_merged() -> None:
    # The pair ba is rarer than chance, count(b) count(##a) > count(ba) N; the others with ##a are
    # too rare to be merged.
    words = {"b": 10_000, "ba": 50} | {f"{letter}a": 4 for letter in "cdefghijklmnopqrstuv"}
    for score, expected in (("likelihood", []), ("frequency", [("b", "##a")])):
        assert fast_merges(words, alphabet(words), size=50, score=score, least=5) == expected


def test_ties_go_to_older_pieces_whatever_the_last_bit() -> None:
    words = {"ab": 3, "cd": 3, "ef": 3}
    assert fast_merges(words, alphabet(words), size=14, score="likelihood", least=1) == [
        ("a", "##b"),
        ("c", "##d"),
    ]
