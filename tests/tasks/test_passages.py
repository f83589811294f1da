"""Answers are found among the tokens and given back as the passage's own characters."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bothways.batch import IGNORE
from bothways.errors import InputError, LengthError
from bothways.io.annotations.squad import GoldAnswer, Questions
from bothways.tasks.options import SpanOptions, TaskOptions
from bothways.tasks.passages import PassageFile, encode_questions
from bothways.tasks.spans import SpanTask
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyzßéñ0123456789.,()'漢字仮한국어가나"
PIECES = [*SPECIAL_PIECES, *LETTERS, *("##" + letter for letter in LETTERS), "the", "##ing"]
TOKENIZERS = {
    name: Tokenizer.from_pieces(PIECES, lowercase=lower, normalization=rules)  # type: ignore[arg-type]
    for name, lower, rules in (
        ("uncased", True, "bert"),
        ("cased", False, "bert"),
        ("composed", True, "composed"),
    )
}
# Words of characters that change in number when lower-cased, composed or stripped, and what stands
# between them.
CHARACTER = st.sampled_from([*"aZéİß漢字한ﬁ", "e\u0301", "o\u0308\u0323", "\u1112\u1161\u11ab"])
WORD = st.lists(CHARACTER | st.characters(categories=("L", "N", "M")), min_size=1, max_size=6).map(
    "".join
)
SPACE = st.sampled_from([" ", "  ", "\n", "\t", "\u00a0", "\u3000", "\u2028", " \u200b", "\ufeff "])


def asked(passage: str, *answers: tuple[str, int], question: str = "a") -> Questions:
    gold = [tuple(GoldAnswer(*answer) for answer in answers)]
    return Questions(Path("q.json"), [passage], ["q"], [question], [0], gold)


def encode(
    rows: Questions, length: int = 64, tokenizer: str = "uncased", **options: object
) -> PassageFile:
    chosen = SpanOptions(**options)  # type: ignore[arg-type]
    return encode_questions(TOKENIZERS[tokenizer], rows, chosen, length=length)


def texts_at_targets(part: PassageFile) -> list[str]:
    """The characters at the target of each window; empty for [CLS] and for no target."""
    found = []
    passage = part.rows.passages[0]
    for row, (start, end) in zip(part.examples.output_bounds, part.examples.gold, strict=False):
        there = slice(part.starts[row + start], part.ends[row + end]) if start > 0 else slice(0, 0)
        found.append(passage[there])
    return found


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(
    st.lists(WORD, min_size=1, max_size=12), st.lists(SPACE, min_size=12, max_size=12), st.data()
)
def test_what_is_trained_on_is_the_answer(
    tokenizer: str, words: list[str], spaces: list[str], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    parts = [part for pair in zip(words, spaces, strict=False) for part in pair]
    passage = "".join(parts)
    start = len("".join(parts[: 2 * first]))
    answer = "".join(parts[2 * first : 2 * last + 1])
    part = encode(asked(passage, (answer, start)), 512, tokenizer)
    (found,) = texts_at_targets(part)
    if part.examples.gold[0, 0] == IGNORE:
        assert not set(range(start, start + len(answer))) & covered(part), "it has tokens"
        return
    # A mark without a letter, and what is not visible, may belong to no token.
    assume(unicodedata.category(answer[0])[0] != "M")
    assert found == answer


def covered(part: PassageFile) -> set[int]:
    first, end = part.passage_bounds[0]
    spans = zip(part.starts[first:end].tolist(), part.ends[first:end].tolist(), strict=True)
    return {at for start, stop in spans for at in range(start, stop)}


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(st.text(max_size=60))
def test_offsets_never_go_back(tokenizer: str, text: str) -> None:
    (encoding,) = TOKENIZERS[tokenizer].encode_batch([text])
    offsets = np.array(encoding.offsets[1:-1]).reshape(-1, 2)
    assert (np.diff(offsets, axis=0) >= 0).all()
    assert (offsets[:, 0] < offsets[:, 1]).all()


def test_the_layout_of_a_window() -> None:
    tokenizer = TOKENIZERS["uncased"]
    passage = "a b c d e f g h i j"
    part = encode(asked(passage, ("d e", 6), question="x y"), 12, stride=3)
    examples = part.examples
    shown = [
        " ".join(tokenizer.pieces[i] for i in examples.tokens[a:b])
        for a, b in zip(examples.bounds, examples.bounds[1:], strict=False)
    ]
    assert shown == [
        "[CLS] x y [SEP] a b c d e f g [SEP]",
        "[CLS] x y [SEP] d e f g h i j [SEP]",
    ]
    assert examples.segments.tolist() == [0] * 4 + [1] * 8 + [0] * 4 + [1] * 8
    assert examples.gold.tolist() == [[7, 8], [4, 5]]
    assert examples.owners.tolist() == [0, 0]
    assert len(examples.read_positions) == len(examples.tokens)
    assert SpanTask(TaskOptions(kind="spans")).example_lengths(part).tolist() == [15], "2 + 10 + 3"
    assert part.passage_bounds.tolist() == [[4, 11], [4, 11]]
    best = [shown[n].split()[i] for n, i in np.argwhere(part.best.reshape(2, 12)).tolist()]
    assert best == ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
    assert (
        "1 of 1 questions have a passage that is read in several windows (2 windows in all)"
        in (part.notes[0])
    )


def test_a_window_without_all_of_the_answer_points_at_cls() -> None:
    part = encode(asked("a b c d e f g h i j", ("c d", 4), question="x y"), 12, stride=3)
    assert part.examples.gold.tolist() == [[6, 7], [0, 0]]
    part = encode(asked("a b c d e f g h i j", ("g h", 12), question="x y"), 12, stride=3)
    assert part.examples.gold.tolist() == [[0, 0], [7, 8]], "its last token is behind the first"
    part = encode(asked("a b c"), 12)
    assert part.examples.gold.tolist() == [[0, 0]], "no answer at all"


def test_only_the_first_answer_is_trained_on() -> None:
    part = encode(asked("a b c", ("b", 2), ("c", 4)))
    assert texts_at_targets(part) == ["b"]


@pytest.mark.parametrize(
    ("passage", "answer", "found"),
    [
        ("Le café, fermé", ("café", 3), "café"),
        ("Le cafe\u0301 ferme", ("cafe\u0301", 3), "cafe\u0301"),
        ("漢字仮漢", ("字仮", 1), "字仮"),
        ("a\u3000b\n\nc", ("b\n\nc", 2), "b\n\nc"),
        ("in (1999)", ("1999", 4), "1999"),
        ("one two", (" two", 3), "two"),
        ("one two", ("two ", 4), "two"),
        ("𝒳 one 𝒴 two", ("two", 8), "two"),
    ],
)
def test_places(passage: str, answer: tuple[str, int], found: str) -> None:
    part = encode(asked(passage, answer))
    got = texts_at_targets(part)[0]
    assert got == found
    assert part.notes == ()


ASTRAY = [
    ("a b c b", ("b", 3), "b"),  # off by one
    ("a b c b", ("b", 5), "b"),
    ("a b c", ("b", -1), "b"),
    ("a b c", ("b", 99), "b"),
    ("a b c", ("x", 0), None),
    ("", ("x", 0), None),
    ("a b c", ("", 1), None),
]


@pytest.mark.parametrize(("passage", "answer", "elsewhere"), ASTRAY)
def test_answers_astray(passage: str, answer: tuple[str, int], elsewhere: str | None) -> None:
    rows = asked(passage, answer)
    part = encode(rows)
    assert part.examples.gold.tolist() == [[IGNORE, IGNORE]]
    assert any("1 of 1 answers are not where answer_start says (q)" in n for n in part.notes)
    where = "is not at" if answer[0] in passage else "is nowhere in"
    with pytest.raises(InputError, match=rf"q\.json: question 'q': the answer .* {where}"):
        encode(rows, misaligned="error")
    part = encode(rows, misaligned="search")
    assert texts_at_targets(part) == [elsewhere or ""]
    assert (part.examples.gold[0, 0] == IGNORE) == (elsewhere is None)
    assert any("nearest occurrence" in note for note in part.notes) == (elsewhere is not None)


def test_the_nearest_place_is_taken() -> None:
    part = encode(asked("b a a a b a b", ("b", 7)), misaligned="search")
    assert part.examples.gold.tolist() == [[3 + 4, 3 + 4]]


def test_an_answer_without_tokens() -> None:
    part = encode(asked("a \u200b b", ("\u200b", 2)))
    assert part.examples.gold.tolist() == [[IGNORE, IGNORE]]


def test_long_and_empty_questions_and_passages() -> None:
    part = encode(asked("a b", ("a", 0), question="x y z"), query_length=2)
    assert len(part.examples.tokens) == 2 + 2 + 3
    assert part.notes == ("q.json: 1 of 1 questions were cut to 2 tokens",)
    part = encode(asked("a b", ("b", 2), question="x y z"), length=6)  # room for three
    assert part.examples.tokens.tolist() == [*TOKENIZERS["uncased"].encode("x", "a b").ids]
    assert part.notes == ("q.json: 1 of 1 questions were cut to 1 tokens",)
    part = encode(asked("", question=" "))
    assert len(part.examples.tokens) == 3
    assert [note.partition(": ")[2] for note in part.notes] == [
        "1 of 1 questions are empty",
        "1 of 1 questions have an empty passage and thus no answer",
    ]
    with pytest.raises(LengthError, match=r"4 tokens leaves no room .* at least 5"):
        encode(asked("a b", question="x y z"), length=4)
