"""Folders as trainers, adapters, exporters and hubs leave them: right, or named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from bothways.api.model import load
from bothways.errors import ConfigError, ModelError
from bothways.families import ModelConfig, config_of
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


def test_weights_that_another_program_cuts_off(folder: Path) -> None:
    """Reading on would end the process, as the file is mapped."""
    model = load(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(ModelError, match="changed by another program while it was read"):
        model.embed(TEXTS)


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


def test_a_second_pooling_is_not_computed(folder: Path) -> None:
    write_modules(folder, "cls", "Pooling")
    set_json(folder / "2_Pooling/config.json", pooling_mode="mean")
    with pytest.raises(ConfigError, match="a second Pooling"):
        load(folder).embed(TEXTS)


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


@pytest.mark.parametrize("part", ["query", "key"])
def test_queries_and_keys_that_are_not_finite(part: str, folder: Path) -> None:
    """Fused attention gives numbers for them, as if nothing were wrong."""
    weights = weights_of(folder)
    weights[f"bert.encoder.layer.0.attention.self.{part}.weight"][3, 4] = float("nan")
    write(folder, weights)
    with pytest.raises(ModelError, match=r"attention\.qkv\.weight is not finite"):
        load(folder).embed(TEXTS)
