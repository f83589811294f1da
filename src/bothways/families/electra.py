"""ELECTRA (Clark et al. 2020): a discriminator of replaced tokens, and its generator."""

from __future__ import annotations

from bothways.families.bert import CLASSIFIER, DROPOUT_KEY, ENCODER, KEYS, SPAN, TAGGER, classes
from bothways.families.family import Family, HeadForm

ELECTRA = Family(
    model_type="electra",
    title="ELECTRA",
    prefix="electra",
    keys={**KEYS, "embedding_size": ("embedding", 128), **DROPOUT_KEY},
    encoder={
        **{name: theirs for name, theirs in ENCODER.items() if name != "pooler"},
        "embeddings.project": "embeddings_project",
    },
    heads={
        "masked_lm": HeadForm(
            {
                "dense": "generator_predictions.dense",
                "norm": "generator_predictions.LayerNorm",
                "bias": "generator_lm_head.bias",
            },
            activation="gelu",
            dense=True,
            norm=True,
        ),
        "classifier": HeadForm(
            {"dense": "classifier.dense", "output": "classifier.out_proj"},
            dense=True,
            activation="gelu",
            dropout="head",
            first_dropout="head",
        ),
        "tagger": TAGGER,
        "span": SPAN,
        "choice": HeadForm(
            {"dense": "sequence_summary.summary", **CLASSIFIER},
            dense=True,
            activation="gelu",
            dropout="hidden",
        ),
        "replaced": HeadForm(
            {
                "dense": "discriminator_predictions.dense",
                "output": "discriminator_predictions.dense_prediction",
            },
            dense=True,
        ),
    },
    classes=classes("Electra", ForPreTraining=("replaced",)),
    tied="generator_lm_head.weight",
    axes={"pooler": False},
    fixed={
        "is_decoder": (False,),
        # Of the head for choices.
        "summary_type": ("first",),
        "summary_use_proj": (True,),
        "summary_activation": ("gelu",),
    },
    training={"summary_last_dropout": 0.1},
    tokenizer="ElectraTokenizer",
)
