"""Examples into flat batches: each once an epoch, in an order that depends on the key alone."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import LengthError
from bothways.families.heads import CLASSIFIER
from bothways.finetuning.setup import measured_outputs
from bothways.model.batch import Inputs, TaskInputs
from bothways.model.engine import TorchEngine
from bothways.objectives.labelled import LabelledExamples
from bothways.tasks.examples import (
    PADDED,
    Examples,
    cut_by_tokens,
    encode_examples,
    length_batches,
    step_batches,
)
from bothways.training.trainer import step_loss
from model_examples import small_bert, small_config, small_tokenizer

pytestmark = pytest.mark.usefixtures("several_tiles")

VOCABULARY = 97
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80).map(np.array)


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [
        " ".join(f"w{i}" for i in rng.integers(0, 90, rng.integers(1, 30))) for _ in range(count)
    ]


def examples(count: int = 17) -> Examples:
    found = encode_examples(small_tokenizer(VOCABULARY), texts(count), None, length=24)
    return found.with_targets(np.arange(count) % 3)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 5), st.integers(0, 3))
def test_every_example_once_an_epoch(count: int, batch: int, seed: int, epoch: int) -> None:
    batches = step_batches(count, batch, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert {len(b) for b in batches[:-1]} <= {batch}
    assert 1 <= len(batches[-1]) <= batch


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int, batch: int = 8) -> list[int]:
        return np.concatenate(step_batches(100, batch, seed=seed, epoch=epoch)).tolist()

    before = order(1, 0)
    order(7, 3)
    torch.manual_seed(5)
    np.random.seed(5)
    assert order(1, 0) == before == order(1, 0, batch=30)
    assert len({tuple(order(s, e)) for s in range(3) for e in range(3)}) == 9


def test_steps_are_not_chosen_by_length() -> None:
    lengths = np.sort(examples(400).lengths)
    means = [lengths[b].mean() for b in step_batches(400, 32, seed=0, epoch=0)]
    # Batches of one length each would spread as far as the lengths themselves.
    assert np.std(means[:-1]) < lengths.std() / 3


@given(LENGTHS, st.integers(1, 200))
def test_cutting_by_tokens_keeps_order_and_limit(lengths: np.ndarray, limit: int) -> None:
    order = np.random.default_rng(0).permutation(len(lengths))
    parts = cut_by_tokens(order, lengths, limit)
    assert np.concatenate(parts).tolist() == order.tolist()
    assert all(len(p) == 1 or lengths[p].sum() <= limit for p in parts)
    # No part could have taken in the next example.
    assert all(lengths[p].sum() + lengths[q[0]] > limit for p, q in pairwise(parts))


@given(LENGTHS, st.integers(1, 200))
def test_batches_for_prediction_cover_all_by_length(lengths: np.ndarray, limit: int) -> None:
    order = np.concatenate(length_batches(lengths, limit))
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert (np.diff(lengths[order]) <= 0).all()


@given(LENGTHS, st.integers(1, 200))
def test_padded_batches_hold_little_padding(lengths: np.ndarray, limit: int) -> None:
    parts = length_batches(lengths, limit, padded=True)
    order = np.concatenate(parts)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert (np.diff(lengths[order]) <= 0).all()
    for part in parts:
        tokens, rows = lengths[part].sum(), len(part) * lengths[part].max()
        assert len(part) == 1 or tokens <= limit
        # Only a batch that is small without its last item may hold more padding.
        small = 2 * (tokens - lengths[part[-1]]) < limit
        assert len(part) == 1 or small or rows <= PADDED * tokens


def test_a_batch_holds_the_encodings_and_nothing_between_them() -> None:
    tokenizer, found = small_tokenizer(VOCABULARY), examples()
    indices = np.array([5, 0, 16, 3])
    batch = found.batch(indices, max_positions=40)
    rows = tokenizer.encode_batch([texts(17)[i] for i in indices], max_length=24)
    assert batch.inputs.bounds.tolist() == np.cumsum([0, *(len(r.ids) for r in rows)]).tolist()
    total = batch.inputs.bounds[-1]
    assert batch.inputs.tokens[:total].tolist() == [t for r in rows for t in r.ids]
    assert batch.inputs.positions[:total].tolist() == [i for r in rows for i in range(len(r.ids))]
    assert batch.targets.tolist() == (indices % 3).tolist()


def test_pairs_keep_their_segments_and_cuts_are_counted() -> None:
    tokenizer = small_tokenizer(VOCABULARY)
    a, b = ["w1 w2 w3 w4 w5 w6", "w1", "w1"], ["w7", "w8 w9", "w1 w2 w3 w4"]
    found = encode_examples(tokenizer, a, b, length=7)
    assert found.cut == 2
    assert found.lengths.tolist() == [7, 6, 7]
    first = found.segments[: found.bounds[1]].tolist()
    assert first == [0, 0, 0, 0, 0, 1, 1]  # [CLS] 3 words [SEP], 1 word [SEP]: the longer was cut


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = examples()
    monkeypatch.setattr("bothways.tasks.examples.CHUNK", 4)
    parts = examples()
    assert (whole.tokens == parts.tokens).all()
    assert (whole.bounds == parts.bounds).all()
    assert whole.cut == parts.cut > 0


def test_a_length_without_room_is_refused() -> None:
    tokenizer = small_tokenizer(VOCABULARY)
    with pytest.raises(LengthError, match="at least 3"):
        encode_examples(tokenizer, ["w1"], None, length=2)
    with pytest.raises(LengthError, match="at least 5"):
        encode_examples(tokenizer, ["w1"], ["w1"], length=4)


def test_neighbours_do_not_matter() -> None:
    model, found = small_bert(classes=3), examples()
    together = measured_outputs(TorchEngine(model), found)
    with torch.no_grad():
        for i in range(len(found)):
            alone = Inputs.of(found.inputs(np.array([i]), max_positions=40))
            logits = model.logits(CLASSIFIER, model.encoder(alone)[alone.starts])
            np.testing.assert_allclose(together[i], logits[0].numpy(), atol=2e-6)


def windows() -> Examples:
    """Items of 2, 1 and 3 sequences; the second and every fourth token of each are read."""
    lengths = np.array([5, 9, 4, 6, 12, 7])
    bounds = np.cumsum([0, *lengths])
    places = np.concatenate([bounds[q] + np.arange(1, lengths[q], 3) for q in range(6)])
    return Examples(
        tokens=np.arange(bounds[-1], dtype=np.int32),
        segments=np.zeros(bounds[-1], np.int8),
        bounds=bounds,
        items=np.array([0, 2, 3, 6]),
        read_positions=places,
        owners=np.array([0, 1, 1]),
        targets=places * 10,
    )


def windows_at_first_tokens() -> Examples:
    """The same, read at the first token of each sequence, as a classifier does."""
    return dataclasses.replace(windows(), read_positions=windows().bounds[:-1], targets=None)


@pytest.mark.parametrize("order", [[0], [2, 0], [1, 2, 0], [0, 1, 2]])
def test_items_keep_their_sequences_and_the_tokens_that_are_read(order: list[int]) -> None:
    found = windows()
    indices = np.array(order)
    batch = found.batch(indices, max_positions=40)
    sequences = [q for n in order for q in range(found.items[n], found.items[n + 1])]
    assert batch.inputs.lengths.tolist() == np.diff(found.bounds)[sequences].tolist()
    # A token's id is its place among all, so what is read can be told from the ids.
    read = batch.inputs.tokens[batch.read_positions].tolist()
    expected = [
        p
        for q in sequences
        for p in found.read_positions
        if found.bounds[q] <= p < found.bounds[q + 1]
    ]
    assert read == expected
    assert batch.targets.tolist() == [10 * p for p in expected]
    counts = [int(found.output_bounds[n + 1] - found.output_bounds[n]) for n in order]
    assert batch.bounds.tolist() == np.cumsum([0, *counts]).tolist()
    assert found.count_targets(indices) == sum(counts)
    assert found.lengths.tolist() == [14, 4, 25]


def test_targets_of_items_follow_them() -> None:
    found = windows().with_targets(np.array([[0, 1], [1, 1], [2, 0]]))
    indices = np.array([2, 0])
    assert found.batch(indices, max_positions=40).targets.tolist() == [[2, 0], [0, 1]]
    assert found.count_targets(indices) == 2


@pytest.mark.parametrize("heads", [{"tags": 3}, {"spans": True}, {"classes": 1}])
def test_outputs_come_back_in_the_order_of_the_rows(
    heads: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_bert(**heads)
    found = windows_at_first_tokens() if "classes" in heads else windows()
    monkeypatch.setattr("bothways.runtime.engine.PREDICT_TOKENS", 20)
    assert len(list(length_batches(found.lengths, 20))) > 1
    together = measured_outputs(TorchEngine(model), found)
    assert together.shape == (len(found.read_positions), model.task_outputs)
    with torch.no_grad():
        for n in range(len(found)):
            batch = TaskInputs.of(found.batch(np.array([n]), max_positions=40))
            alone = model.task_logits(model.encoder(batch.inputs)[batch.read_positions])
            rows = together[found.output_bounds[n] : found.output_bounds[n + 1]]
            np.testing.assert_allclose(rows, alone.numpy(), atol=2e-6)


def test_every_token_may_be_read() -> None:
    found = windows()
    whole = dataclasses.replace(found, read_positions=np.arange(len(found.tokens)), targets=None)
    model = small_bert(spans=True)
    outputs = measured_outputs(TorchEngine(model), whole)
    some = measured_outputs(TorchEngine(model), found)
    np.testing.assert_allclose(outputs[found.read_positions], some, atol=2e-6)


def test_the_gradient_of_a_step_is_the_same_however_it_is_cut_for_every_loss() -> None:
    cases = {
        "class": ({"tags": 3}, windows(), windows().read_positions % 3),
        "score": ({"classes": 1}, windows_at_first_tokens(), np.arange(6, dtype=np.float32) / 7),
        "place": ({"spans": True}, windows(), np.array([[0, 1], [1, 1], [2, 0]])),
    }
    for kind, (heads, items, targets) in cases.items():
        found = items.with_targets(targets)
        everything = np.arange(3)
        gradients = []
        for parts in ([everything], [everything[:1], everything[1:]]):
            model = small_bert(small_config(dropout=0.0), **heads)
            batches = [TaskInputs.of(found.batch(part, max_positions=40)) for part in parts]
            objective = LabelledExamples(kind)
            counts = [sum(objective.counts(batch).values()) for batch in batches]
            assert sum(counts) == found.count_targets(everything)
            loss = step_loss(batches, objective)
            for batch in batches:
                loss(model, batch, torch.float32)[0].backward()
            gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        for one, two in zip(*gradients, strict=True):
            torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4)
