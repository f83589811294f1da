"""Keyed dropout, tiles and attention."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bothways.families.options import SizeOptions
from bothways.model.attention import Attention
from bothways.model.dropout import KeyedDropout
from bothways.model.layers import Embeddings, Layer
from bothways.model.model import EncoderModel
from bothways.model.shared import LayerNorm, Linear, Shared
from bothways.model.tiles import make_tiles
from model_examples import random_inputs, randomise, small_config

pytestmark = pytest.mark.usefixtures("several_tiles")

# ----------------------------------------------------------------------------------- keyed dropout


def _masks(dropout: KeyedDropout, sizes: tuple[int, ...] = (100, 37)) -> list[Tensor]:
    return [dropout(torch.ones(size), 0.3) for size in sizes]


def test_the_same_seed_gives_the_same_masks_whatever_ran_before() -> None:
    dropout = KeyedDropout()
    dropout.reseed(7)
    first = _masks(dropout)
    dropout(torch.ones(1001), 0.5)
    dropout.reseed(7)
    again = _masks(dropout)
    fresh = KeyedDropout()
    fresh.reseed(7)
    assert all(map(torch.equal, first, again))
    assert all(map(torch.equal, first, _masks(fresh)))


def test_other_seeds_and_later_calls_give_other_masks() -> None:
    dropout = KeyedDropout()
    dropout.reseed(7)
    one, two = _masks(dropout, (1000, 1000))
    dropout.reseed(8)
    (other,) = _masks(dropout, (1000,))
    for a, b in ((one, two), (one, other)):
        # Independent masks that keep 0.7 agree on 0.58 of the elements.
        assert abs(((a > 0) == (b > 0)).double().mean() - 0.58) < 4 * math.sqrt(0.58 * 0.42 / 1000)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_rate_and_scale(probability: float) -> None:
    n = 400_000
    dropout = KeyedDropout()
    dropout.reseed(3)
    x = torch.full((n // 4, 4), 2.0)
    out = dropout(x, probability)
    dropped = (out == 0).double()
    sigma = math.sqrt(probability * (1 - probability))
    assert abs(dropped.mean() - probability) < 4 * sigma / math.sqrt(n)
    # Each of the four 16-bit lanes of a random word must have the rate by itself.
    assert (dropped.mean(0) - probability).abs().max() < 5 * sigma / math.sqrt(n / 4)
    torch.testing.assert_close(out[out != 0].unique(), torch.tensor([2 / (1 - probability)]))


def test_the_backward_uses_the_forward_mask() -> None:
    dropout = KeyedDropout()
    dropout.reseed(1)
    x = torch.randn(33, 5, requires_grad=True)
    out = dropout(x, 0.4)
    dropout(torch.ones(50), 0.4)  # draws in between must not matter
    upstream = torch.randn(33, 5)
    out.backward(upstream)
    kept = out.detach() != 0
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.where(kept, upstream / 0.6, 0))


def test_dropout_does_nothing_in_evaluation_or_at_rate_0() -> None:
    dropout = KeyedDropout()
    x = torch.randn(10)
    assert dropout(x, 0.0) is x
    dropout.eval()
    assert dropout(x, 0.9) is x


def test_dropout_keeps_the_dtype_and_draws_the_same_for_all() -> None:
    dropout = KeyedDropout()
    kept = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        dropout.reseed(4)
        out = dropout(torch.ones(1003, dtype=dtype), 0.5)
        assert out.dtype == dtype
        kept.append(out != 0)
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[0], kept[2])


# ------------------------------------------------------------------------------------------- tiles


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.booleans(),
    st.sampled_from([0, 100, 1000, 10_000]),
)
def test_tiles_hold_every_token_once_and_no_other(
    lengths: list[int], exact: bool, cost: int
) -> None:
    if exact:
        lengths = [*lengths, 64 - sum(lengths) % 64]
    inputs = random_inputs(97, lengths, limit=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bothways.model.tiles.TILE_COST", cost)
        tiles = make_tiles(inputs, torch.float32)
    total, T = sum(lengths), len(inputs.tokens)
    rows = tiles.flat_rows.numpy()
    real = np.setdiff1d(np.arange(len(rows)), tiles.padding.numpy())
    assert sorted(rows[real]) == list(range(total))
    assert (tiles.tile_rows.numpy()[rows[real]] == real).all()
    assert tiles.tail.tolist() == list(range(total, T))
    covered = 0
    for tile in tiles.tiles:
        assert tile.start == covered
        covered += tile.sequences * tile.length
        if tile.bias is None:
            filled = np.full(tile.sequences, tile.length)
        else:
            filled = (tile.bias == 0).sum(-1).flatten().numpy()
            assert set(tile.bias.unique().tolist()) == {0.0, -math.inf}
        assert filled.max() == tile.length
        for b, n in enumerate(filled):  # a tile row of tokens is one sequence in its order
            own = rows[tile.start + b * tile.length :][:n]
            assert own[0] in inputs.bounds
            assert (np.diff(own) == 1).all()
    assert covered == len(rows)
    work = sum(tile.sequences * tile.length**2 + cost for tile in tiles.tiles)
    assert work == _least_work(sorted(lengths, reverse=True), cost)


def _least_work(lengths: list[int], cost: int) -> int:
    """The scores of the best tiles, and their costs, by trying all ends of the first tile."""
    best = [0] * (len(lengths) + 1)
    for start in reversed(range(len(lengths))):
        best[start] = min(
            (end - start) * lengths[start] ** 2 + cost + best[end]
            for end in range(start + 1, len(lengths) + 1)
        )
    return best[0]


def test_equal_lengths_without_tail_move_nothing() -> None:
    tiles = make_tiles(random_inputs(97, [32, 32]), torch.float32)
    assert tiles.identity
    assert len(tiles.tiles) == 1
    x = torch.randn(64, 3)
    assert tiles.gather(x) is x
    assert tiles.scatter(x) is x


def test_reordered_sequences_of_one_length_are_not_taken_for_the_identity() -> None:
    inputs = random_inputs(97, [10, 40, 14])
    assert len(inputs.tokens) == sum([10, 40, 14])
    assert not make_tiles(inputs, torch.float32).identity


def test_gather_and_scatter_have_the_gradients_of_plain_indexing() -> None:
    """The backward drops what no real token reads, so weigh real tokens alone."""
    inputs = random_inputs(97, [5, 12, 11, 1])
    tiles = make_tiles(inputs, torch.float64)
    total = int(inputs.bounds[-1])

    def through(x: Tensor) -> Tensor:
        return tiles.scatter(tiles.gather(x) ** 2)[:total]

    x = torch.randn(len(inputs.tokens), 2, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(through(x), x[:total] ** 2)
    assert torch.autograd.gradcheck(through, x)


def test_gradients_equal_autograds_own_where_padding_is_not_read() -> None:
    inputs = random_inputs(97, [5, 12, 11, 1])
    tiles = make_tiles(inputs, torch.float64)
    weights = torch.randn(len(tiles.flat_rows), 2, dtype=torch.float64)
    weights[tiles.padding] = 0
    x = torch.randn(len(inputs.tokens), 2, dtype=torch.float64, requires_grad=True)
    (ours,) = torch.autograd.grad((tiles.gather(x) * weights).sum(), x)
    (plain,) = torch.autograd.grad((x[tiles.flat_rows] * weights).sum(), x)
    torch.testing.assert_close(ours, plain, rtol=0, atol=0)


# --------------------------------------------------------------------------------------- attention


def _attention(heads: int = 2) -> Attention:
    config = small_config((1, 16, heads, 64, 97), dropout=0.0)
    attention = Attention(config, Shared())
    randomise(attention)
    return attention.double()


def _plain_attention(attention: Attention, x_TH: Tensor, heads: int) -> Tensor:
    """Vaswani et al. 2017, equation 1, a head at a time, on one sequence."""
    q_TH, k_TH, v_TH = F.linear(x_TH, attention.qkv.weight, attention.qkv.bias).chunk(3, dim=-1)
    D = x_TH.shape[1] // heads
    contexts = []
    for a in range(heads):
        own = slice(a * D, (a + 1) * D)
        scores = q_TH[:, own] @ k_TH[:, own].T / math.sqrt(D)
        contexts.append(scores.softmax(-1) @ v_TH[:, own])
    return F.linear(torch.cat(contexts, -1), attention.output.weight, attention.output.bias)


@pytest.mark.parametrize("heads", [1, 4])
def test_attention_in_tiles_equals_the_formula_forward_and_backward(heads: int) -> None:
    attention = _attention(heads)
    inputs = random_inputs(97, [3, 40, 1, 36, 20, 37, 2])
    x = torch.randn(len(inputs.tokens), 16, dtype=torch.float64, requires_grad=True)
    total = int(inputs.bounds[-1])
    weights = torch.randn(total, 16, dtype=torch.float64)
    leaves = [x, *attention.parameters()]
    ours = attention(x, make_tiles(inputs, x.dtype))[:total]
    parts = x[:total].split(inputs.lengths.tolist())
    plain = torch.cat([_plain_attention(attention, part, heads) for part in parts])
    torch.testing.assert_close(ours, plain)
    ours_grads = torch.autograd.grad((ours * weights).sum(), leaves)
    plain_grads = torch.autograd.grad((plain * weights).sum(), leaves)
    torch.testing.assert_close(ours_grads, plain_grads)


def test_returned_weights_are_probabilities_over_the_sequences_own_tokens() -> None:
    inputs = random_inputs(97, [20, 19, 3])
    weights: list[Tensor] = []
    x = torch.randn(len(inputs.tokens), 16, dtype=torch.float64)
    _attention()(x, make_tiles(inputs, x.dtype), weights)
    assert [tuple(w.shape) for w in weights] == [(2, 2, 20, 20), (1, 2, 3, 3)]
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones_like(w[..., 0]))
    assert (weights[0][1, :, :, 19] == 0).all()


def test_a_layer_normalises_after_adding() -> None:
    """Post-LN: with weight 1 and bias 0 each token's output has mean 0 and deviation 1."""
    config = small_config(dropout=0.0)
    layer = Layer(config, Shared())
    inputs = random_inputs(97)
    out = layer(torch.randn(len(inputs.tokens), 16), make_tiles(inputs, torch.float32))
    torch.testing.assert_close(out.mean(-1), torch.zeros(len(out)), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std(-1, unbiased=False), torch.ones(len(out)))


def test_layers_compute_in_their_inputs_dtype_on_fp32_parameters() -> None:
    linear, norm = Linear(8, 4), LayerNorm(4)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        out = norm(linear(torch.randn(3, 8, dtype=dtype)))
        assert out.dtype == dtype
        out.sum().backward()
    assert linear.weight.grad is not None
    assert linear.weight.grad.dtype == torch.float32


# ------------------------------------------------------------------------- where dropout is applied


def test_dropout_falls_on_the_embeddings() -> None:
    shared = Shared()
    config = small_config(dropout=0.5)
    embeddings = Embeddings(config, shared).train()
    randomise(embeddings)
    shared.dropout.train()
    shared.dropout.reseed(1)
    inputs = random_inputs(config.vocab_size)
    zeros = (embeddings(inputs, torch.float32) == 0).double().mean()
    assert 0.45 < zeros < 0.55


@pytest.mark.parametrize(("own", "attention"), [(0.5, 0.0), (0.0, 0.5)])
def test_attention_weights_have_a_rate_of_their_own(own: float, attention: float) -> None:
    size = SizeOptions(layers=1, hidden=16, heads=2, dropout=own, attention_dropout=attention)
    model = EncoderModel(size.resolve(97), classes=2, tags=3)
    layer = model.encoder.layers[0]
    assert layer.attention._probability == attention
    for dropping in (model.encoder.embeddings, layer, model.classifier, model.tagger):
        assert dropping is not None
        assert dropping._probability == own


@pytest.mark.parametrize("branch", ["attention", "feed-forward"])
def test_dropout_falls_on_each_branch(branch: str) -> None:
    """The other branch adds nothing, so that only this one can make a difference."""
    shared = Shared()
    config = dataclasses.replace(small_config(dropout=0.5), attention_dropout=0.0)
    layer = Layer(config, shared)
    randomise(layer)
    other = layer.contract if branch == "attention" else layer.attention.output
    with torch.no_grad():
        other.weight.zero_()
        other.bias.zero_()
    shared.dropout.train()
    inputs = random_inputs(config.vocab_size)
    x = torch.randn(len(inputs.tokens), config.hidden)
    layout = make_tiles(inputs, torch.float32)
    outputs = []
    for seed in (1, 1, 2):
        shared.dropout.reseed(seed)
        outputs.append(layer(x, layout))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2], atol=1e-3)
