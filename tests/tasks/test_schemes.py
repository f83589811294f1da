"""Entities as tags: read and written in each scheme, and scored like conlleval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from bothways.tasks.options import Scheme
from bothways.tasks.schemes import (
    EntitySpan,
    entity_spans,
    find_scheme,
    scheme_tags,
    scheme_violations,
    score_entities,
    standard_tag,
    tag_pairs,
    write_tags,
)

SCHEMES: tuple[Scheme, ...] = ("iob1", "iob2", "bioes")
TYPES = ("PER", "LOC", "creative-work")
TAGS = st.sampled_from(["O", *(f"{p}-{t}" for p in "BIES" for t in TYPES)])
IOB = st.sampled_from(["O", *(f"{p}-{t}" for p in "BI" for t in TYPES)])


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[EntitySpan], int]:
    """Entities that do not overlap, and the number of words."""
    found, at = [], 0
    for gap, size, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(TYPES)))
    ):
        found.append(EntitySpan(kind, at + gap, at + gap + size))
        at += gap + size
    return found, at + draw(st.integers(0, 2))


@given(sentences())
def test_every_scheme_keeps_every_entity(drawn: tuple[list[EntitySpan], int]) -> None:
    found, words = drawn
    for scheme in SCHEMES:
        tags = write_tags(found, words, scheme)
        assert entity_spans(tags) == found
        assert scheme_violations(tags, scheme) == []


@given(sentences())
def test_other_letters_for_bioes(drawn: tuple[list[EntitySpan], int]) -> None:
    found, words = drawn
    tags = write_tags(found, words, "bioes")
    bilou = [t.replace("E-", "L-").replace("S-", "U-") for t in tags]
    bmes = [t.replace("I-", "M-") for t in tags]
    for other in (bilou, bmes):
        assert entity_spans(other) == found
        assert [standard_tag(tag) for tag in other] == tags
        assert scheme_violations(other, "bioes") == []
    assert find_scheme(tag_pairs([["U-PER", "O", "B-PER", "L-PER"]])) == "bioes"
    assert find_scheme(tag_pairs([["B", "M", "E", "S"]])) == "none"  # letters alone may be anything


def test_the_schemes_by_hand() -> None:
    found = [
        EntitySpan("PER", 0, 2),
        EntitySpan("PER", 2, 3),
        EntitySpan("LOC", 4, 5),
        EntitySpan("PER", 5, 8),
    ]
    iob1 = "I-PER I-PER B-PER O I-LOC I-PER I-PER I-PER".split()
    iob2 = "B-PER I-PER B-PER O B-LOC B-PER I-PER I-PER".split()
    bioes = "B-PER E-PER S-PER O S-LOC B-PER I-PER E-PER".split()
    for scheme, tags in zip(SCHEMES, (iob1, iob2, bioes), strict=True):
        assert write_tags(found, 8, scheme) == tags
        assert entity_spans(tags) == found
        assert find_scheme(tag_pairs([tags])) == scheme
    assert scheme_violations(iob1, "iob2") == [0, 4, 5]
    assert scheme_violations(iob2, "iob1") == [0, 4, 5]
    assert scheme_violations(iob2, "bioes") == [2, 3, 5, 7]


# What conlleval reads in sequences that no scheme allows; worked out from its rules by hand.
BROKEN = [
    ("O I-PER I-PER", [("PER", 1, 3)]),
    ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
    ("I-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
    ("I-PER O I-PER", [("PER", 0, 1), ("PER", 2, 3)]),
    ("E-PER I-PER", [("PER", 0, 1), ("PER", 1, 2)]),
    ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
    ("O B I O", [("", 1, 3)]),
]


@pytest.mark.parametrize(("tags", "found"), BROKEN)
def test_broken_sequences_are_read_as_conlleval_reads_them(
    tags: str, found: list[tuple[str, int, int]]
) -> None:
    assert entity_spans(tags.split()) == found


@given(st.lists(TAGS))
def test_entities_are_those_of_an_independent_reader(tags: list[str]) -> None:
    assert entity_spans(tags) == [(t, first, last + 1) for t, first, last in get_entities([tags])]


@given(st.lists(st.lists(st.tuples(IOB, IOB), min_size=1), min_size=1))
def test_scores_are_those_of_an_independent_scorer(
    drawn: list[list[tuple[str, str]]],
) -> None:
    predicted = [[ours for ours, _ in row] for row in drawn]
    gold = [[theirs for _, theirs in row] for row in drawn]
    total, by_type = score_entities(predicted, gold)
    theirs = [
        score(gold, predicted, zero_division=0)
        for score in (precision_score, recall_score, f1_score)
    ]
    assert [total.precision, total.recall, total.f1] == pytest.approx(theirs)
    assert sum(s.correct for s in by_type.values()) == total.correct
    assert sum(s.gold for s in by_type.values()) == total.gold


def test_the_scheme_of_a_file_is_that_which_it_breaks_least() -> None:
    iob2 = ["B-A I-A".split()] * 5
    assert find_scheme(tag_pairs([*iob2, ["I-A"]])) == "iob2"
    assert find_scheme(tag_pairs([["I-A", "B-A"], ["I-A"], ["B-A"]])) == "iob1"
    assert find_scheme(tag_pairs([["O", "O"]])) == "iob2"
    assert find_scheme(tag_pairs([["DT", "NN"], ["NNP"]])) == "none"
    assert find_scheme(tag_pairs([["B", "I", "O"]])) == "iob2"
    assert find_scheme(tag_pairs([["O", "S-A"]])) == "bioes"
    assert (
        find_scheme(tag_pairs([["U-A", "O"]])) == find_scheme(tag_pairs([["O", "U-"]])) == "bioes"
    )
    assert find_scheme(tag_pairs([["B-A", "BPER"]])) == "iob2"


def test_tags_that_no_scheme_has_break_it() -> None:
    assert scheme_violations(["O", "PER", "B-PER"], "iob2") == [1]
    assert scheme_violations(["DT", "NN"], "none") == []
    assert scheme_violations(["B-A"], "bioes") == [0]
    assert scheme_violations(["S-A"], "iob2") == [0]


def test_all_tags_of_a_scheme() -> None:
    assert scheme_tags(["b", "a", "b"], "iob2") == ("O", "B-a", "I-a", "B-b", "I-b")
    assert scheme_tags(["a"], "bioes") == ("O", "B-a", "I-a", "E-a", "S-a")
