"""Ranking: the scores of sentence-transformers' CrossEncoder, from folders of any of its
versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bothways.api.model import load
from bothways.cli import main
from bothways.errors import InputError, ModelError
from bothways.model.folder import save_model
from model_examples import small_bert, small_tokenizer

QUERY = "w1 w2 w3"
TEXTS = ["w7", "w4 w5", " ".join(f"w{i}" for i in range(60)), "", "w9 w9 w9 w1"]
TORCHS = "torch.nn.modules."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one output, as transformers would save it."""
    save_model(tmp_path, small_bert(classes=1), small_tokenizer(97), {"kind": "regression"})
    (tmp_path / "bothways.json").unlink()
    return tmp_path


def change(path: Path, **values: Any) -> None:
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**old, **values}))


def cross_encoder(folder: Path) -> Any:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(folder), device="cpu", local_files_only=True)


def check(folder: Path) -> list[float]:
    """Our scores, found equal to those of sentence-transformers."""
    theirs = cross_encoder(folder).predict([(QUERY, text) for text in TEXTS])
    ranked = load(folder).rank(QUERY, TEXTS)
    assert [one.text for one in ranked] == [TEXTS[one.index] for one in ranked]
    assert [one.score for one in ranked] == sorted((r.score for r in ranked), reverse=True)
    ours = {one.index: one.score for one in ranked}
    np.testing.assert_allclose([ours[n] for n in range(len(TEXTS))], theirs, rtol=0, atol=1e-5)
    return [ours[n] for n in range(len(TEXTS))]


@pytest.mark.parametrize("name", ["activation.Sigmoid", "linear.Identity", "activation.Tanh"])
@pytest.mark.parametrize("layout", ["4 and 5", "before 4", "6"])
def test_the_activation_that_a_folder_names(folder: Path, name: str, layout: str) -> None:
    if layout == "4 and 5":
        change(folder / "config.json", sentence_transformers={"activation_fn": TORCHS + name})
    elif layout == "before 4":
        change(folder / "config.json", sbert_ce_default_activation_function=TORCHS + name)
    else:
        model = cross_encoder(folder)
        model.activation_fn = getattr(torch.nn, name.rpartition(".")[2])()
        folder = folder / "saved"
        model.save_pretrained(str(folder))
        assert (folder / "modules.json").exists()
    check(folder)
    assert not any("ignores" in note for note in load(folder).loaded.notes)


def test_a_sigmoid_if_none_is_named_and_the_length_of_the_tokenizer(folder: Path) -> None:
    whole = check(folder)
    change(folder / "tokenizer_config.json", model_max_length=12)
    assert np.any(np.array(check(folder)) != whole)


def test_a_prompt_stands_before_the_query(folder: Path, tmp_path: Path) -> None:
    plain = check(folder)
    model = cross_encoder(folder)
    model.prompts, model.default_prompt_name = {"q": "w9 w9 ", "other": "w8"}, "q"
    model.save_pretrained(str(tmp_path / "saved"))
    assert np.abs(np.array(check(tmp_path / "saved")) - plain).max() > 1e-3
    load(tmp_path / "saved").save(tmp_path / "ours")
    scores = [[r.score for r in load(tmp_path / n).rank(QUERY, TEXTS)] for n in ("saved", "ours")]
    assert scores[0] == scores[1]
    model.default_prompt_name = None
    model.save_pretrained(str(tmp_path / "none"))
    np.testing.assert_allclose(check(tmp_path / "none"), plain, rtol=0, atol=1e-6)


def test_a_folder_whose_long_texts_are_cut_at_their_beginning_is_told(folder: Path) -> None:
    assert not load(folder).loaded.notes
    change(folder / "tokenizer_config.json", truncation_side="left")
    assert any("truncation_side is left" in note for note in load(folder).loaded.notes)


def test_what_is_not_computed_is_refused(folder: Path) -> None:
    change(folder / "config.json", sentence_transformers={"activation_fn": TORCHS + "x.Softplus"})
    with pytest.raises(ModelError, match=r"also has the activation torch.nn.modules.x.Softplus"):
        load(folder).rank(QUERY, TEXTS)


def test_a_score_that_was_learned_here_is_as_it_is(tmp_path: Path) -> None:
    about = {"kind": "regression", "pair": True}
    save_model(tmp_path, small_bert(classes=1), small_tokenizer(97), about)
    model = load(tmp_path)
    values = model.predict([QUERY] * len(TEXTS), TEXTS).values[:, 0]
    ranked = model.rank(QUERY, TEXTS, top=2)
    order = np.argsort(-values, kind="stable")[:2]
    assert [(one.index, one.score) for one in ranked] == [(n, values[n]) for n in order]


def test_other_heads_are_refused(tmp_path: Path) -> None:
    about = {"kind": "classification", "labels": ["a", "b"]}
    save_model(tmp_path, small_bert(classes=2), small_tokenizer(97), about)
    with pytest.raises(
        ModelError, match=r"one score for a pair of texts.* 'classification' with 2"
    ):
        load(tmp_path).rank(QUERY, TEXTS)
    save_model(tmp_path, small_bert(classes=1), small_tokenizer(97), {"kind": "regression"})
    with pytest.raises(InputError, match="single text; give a list"):
        load(tmp_path).rank(QUERY, "w1 w2")


def test_the_verb(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = load(folder).rank(QUERY, ["w7", "w4 w5"])
    assert main(["rank", str(folder), QUERY, "w7", "w4 w5", "--top", "1"]) == 0
    assert capsys.readouterr().out == f"{best[0].score:9.6f}  {best[0].text}\n"
