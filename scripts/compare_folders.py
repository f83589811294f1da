"""What two runs of the same command have written: equal byte for byte, but for what is measured.

The runs must name their folder alike, by a relative path, so that its name need not be excused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

# ------------------------------------------------------------------ what may differ, by design
LEFT_OUT = (
    "*.lock",
    # Names and records have the time of the clock.
    "tensorboard/*",
)
"""Files that are not compared."""

MEASURED = {
    "seconds",
    "mb_per_second",
    "tokens_per_second",
    "loader_wait",
    # Whether gradients in bf16 are computed from transposed arrays: each run times both.
    "transposed_gradients",
}
"""Fields of JSON files that are not compared."""

SECONDS_CELL = re.compile(r'<td class="n">\d+</td>(?=\s*</tr>)')
"""The last column of the table of runs in a report of fine-tuning."""
SPEED = re.compile(r"about [\d,]+ tokens a second")
"""In a report of pre-training."""


def _older_checkpoints(folder: Path) -> set[str]:
    """A run keeps two checkpoints; the clock decides when the one before the last is written."""
    steps = sorted(folder.glob("checkpoints/step-*"), key=lambda path: int(path.name[5:]))
    return {f"checkpoints/{path.name}/*" for path in steps[:-1]}


# ----------------------------------------------------------------------------------------------


def differences(folder: Path, reference: Path) -> list[str]:
    """Names of the files that differ, or that only one of two folders has."""
    found, expected = files(folder), files(reference)
    different = sorted(found.keys() ^ expected.keys())
    for name in sorted(found.keys() & expected.keys()):
        if found[name].read_bytes() == expected[name].read_bytes():
            continue
        without = _WITHOUT_MEASURED.get(found[name].suffix)
        if without is None or without(found[name]) != without(expected[name]):
            different.append(name)
    return different


def files(folder: Path) -> dict[str, Path]:
    """The files that are compared, by their names below the folder."""
    patterns = {*LEFT_OUT, *_older_checkpoints(folder)}
    names = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: path
        for name, path in names.items()
        if not any(fnmatch(name, pattern) for pattern in patterns)
    }


def _without_measured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_measured(item) for key, item in value.items() if key not in MEASURED}
    if isinstance(value, list):
        return [_without_measured(item) for item in value]
    return value


def _json(path: Path) -> Any:
    return json.dumps(_without_measured(json.loads(path.read_text(encoding="utf-8"))))


def _json_lines(path: Path) -> Any:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.dumps(_without_measured(json.loads(line))) for line in lines]


def _html(path: Path) -> Any:
    return SPEED.sub("", SECONDS_CELL.sub("", path.read_text(encoding="utf-8")))


_WITHOUT_MEASURED: dict[str, Callable[[Path], Any]] = {
    ".json": _json,
    ".jsonl": _json_lines,
    ".html": _html,
}
