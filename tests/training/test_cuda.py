"""A GPU against the CPU: the same logits, gradients and weights, up to rounding.

Skipped where there is no GPU. ``scripts/gpu_check.sh`` runs these first and the benchmarks after
them.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bothways.api.model import load
from bothways.batch import IGNORE
from bothways.errors import RunError
from bothways.families import FAMILIES, new_shape
from bothways.families.options import SizeOptions
from bothways.finetuning.finetune import finetune
from bothways.model import encoder
from bothways.model.batch import Inputs, PretrainingBatch, SelectedPositions, VarlenBounds
from bothways.model.device import choose_device, choose_precision, find_peak, peak_memory_note
from bothways.model.kernels.varlen import VarlenLayout, attend_varlen, why_not_varlen
from bothways.model.losses import fused_cross_entropy, masked_lm_loss
from bothways.model.model import EncoderModel
from bothways.objectives.masked import MaskedLM
from bothways.objectives.replaced import GENERATOR, ReplacedTokens, make_generator
from bothways.pretraining.evaluation import measure
from bothways.pretraining.options import CheckpointOptions, EvaluateOptions, PretrainConfig
from bothways.pretraining.pretrain import pretrain
from bothways.training.checkpoint import Checkpoint
from bothways.training.monitor import METRICS, read_metrics
from bothways.training.options import ClockOptions, OptimizerOptions, Phase
from bothways.training.trainer import Trainer, step_loss
from finetuning_examples import start_model, word_config, word_files
from model_examples import BOTH_HEADS, random_inputs, randomise, small_bert, small_config
from pretraining_examples import (
    bert_loss,
    memory_store,
    pair_batches,
    random_documents,
    small_model,
)

pytestmark = [
    pytest.mark.usefixtures("several_tiles"),
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
GPU = torch.device("cuda", 0)
RAGGED = [3, 40, 1, 36, 20, 37, 2, 40]
EVEN = [32, 40, 40, 16]  # no tail
SHAPE = (2, 128, 2, 256, 997)  # head size 64
BATCHES = pair_batches(
    memory_store(random_documents(np.random.default_rng(4), 30)), batch=8, micro_batch=4
)


@pytest.fixture(autouse=True)
def _undefined_memory_is_not_a_number() -> Any:
    """Fresh memory on the GPU holds what tests before left; now it is sure to be no number."""
    # The allocator keeps blocks of up to 1 MiB apart from larger ones.
    sizes = [2**27, *(2**n for n in range(7, 19) for _ in range(40))]
    blocks = [torch.full((size,), float("nan"), device=GPU) for size in sizes]
    del blocks
    yield
    torch.cuda.synchronize()


def close(found: Tensor, wanted: Tensor, share: float) -> None:
    """Equal within a share of the largest value."""
    error = float((found.detach().cpu().double() - wanted.detach().cpu().double()).abs().max())
    assert error <= share * float(wanted.detach().abs().max()), error


def bf16_model(dropout: float = 0.0, *, left_to_right: bool = False) -> EncoderModel:
    config = small_config(SHAPE, dropout=dropout, left_to_right=left_to_right)
    model = small_bert(config, **BOTH_HEADS)
    randomise(model)
    return model


def loss_and_gradients(
    model: EncoderModel, inputs: Inputs, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    places = torch.tensor([1, 2, 40, 41, 44, 60, 99, 0, 0])  # none in some sequences
    ids = torch.arange(len(places)) % 97
    ids[-1] = IGNORE
    model.zero_grad()
    moved = inputs.to(model.device)
    selected = SelectedPositions.of(moved, places, inputs.starts)
    x_MH, x_BH = model.encoder.hidden_at(moved, selected, dtype=dtype)
    loss, _ = model.piece_loss(x_MH, ids.to(model.device))
    labels = torch.arange(inputs.sequences, device=model.device) % 2
    logits = model.next_sentence_logits(x_BH)
    loss = loss + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), grads


@pytest.mark.parametrize("lengths", [RAGGED, EVEN])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float32, 2e-4), (torch.bfloat16, 0.1)], ids=["fp32", "bf16"]
)
def test_loss_and_gradients_are_the_cpus(
    lengths: list[int], causal: bool, dtype: torch.dtype, share: float
) -> None:
    """fp32 goes through tiles, bf16 through FlashAttention; the CPU computes in fp32."""
    model = bf16_model(left_to_right=causal)
    inputs = random_inputs(997, lengths, limit=64)
    assert (why_not_varlen(model.config, dtype, GPU) is None) == (dtype == torch.bfloat16)
    loss, grads = loss_and_gradients(model, inputs, torch.float32)
    found, found_grads = loss_and_gradients(copy.deepcopy(model).to(GPU), inputs, dtype)
    close(found, loss, share / 5)
    assert found_grads.keys() == grads.keys()
    for name, gradient in grads.items():
        close(found_grads[name], gradient, share)


def test_flat_attention_rounds_no_worse_than_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bf16_model()
    inputs = random_inputs(997, RAGGED, limit=64)
    exact = loss_and_gradients(copy.deepcopy(model).double(), inputs, torch.float64)[1]

    def error() -> float:
        own = loss_and_gradients(copy.deepcopy(model).to(GPU), inputs, torch.bfloat16)[1]
        return sum(float((own[n].cpu().double() - g).square().sum()) for n, g in exact.items())

    flat = error()
    monkeypatch.setattr(encoder, "why_not_varlen", lambda *_: "tiles")
    assert flat < 2 * error()


def test_flat_attention_is_the_librarys() -> None:
    """torch.nn.attention.varlen, which has no dropout."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    if "window_size" not in inspect.signature(varlen.varlen_attn).parameters:
        pytest.skip("this release of torch has another signature")
    spans = VarlenBounds.of(np.array([0, 5, 9, 40]), GPU)
    q, k, v = (torch.randn(40, 2, 64, device=GPU, dtype=torch.bfloat16) for _ in range(3))
    for causal, side, window in ((False, 0, (-1, -1)), (True, 0, (-1, 0)), (False, 6, (6, 6))):
        theirs = varlen.varlen_attn(
            q, k, v, spans.cu_seqlens, spans.cu_seqlens, 31, 31, window_size=window
        )
        assert torch.equal(attend_varlen(q, k, v, VarlenLayout(spans, spans, causal, side)), theirs)


def test_dropout_within_the_kernel() -> None:
    """With unit vectors as values, outputs are the dropped probabilities: the backward must have
    dropped the same."""
    L, D, p = 48, 64, 0.3
    spans = VarlenBounds.of(np.array([0, L]), GPU)
    q, k = (torch.randn(L, 2, D, device=GPU, dtype=torch.bfloat16) for _ in range(2))
    v = torch.eye(L, D, device=GPU, dtype=torch.bfloat16)[:, None].expand(L, 2, D).contiguous()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    torch.cuda.manual_seed(7)
    dropped = attend_varlen(*leaves, VarlenLayout(spans, spans, causal=False), dropout=p)
    upstream = torch.randn_like(dropped)
    grads = torch.autograd.grad((dropped * upstream).sum(), leaves)
    kept = (dropped[:, :, :L] != 0).transpose(0, 1).double()  # [A, Q, L]
    assert 0.6 < float(kept.mean()) < 0.8
    q64, k64, v64 = (x.detach().double().requires_grad_() for x in leaves)
    scores = torch.einsum("qad,kad->aqk", q64, k64) / D**0.5
    plain = torch.einsum("aqk,kad->qad", scores.softmax(-1) * kept / (1 - p), v64)
    close(dropped, plain, 0.02)
    wanted = torch.autograd.grad((plain * upstream.double()).sum(), (q64, k64, v64))
    for found, exact in zip(grads, wanted, strict=True):
        close(found, exact, 0.05)


def test_dropout_keeps_the_mean_and_follows_the_key() -> None:
    dropout = small_bert().shared.dropout.train()
    x = torch.ones(1000, 100, device=GPU)

    def draw(seed: int) -> Tensor:
        dropout.reseed(seed)
        torch.rand(5, device=GPU)  # what others drew before does not count
        dropout.reseed(seed)
        return dropout(x, 0.1)

    first = draw(1)
    assert torch.equal(first, draw(1))
    assert not torch.equal(first, draw(2))
    assert float(first.mean()) == pytest.approx(1, abs=0.01)
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 0.9])
    dropout.eval()
    assert torch.equal(dropout(x, 0.1), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_cross_entropy(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothways.model.losses._CHUNK_BYTES_GPU", 4 * 64 * 7)
    ids = torch.randint(0, 60, (50,), device=GPU)
    ids[::7] = IGNORE
    leaves = [torch.randn(s, device=GPU) for s in ((50, 16), (64, 16), (64,))]
    found = []
    for fused in (True, False):
        own = [x.detach().to(dtype).requires_grad_() for x in leaves]
        if fused:
            loss, right = fused_cross_entropy(own[0], own[1], own[2], ids)
        else:
            loss, right = masked_lm_loss(torch.nn.functional.linear(*own), ids)
        found.append((loss, right, torch.autograd.grad(loss / 37, own)))
    (loss, right, grads), (plain_loss, plain_right, plain_grads) = found
    assert int(right) == int(plain_right)
    close(loss, plain_loss, 1e-3)
    for own, plain in zip(grads, plain_grads, strict=True):
        close(own, plain, 0.02)


# --------------------------------------------------------------------------------------- families


def family_model(family: str, dropout: float = 0.0) -> EncoderModel:
    shape = new_shape(
        family,
        **{"vocab_size": 97, "layers": 4, "hidden": 128, "heads": 2, "intermediate": 192},
        **{"positions": 44, "dropout": dropout, "attention_dropout": dropout},
    )
    heads = {"replaced": True} if family == "electra" else {"masked_lm": True}
    model = EncoderModel(shape, **heads, pooler=False, seed=3)  # type: ignore[arg-type]
    randomise(model)
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float32, 2e-4), (torch.bfloat16, 0.1)], ids=["fp32", "bf16"]
)
def test_every_family_is_the_cpus(family: str, dtype: torch.dtype, share: float) -> None:
    """States and gradients, where layers are shared, rotated, windowed, or narrower in front."""
    model = family_model(family)
    inputs = random_inputs(97, RAGGED)
    if model.config.segments < 2:
        inputs = replace(inputs, segments=torch.zeros_like(inputs.segments))
    found = []
    for on, kind in ((torch.device("cpu"), torch.float32), (GPU, dtype)):
        own = copy.deepcopy(model).to(on)
        x_TH = own.encoder(inputs.to(on), dtype=kind)
        x_TH[: sum(RAGGED)].float().square().sum().backward()
        grads = {n: p.grad for n, p in own.named_parameters() if p.grad is not None}
        found.append((x_TH, grads))
    (cpu_TH, wanted), (gpu_TH, grads) = found
    close(gpu_TH[: sum(RAGGED)], cpu_TH[: sum(RAGGED)], share)
    assert grads.keys() == wanted.keys()
    largest = max(float(g.abs().max()) for g in wanted.values())
    for name, gradient in grads.items():
        error = float((gradient.cpu() - wanted[name]).abs().max())
        # Biases of keys have no gradient in theory: what there is is rounding of the whole.
        assert error <= share * max(float(wanted[name].abs().max()), 0.01 * largest), name


def electra_steps(on: torch.device, dropout: float) -> tuple[EncoderModel, list[float]]:
    model = family_model("electra", dropout)
    model.parts[GENERATOR] = make_generator(model, size=0.5, share="all", seed=3)
    model.to(on)
    trainer: Trainer[PretrainingBatch] = Trainer(
        model, OptimizerOptions(lr=1e-3), total_steps=20, seed=3, dtype=torch.float32
    )
    losses = []
    for step in range(5):
        parts = [replace(part, random_next=None) for part in BATCHES.micro_batches(step)]
        parts = [part.to(on) for part in parts]
        stats = trainer.step(step, parts, step_loss(parts, ReplacedTokens()))
        losses.append(float(stats["rtd_loss"]))
    trainer.check()
    return model, losses


def test_replaced_tokens_are_learned_as_on_the_cpu() -> None:
    (one, losses), (other, _) = (electra_steps(GPU, 0.1) for _ in range(2))
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
    # A draw on a border may propose another token.
    assert electra_steps(GPU, 0.0)[1] == pytest.approx(
        electra_steps(torch.device("cpu"), 0.0)[1], rel=0.01
    )
    assert losses[-1] < losses[0]


# --------------------------------------------------------------------------------------- training


def train(steps: int, dtype: torch.dtype, *, dropout: float, on: torch.device = GPU) -> Any:
    model = EncoderModel(small_config(SHAPE, dropout=dropout), **BOTH_HEADS, seed=3).to(on)
    trainer: Trainer[PretrainingBatch] = Trainer(
        model, OptimizerOptions(lr=1e-3), total_steps=20, seed=3, dtype=dtype
    )
    stats: dict[str, Any] = {}
    for step in range(steps):
        parts = [part.to(on) for part in BATCHES.micro_batches(step)]
        stats = trainer.step(step, parts, bert_loss(parts))
    trainer.check()
    return model, trainer, {name: float(value) for name, value in stats.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_twice_gives_the_same_bits(dtype: torch.dtype) -> None:
    one, other = (train(6, dtype, dropout=0.1)[0] for _ in range(2))
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_training_follows_the_cpu() -> None:
    for dtype, share in ((torch.float32, 1e-4), (torch.bfloat16, 0.05)):
        stats = train(6, dtype, dropout=0.0)[2]
        wanted = train(6, torch.float32, dropout=0.0, on=torch.device("cpu"))[2]
        assert stats["mlm_loss"] == pytest.approx(wanted["mlm_loss"], rel=share)
        assert stats["lr"] == wanted["lr"]


def test_a_step_waits_for_nothing() -> None:
    model, trainer, _ = train(2, torch.bfloat16, dropout=0.1)
    parts = [part.to(GPU) for part in BATCHES.micro_batches(2)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.step(2, parts, bert_loss(parts))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert model.device == GPU


def test_a_bad_gradient_updates_nothing_and_is_told() -> None:
    model, trainer, _ = train(2, torch.bfloat16, dropout=0.0)
    before = copy.deepcopy(model)
    counts = [s["step"].clone() for s in trainer.optimizer.state.values()]
    parts = [part.to(GPU) for part in BATCHES.micro_batches(2)]

    def broken(model: EncoderModel, part: PretrainingBatch, dtype: torch.dtype) -> Any:
        value, stats = bert_loss(parts)(model, part, dtype)
        return value * float("inf"), stats

    trainer.step(2, parts, broken)
    assert all(map(torch.equal, model.parameters(), before.parameters()))
    assert all(map(torch.equal, (s["step"] for s in trainer.optimizer.state.values()), counts))
    with pytest.raises(RunError, match="step 3: the gradient is not finite"):
        trainer.check()


def test_held_out_measurements_are_the_cpus() -> None:
    model = small_model()
    batches = BATCHES.first(6)
    wanted = measure(model, batches, torch.float32, MaskedLM())
    found = measure(model.to(GPU), batches, torch.float32, MaskedLM())
    assert found.words.loss == pytest.approx(wanted.words.loss, rel=1e-4)
    assert [score.targets for score in found.scores] == [s.targets for s in wanted.scores]


def run_config(corpus: Path, run: Path, steps: int, *, minutes: float = 5.0) -> PretrainConfig:
    return PretrainConfig(
        corpus=str(corpus),
        run=str(run),
        model=SizeOptions(size="tiny", positions=64),
        clock=ClockOptions(steps=steps),
        phases=(Phase(length=64, batch=8, micro_batch=8),),
        device="cuda",
        precision="bf16",
        evaluate=EvaluateOptions(sequences=8),
        checkpoint=CheckpointOptions(minutes=minutes),
        log_every=2,
    )


def test_a_run_is_continued_with_the_same_bits(tiny_corpus: Path, tmp_path: Path) -> None:
    whole = pretrain(run_config(tiny_corpus, tmp_path / "whole", 8))
    records = [r for r in read_metrics(whole.run / METRICS) if "mfu" in r]
    assert records
    assert all(0 < r["mfu"] < 1 for r in records)
    # The same run, stopped after its first checkpoint and continued.
    config = run_config(tiny_corpus, tmp_path / "cut", 8, minutes=0.0)
    save = Checkpoint.save

    def save_and_stop(self: Checkpoint, step: int) -> None:
        save(self, step)
        if step == 4:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            pretrain(config)
    cut = pretrain(config)
    one, other = (load(r.model, device="cpu").network for r in (whole, cut))
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_loaded_model_answers_as_on_the_cpu(tiny_corpus: Path, tmp_path: Path) -> None:
    result = pretrain(run_config(tiny_corpus, tmp_path / "run", 4))
    gpu, cpu = (load(result.model, device=name) for name in ("cuda", "cpu"))  # type: ignore[arg-type]
    texts = ["the baker sold a small boat", "my aunt"]
    np.testing.assert_allclose(gpu.embed(texts), cpu.embed(texts), atol=1e-4)
    text = "the baker [MASK] a small boat."
    pairs = zip(gpu.fill_mask(text)[0], cpu.fill_mask(text)[0], strict=True)
    assert all(a.probability == pytest.approx(b.probability, abs=1e-4) for a, b in pairs)
    assert gpu.next_sentence(*texts) == pytest.approx(cpu.next_sentence(*texts), abs=1e-4)


def test_fine_tuning_follows_the_cpu(tmp_path: Path) -> None:
    """Steps of unequal size, rows of the table that are left out, and predictions."""
    start, data, scores = start_model(tmp_path), word_files(tmp_path), {}
    for name in ("cuda", "cpu"):
        config = word_config(start, data, tmp_path / name)
        config = replace(config, device=name, dropout=0.0, epochs=4)  # type: ignore[arg-type]
        result = finetune(config)
        scores[name] = result.mean()
        found = load(result.best.model, device="cpu").predict(["w1 w7 w9", "w1 w2"]).values
        scores[f"{name} probabilities"] = found.ravel().tolist()
    assert scores["cuda"] == pytest.approx(scores["cpu"], abs=0.05)
    assert scores["cuda probabilities"] == pytest.approx(scores["cpu probabilities"], abs=0.05)


def test_what_is_known_of_the_card() -> None:
    found = choose_device("auto")
    assert found.torch == GPU
    assert choose_precision("auto", GPU).name == "bf16"
    peak = find_peak(GPU, torch.bfloat16)
    assert 1e13 < peak.flops < 1e16, (found.name, peak)
    assert "GiB" in peak_memory_note(GPU)
