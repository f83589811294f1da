"""Execute notebooks and write them back with their outputs.

    python scripts/run_notebooks.py                        all of notebooks/
    python scripts/run_notebooks.py notebooks/NAME.ipynb   one

Each runs in a temporary folder, so that nothing it writes stays. The outputs are committed: GitHub
and the documentation site show results without computing them. tests/test_notebooks.py executes the
notebooks again, and compares what kind of output each cell has.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

import bothways

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PACKAGE = f"{Path(bothways.__file__).parents[1]}/"
SECONDS = 600
"""The most that a cell may take, on a machine with other work, too."""


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with the outputs of an execution.

    Args:
        path: the notebook.
        folder: where it runs, and may write.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
    )
    # Figures are shown, whatever backend another program has chosen for its own.
    client.execute(env={name: v for name, v in os.environ.items() if name != "MPLBACKEND"})
    return notebook


def main(paths: list[Path]) -> None:
    for path in paths:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(path, Path(folder))
        notebook.metadata = {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
        text = nbformat.writes(notebook).replace(PACKAGE, "")  # where it lies is this machine's
        path.write_text(text + "\n", encoding="utf-8")
        print(f"{path.name}: {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main([Path(name).resolve() for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")))
