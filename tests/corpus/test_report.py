"""corpus/report.py: the numbers are those of the definitions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.corpus.report import Lengths, script_shares, short_report
from bothways.tokenization.languages import count_letters, count_scripts

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=60)


@given(lots=st.lists(lengths, min_size=1, max_size=4))
def test_lengths_counted_in_parts_are_those_of_all(lots: list[list[int]]) -> None:
    found = Lengths()
    for lot in lots:
        found.add(np.array(lot))
    values = [value for lot in lots for value in lot]
    assert (found.number, found.total) == (len(values), sum(values))
    shares = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0]
    assert list(found.quantiles().values()) == np.quantile(values, shares, method="lower").tolist()
    classes = Counter(2 ** int(np.log2(value)) for value in values)
    assert found.histogram() == sorted(classes.items())


def test_no_lengths() -> None:
    assert Lengths().quantiles() == {}
    assert Lengths().histogram() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Aé, ﬁ 12!", {"Latin": 3}),
        ("안녕 ᄒ", {"Hangul": 3}),
        ("かナー 漢字", {"kana": 3, "Han": 2}),
        ("\U00020000 \U0001f600", {"Han": 1}),
        ("Привет γ", {"Cyrillic": 6, "Greek": 1}),
        ("ก ა א ع Ա", dict.fromkeys("Thai Georgian Hebrew Arabic Armenian".split(), 1)),
        ("ሀ µ", {"Ethiopic": 1, "other": 1}),
        ("\U0001e900\U0001e901 \U0001f600", {"other": 2}),  # Adlam
        ("", {}),
        (" .,;\u200b\u0301", {}),
    ],
)
def test_scripts_are_counted(text: str, expected: dict[str, int]) -> None:
    shares = script_shares(count_scripts(count_letters(text)))
    total = sum(expected.values())
    assert shares == {name: round(n / total, 6) for name, n in expected.items()}


def test_the_table_shows_the_report(tiny_tokenizer_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(
        "The <b> king. 가 나!\n\nThe <b> king. 가 나!\n\nA \xff boat. Yes!\n".encode(
            "latin-1", "ignore"
        )
    )
    report = build_corpus(
        CorpusConfig(
            files=(str(path),),
            tokenizer=str(tiny_tokenizer_folder),
            out=str(tmp_path / "corpus"),
            broken="replace",
            heldout=0,
        )
    )
    shown = short_report(report)
    assert shown["repeated documents"] == "1 of 3, kept"
    assert shown["broken lines"] == 1
    assert shown["scripts"] == "Latin 100.00%"
    assert "histograms" not in shown
