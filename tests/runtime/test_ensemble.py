"""Ensembles: what is averaged, which models go together, and run folders as ensembles."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from bothways import cli
from bothways.api.model import load
from bothways.config.fields import values_of
from bothways.errors import ModelError
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig, SearchOptions
from bothways.finetuning.setup import measured_outputs
from bothways.model.engine import TorchEngine, load_network
from bothways.model.folder import save_model
from bothways.runtime.ensemble import Ensemble, _pooled, combine, load_ensemble
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import encode_file, evaluate_file, outputs_of
from bothways.tasks.examples import Examples
from bothways.tasks.kinds import task_of
from bothways.tasks.options import SpanOptions, TaskOptions
from bothways.tokenization.tokenizer import Tokenizer
from finetuning_examples import start_model, word_config, word_files
from model_examples import small_bert, small_tokenizer


def examples_of(rows: list[int]) -> Examples:
    """Items with so many rows each."""
    ends = np.cumsum([0, *rows])
    tokens = np.zeros(ends[-1], np.int32)
    return Examples(
        tokens, np.zeros(len(tokens), np.int8), bounds=ends, items=np.arange(len(ends)),
        read_positions=np.arange(ends[-1]), owners=np.zeros(len(rows), np.int64),
    )  # fmt: skip


def random_outputs(models: int, rows: int, columns: int) -> list[np.ndarray]:
    rng = np.random.default_rng(models + rows)
    return [rng.normal(0, 3, (rows, columns)).astype(np.float32) for _ in range(models)]


def test_classes_are_averaged_as_probabilities() -> None:
    found = random_outputs(3, 7, 4)
    expected = np.mean([softmax(f, axis=-1) for f in found], axis=0)
    np.testing.assert_allclose(
        softmax(combine("class", found, examples_of([1] * 7)), axis=-1), expected, rtol=1e-5
    )


def test_scores_are_averaged() -> None:
    found = random_outputs(3, 7, 1)
    np.testing.assert_allclose(
        combine("score", found, examples_of([1] * 7)), np.mean(found, axis=0), rtol=1e-5
    )


def test_places_are_averaged_within_each_item() -> None:
    found = random_outputs(2, 9, 2)
    combined = combine("place", found, examples_of([4, 2, 3]))
    for part in (slice(0, 4), slice(4, 6), slice(6, 9)):
        expected = np.mean([softmax(f[part], axis=0) for f in found], axis=0)
        np.testing.assert_allclose(softmax(combined[part], axis=0), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["class", "place", "score"])
@given(copies=st.integers(1, 4), scale=st.floats(0.1, 80))
def test_a_model_agrees_with_itself(kind: str, copies: int, scale: float) -> None:
    """In its logits, not only its probabilities: windows of a passage are compared by them."""
    (found,) = random_outputs(1, 6, 3)
    found = found * np.float32(scale)
    combined = combine(kind, [found] * copies, examples_of([4, 2]))  # type: ignore[arg-type]
    np.testing.assert_allclose(combined, found, rtol=1e-4, atol=1e-4 * scale)
    assert combined.dtype == np.float32


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    folder = tmp_path_factory.mktemp("ensemble")
    return word_config(start_model(folder), word_files(folder), folder / "run")


@pytest.fixture(scope="module")
def run(config: FinetuneConfig) -> Path:
    """A run folder of two seeds that are not sure of anything."""
    finetune(dataclasses.replace(config, seeds=(0, 1)))
    return Path(config.run)


def test_a_run_folder_stands_for_its_seeds(
    config: FinetuneConfig, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [run / "seed-0" / "model", run / "seed-1" / "model"]
    loaded = load_ensemble([run])
    assert isinstance(loaded, Ensemble)
    assert loaded.others == (folders[1],)
    again = load_ensemble([folders[0], run, folders[1].parent / "." / "model"])
    assert isinstance(again, Ensemble)
    assert again.others == (folders[1],)  # each counts once
    assert not isinstance(load_ensemble([folders[0], folders[0]]), Ensemble)
    turned = load_ensemble([folders[1], run])  # the first that is named speaks for all
    assert isinstance(turned, Ensemble)
    assert turned.others == (folders[0],)
    texts = ["w7 w9 w11", "w20 w21"]
    np.testing.assert_array_equal(load(folders[1], run).embed(texts), load(folders[1]).embed(texts))
    dev = config.task.dev
    task, part = encode_file(loaded, dev, labelled=True)
    found = outputs_of(loaded, task, part.examples)
    single = [measured_outputs(TorchEngine(load_network(f)), part.examples) for f in folders]
    expected = np.log(np.mean([softmax(s.astype(np.float64), axis=-1) for s in single], axis=0))
    np.testing.assert_allclose(log_softmax(found, axis=-1), expected, atol=1e-5)
    assert evaluate_file(loaded, dev).scores == task.measure(part, task.decode(part, found)).scores

    both = load(*folders).predict(texts).values
    np.testing.assert_allclose(both, np.mean([load(f).predict(texts).values for f in folders], 0))
    capsys.readouterr()
    assert cli.main(["predict", str(run), *texts]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose([[float(p) for p in li[1:]] for li in lines[1:]], both, atol=1e-6)
    words = ["predict", str(folders[0]), "--ensemble", str(folders[1]), "--file", dev]
    assert cli.main(words) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    probabilities = softmax(found.astype(np.float64), axis=-1)
    np.testing.assert_allclose(
        [[float(p) for p in li[2:]] for li in lines[1:]], probabilities, atol=1e-6
    )
    assert cli.main(["evaluate", str(run), dev]) == 0
    accuracy = evaluate_file(loaded, dev).scores["accuracy"]
    assert f"accuracy: {accuracy:.4f}" in capsys.readouterr().out


def test_a_search_stands_for_the_seeds_of_its_choice(
    config: FinetuneConfig, tmp_path: Path
) -> None:
    asked = dataclasses.replace(
        config, run=str(tmp_path / "run"), search=SearchOptions(lr=(3e-3, 1e-9)), seeds=(0, 1)
    )
    result = finetune(asked)
    loaded = load_ensemble([asked.run])
    assert isinstance(loaded, Ensemble)
    assert loaded.others == (result.run / "seed-1" / "model",)
    assert loaded.about["setting"] == result.setting


def test_models_that_do_not_go_together(run: Path, tmp_path: Path) -> None:
    model = run / "seed-0" / "model"
    tokenizer = small_tokenizer(97)

    def other(**about: object) -> Path:
        theirs = load_model(model).about
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        save_model(folder, load_network(model), tokenizer, {**theirs, **about})
        return folder

    for folder, problem in (
        (other(labels=["with", "or not"]), "different labels"),
        (other(length=20), "different lengths: 16 and 20"),
        (other(pair=True), "different inputs"),
        (other(options={"text": "said"}), r"differ in text: \w+, said"),
    ):
        with pytest.raises(ModelError, match=problem):
            load_ensemble([model, folder])
    save_model(tmp_path / "none", small_bert(), tokenizer)
    with pytest.raises(ModelError, match="no task head"):
        load_ensemble([model, tmp_path / "none"])
    tokenizer = Tokenizer.from_pieces([*tokenizer.pieces[:-1], "other"], lowercase=True)
    with pytest.raises(ModelError, match="different vocabularies"):
        load_ensemble([model, other()])
    tokenizer = small_tokenizer(97)
    # Another name and other metrics are no other task.
    assert isinstance(load_ensemble([model, other(task="renamed")]), Ensemble)


def test_tuned_thresholds_are_averaged(run: Path) -> None:
    def options(**spans: Any) -> dict[str, Any]:
        return values_of(TaskOptions(kind="spans", spans=SpanOptions(**spans)))

    pooled = _pooled([options(threshold=1.0), options(threshold=4.0)], [run, run])
    assert pooled == TaskOptions(kind="spans", spans=SpanOptions(threshold=2.5))
    with pytest.raises(ModelError, match=r"differ in spans_stride: 128, 64"):
        _pooled([options(), options(stride=64)], [run, run])


def test_an_unfinished_run_names_the_remedy(run: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text((run / "run.json").read_text())
    with pytest.raises(ModelError, match="finish the fine-tuning run"):
        load_ensemble([tmp_path / "run"])
    for models in (5, "seed-0/model", []):
        (tmp_path / "run" / "report.json").write_text(json.dumps({"models": models}))
        with pytest.raises(ModelError, match=r"report\.json names no models; name a model folder"):
            load_ensemble([tmp_path / "run"])
    assert (
        task_of(load_ensemble([run])).options == task_of(load_model(run / "seed-0/model")).options
    )
