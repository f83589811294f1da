"""RoBERTa (Liu et al. 2019): BERT's encoder without pairs, with heads of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bothways.errors import ModelError
from bothways.families.bert import DROPOUT_KEY, ENCODER, KEYS, POOLED, SPAN, TAGGER, classes
from bothways.families.config import ModelConfig
from bothways.families.family import Family, HeadForm


def read(values: Mapping[str, Any], named: dict[str, Any], where: str) -> None:
    """Positions are counted from the row after the padding id's, so 514 rows are 512 tokens."""
    pad = values.get("pad_token_id", 1)
    if not isinstance(pad, int) or isinstance(pad, bool) or pad < 0:
        raise ModelError(
            f"{where}: pad_token_id is {pad!r}; it must be a whole number, because positions are "
            "counted from it."
        )
    named["place_offset"] = pad + 1
    named["positions"] -= pad + 1


def write(config: ModelConfig, values: dict[str, Any]) -> None:
    """The reverse of :func:`read`."""
    values["max_position_embeddings"] = config.positions + config.place_offset
    values["pad_token_id"] = max(0, config.place_offset - 1)


ROBERTA = Family(
    model_type="roberta",
    title="RoBERTa",
    prefix="roberta",
    keys={**KEYS, **DROPOUT_KEY},
    encoder=ENCODER,
    heads={
        "masked_lm": HeadForm(
            {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "bias": "lm_head.bias"},
            activation="gelu",
            dense=True,
            norm=True,
        ),
        "classifier": HeadForm(
            {"dense": "classifier.dense", "output": "classifier.out_proj"},
            dense=True,
            activation="tanh",
            dropout="head",
            first_dropout="head",
        ),
        "tagger": TAGGER,
        "span": SPAN,
        "choice": HeadForm(POOLED.names, pooled=True, dropout="hidden"),
    },
    classes=classes("Roberta"),
    tied="lm_head.decoder.weight",
    twin_bias="lm_head.decoder.bias",
    axes={"place_offset": 2},
    published={"segments": 1, "norm_eps": 1e-5},
    fixed={"is_decoder": (False,)},
    tokenizer="RobertaTokenizer",
    read=read,
    write=write,
)
