"""The Korean tasks on their real files: texts come whole out of the reader and the tokenizer."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bothways.tasks.catalogue import task_recipe as declared
from bothways.tasks.kinds import KINDS
from bothways.tasks.readers import Texts
from bothways.tasks.task import EncodedFile
from bothways.tokenization.learning import learn_vocabulary
from bothways.tokenization.tokenizer import Tokenizer

# Task, file, examples (the published counts).
FILES = [
    ("nsmc", "nsmc/ratings_test.txt", 50_000),
    ("korsts", "korsts/sts-train.tsv", 5_749),
    ("korsts", "korsts/sts-dev.tsv", 1_500),
    ("korsts", "korsts/sts-test.tsv", 1_379),
    ("kornli", "kornli/xnli.dev.ko.tsv", 2_490),
    ("kornli", "kornli/xnli.test.ko.tsv", 5_010),
    ("klue-nli", "klue/klue-nli-v1.1_dev.json", 3_000),
    ("klue-sts", "klue/klue-sts-v1.1_dev.json", 519),
]
LOOKED_AT = 60


@pytest.fixture(scope="module")
def tokenizer(shared_data: Callable[[str], Path]) -> Tokenizer:
    """Uncased, with the normalization that Korean text chooses by itself."""
    lines = shared_data("ko/korsts/sts-train.tsv").read_text(encoding="utf-8").splitlines()
    return learn_vocabulary(lines[:3000], size=3000)


def texts(rows: Texts, count: int) -> list[str]:
    """Some texts of both columns, from all over the file."""
    step = max(1, len(rows) // count)
    return [text for column in (rows.a, rows.b or []) for text in column[::step]]


@pytest.mark.parametrize(("name", "file", "count"), FILES)
def test_korean_files(
    name: str, file: str, count: int, tokenizer: Tokenizer, shared_data: Callable[[str], Path]
) -> None:
    options = declared(name).task
    kind = KINDS[options.kind]
    rows = kind.read(shared_data(f"ko/{file}"), options, labelled=True)
    assert len(rows) == count
    raw = shared_data(f"ko/{file}").read_text(encoding="utf-8")
    some = texts(rows, LOOKED_AT)
    assert all(text in raw or text in raw.replace('\\"', '"') for text in some)
    for text in some:
        encoding = tokenizer.encode(text)
        pieces = [tokenizer.piece(id).removeprefix("##") for id in encoding.ids[1:-1]]
        spelled = unicodedata.normalize("NFC", text.lower()).split()
        if tokenizer.unk_id not in encoding.ids:
            assert "".join(pieces) == "".join(spelled)
        decomposed = tokenizer.encode(unicodedata.normalize("NFD", text))
        assert decomposed.ids == encoding.ids
        shown = "".join(text[start:end] for start, end in encoding.offsets[1:-1])
        assert shown == "".join(text.split())


def test_labels_of_korean_tasks(tokenizer: Tokenizer, shared_data: Callable[[str], Path]) -> None:
    """All three classes of XNLI are equally common; scores of KLUE-STS lie in 0 to 5."""

    def part(name: str, file: str) -> EncodedFile[Texts]:
        options = declared(name).task
        kind = KINDS[options.kind]
        rows = kind.read(shared_data(file), options, labelled=True)
        return kind.define(options, rows).encode(tokenizer, rows, length=128)

    xnli = part("kornli", "ko/kornli/xnli.dev.ko.tsv").examples
    assert np.bincount(xnli.gold).tolist() == [830, 830, 830]
    scores = part("klue-sts", "ko/klue/klue-sts-v1.1_dev.json").examples.gold
    assert (scores.min(), scores.max()) == (0, 5)
