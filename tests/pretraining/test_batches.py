"""batch(step): the same content whoever makes it, when, and in how many parts."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise

import numpy as np
import pytest
import torch

from bothways.batch import IGNORE
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.model.batch import PretrainingBatch
from bothways.objectives.masked import LeftToRight
from bothways.pretraining.batches import PhaseBatches, prefetch, truncation
from bothways.pretraining.options import MaskOptions, PairOptions
from bothways.training.options import MaskKind, PairKind
from pretraining_examples import (
    TOKENIZER,
    memory_store,
    pair_batches,
    random_documents,
    whole_tokens,
)

Instance = tuple[tuple[int, ...], int]  # tokens before masking, label


@pytest.fixture(scope="module")
def store() -> TokenStore:
    """30 documents, some sentences longer than a sequence."""
    documents = random_documents(np.random.default_rng(1), 30)
    return memory_store([*documents, [60, 3, 90], [200, 5, 1]])


def instances(parts: list[PretrainingBatch]) -> list[Instance]:
    found: list[Instance] = []
    for part in parts:
        tokens, bounds = whole_tokens(part), part.inputs.bounds
        assert part.random_next is not None
        for i, label in enumerate(part.random_next.tolist()):
            found.append((tuple(tokens[bounds[i] : bounds[i + 1]].tolist()), label))
    return found


def expected_epoch(
    batches: PhaseBatches, store: TokenStore, epoch: int, room: int
) -> list[Instance]:
    """An epoch's instances in order, put together one by one."""
    instances, ends = batches.instances(epoch), store.sentence_bounds
    assert instances.b is not None
    assert instances.label is not None
    made: list[Instance] = []
    for row in batches.order(epoch).tolist():
        a, b = ends[instances.a[row]], ends[instances.b[row]]
        cut = truncation(
            a[1:] - a[:1],
            b[1:] - b[:1],
            room,
            seed=batches._seed,
            epoch=epoch,
            index=np.array([row]),
        )
        texts = [
            store.tokens_between(int(a[0] + cut[0][0]), int(a[1] - cut[1][0])).tolist(),
            store.tokens_between(int(b[0] + cut[2][0]), int(b[1] - cut[3][0])).tolist(),
        ]
        cls, sep = TOKENIZER.cls_id, TOKENIZER.sep_id
        tokens = (cls, *texts[0], sep, *texts[1], sep)
        made.append((tokens, int(instances.label[row])))
    return made


def equal(one: list[PretrainingBatch], other: list[PretrainingBatch]) -> bool:
    def tensors(parts: list[PretrainingBatch]) -> list[torch.Tensor]:
        return [
            tensor
            for p in parts
            for tensor in (
                p.inputs.tokens,
                p.inputs.segments,
                p.inputs.positions,
                torch.from_numpy(p.inputs.bounds),
                p.masked.positions,
                p.masked.ids,
                p.random_next if p.random_next is not None else torch.zeros(0),
            )
        ]

    return all(map(torch.equal, tensors(one), tensors(other))) and len(one) == len(other)


def test_epochs_end_to_end(store: TokenStore) -> None:
    batches = pair_batches(store, batch=7, micro_batch=7)
    expected = list(chain.from_iterable(expected_epoch(batches, store, e, 21) for e in range(4)))
    steps = len(expected) // 7
    assert 7 * steps > sum(map(len, (batches.instances(e) for e in range(3)))), (
        "three changes of epoch"
    )
    made = list(chain.from_iterable(instances(batches.micro_batches(s)) for s in range(steps)))
    assert made == expected[: 7 * steps]
    labels = [label for _, label in made]
    assert 0.3 < np.mean(labels) < 0.9, "both classes are there"


def test_a_batch_larger_than_an_epoch() -> None:
    store = memory_store([[3, 4], [5, 6], [7, 8]])
    batches = pair_batches(store, batch=40, micro_batch=8)
    expected = chain.from_iterable(expected_epoch(batches, store, e, 21) for e in range(30))
    made = [*instances(batches.micro_batches(0)), *instances(batches.micro_batches(1))]
    assert made == [instance for instance, _ in zip(expected, range(80), strict=False)]


def test_layout(store: TokenStore) -> None:
    for part in chain.from_iterable(map(pair_batches(store).micro_batches, range(40))):
        inputs, masked = part.inputs, part.masked
        tokens = whole_tokens(part)
        assert inputs.longest <= 24
        assert inputs.tokens.shape == inputs.segments.shape == inputs.positions.shape
        for start, stop in zip(inputs.bounds, inputs.bounds[1:], strict=False):
            sequence = tokens[start:stop]
            seps = np.flatnonzero(sequence == TOKENIZER.sep_id)
            assert sequence[0] == TOKENIZER.cls_id
            assert len(seps) == 2
            assert seps[1] == len(sequence) - 1
            assert 1 < seps[0] < seps[1] - 1, "neither text is empty"
            segments = [0] * (seps[0] + 1) + [1] * (len(sequence) - seps[0] - 1)
            assert inputs.segments[start:stop].tolist() == segments
            assert inputs.positions[start:stop].tolist() == list(range(len(sequence)))
            targets = (
                (masked.positions[: masked.count] >= start)
                & (masked.positions[: masked.count] < stop)
            ).sum()
            assert targets == max(1, round(0.15 * len(sequence)))
        assert (masked.ids[: masked.count] != IGNORE).all()
        assert (masked.ids[masked.count :] == IGNORE).all()
        assert len(masked.positions) % 32 == 0
        assert len(inputs.tokens) % 64 == 0


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 6])
def test_any_cut_gives_the_same_content(store: TokenStore, micro_batch: int) -> None:
    whole, cut = pair_batches(store, micro_batch=6), pair_batches(store, micro_batch=micro_batch)
    for step in range(25):
        (one,), parts = whole.micro_batches(step), cut.micro_batches(step)
        assert len(parts) == 6 // micro_batch
        total = int(one.inputs.bounds[-1])
        for name in ("tokens", "segments", "positions"):
            pieces = [getattr(p.inputs, name)[: p.inputs.bounds[-1]] for p in parts]
            assert torch.equal(torch.cat(pieces), getattr(one.inputs, name)[:total])
        offsets = np.cumsum([0, *(p.inputs.bounds[-1] for p in parts)])
        at = [
            p.masked.positions[: p.masked.count] + int(o)
            for p, o in zip(parts, offsets, strict=False)
        ]
        ids = [p.masked.ids[: p.masked.count] for p in parts]
        assert torch.equal(torch.cat(at), one.masked.positions[: one.masked.count])
        assert torch.equal(torch.cat(ids), one.masked.ids[: one.masked.count])
        labels = [p.random_next for p in parts if p.random_next is not None]
        assert one.random_next is not None
        assert torch.equal(torch.cat(labels), one.random_next)


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_prefetching_changes_nothing(store: TokenStore, ahead: int) -> None:
    expected = [pair_batches(store).micro_batches(s) for s in range(5, 45)]
    made = list(prefetch(pair_batches(store), range(5, 45), ahead=ahead))
    assert len(made) == 40
    assert all(map(equal, made, expected))


def test_a_share_is_those_parts_alone(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = pair_batches(store, batch=7, micro_batch=2)
    whole = batches.micro_batches(5)
    made: list[int] = []
    make = batches._make_batch
    monkeypatch.setattr(batches, "_make_batch", lambda *rows: (made.append(1), make(*rows))[1])
    for first in range(3):
        share = batches.micro_batches(5, slice(first, None, 3))
        assert equal(share, whole[first::3])
    assert len(made) == len(whole) == 4


def test_an_error_in_the_thread_comes_out(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = pair_batches(store)

    def fail(step: int, share: slice) -> list[PretrainingBatch]:  # noqa: ARG001
        raise StoreError(f"step {step}")

    monkeypatch.setattr(batches, "micro_batches", fail)
    with pytest.raises(StoreError, match="step 3"):
        list(prefetch(batches, range(3, 9)))


def test_threads_and_order_change_nothing() -> None:
    # Epochs of few instances, so that plans come and go under the threads' hands.
    store = memory_store([[3, 4, 5], [5, 6], [7, 8, 2, 2]])
    expected = [pair_batches(store).micro_batches(s) for s in range(60)]
    shared = pair_batches(store)
    steps = np.random.default_rng(0).permutation(60).tolist()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(shared.micro_batches, steps))
    finally:
        sys.setswitchinterval(interval)
    assert all(equal(parts, expected[step]) for step, parts in zip(steps, made, strict=True))
    assert shared.epoch_sizes == pair_sizes(store, len(shared.epoch_sizes))


def pair_sizes(store: TokenStore, epochs: int) -> list[int]:
    batches = pair_batches(store)
    return [len(batches.instances(epoch)) for epoch in range(epochs)]


def test_seed_and_phase_draw_their_own(store: TokenStore) -> None:
    first = pair_batches(store).micro_batches(0)
    assert equal(first, pair_batches(store).micro_batches(0))
    assert not equal(first, pair_batches(store, seed=2).micro_batches(0))
    assert not equal(first, pair_batches(store, number=1).micro_batches(0))


def test_epoch_seed_and_phase_draw_masks_of_their_own(store: TokenStore) -> None:
    """On sequences that are the same in every epoch, so that masks alone can differ."""

    def masked(epoch: int, **changes: int) -> tuple[list[int], list[int]]:
        source = pair_batches(store, pairs=PairOptions(kind="full"), **changes)
        batch = source._make_batch(np.full(6, epoch), np.arange(6))
        return whole_tokens(batch).tolist(), batch.masked.positions.tolist()

    tokens, first = masked(0)
    assert masked(0) == (tokens, first)
    for other in (masked(1), masked(2), masked(0, seed=2), masked(0, number=1)):
        assert other[0] == tokens
        assert other[1] != first


def test_one_document_is_refused_at_once() -> None:
    with pytest.raises(StoreError, match=r"1 document\(s\) in the train part"):
        pair_batches(memory_store([[4, 5, 6]]))


# ------------------------------------------------------------------------- other kinds of batches


def test_static_masks_come_again(store: TokenStore) -> None:
    """Pairs and masks of epoch e are those of e mod 2; each epoch has its own order."""
    static = pair_batches(store, batch=1, micro_batch=1, masking=MaskOptions(duplicates=2))
    dynamic = pair_batches(store, batch=1, micro_batch=1)
    sizes = [len(static.instances(epoch)) for epoch in range(4)]
    assert sizes[:2] == sizes[2:] == [len(dynamic.instances(epoch)) for epoch in (0, 1)]
    starts = np.cumsum([0, *sizes])

    def epoch(batches: PhaseBatches, number: int) -> list[bytes]:
        parts = [batches.micro_batches(s)[0] for s in range(starts[number], starts[number + 1])]
        return [
            p.inputs.tokens.numpy().tobytes() + p.masked.positions.numpy().tobytes() for p in parts
        ]

    first, second, third, fourth = (epoch(static, number) for number in range(4))
    assert first == epoch(dynamic, 0)
    assert second == epoch(dynamic, 1)
    assert sorted(third) == sorted(first) != sorted(second)
    assert sorted(fourth) == sorted(second)
    assert third != first, "in another order"
    assert len(static.epoch_sizes) == 2


@pytest.mark.parametrize("duplicates", [1, 2])
def test_static_masks_over_the_change_of_epoch(store: TokenStore, duplicates: int) -> None:
    masking = MaskOptions(duplicates=duplicates)
    one_by_one = pair_batches(store, batch=1, micro_batch=1, masking=masking)
    together = pair_batches(store, batch=64, micro_batch=64, masking=masking)
    count = 64 * 8
    assert count > 3 * len(together.instances(0))
    made = chain.from_iterable(instances(together.micro_batches(s)) for s in range(8))
    single = chain.from_iterable(instances(one_by_one.micro_batches(s)) for s in range(count))
    assert list(made) == list(single)


@pytest.mark.parametrize("kind", ["order", "full", "single"])
@pytest.mark.parametrize("masks", ["pieces", "words"])
def test_invariants_of_other_kinds(store: TokenStore, kind: PairKind, masks: MaskKind) -> None:
    batches = pair_batches(
        store, pairs=PairOptions(kind=kind), masking=MaskOptions(kind=masks), length=32
    )
    for part in chain.from_iterable(map(batches.micro_batches, range(30))):
        tokens, bounds, count = whole_tokens(part), part.inputs.bounds, part.masked.count
        assert (part.random_next is not None) == (kind == "order")
        segments = part.inputs.segments[: len(tokens)].numpy()
        for start, stop in pairwise(bounds):
            assert 3 <= stop - start <= 32
            assert tokens[start] == TOKENIZER.cls_id
            assert tokens[stop - 1] == TOKENIZER.sep_id
            inner = (tokens[start:stop] == TOKENIZER.sep_id).sum() - 1
            assert inner == 1 if kind == "order" else kind == "full" or inner == 0
            assert segments[start:stop].max() == (kind == "order")
            places = part.masked.positions[:count]
            targets = int(((places >= start) & (places < stop)).sum())
            assert 1 <= targets <= max(1, round(0.15 * (stop - start)))
        assert not np.isin(part.masked.ids[:count].numpy(), TOKENIZER.special_ids).any()


def test_left_to_right(store: TokenStore) -> None:
    batches = pair_batches(store, pairs=PairOptions(kind="single"), objective=LeftToRight())
    for part in chain.from_iterable(map(batches.micro_batches, range(10))):
        tokens, bounds = part.inputs.tokens.numpy(), part.inputs.bounds
        at, ids = (x[: part.masked.count].numpy() for x in (part.masked.positions, part.masked.ids))
        assert part.masked.count == bounds[-1] - part.inputs.sequences
        assert not np.isin(at, bounds[1:] - 1).any(), "the last token has no next"
        assert (ids == tokens[at + 1]).all()
        assert (tokens != TOKENIZER.mask_id).all(), "nothing is hidden"


def test_documents_of_one_sentence() -> None:
    store = memory_store([[n] for n in range(1, 30)])
    batches = pair_batches(store, pairs=PairOptions(kind="single"), batch=29, micro_batch=29)
    (part,) = batches.micro_batches(0)
    assert sorted(part.inputs.lengths.tolist()) == sorted(min(n + 2, 24) for n in range(1, 30))
    with pytest.raises(StoreError, match="none of two sentences"):
        pair_batches(store, pairs=PairOptions(kind="order"))
