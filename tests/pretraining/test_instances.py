"""Segment pairs: the paper's generator, sentence by sentence, must give the same instances."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bothways import arrays
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.pretraining import instances as module
from bothways.pretraining.instances import (
    RANDOM_NEXT,
    Instances,
    create_instances,
    store_problem,
    training_order,
)
from bothways.pretraining.options import PairOptions
from bothways.randomness import Purpose, below, uniform
from bothways.training.options import PairKind
from pretraining_examples import Documents, memory_store, random_documents

Row = tuple[int, int, int, int, bool]
Ints = NDArray[np.int64]

KINDS: tuple[PairKind, ...] = ("next", "order", "full", "single")
DOCUMENTS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=2, max_size=6)


def make(
    store: TokenStore,
    *,
    length: int = 24,
    options: PairOptions | None = None,
    seed: int = 5,
    epoch: int = 0,
) -> Instances:
    return create_instances(
        store, length=length, options=options or PairOptions(), seed=seed, epoch=epoch
    )


def rows(instances: Instances) -> list[Row]:
    a, b, label = pair_columns(instances)
    columns = (*a.T.tolist(), *b.T.tolist(), label.tolist())
    return list(zip(*columns, strict=True))


def pair_columns(instances: Instances) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    assert instances.b is not None
    assert instances.label is not None
    return instances.a, instances.b, instances.label


def literal_instances(
    documents: Documents, length: int, options: PairOptions, seed: int, epoch: int
) -> list[Row]:
    """The rule of the original generator, one sentence at a time.

    Every draw is keyed by the sentence at which the instance starts.
    """
    firsts = np.cumsum([0, *map(len, documents)]).tolist()
    made: list[Row] = []
    for index, document in enumerate(documents):
        target = length - 3
        if uniform(seed, Purpose.SHORT, epoch, index) < options.short:
            target = 2 + int(below(length - 4, seed, Purpose.TARGET, epoch, index))
        chunk: list[int] = []
        chunk_tokens = 0
        i = 0
        while i < len(document):
            chunk.append(i)
            chunk_tokens += document[i]
            if i == len(document) - 1 or chunk_tokens >= target:
                key = (epoch, firsts[index] + chunk[0])
                a_end = 1
                if len(chunk) >= 2:
                    a_end = 1 + int(below(len(chunk) - 1, seed, Purpose.SPLIT, *key))
                is_random = len(chunk) == 1 or bool(
                    uniform(seed, Purpose.RANDOM_NEXT, *key) < RANDOM_NEXT
                )
                a = (firsts[index] + chunk[0], firsts[index] + chunk[0] + a_end)
                if is_random:
                    target_b = target - sum(document[j] for j in chunk[:a_end])
                    others = [d for d in range(len(documents)) if d != index]
                    other = others[int(below(len(others), seed, Purpose.RANDOM_DOCUMENT, *key))]
                    text = documents[other]
                    start = int(below(len(text), seed, Purpose.RANDOM_START, *key))
                    b_tokens, j = 0, start
                    while j < len(text):
                        b_tokens += text[j]
                        j += 1
                        if b_tokens >= target_b:
                            break
                    b = (firsts[other] + start, firsts[other] + j)
                    i -= len(chunk) - a_end  # put the sentences back that were not used
                else:
                    b = (a[1], firsts[index] + chunk[-1] + 1)
                made.append((*a, *b, is_random))
                chunk, chunk_tokens = [], 0
            i += 1
    return made


@given(
    DOCUMENTS,
    st.integers(8, 64),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.integers(0, 2**62),
    st.integers(0, 3),
)
def test_equals_the_rule_told_literally(
    documents: Documents, length: int, short: float, seed: int, epoch: int
) -> None:
    options = PairOptions(short=short)
    instances = make(
        memory_store(documents), length=length, options=options, seed=seed, epoch=epoch
    )
    assert rows(instances) == literal_instances(documents, length, options, seed, epoch)
    order = training_order(len(instances), seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(len(instances)))


@given(DOCUMENTS, st.integers(8, 64), st.integers(0, 2**62))
def test_what_every_pair_is(documents: Documents, length: int, seed: int) -> None:
    store = memory_store(documents)
    owner = np.repeat(np.arange(store.documents), np.diff(store.document_bounds))
    used = np.zeros(store.sentences, dtype=int)
    for a_start, a_end, b_start, b_end, is_random in rows(make(store, length=length, seed=seed)):
        assert a_start < a_end
        assert b_start < b_end
        assert len(set(owner[a_start:a_end])) == 1
        assert len(set(owner[b_start:b_end])) == 1
        if is_random:
            assert owner[a_start] != owner[b_start]
        else:
            assert b_start == a_end
            assert owner[a_start] == owner[b_start]
            used[b_start:b_end] += 1
        used[a_start:a_end] += 1
    # As A or as the next B, every sentence is read once an epoch: put back, never lost or doubled.
    assert used.tolist() == [1] * store.sentences


@given(DOCUMENTS, st.integers(8, 64))
def test_targets_are_reached_and_not_passed(documents: Documents, length: int) -> None:
    store = memory_store(documents)
    ends, target = store.sentence_bounds, length - 3
    a, b, _ = pair_columns(make(store, length=length, options=PairOptions(short=0.0)))
    last = np.searchsorted(store.document_bounds, b[:, 0], side="right")
    document_ends = store.document_bounds[last]
    tokens = (ends[a[:, 1]] - ends[a[:, 0]]) + (ends[b[:, 1]] - ends[b[:, 0]])
    full = (tokens >= target) | (b[:, 1] == document_ends)
    assert full.all(), "only the end of a document may leave a pair short"
    # Without its last sentence B would be too short, or empty.
    without = tokens - (ends[b[:, 1]] - ends[b[:, 1] - 1])
    assert ((without < target) | (b[:, 1] - b[:, 0] == 1)).all()


@given(DOCUMENTS)
def test_blocks_change_nothing(documents: Documents) -> None:
    store = memory_store(documents)
    whole = rows(make(store))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", 3)
        assert rows(make(store)) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_large_lies_in_files_and_is_the_same(kind: PairKind) -> None:
    documents, options = random_documents(np.random.default_rng(3), 300), PairOptions(kind=kind)
    kept = make(memory_store(documents), options=options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "LARGE", 0)
        store = memory_store(documents)
        mapped = make(store, options=options)
        order = training_order(len(mapped), seed=7, epoch=1)
    assert not store.sentence_bounds.flags.writeable
    assert not mapped.a.flags.writeable
    for name, values in vars(kept).items():
        np.testing.assert_array_equal(getattr(mapped, name), values)
    assert (order == training_order(len(kept), seed=7, epoch=1)).all()


def test_depends_on_seed_and_epoch_alone() -> None:
    documents = random_documents(np.random.default_rng(0), 40)
    store = memory_store(documents)
    first = make(store)
    again = make(memory_store(documents, seed=9))  # other words of the same lengths
    assert rows(first) == rows(again)
    order = training_order(99, seed=5, epoch=0).tolist()
    assert order == training_order(99, seed=5, epoch=0).tolist()
    for epoch, seed in ((1, 5), (0, 6)):
        assert rows(first) != rows(make(store, epoch=epoch, seed=seed))
        assert order != training_order(99, seed=seed, epoch=epoch).tolist()


COUNT = 4000


def within_four_sigma(hits: int, tries: int, share: float) -> bool:
    return abs(hits - tries * share) < 4 * np.sqrt(tries * share * (1 - share))


@pytest.fixture(scope="module")
def many() -> tuple[TokenStore, Instances]:
    """4000 documents of 30 sentences of 1 token, at 21 tokens a pair."""
    store = memory_store([[1] * 30] * COUNT)
    return store, make(store, length=24)


def test_share_of_random_next(many: tuple[TokenStore, Instances]) -> None:
    a, _, label = pair_columns(many[1])
    first = a[:, 0] % 30 == 0  # the first chunk of a document always has two sentences
    assert first.sum() == COUNT
    assert within_four_sigma(int(label[first].sum()), COUNT, 0.5)


def test_share_and_lengths_of_short_documents(many: tuple[TokenStore, Instances]) -> None:
    a, b, label = pair_columns(many[1])
    firsts = (a[:, 0] % 30 == 0) & ~label
    targets = b[firsts, 1] - a[firsts, 0]
    assert targets.min() >= 2
    assert targets.max() == 21
    # A short target is even from 2 to the longest, 21, both included.
    assert within_four_sigma(int((targets < 21).sum()), len(targets), 0.1 * 19 / 20)
    counts = np.bincount(targets[targets < 21], minlength=21)[2:]
    expected = counts.mean()
    assert ((counts - expected) ** 2 / expected).sum() < 50  # chi-square of 18, p < 1e-4


def test_split_points_and_random_places_are_even(many: tuple[TokenStore, Instances]) -> None:
    a, b, label = pair_columns(many[1])
    full = (a[:, 0] % 30 == 0) & ~label & (b[:, 1] - a[:, 0] == 21)
    splits = np.bincount(a[full, 1] - a[full, 0], minlength=21)[1:]
    assert len(splits) == 20
    assert ((splits - splits.mean()) ** 2 / splits.mean()).sum() < 55  # of 19
    distance = (b[:, 0] // 30 - a[:, 0] // 30)[label] % COUNT
    assert distance.min() > 0
    tenths = np.bincount((distance - 1) * 10 // (COUNT - 1), minlength=10)
    assert ((tenths - tenths.mean()) ** 2 / tenths.mean()).sum() < 38  # of 9
    starts = np.bincount(b[label, 0] % 30, minlength=30)
    assert ((starts - starts.mean()) ** 2 / starts.mean()).sum() < 68  # of 29


# -------------------------------------------------------------------------------- the other kinds


def literal_order(
    documents: Documents, length: int, options: PairOptions, seed: int, epoch: int
) -> list[Row]:
    """Sentence order, one sentence at a time."""
    firsts = np.cumsum([0, *map(len, documents)]).tolist()
    made: list[Row] = []
    for index, document in enumerate(documents):
        target = length - 3
        if uniform(seed, Purpose.SHORT, epoch, index) < options.short:
            target = 2 + int(below(length - 4, seed, Purpose.TARGET, epoch, index))
        chunk: list[int] = []
        for i in range(len(document)):
            chunk.append(i)
            enough = len(chunk) >= 2 and sum(document[j] for j in chunk) >= target
            if i == len(document) - 1 or (enough and i != len(document) - 2):
                if len(chunk) < 2:
                    continue  # a document of one sentence
                key = (epoch, firsts[index] + chunk[0])
                split = 1 + int(below(len(chunk) - 1, seed, Purpose.SPLIT, *key))
                start, stop = firsts[index] + chunk[0], firsts[index] + chunk[-1] + 1
                one, other = (start, start + split), (start + split, stop)
                if uniform(seed, Purpose.SWAP, *key) < 0.5:
                    made.append((*other, *one, True))
                else:
                    made.append((*one, *other, False))
                chunk = []
    return made


def literal_sentences(documents: Documents, length: int, *, cross: bool) -> list[tuple[int, int]]:
    """Whole sentences as long as they fit; with ``cross`` over borders, which cost a separator."""
    room, made = length - 2, [(0, 0)]
    used, at = 0, 0
    for index, document in enumerate(documents):
        for i, tokens in enumerate(document):
            border = index > 0 and i == 0
            if made[-1][1] > made[-1][0]:  # not empty
                cost = tokens + (cross and border)
                if used + cost > room or (border and not cross):
                    made.append((at, at))
                    used, cost = 0, tokens
            else:
                cost = tokens
            used += cost
            at += 1
            made[-1] = (made[-1][0], at)
    return made


@given(
    DOCUMENTS,
    st.integers(8, 64),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.integers(0, 2**62),
    st.integers(0, 3),
)
def test_order_equals_the_rule_told_literally(
    documents: Documents, length: int, short: float, seed: int, epoch: int
) -> None:
    options, store = PairOptions(kind="order", short=short), memory_store(documents)
    expected = literal_order(documents, length, options, seed, epoch)
    if expected:
        assert rows(make(store, length=length, options=options, seed=seed, epoch=epoch)) == expected
        # Every sentence but those that are a document by themselves, once.
        used = sorted(i for a, b, c, d, _ in expected for i in (*range(a, b), *range(c, d)))
        alone = [d for d in documents if len(d) == 1]
        assert len(used) == len(set(used)) == store.sentences - len(alone)
    else:
        assert "sentence order needs two" in store_problem(store, "order")


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(8, 64),
)
@pytest.mark.parametrize("kind", ["full", "single"])
def test_sentences_that_fit(kind: PairKind, documents: Documents, length: int) -> None:
    for block in (1 << 16, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_BLOCK", block)
            instances = make(memory_store(documents), length=length, options=PairOptions(kind=kind))
        expected = literal_sentences(documents, length, cross=kind == "full")
        assert list(map(tuple, instances.a.tolist())) == expected
        assert instances.b is None
        assert instances.label is None


def test_half_of_the_pairs_are_swapped() -> None:
    store = memory_store([[1] * 30] * COUNT)
    _, _, label = pair_columns(make(store, options=PairOptions(kind="order")))
    assert within_four_sigma(int(label.sum()), len(label), 0.5)


def test_what_each_kind_needs() -> None:
    one, lone, none = memory_store([[4, 5]]), memory_store([[4]] * 3), memory_store([])
    assert [k for k in KINDS if not store_problem(one, k)] == ["order", "full", "single"]
    assert [k for k in KINDS if not store_problem(lone, k)] == ["next", "full", "single"]
    assert [k for k in KINDS if not store_problem(none, k)] == []
    with pytest.raises(StoreError, match=r"memory: 3 document\(s\) .*--pairs-kind single"):
        make(lone, options=PairOptions(kind="order"))


def test_only_of_a_held_out_part_is_another_share_the_remedy() -> None:
    part = "no document in the held-out part of the corpus; .*larger share"
    for documents, split, told in (
        ([], "heldout", part),
        ([[4]], "heldout", r"^1 document\(s\) in the heldout part of the corpus; next-sentence"),
        ([], "train", r"^0 document\(s\) in the train part of the corpus; next-sentence"),
    ):
        store = memory_store(documents)
        store.split = split  # type: ignore[assignment]
        assert re.search(told, store_problem(store, "next"))
