"""ELECTRA's objective: what is drawn, what is learned from it, and that a run can be resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bothways.api.model import load
from bothways.batch import IGNORE
from bothways.config.fields import to_dict
from bothways.errors import ConfigError, ModelError
from bothways.families import new_shape
from bothways.families.heads import REPLACED
from bothways.model.batch import PretrainingBatch, collate
from bothways.model.engine import load_network
from bothways.model.model import EncoderModel
from bothways.objectives.kinds import make_objective
from bothways.objectives.replaced import (
    GENERATOR,
    ReplacedTokens,
    generator_shape,
    make_generator,
    sample,
)
from bothways.pretraining.evaluation import measure
from bothways.pretraining.options import (
    MaskOptions,
    PairOptions,
    PretrainConfig,
)
from bothways.pretraining.pretrain import pretrain
from bothways.pretraining.start import new_model
from bothways.randomness import Purpose, uniform
from bothways.training.trainer import step_loss
from pretrain_runs import ALWAYS, after_step, records, short_recipe, stop
from pretrain_runs import weights as model_bytes
from pretraining_examples import memory_store, pair_batches, random_documents

ROWS = 38


def discriminator(seed: int = 3, share: Any = "all", dropout: float = 0.0) -> EncoderModel:
    """A small one, with a generator of half its size."""
    shape = new_shape(
        "electra",
        **{"vocab_size": ROWS, "layers": 2, "hidden": 32, "heads": 4, "intermediate": 48},
        **{"positions": 64, "embedding": 24, "dropout": dropout, "attention_dropout": dropout},
    )
    model = EncoderModel(shape, replaced=True, seed=seed)
    model.parts[GENERATOR] = make_generator(model, size=0.5, share=share, seed=seed)
    return model


def batches(count: int = 12, micro_batch: int = 4) -> list[PretrainingBatch]:
    store = memory_store(random_documents(np.random.default_rng(0), 40))
    pairs, masking = PairOptions(kind="single"), MaskOptions(mask=1.0, random=0.0)
    source = pair_batches(store, batch=count, micro_batch=micro_batch, pairs=pairs, masking=masking)
    return source.micro_batches(0)


def test_both_losses_are_those_of_the_paper() -> None:
    """Computed once more, with the tokens that the generator proposes."""
    model, (batch, *_) = discriminator().train(), batches()
    model.shared.dropout.reseed(7)
    found = ReplacedTokens().sums(model, batch, torch.float32)
    generator = model.parts[GENERATOR]
    assert isinstance(generator, EncoderModel)
    at, ids = batch.masked.positions[: batch.masked.count], batch.masked.ids[: batch.masked.count]
    x_MH = generator.encoder(batch.inputs)[at]
    logits = generator.masked_lm_logits(x_MH)[:, :ROWS]
    torch.testing.assert_close(found["mlm"].loss, F.cross_entropy(logits, ids, reduction="sum"))
    draws = uniform(7, Purpose.REPLACED, np.arange(len(at)))
    below = logits.softmax(-1).double().cumsum(-1)
    proposed = (below < torch.from_numpy(draws)[:, None]).sum(1)
    tokens = batch.inputs.tokens.clone()
    tokens[at] = proposed
    total = int(batch.inputs.bounds[-1])
    labels = torch.zeros(total)
    labels[at] = (proposed != ids).float()
    x_TH = model.encoder(replace(batch.inputs, tokens=tokens))[:total]
    guesses = model.logits(REPLACED, x_TH).squeeze(-1)
    expected = F.binary_cross_entropy_with_logits(guesses, labels, reduction="sum")
    torch.testing.assert_close(found["rtd"].loss, expected)
    assert found["rtd"].right == ((guesses > 0) == (labels > 0)).sum()
    assert found["rtd"].ones == labels.sum()
    assert 0 < int(labels.sum()) < len(at), "some proposals are the original tokens"


def test_proposals_follow_the_generators_distribution() -> None:
    model = discriminator()
    generator = model.parts[GENERATOR]
    assert isinstance(generator, EncoderModel)
    x_MH = torch.randn(1, generator.config.hidden).expand(20_000, -1)
    draws = torch.from_numpy(uniform(0, Purpose.REPLACED, np.arange(20_000)))
    counts = torch.bincount(sample(generator, x_MH, draws), minlength=ROWS)
    expected = generator.masked_lm_logits(x_MH[:1])[0, :ROWS].softmax(-1)
    assert len(counts) == ROWS, "rows of padding are never proposed"
    assert (counts / 20_000 - expected.detach()).abs().max() < 0.01
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert sample(generator, x_MH[:2], ends).tolist() == [0, ROWS - 1]


def test_no_gradient_passes_through_the_proposals() -> None:
    """The generator's own layers learn from the language model alone."""
    model, (batch, *_) = discriminator(share="none").train(), batches()
    ReplacedTokens().sums(model, batch, torch.float32)["rtd"].loss.backward()
    generator = model.parts[GENERATOR]
    assert all(p.grad is None for p in generator.parameters())
    assert model.encoder.layers[0].expand.weight.grad is not None  # type: ignore[union-attr]


@pytest.mark.parametrize(("share", "own"), [("all", 0), ("tokens", 4), ("none", 5)])
def test_embeddings_are_shared_as_asked(share: Any, own: int) -> None:
    model = discriminator(share=share)
    names = [n for n, _ in model.named_parameters() if n.startswith("parts.generator.encoder.emb")]
    assert len([n for n in names if "project" not in n]) == own
    table = model.encoder.embeddings.tokens.weight
    generator = model.parts[GENERATOR]
    assert isinstance(generator, EncoderModel)
    assert (generator.embedding_VH is table) == (share != "none")
    assert any(p is table for p in model.reused_parameters())
    assert not any(name.startswith("parts.") for name in model.own_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_layers_compute_the_same_gradients(dtype: torch.dtype) -> None:
    parts = batches()
    gradients = []
    for fast in (True, False):
        model = discriminator().train()
        model.shared.fast = fast
        for number, part in enumerate(parts):
            model.shared.dropout.reseed(number)
            loss = step_loss(parts, ReplacedTokens())
            loss(model, part, dtype)[0].backward()
        gradients.append(
            {n: p.grad.float() for n, p in model.named_parameters() if p.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    # In bf16 a proposal may differ where a draw falls on a border.
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    for name, one in gradients[0].items():
        two = gradients[1][name]
        assert (one - two).norm() <= tolerance * two.norm() + 1e-6, name


def test_evaluation_draws_the_same_each_time() -> None:
    model, parts = discriminator(dropout=0.3).train(), batches()
    model.shared.dropout.reseed(1)
    one = measure(model, parts, torch.float32, ReplacedTokens())
    model.shared.dropout.reseed(2)
    assert measure(model, parts, torch.float32, ReplacedTokens()) == one
    assert one.second is not None
    assert one.second.targets == sum(int(b.inputs.bounds[-1]) for b in parts)
    assert 0.5 <= one.second.baseline < 1
    masked = sum(int((b.masked.ids != IGNORE).sum()) for b in parts)
    assert one.words.targets == masked
    assert "; replaced-token accuracy " in one.sentence()


@pytest.fixture
def make(tiny_corpus: Path) -> Callable[..., PretrainConfig]:
    base = short_recipe(tiny_corpus)

    def config(run: Path, **changes: Any) -> PretrainConfig:
        made = base(run)
        return replace(
            made,
            **{
                "model": replace(made.model, family="electra", hidden=32, heads=4, layers=2),
                "pairs": PairOptions(kind="full"),
                "masking": MaskOptions(mask=1.0, random=0.0),
                "objective": ("replaced", "size=0.5"),
                **changes,
            },
        )

    return config


def test_a_run_goes_on_from_any_step(make: Callable[..., PretrainConfig], tmp_path: Path) -> None:
    whole = pretrain(make(tmp_path / "whole"))
    config = make(tmp_path / "run", checkpoint=ALWAYS)
    for number in (4, 23):
        with after_step(number, stop), pytest.raises(Exception, match=r"^$"):
            pretrain(config)
    result = pretrain(config)
    assert model_bytes(result.run) == model_bytes(whole.run)
    generators = [(r.run / GENERATOR / "model.safetensors").read_bytes() for r in (result, whole)]
    assert generators[0] == generators[1]
    assert records(result.run) == records(whole.run)


KILLED = """
import json, os, signal, sys
from bothways.config.fields import from_dict
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.pretrain import pretrain
from bothways.training import monitor
from bothways.training.trainer import Trainer
monitor.draw_panels = lambda *_, **__: b""
step = Trainer.step
def watched(self, number, *rest):
    if number == 17:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, number, *rest)
Trainer.step = watched
pretrain(from_dict(PretrainConfig, json.loads(sys.argv[1])))
"""


def test_a_killed_run_ends_with_the_same_weights(
    make: Callable[..., PretrainConfig], tmp_path: Path
) -> None:

    config = make(tmp_path / "run", checkpoint=ALWAYS)
    code = [sys.executable, "-c", KILLED, json.dumps(to_dict(config))]
    assert subprocess.run(code, capture_output=True).returncode == -signal.SIGKILL
    assert (tmp_path / "run/checkpoints/step-17").is_dir()
    result, whole = pretrain(config), pretrain(make(tmp_path / "whole"))
    assert model_bytes(result.run) == model_bytes(whole.run)


def test_both_folders_are_theirs(make: Callable[..., PretrainConfig], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    result = pretrain(make(tmp_path / "run"))
    for folder, name in (
        (result.model, "ElectraForPreTraining"),
        (result.run / GENERATOR, "ElectraForMaskedLM"),
    ):
        kind = getattr(transformers, name)
        theirs, told = kind.from_pretrained(folder, output_loading_info=True)
        assert not told["missing_keys"], told
        assert not told["unexpected_keys"], told
        ours = load_network(folder)
        ids = torch.randint(5, ours.config.vocab_size, (2, 9))
        with torch.no_grad():
            hidden = theirs.eval().electra(ids).last_hidden_state
            inputs = collate(ids.tolist(), [[0] * 9] * 2, max_positions=9)
            own = ours.encoder(inputs)[:18].view(2, 9, -1)
            torch.testing.assert_close(own, hidden, atol=1e-5, rtol=0)
    found = load(result.model)
    with pytest.raises(ModelError, match="discriminator"):
        found.fill_mask("a [MASK]")
    assert load(result.run / GENERATOR).fill_mask("a [MASK]")


def test_what_it_does_not_go_with() -> None:
    for name in ("replaced", "left_to_right"):
        with pytest.raises(ConfigError, match=r"choose pairs_kind full or single"):
            make_objective([name], "next")
    shape = discriminator().config
    config = PretrainConfig(
        objective="replaced",  # type: ignore[arg-type]
        parallel="fsdp",
        pairs=PairOptions(kind="full"),
    )
    with pytest.raises(ConfigError, match="fsdp"):
        new_model(config, shape)
    for words, problem in {
        ("mlm",): "choose from masked",
        ("no_such:Thing",): "cannot be imported",
        ("replaced", "sizes=1"): "no option 'sizes'; it has size",
        ("replaced", "size=x"): "must be of type float",
        ("replaced", "share=some"): "choose from all",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            make_objective(words, "full")
    with pytest.raises(ConfigError, match=r"size is 0\.3; .*0\.25, 0\.5, 0\.75, 1\."):
        generator_shape(shape, size=0.3)


def test_only_families_with_such_a_head(
    make: Callable[..., PretrainConfig], tmp_path: Path
) -> None:
    config = make(tmp_path / "run")
    with pytest.raises(ModelError, match="replaced"):
        pretrain(replace(config, model=replace(config.model, family="bert")))
