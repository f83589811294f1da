"""Names and config keys, both ways, without touching the disk."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from bothways.errors import ModelError
from bothways.families import ModelConfig, config_of, family_of
from bothways.families.family import write_config
from bothways.model.folder import to_theirs
from bothways.runtime.weights import account_for, name_table
from model_examples import BOTH_HEADS, SHAPES, from_theirs, small_bert, small_config, stored

CONFIG = small_config()


def config_from_hugging_face(values: dict[str, Any], *, where: str) -> ModelConfig:
    return config_of(values, where=where)[0]


def config_to_hugging_face(config: ModelConfig, architecture: str) -> dict[str, Any]:
    return write_config(family_of(config), config, architecture, pad_id=0, dtype="float32")


def from_hugging_face(
    theirs: dict[str, torch.Tensor], config: ModelConfig, *, where: str
) -> tuple[dict[str, torch.Tensor], list[str]]:
    return from_theirs(theirs, config, where)


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_come_back_bit_identical(shape: tuple[int, ...]) -> None:
    config = small_config(shape)
    state = small_bert(config, **BOTH_HEADS, classes=3).state_dict()
    back, unused = from_hugging_face(to_theirs(state, config), config, where="file")
    assert not unused
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_the_table_is_one_to_one() -> None:
    # A classifier and a tagger share their name; no model has both.
    heads = ("masked_lm", "next_sentence", "classifier", "span")
    table = name_table(small_config((3, 16, 2, 64, 97)), heads)
    theirs = [part.name for parts in table.values() for part in parts]
    assert len(set(theirs)) == len(theirs)
    assert [part.name for part in table["encoder.layers.2.attention.qkv.bias"]] == [
        f"bert.encoder.layer.2.attention.self.{part}.bias" for part in ("query", "key", "value")
    ]


def test_on_disk_there_is_no_padding_and_no_fusing() -> None:
    theirs = to_theirs(small_bert(**BOTH_HEADS).state_dict(), CONFIG)
    assert theirs["bert.embeddings.word_embeddings.weight"].shape == (97, 16)
    assert theirs["cls.predictions.bias"].shape == (97,)
    assert theirs["bert.encoder.layer.0.attention.self.key.weight"].shape == (16, 16)
    assert not any("qkv" in name for name in theirs)


def test_saved_tensors_are_fp32_whole_and_their_own() -> None:
    model = small_bert().bfloat16()
    theirs = to_theirs(model.state_dict(), CONFIG)
    assert {value.dtype for value in theirs.values()} == {torch.float32}
    assert all(value.is_contiguous() for value in theirs.values())
    pointers = [value.untyped_storage().data_ptr() for value in theirs.values()]
    assert len(set(pointers)) == len(pointers)


def _foreign() -> dict[str, torch.Tensor]:
    return to_theirs(small_bert(**BOTH_HEADS).state_dict(), CONFIG)


def test_old_names_and_a_missing_prefix_are_understood() -> None:
    plain = _foreign()
    old = {
        name.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in plain.items()
    }
    assert not any(name.startswith("bert.") or name.endswith("Norm.weight") for name in old)
    expected, _ = from_hugging_face(plain, CONFIG, where="file")
    found, unused = from_hugging_face(old, CONFIG, where="file")
    assert not unused
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_copies_and_constants_are_dropped_and_the_rest_is_named() -> None:
    given = _foreign()
    given["cls.predictions.decoder.weight"] = given["bert.embeddings.word_embeddings.weight"].half()
    given["bert.embeddings.word_embeddings.weight"] = given["cls.predictions.decoder.weight"]
    given["cls.predictions.decoder.bias"] = given["cls.predictions.bias"]
    given["bert.embeddings.position_ids"] = torch.arange(40)[None]
    given["crf.transitions"] = torch.zeros(2, 16)
    state, unused = from_hugging_face(given, CONFIG, where="file")
    assert unused == ["crf.transitions"]
    assert state["encoder.embeddings.tokens.weight"].dtype == torch.float32


def test_of_two_output_biases_the_decoders_is_used() -> None:
    """As transformers does."""
    given = _foreign()
    expected = given["cls.predictions.bias"] + 1
    given["cls.predictions.decoder.bias"] = expected
    for bias, named in ((given["cls.predictions.bias"], ["cls.predictions.bias"]), (None, [])):
        if bias is None:
            del given["cls.predictions.bias"]
        state, unused = from_hugging_face(given, CONFIG, where="file")
        assert unused == named
        assert torch.equal(state["masked_lm.bias"][: len(expected)], expected)


def test_an_untied_output_embedding_is_refused_with_its_head_alone() -> None:
    given = _foreign()
    given["cls.predictions.decoder.weight"] = given["bert.embeddings.word_embeddings.weight"] + 1
    weights = account_for(stored(given), CONFIG, where="weights.bin")
    assert re.search(r"weights\.bin.*decoder\.weight.*differs", weights.refused["masked_lm"])
    assert "masked_lm" not in weights.heads, "the rest can be used"
    assert "cls.predictions.decoder.weight" in weights.unused


def test_projections_of_different_shapes_are_named() -> None:
    given = _foreign()
    given["bert.encoder.layer.0.attention.self.key.weight"] = torch.zeros(8, 8)
    with pytest.raises(ModelError, match=r"file.*self\.key\.weight \(8, 8\)"):
        from_hugging_face(given, CONFIG, where="file")


@pytest.mark.parametrize("shape", [(96, 16), (98, 16), (97,), ()])
def test_a_vocabulary_of_another_size_is_named(shape: tuple[int, ...]) -> None:
    given = {**_foreign(), "bert.embeddings.word_embeddings.weight": torch.zeros(shape)}
    with pytest.raises(ModelError, match=r"file: the token embedding has shape .*vocab_size 97"):
        from_hugging_face(given, CONFIG, where="file")


# ----------------------------------------------------------------------------------------- config


def _config(**changes: Any) -> dict[str, Any]:
    return {**config_to_hugging_face(CONFIG, "BertModel"), **changes}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_config_comes_back_the_same(shape: tuple[int, ...]) -> None:
    config = small_config(shape, dropout=0.25)
    assert config_from_hugging_face(config_to_hugging_face(config, "x"), where="file") == config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "quick_gelu"),
        ("hidden_act", ["gelu"]),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", None),
        ("add_cross_attention", True),
        ("model_type", "xlnet"),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"bits": 4}),
        ("problem_type", "ordinal_regression"),
    ],
)
def test_keys_that_change_results_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ModelError, match=rf"some/config\.json: {key} is "):
        config_from_hugging_face(_config(**{key: value}), where="some/config.json")


def test_harmless_keys_are_ignored() -> None:
    changes = {
        "use_cache": True,
        "transformers_version": "5.0",
        "gradient_checkpointing": False,
        "_name_or_path": "x",
        "classifier_dropout": None,
        "never heard of": 1,
        "position_embedding_type": None,
        "is_decoder": False,
    }
    assert config_from_hugging_face(_config(**changes), where="file") == CONFIG


def test_keys_of_early_configs_that_were_not_written_have_berts_values() -> None:
    values = _config()
    for key in ("model_type", "position_embedding_type", "layer_norm_eps", "architectures"):
        del values[key]
    assert config_from_hugging_face(values, where="file") == CONFIG


@pytest.mark.parametrize(
    "key", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"]
)
def test_a_missing_key_is_named(key: str) -> None:
    values = _config()
    del values[key]
    with pytest.raises(ModelError, match=rf"file: the key '{key}'"):
        config_from_hugging_face(values, where="file")


@pytest.mark.parametrize(
    "changes",
    [
        *({"hidden_size": 17}, {"vocab_size": 0}, {"type_vocab_size": -1}, {"layer_norm_eps": -1}),
        *({"hidden_size": None}, {"hidden_size": "16"}, {"hidden_size": 16.0}),
        *({"num_hidden_layers": True}, {"layer_norm_eps": "1e-12"}, {"layer_norm_eps": None}),
    ],
)
def test_a_senseless_value_is_an_error_about_the_file(changes: dict[str, Any]) -> None:
    (key,) = changes
    pattern = f"file: {key} is .*; it must be a|file does not describe a BERT: {key}"
    with pytest.raises(ModelError, match=pattern):
        config_from_hugging_face(_config(**changes), where="file")
