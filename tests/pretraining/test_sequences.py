"""Instances as sequences: what is cut, and where [CLS] and [SEP] go."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.pretraining.batches import find_spans, join_spans, truncation
from bothways.pretraining.instances import create_instances
from bothways.pretraining.options import PairOptions
from bothways.training.options import PairKind
from pretraining_examples import TOKENIZER, Documents, memory_store

DOCUMENTS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=9), min_size=2, max_size=6)
CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id


@given(DOCUMENTS, st.integers(8, 50), st.data())
@pytest.mark.parametrize("kind", ["next", "order", "full", "single"])
def test_layout_of_each_kind(
    kind: PairKind, documents: Documents, length: int, data: st.DataObject
) -> None:
    store = memory_store([*documents, [3, 4]])
    instances = create_instances(
        store, length=length, options=PairOptions(kind=kind), seed=1, epoch=2
    )
    rows = np.array(data.draw(st.lists(st.integers(0, len(instances) - 1), min_size=1, max_size=5)))
    spans = find_spans(store, instances, rows, kind=kind, length=length, seed=1, epoch=2)
    made = join_spans(store, spans)
    assert len(made.bounds) == len(rows) + 1
    assert made.bounds[-1] == len(made.tokens) == len(made.segments)
    borders = set(store.document_bounds.tolist())
    for number, row in enumerate(rows.tolist()):
        start, stop = made.bounds[number : number + 2]
        tokens, segments = made.tokens[start:stop].tolist(), made.segments[start:stop].tolist()
        assert len(tokens) <= length
        ranges = [instances.a[row]] if instances.b is None else [instances.a[row], instances.b[row]]
        if kind == "full":  # a document ends inside
            cuts = [s for s in range(ranges[0][0] + 1, ranges[0][1]) if s in borders]
            edges = [ranges[0][0], *cuts, ranges[0][1]]
            ranges = [np.array(pair) for pair in pairwise(edges)]
        texts = [store.tokens_between(*store.sentence_bounds[r].tolist()).tolist() for r in ranges]
        own = spans.sequence == number
        cut = zip(spans.cut_front[own].tolist(), spans.cut_end[own].tolist(), strict=True)
        expected, parts = [CLS], [0]
        for segment, (text, (front, end)) in enumerate(zip(texts, cut, strict=True)):
            expected += [*text[front : len(text) - end], SEP]
            parts += [0 if kind == "full" else segment] * (len(text) - front - end + 1)
        assert tokens == expected
        assert segments == parts
        whole = sum(map(len, texts)) + len(texts) + 1
        assert (whole > length) == bool((spans.cut_front + spans.cut_end)[own].any())
        assert whole <= length or len(tokens) == length


def test_sequences_one_after_another() -> None:
    store = memory_store([[3, 4], [5, 6], [7]])
    instances = create_instances(store, length=16, options=PairOptions(), seed=1, epoch=0)

    def find(*rows: int):  # type: ignore[no-untyped-def]
        return find_spans(store, instances, np.array(rows), kind="next", length=16, seed=1, epoch=0)

    both, one = join_spans(store, find(0, 2).append(find(1))), join_spans(store, find(0, 2, 1))
    for name in ("tokens", "segments", "bounds"):
        assert getattr(both, name).tolist() == getattr(one, name).tolist()


# ---------------------------------------------------------------------------------- truncation


def literal_truncation(a: int, b: int, limit: int) -> tuple[int, int]:
    dropped = [0, 0]
    while a + b > limit:
        if a > b:
            a, dropped[0] = a - 1, dropped[0] + 1
        else:
            b, dropped[1] = b - 1, dropped[1] + 1
    return dropped[0], dropped[1]


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=8),
    st.integers(5, 509),
    st.integers(0, 2**62),
)
def test_drops_as_many_as_one_by_one(pairs: list[tuple[int, int]], limit: int, seed: int) -> None:
    a, b = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    index = np.arange(len(pairs))
    front_a, end_a, front_b, end_b = truncation(a, b, limit, seed=seed, epoch=1, index=index)
    dropped = list(zip((front_a + end_a).tolist(), (front_b + end_b).tolist(), strict=True))
    assert dropped == [literal_truncation(*pair, limit) for pair in pairs]
    assert min(np.min(x) for x in (front_a, end_a, front_b, end_b)) >= 0
    # A pair is cut alike whatever stands beside it.
    alone = truncation(a[-1:], b[-1:], limit, seed=seed, epoch=1, index=index[-1:])
    assert [int(x[0]) for x in alone] == [int(x[-1]) for x in (front_a, end_a, front_b, end_b)]


@pytest.mark.parametrize("change", [{"seed": 2}, {"epoch": 1}, {"index": np.arange(40) + 1}])
def test_seed_epoch_and_index_each_change_what_is_dropped(change: dict[str, Any]) -> None:
    a, b = np.full(40, 90), np.full(40, 80)
    draws: dict[str, Any] = {"seed": 1, "epoch": 0, "index": np.arange(40)}
    first = truncation(a, b, 61, **draws)
    again = truncation(a, b, 61, **draws | change)
    for side in (0, 2):
        assert (first[side] != again[side]).any()


@pytest.mark.parametrize("drop", [1, 2, 63, 64, 65, 128, 1000])
def test_front_or_end_is_a_fair_coin(drop: int) -> None:
    count = 4000
    a = np.full(count, 2 * drop + 20, dtype=np.int64)
    fronts = []
    for x, y in ((a, a - drop), (a - drop, a)):  # the drop is A's alone, then B's alone
        limit = int((x + y)[0]) - drop
        cut = truncation(x, y, limit, seed=3, epoch=0, index=np.arange(count))
        fronts.append(cut[0] if x is a else cut[2])
        assert (fronts[-1] + (cut[1] if x is a else cut[3]) == drop).all()
    for front in fronts:
        assert abs(front.mean() - drop / 2) < 4 * np.sqrt(drop / 4 / count)
        assert abs(front.var() / (drop / 4) - 1) < 4 * np.sqrt(2 / count)
    assert abs(np.corrcoef(fronts)[0, 1]) < 4 / np.sqrt(count), "A and B flip their own coins"
