"""The house rules that a reader can rely on: floors, no torch where none is needed, small parts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import bothways
from bothways.families import FAMILIES

ROOT = Path(bothways.__file__).parent
FLOORS = (
    {"errors", "shipped", "kernels"},
    {"families"},
    {"arrays", "files", "html", "console", "config", "processes", "randomness", "streams"},
    {"text_files", "recipe_files"},
    {"record_files"},
    {"options", "tokenization"},
    {"corpus", "model"},
    {"training"},
    {"pretraining", "tasks"},
    {"prediction"},
    {"finetuning"},
    {"api", "doctor", "bench", "extend", "features"},
    {"demo", "inference_verbs", "planning"},
    {"reproduce"},
    {"cli"},
    {"__main__"},
)
TORCH_FREE = ("cli", "options", "config", "families", "tokenization", "corpus", "randomness")
LONGEST_FUNCTION = 70
LONGEST_FILE = 600
LONGEST_FAMILY = 125
FRAME = {"families", "families.config", "families.family", "families.refusals"}
# The name of a normalisation of text, which is that of a family, too.
NORMALISATIONS = ("tokenization", "config.vocabulary")
LONG_FILES = {"kernels.loops"}  # Numba would not notice a change of a file that it imports from


def modules() -> dict[str, Path]:
    """All modules, by dotted name below the package; packages under their own name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def imports(name: str, *, lazy: bool) -> set[str]:
    """Modules of the package that a module imports; ``lazy`` ones are inside functions."""
    nodes = list(ast.walk(tree(name))) if lazy else list(at_import_time(tree(name)))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import on line {node.lineno}"
            found.add(str(node.module))
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    below = {item.removeprefix("bothways.") for item in found if item.startswith("bothways.")}
    return below & set(MODULES)


def at_import_time(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        found += [child, *at_import_time(child)]
    return found


def top(name: str) -> str:
    return name.partition(".")[0]


def floor(name: str) -> int:
    return next(i for i, names in enumerate(FLOORS) if top(name) in names)


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_every_module_stands_on_a_floor(name: str) -> None:
    assert any(top(name) in names for names in FLOORS), f"{name} is on no floor; add it to FLOORS"


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_come_from_floors_below(name: str) -> None:
    for other in imports(name, lazy=True):
        if top(other) == top(name):
            continue
        assert floor(other) < floor(name), f"{name} imports {other}, which is not on a floor below"


def test_no_circles() -> None:
    graph = {name: imports(name, lazy=True) - {name} for name in MODULES}
    while ready := {name for name, needs in graph.items() if not needs & set(graph)}:
        graph = {name: needs for name, needs in graph.items() if name not in ready}
    assert not graph, f"these import each other in a circle: {sorted(graph)}"


def test_modules_without_torch_import_none() -> None:
    names = [f"bothways.{name}" for name in MODULES if top(name) in TORCH_FREE]
    script = (
        f"import importlib, sys\nfor name in {names}:\n    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", list(MODULES))
def test_modules_are_documented_and_small(name: str) -> None:
    assert ast.get_docstring(tree(name)), f"{name} has no docstring"
    lines = MODULES[name].read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST_FILE or name in LONG_FILES, f"{name} has {lines} lines"
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{name}.{node.name} has {length} lines"


def strings(name: str) -> list[ast.Constant]:
    """The string literals of a module, without docstrings."""
    prose = {
        id(node.value)
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    nodes = [node for node in ast.walk(tree(name)) if isinstance(node, ast.Constant)]
    return [node for node in nodes if isinstance(node.value, str) and id(node) not in prose]


@pytest.mark.parametrize("name", [name for name in MODULES if name and top(name) != "families"])
def test_families_are_named_in_their_folder_only(name: str) -> None:
    stems = {
        architecture.removesuffix("Model")
        for family in FAMILIES.values()
        for architecture, heads in family.classes.items()
        if not heads
    }
    types = "|".join(map(re.escape, FAMILIES))
    literal = re.compile(
        rf"(?<![/\w-])({types})(?![\w-])|({'|'.join(stems)})(For[A-Z]\w+|Model|LMHeadModel)\b"
    )
    for node in strings(name):
        value = str(node.value)
        if name.startswith(NORMALISATIONS):
            value = re.sub(rf"\b{next(iter(FAMILIES))}\b", "", value)
        assert not literal.search(value), f"{name}, line {node.lineno}: {node.value!r}"


def test_a_family_is_a_page_of_data() -> None:
    for name, path in MODULES.items():
        if top(name) == "families" and name not in FRAME:
            lines = path.read_text(encoding="utf-8").count("\n")
            assert lines <= LONGEST_FAMILY, f"{name} has {lines} lines"
            functions = [n.name for n in ast.walk(tree(name)) if isinstance(n, ast.FunctionDef)]
            assert set(functions) <= {"read", "write", "classes"}, name
