"""The fast forms against their plain ones: same loss, same gradients."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any, cast

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bothways.batch import IGNORE
from bothways.model.attention import Attention
from bothways.model.batch import SelectedPositions
from bothways.model.dropout import Draw
from bothways.model.kernels import compiled, loops
from bothways.model.kernels.memory import Pool
from bothways.model.layers import Layer
from bothways.model.losses import class_loss, fused_cross_entropy, masked_lm_loss
from bothways.model.model import EncoderModel
from bothways.model.shared import Shared
from bothways.model.tiles import make_tiles
from bothways.randomness import element_words
from model_examples import BOTH_HEADS, SHAPES, random_inputs, randomise, small_bert, small_config

pytestmark = pytest.mark.usefixtures("several_tiles")

RAGGED = [3, 40, 1, 36, 20, 37, 2, 40]


def _loss(model: EncoderModel, places: Tensor, ids: Tensor, dtype: torch.dtype) -> Tensor:
    inputs = random_inputs(model.config.vocab_size, RAGGED, limit=64)
    selected = SelectedPositions.of(inputs, places, inputs.starts)
    x_MH, x_BH = model.encoder.hidden_at(inputs, selected, dtype=dtype)
    masked, _ = model.piece_loss(x_MH, ids)
    labels = torch.arange(inputs.sequences) % 2
    return masked + class_loss(model.next_sentence_logits(x_BH), labels)[0]


def _both(
    model: EncoderModel, places: Tensor, ids: Tensor, dtype: torch.dtype
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


def test_gradients_from_transposed_arrays_are_the_same() -> None:
    """But for rounding; sizes that fill no tile, and a last layer with few rows."""
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.bfloat16, 0.03)):
        model = small_bert(small_config((2, 48, 2, 72, 97), dropout=0.1), **BOTH_HEADS).train()
        model = model.double() if dtype == torch.float64 else model
        found = []
        for transposes in (False, True):
            model.shared.transposes = transposes
            model.shared.dropout.reseed(3)
            model.zero_grad()
            _loss(model, torch.arange(1, 120, 5), torch.arange(24) % 97, dtype).backward()
            found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        for name, gradient in found[0].items():
            scale = float(gradient.abs().max()) + 1e-12
            difference = (gradient - found[1][name]).abs().max()
            assert float(difference) <= tolerance * scale, name


def test_the_token_table_has_one_gradient_from_its_two_uses() -> None:
    """Also if one of them is missing, if the same forward pass has two losses, and if the weight is
    used again when the backward pass is over."""
    model = small_bert(small_config(dropout=0.0), **BOTH_HEADS).double().train()
    inputs = random_inputs(97, RAGGED, limit=64)
    ids = torch.tensor([9, 7, 0, 5])
    places = SelectedPositions.of(inputs, torch.tensor([1, 3, 40, 60]))
    weight = model.embedding_VH

    def looked_up(x_MH: Tensor) -> Tensor:
        return x_MH.square().sum()

    def predicted(x_MH: Tensor) -> Tensor:
        return model.piece_loss(x_MH, ids)[0]

    def both(x_MH: Tensor) -> Tensor:
        return looked_up(x_MH) + predicted(x_MH)

    def twice(x_MH: Tensor) -> Tensor:
        return predicted(x_MH) + predicted(x_MH * 0.5)

    def output_alone(x_MH: Tensor) -> Tensor:
        return predicted(x_MH.detach())

    for loss in (looked_up, predicted, both, twice, output_alone):
        found = []
        for fast in (False, True):
            model.shared.fast = fast
            (x_MH,) = model.encoder.hidden_at(inputs, places, dtype=torch.float64)
            (gradient,) = torch.autograd.grad(loss(x_MH), weight)
            found.append(gradient)
        # The plain loss is summed in fp32.
        torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    x_MH = x_MH.detach()
    (after,) = torch.autograd.grad(predicted(x_MH), weight)  # nothing was looked up for this one
    model.shared.fast = False
    (plain,) = torch.autograd.grad(predicted(x_MH), weight)
    torch.testing.assert_close(after, plain, rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("left_to_right", [False, True])
def test_a_layer_has_the_gradients_of_its_plain_form(dropout: float, left_to_right: bool) -> None:
    """Of all positions; of selected ones (not left to right), some sequences having none."""
    config = small_config((1, 16, 2, 50, 97), dropout=dropout, left_to_right=left_to_right)
    encoder = small_bert(config).double().train().encoder
    inputs = random_inputs(97, RAGGED, limit=64)
    tiles = make_tiles(inputs, torch.float64, causal=left_to_right)
    selected = SelectedPositions.of(inputs, torch.tensor([0, 3, 50, 1, 149]))
    layer = cast("Layer", encoder.layers[0])
    x_TH = torch.randn(len(inputs.tokens), 16, dtype=torch.float64, requires_grad=True)

    def every() -> Tensor:
        return layer(x_TH, tiles)[: inputs.bounds[-1]]

    def some() -> Tensor:
        return layer.forward_at(x_TH, selected.positions, tiles.select(inputs, selected))[:5]

    for compute in (every,) if left_to_right else (every, some):
        found = []
        for fast in (False, True):
            encoder.shared.fast = fast
            encoder.shared.dropout.reseed(3)
            out = compute()
            upstream = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
            leaves = [x_TH, *layer.parameters()]
            found.append((out, *torch.autograd.grad((out * upstream).sum(), leaves)))
        torch.testing.assert_close(found[1], found[0])


def test_a_second_backward_pass_has_the_same_gradients() -> None:
    """The arrays of the first have gone back to the pool."""
    model = small_bert(small_config((2, 16, 2, 64, 97), dropout=0.3)).double().train()
    parameters = [p for n, p in model.encoder.named_parameters() if "pooler" not in n]
    x_TH = model.encoder(random_inputs(97, RAGGED, limit=64), dtype=torch.float64)
    loss = x_TH.square().sum()
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    model.encoder(random_inputs(97, [9, 30], limit=64), dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), first, rtol=0, atol=0)


def test_a_checkpoint_around_compiled_layers_changes_no_gradient() -> None:
    """Also if another graph takes memory while its backward pass is under way."""
    model = small_bert(small_config((3, 16, 2, 64, 97), dropout=0.0)).double().train()
    encoder, inputs = model.encoder, random_inputs(97, RAGGED, limit=64)
    parameters = list(encoder.layers.parameters())
    x_TH = encoder.embeddings(inputs, torch.float64).detach().requires_grad_()
    layout = encoder.layouts(inputs, torch.float64)[0]
    other = random_inputs(97, RAGGED[::-1], limit=64)
    others = []

    def disturb(_: Tensor) -> None:
        with torch.enable_grad():
            others.append(encoder(other, dtype=torch.float64))

    def layers(x: Tensor) -> Tensor:
        for layer in encoder.layers:
            x = layer(x, layout)
            x.register_hook(disturb)
        return x

    plain = torch.autograd.grad(layers(x_TH).square().sum(), parameters)
    out = checkpoint(layers, x_TH, use_reentrant=False)
    found = torch.autograd.grad(out.square().sum(), parameters)
    torch.testing.assert_close(found, plain, rtol=0, atol=0)
    assert len(others) >= 6


@pytest.mark.parametrize("recompute", [False, True])
def test_nothing_stays_after_a_backward_pass_or_without_one(recompute: bool) -> None:
    model = small_bert(small_config((2, 16, 2, 64, 97), dropout=0.3)).double().train()
    model.shared.recompute = recompute

    def loss() -> Tensor:
        return model.encoder(random_inputs(97, RAGGED, limit=64), dtype=torch.float64).sum()

    def bottom() -> int:
        return model.shared.pool.frame().take(torch.float64, 1).data_ptr()

    at = bottom()
    loss()
    assert bottom() == at
    held = loss()
    assert (bottom() == at) is recompute
    held.backward()
    assert bottom() == at


def test_several_graphs_may_share_a_pool() -> None:
    model = small_bert().double()
    batches = [random_inputs(97, lengths, limit=64) for lengths in (RAGGED, [5, 9], RAGGED[::-1])]
    weight = model.encoder.layers[0].expand.weight
    alone = []
    for batch in batches:
        loss = model.encoder(batch, dtype=torch.float64).square().sum()
        alone.append(torch.autograd.grad(loss, weight)[0])
    losses = [model.encoder(b, dtype=torch.float64).square().sum() for b in batches]
    together = [torch.autograd.grad(loss, weight)[0] for loss in losses]
    torch.testing.assert_close(together, alone, rtol=0, atol=0)


def test_without_numba_training_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = small_bert().train(), random_inputs(97, RAGGED, limit=64)
    outs = []
    for reason in (None, "no Numba"):
        monkeypatch.setattr(compiled, "why_not_compiled", lambda reason=reason: reason)
        model.shared.dropout.reseed(3)
        outs.append(model.encoder(inputs))
        layer = outs[-1].grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        assert ("_Layer" in str(outs[-1].grad_fn)) == (reason is None), layer
    total = int(inputs.bounds[-1])
    torch.testing.assert_close(outs[1][:total], outs[0][:total], rtol=1e-4, atol=1e-4)


def test_without_gradients_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "run", None)
    model, places = small_bert(**BOTH_HEADS), torch.tensor([1, 2, 40])
    with torch.no_grad():
        assert _loss(model, places, torch.tensor([9, 7, 0]), torch.float32) > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_half_precision(dtype: torch.dtype) -> None:
    places, ids = torch.tensor([1, 2, 40]), torch.tensor([9, 7, 0])
    model = small_bert(small_config(dropout=0.0), **BOTH_HEADS).to(dtype)
    (plain, plain_grads), (fast, fast_grads) = _both(model, places, ids, torch.float32)
    torch.testing.assert_close(fast, plain, rtol=1e-3, atol=0)
    for name, gradient in plain_grads.items():
        scale = max(float(gradient.abs().max()), 1e-3)
        torch.testing.assert_close(fast_grads[name], gradient, rtol=0.02, atol=0.02 * scale)


def test_a_dropout_too_small_to_happen() -> None:
    """After a step whose arrays, if they were not written, would be seen."""
    outs = []
    for p in (0.0, 1e-12):
        model = small_bert(small_config(dropout=p)).train()
        for step in range(3):
            model.zero_grad()
            inputs = random_inputs(97, RAGGED[step:], limit=64)
            out = model.encoder(inputs)[: int(inputs.bounds[-1])]
            out.square().sum().backward()
        grads = [g for q in model.parameters() if (g := q.grad) is not None]
        outs.append([out.detach(), *grads])
    torch.testing.assert_close(*outs, rtol=0, atol=0)


def test_second_derivatives_are_refused() -> None:
    model, inputs = small_bert().train(), random_inputs(97, RAGGED, limit=64)
    weight = model.encoder.layers[0].expand.weight
    loss = model.encoder(inputs).square().sum()
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


# ------------------------------------------------------------------------------------------- loops


def test_loops_leave_the_number_of_threads_alone() -> None:
    """In a process of its own, as Numba's threads start once."""
    code = """if True:
        import torch
        from bothways.model.kernels import compiled
        torch.set_num_threads(1)
        for _ in range(2):
            compiled.dropped(torch.ones(100, 8), compiled.Draw(2**31, 2.0, (1, 2)))
            print(torch.get_num_threads())"""
    environment = os.environ | {"NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "1"]


def test_where_nothing_can_be_kept_each_process_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def njit(*, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(loops, "njit", njit)

    @loops.parallel
    def doubled(x: Any) -> None:
        for i in numba.prange(len(x)):
            x[i] *= 2

    x = np.ones(5)
    doubled(x)
    assert x.tolist() == [2.0] * 5


def test_numba_without_its_compiler_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    assert compiled.why_not_compiled.__wrapped__() == "NUMBA_DISABLE_JIT is set"


def test_loops_do_not_depend_on_the_number_of_threads() -> None:
    R, H = 1000, 24
    x, branch, upstream = (torch.randn(R, H) for _ in range(3))
    bias, weight, shift = (torch.randn(H) for _ in range(3))
    norm = compiled.Norm(bias, weight, shift, 1e-12, Draw(2**30, 4 / 3, (5, 9)))
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            pool, out = Pool(), torch.empty_like(x)
            frame = pool.frame()
            saved = compiled.add_norm(frame, x, branch, norm, out)
            d_x = torch.empty_like(x)
            d_branch, sums = compiled.add_norm_backward(pool, upstream, saved, norm, d_x)
            found.append((out, d_x, d_branch, *sums))
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=70))
def test_loops_round_to_bf16_as_the_library_does(bits: list[int]) -> None:
    """All numbers, infinities and NaNs, times a third."""
    x = torch.tensor([bits], dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    scale = np.float32(1 / 3)
    own = compiled.dropped(x, Draw(0, float(scale), (0, 0)))
    torch.testing.assert_close(
        own, (x.float() * float(scale)).bfloat16(), rtol=0, atol=0, equal_nan=True
    )


def test_words_look_random() -> None:
    """Halves, neighbours, and masks under keys that differ in one bit."""
    size = 2**20
    error = 5 / math.sqrt(size)
    first = element_words(size, 1, 2) >> 31
    others = [element_words(size, *keys) >> 31 for keys in ((2, 2), (1, 3), (1, 2 + 2**31))]
    assert abs(first.mean() - 0.5) < error
    for other in (*others, np.roll(first, 1), np.roll(first, 256)):
        assert abs((first == other).mean() - 0.5) < error
    counts = np.bincount(element_words(size, 7, 8) >> 24, minlength=256)
    assert ((counts - size / 256) ** 2 / (size / 256)).sum() < 370  # chi-square, 255: p of 1e-6


@pytest.mark.parametrize("size", [1, 2**14, 2**14 + 5])
def test_loops_and_numpy_draw_the_same_words(size: int) -> None:
    x = torch.ones(1, size, dtype=torch.float64)
    keys = 0x89ABCDEF, 0xFEDCBA98
    for p in (0.0, 0.1, 0.5, 0.999):
        draw = Draw(int(p * 2**32), 1.0, keys)
        kept = element_words(size, *keys) >= np.uint32(draw.threshold)
        assert (compiled.dropped(x, draw)[0].numpy() == kept).all()


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
    for form in ("plain", "fused", "compiled"):
        leaves = [t.to(dtype).detach().requires_grad_() for t in (x, weight, bias)]
        if form == "fused":
            loss, right = fused_cross_entropy(*leaves, ids)
        elif form == "compiled":  # adds the bias to rounded logits; rows beyond V have none
            leaves[2] = bias[:41].to(dtype).to(_exact(dtype)).detach().requires_grad_()
            loss, right = compiled.cross_entropy(*leaves, ids, Pool())
        else:
            loss, right = masked_lm_loss(F.linear(*leaves), ids)
        (loss / 7).backward()
        grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
        found.append((loss.detach(), right, [*grads[:2], grads[2][:41].to(dtype)]))
    bf16 = dtype == torch.bfloat16
    rtol, atol = (0.05, 0.02) if bf16 else (1e-4, 1e-5)
    (loss, right, plain), *others = found
    for loss_rtol, (own_loss, own_right, own) in zip((1e-5, 0.01), others, strict=True):
        assert own_right == right or (bf16 and loss_rtol > 1e-5)  # of nearly equal logits
        rtol_of_loss = loss_rtol if bf16 else 1e-5
        torch.testing.assert_close(own_loss.float(), loss.float(), rtol=rtol_of_loss, atol=1e-5)
        torch.testing.assert_close(own, plain, rtol=rtol, atol=atol)


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _compiled_cross_entropy(*arguments: Tensor) -> tuple[Tensor, Tensor]:
    return compiled.cross_entropy(*arguments, Pool())


@pytest.mark.parametrize("form", [fused_cross_entropy, _compiled_cross_entropy])
def test_of_equal_logits_the_first_is_the_prediction(form: Any) -> None:
    x, weight, bias = torch.zeros(3, 2), torch.zeros(5, 2), torch.tensor([0.0, 1, 1, 0, 1])
    for ids, expected in (([1, 1, 1], 3), ([2, 1, 4], 1), ([0, 3, IGNORE], 0)):
        assert form(x, weight, bias, torch.tensor(ids))[1] == expected


@pytest.mark.parametrize("ids", [[3, 97], [200_000, 1]])
def test_ids_beyond_the_vocabulary_are_refused(ids: list[int]) -> None:
    x, weight = torch.randn(2, 8), torch.randn(104, 8)
    with pytest.raises(IndexError, match="vocabulary of 97"):
        compiled.cross_entropy(x, weight, torch.zeros(97), torch.tensor(ids), Pool())


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
