"""Segment pairs: the paper's generator, told sentence by sentence, must give the same plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.config import PairOptions
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.pretraining import plan as module
from bothways.pretraining.plan import Plan, plan_epoch, truncation
from bothways.randomness import Purpose, below, uniform
from pretraining_examples import Documents, memory_store, random_documents

Row = tuple[int, int, int, int, bool]

DOCUMENTS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=2, max_size=6)


def make(
    store: TokenStore,
    *,
    length: int = 24,
    options: PairOptions | None = None,
    seed: int = 5,
    epoch: int = 0,
) -> Plan:
    return plan_epoch(
        store, length=length, options=options or PairOptions(), seed=seed, epoch=epoch
    )


def rows(plan: Plan) -> list[Row]:
    columns = (*plan.a.T.tolist(), *plan.b.T.tolist(), plan.random_next.tolist())
    return list(zip(*columns, strict=True))


def literal_plan(
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
                    uniform(seed, Purpose.RANDOM_NEXT, *key) < options.random_next
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
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(0, 2**62),
    st.integers(0, 3),
)
def test_equals_the_rule_told_literally(
    documents: Documents, length: int, short: float, share: float, seed: int, epoch: int
) -> None:
    options = PairOptions(short=short, random_next=share)
    plan = make(memory_store(documents), length=length, options=options, seed=seed, epoch=epoch)
    assert rows(plan) == literal_plan(documents, length, options, seed, epoch)
    assert sorted(plan.order.tolist()) == list(range(len(plan)))


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
    plan = make(store, length=length, options=PairOptions(short=0.0))
    last = np.searchsorted(store.document_bounds, plan.b[:, 0], side="right")
    document_ends = store.document_bounds[last]
    tokens = (ends[plan.a[:, 1]] - ends[plan.a[:, 0]]) + (ends[plan.b[:, 1]] - ends[plan.b[:, 0]])
    full = (tokens >= target) | (plan.b[:, 1] == document_ends)
    assert full.all(), "only the end of a document may leave a pair short"
    # Without its last sentence B would be too short, or empty.
    without = tokens - store.sentence_lengths[plan.b[:, 1] - 1]
    assert ((without < target) | (plan.b[:, 1] - plan.b[:, 0] == 1)).all()


@given(DOCUMENTS)
def test_blocks_change_nothing(documents: Documents) -> None:
    store = memory_store(documents)
    whole = rows(make(store))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", 3)
        assert rows(make(store)) == whole


def test_depends_on_seed_and_epoch_alone() -> None:
    documents = random_documents(np.random.default_rng(0), 40)
    store = memory_store(documents)
    first = make(store)
    again = make(memory_store(documents, seed=9))  # other words of the same lengths
    assert rows(first) == rows(again)
    assert first.order.tolist() == again.order.tolist()
    for other in (make(store, epoch=1), make(store, seed=6)):
        assert rows(first) != rows(other)
        assert first.order.tolist() != other.order.tolist()


def test_one_document_has_no_random_next() -> None:
    for documents in ([[4, 5]], []):
        with pytest.raises(StoreError, match="at least 2"):
            make(memory_store(documents))


COUNT = 4000


def within_four_sigma(hits: int, tries: int, share: float) -> bool:
    return abs(hits - tries * share) < 4 * np.sqrt(tries * share * (1 - share))


@pytest.fixture(scope="module")
def many() -> tuple[TokenStore, Plan]:
    """4000 documents of 30 sentences of 1 token, at 21 tokens a pair."""
    store = memory_store([[1] * 30] * COUNT)
    return store, make(store, length=24)


def test_share_of_random_next(many: tuple[TokenStore, Plan]) -> None:
    _, plan = many
    first = plan.a[:, 0] % 30 == 0  # the first chunk of a document always has two sentences
    assert first.sum() == COUNT
    assert within_four_sigma(int(plan.random_next[first].sum()), COUNT, 0.5)


def test_share_and_lengths_of_short_documents(many: tuple[TokenStore, Plan]) -> None:
    _, plan = many
    firsts = (plan.a[:, 0] % 30 == 0) & ~plan.random_next
    targets = plan.b[firsts, 1] - plan.a[firsts, 0]
    assert targets.min() >= 2
    assert targets.max() == 21
    # A short target is even from 2 to the longest, 21, both included.
    assert within_four_sigma(int((targets < 21).sum()), len(targets), 0.1 * 19 / 20)
    counts = np.bincount(targets[targets < 21], minlength=21)[2:]
    expected = counts.mean()
    assert ((counts - expected) ** 2 / expected).sum() < 50  # chi-square of 18, p < 1e-4


def test_split_points_and_random_places_are_even(many: tuple[TokenStore, Plan]) -> None:
    _, plan = many
    full = (plan.a[:, 0] % 30 == 0) & ~plan.random_next & (plan.b[:, 1] - plan.a[:, 0] == 21)
    splits = np.bincount(plan.a[full, 1] - plan.a[full, 0], minlength=21)[1:]
    assert len(splits) == 20
    assert ((splits - splits.mean()) ** 2 / splits.mean()).sum() < 55  # of 19
    distance = (plan.b[:, 0] // 30 - plan.a[:, 0] // 30)[plan.random_next] % COUNT
    assert distance.min() > 0
    tenths = np.bincount((distance - 1) * 10 // (COUNT - 1), minlength=10)
    assert ((tenths - tenths.mean()) ** 2 / tenths.mean()).sum() < 38  # of 9
    starts = np.bincount(plan.b[plan.random_next, 0] % 30, minlength=30)
    assert ((starts - starts.mean()) ** 2 / starts.mean()).sum() < 68  # of 29


def test_the_order_mixes_the_corpus(many: tuple[TokenStore, Plan]) -> None:
    _, plan = many
    place = np.corrcoef(plan.order, np.arange(len(plan)))[0, 1]
    assert abs(place) < 4 / np.sqrt(len(plan))


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
