"""Offsets that end where a character ends, as a reader sees it."""

from __future__ import annotations

import numpy as np
import pytest

from bothways.tokenization.offsets import (
    fit_to_characters,
    whole_characters,
)

HAN = "\u1112\u1161\u11ab"  # 한, decomposed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HAN, 3),
        ("e\u0301x", 2),
        ("\u0995\u09c7\u09bex", 3),  # a vowel in two parts, the second of combining class 0
        ("\u1112\u200b\u1161\u11abx", 4),  # an invisible character between the parts
        ("e\u200bx", 1),  # after which nothing continues
        ("ex", 1),
    ],
)
def test_a_character_is_taken_whole(text: str, expected: int) -> None:
    assert whole_characters([(0, 1)], text) == [(0, expected)]


def test_what_the_next_token_holds_is_left_to_it() -> None:
    offsets = [(0, 1), (1, 2), (2, 3)]
    assert whole_characters(offsets, HAN) == offsets
    assert whole_characters([(0, 1)], HAN) == [(0, 3)]
    of_bytes = [(0, 1), (0, 1), (1, 2), (1, 2)]  # of a letter and a vowel sign
    assert whole_characters(of_bytes, "\u0938\u0947") == of_bytes


@pytest.mark.parametrize(
    ("text", "starts", "ends", "expected"),
    [
        ("e\u0301", [0], [1], [2]),
        ("গো\u0981", [0, 1], [2, 2], [3, 3]),  # two pieces of one decomposed letter
        ("ab\u0301c", [0, 1, 3], [1, 2, 4], [1, 3, 4]),
        ("a\u0301b", [0, 1], [1, 3], [1, 3]),  # the mark is part of the next piece
        ("\u0301a", [1], [2], [2]),
        (HAN + HAN, [0, 3], [1, 4], [3, 6]),  # composed by the tokenizer
        (HAN, [0, 1, 2], [1, 2, 3], [1, 2, 3]),  # or not
        ("abc", [0], [1], [1]),
    ],
)
def test_marks_belong_to_the_pieces_before(
    text: str, starts: list[int], ends: list[int], expected: list[int]
) -> None:
    found = np.array(ends)
    fit_to_characters(text, np.array(starts), found)
    assert found.tolist() == expected


def test_spaces_before_a_word_are_not_its_piece() -> None:
    text = "the  cafe\u0301 x "
    starts, ends = np.array([0, 3, 10, 12]), np.array([3, 9, 12, 13])
    fit_to_characters(text, starts, ends)
    assert [text[s:e] for s, e in zip(starts, ends, strict=True)] == ["the", "cafe\u0301", "x", " "]


def test_what_continues_a_character_by_its_code_points() -> None:
    for text, end in (
        ("a\u0300b", 2),  # the first mark of all
        ("a\u02ffb", 1),  # the character before it
        ("a\u1160", 2),  # the first vowel and the last consonant of Hangul
        ("a\u11ff", 2),
        ("a\u115f", 1),
        ("a\u1200", 1),
        ("a\u200b\u200d\u0301", 4),
        ("a\u0416\u0301", 1),  # a letter between them
        ("a\u200b", 1),
        ("a", 1),
    ):
        assert whole_characters([(0, 1)], text) == [(0, end)], ascii(text)
    # A token without characters takes none, and the next one's are not taken.
    assert whole_characters([(0, 0), (0, 1)], "a\u0301") == [(0, 0), (0, 2)]
    assert whole_characters([(1, 1)], "a\u0301") == [(1, 1)]
