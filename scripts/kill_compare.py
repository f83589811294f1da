"""Compare two folders that the same command wrote, byte for byte."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bothways.files import PARTIAL, sha256

# ------------------------------------------------------------------ what may differ, by design
#
# Commands run in folders of their own and write to the same relative name, so names of folders
# are the same.

CLOCK_KEYS = {"seconds", "tokens_per_second", "loader_wait"}
"""Times and speeds, in JSON and JSON lines; the rest of such a file is compared."""
CLOCK_CELLS = re.compile(r'(<tr><td>seed .*?<td class="n">)[\d,]+(</td></tr>)', re.DOTALL)
"""The seconds of a seed in a page of fine-tuning, the last cell of its row."""
CLOCK_FOLDERS = ("tensorboard",)
"""Its files are named after the time, hold times, and each session begins one."""
STEPS = re.compile(r"checkpoints/step-(\d+)/")
"""Checkpoints before the last one of a finished run: they are made by the clock."""
TEMPORARY = (PARTIAL, ".units-")
"""Beginnings of names that a finished command must not leave behind; counted separately."""


def differences(folder: Path, expected: Path) -> list[str]:
    """The files that differ, or that only one of two finished runs has."""
    ours, theirs = _compared(folder), _compared(expected)
    different = sorted(set(ours) ^ set(theirs))
    both = sorted(set(ours) & set(theirs))
    return different + [name for name in both if _content(ours[name]) != _content(theirs[name])]


def leftovers(folder: Path) -> list[str]:
    """Temporary files and folders that are still there."""
    return [str(p.relative_to(folder)) for p in folder.rglob("*") if p.name.startswith(TEMPORARY)]


def _compared(folder: Path) -> dict[str, Path]:
    """The files to compare, by name within the folder."""
    found = {}
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        temporary = any(part.startswith(TEMPORARY) for part in parts)
        if path.is_file() and not temporary and not set(parts) & set(CLOCK_FOLDERS):
            found["/".join(parts)] = path
    last = max((int(step[1]) for name in found if (step := STEPS.search(name))), default=0)
    return {
        name: path
        for name, path in found.items()
        if not (step := STEPS.search(name)) or int(step[1]) == last
    }


def _content(path: Path) -> Any:
    """What is compared of a file: its digest, or its text without times."""
    if path.suffix == ".json":
        return json.dumps(_without_clocks(json.loads(path.read_text(encoding="utf-8"))))
    if path.suffix == ".jsonl":
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.dumps(_without_clocks(json.loads(line))) for line in lines]
    if path.suffix == ".html":
        return CLOCK_CELLS.sub(r"\1\2", path.read_text(encoding="utf-8"))
    return sha256(path)


def _without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_clocks(v) for k, v in value.items() if k not in CLOCK_KEYS}
    return [_without_clocks(v) for v in value] if isinstance(value, list) else value
