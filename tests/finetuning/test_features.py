"""The feature-based approach: features that are the encoder's, kept, and a BiLSTM that learns."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bothways import cli
from bothways.api.info import info
from bothways.api.model import load
from bothways.errors import ConfigError, DiskError, InputError, RunError
from bothways.finetuning import features as train
from bothways.finetuning.features import PAPER_SCORES, chosen_layers, tag_by_features
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
        batch=8,
        length=12,
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
    assert said.kind == "a finished run of `bothways features`"
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


def test_what_a_run_folder_holds_besides_is_said(
    config: FeaturesConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = dataclasses.replace(config, epochs=1, layers=("embeddings", "last"))
    tag_by_features(brief)
    scores = Path(config.run) / "last/seed-0/metrics.json"
    whole = scores.read_bytes()
    scores.write_bytes(whole[: len(whole) // 2])
    capsys.readouterr()
    last = dataclasses.replace(brief, layers=("last",))
    tag_by_features(last)
    shown = capsys.readouterr().out
    assert "finished earlier and not part of this result: embeddings/seed-0; to include" in shown
    assert "last/seed-0/metrics.json is damaged" in shown
    assert json.loads(scores.read_text())["dev"] == json.loads(whole)["dev"]
    read_text = Path.read_text

    def failing(self: Path, *args: Any, **options: Any) -> str:
        if self == scores:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return read_text(self, *args, **options)

    monkeypatch.setattr(Path, "read_text", failing)
    with pytest.raises(RunError, match=r"metrics.json cannot be read \(Permission denied\)"):
        tag_by_features(last)


def test_scores_of_another_seed_are_not_taken(
    config: FeaturesConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    two = dataclasses.replace(config, epochs=1, layers=("embeddings", "last"), seeds=(0, 1))
    tag_by_features(two)
    last = Path(config.run) / "last"
    expected = json.loads((last / "seed-1/metrics.json").read_text())
    for other in ("last/seed-0", "embeddings/seed-1"):
        shutil.rmtree(last / "seed-1")
        shutil.copytree(Path(config.run) / other, last / "seed-1")
        capsys.readouterr()
        tag_by_features(two)
        told = f"last/seed-1/metrics.json is of {other.replace('/seed-', ' seed ')}; trained again"
        assert told in capsys.readouterr().out
        found = json.loads((last / "seed-1/metrics.json").read_text())
        assert (found["dev"], found["seed"]) == (expected["dev"], 1)
    tag_by_features(two)
    assert "last seed 1: finished before, kept" in capsys.readouterr().out


def test_another_precision_is_taken_and_told(
    config: FeaturesConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    one = dataclasses.replace(config, layers=("last",), epochs=1)
    tag_by_features(one)
    kept = Path(config.run) / "features/dev"
    first = np.load(kept / "layers.npy")
    capsys.readouterr()
    more = dataclasses.replace(one, seeds=(0, 1), precision="bf16")
    tag_by_features(more)
    shown = capsys.readouterr().out
    assert "bf16: requested" in shown
    assert "changed since this run began" in shown
    assert "precision: fp32 -> bf16" in shown
    assert "last seed 0: finished before, kept" in shown
    assert not np.array_equal(np.load(kept / "layers.npy"), first)
    tag_by_features(dataclasses.replace(one, precision="auto"))
    assert "fp32: as when this run began" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load(kept / "layers.npy"), first)


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
    monkeypatch.setattr("bothways.finetuning.features.PREDICT_TOKENS", 60)  # several batches
    one = dataclasses.replace(config, layers=("last",), epochs=1, length=None)
    tag_by_features(one)
    assert json.loads((Path(config.run) / "run.json").read_text())["recipe"]["length"] == 40
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


def test_files_that_changed_behind_a_run_are_told(config: FeaturesConfig) -> None:
    config = dataclasses.replace(config, layers=("last",), epochs=1)
    tag_by_features(config)
    for name in ("train", "dev", "test"):
        path = Path(getattr(config.task, name))
        before = path.read_text()
        path.write_text(before + "\nw50 B-X\n")
        with pytest.raises(RunError, match=rf"on other content: task\.{name} \("):
            tag_by_features(config)
        path.write_text(before)
    tag_by_features(config)


def test_a_signal_lets_a_tagger_save_its_step(
    config: FeaturesConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(config, layers=("last",), epochs=2)
    step = Trainer.step

    def signalled(self: Any, number: int, *args: Any) -> Any:
        if number == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, number, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", signalled)
        with pytest.raises(KeyboardInterrupt):
            tag_by_features(config)
    assert "interrupted after step 5; the state is saved" in capsys.readouterr().out
    tag_by_features(config)
    assert "continuing after step 5 of 20" in capsys.readouterr().out
    assert not (Path(config.run) / "last/seed-0/checkpoints").exists()


def test_the_test_file_has_scores_of_its_own(config: FeaturesConfig) -> None:
    test = Path(config.task.test or "")
    test.write_text(test.read_text().replace("I-X", "O"))
    result = tag_by_features(dataclasses.replace(config, layers=("last",)))
    scores = json.loads((Path(config.run) / "last/seed-0/metrics.json").read_text())
    assert result.test["last"] == [scores["test"]["f1"]]
    assert result.dev["last"] == [scores["dev"]["f1"]]
    assert result.test["last"] != result.dev["last"]


def test_the_same_seed_gives_the_same_bits(config: FeaturesConfig, tmp_path: Path) -> None:
    one = dataclasses.replace(config, layers=("sum-last-four",), epochs=1)
    first = tag_by_features(one)
    torch.manual_seed(99)  # nothing is drawn from torch's own generator
    again = tag_by_features(dataclasses.replace(one, run=str(tmp_path / "again")))
    assert first.dev == again.dev
    records = [
        (Path(r.run) / "sum-last-four/seed-0/metrics.jsonl").read_text() for r in (first, again)
    ]
    assert records[0] == records[1]


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
    with pytest.raises(ConfigError, match=r"optimizer\.lr is 0; features needs a rate"):
        dataclasses.replace(config, optimizer=OptimizerOptions(lr=0.0))
    with pytest.raises(ConfigError, match=r"layers is \[last, last\]"):
        dataclasses.replace(config, layers=("last", "last"))


def test_which_layers_a_choice_reads() -> None:
    numbers = {choice: list(range(13))[chosen_layers(choice, 12)] for choice in LAYER_CHOICES}
    assert numbers == {
        "embeddings": [0],
        "second-to-last": [11],
        "last": [12],
        "sum-last-four": [9, 10, 11, 12],
        "concat-last-four": [9, 10, 11, 12],
        "sum-all": list(range(1, 13)),
    }
    for choice, layers in (("concat-last-four", 3), ("second-to-last", 1)):
        with pytest.raises(
            ConfigError, match=f"{choice!r} needs . layers, but this encoder has {layers};"
        ):
            chosen_layers(choice, layers)  # type: ignore[arg-type]


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


def test_a_disk_without_room_is_told_before_it_is_written_to(
    config: FeaturesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(DiskError, match="No space left"):
        tag_by_features(config)


def test_a_declared_task_by_name(config: FeaturesConfig, tmp_path: Path) -> None:
    """Its files and scheme; its fine-tuning settings are not those of a BiLSTM."""
    data = tmp_path / "conll2003"
    data.mkdir()
    for number, name in enumerate(("eng.train", "eng.testa", "eng.testb")):
        file = word_file(data / name, 20, number)
        file.write_text(file.read_text().replace("B-X", "I-X"))
    argv = ["features", "conll2003", "--data", str(data), "--model", config.model, "--run"]
    few = ["--layers", "last", "--hidden", "8", "--epochs", "1", "--length", "12"]
    assert cli.main([*argv, str(tmp_path / "named"), *few, "--precision", "fp32"]) == 0
    used = json.loads((tmp_path / "named/run.json").read_text())["config"]
    assert used["task"]["tagging"]["scheme"] == "iob1"
    assert used["optimizer"]["lr"] == 1e-3
    scores = json.loads((tmp_path / "named/last/seed-0/metrics.json").read_text())
    assert scores["test"].keys() == {"f1", "precision", "recall", "accuracy"}, "of eng.testb"
    assert cli.main(["features", "sst2", "--data", str(data)]) == 2
    two = TaskOptions(kind="tagging", measure=("a", "b"))
    with pytest.raises(ConfigError, match="name 2 files"):
        FeaturesConfig(task=two)
