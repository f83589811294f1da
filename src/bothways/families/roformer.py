"""RoFormer (Su et al. 2021): BERT's layers, with rotary positions in place of learned ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bothways.errors import ModelError
from bothways.families.bert import BERT, CLASSIFIER, ENCODER, KEYS, SPAN, classes
from bothways.families.family import Family, HeadForm

_CHOICE = "RoFormerForMultipleChoice"


def read(values: Mapping[str, Any], _: dict[str, Any], where: str) -> None:
    """What transformers' head on choices reads: by default a row's last place, even of padding."""
    kind = values.get("summary_type", "last")
    if _CHOICE in (values.get("architectures") or []) and kind != "first":
        raise ModelError(
            f"{where}: {_CHOICE} with summary_type {kind!r} reads the last place of a padded row, "
            "so its scores depend on the other texts of a batch; bothways computes 'first' only."
        )


ROFORMER = Family(
    model_type="roformer",
    title="RoFormer",
    prefix="roformer",
    keys={
        **{key: value for key, value in KEYS.items() if key != "position_embedding_type"},
        "max_position_embeddings": ("positions", 1536),
        "embedding_size": ("embedding", 0),
        "summary_type": ("", "first"),
    },
    encoder={
        **{
            name: theirs
            for name, theirs in ENCODER.items()
            if name not in ("embeddings.positions.weight", "pooler")
        },
        "embeddings.project": "embeddings_project",
    },
    heads={
        "masked_lm": BERT.heads["masked_lm"],
        "classifier": HeadForm(
            {"dense": "classifier.dense", "output": "classifier.out_proj"},
            dense=True,
            dropout="hidden",
            first_dropout="hidden",
        ),
        "tagger": HeadForm(CLASSIFIER, dropout="hidden"),
        "span": SPAN,
        "choice": HeadForm(CLASSIFIER),
    },
    classes=classes("RoFormer"),
    tied=BERT.tied,
    twin_bias=BERT.twin_bias,
    sinusoids="encoder.embed_positions.weight",
    axes={"pooler": False, "place": "rotary", "rotary_pairs": "adjacent"},
    fixed={
        "is_decoder": (False,),
        "rotary_value": (False,),
        # Of the head for choices.
        "summary_use_proj": (False, None),
        "summary_activation": (None,),
    },
    training={"summary_first_dropout": 0, "summary_last_dropout": 0},
    tokenizer="RoFormerTokenizer",
    read=read,
)
