"""ModernBERT (Warner et al. 2024): rotary positions, windows, gated layers, norms first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bothways.errors import ModelError
from bothways.families.bert import CLASSIFIER, classes
from bothways.families.config import ModelConfig
from bothways.families.family import REQUIRED, Family, HeadForm

_PREDICTION = {"dense": "head.dense", "norm": "head.norm"}
_KINDS = {"global": "full_attention", "local": "sliding_attention"}
_MAPS = {**_PREDICTION, **CLASSIFIER}
_TASK = HeadForm(_MAPS, dense=True, activation="own", norm=True, dropout="head")


def read(values: Mapping[str, Any], named: dict[str, Any], where: str) -> None:
    """Windows, the order of local and global layers, rotary bases, in the old keys or the new."""
    if values.get("mlp_bias", False) != named["biases"]:
        raise ModelError(f"{where}: attention_bias and mlp_bias differ; they must not.")
    half = values.get("sliding_window")  # which comes first in transformers
    width = values.get("local_attention", 128) if half is None else 2 * half
    if (window := width // 2) < 1:
        raise ModelError(f"{where}: local_attention is {width!r}; windows of 2 and more are known.")
    named["window"] = window
    every, types = values.get("global_attn_every_n_layers", 3), values.get("layer_types")
    if types is not None:
        later = [i for i, kind in enumerate(types) if kind == _KINDS["global"] and i]
        every = later[0] if later else max(len(types), 1)
        kinds = [_KINDS["local" if i % every else "global"] for i in range(named["layers"])]
        if list(types) != kinds:
            raise ModelError(
                f"{where}: layer_types is {types}; bothways computes a global layer at the start "
                "and then every n layers."
            )
    named["global_every"] = every
    rope = values.get("rope_parameters") or {}
    if values.get("rope_scaling") is not None:
        raise ModelError(f"{where}: rope_scaling is {values['rope_scaling']!r}; it must be null.")
    if others := sorted(rope.keys() - _KINDS.values()):
        raise ModelError(f"{where}: rope_parameters has {', '.join(others)}, no kind of layer.")
    for kind, usual in (("global", 160_000.0), ("local", 10_000.0)):
        own = rope.get(_KINDS[kind]) or {}
        if (form := own.get("rope_type", own.get("type", "default"))) != "default":
            raise ModelError(f"{where}: rope_type is {form!r}; it must be 'default'.")
        base = own.get("rope_theta", values.get(f"{kind}_rope_theta"))
        if base is None and "local_rope_theta" in values:  # null is that of the global layers
            base = named.get("rotary_global")
        named[f"rotary_{kind}"] = float(usual if base is None else base)


def write(config: ModelConfig, values: dict[str, Any]) -> None:
    """The reverse of :func:`read`, in the keys that all versions of transformers read."""
    values["mlp_bias"] = config.biases
    values["mlp_dropout"] = config.dropout
    values["local_attention"] = 2 * config.window
    values["global_attn_every_n_layers"] = config.global_every
    values["global_rope_theta"] = config.rotary_global
    values["local_rope_theta"] = config.rotary_local


MODERNBERT = Family(
    model_type="modernbert",
    title="ModernBERT",
    prefix="model",
    keys={
        "vocab_size": ("vocab_size", REQUIRED),
        "num_hidden_layers": ("layers", REQUIRED),
        "hidden_size": ("hidden", REQUIRED),
        "num_attention_heads": ("heads", REQUIRED),
        "intermediate_size": ("intermediate", REQUIRED),
        "max_position_embeddings": ("positions", 8192),
        "hidden_activation": ("activation", "gelu"),
        "embedding_dropout": ("dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
        "norm_eps": ("norm_eps", 1e-5),
        "initializer_range": ("init_std", 0.02),
        "attention_bias": ("biases", False),
        "norm_bias": ("norm_biases", False),
        "decoder_bias": ("output_bias", True),
        "classifier_pooling": ("pooling", "cls"),
        "classifier_dropout": ("head_dropout", 0.0),
        "classifier_bias": ("head_biases", False),
        "classifier_activation": ("head_activation", "gelu"),
    },
    encoder={
        "embeddings.tokens.weight": "embeddings.tok_embeddings.weight",
        "embeddings.norm": "embeddings.norm",
        "layers.{}.attention.qkv": "layers.{}.attn.Wqkv",
        "layers.{}.attention.output": "layers.{}.attn.Wo",
        "layers.{}.attention_norm": "layers.{}.attn_norm",
        "layers.{}.expand": "layers.{}.mlp.Wi",
        "layers.{}.contract": "layers.{}.mlp.Wo",
        "layers.{}.norm": "layers.{}.mlp_norm",
        "final_norm": "final_norm",
    },
    heads={
        "masked_lm": HeadForm(
            {**_PREDICTION, "bias": "decoder.bias"}, activation="own", dense=True, norm=True
        ),
        **dict.fromkeys(("classifier", "tagger", "span", "choice"), _TASK),
    },
    classes=classes("ModernBert"),
    tied="decoder.weight",
    axes={
        **{"segments": 0, "pooler": False, "place": "rotary", "norm_at": "pre"},
        **{"first_norm": False, "final_norm": True, "gated": True},
    },
    fixed={"is_decoder": (False,)},
    harmless=frozenset(
        """
        local_attention sliding_window global_attn_every_n_layers layer_types rope_parameters
        rope_scaling global_rope_theta local_rope_theta mlp_bias mlp_dropout layer_norm_eps
        initializer_cutoff_factor deterministic_flash_attn reference_compile sparse_prediction
        repad_logits_with_grad sparse_pred_ignore_index type_vocab_size
        """.split()
    ),
    tokenizer="PreTrainedTokenizerFast",
    read=read,
    write=write,
)
