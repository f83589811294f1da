"""Put bugs that were mended back, one at a time; the tests that tests/bugs.txt names must fail.

    python scripts/check_bugs.py                       (all; a few minutes)
    python scripts/check_bugs.py "first label"         (those with these words)

Each is put into a copy of the source tree. Exits with 1 if a text is not in its file exactly once
any more, or its test does not fail; the entry then needs another text or test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TESTS = ROOT / "src/bothways", ROOT / "tests"


class Bug(NamedTuple):
    """A text of a file, what it was, and the tests that fail with it."""

    what: str
    file: str
    tests: list[str]
    right: str
    wrong: str


def read_bugs(words: str = "") -> list[Bug]:
    """Those whose description has these words."""
    bugs = []
    for entry in (TESTS / "bugs.txt").read_text(encoding="utf-8").strip().split("\n\n")[1:]:
        what, place, *lines = entry.split("\n")
        file, tests = place.split(" | ")
        right, wrong = ("\n".join(x[2:] for x in lines if x[0] == sign) for sign in "-+")
        bugs.append(Bug(what, file, tests.split(), right, wrong))
    return [bug for bug in bugs if words in bug.what]


def stale(bug: Bug) -> str:
    """What an entry names and is not there; empty if all is."""
    if not (SOURCE / bug.file).exists():
        return f"there is no {bug.file}"
    text = (SOURCE / bug.file).read_text(encoding="utf-8")
    if (found := text.count(bug.right)) != 1:
        return f"{bug.file} has {bug.right!r} {found} times"
    for test in bug.tests:
        file, _, name = test.partition("::")
        path = TESTS / file
        if not path.exists() or f"def {name}" not in path.read_text(encoding="utf-8"):
            return f"there is no {test}"
    return ""


def problem_of(bug: Bug) -> str:
    """Why an entry shows nothing; empty if its test fails."""
    if problem := stale(bug):
        return problem
    text = (SOURCE / bug.file).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "bothways"
        shutil.copytree(SOURCE, copy)
        (copy / bug.file).write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")
        tests = [str(TESTS / name) for name in bug.tests]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", ""]
        process = subprocess.run(
            [*command, *tests],
            env={**os.environ, "PYTHONPATH": scratch, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if process.returncode == 1:  # a test failed
        return ""
    return f"{' '.join(bug.tests)} ended with {process.returncode}, not 1\n{process.stdout[-500:]}"


def main() -> int:
    """Check them, as many at once as there are processors."""
    bugs = read_bugs(*sys.argv[1:2])
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for bug, problem in zip(bugs, pool.map(problem_of, bugs), strict=True):
            failed += bool(problem)
            print(f"{'FAILED' if problem else 'killed'}  {bug.what}{': ' * bool(problem)}{problem}")
    print(f"{len(bugs) - failed} of {len(bugs)} bugs are killed")
    return 1 if failed or not bugs else 0


if __name__ == "__main__":
    sys.exit(main())
