"""The package as others install it: a wheel of this checkout in a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.egg-info")

# Run in one process, because importing torch takes seconds.
_STEPS = """
import json, sys
from bothways import cli
for kind, what in json.load(sys.stdin):
    print("===", kind, what, flush=True)
    status = 0
    if kind == "bothways":
        status = cli.main(what)
    else:
        exec(compile(what, kind, "exec"), {})
    sys.stdout.flush()
    if status:
        sys.exit(f"exit status {status}")
"""


def install(folder: Path) -> Path:
    """Build a wheel and unpack it below ``folder``, without a network.

    The checkout is copied first: files that an earlier build left in it would come along.

    Returns:
        The folder to put on the path.
    """
    source, wheels, site = folder / "source", folder / "wheels", folder / "site"
    shutil.copytree(ROOT / "src", source / "src", ignore=_NOT_COPIED)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source)
    (wheel,) = wheels.glob("*.whl")
    _pip("install", "--no-deps", "--no-index", "--target", site, wheel)
    return site


def _pip(*words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def run_steps(
    site: Path, steps: Sequence[tuple[str, Any]], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run commands and Python blocks one after the other, up to the first that fails.

    Args:
        site: the installed package, which is the only one on the path.
        steps: ``("bothways", words)``, or the name and the text of a Python block.
        folder: the working folder.
    """
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", _STEPS],
        input=json.dumps(steps),
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
    )
