"""Parts of a file's examples: shares of labels, groups, folds, and the first so many."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bothways.errors import InputError
from bothways.tasks.parts import divide, first_examples, overlaps, parts_of, taken
from bothways.tasks.readers import Texts


def lopsided(count: int = 400, seed: int = 0) -> list[tuple[str, ...]]:
    rng = np.random.default_rng(seed)
    return [("rare" if x < 0.1 else "usual",) for x in rng.random(count)]


def test_every_part_has_its_share_of_every_label() -> None:
    strata = lopsided()
    parts = divide(range(400), strata, [0.8, 0.1, 0.1], seed=3)
    totals = Counter(label for (label,) in strata)
    for part, share in enumerate((0.8, 0.1, 0.1)):
        of_part = Counter(strata[n][0] for n in np.flatnonzero(parts == part))
        for label, total in totals.items():
            assert abs(of_part[label] - share * total) <= 1
    assert (divide(range(400), strata, [0.8, 0.1, 0.1], seed=3) == parts).all()
    assert (divide(range(400), strata, [0.8, 0.1, 0.1], seed=4) != parts).any()


def test_several_labels_are_shared_out_too() -> None:
    rng = np.random.default_rng(1)
    strata = [tuple(n for n in "abc" if rng.random() < {"a": 0.5, "b": 0.1}.get(n, 0.03))
              for _ in range(600)]  # fmt: skip
    parts = divide(range(600), strata, [0.5, 0.5], seed=0)
    for label in "abc":
        counts = [sum(label in strata[n] for n in np.flatnonzero(parts == p)) for p in (0, 1)]
        assert abs(counts[0] - counts[1]) <= 6


def test_groups_stay_together() -> None:
    groups = [n // 7 for n in range(400)]
    parts = divide(groups, lopsided(), [0.75, 0.25], seed=0)
    for group in set(groups):
        assert len({parts[n] for n in range(400) if groups[n] == group}) == 1
    assert abs((parts == 1).mean() - 0.25) < 0.03


def test_folds_hold_every_example_once_and_divisions_differ() -> None:
    strata = lopsided()
    one, two = (divide(range(400), strata, [0.2] * 5, seed=0, number=n) for n in (1, 2))
    assert np.bincount(one).tolist() == [80] * 5
    assert (one != two).any()
    rare = [sum(strata[n] == ("rare",) for n in np.flatnonzero(one == f)) for f in range(5)]
    assert max(rare) - min(rare) <= 1


def test_more_examples_include_fewer() -> None:
    strata = lopsided()
    few, many = (set(first_examples(strata, k, seed=5).tolist()) for k in (20, 100))
    assert few < many
    assert sum(strata[n] == ("rare",) for n in few) in (1, 2, 3)
    assert few != set(first_examples(strata, 20, seed=6).tolist())
    assert len(first_examples(strata, 1000, seed=0)) == 400


def test_rows_of_parts_and_a_part_without_any() -> None:
    rows = Texts(Path("x.tsv"), [2, 3, 4], ["a", "b", "c"], labels=[("l",), ("m",), ("l",)])
    some = taken(rows, np.array([0, 2]))
    assert (some.lines, some.a, some.labels, some.b) == ([2, 4], ["a", "c"], [("l",), ("l",)], None)
    with pytest.raises(InputError, match=r"x\.tsv: no example would be in a part of 0\.1: .* 1 gr"):
        parts_of(rows, ["same"] * 3, [("l",)] * 3, [0.9, 0.1], seed=0)


def test_what_files_have_in_common() -> None:
    train, strata = ["one", "two", "two", "three"], [("a",), ("a",), ("b",), ("b",)]
    assert overlaps(train, strata, {"dev": ["one", "new"], "test": ["newer"]}) == [
        "1 of 2 dev examples have a text that stands in train, too",
        "1 text stands in train with different labels",
    ]
    assert not overlaps(train[:2], strata[:2], {"dev": ["new"]})
