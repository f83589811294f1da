"""kill -9 at any moment: the run goes on and ends with the bytes of one that was never stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "kill_test.py"


def run(*options: str) -> str:
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_two_kills() -> None:
    line = run("--kills", "2", "--steps", "60", "--threads", "1", "--precision", "fp32")
    assert line.startswith("kills 2 (")
    assert line.endswith("all bytes identical")


@pytest.mark.slow
def test_twenty_kills() -> None:
    line = run("--kills", "20")
    assert line.startswith("kills 20 (")
    assert "2 threads" in line
    assert line.endswith("all bytes identical")
