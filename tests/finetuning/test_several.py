"""Several labels and several scores per text, from files to saved answers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

import bothways as bw
from bothways.api.doctor import diagnose
from bothways.cli import main
from bothways.finetuning.finetune import Seed, finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.results import FinetuneResult
from bothways.runtime.ensemble import combine, load_ensemble
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import evaluate_file
from bothways.tasks.examples import Examples
from bothways.tasks.options import WindowOptions
from bothways.training.options import SavingOptions
from finetuning_examples import assert_same, start_model, weights
from several_examples import label_config, label_files, score_config, score_files


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return score_files(label_files(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def trained(
    start: Path, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[FinetuneConfig, FinetuneResult]:
    config = label_config(start, data, tmp_path_factory.mktemp("run") / "run")
    config = dataclasses.replace(config, seeds=(0, 1))
    return config, finetune(config)


def test_labels_are_learned_and_kept(
    trained: tuple[FinetuneConfig, FinetuneResult], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, result = trained
    assert result.best.measurement.scores["f1_micro"] > 0.78
    assert result.baseline["f1_micro"] < 0.7
    assert finetune(config) == result
    seed = result.seeds[0]
    about = json.loads((seed.model / "bothways.json").read_text())
    assert about["format"] == 2
    assert "options" not in about
    of_task = about["tasks"]["classifier"]
    assert (of_task["kind"], of_task["labels"]) == ("multilabel", ["blue", "green", "red"])
    assert len(of_task["options"]["multilabel"]["thresholds"]) == 3
    values = json.loads((seed.model / "config.json").read_text())
    assert values["problem_type"] == "multi_label_classification"
    assert diagnose(seed.model) == []
    # evaluate repeats the scores to the last bit, label by label.
    loaded = load_ensemble([seed.model])
    found = evaluate_file(loaded, data / "dev.jsonl")
    assert (found.scores, found.parts) == (seed.measurement.scores, seed.measurement.parts)
    assert main(["evaluate", str(seed.model), str(data / "dev.jsonl")]) == 0
    printed = capsys.readouterr().out
    assert f"f1_micro: {found.scores['f1_micro']:.4f}" in printed
    assert "\tprecision\trecall\tf1\taverage_precision\tsupport" in printed
    # Predictions of files and of texts are the same.
    lines = [
        line.split("\t") for line in (seed.folder / "dev_predictions.tsv").read_text().splitlines()
    ]
    assert lines[0] == ["index", "prediction", "gold", "p(blue)", "p(green)", "p(red)"]
    texts = [json.loads(line)["sentence"] for line in (data / "dev.jsonl").open()]
    predicted = bw.load(seed.model).predict(texts)
    assert [json.loads(line[1]) for line in lines[1:]] == predicted.labels
    assert predicted.names == ("blue", "green", "red")
    assert predicted.values.shape == (64, 3)
    assert [] in predicted.labels
    # Without torch they are, too: thresholds are of the folder, not of what computes it.
    other = bw.load(seed.model, engine="onnxruntime").predict(texts)
    assert other.labels == predicted.labels
    assert other.values == pytest.approx(predicted.values, abs=1e-4)
    evaluated = ["evaluate", str(seed.model), str(data / "dev.jsonl"), "--engine", "onnxruntime"]
    capsys.readouterr()
    assert main(evaluated) == 0
    assert capsys.readouterr().out.rstrip("\n") in printed
    page = (result.run / "report.html").read_text()
    assert "average precision" in page
    assert "threshold" in page
    assert main(["predict", str(seed.model), "w9 w7 w10"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "label\tp(blue)\tp(green)\tp(red)"
    assert "red" in json.loads(printed[1].split("\t")[0])


def test_an_ensemble_averages_probabilities_and_thresholds(
    trained: tuple[FinetuneConfig, FinetuneResult], data: Path
) -> None:
    _, result = trained
    ensemble = bw.load(result.run)
    alone = [bw.load(seed.model).predict(["w9 w7 w6"]).values for seed in result.seeds]
    found = ensemble.predict(["w9 w7 w6"])
    assert found.values == pytest.approx(np.mean(alone, axis=0), abs=1e-6)
    options = [load_model(seed.model).about["options"] for seed in result.seeds]
    mean = np.mean([o["multilabel"]["thresholds"] for o in options], axis=0)
    pooled = ensemble.loaded.about["options"]["multilabel"]["thresholds"]
    assert pooled == pytest.approx(mean.tolist())
    assert evaluate_file(ensemble.loaded, data / "dev.jsonl").scores["f1_micro"] > 0.75
    # Models that agree give what each gives, also where probabilities are 0 or 1.
    logits = np.array([[-80, 3.5, 90]], dtype=np.float32)
    one = Examples.of_sequences(np.zeros(1, np.int32), np.zeros(1, np.int8), np.arange(2))
    assert combine("labels", [logits, logits], one) == pytest.approx(logits)
    mixed = combine("labels", [logits, -logits], one)
    assert expit(mixed) == pytest.approx(np.full((1, 3), 0.5))


def test_an_interrupted_run_ends_with_the_same_weights_and_thresholds(
    start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(
        label_config(start, data, tmp_path / "whole"), epochs=2, checkpoint=SavingOptions(0.0)
    )
    whole = finetune(config)
    broken = dataclasses.replace(config, run=str(tmp_path / "broken"))
    predict, measured = Seed.predict_dev, []

    def stop(self: Seed) -> object:
        measured.append(self)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return predict(self)

    monkeypatch.setattr(Seed, "predict_dev", stop)
    with pytest.raises(KeyboardInterrupt):
        finetune(broken)
    monkeypatch.setattr(Seed, "predict_dev", predict)
    again = finetune(broken)
    assert_same(weights(config.run), weights(broken.run))
    assert again.scores == whole.scores
    one, two = (load_model(run.seeds[0].model).about["options"] for run in (whole, again))
    assert one == two


def test_windows_and_files_with_a_separator(start: Path, data: Path, tmp_path: Path) -> None:
    for name in ("train", "dev"):
        items = [json.loads(line) for line in (data / f"{name}.jsonl").open()]
        lines = [f"{item['sentence']}\t{'|'.join(item['label'])}" for item in items]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    config = label_config(start, data, tmp_path / "run")
    task = dataclasses.replace(
        config.task,
        train=str(tmp_path / "train.tsv"),
        dev=str(tmp_path / "dev.tsv"),
        label_separator="|",
        long="windows",
        windows=WindowOptions(pooling="max"),
    )
    result = finetune(dataclasses.replace(config, task=task, epochs=1, max_length=7))
    assert any("windows" in note for note in result.notes)
    loaded = load_ensemble([result.seeds[0].model])
    for file in (tmp_path / "dev.tsv", data / "dev.jsonl"):  # lists are read too
        assert evaluate_file(loaded, file).scores == result.seeds[0].measurement.scores


def test_labels_without_an_example_are_named(start: Path, data: Path, tmp_path: Path) -> None:
    config = label_config(start, data, tmp_path / "run")
    task = dataclasses.replace(config.task, labels=("red", "green", "blue", "black"))
    result = finetune(dataclasses.replace(config, task=task, epochs=1))
    assert "train.jsonl: no example has the labels 'black'" in result.notes
    assert "no example has the labels" in (result.run / "report.html").read_text()


def test_several_scores(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = finetune(score_config(start, data, tmp_path / "run"))
    (seed,) = result.seeds
    assert seed.measurement.scores["pearson"] > 0.4
    assert list(seed.measurement.parts) == ["colour", "warmth"]
    found = evaluate_file(load_ensemble([seed.model]), data / "dev.tsv")
    assert (found.scores, found.parts) == (seed.measurement.scores, seed.measurement.parts)
    predicted = bw.load(seed.model).predict(["w9 w10", "w7"])
    assert (predicted.labels, predicted.names) == ([], ("colour", "warmth"))
    assert predicted.values.shape == (2, 2)
    values = json.loads((seed.model / "config.json").read_text())
    assert values["problem_type"] == "regression"
    assert values["id2label"] == {"0": "colour", "1": "warmth"}
    capsys.readouterr()
    file = ["--file", str(data / "dev.tsv"), "--set", "submission=true"]
    assert main(["predict", str(seed.model), *file]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "index\tprediction(colour)\tprediction(warmth)"
    assert len(printed) == 65
