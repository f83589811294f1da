"""Conversion of weights and configs between our names and Hugging Face's, by one table.

In memory the three attention projections are one matrix and the vocabulary is padded to a multiple
of 64; on disk neither is the case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from bothways.errors import ConfigError, ModelError
from bothways.families.config import ModelConfig

# Ours -> Hugging Face's; {} is the layer. The weights of a tuple are stacked in ours.
_ENCODER: dict[str, str | tuple[str, ...]] = {
    "embeddings.tokens.weight": "embeddings.word_embeddings.weight",
    "embeddings.positions.weight": "embeddings.position_embeddings.weight",
    "embeddings.segments.weight": "embeddings.token_type_embeddings.weight",
    "embeddings.norm": "embeddings.LayerNorm",
    "layers.{}.attention.qkv": tuple(
        f"encoder.layer.{{}}.attention.self.{part}" for part in ("query", "key", "value")
    ),
    "layers.{}.attention.output": "encoder.layer.{}.attention.output.dense",
    "layers.{}.attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "layers.{}.expand": "encoder.layer.{}.intermediate.dense",
    "layers.{}.contract": "encoder.layer.{}.output.dense",
    "layers.{}.norm": "encoder.layer.{}.output.LayerNorm",
    "pooler": "pooler.dense",
}
_HEADS: dict[str, str] = {
    "masked_lm.dense": "cls.predictions.transform.dense",
    "masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "masked_lm.bias": "cls.predictions.bias",
    "next_sentence.output": "cls.seq_relationship",
    "classifier.output": "classifier",
    "tagger.output": "classifier",
    "span.output": "qa_outputs",
}
# transformers has no class for a BiLSTM under the task head. It and its head have names of our own,
# so that no class of transformers loads them by mistake.
BILSTM = "bothways-bert-bilstm"
_LSTM_PREFIX = "lstm."
_ON_LSTM = ("classifier.output", "tagger.output", "span.output")
_LSTM_WEIGHTS = tuple(
    f"lstm.layers.0.{kind}_{part}_l0{way}"
    for kind in ("weight", "bias")
    for part in ("ih", "hh")
    for way in ("", "_reverse")
)
# Two heads have the same name on disk; the architecture tells which one it is.
TAGGING = "BertForTokenClassification"
# A constant in files made elsewhere.
_REDUNDANT = "embeddings.position_ids"
_TIED = "cls.predictions.decoder.weight"
_BIAS = "cls.predictions.bias"
_BIAS_OF_DECODER = "cls.predictions.decoder.bias"
WORDS = "embeddings.word_embeddings.weight"


def name_table(layers: int, *, lstm: bool = False) -> dict[str, tuple[str, ...]]:
    """The name of every weight in memory -> its name or names on disk.

    A classifier and a tagger have the same names on disk; no model has both.

    Args:
        layers: of the encoder.
        lstm: whether there is a BiLSTM under the task head.
    """
    table: dict[str, tuple[str, ...]] = {}
    for ours, theirs in _ENCODER.items():
        names = (theirs,) if isinstance(theirs, str) else theirs
        for i in range(layers) if "{}" in ours else (0,):
            _add(table, "encoder." + ours.format(i), ["bert." + n.format(i) for n in names])
    for ours, head in _HEADS.items():
        _add(table, ours, [_LSTM_PREFIX + ours if lstm and ours in _ON_LSTM else head])
    if lstm:
        table.update({name: (name,) for name in _LSTM_WEIGHTS})
    return table


def has_lstm(names: Iterable[str]) -> bool:
    """Whether these names of weights, in memory or on disk, include a BiLSTM's."""
    return any(name in _LSTM_WEIGHTS for name in names)


def _add(table: dict[str, tuple[str, ...]], ours: str, theirs: list[str]) -> None:
    if ours.endswith((".weight", ".bias")):
        table[ours] = tuple(theirs)
    else:
        for kind in (".weight", ".bias"):
            table[ours + kind] = tuple(name + kind for name in theirs)


def to_hugging_face(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """A model's state in Hugging Face's names and shapes: fp32, contiguous, on the CPU.

    Tensors are parts of those of ``state`` where they can be, so that saving takes no copy of it.
    """
    table = name_table(config.layers, lstm=has_lstm(state))
    out: dict[str, Tensor] = {}
    for ours, value in state.items():
        if ours == "encoder.embeddings.tokens.weight":
            value = value[: config.vocab_size]
        for name, chunk in zip(table[ours], value.chunk(len(table[ours])), strict=True):
            out[name] = chunk.detach().cpu().float().contiguous()
    return out


def from_hugging_face(
    theirs: Mapping[str, Tensor], config: ModelConfig, *, where: str, tagging: bool = False
) -> tuple[dict[str, Tensor], list[str]]:
    """Hugging Face's weights under our names and in our shapes.

    Args:
        theirs: weights, with or without the ``bert.`` prefix, possibly with old LayerNorm names.
        config: the shape they should have.
        where: the file, for error messages.
        tagging: ``classifier`` is a head on single tokens.

    Returns:
        The converted weights, contiguous, and the names that we do not use. Of two output biases of
        the masked LM the decoder's is used, as in transformers, and the other is among those names
        if it differs.

    Raises:
        ModelError: an output embedding that is not tied, a vocabulary of another size,
            projections that cannot be stacked, or a BiLSTM without a head.
    """
    remaining = {_modern_name(name): value for name, value in theirs.items()}
    _refuse_untied(remaining, where)
    remaining = {k: v for k, v in remaining.items() if k != _TIED and not k.endswith(_REDUNDANT)}
    left_out = _choose_bias(remaining)
    out: dict[str, Tensor] = {}
    lstm = has_lstm(remaining)
    absent = () if lstm else ("classifier.",) if tagging else ("tagger.",)
    for ours, names in name_table(config.layers, lstm=lstm).items():
        if ours.startswith(absent) or not all(name in remaining for name in names):
            continue
        value = _stack([remaining.pop(name) for name in names], names, where)
        if ours == "encoder.embeddings.tokens.weight":
            value = _pad_vocabulary(value, config, where)
        out[ours] = value
    if lstm and not any(name.startswith(_ON_LSTM) for name in out):
        raise ModelError(
            f"{where}: holds a BiLSTM but no head on top of it; it is incomplete. Copy the model "
            "folder again from where it was made."
        )
    return out, sorted([*remaining, *left_out])


def _choose_bias(weights: dict[str, Tensor]) -> list[str]:
    """Keep one output bias of the masked LM; the name of the other if it differs."""
    used = weights.pop(_BIAS_OF_DECODER, None)
    if used is None:
        return []
    other, weights[_BIAS] = weights.get(_BIAS), used
    return [] if other is None or torch.equal(other.float(), used.float()) else [_BIAS]


def _stack(parts: list[Tensor], names: tuple[str, ...], where: str) -> Tensor:
    if len(parts) == 1:
        # Not a view of the memory-mapped file, and contiguous: pickled weights that were converted
        # from TensorFlow are transposed, as no checkpoint can be written of them.
        layout = torch.contiguous_format
        return parts[0].to(torch.float32, copy=True, memory_format=layout)
    shapes = [tuple(part.shape) for part in parts]
    if len(set(shapes)) > 1 or not shapes[0]:
        differing = ", ".join(f"{n} {s}" for n, s in zip(names, shapes, strict=True))
        raise ModelError(f"{where}: weights that should have the same shape do not: {differing}.")
    return torch.cat(parts).float().contiguous()


def _modern_name(name: str) -> str:
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = "bert." + name
    return name


def _refuse_untied(weights: Mapping[str, Tensor], where: str) -> None:
    output, input_ = weights.get(_TIED), weights.get("bert." + WORDS)
    if output is None or input_ is None:
        return
    if not torch.equal(output.float(), input_.float()):
        raise ModelError(
            f"{where}: the masked-LM output embedding ({_TIED}) differs from the input embedding; "
            "bothways computes them tied, so the logits would change. Tie them before converting."
        )


def _pad_vocabulary(value: Tensor, config: ModelConfig, where: str) -> Tensor:
    if value.ndim != 2 or len(value) != config.vocab_size:
        raise ModelError(
            f"{where}: the token embedding has shape {tuple(value.shape)} but config.json says "
            f"vocab_size {config.vocab_size}; the folder's files do not belong together."
        )
    padding = value.new_zeros(config.padded_vocab - config.vocab_size, value.shape[1])
    return torch.cat([value, padding])


def trim_vocabulary(state: dict[str, Tensor], config: ModelConfig) -> None:
    """Take from a state the rows of pieces beyond the vocabulary of ``config``."""
    table, bias = "encoder.embeddings.tokens.weight", "masked_lm.bias"
    rows = state[table][: config.vocab_size]
    state[table] = torch.cat(
        [rows, rows.new_zeros(config.padded_vocab - config.vocab_size, config.hidden)]
    )
    if bias in state:
        state[bias] = state[bias][: config.vocab_size].clone()


# Values that a config.json may have for bothways to compute the same as transformers.
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert", BILSTM),
    "hidden_act": ("gelu", "gelu_python"),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "tie_word_embeddings": (True,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "problem_type": ("single_label_classification", "regression", None),
}


def config_to_hugging_face(
    config: ModelConfig, architecture: str, *, pad_id: int = 0
) -> dict[str, Any]:
    """config.json's content for a model class of transformers."""
    return {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "intermediate_size": config.intermediate,
        "max_position_embeddings": config.positions,
        "type_vocab_size": config.segments,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
        "initializer_range": config.init_std,
        "position_embedding_type": "absolute",
        "is_decoder": config.left_to_right,
        "pad_token_id": pad_id,
        "dtype": "float32",
    }


_WHOLE = {
    *("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "type_vocab_size"),
}
_REAL = {
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps"),
    "initializer_range",
}


def config_from_hugging_face(values: Mapping[str, Any], *, where: str) -> ModelConfig:
    """The shape that a config.json describes.

    Raises:
        ModelError: a key is missing, or has a value that bothways does not support.
    """
    for key, allowed in _REQUIRED.items():
        if key in values and values[key] not in allowed:
            raise ModelError(
                f"{where}: {key} is {values[key]!r}; bothways computes BERT with "
                f"{key} {allowed[0]!r} only, and loading it anyway would give other results."
            )
    for keys, kinds, kind in ((_WHOLE, int, "a whole number"), (_REAL, (int, float), "a number")):
        for key in keys & values.keys():
            if not isinstance(values[key], kinds) or isinstance(values[key], bool):
                raise ModelError(f"{where}: {key} is {values[key]!r}; it must be {kind}.")
    try:
        return ModelConfig(
            vocab_size=values["vocab_size"],
            layers=values["num_hidden_layers"],
            hidden=values["hidden_size"],
            heads=values["num_attention_heads"],
            intermediate=values["intermediate_size"],
            positions=values.get("max_position_embeddings", 512),
            segments=values.get("type_vocab_size", 2),
            dropout=values.get("hidden_dropout_prob", 0.1),
            attention_dropout=values.get("attention_probs_dropout_prob", 0.1),
            norm_eps=values.get("layer_norm_eps", 1e-12),
            init_std=values.get("initializer_range", 0.02),
            left_to_right=values.get("is_decoder", False),
        )
    except KeyError as error:
        raise ModelError(f"{where}: the key {error} of a BERT config is missing.") from None
    except (ConfigError, TypeError) as error:
        raise ModelError(f"{where} does not describe a BERT: {error}") from None
