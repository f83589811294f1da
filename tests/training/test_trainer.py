"""One step: gradients add up, are clipped, and update at the step's rate."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from bothways.errors import RunError
from bothways.model.batch import PretrainingBatch
from bothways.model.model import EncoderModel
from bothways.training.optimizer import learning_rate
from bothways.training.options import OptimizerOptions
from bothways.training.trainer import Trainer
from pretraining_examples import (
    bert_loss,
    memory_store,
    pair_batches,
    random_documents,
    small_model,
)

pytestmark = pytest.mark.usefixtures("several_tiles")

BATCHES = pair_batches(
    memory_store(random_documents(np.random.default_rng(4), 30)), batch=8, micro_batch=4
)


def trainer(
    model: EncoderModel, dtype: torch.dtype = torch.float32, seed: int = 3, **options: float
) -> Trainer[PretrainingBatch]:
    return Trainer(
        model,
        OptimizerOptions(lr=1e-2, **options),  # type: ignore[arg-type]
        total_steps=20,
        seed=seed,
        dtype=dtype,
    )


def step(one: Trainer[PretrainingBatch], number: int) -> dict[str, float]:
    parts = BATCHES.micro_batches(number)
    return one.step(number, parts, bert_loss(parts))


def same(a: EncoderModel, b: EncoderModel) -> bool:
    return all(map(torch.equal, a.parameters(), b.parameters()))


def gradients(model: EncoderModel, number: int) -> list[torch.Tensor]:
    parts = BATCHES.micro_batches(number)
    for part in parts:
        bert_loss(parts)(model, part, torch.float32)[0].backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_layers_stay_as_they_are(dtype: torch.dtype) -> None:
    """And do not count in the norm; with a rate for each layer as well."""
    model = small_model()
    one = trainer(model, dtype, unfreeze=0.5, layer_decay=0.5)
    parts = BATCHES.micro_batches(0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    stats = one.step(0, parts, bert_loss(parts))
    changed = {n for n, p in model.named_parameters() if not torch.equal(before[n], p)}
    assert changed
    assert not any(name.startswith(("encoder.embeddings", "encoder.layers")) for name in changed)
    for number in range(1, 11):
        later = step(one, number)
    assert stats["lr"] > later["lr"]
    after = {n for n, p in model.named_parameters() if not torch.equal(before[n], p)}
    assert any(name.startswith("encoder.embeddings") for name in after)


@pytest.mark.parametrize("clip", [1e-2, 1e6])
def test_a_step_is_clip_rate_and_update(clip: float) -> None:
    model = small_model()
    reference = copy.deepcopy(model)
    stats = step(trainer(model, clip=clip), 2)
    grads = gradients(reference, 2)
    norm = float(torch.stack([g.norm() for g in grads]).norm())
    assert stats["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert 1e-2 < norm < 1e6, "one clip binds, the other does not"
    options = OptimizerOptions(lr=1e-2)
    assert stats["lr"] == learning_rate(2, 20, options)
    scale = min(1.0, clip / norm)
    for parameter, before, gradient in zip(
        model.parameters(), reference.parameters(), grads, strict=True
    ):
        g = gradient * scale
        update = 0.1 * g / ((0.001 * g**2).sqrt() + 1e-6)
        if parameter.ndim > 1:
            update = update + 0.01 * before
        expected = before - stats["lr"] * update
        assert torch.allclose(parameter, expected, rtol=1e-4, atol=2e-6)


def test_frozen_rows_stay_to_the_bit_and_do_not_count_in_the_norm() -> None:
    model = small_model()
    before = copy.deepcopy(model)
    names = ["masked_lm.dense.weight", "masked_lm.dense.bias"]  # half of the norm
    rows = torch.arange(16) % 3 == 1
    options = OptimizerOptions(lr=1e-2, clip=1e6)
    one: Trainer[PretrainingBatch] = Trainer(
        model,
        options,
        total_steps=20,
        seed=3,
        dtype=torch.float32,
        frozen_rows=dict.fromkeys(names, rows),
    )
    stats = step(one, 2)
    for name in names:
        new, old = model.get_parameter(name), before.get_parameter(name)
        assert torch.equal(new[rows], old[rows])
        assert not torch.isclose(new[~rows], old[~rows], rtol=1e-6, atol=0).any()
    grads = dict(zip(dict(before.named_parameters()), gradients(before, 2), strict=True))
    for name in names:
        grads[name][rows] = 0
    norm = float(torch.stack([g.norm() for g in grads.values()]).norm())
    assert stats["grad_norm"] == pytest.approx(norm, rel=1e-5)


def test_parts_and_steps_draw_their_own_dropout() -> None:
    def after(number: int, *, also_before: bool = False) -> EncoderModel:
        model = small_model(dropout=0.3)
        if also_before:
            with torch.no_grad():
                model.train().shared.dropout(torch.ones(1000), 0.3)  # draws that must not count
            torch.rand(5)
        parts = BATCHES.micro_batches(0)
        trainer(model).step(number, parts, bert_loss(parts))
        return model

    assert same(after(12), after(12, also_before=True))
    keys: list[int] = []
    model = small_model(dropout=0.3)
    reseed = model.shared.dropout.reseed
    model.shared.dropout.reseed = lambda seed: (keys.append(seed), reseed(seed))[1]  # type: ignore[method-assign]
    one = trainer(model)
    step(one, 0)
    step(one, 1)
    assert len(set(keys)) == len(keys) == 4


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    model = small_model()
    one = trainer(model)
    step(one, 0)
    before = copy.deepcopy(model)
    moments = copy.deepcopy(list(one.optimizer.state.values()))
    parts = BATCHES.micro_batches(1)

    def broken(model, part, dtype):  # type: ignore[no-untyped-def]
        value, stats = bert_loss(parts)(model, part, dtype)
        return value * float("inf"), stats

    with pytest.raises(RunError, match=r"step 2: the gradient is nan.*lr"):
        one.step(1, parts, broken)
    assert same(model, before)
    # ... and the step can be done again as if nothing had happened.
    other = trainer(before)
    for own, kept in zip(other.optimizer.state.values(), moments, strict=True):
        own.update(kept)
    step(one, 1)
    step(other, 1)
    assert same(model, before)


def test_bf16_keeps_fp32_parameters() -> None:
    model = small_model()
    stats = step(trainer(model, torch.bfloat16), 1)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    exact = step(trainer(small_model()), 1)
    assert stats["mlm_loss"] == pytest.approx(exact["mlm_loss"], rel=0.02)
    assert stats["mlm_loss"] != exact["mlm_loss"]


def test_rows_beyond_the_vocabulary_stay_zero() -> None:
    # They are not saved, so training must never touch them.
    for dtype in (torch.float32, torch.bfloat16):
        model = small_model(dropout=0.1)
        one = trainer(model, dtype)
        for number in range(5):
            step(one, number)
        assert len(model.embedding_VH) == 64
        assert not model.embedding_VH[38:].any()
        moments = one.optimizer.state[model.encoder.embeddings.tokens.weight]
        assert not moments["exp_avg"][38:].any()
        assert moments["exp_avg"][:38].any()


# ---------------------------------------------------------------------------------- rounded weights


def one_micro_batch(number: int) -> list[PretrainingBatch]:
    return BATCHES.micro_batches(number)[:1]


def train_one(one: Trainer[PretrainingBatch], number: int) -> dict[str, float]:
    parts = one_micro_batch(number)
    return one.step(number, parts, bert_loss(parts))


def assert_copies_are_the_rounded_weights(model: EncoderModel) -> None:
    """Of every weight that the layers use."""
    rounded = model.shared.rounded
    layer = model.encoder.layers[0]
    used = [layer.expand.weight, layer.attention.qkv.weight, model.embedding_VH]
    for weight in used:
        assert torch.equal(rounded.of(weight, torch.bfloat16), weight.detach().bfloat16())
        assert rounded.kept(weight) is not None


def test_copies_always_equal_the_rounded_weights() -> None:
    """After steps of one micro-batch and of several, frozen rows, a divergence, and weights that
    came from elsewhere."""
    model = small_model()
    rows = torch.arange(48) % 3 == 1
    frozen = {"encoder.layers.0.attention.qkv.weight": rows}
    one: Trainer[PretrainingBatch] = Trainer(
        model,
        OptimizerOptions(lr=1e-2),
        total_steps=20,
        seed=3,
        dtype=torch.bfloat16,
        frozen_rows=frozen,
    )
    for number in range(4):
        (train_one if number % 2 else step)(one, number)
        assert_copies_are_the_rounded_weights(model)
    before = copy.deepcopy(model)
    with torch.no_grad():
        model.encoder.layers[0].expand.weight.fill_(float("inf"))
    with pytest.raises(RunError, match="diverged"):
        train_one(one, 4)
    model.load_state_dict(before.state_dict())
    assert_copies_are_the_rounded_weights(model)
    assert torch.isfinite(model.shared.rounded.of(model.embedding_VH, torch.bfloat16)).all()
    train_one(one, 5)
    assert_copies_are_the_rounded_weights(model)
