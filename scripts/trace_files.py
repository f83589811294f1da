"""Which files and functions of the package a use of it passes through, by a trace of the run.

    python scripts/trace_files.py label MODEL "a sentence"          # a sentence to its label
    python scripts/trace_files.py score MODEL labelled.tsv          # labelled rows to their scores
    PYTHONPATH=../before/src python scripts/trace_files.py ...      # of another source tree

Counted is every function that is called, generators, properties and lambdas among them, from the
call that opens the model to its result; what modules execute when they are first imported is not.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import bothways

ROOT = Path(bothways.__file__).parent
_INNER = ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>")


def trace(action: Callable[[], object]) -> dict[str, set[str]]:
    """The functions that an action calls, by file."""
    found: dict[str, set[str]] = defaultdict(set)
    modules_and_classes: set[Any] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in modules_and_classes:
            return
        path = Path(code.co_filename)
        # The bodies of modules and classes have names of their own, not those of a call.
        if not path.is_relative_to(ROOT) or "__module__" in code.co_names[:2]:
            modules_and_classes.add(code)
        elif code.co_name != "<module>" and code.co_name not in _INNER:
            found[str(path.relative_to(ROOT))].add(code.co_qualname)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def label(model: str, text: str) -> None:
    """A sentence to its label."""
    print(bothways.load(model, device="cpu").predict([text]).labels)


def score(model: str, file: str) -> None:
    """Labelled rows to their scores."""
    from bothways.runtime.pipeline import evaluate_file

    print(evaluate_file(bothways.load(model, device="cpu").loaded, file).scores)


def main() -> None:
    """Print what a path passes through."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", choices=("label", "score"))
    parser.add_argument("model")
    parser.add_argument("what")
    options = parser.parse_args()
    action = {"label": label, "score": score}[options.path]
    found = trace(lambda: action(options.model, options.what))
    for file, functions in sorted(found.items()):
        print(f"{len(functions):4} {file}: {', '.join(sorted(functions))}")
    print(f"{len(found)} files, {sum(map(len, found.values()))} functions")


if __name__ == "__main__":
    main()
