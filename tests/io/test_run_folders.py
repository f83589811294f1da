"""A run folder stands for its model wherever one is asked for; where it cannot, it is said what it
is and what to name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bothways import cli
from bothways.api.model import load
from bothways.errors import ModelError
from bothways.io.hub import model_folder
from bothways.model.folder import save_model
from bothways.runtime.folder import load_model
from model_examples import BOTH_HEADS, small_bert, small_tokenizer


def model(folder: Path) -> Path:
    save_model(folder, small_bert(**BOTH_HEADS), small_tokenizer(97), {})
    return folder


def run(folder: Path, models: list[str], *, finished: bool = True) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    for name in models:
        model(folder / name)
    if finished:
        (folder / "report.json").write_text(json.dumps({"models": models}))
    return folder


@pytest.fixture
def pretraining(tmp_path: Path) -> Path:
    return run(tmp_path / "own", ["model"], finished=False)


def test_a_run_with_one_model_stands_for_it(pretraining: Path, tmp_path: Path) -> None:
    one = run(tmp_path / "one", ["seed-0/model"])
    assert model_folder(pretraining) == pretraining / "model"
    assert model_folder(one) == one / "seed-0" / "model"
    assert model_folder(str(one / "seed-0")) == one / "seed-0" / "model"
    assert load(pretraining).folder == pretraining / "model"


def test_verbs_take_a_pretraining_run(
    pretraining: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "vectors.npz")
    for words in (
        ["fill-mask", str(pretraining), "w1 [MASK]"],
        ["next-sentence", str(pretraining), "w1", "w2"],
        ["embed", str(pretraining), "w1", "--precision", "fp32", "--out", out],
        ["tokenize", str(pretraining), "w1"],
        ["convert", str(pretraining), str(tmp_path / "converted")],
        ["info", str(pretraining)],
    ):
        assert cli.main(words) == 0, words
    assert f"{pretraining}: a" in capsys.readouterr().out


def test_several_models_are_named(tmp_path: Path) -> None:
    two = run(tmp_path / "two", ["seed-0/model", "seed-1/model"])
    with pytest.raises(ModelError, match=r"run folder; name a model in it: .*seed-0/model.*seed-1"):
        load_model(two)
    assert cli.main(["tokenize", str(two), "w1"]) == 0, "they have one vocabulary"


def test_an_unfinished_run_names_what_was_saved(tmp_path: Path) -> None:
    unfinished = run(tmp_path / "unfinished", [], finished=False)
    with pytest.raises(ModelError, match=r"not finished .*the same command continues it"):
        load_model(unfinished)
    saved = model(unfinished / "checkpoints" / "step-4")
    with pytest.raises(ModelError, match=f"name a model in it: .*checkpoints/{saved.name}"):
        load_model(unfinished)
    run(tmp_path / "half", ["seed-0/model"], finished=False)
    assert model_folder(tmp_path / "half") == tmp_path / "half", "another seed is to come"


def test_other_folders_and_files_say_what_they_are(
    pretraining: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "corpus.json").write_text("{}")
    small_tokenizer(97).save(tmp_path / "vocabulary")
    (tmp_path / "mine.yaml").write_text("steps: 1\n")
    weights = pretraining / "model" / "model.safetensors"
    for path, said in (
        (tmp_path / "corpus", "this is a corpus, not a model"),
        (tmp_path / "vocabulary", "it holds a vocabulary, and no model"),
        (tmp_path / "mine.yaml", "mine.yaml.*this is a file; a model is a folder"),
        (weights, f"name its folder: {weights.parent}"),
    ):
        with pytest.raises(ModelError, match=said):
            load_model(path)
    assert cli.main(["corpus", "show", str(pretraining)]) != 0
    assert "this is not a corpus folder" in capsys.readouterr().err
