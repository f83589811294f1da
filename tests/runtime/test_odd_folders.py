"""Folders that hold things twice, under other names or in other forms: right, or named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import RobertaModel

from bothways.api.model import load
from bothways.errors import ConfigError, ModelError
from bothways.model.folder import save_model
from bothways.runtime.folder import load_model
from bothways.tokenization.tokenizer import Tokenizer
from model_examples import small_bert, small_config, small_tokenizer

TEXTS = ["w1 w2 w3 w4 w5 w6 w7 w8", "w4 W5"]


Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def vectors(foreign: Path) -> np.ndarray:
    return load(foreign).embed(TEXTS)


def weights_of(folder: Path) -> Weights:
    found = load_file(folder / "model.safetensors")  # mapped, and may be written again
    return {name: value.clone() for name, value in found.items()}


def set_json(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(values | changes))


def with_head(folder: Path, outputs: int, **config: Any) -> None:
    """A classifier in place of the pre-training heads."""
    weights = {n: v for n, v in weights_of(folder).items() if n.startswith("bert.")}
    weights |= {
        "classifier.weight": torch.eye(16)[:outputs],
        "classifier.bias": torch.zeros(outputs),
    }
    save_file({n: v.contiguous() for n, v in weights.items()}, folder / "model.safetensors")
    config["architectures"] = ["BertForSequenceClassification"]
    set_json(folder / "config.json", **config)


def into_parts(folder: Path) -> list[Path]:
    weights = weights_of(folder)
    names = sorted(weights)
    paths = [folder / f"model-{n}-of-00002.safetensors" for n in ("00001", "00002")]
    parts = {path.name: names[i::2] for i, path in enumerate(paths)}
    for path in paths:
        save_file({n: weights[n].contiguous() for n in parts[path.name]}, path)
    listed = {name: part for part, own in parts.items() for name in own}
    set_json(folder / "model.safetensors.index.json", metadata={}, weight_map=listed)
    return paths


def test_parts_whose_names_were_swapped_are_read(folder: Path, vectors: np.ndarray) -> None:
    one, other = into_parts(folder)
    (folder / "model.safetensors").unlink()
    one.rename(folder / "x")
    other.rename(one)
    (folder / "x").rename(other)
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)


@pytest.mark.parametrize("kind", ["safetensors", "pickled", "pickled before 1.6"])
def test_a_file_under_the_name_of_the_other_kind(
    kind: str, folder: Path, vectors: np.ndarray
) -> None:
    weights, right = folder / "model.safetensors", folder / "pytorch_model.bin"
    if kind == "safetensors":
        weights.rename(right)
    else:
        old = kind != "pickled"
        torch.save(weights_of(folder), weights, _use_new_zipfile_serialization=not old)
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ('{"0": "bad", "00": "worse", "1": "good"}', "no map from numbers"),
        ('{"0": "\\ud83d", "1": "good"}', "no text that a file can hold"),
    ],
)
def test_names_of_labels_that_are_none(names: str, problem: str, folder: Path) -> None:
    with_head(folder, 2, id2label={"KEEP": 0})
    path = folder / "config.json"
    path.write_text(path.read_text().replace('{"KEEP": 0}', names))
    loaded = load_model(folder)
    assert loaded.about["labels"] == ["LABEL_0", "LABEL_1"]
    assert any(problem in note for note in loaded.notes)


def set_tokenizer(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"] |= changes.pop("model", {})
    path.write_text(json.dumps(values | changes))


def set_header(folder: Path, tensors: int, spaces: int = 0) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({str(n): entry for n in range(tensors)}).encode() + b" " * spaces
    content = len(header).to_bytes(8, "little") + header
    (folder / "model.safetensors").write_bytes(content)


def link_out(folder: Path, name: str) -> None:
    other = folder.parent / "other"
    other.write_text("SECRET\n")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: set_header(f, 20_000), "20,000 tensors; a file has at most 16,384"),
        (lambda f: set_header(f, 1, 2**23), r"a header of 8,388,\d+ bytes"),
        (lambda f: link_out(f, "vocab.txt"), r"vocab\.txt: is a link out of its folder"),
        (lambda f: link_out(f, "config.json"), r"config\.json cannot be read \(is a link out of"),
        (
            lambda f: (f / "modules.json").write_text('[{"type": "", "path": "a\\u0000"}]'),
            "the path 'a.x00' leads out of the folder, or is none",
        ),
    ],
)
def test_hostile_folders_are_named(
    change: Callable[[Path], Any], message: str, folder: Path
) -> None:
    change(folder)
    with pytest.raises(ModelError, match=message) as caught:
        load(folder).embed(["a" * 40 + "!"])
    assert "SECRET" not in str(caught.value)


def test_links_into_the_cache_of_the_hub_are_followed(
    folder: Path, tmp_path: Path, vectors: np.ndarray
) -> None:
    place = tmp_path / "models--one--model"
    snapshot = place / "snapshots" / "0123abc"
    for path in (place / "blobs", snapshot):
        path.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.move(file, place / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    np.testing.assert_array_equal(load(snapshot).embed(TEXTS), vectors)


def as_sentence_transformer(folder: Path, encoder: str = "", **pooling: Any) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    kinds = (("Transformer", encoder), ("Pooling", "1_Pooling"))
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    set_json(folder / "1_Pooling" / "config.json", word_embedding_dimension=16, **pooling)


def theirs(folder: Path) -> np.ndarray:
    library = pytest.importorskip("sentence_transformers")
    found: np.ndarray = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    return found


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("sentence_bert_config.json", "max_seq_length"),
        ("sentence_roberta_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ],
)
def test_texts_are_cut_where_the_folder_says(
    name: str, key: str, folder: Path, vectors: np.ndarray, tmp_path: Path
) -> None:
    as_sentence_transformer(folder, pooling_mode_mean_tokens=True)
    set_json(folder / name, **{key: 6})
    model = load(folder)
    found = model.embed(TEXTS)
    np.testing.assert_allclose(found, theirs(folder), atol=1e-5)
    assert not np.allclose(found[0], vectors[0])
    np.testing.assert_allclose(found[1], vectors[1], atol=1e-6)
    # A length that is given is the user's; and it goes on in a folder of ours.
    np.testing.assert_allclose(model.embed(TEXTS, max_length=40), vectors, atol=1e-6)
    again = load(model.save(tmp_path / "again"))
    np.testing.assert_allclose(again.embed(TEXTS), found, atol=1e-6)
    np.testing.assert_allclose(theirs(tmp_path / "again"), found, atol=1e-5)


def test_vectors_that_are_cut_are_refused(folder: Path) -> None:
    as_sentence_transformer(folder, pooling_mode_mean_tokens=True)
    set_json(folder / "config_sentence_transformers.json", truncate_dim=8)
    assert theirs(folder).shape == (2, 8)
    with pytest.raises(ConfigError, match="vectors are cut to 8 numbers"):
        load(folder).embed(TEXTS)


def grow(folder: Path, rows: int) -> None:
    """More rows of the embedding, and of the output's bias."""
    weights = weights_of(folder)
    for name in [name for name, value in weights.items() if value.shape[:1] == (97,)]:
        extra = torch.ones(rows, *weights[name].shape[1:])
        weights[name] = torch.cat([weights[name], extra])
    save_file(weights, folder / "model.safetensors")
    set_json(folder / "config.json", vocab_size=97 + rows)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("special_tokens_map.json", {"additional_special_tokens": ["<new>", "<two>"]}),
        ("tokenizer_config.json", {"additional_special_tokens": ["<new>", "<two>"]}),
        ("tokenizer_config.json", {"extra_special_tokens": ["<new>", "<two>"]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"a": "<new>", "b": "<two>"}}),
    ],
)
def test_special_tokens_that_are_named_without_an_id(
    name: str, settings: dict[str, Any], fast: bool, folder: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    if not fast:
        (folder / "tokenizer.json").unlink()
        set_json(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    grow(folder, 2)
    set_json(folder / name, **settings)
    text = "w1 <new> w2<two>"
    found = load(folder).tokenizer(text).tokens
    assert found == ["[CLS]", "w1", "<new>", "w2", "<two>", "[SEP]"]
    other = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert [int(i) for i in load(folder).tokenizer(text).ids] == other(text)["input_ids"]


@pytest.mark.parametrize(
    "names", [["fc.weight", "fc.bias"], ["classifier.0.weight", "classifier.2.weight"]]
)
def test_a_head_of_ones_own_class_is_named(names: list[str], folder: Path) -> None:
    with_head(folder, 3)
    weights = weights_of(folder)
    for name, old in zip(names, ["classifier.weight", "classifier.bias"], strict=True):
        weights[name] = weights.pop(old)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match=f"{min(names)}.* are of no head that bothways computes"):
        load(folder).predict(TEXTS)


@pytest.mark.parametrize("pad", [2, 3])
def test_positions_that_do_not_count_another_piece(pad: int, tmp_path: Path) -> None:
    """transformers counts RoBERTa's positions without the piece that config.json calls padding."""
    folder, tokenizer = tmp_path / "model", small_tokenizer(97)
    shape = {"family": "roberta", "place_offset": tokenizer.pad_id + 1, "segments": 1}
    shape |= {"vocab_size": 97, "pooler": False}
    save_model(folder, small_bert(replace(small_config(), **shape)), tokenizer)
    (folder / "bothways.json").unlink()
    (folder / "checksums.json").unlink()
    load_model(folder)
    places = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    weights, more = weights_of(folder), pad - tokenizer.pad_id
    (name,) = [name for name in weights if name.endswith("position_embeddings.weight")]
    weights[name] = torch.cat([weights[name], weights[name][:1].repeat(more, 1)])
    save_file(weights, folder / "model.safetensors")
    set_json(folder / "config.json", pad_token_id=pad, max_position_embeddings=places + more)
    model = load(folder)
    assert [note for note in model.loaded.notes if f"the padding piece has the id {pad}" in note]
    theirs = RobertaModel.from_pretrained(folder, add_pooling_layer=False).eval()
    for text in (TEXTS[0], "w1 [PAD] w2", "[UNK] w3"):
        encoding = model.tokenizer(text)
        with torch.no_grad():
            states = theirs(torch.tensor([encoding.ids])).last_hidden_state[0, 1:-1]
        found = model.embed_tokens([text])[0].vectors
        assert found == pytest.approx(states.numpy(), abs=1e-4)


def test_a_vocabulary_in_the_folder_of_the_encoder(folder: Path, tmp_path: Path) -> None:
    """As sentence-transformers had it before version 2."""
    whole = tmp_path / "sentences"
    whole.mkdir()
    shutil.copytree(folder, whole / "0_BERT")
    kind = "sentence_transformers.models.BERT"
    modules = [{"idx": 0, "name": "0", "path": "0_BERT", "type": kind}]
    (whole / "modules.json").write_text(json.dumps(modules))
    wanted = Tokenizer.from_folder(folder).fingerprint
    assert Tokenizer.from_folder(whole).fingerprint == wanted
