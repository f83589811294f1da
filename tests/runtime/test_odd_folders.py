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

from bothways.api.calls import finetune
from bothways.api.model import load
from bothways.cli import main
from bothways.corpus.store import TokenStore
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


def others(weights: Weights) -> Weights:
    return {name: value + 1 for name, value in weights.items()}


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


# --------------------------------------------------------------------- weights that are there twice


@pytest.mark.parametrize(
    ("nest", "used", "left"),
    [
        (lambda w: {"model": w, "ema": others(w)}, "model", "ema"),
        (lambda w: {"ema_state_dict": others(w), "state_dict": w}, "state_dict", "ema_state_dict"),
        (
            lambda w: {"model": w, "swa": {f"module.{n}": v for n, v in others(w).items()}},
            "model",
            "swa",
        ),
        (lambda w: {"model": {"net": w, "ema": others(w)}}, "net", "ema"),
        (
            lambda w: {"state_dict": w, "callbacks": {"EMA": {"ema_weights": others(w)}}},
            "state_dict",
            "callbacks",
        ),
        (lambda w: {**w, "ema": others(w)}, "no key", "ema"),
    ],
)
def test_which_of_several_sets_of_weights_is_used_is_said(
    nest: Callable[[Weights], Any], used: str, left: str, folder: Path, vectors: np.ndarray
) -> None:
    torch.save(nest(weights_of(folder)), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    (note,) = load_model(folder).notes
    assert f"those under {used} are used, and those under {left} are not" in note
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)
    # The remedy, for the set that is not used.
    content = torch.load(folder / "pytorch_model.bin", weights_only=True)
    inner = content.get("model", {}).get("ema") or content.get(left)
    if left != "callbacks":
        torch.save(inner, folder / "pytorch_model.bin")
        assert not load_model(folder).notes
        assert not np.allclose(load(folder).embed(TEXTS), vectors)


@pytest.mark.parametrize(
    "nest",
    [
        lambda w: {"model": w, "optimizer": {"state": {n: {"exp_avg": v} for n, v in w.items()}}},
        lambda w: {"model": w, "opt": {"exp_avg": dict(w)}},
        lambda w: {"model": w, "scaler": {"scale": torch.tensor(1.0)}, "epoch": 3},
    ],
)
def test_what_an_optimizer_keeps_is_no_second_set(
    nest: Callable[[Weights], Any], folder: Path, vectors: np.ndarray
) -> None:
    torch.save(nest(weights_of(folder)), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert not load_model(folder).notes
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)


def test_an_averaged_classifier_keeps_its_head(folder: Path) -> None:
    """Of torch.optim.swa_utils, with the number of averages beside the weights."""
    with_head(folder, 3)
    expected = load(folder).predict(TEXTS).values
    wrapped = {f"module.{name}": value for name, value in weights_of(folder).items()}
    save_file({**wrapped, "n_averaged": torch.tensor(3)}, folder / "model.safetensors")
    np.testing.assert_array_equal(load(folder).predict(TEXTS).values, expected)


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


# -------------------------------------------------------------------------------------- config.json


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


def test_two_labels_and_one_output(folder: Path) -> None:
    with_head(folder, 1, id2label={"0": "ham", "1": "spam"})
    assert any("names 2 labels, but the head has one output" in n for n in load_model(folder).notes)


def test_labels_that_are_no_map_of_one_output(folder: Path) -> None:
    with_head(folder, 1, id2label=7)
    loaded = load_model(folder)
    assert loaded.about["kind"] == "regression"
    assert not any("labels" in note for note in loaded.notes)


def test_a_misspelt_problem_type_is_told_the_right_ones(folder: Path) -> None:
    with_head(folder, 3, problem_type="multi-label")
    with pytest.raises(ModelError, match="'multi_label_classification' or 'regression' only"):
        load_model(folder)


def test_a_config_that_is_no_json_names_the_line(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text('{\n"model_type": "bert",\n}')
    with pytest.raises(ModelError, match=r"config\.json cannot be read \(line 3 is not JSON"):
        load_model(folder)


def test_a_class_of_another_family_without_a_type(folder: Path) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({n: v for n, v in values.items() if n != "model_type"}))
    assert not load_model(folder).notes
    set_json(path, architectures=["FunnelForMaskedLM"])
    (note,) = load_model(folder).notes
    assert "its class 'FunnelForMaskedLM' is none that is known; it is computed as BERT" in note


# -------------------------------------------------------------------------------- hostile folders


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


# ---------------------------------------------------------------------------- sentence-transformers


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


def test_an_encoder_beside_another_config(folder: Path, vectors: np.ndarray) -> None:
    """The encoder is where modules.json says, whatever the folder itself holds."""
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, inner)
    save_file(others(weights_of(folder)), folder / "model.safetensors")
    as_sentence_transformer(folder, "0_Transformer", pooling_mode_mean_tokens=True)
    np.testing.assert_allclose(load(folder).embed(TEXTS), vectors, atol=1e-6)
    np.testing.assert_allclose(theirs(folder), vectors, atol=1e-5)


def test_vectors_that_are_cut_are_refused(folder: Path) -> None:
    as_sentence_transformer(folder, pooling_mode_mean_tokens=True)
    set_json(folder / "config_sentence_transformers.json", truncate_dim=8)
    assert theirs(folder).shape == (2, 8)
    with pytest.raises(ConfigError, match="vectors are cut to 8 numbers"):
        load(folder).embed(TEXTS)


def test_modes_of_pooling_as_numbers(folder: Path) -> None:
    as_sentence_transformer(folder, pooling_mode_cls_token=1, pooling_mode_mean_tokens=0)
    np.testing.assert_allclose(load(folder).embed(TEXTS), theirs(folder), atol=1e-5)


# --------------------------------------------------------------------------------------- tokenizers


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


def test_special_tokens_without_a_row_stay_text(folder: Path) -> None:
    set_json(folder / "tokenizer_config.json", additional_special_tokens=["<new>"])
    assert "<new>" not in load(folder).tokenizer("w1 <new>").tokens


# ---------------------------------------------------------------------- what is said, and where


@pytest.mark.parametrize("verb", ["load", "convert", "export", "ensemble"])
def test_what_was_guessed_is_said_wherever_a_folder_is_opened(
    verb: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_head(folder, 2, id2label={"0": "bad", "1": "bad"})
    first = shutil.copytree(folder, tmp_path / "first")
    set_json(first / "config.json", id2label={"0": "LABEL_0", "1": "LABEL_1"})
    if verb == "load":
        load(folder)
    elif verb == "ensemble":
        load(first, folder)
    else:
        assert main([verb, str(folder), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err.count("a name is there twice") == 1
    load(first)
    assert not capsys.readouterr().err


def test_a_label_that_a_table_cannot_hold(folder: Path, tmp_path: Path) -> None:
    with_head(folder, 3, id2label={"0": "a\tb", "1": "c\r\nd", "2": " e"})
    model = load(folder)
    assert model.classes_ == ["a b", "c d", " e"]
    assert sum("'a\\tb' holds a tab or a line break" in note for note in model.loaded.notes) == 1
    (texts := tmp_path / "texts.tsv").write_text("sentence\nw1 w2\nw3\n")
    out = tmp_path / "out.tsv"
    given = ["--file", str(texts), "--text", "sentence", "--out", str(out)]
    assert main(["predict", str(folder), *given]) == 0
    rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert [len(row) for row in rows] == [5, 5, 5]
    assert rows[0] == ["index", "prediction", "p(a b)", "p(c d)", "p( e)"]
    set_json(folder / "config.json", id2label={"0": "a\tb", "1": "a b", "2": "c"})
    assert load(folder).classes_ == ["LABEL_0", "LABEL_1", "LABEL_2"]  # no two of one name


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


@pytest.mark.parametrize(
    ("key", "value", "options", "message"),
    [
        ("initializer_range", 0, {"from_scratch": True}, "model.init_std is 0"),
        ("initializer_range", 0.0, {"from_scratch": True}, "model.init_std is 0"),
        ("hidden_dropout_prob", 1, {}, "dropout is 1, which drops everything"),
        ("attention_probs_dropout_prob", 1.0, {}, "attention_dropout is 1, which drops"),
        ("classifier_dropout", 1.0, {}, "model.head_dropout is 1, which drops everything"),
    ],
)
def test_values_that_matter_in_training_alone(
    key: str,
    value: float,
    options: dict[str, Any],
    message: str,
    folder: Path,
    vectors: np.ndarray,
    tmp_path: Path,
) -> None:
    set_json(folder / "config.json", **{key: value})
    assert load(folder).embed(TEXTS) == pytest.approx(vectors, abs=1e-6)
    rows = "".join(f"w{n % 9} w{n % 2}\t{n % 2}\n" for n in range(16))
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + rows)
    given: dict[str, Any] = {"train": str(tmp_path / "train.tsv"), "dev": "0.5", "max_length": 16}
    with pytest.raises(ConfigError, match=message):
        finetune(str(folder), run=str(tmp_path / "run"), **given, **options)
    finetune(
        *(str(folder),), run=str(tmp_path / "other"), **given, dropout=0.1, epochs=1, batch_size=4
    )


@pytest.mark.parametrize("value", [-0.1, float("nan"), "0.1", 1.5])
def test_values_of_training_that_are_none(value: Any, folder: Path) -> None:
    set_json(folder / "config.json", hidden_dropout_prob=value)
    with pytest.raises(ModelError, match="hidden_dropout_prob is"):
        load(folder)


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


@pytest.mark.parametrize("named", ["beside", "whole"])
def test_an_adapter_has_the_vocabulary_of_its_base(
    named: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For what reads a vocabulary alone, whatever kind of adapter it is."""
    adapter = tmp_path / "adapter"
    base = f"../{folder.name}" if named == "beside" else str(folder)
    adapter.mkdir()
    set_json(adapter / "adapter_config.json", peft_type="IA3", base_model_name_or_path=base)
    found, wanted = Tokenizer.from_folder(adapter), Tokenizer.from_folder(folder)
    assert found.fingerprint == wanted.fingerprint
    assert main(["tokenize", str(adapter), "w1 w2"]) == 0
    (tmp_path / "texts.txt").write_text("w1 w2 w3\nw4 w5\n\nw6 w7\nw8 w9\n")
    given = [
        "--sentences",
        "line",
        "--files",
        str(tmp_path / "texts.txt"),
        "--out",
        str(tmp_path / "corpus"),
    ]
    assert main(["corpus", *given, "--tokenizer", str(adapter), "--workers", "1"]) == 0
    assert TokenStore.open(tmp_path / "corpus").tokenizer.fingerprint == wanted.fingerprint
    small_tokenizer(50).save(adapter)  # its own, such as with tokens of its own
    assert Tokenizer.from_folder(adapter).vocab_size == 50
    (adapter / "tokenizer.json").unlink()
    (adapter / "vocab.txt").unlink()
    set_json(adapter / "adapter_config.json", base_model_name_or_path=str(tmp_path / "gone"))
    assert main(["tokenize", str(adapter), "w1"]) == 1
    assert "put the base where adapter_config.json names it" in capsys.readouterr().err


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
