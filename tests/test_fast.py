"""The fast forms against their plain ones: same loss, same gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bothways.model.attention import Attention, _Attend, _AttendFrom
from bothways.model.batch import IGNORE, SelectedPositions
from bothways.model.bert import Bert
from bothways.model.losses import class_loss, fused_cross_entropy, masked_lm_loss
from bothways.model.shared import Shared
from bothways.model.tiles import make_tiles
from model_examples import BOTH_HEADS, SHAPES, random_inputs, randomise, small_bert, small_config

pytestmark = pytest.mark.usefixtures("several_tiles")

RAGGED = [3, 40, 1, 36, 20, 37, 2, 40]


def _loss(model: Bert, places: Tensor, ids: Tensor, dtype: torch.dtype) -> Tensor:
    inputs = random_inputs(model.config.vocab_size, RAGGED, limit=64)
    selected = SelectedPositions.of(inputs, places, inputs.starts)
    x_MH, x_BH = model.encoder.hidden_at(inputs, selected, dtype=dtype)
    masked, _ = model.masked_lm_loss(x_MH, ids)
    labels = torch.arange(inputs.sequences) % 2
    return masked + class_loss(model.next_sentence_logits(x_BH), labels)[0]


def _both(
    model: Bert, places: Tensor, ids: Tensor, dtype: torch.dtype
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Loss and gradients, plain and fast."""
    found = []
    for fast in (False, True):
        model.shared.fast = fast
        model.shared.dropout.reseed(3)
        model.zero_grad()
        loss = _loss(model, places, ids, dtype)
        loss.backward()
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found.append((loss.detach(), grads))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradients_are_those_of_the_plain_form(shape: tuple[int, ...]) -> None:
    model = small_bert(small_config(shape, dropout=0.0), **BOTH_HEADS).double()
    randomise(model)
    places = torch.tensor([1, 2, 40, 41, 44, 60, 99, 140, 0, 0])  # none in some sequences
    ids = torch.tensor([9, 7, 0, 5, 6, 8, 9, 3, IGNORE, IGNORE])
    (plain, plain_grads), (fast, fast_grads) = _both(model, places, ids, torch.float64)
    torch.testing.assert_close(fast, plain, rtol=1e-6, atol=0, check_dtype=False)
    assert fast_grads.keys() == plain_grads.keys()
    for name, gradient in plain_grads.items():
        # The plain loss is summed in fp32.
        scale = float(gradient.abs().max())
        torch.testing.assert_close(
            fast_grads[name], gradient, rtol=1e-4, atol=1e-6 * max(scale, 1e-3)
        )


def test_fast_rounding_in_bf16_is_no_worse_than_plain() -> None:
    model = small_bert(small_config((2, 64, 2, 128, 97), dropout=0.0), **BOTH_HEADS)
    places = torch.arange(1, 120, 3)
    ids = torch.arange(len(places)) % 97
    exact = _both(model.double(), places, ids, torch.float64)[0][1]
    (_, plain), (_, fast) = _both(model.float(), places, ids, torch.bfloat16)

    def error(found: dict[str, Tensor]) -> float:
        total = sum(float((found[n].double() - g).square().sum()) for n, g in exact.items())
        return math.sqrt(total)

    assert error(fast) < 1.5 * error(plain)


def test_with_dropout_the_same_elements_are_dropped() -> None:
    """In the layers that both forms compute whole, that is: all but the last."""
    config = small_config((2, 16, 2, 64, 97), dropout=0.3)
    model = small_bert(config, **BOTH_HEADS).double().train()
    randomise(model)
    inputs = random_inputs(97, RAGGED, limit=64)
    total = int(inputs.bounds[-1])
    outs = []
    for fast in (False, True):
        model.shared.fast = fast
        model.shared.dropout.reseed(3)
        outs.append(model.encoder(inputs, dtype=torch.float64)[:total])
    torch.testing.assert_close(*outs)
    upstream = torch.randn_like(outs[0])
    parameters = [p for n, p in model.encoder.named_parameters() if "pooler" not in n]
    plain, fast_ = (torch.autograd.grad((out * upstream).sum(), parameters) for out in outs)
    torch.testing.assert_close(plain, fast_)


def test_dropout_at_selected_positions_keeps_the_mean() -> None:
    """Attention is linear in its dropped probabilities, so the mean over draws is exact."""
    p, draws = 0.3, 2000
    inputs = random_inputs(97, [3, 20, 18], limit=64)
    tiles = make_tiles(inputs, torch.float64)
    selected = SelectedPositions.of(inputs, torch.tensor([0, 3, 9, 23]))
    queries = tiles.select(inputs, selected)
    shared = Shared()
    attention = Attention(small_config((1, 16, 2, 64, 97), dropout=p), shared).double()
    randomise(attention)
    x_TH = torch.randn(len(inputs.tokens), 16, dtype=torch.float64)
    x_NH = x_TH[selected.positions]
    with torch.no_grad():
        drawn = torch.stack([attention.forward_at(x_NH, x_TH, queries)[:4] for _ in range(draws)])
        shared.eval()
        expected = attention.forward_at(x_NH, x_TH, queries)[:4]
    error = drawn.std(0) / math.sqrt(draws)
    assert ((drawn.mean(0) - expected).abs() < 5 * error).all()
    assert (drawn.std(0) > 0).all()


def test_selected_positions_come_in_the_requested_order() -> None:
    model = small_bert().double()
    inputs = random_inputs(97, RAGGED, limit=64)
    whole = model.encoder(inputs, dtype=torch.float64)
    first, second = torch.tensor([150, 3, 3, 77]), torch.tensor([3, 0])
    selected = SelectedPositions.of(inputs, first, second)
    for fast in (True, False):
        model.shared.fast = fast
        rows = model.encoder.hidden_at(inputs, selected, dtype=torch.float64)
        torch.testing.assert_close(rows, [whole[first], whole[second]])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_hand_written_backwards_are_the_derivatives(masked: bool, heads: int) -> None:
    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    b, L, D, Q = 2, 3, 2, 2
    bias = torch.zeros(b, 1, 1, L, dtype=torch.float64)
    bias[1, ..., 2] = -math.inf
    for queries, function, leaves in (
        (L, _Attend.apply, (random(b, L, 3, heads, D),)),
        (Q, _AttendFrom.apply, (random(b, Q, 1, heads, D), random(b, L, 2, heads, D))),
    ):
        mask = (torch.rand(b * heads, queries, L) > 0.3).double() if masked else None

        def own(*x: Tensor, f: Any = function, m: Tensor | None = mask) -> Tensor:
            out: Tensor = f(*x, bias, m, 1 / 0.7)
            return out

        assert torch.autograd.gradcheck(own, leaves)


# ----------------------------------------------------------------------------------- cross-entropy


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(-1, 40), min_size=1, max_size=60),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    st.integers(0, 5),
)
def test_fused_cross_entropy_is_the_plain_one(
    targets: list[int], dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    ids = torch.tensor([IGNORE if t < 0 else t for t in targets])
    x = torch.randn(len(ids), 6)
    weight, bias = torch.randn(64, 6), torch.randn(64)
    bias[41:] = -math.inf
    found = []
    for fused in (False, True):
        leaves = [t.to(dtype).requires_grad_() for t in (x, weight, bias)]
        if fused:
            loss, right = fused_cross_entropy(*leaves, ids)
        else:
            loss, right = masked_lm_loss(F.linear(*leaves), ids)
        (loss / 7).backward()
        found.append((loss.detach(), right, [leaf.grad for leaf in leaves]))
    (loss, right, grads), (fused_loss, fused_right, fused_grads) = found
    assert right == fused_right
    rtol, atol = (0.05, 0.02) if dtype == torch.bfloat16 else (1e-4, 1e-5)
    torch.testing.assert_close(fused_loss.float(), loss.float(), rtol=1e-5, atol=1e-5)
    for own, plain in zip(fused_grads, grads, strict=True):
        torch.testing.assert_close(own, plain, rtol=rtol, atol=atol)


def test_of_equal_logits_the_first_is_the_prediction() -> None:
    x, weight, bias = torch.zeros(3, 2), torch.zeros(5, 2), torch.tensor([0.0, 1, 1, 0, 1])
    for ids, expected in (([1, 1, 1], 3), ([2, 1, 4], 1), ([0, 3, IGNORE], 0)):
        assert fused_cross_entropy(x, weight, bias, torch.tensor(ids))[1] == expected


def test_a_target_without_a_chance_has_its_whole_loss() -> None:
    """Its probability is 0 in fp32, of which there is no logarithm."""
    x, weight, bias = torch.ones(1, 1), torch.tensor([[0.0], [-200.0], [0.0]]), torch.zeros(3)
    loss, _ = fused_cross_entropy(x, weight, bias, torch.tensor([1]))
    torch.testing.assert_close(loss, torch.tensor(200 + math.log(2)))


def test_fused_cross_entropy_works_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ((50, 6), (64, 6), (64,))
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    ids = torch.randint(64, (50,))
    ids[::9] = IGNORE

    def loss_and_gradients() -> list[Tensor]:
        loss, correct = fused_cross_entropy(*leaves, ids)
        return [loss, correct, *torch.autograd.grad(loss, leaves)]

    whole = loss_and_gradients()
    monkeypatch.setattr("bothways.model.losses._CHUNK_BYTES", 4 * 64 * 7)
    torch.testing.assert_close(loss_and_gradients(), whole)
