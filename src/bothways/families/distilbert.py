"""DistilBERT (Sanh et al. 2019): half of BERT's layers, no segments, no pooler."""

from __future__ import annotations

from bothways.families.bert import CLASSIFIER, ENCODER, QA, classes
from bothways.families.family import REQUIRED, Family, HeadForm

_LAYER = "transformer.layer.{}"
_OF_TEXTS = HeadForm(
    {"dense": "pre_classifier", **CLASSIFIER}, dense=True, activation="relu", dropout="head"
)

DISTILBERT = Family(
    model_type="distilbert",
    title="DistilBERT",
    prefix="distilbert",
    keys={
        "vocab_size": ("vocab_size", REQUIRED),
        "n_layers": ("layers", REQUIRED),
        "dim": ("hidden", REQUIRED),
        "n_heads": ("heads", REQUIRED),
        "hidden_dim": ("intermediate", REQUIRED),
        "max_position_embeddings": ("positions", 512),
        "activation": ("activation", "gelu"),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "seq_classif_dropout": ("head_dropout", 0.2),
        "initializer_range": ("init_std", 0.02),
    },
    encoder={
        **{
            name: theirs
            for name, theirs in ENCODER.items()
            if name.startswith("embeddings.") and "segments" not in name
        },
        "layers.{}.attention.qkv": tuple(f"{_LAYER}.attention.{part}_lin" for part in "qkv"),
        "layers.{}.attention.output": f"{_LAYER}.attention.out_lin",
        "layers.{}.attention_norm": f"{_LAYER}.sa_layer_norm",
        "layers.{}.expand": f"{_LAYER}.ffn.lin1",
        "layers.{}.contract": f"{_LAYER}.ffn.lin2",
        "layers.{}.norm": f"{_LAYER}.output_layer_norm",
    },
    heads={
        "masked_lm": HeadForm(
            {
                "dense": "vocab_transform",
                "norm": "vocab_layer_norm",
                "bias": "vocab_projector.bias",
            },
            dense=True,
            norm=True,
        ),
        "classifier": _OF_TEXTS,
        "tagger": HeadForm(CLASSIFIER, dropout="hidden"),
        "span": HeadForm(QA, dropout="hidden"),
        "choice": _OF_TEXTS,
    },
    classes=classes("DistilBert"),
    tied="vocab_projector.weight",
    axes={"segments": 0, "pooler": False},
    training={"qa_dropout": 0.1},
    # The sinusoids are in the weights.
    harmless=frozenset(["sinusoidal_pos_embds", "tie_weights_"]),
    fixed={"is_decoder": (False,)},
    tokenizer="DistilBertTokenizer",
)
