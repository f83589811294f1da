"""The template of sequences against building them one by one, and against the library."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import ModelError
from bothways.tokenization.template import Layout, Roles, Special, Template

CLS, SEP = Special("<s>", 1), Special("</s>", 2)
ODD = Template(
    Layout(((CLS, SEP), ()), (0,)), Layout(((), (SEP.at(2),), (CLS, SEP.at(1))), (1, 0)), (CLS,)
)
TEMPLATES = {
    "segmented": Template.segmented(CLS, SEP),
    "doubled": Template.doubled(CLS, SEP),
    "bare": Template.bare(),
    "odd": ODD,
}
EACH = pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
TEXT = st.lists(st.integers(5, 99), max_size=6)


def test_costs_by_hand() -> None:
    costs = {name: (t.cost(), t.cost(2)) for name, t in TEMPLATES.items()}
    assert costs == {"segmented": (2, 3), "doubled": (2, 4), "bare": (0, 0), "odd": (2, 3)}
    assert [t.shortest(2) for t in TEMPLATES.values()] == [5, 6, 2, 5]
    assert TEMPLATES["doubled"].room(10, 2) == 6
    assert [t.segments for t in TEMPLATES.values()] == [2, 1, 1, 3]
    assert [t.border_cost for t in TEMPLATES.values()] == [1, 1, 0, 1]
    assert TEMPLATES["doubled"].names == "<s> and </s>"
    assert TEMPLATES["bare"].names == "special tokens"


def test_sequences_by_hand() -> None:
    tokens, segments = TEMPLATES["segmented"].wrap([7, 8], [9])
    assert (tokens.tolist(), segments.tolist()) == ([1, 7, 8, 2, 9, 2], [0, 0, 0, 0, 1, 1])
    tokens, segments = TEMPLATES["doubled"].wrap([7, 8], [9])
    assert (tokens.tolist(), segments.tolist()) == ([1, 7, 8, 2, 2, 9, 2], [0] * 7)
    tokens, segments = TEMPLATES["doubled"].wrap([])
    assert (tokens.tolist(), segments.tolist()) == ([1, 2], [0, 0])
    tokens, segments = ODD.wrap([7], [8])
    assert (tokens.tolist(), segments.tolist()) == ([7, 2, 8, 1, 2], [1, 2, 0, 0, 1])
    assert (tokens.dtype, segments.dtype) == (np.int32, np.int8)


@EACH
@given(texts=st.tuples(TEXT) | st.tuples(TEXT, TEXT))
def test_every_way_to_build_a_sequence_is_the_same(
    template: Template, texts: tuple[list[int], ...]
) -> None:
    tokens, segments = template.wrap(*texts)
    assert template.wrap_lists(texts) == (tokens.tolist(), segments.tolist())
    assert template.surround(texts, None) == [
        None if place is None else tokens[place]
        for place in template.surround(
            [[*range(part.start, part.stop)] for part in template.content(*map(len, texts))], None
        )
    ]
    for part, text in zip(template.content(*map(len, texts)), texts, strict=True):
        assert tokens[part].tolist() == text
    assert len(tokens) == sum(map(len, texts)) + template.cost(len(texts))
    assert template.room(len(tokens), len(texts)) == sum(map(len, texts))
    assert template.opening(len(texts)) == template.content(*map(len, texts))[0].start
    last = template.content(*map(len, texts))[-1].stop
    assert template.closing(len(texts)) == len(tokens) - last


@EACH
@given(pairs=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_many_pairs_at_once(template: Template, pairs: list[tuple[list[int], list[int]]]) -> None:
    spans = [span for pair in pairs for span in pair]
    found = template.wrap_spans(
        np.array([i for span in spans for i in span], np.int64),
        np.array([len(span) for span in spans], np.int64),
        np.repeat(np.arange(len(pairs)), 2),
        pairs=True,
    )
    for number, pair in enumerate(pairs):
        here = slice(*found.bounds[number : number + 2])
        tokens, segments = template.wrap(*pair)
        assert found.tokens[here].tolist() == tokens.tolist()
        assert found.segments[here].tolist() == segments.tolist()
        places = template.span_places([*map(len, pair)], pairs=True)
        assert [i for place in places for i in tokens[place]] == tokens.tolist()


@EACH
@given(documents=st.lists(st.lists(TEXT, min_size=1, max_size=4), min_size=1, max_size=4))
def test_documents_packed_into_texts(template: Template, documents: list[list[list[int]]]) -> None:
    spans = [span for sequence in documents for span in sequence]
    found = template.wrap_spans(
        np.array([i for span in spans for i in span], np.int64),
        np.array([len(span) for span in spans], np.int64),
        np.repeat(np.arange(len(documents)), [*map(len, documents)]),
    )
    border = [special.id for special in template.border]
    for number, sequence in enumerate(documents):
        text = [*sequence[0]]
        for span in sequence[1:]:
            text += [*border, *span]
        here = slice(*found.bounds[number : number + 2])
        assert found.tokens[here].tolist() == template.wrap(text)[0].tolist()
        places = template.span_places([*map(len, sequence)])
        assert places[-1].stop == here.stop - here.start


def test_in_one_segment() -> None:
    one = TEMPLATES["segmented"].in_one_segment()
    assert one.segments == one.pair_segments == 1
    assert one.wrap([7], [8])[0].tolist() == TEMPLATES["segmented"].wrap([7], [8])[0].tolist()
    assert TEMPLATES["segmented"].pair_segments == 2


def test_in_one_segment_documents_are_separated_as_before() -> None:
    one = Template(Layout(((CLS,), (SEP.at(1),)), (1,)), None, (SEP.at(1), CLS)).in_one_segment()
    assert one == Template(Layout(((CLS,), (SEP,)), (0,)), None, (SEP, CLS))


def test_a_sequence_has_one_text_or_two() -> None:
    template = TEMPLATES["segmented"]
    for texts in ([], [[7], [8], [9]]):
        message = f"a sequence has one text or two, not {len(texts)}"
        for build in (
            lambda texts: template.wrap(*texts),
            template.wrap_lists,
            lambda texts: template.surround(texts, 0),
            lambda texts: template.content(*map(len, texts)),
            lambda texts: template.cost(len(texts)),
        ):
            with pytest.raises(ValueError, match=message):
                build(texts)  # type: ignore[no-untyped-call]


def test_how_a_tokenizer_json_spells_a_sequence() -> None:
    assert ODD.single.spelled == ["<s>:0", "</s>:0", "$A:0"]
    assert ODD.layout(2).spelled == ["$A:1", "</s>:2", "$B:0", "<s>:0", "</s>:1"]


def test_a_template_without_pairs_refuses_them() -> None:
    template = Template(Layout(((CLS,), ()), (0,)))
    assert template.segments == 1
    with pytest.raises(ModelError, match="no form for pairs of texts"):
        template.cost(2)


def test_roles_may_share_a_piece() -> None:
    roles = Roles(pad="</s>", cls="<s>", sep="</s>")
    assert roles.pieces == ("</s>", "<s>")
    assert roles.items()["mask"] is None


def test_the_ids_of_special_tokens_by_hand() -> None:
    assert [t.ids for t in TEMPLATES.values()] == [{1, 2}, {1, 2}, set(), {1, 2}]
    assert Template(Layout(((CLS,), ()), (0,))).ids == {1}, "of texts alone"


def test_forms_of_texts_and_pairs_are_kept_apart() -> None:
    assert (ODD.opening(), ODD.closing()) == (2, 0)
    assert (ODD.opening(2), ODD.closing(2)) == (0, 2)
    # Two documents in one text: <s> </s> before, <s> between, nothing behind.
    assert ODD.span_places([3, 4]) == [slice(0, 6), slice(6, 10)]
    assert ODD.span_places([3, 4], pairs=True) == [slice(0, 4), slice(4, 10)]


def test_documents_of_a_text_are_separated_by_the_border_alone() -> None:
    found = ODD.wrap_spans(np.array([7, 8, 9]), np.array([1, 2]), np.array([0, 0]))
    assert found.tokens.tolist() == [1, 2, 7, 1, 8, 9]
    assert found.segments.tolist() == [0] * 6
    assert found.bounds.tolist() == [0, 6]
