"""Change single places of a module's code and see whether the module's own tests notice.

    python scripts/mutate.py --count 60 --seed 0 masking metrics
    python scripts/mutate.py --count 60 --seed 0 --out mutants.jsonl        (all modules)

A mutant is the module with one comparison, operator, constant, condition or statement changed, in a
copy of the source tree. Places are drawn by the seed among all that the module has; messages,
docstrings, annotations and decorators are left out. The tests named in MODULES run until the first
failure, in a process forked from one that has imported the libraries.

* **killed**: a test failed, or the tests did not end in three times their usual time.
* **survived**: no test noticed. `--out` has line, change and outcome of each.

MODULES names the tests that stand for a module. Exits with 1 where less than 85 % are killed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LEAST_KILLED = 0.85

MODULES = {
    "masking": ("pretraining/masking.py", "pretraining/test_masking.py"),
    "pairs": (
        "pretraining/instances.py",
        "pretraining/test_instances.py pretraining/test_sequences.py",
    ),
    "windows": ("tasks/windows.py", "tasks/test_windows.py tasks/test_long.py"),
    "metrics": ("tasks/metrics.py", "tasks/test_metrics.py"),
    "resume": (
        "training/checkpoint.py",
        "training/test_training_checkpoint.py training/test_last_checkpoint.py "
        "training/test_runfolder.py",
    ),
    "template": ("tokenization/template.py", "tokenization/test_template.py"),
    "heads": (
        "families/heads.py",
        "families/test_registry.py model/test_heads.py",
    ),
    "offsets": ("tokenization/offsets.py", "tokenization/test_offsets.py"),
}
KNOWN = {  # survived once, and tried every time
    "windows": [(" + 0.01 * (end - start)", "")],
    "metrics": [("1e-6", "1e-3")],
}

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Pow: ast.Mult,
}


def changes(node: ast.AST) -> Iterator[ast.AST | None]:
    """What may stand in a node's place; None removes a statement."""
    new: Any = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in COMPARED:
            new.ops[0] = COMPARED[type(op)]()
            yield new
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in COMPUTED:
            new.op = COMPUTED[type(op)]()
            yield new
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield new
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.If() | ast.IfExp() | ast.While():
            for value in (True, False) if not isinstance(node, ast.While) else (False,):
                new = copy.deepcopy(new)
                new.test = ast.Constant(value)
                yield new
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(value * 1000 if value else 1.0)
        case ast.Constant(value=str() as value):
            yield ast.Constant(value + "_")
        case ast.Expr(value=ast.Call()) | ast.Continue() | ast.Break() | ast.Raise():
            yield None
        case _:
            return


class Sites(ast.NodeVisitor):
    """All changes of a tree, as (line, what, parent, field, index, node)."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, ast.AST, str, int | None, ast.AST | None]] = []

    def visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "exc", "cause", "type_params"):
                continue  # of an error, only that it is raised
            if isinstance(node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            children = value if isinstance(value, list) else [value]
            for index, child in enumerate(children):
                if not isinstance(child, ast.AST) or is_docstring(child):
                    continue
                for new in changes(child):
                    what = f"{shown(child)} -> {shown(new) if new else 'removed'}"
                    place = index if isinstance(value, list) else None
                    line = getattr(child, "lineno", 0)
                    self.found.append((line, what, node, name, place, new))
                self.visit(child)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= 90 else text[:87] + "..."


def mutants(name: str, count: int, seed: int) -> Iterator[tuple[int, str, str]]:
    """(line, what is changed, the module's source) of a drawn sample, after the known ones."""
    source = (ROOT / "src/bothways" / MODULES[name][0]).read_text(encoding="utf-8")
    for old, new in KNOWN.get(name, ()):
        if old not in source:
            raise SystemExit(f"{name} has no {old!r} any more; change KNOWN in {__file__}")
        line = source[: source.index(old)].count("\n") + 1
        yield line, f"{old} -> {new or 'removed'} (known)", source.replace(old, new, 1)
    tree = ast.parse(source)
    sites = Sites()
    sites.visit(tree)
    random.Random(f"{seed} {name}").shuffle(sites.found)
    for line, what, parent, field, index, new in sites.found[:count]:
        value = getattr(parent, field)
        old_node = value if index is None else value[index]
        put(parent, field, index, new or ast.Pass())
        yield line, what, ast.unparse(ast.fix_missing_locations(tree))
        put(parent, field, index, old_node)


def put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def tests_fail(name: str, tree: Path, seconds: float) -> str:
    """Run a module's tests on a source tree; "killed", "survived" or "timeout"."""
    files = [str(ROOT / "tests" / file) for file in MODULES[name][1].split()]
    child = os.fork()
    if not child:
        os.setsid()
        os.environ["PYTHONPATH"] = str(tree)
        sys.path.insert(0, str(tree))
        quiet = os.open(tree / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        import pytest

        status = 1
        with suppress(BaseException):
            argv = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *files]
            status = int(pytest.main(argv))
        os._exit(status)
    return waited(child, time.monotonic() + seconds)


def waited(child: int, end: float) -> str:
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            outcome = "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
            break
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timeout"
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what tests left running
    return outcome


def measure(name: str, tree: Path, count: int, seed: int, out: Any) -> tuple[int, int, int]:
    module = tree / "bothways" / MODULES[name][0]
    whole = module.read_text(encoding="utf-8")
    module.write_text(ast.unparse(ast.parse(whole)), encoding="utf-8")
    started = time.monotonic()
    if tests_fail(name, tree, 600) != "survived":
        raise SystemExit((tree / "output").read_text(errors="replace") + f"\n{name} fails as it is")
    usual = time.monotonic() - started
    counts = {"killed": 0, "survived": 0, "timeout": 0}
    for line, what, source in mutants(name, count, seed):
        module.write_text(source, encoding="utf-8")
        began = time.monotonic()
        outcome = tests_fail(name, tree, 3 * usual + 10)
        counts[outcome] += 1
        row = {"module": name, "line": line, "change": what, "outcome": outcome}
        print(json.dumps({**row, "seconds": round(time.monotonic() - began, 1)}), file=out)
        out.flush()
    module.write_text(whole, encoding="utf-8")
    return counts["killed"], counts["timeout"], counts["survived"]


def main() -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("modules", nargs="*", help=", ".join(MODULES))
    parser.add_argument("--count", type=int, default=60, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON lines of all mutants (default: shown)")
    options = parser.parse_args()
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    import hypothesis  # noqa: F401  (forked with it, as with the following)
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
    import pytest  # noqa: F401
    import safetensors.torch  # noqa: F401
    import tokenizers  # noqa: F401
    import torch

    torch.set_num_threads(1)
    gc.freeze()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "src"
        shutil.copytree(ROOT / "src", tree, ignore=shutil.ignore_patterns("__pycache__"))
        out = options.out.open("a", encoding="utf-8") if options.out else sys.stdout
        rows = [
            (name, *measure(name, tree, options.count, options.seed, out))
            for name in options.modules or MODULES
        ]
    sound = True
    print("| module | mutants | killed | of these by time | survived |\n|---|---|---|---|---|")
    for name, killed, late, survived in rows:
        tried = killed + late + survived
        share = (killed + late) / tried
        sound &= share >= LEAST_KILLED
        print(f"| {name} | {tried} | {killed + late} ({share:.0%}) | {late} | {survived} |")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
