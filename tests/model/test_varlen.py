"""Attention on flat batches through a GPU's kernels, which a plain form stands for here.

The stand-ins take the arguments of torch's operations, check what those check, and leave rows that
no span owns undefined. ``test_cuda.py`` compares with the kernels themselves.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bothways.batch import IGNORE
from bothways.model import encoder
from bothways.model.batch import Inputs, SelectedPositions, VarlenBounds
from bothways.model.kernels import varlen
from bothways.model.kernels.varlen import VarlenLayout, attend_varlen, why_not_varlen
from bothways.model.losses import class_loss
from bothways.model.model import EncoderModel
from model_examples import BOTH_HEADS, random_inputs, randomise, small_bert, small_config

pytestmark = pytest.mark.usefixtures("several_tiles")

RAGGED = [3, 40, 1, 36, 20, 37, 2, 40]
EVEN = [32, 40, 40, 16]  # no tail
GPU = torch.device("cuda", 0)


def spans_of(ends: Tensor) -> list[slice]:
    return [slice(int(a), int(b)) for a, b in pairwise(ends)]


def check(x: Tensor, ends: Tensor, longest: int) -> None:
    assert ends.dtype == torch.int32
    assert ends.is_contiguous()
    assert ends.ndim == 1
    assert ends[0] == 0
    assert int(ends[-1]) == len(x), "rows that no span owns are undefined"
    assert int(ends.diff().max()) <= longest
    assert int(ends.diff().min()) >= 0
    assert x.stride(-1) == 1
    assert x.ndim == 3


def probabilities(
    q: Tensor, k: Tensor, p: float, causal: bool, key: int, window: int | None
) -> Tensor:
    """[A, Q, L], dropped."""
    scores = torch.einsum("qad,kad->aqk", q, k) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[1:]).tril().bool(), -math.inf)
    if window is not None:
        places = torch.arange(scores.shape[1])
        far = (places - places[:, None]).abs() > window
        scores = scores.masked_fill(far, -math.inf)
    kept = torch.rand(scores.shape, generator=torch.Generator().manual_seed(key)) >= p
    return scores.softmax(-1) * kept / (1 - p)


def plain_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    window_size_left: int | None,
    window_size_right: int | None,
) -> tuple[Tensor, ...]:
    assert not return_debug_mask
    assert window_size_left == window_size_right
    assert cum_seq_q.shape == cum_seq_k.shape
    check(query, cum_seq_q, max_q)
    check(key, cum_seq_k, max_k)
    rng = torch.randint(2**62, (1,)) if dropout_p else torch.empty(0)
    out = torch.full_like(query, math.nan)
    for number, (own, keys) in enumerate(
        zip(spans_of(cum_seq_q), spans_of(cum_seq_k), strict=True)
    ):
        seed = int(rng) + number if dropout_p else 0
        p_AQL = probabilities(query[own], key[keys], dropout_p, is_causal, seed, window_size_left)
        out[own] = torch.einsum("aqk,kad->qad", p_AQL, value[keys])
    return out, torch.empty(0), rng, torch.empty(0), torch.empty(0)


def plain_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    window_size_left: int | None,
    window_size_right: int | None,
) -> tuple[Tensor, ...]:
    assert window_size_left == window_size_right
    assert torch.get_deterministic_debug_mode() == 2, "the sums are made in one order"
    assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    assert logsumexp.shape == unused.shape == (0,)
    assert out.shape == query.shape
    check(query, cum_seq_q, max_q)
    check(key, cum_seq_k, max_k)
    found = [torch.full_like(x, math.nan) for x in (query, key, value)]
    for number, (own, keys) in enumerate(
        zip(spans_of(cum_seq_q), spans_of(cum_seq_k), strict=True)
    ):
        seed = int(rng_state) + number if dropout_p else 0
        parts = [query[own], key[keys], value[keys]]
        with torch.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in parts)
            p_AQL = probabilities(q, k, dropout_p, is_causal, seed, window_size_left)
            result = torch.einsum("aqk,kad->qad", p_AQL, v)
            grads = torch.autograd.grad(result, (q, k, v), grad_out[own])
        for x, rows, grad in zip(found, (own, keys, keys), grads, strict=True):
            x[rows] = grad
    return tuple(found)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The stand-ins in place of torch's operations; counts the calls."""
    calls: list[int] = []

    def forward(*args: Any, **window: Any) -> Any:
        calls.append(len(args))
        return plain_forward(*args, **window)

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", forward)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", plain_backward)
    monkeypatch.setattr(encoder, "why_not_varlen", lambda *_: None)
    return calls


@pytest.mark.parametrize(
    ("name", "stand_in"),
    [
        ("_flash_attention_forward", plain_forward),
        ("_flash_attention_backward", plain_backward),
    ],
)
def test_the_stand_ins_take_what_the_operations_take(name: str, stand_in: Any) -> None:
    schema = getattr(torch.ops.aten, name).default._schema
    given = [a.name for a in schema.arguments if not a.kwarg_only]
    assert given == list(stand_in.__code__.co_varnames[: stand_in.__code__.co_argcount])
    named = {"window_size_left", "window_size_right"}
    assert named <= {a.name for a in schema.arguments if a.kwarg_only}
    assert all(a.has_default_value() for a in schema.arguments if a.kwarg_only)
    if name.endswith("forward"):
        assert len(schema.returns) == 5
        assert [r.name for r in schema.returns][:4] == [
            *("output", "softmax_logsumexp", "rng_state", "unused")
        ]
    else:
        assert len(schema.returns) == 3


def loss_and_gradients(
    model: EncoderModel, inputs: Inputs, places: Tensor
) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    model.shared.dropout.reseed(5)
    selected = SelectedPositions.of(inputs, places, inputs.starts)
    x_MH, x_BH = model.encoder.hidden_at(inputs, selected, dtype=torch.float64)
    ids = torch.arange(len(places)) % 97
    ids[-1] = IGNORE
    masked, _ = model.piece_loss(x_MH, ids)
    labels = torch.arange(inputs.sequences) % 2
    loss = masked + class_loss(model.next_sentence_logits(x_BH), labels)[0]
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("window", [0, 7])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [RAGGED, EVEN])
def test_flat_and_tiled_attention_agree(
    kernels: list[int],
    monkeypatch: pytest.MonkeyPatch,
    lengths: list[int],
    causal: bool,
    window: int,
) -> None:
    config = small_config((2, 16, 2, 64, 97), dropout=0.0, left_to_right=causal)
    config = replace(config, window=window, global_every=2)
    model = small_bert(config, **BOTH_HEADS).double()
    randomise(model)
    inputs = random_inputs(97, lengths, limit=64)
    places = torch.tensor([1, 2, 40, 41, 44, 60, 99, 0, 0])  # none in some sequences
    loss, grads = loss_and_gradients(model, inputs, places)
    assert len(kernels) == 2
    monkeypatch.setattr(encoder, "why_not_varlen", why_not_varlen)
    tiled_loss, tiled_grads = loss_and_gradients(model, inputs, places)
    assert len(kernels) == 2
    torch.testing.assert_close(loss, tiled_loss)
    torch.testing.assert_close(grads, tiled_grads, rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("kernels")
def test_dropout_is_drawn_by_key_and_only_in_training() -> None:
    model = small_bert(small_config((2, 16, 2, 64, 97), dropout=0.0), **BOTH_HEADS).double()
    for layer in model.encoder.layers:
        layer.attention._probability = 0.3
    randomise(model)
    inputs = random_inputs(97, RAGGED, limit=64)

    def run(seed: int) -> Tensor:
        model.shared.dropout.reseed(seed)
        with torch.no_grad():
            out: Tensor = model.encoder(inputs, dtype=torch.float64)
        return out

    quiet = run(1)
    assert torch.equal(quiet, run(2))
    model.train()
    first = run(1)
    torch.rand(7)  # draws of others do not count
    assert torch.equal(first, run(1))
    assert not torch.equal(first, run(2))
    assert not torch.equal(first, quiet)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_backward_is_the_derivative(dropout: float) -> None:
    queries = VarlenBounds.of(np.array([0, 2, 2, 5]), torch.device("cpu"))
    keys = VarlenBounds.of(np.array([0, 3, 5, 6]), torch.device("cpu"))
    layout = VarlenLayout(queries, keys, causal=False)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(3)
        return attend_varlen(q, k, v, layout, dropout=dropout)

    leaves = [torch.randn(n, 2, 4, dtype=torch.float64, requires_grad=True) for n in (5, 6, 6)]
    assert torch.autograd.gradcheck(run, leaves)
    assert torch.get_deterministic_debug_mode() == 0
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def test_recomputing_changes_no_bit(kernels: list[int]) -> None:
    """The kernels draw from the device's generator, which a replay must set back, and forth."""
    model = small_bert(small_config((3, 16, 2, 64, 97), dropout=0.2), **BOTH_HEADS).double().train()
    inputs, places = random_inputs(97, RAGGED, limit=64), torch.tensor([1, 2, 40, 41, 44, 60])

    def step(*, recompute: bool) -> tuple[Tensor, list[Tensor], Tensor]:
        model.shared.recompute = recompute
        loss, grads = loss_and_gradients(model, inputs, places)
        return loss, grads, torch.rand(3)

    loss, grads, later = step(recompute=False)
    calls = len(kernels)
    again, same, later_too = step(recompute=True)
    assert len(kernels) == 3 * calls, "each layer once more"
    assert torch.equal(loss, again)
    assert torch.equal(later, later_too)
    assert all(torch.equal(a, b) for a, b in zip(grads, same, strict=True))


def test_weights_and_plain_kernels_are_tiled(kernels: list[int]) -> None:
    model = small_bert().double()
    inputs = random_inputs(97, RAGGED, limit=64)
    weights: list[list[Tensor]] = []
    model.encoder.hidden_states(inputs, weights=weights, dtype=torch.float64)
    model.shared.fast = False
    model.encoder(inputs, dtype=torch.float64)
    assert not kernels
    assert weights[0]


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.lists(st.lists(st.integers(0, 10**6), max_size=60), min_size=1, max_size=3),
)
def test_selections_hold_every_position_once_in_its_own_span(
    lengths: list[int], requested: list[list[int]]
) -> None:
    inputs = random_inputs(97, lengths, limit=64)
    total = int(inputs.bounds[-1])
    places = [torch.tensor([p % total for p in own], dtype=torch.int64) for own in requested]
    selected = SelectedPositions.of(inputs, *places)
    for own, rows in zip(places, selected.rows, strict=True):
        assert torch.equal(selected.positions[rows], own)
    assert len(selected.positions) % 32 == 0
    assert len(set(selected.unique.tolist())) == len(selected.unique)
    assert len(selected.spans.cu_seqlens) == len(inputs.spans.cu_seqlens)
    assert int(selected.spans.cu_seqlens[-1]) == len(selected.positions)
    assert selected.spans.max_seqlen == int(selected.spans.cu_seqlens.diff().max())
    both = zip(spans_of(selected.spans.cu_seqlens), spans_of(inputs.spans.cu_seqlens), strict=True)
    for number, (rows, tokens) in enumerate(both):
        owned = selected.positions[rows][: max(0, len(selected.unique) - rows.start)]
        assert ((owned >= tokens.start) & (owned < tokens.stop)).all(), number


def test_spans_own_the_tail_as_one_more_sequence() -> None:
    ragged, even = random_inputs(97, [3, 40], limit=64), random_inputs(97, EVEN, limit=64)
    assert ragged.spans.cu_seqlens.tolist() == [0, 3, 43, 64]
    assert ragged.spans.max_seqlen == 40
    assert even.spans.cu_seqlens.tolist() == [0, 32, 72, 112, 128]
    assert random_inputs(97, [2], limit=64).spans.max_seqlen == 62


def test_where_the_kernels_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    config, bf16 = small_config((1, 16, 2, 64, 97)), torch.bfloat16
    assert why_not_varlen(config, bf16, GPU) is None
    assert "need an NVIDIA GPU" in str(why_not_varlen(config, bf16, torch.device("cpu")))
    assert "not float32" in str(why_not_varlen(config, torch.float32, GPU))
    for hidden in (12, 272):
        wrong = small_config((1, hidden, 1, 64, 97))
        assert f"not {hidden}" in str(why_not_varlen(wrong, bf16, GPU))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert "no FlashAttention" in str(why_not_varlen(config, bf16, GPU))
    monkeypatch.setattr(varlen, "_capability", lambda _: (7, 5))
    assert "Ampere" in str(why_not_varlen(config, bf16, GPU))
