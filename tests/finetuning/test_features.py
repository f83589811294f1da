"""The feature-based approach: features that are the encoder's, kept, and a BiLSTM that learns."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bothways.api.info import info
from bothways.api.model import load
from bothways.errors import ConfigError, InputError, RunError
from bothways.finetuning import features as train
from bothways.finetuning.features import PAPER_SCORES, tag_by_features
from bothways.finetuning.options import LAYER_CHOICES, FeaturesConfig
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.model.recurrent import BiLSTM, FeatureTagger, LayerSum
from bothways.model.shared import Shared
from bothways.tasks.options import TaskOptions
from bothways.training import trainer
from bothways.training.optimizer import Optimizer, learning_rate
from bothways.training.options import OptimizerOptions
from bothways.training.trainer import Trainer
from model_examples import small_config, small_tokenizer

SHAPE = (4, 16, 4, 32, 97)


def word_file(path: Path, count: int, seed: int) -> Path:
    """w50 begins an entity, w60 to w63 go on."""
    rng = np.random.default_rng(seed)
    lines: list[str] = []
    for i in range(count):
        words = [f"w{n} O" for n in rng.integers(0, 40, int(rng.integers(1, 7)))]
        if i % 3:
            words += ["w50 B-X", f"w{rng.integers(60, 64)} I-X"]
        lines += [*words, ""]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def config(tmp_path: Path) -> FeaturesConfig:
    save_model(tmp_path / "model", EncoderModel(small_config(SHAPE), seed=2), small_tokenizer(97))
    return FeaturesConfig(
        task=TaskOptions(
            kind="tagging",
            train=str(word_file(tmp_path / "train.conll", 80, 0)),
            dev=str(word_file(tmp_path / "dev.conll", 20, 1)),
            test=str(word_file(tmp_path / "test.conll", 20, 2)),
        ),
        model=str(tmp_path / "model"),
        run=str(tmp_path / "run"),
        hidden=16,
        epochs=6,
        batch_size=8,
        max_length=12,
        optimizer=OptimizerOptions(lr=2e-2, warmup=0.1, weight_decay=0.0, bias_correction=True),
        precision="fp32",
        threads=1,
    )


def test_all_rows_of_the_table_in_one_run(
    config: FeaturesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "_PREDICT_WORDS", 50)  # so that there are several batches
    result = tag_by_features(config)
    assert list(result.dev) == list(LAYER_CHOICES) == list(PAPER_SCORES) == list(result.test)
    assert min(score for values in result.dev.values() for score in values) > 0.9
    shown = result.table()
    for choice, theirs in PAPER_SCORES.items():
        (row,) = [line for line in shown.splitlines() if f" {choice} " in line]
        assert f"{100 * result.dev[choice][0]:.2f}" in row
        assert "paper" not in shown, "its scores are of CoNLL-2003"
        assert f"{theirs:.1f}" in dataclasses.replace(result, task="CoNLL-2003").table()
    run = Path(config.run)
    record = json.loads((run / "sum-all/seed-0/metrics.json").read_text())
    assert len(record["layer_weights"]) == 4
    assert sum(record["layer_weights"]) == pytest.approx(1)
    assert (run / "last/seed-0/test_predictions.conll").exists()
    said = info(run)
    assert said.kind == "a finished run of `bothways reproduce features`"
    assert said.facts["dev f1, last"] == f"{result.dev['last'][0]:.4f}"

    # The same again computes nothing; another seed reads the features that are there.
    def refuse(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr("bothways.finetuning.features._compute", refuse)
    monkeypatch.setattr(Trainer, "step", refuse)
    assert tag_by_features(config).dev == result.dev
    monkeypatch.undo()
    monkeypatch.setattr("bothways.finetuning.features._compute", refuse)
    more = dataclasses.replace(config, seeds=(0, 1), layers=("last",))
    assert len(tag_by_features(more).dev["last"]) == 2
    monkeypatch.undo()
    with pytest.raises(RunError, match="hidden: 16 in the folder, 8 requested"):
        tag_by_features(dataclasses.replace(config, hidden=8))


def test_features_that_were_cut_off_are_computed_again(
    config: FeaturesConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    one = dataclasses.replace(config, layers=("last",), epochs=1)
    tag_by_features(one)
    array = Path(config.run) / "features/dev/layers.npy"
    whole = array.read_bytes()
    array.write_bytes(whole[: len(whole) // 2])
    capsys.readouterr()
    tag_by_features(dataclasses.replace(one, seeds=(0, 1)))
    assert "dev: computing" in capsys.readouterr().out
    assert array.read_bytes() == whole


def test_features_are_the_hidden_states_of_first_pieces(
    config: FeaturesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bothways.runtime.engine.PREDICT_TOKENS", 60)  # several batches
    one = dataclasses.replace(config, layers=("last",), epochs=1, max_length=None)
    tag_by_features(one)
    assert json.loads((Path(config.run) / "run.json").read_text())["recipe"]["max_length"] == 40
    kept = np.load(Path(config.run) / "features/dev/layers.npy")
    model = load(config.model)
    lines = (Path(config.task.dev)).read_text().split("\n\n")
    texts = [" ".join(line.split()[0] for line in part.splitlines()) for part in lines if part]
    for layer in range(5):
        own = [found.vectors for found in model.embed_tokens(texts, layers=[layer])]
        np.testing.assert_allclose(kept[:, layer], np.concatenate(own), atol=2e-3)


def test_every_step_is_one_of_training(
    config: FeaturesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout drawn anew, at the rate of the schedule, in a new order each epoch, and clipped."""
    config = dataclasses.replace(config, layers=("last",), epochs=2)
    draws, orders, rates, limits = [], [], [], []
    forward, clip = FeatureTagger.forward, torch.nn.utils.clip_grads_with_norm_
    make_optimizer = trainer.make_optimizer

    def watched(self: FeatureTagger, x_TLH: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        if torch.is_grad_enabled():
            assert self.training
            draws.append(self.shared.dropout(torch.ones(64), 0.5))
            self.shared.dropout.reseed(0)
            orders.append(tuple(lengths))
        return forward(self, x_TLH, lengths)

    def watched_optimizer(*args: Any, **options: Any) -> Optimizer:
        optimizer = make_optimizer(*args, **options)
        optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
        return optimizer

    def watched_clip(parameters: Any, limit: float, norm: torch.Tensor) -> None:
        limits.append(limit)
        clip(parameters, limit, norm)

    monkeypatch.setattr(FeatureTagger, "forward", watched)
    monkeypatch.setattr(trainer, "make_optimizer", watched_optimizer)
    monkeypatch.setattr(torch.nn.utils, "clip_grads_with_norm_", watched_clip)
    tag_by_features(config)
    steps = 80 // 8
    assert len({tuple(draw.tolist()) for draw in draws}) == 2 * steps
    assert orders[:steps] != orders[steps:]
    assert rates == [learning_rate(s, 2 * steps, config.optimizer) for s in range(2 * steps)]
    assert limits == [config.optimizer.clip] * 2 * steps


def whole(run: str | Path) -> dict[str, Any]:
    """What a tagger leaves, but for times."""
    folder = Path(run) / "sum-all/seed-0"
    found: dict[str, Any] = {path.name: path.read_bytes() for path in folder.iterdir()}
    scores = json.loads(found.pop("metrics.json"))
    assert scores.pop("seconds") > 0
    return {**found, "scores": scores}


@pytest.mark.parametrize("moment", [3, 10, 17])
def test_a_tagger_that_was_interrupted_ends_the_same(
    config: FeaturesConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    moment: int,
) -> None:
    """In an epoch of 10 steps, and while its scores are measured."""
    config = dataclasses.replace(config, layers=("sum-all",), epochs=2)
    tag_by_features(dataclasses.replace(config, run=str(tmp_path / "unbroken")))
    monkeypatch.setattr(train, "_CHECKPOINT_MINUTES", 0.0)
    steps, step = [], Trainer.step

    def stopped(*args: Any) -> Any:
        steps.append(args[1])
        if len(steps) == moment + 1:
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(Trainer, "step", stopped)
    with pytest.raises(KeyboardInterrupt):
        tag_by_features(config)
    capsys.readouterr()
    tag_by_features(config)
    assert steps == [*range(moment + 1), *range(moment, 20)]
    told = f"sum-all seed 0: continuing after step {moment} of 20"
    assert told in capsys.readouterr().out
    assert whole(config.run) == whole(tmp_path / "unbroken")


def test_what_is_refused(config: FeaturesConfig, tmp_path: Path) -> None:
    words = tmp_path / "words.conll"
    words.write_text("w1\nw2\n")
    for task in ("dev", "test"):
        changed = dataclasses.replace(config.task, **{task: str(words)})
        with pytest.raises(InputError, match=r"words\.conll:1: .*no column"):
            tag_by_features(dataclasses.replace(config, task=changed))
    with pytest.raises(ConfigError, match="model is missing"):
        tag_by_features(dataclasses.replace(config, model=""))
    with pytest.raises(ConfigError, match="feature extraction supports only tagging"):
        dataclasses.replace(config, task=TaskOptions())
    with pytest.raises(ConfigError, match=r"lr is 0; features needs a rate"):
        dataclasses.replace(config, optimizer=OptimizerOptions(lr=0.0))
    with pytest.raises(ConfigError, match=r"layers is \[last, last\]"):
        dataclasses.replace(config, layers=("last", "last"))


def test_the_bilstm_is_torchs_of_two_layers() -> None:
    ours = BiLSTM(5, 3, 2, dropout=0.5, shared=Shared(), seed=7).eval()
    theirs = nn.LSTM(5, 3, num_layers=2, bidirectional=True, batch_first=True)
    state = {}
    for number, layer in enumerate(ours.layers):
        for name, value in layer.state_dict().items():
            state[name.replace("_l0", f"_l{number}")] = value
    theirs.load_state_dict(state)
    lengths = [4, 1, 6]
    x = torch.randn(11, 5)
    expected = torch.cat([theirs(part[None])[0][0] for part in x.split(lengths)])
    torch.testing.assert_close(ours(x, lengths), expected)
    same = BiLSTM(5, 3, 2, dropout=0.5, shared=Shared(), seed=7)
    other = BiLSTM(5, 3, 2, dropout=0.5, shared=Shared(), seed=8)
    assert all(map(torch.equal, ours.parameters(), same.parameters()))
    assert not any(map(torch.equal, ours.parameters(), other.parameters()))


@pytest.mark.parametrize("without", [None, "between the layers", "before the output"])
def test_dropout_is_keyed(without: str | None) -> None:
    model = FeatureTagger(1, 5, 3, 4, summed=False, dropout=0.5, seed=0).train()
    if without == "between the layers":
        model.lstm._probability = 0.0
    elif without == "before the output":
        model._probability = 0.0
    x = torch.randn(6, 1, 5)
    outputs = []
    for seed in (1, 1, 2):
        model.shared.dropout.reseed(seed)
        outputs.append(model(x, [2, 4]))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_layers_are_summed_by_softmax_weights_and_a_scale() -> None:
    layers = LayerSum(3)
    x = torch.randn(4, 3, 2)
    torch.testing.assert_close(layers(x), x.mean(1))
    with torch.no_grad():
        layers.weights.copy_(torch.tensor([100.0, 0.0, 0.0]))
        layers.scale.fill_(2)
    torch.testing.assert_close(layers(x), 2 * x[:, 0])
