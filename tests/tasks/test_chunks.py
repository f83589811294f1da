"""Long files are encoded in chunks; where one ends must make no difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bothways.io.annotations.squad import GoldAnswer, Questions
from bothways.model.folder import save_model
from bothways.runtime.embeddings import embed_texts
from bothways.runtime.folder import LoadedModel, load_model
from bothways.tasks.options import SpanOptions
from bothways.tasks.passages import PassageFile, encode_questions
from bothways.tasks.tagging import encode_sentences
from bothways.tasks.windows import encode_windows
from model_examples import small_bert, small_tokenizer
from tagging_examples import joined

TOKENIZER = small_tokenizer(97)
TEXTS = ["w1 w2 w3 w4 w5", "w6 w7", "w8 w9 w1", "w2 w3 w4 w5 w6 w7", "w8 w1", "w2 w3", "w5 e\u0301"]


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedModel:
    save_model(tmp_path / "model", small_bert(), TOKENIZER)
    return load_model(tmp_path / "model")


def encode_answers() -> PassageFile:
    """The answer to each question is the last word of its passage."""
    numbers = [*range(len(TEXTS))]
    answers = [(GoldAnswer(text.split()[-1], text.rindex(" ") + 1),) for text in TEXTS]
    rows = Questions(
        Path("q.json"), TEXTS, [*map(str, numbers)], ["w1"] * len(TEXTS), numbers, answers
    )
    return encode_questions(TOKENIZER, rows, SpanOptions(stride=2), length=9)


def everything(loaded: LoadedModel) -> list[Any]:
    """What each of the readers makes of the texts."""
    long = encode_windows(TOKENIZER, TEXTS, None, length=5)
    spans = encode_answers()
    characters = joined([text.split() for text in TEXTS], spaces=False)
    tagged = encode_sentences(TOKENIZER, characters, None, length=9, spaces=False)
    vectors = embed_texts(loaded, TEXTS, max_length=6, long="windows")
    return [
        *(long.tokens, long.bounds, long.owners),
        *(spans.examples.tokens, spans.examples.owners, spans.examples.gold),
        *(spans.starts, spans.ends),
        *(tagged.examples.tokens, np.concatenate([s.word for s in tagged.sentences])),
        vectors.pooled,
    ]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_chunks_make_no_difference(
    size: int, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = everything(loaded)
    for constant in (
        "tasks.windows.CHUNK",
        "tasks.passages._CHUNK",
        "tasks.tagging.CHUNK",
        "runtime.batching._TOGETHER",
    ):
        monkeypatch.setattr(f"bothways.{constant}", size)
    for one, two in zip(whole, everything(loaded), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)
