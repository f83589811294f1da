"""Folders as trainers, adapters, exporters and hubs leave them: right, or named."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor

from bothways.api.doctor import diagnose
from bothways.api.info import info
from bothways.api.model import load
from bothways.errors import BothwaysError, ConfigError, ModelError
from bothways.families import ModelConfig, config_of
from bothways.pretraining.start import weights_digest
from bothways.runtime.folder import load_model
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer
from model_examples import small_tokenizer

TEXTS = ["w1 w2 w3 w4 w5 w6 w7 w8", "w4 W5"]
QUERY = "bert.encoder.layer.0.attention.self.query"
NEW = "sentence_transformers.models."
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def vectors(foreign: Path) -> np.ndarray:
    return load(foreign).embed(TEXTS)


def weights_of(folder: Path) -> Weights:
    return {n: v.clone() for n, v in load_file(folder / "model.safetensors").items()}


def write(folder: Path, weights: Weights) -> None:
    save_file({n: v.contiguous() for n, v in weights.items()}, folder / "model.safetensors")


def set_json(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(values | changes))


def write_modules(folder: Path, pooling: str, *more: str, **settings: Any) -> None:
    steps = [("Transformer", ""), ("Pooling", "1_Pooling"), *((kind, f"2_{kind}") for kind in more)]
    listed = [{"type": NEW + kind, "path": path} for kind, path in steps]
    (folder / "modules.json").write_text(json.dumps(listed))
    for _, path in steps[1:]:
        (folder / path).mkdir(exist_ok=True)
    set_json(folder / "1_Pooling/config.json", pooling_mode=pooling)
    set_json(folder / "sentence_bert_config.json", **settings)


# ------------------------------------------------------------ what wrappers put inside of names


@pytest.mark.parametrize(
    "wrapper",
    [
        *("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_module"),
        *("_fsdp_wrapped_module._fpw_module", "_fsdp_wrapped_module._checkpoint_wrapped_module"),
    ],
)
@pytest.mark.parametrize("place", [r"(layer\.0)\.", r"(bert\.embeddings)\.", r"(bert\.encoder)\."])
def test_wrappers_of_single_modules(
    place: str, wrapper: str, folder: Path, vectors: np.ndarray
) -> None:
    """Of compiling, sharding or recomputing layer by layer."""
    weights = weights_of(folder)
    renamed = {re.sub(place, rf"\1.{wrapper}.", n): v for n, v in weights.items()}
    assert renamed.keys() != weights.keys()
    write(folder, renamed)
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)
    write(folder, {f"{wrapper}.{n}": v for n, v in renamed.items()})
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)
    write(folder, {**renamed, **{n: v + 1 for n, v in weights.items()}})
    with pytest.raises(ModelError, match="twice, with other values"):
        load_model(folder)


# ------------------------------------------------------------ adapters


def write_adapter(folder: Path, base: str, **changes: Any) -> Weights:
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    pair = {
        f"base_model.model.{QUERY}.lora_A.weight": torch.randn(2, 16, generator=generator),
        f"base_model.model.{QUERY}.lora_B.weight": torch.randn(16, 2, generator=generator),
    }
    values = {"peft_type": "LORA", "base_model_name_or_path": base, "r": 2, "lora_alpha": 4}
    (folder / "adapter_config.json").write_text(json.dumps({**values, **changes}))
    save_file(pair, folder / "adapter_model.safetensors")
    return pair


def merge(base: Path, pair: Weights, out: Path) -> Path:
    shutil.copytree(base, out)
    weights = weights_of(base)
    a, b = pair.values()
    weights[f"{QUERY}.weight"] += 2 * b @ a
    write(out, weights)
    return out


@pytest.mark.parametrize("of_base", [None, "mean"])
def test_an_adapter_says_itself_how_vectors_are_made(
    of_base: str | None, folder: Path, tmp_path: Path
) -> None:
    """As sentence-transformers saves one since 3.3: with its own modules beside it."""
    pair = write_adapter(tmp_path / "adapter", "../model")
    merged = merge(folder, pair, tmp_path / "merged")
    write_modules(merged, "cls", "Normalize", max_seq_length=5)
    if of_base:
        write_modules(folder, of_base)
    write_modules(tmp_path / "adapter", "cls", "Normalize", max_seq_length=5)
    found = load(tmp_path / "adapter").embed(TEXTS)
    np.testing.assert_allclose(found, load(merged).embed(TEXTS), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    write_modules(tmp_path / "adapter", "cls", "Dense")
    with pytest.raises(ConfigError, match="Dense"):
        load(tmp_path / "adapter").embed(TEXTS)


def test_an_adapter_of_a_revision(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    place = tmp_path / "hub/models--own--base"
    (place / "refs").mkdir(parents=True)
    for letter, name in (("a", "main"), ("b", "v2")):
        snapshot = place / "snapshots" / (letter * 40)
        shutil.copytree(folder, snapshot)
        (place / "refs" / name).write_text(letter * 40)
    changed = place / "snapshots" / ("b" * 40)
    write(
        changed, {n: v + 0.5 if n == f"{QUERY}.bias" else v for n, v in weights_of(folder).items()}
    )
    pair = write_adapter(tmp_path / "adapter", "own/base", revision="v2")
    expected = load(merge(changed, pair, tmp_path / "merged")).embed(TEXTS)
    np.testing.assert_allclose(load(tmp_path / "adapter").embed(TEXTS), expected, atol=1e-6)
    set_json(tmp_path / "adapter/adapter_config.json", revision="v3")
    with pytest.raises(ModelError, match=r"own/base@v3.*no model of this name at revision v3"):
        load_model(tmp_path / "adapter")


def test_a_pickled_adapter(folder: Path, tmp_path: Path) -> None:
    assert folder.name == "model"
    pair = write_adapter(tmp_path / "adapter", "../model")
    expected = load(tmp_path / "adapter").embed(TEXTS)
    (tmp_path / "adapter/adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match="holds no weights"):
        load_model(tmp_path / "adapter")
    torch.save(pair, tmp_path / "adapter/adapter_model.bin")
    np.testing.assert_array_equal(load(tmp_path / "adapter").embed(TEXTS), expected)


# ------------------------------------------------------------ weights that are somewhere else


def test_weights_without_values(folder: Path) -> None:
    weights = weights_of(folder)
    (folder / "model.safetensors").unlink()
    torch.save({n: v.to("meta") for n, v in weights.items()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(folder)
    torch.save({n: torch.empty(0) for n in weights}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"shape \(0,\)"):
        load_model(folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tf_model.h5", "from_tf=True"),
        ("zero_to_fp32.py", "DeepSpeed"),
        ("fsdp/__0_0.distcp", "FSDP"),
        ("onnx/model_quantized.onnx", "a graph"),
        ("model-00001-of-00002.safetensors", "index is missing"),
        ("model.tar.gz", "not read as weights"),
        ("training_args.bin", ""),
    ],
)
def test_what_is_there_instead_of_weights_is_named(name: str, said: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"some bytes")
    with pytest.raises(ModelError, match="holds neither") as caught:
        load_model(folder)
    assert said in str(caught.value)
    assert bool(said) == (name in str(caught.value))


def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    with pytest.raises(ModelError, match="holds folders of runs; name one of them: 'a', 'b'"):
        load_model(tmp_path)


def test_a_folder_of_checkpoints_names_them(folder: Path, tmp_path: Path) -> None:
    for number in (500, 1000):
        shutil.copytree(folder, tmp_path / f"out/checkpoint-{number}")
    with pytest.raises(
        ModelError, match=r"holds folders of models; name one of them: .*checkpoint-1000"
    ):
        load_model(tmp_path / "out")
    found = info(tmp_path / "out")
    assert found.kind == "a folder of models"
    assert "checkpoint-500" in found.facts["models"]


def test_a_graph_beside_its_config(folder: Path, tmp_path: Path) -> None:
    """As optimum leaves it."""
    pytest.importorskip("onnxruntime")
    from bothways.exporting.export import export_model
    from bothways.exporting.options import ExportConfig

    expected = load(folder).embed(TEXTS)
    encoder = tmp_path / "encoder"
    shutil.copytree(folder, encoder)
    write(encoder, {n: v for n, v in weights_of(folder).items() if n.startswith("bert.")})
    set_json(encoder / "config.json", architectures=["BertModel"])
    export_model(ExportConfig(model=str(encoder), out=str(tmp_path / "exported")))
    graph = tmp_path / "graph"
    graph.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(encoder / name, graph)
    shutil.copy(tmp_path / "exported/onnx/model.onnx", graph)
    np.testing.assert_allclose(load(graph).embed(TEXTS), expected, atol=1e-5)


# ------------------------------------------------------------ what a model is told of pairs


def test_settings_without_segments_give_pairs_one(tmp_path: Path) -> None:
    """transformers then gives a model no token_type_ids, which are zeros there."""
    folder = tmp_path / "pairs"
    tokenizer = small_tokenizer(97)
    tokenizer.save(folder)
    assert Tokenizer.from_folder(folder).encode("w1", "w2").segments == [0, 0, 0, 1, 1]
    set_json(folder / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    found = Tokenizer.from_folder(folder)
    assert found.encode("w1", "w2").segments == [0] * 5
    found.save(tmp_path / "again")
    assert Tokenizer.from_folder(tmp_path / "again").encode("w1", "w2").segments == [0] * 5
    for name, expected in (("DistilBertTokenizer", 0), ("BertTokenizer", 1)):
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
        assert Tokenizer.from_folder(folder).encode("w1", "w2").segments[-1] == expected


# ------------------------------------------------------------ special tokens by name


def test_pieces_that_are_named_special_are_found_in_text(tmp_path: Path) -> None:
    """Markers such as [unused1], which the vocabulary has."""
    pieces = [*SPECIAL_PIECES, "[unused1]", "the", "cat", "##s", "[", "]", "unused", "##1"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    assert 5 not in Tokenizer.from_folder(tmp_path).encode("the [unused1] cat").ids
    set_json(tmp_path / "special_tokens_map.json", additional_special_tokens=["[unused1]"])
    assert Tokenizer.from_folder(tmp_path).encode("the [unused1] cat").ids == [2, 6, 5, 7, 3]
    (tmp_path / "special_tokens_map.json").unlink()
    Tokenizer.from_folder(tmp_path).save(tmp_path / "json")
    for change in (
        {"extra_special_tokens": ["[unused1]"]},
        {"bos_token": "[unused1]"},
        {"added_tokens_decoder": {"5": {"content": "[unused1]", "special": True}}},
    ):
        shutil.rmtree(tmp_path / "changed", ignore_errors=True)
        shutil.copytree(tmp_path / "json", tmp_path / "changed")
        set_json(tmp_path / "changed/tokenizer_config.json", **change)
        found = Tokenizer.from_folder(tmp_path / "changed")
        assert found.encode("the [unused1] cat").ids == [2, 6, 5, 7, 3], change


# ------------------------------------------------------------ settings of sentence-transformers


def test_its_own_limit_is_before_the_tokenizers(folder: Path) -> None:
    set_json(folder / "tokenizer_config.json", model_max_length=5)
    write_modules(folder, "mean", max_seq_length=8)
    assert load_model(folder).about["cut_at"] == 8
    write_modules(folder, "mean", max_seq_length=None)
    assert load_model(folder).about["cut_at"] == 5
    positions = load_model(folder).config.positions
    for limit in (positions, 10 * positions):  # long texts are cut there, too, not read in windows
        write_modules(folder, "mean", max_seq_length=limit)
        assert load_model(folder).about["cut_at"] == positions
        long = " ".join(["w1 w2 w3"] * positions)
        np.testing.assert_array_equal(
            load(folder).embed([long]), load(folder).embed([long], long="cut")
        )
    write_modules(folder, "mean", tokenizer_args={"model_max_length": 6})
    assert load_model(folder).about["cut_at"] == 6
    write_modules(folder, "mean", config_args={"is_decoder": True})
    with pytest.raises(ConfigError, match=r"Transformer with config_args \(is_decoder\)"):
        load(folder).embed(TEXTS)


# ------------------------------------------------------------ the Hub's cache


def test_a_reference_to_a_snapshot_that_is_not_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: np.ndarray
) -> None:
    """As a download that was interrupted leaves it: the one before is another model."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    place = tmp_path / "hub/models--own--model"
    shutil.copytree(folder, place / "snapshots" / ("a" * 40))
    (place / "refs").mkdir()
    (place / "refs/main").write_text("b" * 40)
    with pytest.raises(ModelError, match="no model of this name in the local cache"):
        load_model("own/model")
    np.testing.assert_array_equal(load(f"own/model@{'a' * 40}").embed(TEXTS), vectors)


# ------------------------------------------------------------ a file that changes while it is read


def test_weights_that_another_program_cuts_off(folder: Path) -> None:
    """Reading on would end the process, as the file is mapped."""
    model = load(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(ModelError, match="changed by another program while it was read"):
        model.embed(TEXTS)


def test_weights_that_another_program_replaces(folder: Path, vectors: np.ndarray) -> None:
    model = load(folder)
    (folder / "other").write_bytes(b"x")
    (folder / "other").replace(folder / "model.safetensors")
    np.testing.assert_array_equal(model.embed(TEXTS), vectors)


def test_a_tokenizer_json_that_puts_no_special_tokens(folder: Path) -> None:
    """Of a class that takes it as it is; transformers then puts none either."""
    path, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    library = json.loads(path.read_text())
    for step in (
        None,
        {**library["post_processor"], "single": [{"Sequence": {"id": "A", "type_id": 0}}]},
    ):
        path.write_text(json.dumps({**library, "post_processor": step}))
        set_json(settings, tokenizer_class="PreTrainedTokenizerFast")
        model = load(folder)
        assert len(model.tokenizer.encode("w1 w2").ids) == 2
        (note,) = [note for note in model.loaded.notes if "no special tokens" in note]
        model.save(folder / "saved")
        assert len(load(folder / "saved").tokenizer.encode("w1 w2").ids) == 2
        shutil.rmtree(folder / "saved")
        assert (
            '"tokenizer_class": "BertTokenizer"' in note.replace("tokenizer_class that", "") or note
        )
        set_json(settings, tokenizer_class="BertTokenizer")
        assert len(load(folder).tokenizer.encode("w1 w2").ids) == 4


# ------------------------------------------------------------ heads of several tasks


def test_of_two_task_heads_the_named_one_is_used(folder: Path) -> None:
    encoder = {n: v for n, v in weights_of(folder).items() if n.startswith("bert.")}
    span = {"qa_outputs.weight": torch.eye(16)[:2], "qa_outputs.bias": torch.zeros(2)}
    labels = {"classifier.weight": torch.eye(16)[:3], "classifier.bias": torch.zeros(3)}
    write(folder, {**encoder, **span, **labels})
    for name, head in (("QuestionAnswering", "span"), ("SequenceClassification", "classifier")):
        set_json(folder / "config.json", architectures=[f"BertFor{name}"])
        loaded = load_model(folder)
        assert (loaded.task_head, loaded.refused) == (head, {})
        assert any("left out, not used here" in note for note in loaded.notes)
    set_json(folder / "config.json", architectures=["BertModel"])
    with pytest.raises(ModelError, match=r"several heads of tasks \(classifier, span\)"):
        load_model(folder)


# ------------------------------------------------------------ further of tokenizers


@pytest.mark.parametrize("name", ["BertTokenizer", "DistilBertTokenizerFast", "ElectraTokenizer"])
def test_settings_of_every_class_for_word_pieces_are_before_the_file(
    name: str, tmp_path: Path
) -> None:
    """As in transformers, where these classes rebuild the normaliser."""
    small_tokenizer(30).save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"tokenizer_class": name}))
    assert Tokenizer.from_folder(tmp_path).encode("W1").ids[1:2] == [6]
    set_json(path, do_lower_case=False)
    assert Tokenizer.from_folder(tmp_path).encode("W1").ids[1:2] == [1]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("W1")["input_ids"][1:2] == [1]


def test_the_pieces_that_settings_name_open_and_close_texts(tmp_path: Path) -> None:
    small_tokenizer(30).save(tmp_path)
    settings = {"tokenizer_class": "BertTokenizer", "cls_token": "w9"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)("w1")["input_ids"]
    assert Tokenizer.from_folder(tmp_path).encode("w1").ids == expected == [14, 6, 3]


def test_special_tokens_of_two_files(tmp_path: Path) -> None:
    """Of releases that wrote no added_tokens_decoder, the map comes first."""
    pieces = [*SPECIAL_PIECES, "a", "<end>"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "sep_token": "[SEP]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    set_json(tmp_path / "special_tokens_map.json", sep_token="<end>")
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)("a")["input_ids"]
    assert Tokenizer.from_folder(tmp_path).encode("a").ids == expected == [2, 5, 6]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "SuperPieces"}, "cannot be read by the package tokenizers"),
    ],
)
def test_models_of_a_tokenizer_that_cannot_be_used(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    small_tokenizer(30).save(tmp_path)
    library = json.loads((tmp_path / "tokenizer.json").read_text())
    library["model"] |= change
    (tmp_path / "tokenizer.json").write_text(json.dumps(library))
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(tmp_path)


def test_merges_that_are_left_out_at_random(tmp_path: Path) -> None:
    pieces = {p: i for i, p in enumerate([*SPECIAL_PIECES, "a", "b", "ab"])}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(pieces, [("a", "b")], dropout=0.5))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match='"dropout" to null'):
        Tokenizer.from_folder(tmp_path)
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    values["model"]["dropout"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    assert Tokenizer.from_folder(tmp_path).encode("ab").ids == [2, 7, 3]


def test_a_tokenizer_without_a_form_for_pairs_is_for_single_texts(
    folder: Path, vectors: np.ndarray
) -> None:
    library = json.loads((folder / "tokenizer.json").read_text())
    library["post_processor"]["pair"] = []
    (folder / "tokenizer.json").write_text(json.dumps(library))
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)
    with pytest.raises(ModelError, match="no form for pairs"):
        load(folder).next_sentence("w1", "w2")


@pytest.mark.parametrize(
    ("settings", "truncation", "note"),
    [
        ({"truncation_side": "left"}, None, "truncation_side is left"),
        ({}, {"direction": "Right"}, ""),
        ({"model_max_length": 20}, None, "model_max_length is 20"),
        ({"model_max_length": int(1e30)}, None, ""),
    ],
)
def test_what_transformers_does_otherwise_with_texts_is_said(
    settings: dict[str, Any], truncation: dict[str, Any] | None, note: str, folder: Path
) -> None:
    library = json.loads((folder / "tokenizer.json").read_text())
    usual = {"max_length": 8, "strategy": "LongestFirst", "stride": 0}
    library["truncation"] = truncation and {**usual, **truncation}
    (folder / "tokenizer.json").write_text(json.dumps(library))
    set_json(folder / "tokenizer_config.json", **settings)
    notes = load_model(folder).notes
    assert [note in n for n in notes] == ([True] if note else [])


def test_vectors_are_cut_where_their_library_does_it_without_a_note(folder: Path) -> None:
    set_json(folder / "tokenizer_config.json", model_max_length=4)
    assert "model_max_length is 4" in str(load_model(folder).notes)
    whole = load(folder).embed(TEXTS)
    write_modules(folder, "mean")
    cut = load(folder)
    assert not cut.loaded.notes
    assert not np.allclose(cut.embed(TEXTS)[0], whole[0])


def test_an_added_token_with_an_infinite_id(folder: Path) -> None:
    (folder / "added_tokens.json").write_text('{"a": Infinity}')
    with pytest.raises(ModelError, match=r"added_tokens\.json: its added tokens cannot be read"):
        load_model(folder)


def test_a_roberta_with_segments_is_told_of_pairs(tmp_path: Path) -> None:
    """KLUE's has one segment under BERT's tokenizer; others have two, which are used."""
    tokenizer = small_tokenizer(97)
    for count in (1, 2):
        config = transformers.RobertaConfig(
            **{"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 1, "pad_token_id": 0},
            **{"num_attention_heads": 2, "intermediate_size": 24, "type_vocab_size": count},
        )
        folder = tmp_path / str(count)
        transformers.RobertaModel(config).save_pretrained(folder)
        tokenizer.save(folder)
        segments = load(folder).tokenizer.encode("w1", "w2").segments
        assert segments == [0, 0, 0, *[count - 1] * 2]


# ------------------------------------------------------------ further of other files


def test_adapters_that_are_of_whole_numbers_or_said_otherwise(folder: Path, tmp_path: Path) -> None:
    pair = write_adapter(tmp_path / "adapter", "../model", some_new_setting=True, a_config=None)
    assert any("some_new_setting" in note for note in load_model(tmp_path / "adapter").notes)
    assert not any("a_config" in note for note in load_model(tmp_path / "adapter").notes)
    whole = {name: value.to(torch.int8) for name, value in pair.items()}
    save_file(whole, tmp_path / "adapter/adapter_model.safetensors")
    with pytest.raises(ModelError, match="does not fit the weights of the base"):
        load_model(tmp_path / "adapter")
    (tmp_path / "adapter/adapter_config.json").unlink()
    shutil.copy(folder / "config.json", tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"adapter_config\.json is missing"):
        load_model(tmp_path / "adapter")


def test_info_doctor_and_pretraining_know_adapters(folder: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter", "../model")
    shutil.copy(folder / "tokenizer.json", tmp_path / "adapter")
    assert info(tmp_path / "adapter").facts["family"] == "bert"
    assert diagnose(tmp_path / "adapter") == []
    base, adapter = (weights_digest(str(path)) for path in (folder, tmp_path / "adapter"))
    assert base != adapter


def test_a_second_pooling_is_not_computed(folder: Path) -> None:
    write_modules(folder, "cls", "Pooling")
    set_json(folder / "2_Pooling/config.json", pooling_mode="mean")
    with pytest.raises(ConfigError, match="a second Pooling"):
        load(folder).embed(TEXTS)


@pytest.mark.parametrize("name", ["x" * 254, "a/" * 3000 + "b", "a\0b"])
def test_names_that_no_file_system_has(name: str) -> None:
    with pytest.raises(ModelError):
        load_model(name)
    with pytest.raises(BothwaysError):
        info(name)


def test_refused_sizes_have_the_names_of_the_file(folder: Path) -> None:
    set_json(folder / "config.json", layer_norm_eps=-1.0)
    with pytest.raises(ModelError, match=r"layer_norm_eps is -1\.0; it must be above 0"):
        load_model(folder)


MODERN = {
    **{"model_type": "modernbert", "vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "intermediate_size": 24},
}


def test_rotary_bases_and_windows_in_other_spellings() -> None:
    def shape(**keys: Any) -> ModelConfig:
        return config_of({**MODERN, **keys}, where="config.json")[0]

    assert shape(global_rope_theta=7.0, local_rope_theta=None).rotary_local == 7.0
    assert shape(global_rope_theta=7.0).rotary_local == 10_000.0
    assert shape(local_attention=8, sliding_window=2).window == 2
    for parameters, message in (
        (
            {"rope_type": "default", "rope_theta": 5.0},
            "rope_parameters has rope_theta, rope_type",
        ),
        ({"full_attention": {"type": "linear", "rope_theta": 5.0}}, "rope_type is 'linear'"),
    ):
        with pytest.raises(ModelError, match=message):
            shape(rope_parameters=parameters)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_a_page_in_place_of_a_file(name: str, folder: Path) -> None:
    """Of a server that refused the download."""
    (folder / name).write_text("<!DOCTYPE html><html><body>403 Forbidden</body></html>")
    with pytest.raises(ModelError, match=f"{name}.*download the file again"):
        load_model(folder)


@pytest.mark.parametrize(
    "answer",
    [
        '{"error":"Entry not found"}',
        '{"message": "Not Found", "documentation_url": "https://...", "status": "404"}',
        '{"detail": {"reason": "gated"}}',
        *("Entry not found", "404: Not Found", "Invalid username or password.\n"),
        "Access to model w/x is restricted. You must be authenticated to access it.",
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("added_tokens.json", "model.safetensors", "modules.json", "1_Pooling/config.json"),
        *("sentence_bert_config.json", "config_sentence_transformers.json", "bothways.json"),
    ],
)
def test_an_answer_of_a_server_in_place_of_a_file(name: str, answer: str, folder: Path) -> None:
    """Of settings that say nothing else, as if they were empty."""
    write_modules(folder, "mean")
    (folder / name).write_text(answer)
    with pytest.raises(ModelError, match=re.escape(f"{name}") + ".*a server answers"):
        load_model(folder)


@pytest.mark.parametrize("name", ["vocab.txt", "onnx/model.onnx", "model.onnx"])
def test_an_answer_of_a_server_or_a_pointer_in_place_of_other_files(
    name: str, folder: Path
) -> None:
    """A graph, and a vocabulary without a tokenizer.json."""
    (folder / "tokenizer.json").unlink()
    if name != "vocab.txt":
        (folder / "model.safetensors").unlink()
    (folder / name).parent.mkdir(exist_ok=True)
    for content, said in (
        ("Entry not found", "a server answers"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
    ):
        (folder / name).write_text(content)
        with pytest.raises(ModelError, match=f"{name}.*{said}"):
            load_model(folder)


def test_settings_that_are_like_an_answer_are_read(folder: Path) -> None:
    set_json(folder / "config.json", error="none", title="a model")
    (folder / "special_tokens_map.json").write_text("{}")
    assert "error, title" in str(load_model(folder).notes)


@pytest.mark.parametrize("part", ["query", "key"])
def test_queries_and_keys_that_are_not_finite(part: str, folder: Path) -> None:
    """Fused attention gives numbers for them, as if nothing were wrong."""
    weights = weights_of(folder)
    weights[f"bert.encoder.layer.0.attention.self.{part}.weight"][3, 4] = float("nan")
    write(folder, weights)
    with pytest.raises(ModelError, match=r"attention\.qkv\.weight is not finite"):
        load(folder).embed(TEXTS)


# ------------------------------------------------------------ another file under a right name


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", {"_from_model_config": True}, "but a generation_config.json"),
        ("config.json", {"tokenizer_class": "B", "cls_token": "[CLS]"}, "but a tokenizer_config"),
        ("config.json", {"version": "1.0", "post_processor": None}, "but a tokenizer.json"),
        ("config.json", {"registered_name": "x>B", "config": {}}, "Keras"),
        ("tokenizer.json", {"[PAD]": 0, "a": 1}, "cannot be read"),
        ("tokenizer.json", [1], "cannot be read"),
    ],
)
def test_another_file_under_the_name(name: str, content: Any, said: str, folder: Path) -> None:
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=f"{name}.*{said}"):
        load_model(folder)


def npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.ones(2))


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("repo/README.md", "x")


def test_keys_that_transformers_wrote_are_no_news(folder: Path) -> None:
    set_json(folder / "config.json", _attn_implementation_autoset=True, xla_device=None)
    assert not load_model(folder).notes
