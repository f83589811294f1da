"""The vocabulary learner: what it learns, that it always learns the same, what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.errors import ConfigError, InputError
from bothways.tokenization import learn_vocabulary
from bothways.tokenization.counting import count_chunks, count_words
from bothways.tokenization.normalization import normalizer, word_splitter
from bothways.tokenization.tokenizer import SPECIAL_PIECES

LINES = [
    "The cat sat on the mat, and the other cats sat there too.",
    "Another cat gathers; mothers and brothers gather together.",
    "안녕하세요 고양이가 매트에 앉았다. 고양이들이 앉았다.",
    "Café naïve résumé: 東京タワー 2024!",
] * 3


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
    with count_chunks(lines) as chunks:
        assert count_words(chunks, {"lowercase": lowercase, "normalization": "bert"}) == expected


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
