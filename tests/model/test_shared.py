"""Layers computed again in the backward pass: the same bits, with less kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bothways.model.batch import Inputs, SelectedPositions
from bothways.model.losses import class_loss
from bothways.model.model import EncoderModel
from model_examples import BOTH_HEADS, random_inputs, small_bert, small_config

pytestmark = pytest.mark.usefixtures("several_tiles")

LENGTHS = [40, 37, 12, 40, 3, 25, 40, 39]


def one_step(
    model: EncoderModel, inputs: Inputs, dtype: torch.dtype, *, recompute: bool
) -> tuple[Tensor, dict[str, Tensor], int]:
    """Loss, gradients, and bytes kept for the backward pass."""
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    model.shared.recompute = recompute
    model.shared.dropout.reseed(5)
    model.zero_grad()
    places = torch.tensor([1, 5, 44, 50, 90, 120])
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        selected = SelectedPositions.of(inputs, places, inputs.starts)
        x_MH, x_BH = model.encoder.hidden_at(inputs, selected, dtype=dtype)
        masked, _ = model.piece_loss(x_MH, torch.arange(6))
        labels = torch.arange(inputs.sequences) % 2
        loss = masked + class_loss(model.next_sentence_logits(x_BH), labels)[0]
    in_frames = model.shared.pool.kept
    loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved = sum(size for at, size in kept.items() if at not in own)
    return loss.detach(), grads, saved + in_frames


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_recomputing_changes_no_bit(fast: bool, dtype: torch.dtype, causal: bool) -> None:
    config = small_config((3, 32, 4, 64, 97), dropout=0.3, left_to_right=causal)
    model = small_bert(config, **BOTH_HEADS).train()
    model.shared.fast = fast
    inputs = random_inputs(97, LENGTHS)
    loss, grads, _ = one_step(model, inputs, dtype, recompute=False)
    again, same, _ = one_step(model, inputs, dtype, recompute=True)
    assert torch.equal(loss, again)
    assert same.keys() == grads.keys()
    for name, gradient in grads.items():
        assert torch.equal(gradient, same[name]), name


def test_recomputing_keeps_a_fraction_for_each_layer() -> None:
    """A layer's input of [T, H], where 18 such tensors and the attention's are kept without it."""
    kept = {}
    for layers in (2, 6):
        model = small_bert(small_config((layers, 32, 4, 128, 97)), **BOTH_HEADS).train()
        inputs = random_inputs(97, LENGTHS)
        for recompute in (False, True):
            kept[layers, recompute] = one_step(model, inputs, torch.float32, recompute=recompute)[2]
    rows = len(random_inputs(97, LENGTHS).tokens)
    assert kept[6, True] - kept[2, True] == 4 * rows * 32 * 4
    assert kept[6, False] - kept[2, False] > 4 * 18 * rows * 32 * 4


def test_masks_of_later_parts_are_not_moved_by_a_replay() -> None:
    model = small_bert(small_config(dropout=0.5)).train()
    dropout = model.shared.dropout

    def draw() -> Tensor:
        mask = dropout.mask((1000,), 0.5)
        assert mask is not None
        return mask

    dropout.reseed(1)
    straight = [draw(), draw(), draw()]
    dropout.reseed(1)
    first = draw()
    _, again = dropout.replay()
    second = draw()
    with again:
        replayed = draw()
    assert torch.equal(second, replayed)
    assert all(map(torch.equal, [first, second, draw()], straight))


def test_nothing_is_recomputed_in_evaluation() -> None:
    model = small_bert(small_config((2, 16, 2, 64, 97), dropout=0.3))
    model.shared.recompute, model.shared.fast = True, False  # compiled layers call no hooks
    inputs = random_inputs(97)
    weights: list[list[Tensor]] = []
    states = model.train().encoder.hidden_states(inputs, weights=weights)
    states[-1].sum().backward()
    assert [len(own) > 0 for own in weights] == [True, True]
    calls = []
    layer = model.encoder.layers[0]
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    model.eval().encoder(inputs).sum().backward()
    model.train().encoder(inputs).sum().backward()
    assert len(calls) == 1 + 2
