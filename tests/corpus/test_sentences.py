"""corpus/sentences.py: boundaries never change, lose or double text."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import sentencex
from hypothesis import given
from hypothesis import strategies as st

from bothways.corpus import sentences as module
from bothways.corpus.sentences import check_language, split_paragraphs
from bothways.errors import ConfigError

# What sentence rules look at: ends, quotes, initials, wide spaces, other scripts.
FRAGMENTS = [
    *" .!?…。“”\"'()«»「」AbéÉ1\t\xa0\u3000\x85\u2028\u200b😀한।",
    "A\xa0.",
    "Dr.",
    "U.S.",
    "a@b.c",
]
odd_lines = st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)


def split_lines(lines: list[str], **options: Any) -> list[str]:
    """The sentences of all lines."""
    return [s for found in split_paragraphs(lines, **options) for s in found]


languages = st.sampled_from(["en", "ko", "de", "fr", "ja", "zh", "ar", "hi", "am", "xx"])


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_sentences_of_a_paragraph() -> None:
    lines = ["Dr. Hale went home at 5 p.m. on Friday.  He slept! ", "“Really?” she said."]
    assert split_lines(lines, sentences="split", language="en") == [
        "Dr. Hale went home at 5 p.m. on Friday.",
        "He slept!",
        "“Really?” she said.",
    ]
    assert split_lines(lines, sentences="line", language="en") == [line.strip() for line in lines]


def test_korean_and_chinese() -> None:
    assert split_lines(["안녕하세요. 반갑습니다!"], sentences="split", language="ko") == [
        "안녕하세요.",
        "반갑습니다!",
    ]
    assert split_lines(["你好。再见。"], sentences="split", language="zh") == ["你好。", "再见。"]


@given(lines=st.lists(odd_lines | st.text(), max_size=4), language=languages)
def test_no_text_is_lost_changed_or_doubled(lines: list[str], language: str) -> None:
    found = split_lines(lines, sentences="split", language=language)
    assert squeezed("".join(found)) == squeezed("".join(lines))
    assert all(sentence == sentence.strip() != "" for sentence in found)


@given(line=odd_lines, language=languages, window=st.integers(1, 9))
def test_windows_lose_nothing(line: str, language: str, window: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WINDOW", window)
        found = split_lines([line], sentences="split", language=language)
    assert squeezed("".join(found)) == squeezed(line)


def test_windows_do_not_move_boundaries() -> None:
    line = " ".join(f"Sentence {n} of this paragraph ends here." for n in range(2000))
    assert len(line) > 5 * module.WINDOW
    expected = [sentence.strip() for sentence in sentencex.segment("en", line)]
    assert split_lines([line], sentences="split", language="en") == expected


def test_wide_spaces_before_a_full_stop_do_not_stop_the_program() -> None:
    line = "Vitamine A\xa0. Et vitamine B\u3000. Oui."
    assert squeezed("".join(split_lines([line], sentences="split", language="fr"))) == squeezed(
        line
    )


def test_every_wide_space_is_shown_plain() -> None:
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    for space in spaces:
        found = split_lines([f"A{space}. B."], sentences="split", language="en")
        assert squeezed("".join(found)) == "A.B."


def test_unclosed_quotes_take_linear_time() -> None:
    line = "“a " * 400_000
    started = time.perf_counter()
    found = split_lines([line], sentences="split", language="en")
    # The library alone takes minutes.
    assert time.perf_counter() - started < 20
    assert squeezed("".join(found)) == squeezed(line)
    assert all(sentence.count("“") == sentence.count("a") for sentence in found), "a word was cut"


@pytest.mark.parametrize("language", ["english", "EN", "", "e", "en_US"])
def test_what_is_no_language_code_is_refused(language: str) -> None:
    with pytest.raises(ConfigError, match="language is"):
        check_language(language)


@pytest.mark.parametrize("language", ["en", "ko", "zh-yue", "ast"])
def test_codes_are_taken(language: str) -> None:
    check_language(language)
