"""The notebooks run from the first cell to the last, and what they show is what is committed.

A notebook is executed in a temporary folder, where names of the Hub are not looked up. Numbers
differ between machines, so a cell's output is compared by its kinds: text, a table, a picture.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 400_000
"""Bytes of a notebook with its outputs."""


def cells_of(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cell: Any) -> set[str]:
    """The kinds of a cell's outputs; lines of progress come and go."""
    found = {kind for output in cell["outputs"] for kind in output.get("data", {})}
    return found | {o["name"] for o in cell["outputs"] if o["output_type"] == "stream"}


def test_there_are_five() -> None:
    assert len(NOTEBOOKS) == 5
    listed = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in NOTEBOOKS if f"notebooks/{path.name}" not in listed] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed(path: Path) -> None:
    content = path.read_text(encoding="utf-8")
    assert len(content) < LARGEST
    cells = cells_of(json.loads(content))
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = json.dumps([cell["outputs"] for cell in cells])
    assert not re.search(r"/tmp/|/work/|/home/|/root/|site-packages", outputs), "a machine's paths"
    assert not [c for c in cells if "stderr" in kinds(c)], "warnings and logs are no results"
    code = "".join("".join(cell["source"]) for cell in cells)
    assert not re.search(r"from bothways|import bothways\.", code), "the public names do"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    spec = importlib.util.spec_from_file_location("run", ROOT / "scripts" / "run_notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    committed = json.loads(path.read_text(encoding="utf-8"))
    executed = run.executed(path, tmp_path)  # raises what a cell raises
    for before, after in zip(cells_of(committed), cells_of(executed), strict=True):
        assert kinds(after) == kinds(before), "run: make notebooks\n" + "".join(before["source"])
