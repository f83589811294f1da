"""The vocabulary learner: what it learns, that it always learns the same, what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from bothways.errors import ConfigError, InputError
from bothways.tokenization.counting import by_rules, count_chunks, count_words, split_chunks
from bothways.tokenization.learning import (
    ALPHABET,
    WIDE_ALPHABET,
    _alphabet_limit,
    learn_vocabulary,
)
from bothways.tokenization.normalization import LetterCounts, Rules, normalizer, word_splitter
from bothways.tokenization.options import LearningOptions
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

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
        "import sys; from bothways.tokenization.learning import learn_vocabulary\n"
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
    rules: Rules = {"lowercase": lowercase, "normalization": "bert"}
    with count_chunks(lines) as chunks:
        assert (
            count_words(chunks, partial(split_chunks, splitter=by_rules, rules=rules)) == expected
        )


def test_wide_scripts_have_room_for_more_characters() -> None:
    few, many = LetterCounts(9, 0, 0), LetterCounts(9, 9, 0)
    assert _alphabet_limit(LearningOptions(), few) == ALPHABET
    assert _alphabet_limit(LearningOptions(), many) == WIDE_ALPHABET > ALPHABET
    assert _alphabet_limit(LearningOptions(alphabet=7), many) == 7


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
    with pytest.raises(InputError, match="every word of the text is longer than 100"):
        learn_vocabulary(["xy" * 60, "z" * 101], size=300, algorithm="byte-bpe")


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


# --------------------------------------------------------------------------------- BPE, byte-level


@cache
def learned(algorithm: str) -> Tokenizer:
    return learn_vocabulary(LINES, size=400, algorithm=algorithm, unused=2)


ALGORITHMS = pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "byte-bpe"])
TEXT = st.text(st.sampled_from("abcdemnorstuy,. 0A안녕하세요고양이ñ東☃"), max_size=20)


def by_merges(tokenizer: Tokenizer, word: str) -> list[str]:
    """A word cut by the definition of BPE: each merge in order, everywhere, from the left."""
    settings = json.loads(tokenizer.to_json())["model"]
    byte_level = tokenizer.kind == "byte-bpe"
    if byte_level:
        symbols = list(ByteLevel(use_regex=False).pre_tokenize_str(word)[0][0])
    else:
        symbols = [word[0], *("##" + c for c in word[1:])]
    for left, right in settings["merges"]:
        joined = left + (right if byte_level else right.removeprefix("##"))
        at = 0
        while at < len(symbols) - 1:
            if symbols[at : at + 2] == [left, right]:
                symbols[at : at + 2] = [joined]
            at += 1
    return symbols


@pytest.mark.parametrize("algorithm", ["bpe", "byte-bpe"])
def test_the_library_cuts_words_as_the_merges_say(algorithm: str) -> None:
    tokenizer = learned(algorithm)
    for line in LINES:
        for word, _ in word_splitter().pre_tokenize_str(tokenizer.normalize(line)):
            ids = tokenizer.encode_plain([word])[0]
            assert [tokenizer.piece(i) for i in ids] == by_merges(tokenizer, word)


@ALGORITHMS
def test_learned_tokenizers_survive_their_files_and_transformers(
    algorithm: str, tmp_path: Path
) -> None:
    tokenizer = learned(algorithm)
    assert tokenizer.kind == algorithm
    assert tokenizer.pieces[:7] == [*SPECIAL_PIECES, "[unused0]", "[unused1]"]
    tokenizer.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert (again.pieces, again.fingerprint) == (tokenizer.pieces, tokenizer.fingerprint)
    assert again.kind == algorithm
    assert np.array_equal(again.starts_word, tokenizer.starts_word)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for a, b in zip(LINES, [*LINES[1:], "x [MASK] \u2603"], strict=True):
        ours = again.encode(a, b)
        assert ours == tokenizer.encode(a, b)
        assert library.encode(a, b).ids == ours.ids
        assert library.encode(a, b).type_ids == ours.segments
        assert theirs(a, b)["input_ids"] == ours.ids
        assert (ours.ids[0], ours.ids[-1]) == (tokenizer.cls_id, tokenizer.sep_id)


@ALGORITHMS
@settings(max_examples=150)
@given(text=TEXT)
def test_starts_word_and_text_of_put_the_words_together_again(algorithm: str, text: str) -> None:
    tokenizer = learned(algorithm)
    encoding = tokenizer.encode(f"The café, {text} 안녕!")
    inner = encoding.ids[1:-1]
    if tokenizer.unk_id in inner:  # it may stand for a part of a word
        assert algorithm != "byte-bpe"
        return
    words = encoding.words[1:-1]
    starts = [before != word for before, word in pairwise([None, *words])]
    assert tokenizer.starts_word[inner].tolist() == starts
    if algorithm == "byte-bpe":
        return  # a piece may be part of a character
    texts = map(tokenizer.text_of, inner)
    parts = [" " * start + text for text, start in zip(texts, starts, strict=True)]
    clean = tokenizer.normalize(f"The café, {text} 안녕!")
    assert "".join(parts).split() == [w for w, _ in word_splitter().pre_tokenize_str(clean)]


def test_byte_level_knows_every_text_and_decodes_it() -> None:
    tokenizer = learned("byte-bpe")
    text = "the mat, \u2603 \U0001f600 東京 सि!"
    ids = tokenizer.encode_plain([text])[0]
    assert tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")
    assert tokenizer.text_of(ids[0]).startswith("t")
    assert [tokenizer.text_of(i) for i in tokenizer.special_ids] == list(SPECIAL_PIECES)


def test_byte_level_offsets_are_those_of_the_words() -> None:
    tokenizer = learned("byte-bpe")
    text = "The CAT,  sat"
    encoding = tokenizer.encode(text)
    spans: dict[int, list[int]] = {}
    for word, (start, end) in zip(encoding.words[1:-1], encoding.offsets[1:-1], strict=True):
        assert word is not None
        spans[word] = [min(start, spans.get(word, [start, 0])[0]), end]
    assert [text[start:end] for start, end in spans.values()] == ["The", "CAT", ",", "sat"]


def test_ratio_keeps_to_its_least_count() -> None:
    few = learn_vocabulary(LINES, size=400, score="ratio")
    assert few.vocab_size < 200, "no pair occurs a hundred times here"
    more = learn_vocabulary(LINES, size=400, score="ratio", min_pair_count=3)
    assert more.vocab_size > few.vocab_size


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="sizes"):
        learn_vocabulary(LINES, size=100, sizes=3)
