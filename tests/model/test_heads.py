"""Heads and losses."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bothways.batch import IGNORE, ROUND_TARGETS, round_up
from bothways.families.heads import CLASSIFIER
from bothways.model.batch import Inputs, TokenTargets
from bothways.model.losses import class_loss, masked_lm_loss, place_loss, scores_loss
from bothways.model.model import EncoderModel
from model_examples import BOTH_HEADS, SHAPES, random_inputs, small_bert, small_config

pytestmark = pytest.mark.usefixtures("several_tiles")


def _targets(inputs: Inputs, vocab_size: int, count: int = 11) -> TokenTargets:
    rng = np.random.default_rng(1)
    size = round_up(count, ROUND_TARGETS)
    at, ids = np.zeros(size, np.int64), np.full(size, IGNORE)
    at[:count] = np.sort(rng.choice(int(inputs.bounds[-1]), count, replace=False))
    ids[:count] = rng.integers(0, vocab_size, count)
    return TokenTargets(torch.from_numpy(at), torch.from_numpy(ids), count)


def _gradients(loss: Tensor, model: EncoderModel) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    grads = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return {n: g for n, g in zip(names, grads, strict=True) if g is not None}


# --------------------------------------------------------------------------------------- masked LM


@pytest.mark.parametrize("shape", SHAPES)
def test_the_loss_at_masked_positions_equals_picking_from_all_positions(
    shape: tuple[int, ...],
) -> None:
    V = shape[4]
    model = small_bert(small_config(shape), **BOTH_HEADS).double()
    inputs = random_inputs(V)
    targets = _targets(inputs, V)
    x_TH = model.encoder(inputs, dtype=torch.float64)
    loss, correct = masked_lm_loss(model.masked_lm_logits(x_TH[targets.positions]), targets.ids)

    everywhere = model.masked_lm_logits(x_TH[torch.arange(len(x_TH))])[:, :V]
    labels = torch.full((len(x_TH),), IGNORE)
    labels[targets.positions[: targets.count]] = targets.ids[: targets.count]
    picked = F.cross_entropy(everywhere, labels, ignore_index=IGNORE, reduction="sum")
    # The loss is summed in fp32.
    torch.testing.assert_close(loss.double(), picked, rtol=1e-6, atol=0)
    assert correct == (everywhere.argmax(-1) == labels).sum()
    ours, plain = _gradients(loss, model), _gradients(picked, model)
    assert ours.keys() == plain.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], plain[name], rtol=1e-4, atol=1e-6)


def test_correct_counts_real_targets_alone() -> None:
    targets = TokenTargets(torch.zeros(4).long(), torch.tensor([2, 0, IGNORE, IGNORE]), 2)
    logits = torch.tensor([[0.0, 0, 9], [0, 9, 0], [9, 0, 0], [9, 0, 0]])
    loss, correct = masked_lm_loss(logits, targets.ids)
    assert correct == 1
    assert loss.item() == pytest.approx(2 * math.log(math.exp(9) + 2) - 9 - 0)


def test_a_batch_without_targets_has_loss_zero() -> None:
    targets = TokenTargets(torch.zeros(32).long(), torch.full((32,), IGNORE), 0)
    loss, correct = masked_lm_loss(torch.randn(32, 64), targets.ids)
    assert (loss.item(), correct.item()) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_rows_are_impossible_and_get_no_gradient(dtype: torch.dtype) -> None:
    model = small_bert(**BOTH_HEADS)  # 97 pieces in 128 rows
    inputs = random_inputs(97)
    targets = _targets(inputs, 97)
    logits = model.masked_lm_logits(model.encoder(inputs, dtype=dtype)[targets.positions])
    assert logits.shape[1] == 128
    assert (logits[:, 97:] == -math.inf).all()
    assert logits[:, :97].isfinite().all()
    gradients = _gradients(masked_lm_loss(logits, targets.ids)[0], model)
    assert all(g.isfinite().all() for g in gradients.values())
    rows = gradients["encoder.embeddings.tokens.weight"].abs().sum(1)
    assert (rows[97:] == 0).all()
    assert (rows[:97] > 0).all()  # the output side reaches every piece


def test_the_output_embedding_is_tied() -> None:
    model = small_bert(**BOTH_HEADS)
    x_TH = model.encoder(random_inputs(97))
    before = model.masked_lm_logits(x_TH[torch.tensor([3])]).detach().clone()
    with torch.no_grad():
        model.embedding_VH[42] += 1
    changed = model.masked_lm_logits(x_TH[torch.tensor([3])]) != before
    assert changed[0].nonzero().flatten().tolist() == [42]


# --------------------------------------------------------------------------------- next sentence


def test_both_next_sentence_classes_receive_gradient() -> None:
    model = small_bert(**BOTH_HEADS)
    inputs = random_inputs(97)
    x_TH = model.encoder(inputs)
    for label in (0, 1):
        labels = torch.full((inputs.sequences,), label)
        loss, _ = class_loss(model.next_sentence_logits(x_TH[inputs.starts]), labels)
        gradients = _gradients(loss, model)
        # Softmax pushes both rows, by equal and opposite amounts; descent raises the label's.
        bias = -gradients["next_sentence.output.bias"]
        assert bias[label] > 0 > bias[1 - label]
        assert (gradients["next_sentence.output.weight"].abs().sum(1) > 0).all()
        assert gradients["encoder.embeddings.tokens.weight"].abs().sum() > 0


def test_pretraining_reaches_every_parameter() -> None:
    model = small_bert(**BOTH_HEADS)
    inputs = random_inputs(97)
    targets = _targets(inputs, 97)
    x_TH = model.encoder(inputs)
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    loss = masked_lm_loss(model.masked_lm_logits(x_TH[targets.positions]), targets.ids)[0]
    loss = loss + class_loss(model.next_sentence_logits(x_TH[inputs.starts]), labels)[0]
    gradients = _gradients(loss, model)
    still = [n for n, _ in model.named_parameters() if gradients[n].abs().sum() == 0]
    assert not still


def test_the_pooler_reads_each_sequences_first_token() -> None:
    model = small_bert(**BOTH_HEADS)
    inputs = random_inputs(97)
    x_TH = model.encoder(inputs)
    marked = x_TH.detach().clone()
    rest = torch.ones(len(marked), dtype=torch.bool)
    rest[inputs.starts] = False
    marked[rest] = math.nan
    outputs = [model.next_sentence_logits(x[inputs.starts]) for x in (marked, x_TH)]
    torch.testing.assert_close(*outputs)


# ---------------------------------------------------------------------------------- task heads


def test_class_loss_sums_and_counts() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    loss, correct = class_loss(logits, torch.tensor([0, 1, 2]))
    expected = F.cross_entropy(logits, torch.tensor([0, 1, 2])) * 3
    torch.testing.assert_close(loss, expected)
    assert correct == 2


def test_the_loss_of_a_score_sums_squares_and_absolutes() -> None:
    loss, absolute = scores_loss(torch.tensor([[1.0], [-2.0]]), torch.tensor([[0.5], [1.0]]))
    assert (loss.item(), absolute.item()) == (0.25 + 9, 0.5 + 3)


def test_the_classifier_drops_out_in_training_alone() -> None:
    model = small_bert(small_config(dropout=0.5), classes=3)
    inputs = random_inputs(97)
    x_BH = model.encoder(inputs).detach()[inputs.starts]
    assert torch.equal(model.logits(CLASSIFIER, x_BH), model.logits(CLASSIFIER, x_BH))
    model.train()
    model.shared.dropout.reseed(1)
    first = model.logits(CLASSIFIER, x_BH)
    assert not torch.equal(first, model.logits(CLASSIFIER, x_BH))
    model.shared.dropout.reseed(1)
    assert torch.equal(first, model.logits(CLASSIFIER, x_BH))


@pytest.mark.parametrize("name", ["masked_lm_logits", "next_sentence_logits"])
def test_a_head_that_is_not_there_is_named(name: str) -> None:
    model = small_bert()
    with pytest.raises(ValueError, match="this model has no"):
        getattr(model, name)(torch.zeros(1, model.config.hidden))


@pytest.mark.parametrize("outputs", [1, 2])
def test_place_loss_is_a_softmax_over_an_items_rows(outputs: int) -> None:
    rng = np.random.default_rng(0)
    bounds = np.array([0, 3, 4, 9])
    logits = torch.from_numpy(rng.normal(size=(9, outputs))).float().requires_grad_()
    places = torch.tensor([[2] * outputs, [0] * outputs, [1] * outputs])
    loss, right = place_loss(logits, places, bounds)
    expected, found = 0.0, 0
    for n, (start, end) in enumerate(pairwise(bounds.tolist())):
        own = logits[start:end].detach()
        expected -= sum(float(own[:, c].log_softmax(0)[places[n, c]]) for c in range(outputs))
        found += all(int(own[:, c].argmax()) == int(places[n, c]) for c in range(outputs))
    assert loss.item() == pytest.approx(expected / outputs, rel=1e-5)
    assert int(right) == found
    loss.backward()
    assert logits.grad is not None
    # An item with one row has nothing to choose from, and each item's gradients add up to 0.
    assert not logits.grad[3].any()
    for start, end in pairwise(bounds.tolist()):
        torch.testing.assert_close(logits.grad[start:end].sum(0), torch.zeros(outputs))


def test_a_head_on_tokens_reads_each_alone() -> None:
    model = small_bert(tags=5)
    x_RH = torch.randn(7, 16)
    assert model.task_outputs == 5
    together = model.task_logits(x_RH)
    for row, logits in zip(x_RH, together, strict=True):
        torch.testing.assert_close(model.task_logits(row[None])[0], logits)
    assert small_bert(spans=True).task_logits(x_RH).shape == (7, 2)


def test_tags_drop_out_in_training_and_spans_do_not() -> None:
    x_RH = torch.randn(7, 16)
    config = small_config(dropout=0.5)
    for heads, same in (({"tags": 3}, False), ({"spans": True}, True)):
        model = small_bert(config, **heads).train()
        model.shared.dropout.reseed(1)
        first = model.task_logits(x_RH)
        assert torch.equal(first, model.task_logits(x_RH)) == same


def test_tokens_are_read_in_the_order_that_is_asked_for() -> None:
    """Also if there are as many as the batch has."""
    model = small_bert(tags=3)
    inputs = random_inputs(model.config.vocab_size, [5, 9, 2], limit=64)
    at = torch.arange(16)
    forward = model.token_vectors(inputs, at)
    torch.testing.assert_close(model.token_vectors(inputs, at.flip(0)), forward.flip(0))
    again = torch.tensor([3] * 16)
    torch.testing.assert_close(model.token_vectors(inputs, again), forward[again])
