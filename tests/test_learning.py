"""The vocabulary learner: what it learns, that it always learns the same, what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.errors import ConfigError, InputError
from bothways.tokenization import learn_vocabulary
from bothways.tokenization.learning import count_words
from bothways.tokenization.normalization import normalizer, word_splitter
from bothways.tokenization.tokenizer import SPECIAL_PIECES

LINES = [
    "The cat sat on the mat, and the other cats sat there too.",
    "Another cat gathers; mothers and brothers gather together.",
    "안녕하세요 고양이가 매트에 앉았다. 고양이들이 앉았다.",
    "Café naïve résumé: 東京タワー 2024!",
] * 3


def slow_merges(words: Counter[str], count: int, min_count: int) -> list[str]:
    """The definition, recounted from nothing before every merge."""
    spelled = {word: [word[0], *("##" + c for c in word[1:])] for word in sorted(words)}
    age = {p: i for i, p in enumerate(sorted({s for w in spelled.values() for s in w[:1]}))}
    for piece in sorted({s for w in spelled.values() for s in w[1:]}):
        age.setdefault(piece, 10**6 + len(age))
    learned: list[str] = []
    while len(learned) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, symbols in spelled.items():
            for left, right in pairwise(symbols):
                pairs[left, right] += words[word]
        frequent = [pair for pair in pairs if pairs[pair] >= min_count]
        if not frequent:
            break
        best = min(frequent, key=lambda p: (-pairs[p], age[p[0]], age[p[1]]))
        joined = best[0] + best[1].removeprefix("##")
        if joined not in age:
            age[joined] = 10**7 + len(age)
            learned.append(joined)
        for word, symbols in spelled.items():
            at = 0
            while at < len(symbols) - 1:
                if (symbols[at], symbols[at + 1]) == best:
                    symbols[at : at + 2] = [joined]
                at += 1
            spelled[word] = symbols
    return learned


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text("aábc", min_size=1, max_size=9), min_size=1, max_size=30),
    st.integers(1, 3),
)
def test_incremental_counts_learn_what_recounting_learns(words: list[str], min_count: int) -> None:
    counts = count_words(words, lowercase=False)
    tokenizer = learn_vocabulary(words, size=60, lowercase=False, min_count=min_count)
    # Every character gets an initial piece, so that ages agree only if all start some word.
    initial = set("".join(words))
    expected = slow_merges(counts + Counter(dict.fromkeys(initial, 1)), 60, min_count)
    merged = [p for p in tokenizer.pieces[5:] if len(p.removeprefix("##")) > 1]
    assert merged == expected[: len(merged)]
    assert len(merged) == len(expected) or tokenizer.vocab_size == 60


def test_frequent_words_become_pieces_and_specials_come_first() -> None:
    tokenizer = learn_vocabulary(LINES, size=150)
    assert tokenizer.vocab_size == 150
    assert tuple(tokenizer.pieces[:5]) == SPECIAL_PIECES
    assert {"the", "cat", "##ther"} <= set(tokenizer.pieces)
    assert not any(tokenizer.unk_id in ids for ids in tokenizer.encode_plain(LINES))


def test_same_vocabulary_in_every_process_and_order() -> None:
    program = (
        "import sys; from bothways.tokenization import learn_vocabulary\n"
        "t = learn_vocabulary(sys.stdin.buffer.read().decode().split('\\n'), size=150)\n"
        "sys.stdout.buffer.write('\\n'.join(t.pieces).encode())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            input="\n".join(lines).encode(),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed, lines in (("0", LINES), ("1", LINES), ("2", LINES[::-1]))
    }
    assert outputs == {"\n".join(learn_vocabulary(LINES, size=150).pieces).encode()}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)))), st.booleans())
def test_words_are_counted_as_the_tokenizer_splits_them(lines: list[str], lowercase: bool) -> None:
    clean, split = normalizer(lowercase=lowercase), word_splitter()
    expected = Counter(
        word for line in lines for word, _ in split.pre_tokenize_str(clean.normalize_str(line))
    )
    assert count_words(lines, lowercase=lowercase) == expected


def test_cased_keeps_case_and_accents() -> None:
    pieces = learn_vocabulary(LINES, size=200, lowercase=False).pieces
    assert {"T", "##é"} <= set(pieces)
    assert {"T", "##é"}.isdisjoint(learn_vocabulary(LINES, size=200).pieces)


def test_rare_pieces_are_not_learned_so_the_vocabulary_may_stay_small() -> None:
    tokenizer = learn_vocabulary(["abab cd"], size=100)
    assert tokenizer.vocab_size < 100
    assert "ab" not in learn_vocabulary(["ab cd"], size=100).pieces
    assert "ab" in learn_vocabulary(["ab cd"], size=100, min_count=1).pieces


def test_characters_outside_the_alphabet_become_unknown() -> None:
    tokenizer = learn_vocabulary(["aaa bbb aab abz"], size=20, alphabet=2)
    assert not any("z" in piece for piece in tokenizer.pieces)
    assert tokenizer.encode_plain(["abz"]) == [[tokenizer.unk_id]]


def test_ties_at_the_edge_of_the_alphabet_do_not_go_by_order() -> None:
    words = ["ab", "cd", "ef"]
    found = {tuple(learn_vocabulary(w, size=20, alphabet=3).pieces) for w in (words, words[::-1])}
    assert found == {(*SPECIAL_PIECES, "a", "b", "c", "##b")}


def test_words_too_long_to_be_encoded_teach_nothing() -> None:
    tokenizer = learn_vocabulary(["ab " + "xy" * 60], size=30, min_count=1)
    assert "xy" not in tokenizer.pieces
    assert "ab" in tokenizer.pieces


@pytest.mark.parametrize("lines", [[], [""], [" \t\u200b\x00", "\u00ad"]])
def test_refuses_text_without_words(lines: list[str]) -> None:
    with pytest.raises(InputError, match="no word"):
        learn_vocabulary(lines, size=100)


def test_refuses_a_size_below_the_alphabet() -> None:
    with pytest.raises(ConfigError, match=r"size is 12.*need 14.*alphabet"):
        learn_vocabulary(["abcde abcd"], size=12)


def test_refuses_broken_text() -> None:
    with pytest.raises(InputError, match="U\\+D800"):
        learn_vocabulary(["fine", "br\ud800ken"], size=100)
