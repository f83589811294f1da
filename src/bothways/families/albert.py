"""ALBERT (Lan et al. 2020): shared layers, narrow embeddings, sentence order."""

from __future__ import annotations

from bothways.families.bert import ENCODER, KEYS, POOLED, SPAN, TAGGER, classes
from bothways.families.family import Family, HeadForm

_LAYER = "encoder.albert_layer_groups.{}.albert_layers.0"

ALBERT = Family(
    model_type="albert",
    title="ALBERT",
    prefix="albert",
    keys={
        **KEYS,
        "embedding_size": ("embedding", 128),
        "num_hidden_groups": ("groups", 1),
        "hidden_act": ("activation", "gelu_new"),
        "hidden_dropout_prob": ("dropout", 0.0),
        "attention_probs_dropout_prob": ("attention_dropout", 0.0),
        "classifier_dropout_prob": ("head_dropout", 0.1),
    },
    encoder={
        **{name: theirs for name, theirs in ENCODER.items() if "layers" not in name},
        "embeddings.project": "encoder.embedding_hidden_mapping_in",
        "layers.{}.attention.qkv": tuple(
            f"{_LAYER}.attention.{part}" for part in ("query", "key", "value")
        ),
        "layers.{}.attention.output": f"{_LAYER}.attention.dense",
        "layers.{}.attention_norm": f"{_LAYER}.attention.LayerNorm",
        "layers.{}.expand": f"{_LAYER}.ffn",
        "layers.{}.contract": f"{_LAYER}.ffn_output",
        "layers.{}.norm": f"{_LAYER}.full_layer_layer_norm",
        "pooler": "pooler",
    },
    heads={
        "masked_lm": HeadForm(
            {
                "dense": "predictions.dense",
                "norm": "predictions.LayerNorm",
                "bias": "predictions.bias",
            },
            dense=True,
            norm=True,
        ),
        "next_sentence": HeadForm(
            {"output": "sop_classifier.classifier"}, pooled=True, dropout="head"
        ),
        "classifier": POOLED,
        "tagger": TAGGER,
        "span": SPAN,
        "choice": POOLED,
    },
    classes=classes("Albert", ForPreTraining=("masked_lm", "next_sentence")),
    tied="predictions.decoder.weight",
    twin_bias="predictions.decoder.bias",
    axes={"project": True},
    fixed={"inner_group_num": (1,), "is_decoder": (False,)},
    harmless=frozenset(
        "down_scale_factor gap_size net_structure_type num_memory_blocks layers_to_keep".split()
    ),
    tokenizer="AlbertTokenizer",
)
