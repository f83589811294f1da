"""Entities put together from tokens, beside transformers' pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
import transformers

from bothways.runtime.entities import Aggregation, group_tokens
from bothways.runtime.folder import load_model
from tokenizer_examples import LINES, MAKERS

TEXTS = [
    *(LINES[0], LINES[2]),
    "Café naïve résumé, ß ŉ ﬁ 東京タワー 2024-01-02 #hash",
    "He didn't leave (Norwich-Larvik) until 2024; she  did.",
    *("", " "),
]
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "E-LOC", "DATE"]


@pytest.mark.parametrize("kind", MAKERS)
def test_groups_are_those_of_the_pipeline(kind: str, tmp_path: Path) -> None:
    folder = MAKERS[kind](tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = transformers.AutoConfig.for_model(
        {"klue": "roberta"}.get(kind, kind),
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        hidden_size=16,
        embedding_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=200,
        id2label=dict(enumerate(LABELS)),
    )
    torch.manual_seed(1)
    model = transformers.AutoModelForTokenClassification.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3)
    model.save_pretrained(folder)
    loaded, seen = load_model(folder), set()
    pipeline = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, ignore_labels=[]
    )
    for how in get_args(Aggregation):
        for text, groups in zip(TEXTS, group_tokens(loaded, TEXTS, how), strict=True):
            theirs = pipeline(text, aggregation_strategy=how)
            name = "entity" if how == "none" else "entity_group"
            expected = [(one[name], one["start"], one["end"]) for one in theirs]
            assert [(one.type, one.start, one.end) for one in groups] == expected
            scores = [one["score"] for one in theirs]
            assert [one.probability for one in groups] == pytest.approx(scores, abs=1e-5)
            if how == "none":
                own = [(one.words[0], one.text) for one in groups]
                assert own == [(one["index"], one["word"]) for one in theirs]
            seen.add((how, len(groups)))
    assert len(seen) > 2 * len(get_args(Aggregation))
