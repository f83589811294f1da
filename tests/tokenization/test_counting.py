"""Counting words: exact whatever spills to disk, and whatever the number of processes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.errors import DiskError, InputError
from bothways.tokenization import counting
from bothways.tokenization.counting import (
    StringCounts,
    by_rules,
    count_chunks,
    count_words,
    split_chunks,
)
from bothways.tokenization.normalization import Rules

RULES: Rules = {"lowercase": True, "normalization": "bert"}
LINES = [f"Word{i % 37}, and word{i % 11}'s Friend{i} in 東京 {i * i % 19}." for i in range(300)]


def words_of(lines: list[str], workers: int = 1, **limits: int) -> dict[str, int]:
    with count_chunks(
        lines, workers=workers, max_in_memory=limits.get("max_in_memory", 10**6)
    ) as chunks:
        return count_words(
            chunks, partial(split_chunks, splitter=by_rules, rules=RULES), workers=workers, **limits
        )


@settings(max_examples=60)
@given(
    parts=st.lists(st.dictionaries(st.text(max_size=4), st.integers(1, 9), max_size=8)),
    most=st.integers(1, 6),
)
def test_spilled_counts_are_exact_and_sorted(
    tmp_path_factory: pytest.TempPathFactory, parts: list[dict[str, int]], most: int
) -> None:
    folder = tmp_path_factory.mktemp("counts")
    strings = StringCounts(folder, max_in_memory=most)
    expected: Counter[str] = Counter()
    for part in parts:
        part = {k: v for k, v in part.items() if not any("\ud800" <= c <= "\udfff" for c in k)}
        strings.add(part)
        expected.update(part)
    for _ in range(2):  # may be read again
        found = [item for batch in strings.batches() for item in batch.items()]
        assert found == sorted(expected.items())
    assert len(strings._counts) <= most


def test_nothing_shows_of_spilling_processes_and_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = words_of(LINES)
    assert list(expected) == sorted(expected)
    assert expected["and"] == 300
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert words_of(LINES, max_in_memory=7) == expected
    assert not list(tmp_path.iterdir()), "temporary files are left"
    monkeypatch.setattr(counting, "_BLOCK_CHARACTERS", 500)
    monkeypatch.setattr(counting, "_BATCH", 20)
    assert words_of(LINES[::-1], workers=2) == expected
    assert list(words_of(LINES[::-1], workers=2, max_in_memory=30)) == list(expected)


def test_long_strings_spill_by_their_characters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In text without spaces, each line is one string."""
    lines = [f"{i}東京" * 50 for i in range(40)]
    expected = words_of(lines)
    monkeypatch.setattr(counting, "MAX_CHARACTERS", 1000)
    monkeypatch.setattr(counting, "_BLOCK_CHARACTERS", 400)
    strings = StringCounts(tmp_path)
    for line in (*lines, lines[0]):
        strings.add({line: 1})
        assert sum(map(len, strings._counts)) <= 1000
    batches = list(strings.batches())
    assert all(sum(map(len, batch)) <= 400 + len(lines[-1]) for batch in batches)
    assert {text: n for batch in batches for text, n in batch.items()} == {
        line: 1 + (line == lines[0]) for line in lines
    }
    assert words_of(lines) == expected


def test_only_the_most_frequent_words_are_kept() -> None:
    counts = Counter(words_of(LINES))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    for limit in (1, 5, 40):
        assert words_of(LINES, max_words=limit) == {w: counts[w] for w in sorted(ordered[:limit])}


@pytest.mark.parametrize("most", [1, 1000])
def test_refuses_broken_text_also_when_it_spills(most: int) -> None:
    with pytest.raises(InputError, match="U\\+D800"):
        words_of(["fine text", "br\ud800ken", "more"], max_in_memory=most)


def test_errors_of_the_lines_come_through_with_processes() -> None:
    def lines() -> object:
        for number in range(5):
            yield "x" * counting._BLOCK_CHARACTERS + str(number)
        raise InputError("the fifth file is damaged")

    with pytest.raises(InputError, match="fifth"), count_chunks(lines(), workers=2):  # type: ignore[arg-type]
        pass


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(counting.pa, "OSFile", full)
    with pytest.raises(DiskError, match="No space left"):
        words_of(LINES, max_in_memory=3)
