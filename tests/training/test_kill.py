"""kill -9 at any moment: runs go on and end with the bytes of those that were never stopped.

Caches of compiled loops are empty at the beginning, so a process that compiles, and others that
load what it compiled, have to compute the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "kill_test.py"
# Of the table at the end: different, could not go on, leftovers, processes left.
GOOD = " | 0 | 0 | 0 | 0 |"


def run(cache: Path, *options: str) -> list[str]:
    """The table that the script prints, and its last line."""
    done = subprocess.run(
        [sys.executable, SCRIPT, *options],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "all bytes identical" in lines[-1]
    return lines[lines.index(next(line for line in lines if line.startswith("|---"))) + 1 :]


@pytest.mark.long
def test_two_kills_of_each_training(tmp_path: Path) -> None:
    """The first run, of `pretrain`, compiles; those that are killed find its loops."""
    options = ("--steps", "60", "--threads", "1", "--precision", "fp32")
    verbs = ("pretrain", "finetune")
    *rows, last = run(tmp_path, "--verbs", *verbs, "--kills", "4", *options)
    for row, verb in zip(rows, verbs, strict=True):
        assert row.startswith(f"| {verb} | ")
        assert row.split(" | ")[2] == "2"
        assert row.endswith(GOOD)
    assert last.startswith("fp32 | 1 threads | ")


@pytest.mark.slow
def test_kills_of_every_verb(tmp_path: Path) -> None:
    verbs = ("pretrain", "ranks", "finetune", "vocab", "corpus")
    *rows, last = run(tmp_path, "--verbs", *verbs, "--kills", "40", "--cold")
    assert [row.split(" | ")[2] for row in rows] == ["8"] * len(verbs)
    assert all(row.endswith(GOOD) for row in rows)
    assert "2 threads" in last
