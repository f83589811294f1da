"""kill -9 at any moment: runs go on and end with the bytes of those that were never stopped.

Caches of compiled loops are empty at the beginning, so a process that compiles, and others that
load what it compiled, have to compute the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "kill_test.py"


def kills(cache: Path, *options: str) -> dict[str, int]:
    """How often the script has killed each verb; nothing may differ."""
    done = subprocess.run(
        [sys.executable, SCRIPT, *options],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, int] = {}
    for verb, count in re.findall(r"^(\w+), run \d+: (\d+) kills, identical$", done.stdout, re.M):
        found[verb] = found.get(verb, 0) + int(count)
    return found


@pytest.mark.long
def test_two_kills_of_each_training(tmp_path: Path) -> None:
    options = ("--steps", "60", "--threads", "1", "--precision", "fp32")
    verbs = ("pretrain", "finetune")
    assert kills(tmp_path, "--verbs", *verbs, "--kills", "2", *options) == dict.fromkeys(verbs, 2)


@pytest.mark.slow
def test_kills_of_every_verb(tmp_path: Path) -> None:
    verbs = ("pretrain", "ranks", "finetune", "vocab", "corpus")
    options = ("--kills", "8", "--cold")
    assert kills(tmp_path, "--verbs", *verbs, *options) == dict.fromkeys(verbs, 8)
