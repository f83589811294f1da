"""The pre-training loss: sums over global counts; what it trains; what is measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bothways.batch import IGNORE
from bothways.model.batch import PretrainingBatch
from bothways.model.model import EncoderModel
from bothways.objectives.masked import PAIRS, WORDS, LeftToRight, MaskedLM
from bothways.pretraining.evaluation import HeldOut, Score, measure
from bothways.pretraining.options import PairOptions
from bothways.training.options import PairKind
from model_examples import BOTH_HEADS
from pretraining_examples import (
    bert_loss,
    memory_store,
    pair_batches,
    random_documents,
    small_model,
    small_shape,
)

pytestmark = pytest.mark.usefixtures("several_tiles")


def parts_of(batch: int, micro_batch: int, **kinds: Any) -> list[PretrainingBatch]:
    """The same step cut into micro-batches."""
    store = memory_store(random_documents(np.random.default_rng(2), 30))
    return pair_batches(store, batch=batch, micro_batch=micro_batch, **kinds).micro_batches(3)


def gradients(
    model: EncoderModel, parts: list[PretrainingBatch]
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    loss = bert_loss(parts)
    sums: dict[str, float] = {}
    model.zero_grad()
    for part in parts:
        value, stats = loss(model, part, torch.float32)
        value.backward()
        for name, stat in stats.items():
            sums[name] = sums.get(name, 0.0) + float(stat)
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}, sums


def test_micro_batches_add_up_to_the_whole() -> None:
    model = small_model()
    whole, whole_stats = gradients(model, parts_of(12, 12))
    assert len(whole) == len(list(model.parameters())), "everything is trained"
    for micro_batch in (1, 4, 5):  # 5: the last part is smaller, and none has the mean's counts
        parts, stats = gradients(model, parts_of(12, micro_batch))
        assert stats == pytest.approx(whole_stats, rel=1e-5)
        for name, expected in whole.items():
            scale = expected.abs().max()
            assert (parts[name] - expected).abs().max() <= 2e-6 + 1e-5 * scale, name


def test_equals_the_definition() -> None:
    model = small_model().double()
    parts = parts_of(12, 4)
    mlm, mlm_right, nsp, nsp_right, targets = 0.0, 0, 0.0, 0, 0
    for part in parts:
        hidden = model.encoder(part.inputs, dtype=torch.float64).detach()
        everywhere = torch.arange(len(part.inputs.tokens))
        words = model.masked_lm_logits(hidden[everywhere])[:, :38].detach().log_softmax(-1)
        for at, word in zip(part.masked.positions.tolist(), part.masked.ids.tolist(), strict=True):
            if word != IGNORE:
                mlm -= float(words[at, word])
                mlm_right += int(words[at].argmax()) == word
                targets += 1
        pairs = model.next_sentence_logits(hidden[part.inputs.starts]).detach().log_softmax(-1)
        assert part.random_next is not None
        for scores, label in zip(pairs, part.random_next.tolist(), strict=True):
            nsp -= float(scores[label])
            nsp_right += int(scores.argmax()) == label
    _, stats = gradients(small_model(), parts)
    assert stats["mlm_loss"] == pytest.approx(mlm / targets, rel=1e-5)
    assert stats["mlm_accuracy"] == pytest.approx(mlm_right / targets)
    assert stats["nsp_loss"] == pytest.approx(nsp / 12, rel=1e-5)
    assert stats["nsp_accuracy"] == pytest.approx(nsp_right / 12)
    shares = [bert_loss(parts)(small_model(), p, torch.float32)[0] for p in parts]
    value = sum(float(share.detach()) for share in shares)
    assert value == pytest.approx(mlm / targets + nsp / 12, rel=1e-5)

    result = measure(small_model(), parts, torch.float32, MaskedLM())
    ids = torch.cat([p.masked.ids[: p.masked.count] for p in parts])
    assert result.words.loss == pytest.approx(mlm / targets, rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(mlm / targets), rel=1e-4)
    assert result.words.accuracy == pytest.approx(mlm_right / targets)
    assert result.second is not None
    assert result.second.loss == pytest.approx(nsp / 12, rel=1e-5)
    assert result.second.accuracy == pytest.approx(nsp_right / 12)
    assert result.words.baseline == pytest.approx(int(ids.bincount().max()) / targets)
    random = sum(int(p.random_next.sum()) for p in parts if p.random_next is not None)
    assert result.second.baseline == pytest.approx(max(random, 12 - random) / 12)
    assert (result.words.targets, result.sequences) == (targets, 12)


def test_measuring_does_not_depend_on_the_cut_and_disturbs_nothing() -> None:
    model = small_model(dropout=0.5).train()
    one = measure(model, parts_of(12, 12), torch.float32, MaskedLM())
    several = measure(model, parts_of(12, 3), torch.float32, MaskedLM())
    assert model.training
    assert several.record() == pytest.approx(one.record(), rel=1e-5)
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    measure(model, parts_of(12, 12), torch.float32, MaskedLM())
    assert not model.training


@pytest.mark.parametrize("label", [0, 1])
def test_both_next_sentence_classes_are_trained(label: int) -> None:
    (batch,) = parts_of(12, 12)
    one_class = PretrainingBatch(batch.inputs, batch.masked, torch.full((12,), label))
    model = small_model()
    grads, _ = gradients(model, [one_class])
    bias = grads["next_sentence.output.bias"]
    assert bias[label] < -0.1, "the class seen must become likelier"
    assert bias[1 - label] > 0.1
    assert grads["encoder.pooler.weight"].abs().max() > 0


def test_only_masked_positions_count() -> None:
    (batch,) = parts_of(12, 12)
    model = small_model()
    seen: list[torch.Tensor] = []

    def remember(module, args, output):  # type: ignore[no-untyped-def] # noqa: ARG001
        output.retain_grad()
        seen.append(output)

    model.shared.fast = False  # the fast form never has the logits as a tensor of the graph
    assert model.masked_lm is not None
    model.masked_lm.register_forward_hook(remember)
    value, _ = bert_loss([batch])(model, batch, torch.float32)
    value.backward()
    (logits,) = seen
    assert logits.grad is not None
    assert len(logits) == len(batch.masked.positions), "no logits but at the targets"
    used = logits.grad.abs().sum(-1) > 0
    assert used[: batch.masked.count].all()
    assert not used[batch.masked.count :].any(), "the tail trains nothing"


def test_text_of_unknown_words_alone_gives_no_nan() -> None:
    (batch,) = parts_of(6, 6)
    masked = type(batch.masked)(
        torch.zeros_like(batch.masked.positions), torch.full_like(batch.masked.ids, IGNORE), 0
    )
    empty = PretrainingBatch(batch.inputs, masked, batch.random_next)
    model = small_model()
    grads, stats = gradients(model, [empty])
    assert stats["mlm_loss"] == 0
    assert all(g.isfinite().all() for g in grads.values())
    assert measure(model, [empty], torch.float32, MaskedLM()).words.accuracy == 0


@pytest.mark.parametrize("kind", ["order", "full", "single"])
def test_other_kinds(kind: PairKind) -> None:
    parts = parts_of(12, 4, pairs=PairOptions(kind=kind))
    model = small_model()
    if kind != "order":
        model.next_sentence = None
    loss = bert_loss(parts, kind)
    shares = [loss(model, part, torch.float32) for part in parts]
    names = {"mlm_loss", "mlm_accuracy"}
    if kind == "order":
        names |= {"sop_loss", "sop_accuracy"}
    assert all(set(stats) == names for _, stats in shares)
    for value, stats in shares:
        expected = sum(stat for name, stat in stats.items() if name.endswith("loss"))
        assert float(value.detach()) == pytest.approx(float(expected))
    result = measure(model, parts, torch.float32, MaskedLM(kind))
    assert set(result.record()) == {
        *(f"heldout_{name}" for name in names),
        "heldout_perplexity",
        "heldout_mlm_baseline",
        *(["heldout_sop_baseline"] if kind == "order" else []),
    }
    assert ("; sentence-order accuracy " in result.sentence()) == (kind == "order")
    assert result.sequences == 12


def test_left_to_right_learns_from_every_place() -> None:
    parts = parts_of(12, 4, pairs=PairOptions(kind="single"), objective=LeftToRight())
    model = EncoderModel(replace(small_shape(), left_to_right=True), **BOTH_HEADS, seed=3)
    result = measure(model, parts, torch.float32, LeftToRight())
    assert result.words.targets == sum(int(p.inputs.bounds[-1]) for p in parts) - 12
    assert result.sentence().startswith("held-out left-to-right perplexity ")


def test_what_a_reader_sees() -> None:
    result = HeldOut(
        (Score(WORDS, 2.0, 0.25, 0.05, targets=10), Score(PAIRS["next"], 0.6, 0.75, 0.5, 4)),
        sequences=4,
    )
    assert "perplexity 7.4, accuracy 25.0%" in result.sentence()
    assert "most frequent token 5.0%" in result.sentence()
    assert "next-sentence accuracy 75.0%" in result.sentence()
    assert set(result.record()) == {
        f"heldout_{name}"
        for name in (
            "mlm_loss",
            "perplexity",
            "mlm_accuracy",
            "mlm_baseline",
            "nsp_loss",
            "nsp_accuracy",
            "nsp_baseline",
        )
    }
