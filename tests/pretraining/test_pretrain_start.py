"""Pre-training from an existing model (``--start``)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bothways.api.doctor import diagnose
from bothways.api.model import load
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, ModelError, StoreError
from bothways.families.config import ModelConfig
from bothways.families.heads import NEXT_SENTENCE
from bothways.families.options import SizeOptions
from bothways.model.engine import load_network, network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.pretraining.options import PairOptions, PretrainConfig
from bothways.pretraining.pretrain import PretrainResult, pretrain
from bothways.pretraining.start import starting_model
from bothways.runtime.folder import load_model
from bothways.runtime.stored import WEIGHTS
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.options import ClockOptions
from bothways.training.runfolder import read_run
from model_examples import BOTH_HEADS
from pretrain_runs import (
    Make,
    records,
    short_recipe,
    weights,
)


@pytest.fixture(scope="module")
def make(tiny_corpus: Path) -> Make:
    return short_recipe(tiny_corpus)


@pytest.fixture(scope="module")
def unbroken(make: Make, tmp_path_factory: pytest.TempPathFactory) -> PretrainResult:
    """A run that was never stopped. Read only."""
    return pretrain(make(tmp_path_factory.mktemp("unbroken") / "run"))


def starting(config: PretrainConfig) -> EncoderModel:
    return starting_model(config, TokenStore.open(config.corpus))


def test_starting_from_a_model_goes_on_from_its_weights(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    config = make(tmp_path / "run", start=str(unbroken.model), clock=ClockOptions(steps=3))
    state, theirs = starting(config).state_dict(), load_network(unbroken.model).state_dict()
    assert all(torch.equal(state[name], theirs[name]) for name in theirs)
    result = pretrain(config)
    first = records(result.run)[0]
    assert unbroken.heldout is not None
    assert first["heldout_mlm_loss"] == pytest.approx(unbroken.heldout.words.loss)
    assert read_run(result.run)["recipe"]["input.start"]
    assert weights(result.run) != weights(unbroken.run)


def test_heads_that_are_missing_are_drawn(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    loaded = load_model(unbroken.model)
    network_of(loaded).masked_lm = network_of(loaded).next_sentence = None
    save_model(tmp_path / "bare", network_of(loaded), loaded.tokenizer)
    config = make(tmp_path / "run", start=str(tmp_path / "bare"), clock=ClockOptions(steps=2))
    model, other = starting(config), starting(replace(config, seed=1))
    assert model.masked_lm is not None
    assert model.next_sentence is not None
    assert other.masked_lm is not None
    dense, output = model.masked_lm.dense.weight, model.next_sentence.output.weight
    assert not torch.equal(dense[:2], output), "the two heads have numbers of their own"
    assert not torch.equal(dense, other.masked_lm.dense.weight)
    fresh = EncoderModel(model.config, **BOTH_HEADS, seed=0)
    assert fresh.masked_lm is not None
    assert torch.equal(dense, fresh.masked_lm.dense.weight), "drawn as for a new model"
    assert (pretrain(config).model / WEIGHTS).exists()


def test_a_tagger_gets_the_pooler_of_a_new_model() -> None:
    shape = ModelConfig(97, 1, 16, 2, 32, positions=64)
    tagger = EncoderModel(shape, tags=3, seed=1)
    assert tagger.encoder.pooler is None
    before = {name: value.clone() for name, value in tagger.state_dict().items()}
    tagger.add_head(NEXT_SENTENCE, seed=5)
    new = EncoderModel(shape, next_sentence=True, seed=5)
    assert tagger.encoder.pooler is not None
    assert new.encoder.pooler is not None
    assert torch.equal(tagger.encoder.pooler.weight, new.encoder.pooler.weight)
    after = tagger.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("head", [{"classes": 3}, {"tags": 3}, {"spans": True}])
def test_a_task_head_is_left_behind(
    make: Make, tmp_path: Path, tiny_tokenizer: Tokenizer, head: dict[str, Any]
) -> None:
    shape = ModelConfig(tiny_tokenizer.vocab_size, 1, 16, 2, 32, positions=64)
    save_model(tmp_path / "tuned", EncoderModel(shape, **head), tiny_tokenizer)
    config = make(tmp_path / "run", start=str(tmp_path / "tuned"), clock=ClockOptions(steps=1))
    model = load_network(pretrain(config).model)
    assert model.task_head is None
    assert model.masked_lm is not None


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, (0.3, 0.2)),
        ({"dropout": 0.0}, (0.0, 0.2)),
        ({"dropout": 0.0, "attention_dropout": 0.1}, (0.0, 0.1)),
    ],
)
def test_the_dropout_of_a_start_is_its_own_or_that_of_the_options(
    given: dict[str, float],
    used: tuple[float, float],
    make: Make,
    tmp_path: Path,
    tiny_tokenizer: Tokenizer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = ModelConfig(tiny_tokenizer.vocab_size, 1, 16, 2, 32, positions=64)
    shape = replace(shape, dropout=0.3, attention_dropout=0.2)
    save_model(tmp_path / "start", EncoderModel(shape, **BOTH_HEADS), tiny_tokenizer)
    config = make(
        tmp_path / "run",
        start=str(tmp_path / "start"),
        model=SizeOptions(**given),
        clock=ClockOptions(steps=1),
    )
    layer = starting(config).encoder.layers[0]
    assert (layer.attention._probability, layer._probability) == used[::-1]
    result = pretrain(config)
    theirs = load_model(result.model).config
    assert (theirs.dropout, theirs.attention_dropout) == used
    said = f"dropout {used[0]:g}, of attention weights {used[1]:g}"
    assert said in capsys.readouterr().out
    recipe = read_run(result.run)["recipe"]
    assert (recipe["dropout"], recipe["attention_dropout"]) == used
    assert not {"size", "layers", "init"} & recipe.keys(), "they had no effect"
    pretrain(replace(config, model=replace(config.model, size="base")))  # the same run


def test_a_start_with_transposed_matrices(
    unbroken: PretrainResult, make: Make, tmp_path: Path
) -> None:
    """As in a pytorch_model.bin that was converted from TensorFlow: no checkpoint could be written
    of them."""
    held = load_file(unbroken.model / WEIGHTS)
    turned = {n: v.t().contiguous().t() if v.ndim == 2 else v for n, v in held.items()}
    runs = []
    for name, state in (("contiguous", held), ("transposed", turned)):
        start = shutil.copytree(unbroken.model, tmp_path / name)
        (start / WEIGHTS).unlink()
        torch.save(state, start / "pytorch_model.bin")
        config = make(tmp_path / f"from-{name}", start=str(start), clock=ClockOptions(steps=2))
        runs.append(pretrain(config).run)
    assert weights(runs[0]) == weights(runs[1])
    for file in (WEIGHTS, "training.safetensors"):
        one, other = ((run / "checkpoints" / "step-2" / file).read_bytes() for run in runs)
        assert one == other


def test_starting_from_what_does_not_fit_is_refused(
    make: Make, tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    def saved(name: str, tokenizer: Tokenizer, positions: int) -> str:
        shape = ModelConfig(tokenizer.vocab_size, 1, 16, 2, 32, positions=positions)
        save_model(tmp_path / name, EncoderModel(shape), tokenizer)
        return str(tmp_path / name)

    other = Tokenizer.from_pieces([*tiny_tokenizer.pieces, "extra"])
    with pytest.raises(StoreError, match="built with another vocabulary"):
        pretrain(make(tmp_path / "run", start=saved("other", other, 64)))
    with pytest.raises(ConfigError, match="length 32 is over the 30 positions"):
        pretrain(make(tmp_path / "run", start=saved("short", tiny_tokenizer, 30)))
    with pytest.raises(ModelError, match="does not exist"):
        pretrain(make(tmp_path / "run", start=str(tmp_path / "nowhere")))
    assert not (tmp_path / "run").exists()


def test_pairs_need_a_start_with_two_segments(
    make: Make, tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    shape = ModelConfig(tiny_tokenizer.vocab_size, 1, 16, 2, 32, positions=64, segments=1)
    save_model(tmp_path / "one", EncoderModel(shape), tiny_tokenizer)
    config = make(tmp_path / "run", start=str(tmp_path / "one"), clock=ClockOptions(steps=1))
    with pytest.raises(ConfigError, match=r"one distinguishes no segments .*--pairs-kind full or"):
        pretrain(config)
    assert not (tmp_path / "run").exists()
    assert pretrain(replace(config, pairs=PairOptions(kind="full"))).steps == 1


def test_places_are_counted_from_behind_the_padding_of_any_vocabulary(
    make: Make, tmp_path: Path
) -> None:
    """A RoBERTa on pieces whose padding is the first, as in transformers, [UNK] included."""
    transformers = pytest.importorskip("transformers")
    size = SizeOptions(family="roberta", layers=1, hidden=16, heads=2, positions=64)
    result = pretrain(
        make(tmp_path / "run", model=size, pairs=PairOptions("full"), clock=ClockOptions(steps=2))
    )
    model = load(result.model)
    assert diagnose(result.model) == []
    theirs = transformers.AutoModel.from_pretrained(result.model).eval()
    (encoding,) = model.tokenizer.encode_batch(["\N{SNOWMAN} a"])
    assert model.tokenizer.unk_id in encoding.ids
    with torch.no_grad():
        states = theirs(torch.tensor([encoding.ids])).last_hidden_state[0]
    own = model.embed_tokens(["\N{SNOWMAN} a"])[0].vectors
    assert own == pytest.approx(states[1:-1].numpy(), abs=1e-5)
