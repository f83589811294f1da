"""The families of encoders, by the name that config.json gives them.

A family is a module of data: how its files name config keys and weights, which heads it has, what
its shapes have in common. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bothways.errors import ConfigError, ModelError
from bothways.families.albert import ALBERT
from bothways.families.bert import BERT
from bothways.families.config import ModelConfig, shortened
from bothways.families.deberta_v2 import DEBERTA_V2
from bothways.families.distilbert import DISTILBERT
from bothways.families.electra import ELECTRA
from bothways.families.family import REQUIRED, Family, HeadForm, own_type, read_config
from bothways.families.gpt2 import GPT2
from bothways.families.modernbert import MODERNBERT
from bothways.families.roberta import ROBERTA
from bothways.families.roformer import ROFORMER
from bothways.families.xlm_roberta import XLM_ROBERTA

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (BERT, ROBERTA, XLM_ROBERTA, ALBERT, ELECTRA, DISTILBERT, MODERNBERT, ROFORMER)
}
NETWORKS = {**FAMILIES, **{family.model_type: family for family in (DEBERTA_V2, GPT2)}}
"""These, and families whose networks are computed, but whose tokenizers and tasks are not here."""
LSTM_SUFFIX = "-bilstm"
"""Of the model type of a network with a BiLSTM under its head."""

__all__ = [
    "FAMILIES",
    "LSTM_SUFFIX",
    "NETWORKS",
    "Family",
    "HeadForm",
    "ModelConfig",
    "config_of",
    "family_of",
    "new_shape",
]


def family_of(config: ModelConfig) -> Family:
    """The family of a shape.

    Raises:
        ModelError: there is none of this name.
    """
    if config.family not in NETWORKS:
        raise ModelError(f"family is {config.family!r}; bothways has {', '.join(NETWORKS)}.")
    return NETWORKS[config.family]


def config_of(values: Mapping[str, Any], *, where: str) -> tuple[ModelConfig, list[str]]:
    """The shape that a config.json describes, and what a user should know, as sentences.

    Args:
        values: the file's content; without a model type it is taken for the family of its class,
            or else for the first family, whose early files had none.
        where: the file, for messages.

    Raises:
        ModelError: another family, a key that is missing, or a value that would give other results.
    """
    named = values.get("model_type", _by_class(values))
    types = {
        name: family
        for own, family in NETWORKS.items()
        for name in (own, own_type(own), own_type(own, LSTM_SUFFIX))
    }
    if "model_type" not in values and (other := _another_file(values)):
        raise ModelError(
            f"{where} is no config.json of a model here, but {other}. Get the config.json that was "
            "saved with the weights."
        )
    if not isinstance(named, str) or named not in types:
        raise ModelError(
            f"{where}: model_type is {shortened(named)}; bothways computes {', '.join(NETWORKS)}. "
            "Take a model of one of these families, or use this one in the library that wrote it."
        )
    config, notes = read_config(types[named], values, where=where)
    classes = values.get("architectures")
    if "model_type" not in values and isinstance(classes, list) and classes:
        family = types[named]
        if classes[0] not in (*family.classes, family.causal):
            notes.append(
                f"{where} has no model_type, and its class {shortened(classes[0])} is none that "
                f"is known; it is computed as {family.title}. If it is another, write model_type"
            )
    return config, notes


# Keys that only another file has -> what that is.
_OF_OTHERS: Mapping[str, str] = {
    "registered_name": "that of a model of Keras or KerasHub, whose weights and names are others: "
    "use it there, or take the model of the same name that transformers reads",
    "post_processor": "a tokenizer.json",
    "model_input_names": "a tokenizer_config.json",
    "added_tokens_decoder": "a tokenizer_config.json",
    "cls_token": "a tokenizer_config.json or special_tokens_map.json",
    "_from_model_config": "a generation_config.json",
    "base_model_name_or_path": "an adapter_config.json",
    "weight_map": "the index of weights in parts",
}


def _another_file(values: Mapping[str, Any]) -> str:
    """What a file without the sizes of a model is instead; empty if that cannot be told."""
    if any(key.startswith(("hidden", "vocab", "num_", "n_", "dim")) for key in values):
        return ""
    return next((what for key, what in _OF_OTHERS.items() if key in values), "")


def new_shape(family: str, **fields: Any) -> ModelConfig:
    """A shape of a family, as its published models for what is not given.

    Args:
        family: its name.
        fields: of :class:`ModelConfig`; at least the sizes that have no default there.

    Raises:
        ModelError: there is no such family.
        ConfigError: fields that do not make a shape.
    """
    if family not in NETWORKS:
        raise ModelError(f"family is {family!r}; bothways has {', '.join(NETWORKS)}.")
    found = NETWORKS[family]
    needed = {key: name for key, (name, default) in found.keys.items() if default is REQUIRED}
    if missing := [name for name in needed.values() if name not in fields]:
        raise ConfigError(f"a new {found.title} needs {', '.join(missing)}.")
    sizes = {key: fields[name] for key, name in needed.items()}
    usual, _ = read_config(found, sizes, where=family)
    return replace(usual, **{**found.published, **fields})


def _by_class(values: Mapping[str, Any]) -> str:
    classes = values.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else ""
    named = first if isinstance(first, str) else ""
    found = (own for own, family in NETWORKS.items() if named in family.classes)
    return next(found, BERT.model_type)
