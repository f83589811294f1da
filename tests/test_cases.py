"""Inputs of the kinds that public bug reports tell of, each with what is right.

Most tests of these stand beside their reader; here are those that belong to none, or need several
parts at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bothways import cli
from bothways.api.model import load
from bothways.errors import BothwaysError
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.tasks.options import TaskOptions
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer
from finetuning_examples import start_model, word_config, word_files
from model_examples import BOTH_HEADS, small_bert, small_config, small_tokenizer
from question_examples import question, squad_file

TEXTS = ["w1 w2 w3", "w4 w5"]


MARK = b"\xef\xbb\xbf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pre-trained encoder as another library would leave it."""
    save_model(tmp_path / "model", small_bert(**BOTH_HEADS, seed=3), small_tokenizer(97))
    for name in ("bothways.json", "checksums.json"):
        (tmp_path / "model" / name).unlink()
    return tmp_path / "model"


WINDOWS = {
    "mark": lambda data: MARK + data,
    "mark, CRLF": lambda data: MARK + data.replace(b"\n", b"\r\n"),
    "UTF-16": lambda data: data.decode().encode("utf-16"),
}


@pytest.mark.parametrize("saved", WINDOWS)
@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", "prompts"])
def test_modules_of_windows_editors(name: str, saved: str, folder: Path) -> None:
    """Pooled and normalised as the folder says, or refused: never the mean in its place."""
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(kinds.items())
    ]
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    prompts = {"prompts": {"query": "w7 "}, "default_prompt_name": "query"}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    expected = load(folder).embed(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)
    bare = load(folder).embed([f"w7 {text}" for text in TEXTS], pooling="cls", prompt="")
    np.testing.assert_allclose(
        expected, bare / np.linalg.norm(bare, axis=1, keepdims=True), atol=1e-5
    )
    path = folder / ("config_sentence_transformers.json" if name == "prompts" else name)
    whole = path.read_bytes()
    path.write_bytes(WINDOWS[saved](whole))
    np.testing.assert_array_equal(load(folder).embed(TEXTS), expected)
    path.write_bytes(whole[:-9])
    with pytest.raises(BothwaysError, match=path.name.replace(".", r"\.")):
        load(folder).embed(TEXTS)


@pytest.mark.parametrize("saved", WINDOWS)
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "tokenizer.json", "vocab.txt"]
)
def test_model_folders_of_windows_editors(name: str, saved: str, folder: Path) -> None:
    expected = load(folder).embed(TEXTS)
    if name == "vocab.txt":
        (folder / "tokenizer.json").unlink()
    path = folder / name
    path.write_bytes(WINDOWS[saved](path.read_bytes()))
    np.testing.assert_array_equal(load(folder).embed(TEXTS), expected)


@pytest.mark.parametrize("form", ["float64", "parts", "no metadata", "bias of the decoder"])
def test_forms_of_the_same_weights(form: str, folder: Path) -> None:
    model = load(folder)
    expected, fillings = model.embed(TEXTS), model.fill_mask("w1 [MASK]")
    path = folder / "model.safetensors"
    weights = load_file(path)
    if form == "float64":
        weights = {name: value.double() for name, value in weights.items()}
    elif form == "bias of the decoder":
        weights["cls.predictions.decoder.bias"] = weights.pop("cls.predictions.bias")
    if form == "parts":
        names = sorted(weights)
        parts = {"model-00001-of-00002.safetensors": names[::2]}
        parts["model-00002-of-00002.safetensors"] = names[1::2]
        for file, of in parts.items():
            save_file({name: weights[name] for name in of}, folder / file)
        places = {name: file for file, of in parts.items() for name in of}
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        path.unlink()
    else:
        save_file(weights, path, metadata=None if form == "no metadata" else {"format": "pt"})
    model = load(folder)
    np.testing.assert_array_equal(model.embed(TEXTS), expected)
    assert model.fill_mask("w1 [MASK]") == fillings


ODD = [
    "İZMİR'de Ğ ışık",
    "GROẞ groß ﬁn ﬂat oﬃce",
    "ΛΟΓΟΣ Σίσυφος",
    "סֵפֶר טוֹב",
    "كِتَابٌ جَدِيد ـــ",
    unicodedata.normalize("NFD", "서울 밖 Phở Đường"),
    "Kraft\u00adwerk hy\u00adphen",
    "😀 👩‍👩‍👦 🇰🇷🇩🇪 2️⃣ ❤️ 👋🏾!",
    "ze\u200bro wi\u200cdth\u200djoin \ufeffmark",
    "\ue010\ue011 own \U000f0010x",
    "b\x07c d\x1fe \x85f",
    "\u202bספר\u202c abc \u2067def\u2069",
    "ｗｉｄｅ　ｔｅｘｔ ③④ ㎏",
    "a\u0300\u0301\u0302 z\u0336w\u0336",
    "ภาษาไทย เชียงใหม่",
    "ǅ ǈ ŉ ǰ",
]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To which every word is an entity, and of whose pieces letters are."""
    letters = sorted({c for text in ODD for c in unicodedata.normalize("NFKD", text).lower()})
    letters = [c for c in letters if c.strip() and unicodedata.category(c)[0] in "LNPS"]
    pieces = [*SPECIAL_PIECES, *letters, *("##" + c for c in letters)]
    tokenizer = Tokenizer.from_pieces(pieces, lowercase=True)
    model = EncoderModel(small_config((1, 16, 2, 64, tokenizer.vocab_size)), tags=2, seed=0)
    folder = tmp_path_factory.mktemp("odd") / "tagger"
    save_model(folder, model, tokenizer)
    for name in ("bothways.json", "checksums.json"):
        (folder / name).unlink()
    weights = load_file(folder / "model.safetensors")
    weights["classifier.weight"] = torch.zeros_like(weights["classifier.weight"])
    weights["classifier.bias"] = torch.tensor([5.0, 0.0])
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {"0": "B-X", "1": "O"}, "label2id": {"B-X": 0, "O": 1}}
    config["architectures"] = ["BertForTokenClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_entities_of_odd_letters_are_the_characters_of_the_text(tagger: Path) -> None:
    model = load(tagger)
    for text in ODD:
        last = 0
        found = model.tag(text).entities
        assert found, text
        for entity in found:
            assert text[entity.start : entity.end] == entity.text
            assert last <= entity.start < entity.end <= len(text)
            after = text[entity.end : entity.end + 1]
            assert not after or unicodedata.category(after)[0] != "M", (text, entity)
            last = entity.end
        encoding, last = model.tokenizer.encode(text), 0
        for token, (start, end) in zip(encoding.ids[1:-1], encoding.offsets[1:-1], strict=True):
            piece = model.tokenizer.piece(token)
            assert 0 <= start < end <= len(text)
            assert start >= last or piece.startswith("##")
            last = start


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    start_model(root)
    word_files(root)
    return root


@pytest.fixture
def config(world: Path, tmp_path: Path) -> FinetuneConfig:
    return word_config(world / "model", world, tmp_path / "run")


def tuned(config: FinetuneConfig, **task: Any) -> FinetuneConfig:
    return dataclasses.replace(config, task=TaskOptions(name="t", **task), batch_size=8)


def test_predictions_are_under_the_numbers_that_a_file_has(
    config: FinetuneConfig, tmp_path: Path
) -> None:
    ids = [7211011040021040000, -5, 0]
    rows = []
    for n in ids:
        asked = question("", "w3", ("w1 w2", 3))
        rows.append({"context": "w9 w1 w2 w8", "qas": [asked | {"id": n}]})
    path = squad_file(tmp_path / "q.json", rows)
    about = {"kind": "spans", "train": str(path), "dev": str(path)}
    finetune(tuned(config, **about))
    (found,) = (tmp_path / "run").rglob("dev_predictions.json")
    assert set(json.loads(found.read_text())) == {str(n) for n in ids}


def test_a_changed_text_is_never_answered_by_the_corpus_before(
    tmp_path: Path, tiny_tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("The king sold a boat. My aunt found the clock.\n\n" * 8)
    words = ["corpus", "--files", str(path), "--tokenizer", str(tiny_tokenizer_folder)]
    words += ["--out", str(tmp_path / "c"), "--workers", "1", "--heldout", "0"]
    assert cli.main(words) == 0
    before = (tmp_path / "c/corpus.json").read_bytes()
    path.write_text(path.read_text().replace("boat", "hat"))
    capsys.readouterr()
    status = cli.main(words)
    out, err = capsys.readouterr()
    if status:
        assert "a.txt" in err or str(tmp_path / "c") in err
    else:
        assert (tmp_path / "c/corpus.json").read_bytes() != before, out + err


@pytest.mark.slow
def test_a_home_that_cannot_be_written_to(config: FinetuneConfig, tmp_path: Path) -> None:
    """As in a container of another user: it runs, and no library complains."""
    (tmp_path / "file").touch()
    own = ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "XDG_CONFIG_HOME")
    kept = {key: value for key, value in os.environ.items() if key not in own}
    home = {"HOME": str(tmp_path / "file/home"), "OMP_NUM_THREADS": "1"}
    files = ["--train", config.task.train, "--dev", config.task.dev]
    short = ["--epochs", "1", "--seeds", "0", "--threads", "1", "--max-length", "16"]
    places = ["--model", config.model, "--run", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "bothways", "finetune", *files, *short, *places],
        env=kept | home,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    note = f"fp32: no measurement can be kept in {home['HOME']}/.cache/bothways/speed.jsonl"
    assert (done.stdout + done.stderr).count(note) == 1
    for noise in ("Traceback", "Matplotlib", "Warning", "file/home"):
        assert noise not in (done.stdout + done.stderr).replace(note, "")
    assert load_model(tmp_path / "run/seed-0/model").task_head == "classifier"
