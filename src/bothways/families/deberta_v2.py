"""DeBERTa-v2 and v3 (He et al. 2021, 2023): scores of relative places, shared by all layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bothways.errors import ModelError
from bothways.families.bert import BERT, CLASSIFIER, ENCODER, KEYS, QA, classes
from bothways.families.config import shortened
from bothways.families.family import Family, HeadForm

_SELF = "encoder.layer.{}.attention.self"
_TEXTS = HeadForm(
    {"dense": "pooler.dense", **CLASSIFIER}, dense=True, activation="gelu", dropout="hidden"
)
# What transformers computes otherwise where a key is absent.
_NEEDED = {
    "relative_attention": True,
    "position_biased_input": False,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": ["p2c", "c2p"],
}


def read(values: Mapping[str, Any], named: dict[str, Any], where: str) -> None:
    """Refuse other forms of places, of which there are many."""
    given = dict(values)
    if isinstance(given.get("pos_att_type"), str):
        given["pos_att_type"] = given["pos_att_type"].split("|")
    if isinstance(given.get("pos_att_type"), list):
        given["pos_att_type"] = sorted(given["pos_att_type"], reverse=True)
    needed = dict(_NEEDED)
    for key in ("embedding_size", "pooler_hidden_size"):
        needed |= {key: named["hidden"]} if key in given else {}
    if given.get("max_relative_positions", -1) not in (-1, 0):
        needed["max_relative_positions"] = named["positions"]
    if "model_type" in given and named["buckets"] < 1:
        needed["position_buckets"] = 256
    for key, wanted in needed.items():
        if given.get(key, None if "model_type" in given else wanted) != wanted:
            raise ModelError(
                f"{where}: {key} is {shortened(given.get(key))}; bothways computes DeBERTa-v2 with "
                f"{wanted!r} only, and loading it anyway would give other results."
            )


DEBERTA_V2 = Family(
    model_type="deberta-v2",
    title="DeBERTa-v2",
    prefix="deberta",
    keys={
        **{key: value for key, value in KEYS.items() if key != "position_embedding_type"},
        **{key: ("", value) for key, value in _NEEDED.items()},
        "type_vocab_size": ("segments", 0),
        "layer_norm_eps": ("norm_eps", 1e-7),
        "position_buckets": ("buckets", 256),
    },
    encoder={
        **{
            name: theirs
            for name, theirs in ENCODER.items()
            if name not in ("embeddings.positions.weight", "pooler")
        },
        "layers.{}.attention.qkv": tuple(
            f"{_SELF}.{part}_proj" for part in ("query", "key", "value")
        ),
        "places.table": "encoder.rel_embeddings",
        "places.norm": "encoder.LayerNorm",
    },
    heads={
        "masked_lm": BERT.heads["masked_lm"],
        "classifier": _TEXTS,
        "tagger": HeadForm(CLASSIFIER, dropout="hidden"),
        "span": HeadForm(QA),
        "choice": _TEXTS,
    },
    classes=classes("DebertaV2"),
    tied=BERT.tied,
    twin_bias=BERT.twin_bias,
    axes={"pooler": False, "place": "disentangled"},
    fixed={
        "is_decoder": (False,),
        "conv_kernel_size": (0,),
        "legacy": (True,),
        "pooler_hidden_act": ("gelu",),
    },
    training={"pooler_dropout": 0},
    harmless=frozenset(
        "max_relative_positions embedding_size pooler_hidden_size conv_act cls_dropout".split()
    ),
    read=read,
)
