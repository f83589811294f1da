"""corpus/duplicates.py and what the build does with it: the first stays, the others go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.corpus import duplicates as module
from bothways.corpus import sources
from bothways.corpus.build import build_corpus
from bothways.corpus.duplicates import RepeatFinder
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import TokenStore
from bothways.errors import InputError
from bothways.tokenization.tokenizer import Tokenizer

numbers = st.integers(0, 3) | st.integers(2**64 - 3, 2**64 - 1) | st.integers(0, 2**64 - 1)


@given(rows=st.lists(st.tuples(numbers, numbers), max_size=40), buffer=st.integers(1, 10))
def test_repeats_are_found(
    rows: list[tuple[int, int]], buffer: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    finder = RepeatFinder(tmp_path_factory.mktemp("r"), "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BUFFER", buffer)
        for at in range(0, len(rows), 3):
            some = np.array(rows[at : at + 3], np.uint64).reshape(-1, 2)
            finder.add(some, at + np.arange(len(some)))
        found = finder.find(len(rows))
    counts = Counter(rows)
    assert found.items == len(rows)
    assert found.repeated.tolist() == [row in rows[:at] for at, row in enumerate(rows)]
    assert found.histogram == dict(Counter(counts.values()))
    ranks = sorted((-n, rows.index(row)) for row, n in counts.items() if n > 1)
    assert found.most_frequent == [(-n, first) for n, first in ranks][: module.TOP]


TEXT = """\
The king sold. A boat!
The bread.

The clock. My aunt!
The bread.

The king sold. A boat!
The bread.

The king. The storm!
The bread.
"""


def build(folder: Path, tokenizer: Path, **options: Any) -> dict[str, Any]:
    (folder / "t.txt").write_text(TEXT)
    return build_corpus(
        CorpusConfig(
            files=(str(folder / "t.txt"),),
            tokenizer=str(tokenizer),
            out=str(folder / "corpus"),
            heldout=0,
            **options,
        )
    )


@pytest.mark.parametrize("unit", [10, 2**20])
@pytest.mark.parametrize(
    ("duplicates", "documents"),
    [("keep", 4), ("documents", 3), ("paragraphs", 3), ("both", 3)],
)
def test_what_is_removed(
    unit: int,
    duplicates: str,
    documents: int,
    tiny_tokenizer_folder: Path,
    tiny_tokenizer: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "UNIT_BYTES", unit)
    report = build(tmp_path, tiny_tokenizer_folder, duplicates=duplicates)
    found = report["duplicates"]
    assert found["documents"]["repeated"] == 1
    assert found["paragraphs"]["repeated"] == 4
    assert [row["times"] for row in found["most_repeated"]] == [4, 2]
    assert found["most_repeated"][0]["text"] == "The bread."
    store = TokenStore.open(tmp_path / "corpus")
    assert store.documents == documents
    text = tiny_tokenizer.decode(store.tokens_between(0, store.tokens).tolist())
    assert text.count("the bread.") == {"keep": 4, "documents": 3}.get(duplicates, 1)
    assert text.count("a boat!") == (2 if duplicates == "keep" else 1)


@pytest.mark.parametrize(
    ("options", "short"),
    [({"min_sentences": 3}, 0), ({"min_tokens": 10}, 2), ({"min_characters": 30}, 1), ({}, 0)],
)
def test_short_documents_go(
    options: dict[str, int], short: int, tiny_tokenizer_folder: Path, tmp_path: Path
) -> None:
    report = build(tmp_path, tiny_tokenizer_folder, **options)
    assert report["short_documents_dropped"] == short
    assert report["train"]["documents"] == 4 - short


def test_minima_that_leave_nothing_are_named(tiny_tokenizer_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too short: 4"):
        build(tmp_path, tiny_tokenizer_folder, min_sentences=4)
