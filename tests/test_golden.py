"""Ids, files, batches and examples are what they were when golden.json was recorded.

If a change is meant to change some of them: python tests/golden_items.py --record
"""

from __future__ import annotations

from pathlib import Path

import pytest

from golden_items import GROUPS, build_world, compute, differences, digest, recorded

RECORDED = recorded()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, vocabularies, corpora and labelled files."""
    folder = tmp_path_factory.mktemp("golden")
    build_world(folder)
    return folder


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_has_changed(group: str, world: Path) -> None:
    before = {name: known for name, known in RECORDED.items() if name.startswith(f"{group}: ")}
    now = {name: digest(value) for name, value in compute(group, world).items()}
    changed = differences(before, now)
    assert not changed, f"{len(changed)} of {len(now)} items:\n" + "\n".join(changed)


def test_every_digest_is_compared() -> None:
    assert {name.partition(": ")[0] for name in RECORDED} == set(GROUPS)
