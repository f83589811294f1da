"""Change single places of a module's code and see whether the module's own tests notice.

    python scripts/mutate.py --count 60 --seed 0 masking metrics
    python scripts/mutate.py --count 60 --seed 0 --out mutants.jsonl        (all modules)

A mutant is the module with one comparison, operator, constant, condition or statement changed, in a
copy of the source tree. Places are drawn by the seed among all that the module has; messages,
docstrings, annotations and decorators are left out. Of the tests named in MODULES those that reach
the changed statement run until the first failure. (A test reaches what runs in its own process, in
itself or a fixture; what runs on import is reached by all.) They run in forks of a process that has
collected them, where the changed function gets its new code; what runs on import is imported anew.

* **killed**: a test failed, or the tests took more than three times the processor's time that they
  usually do. (Time waited counts twenty times less: a busy machine must not kill mutants.)
* **survived**: no test noticed. `--out` has line, change and outcome of each.

MODULES names the tests, files or folders, that stand for a module. Bugs that were mended once are
in tests/bugs.txt (scripts/check_bugs.py). Exits with 1 where less than 85 % are killed.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import copy
import gc
import importlib
import inspect
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TextIO

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEAST_KILLED = 0.85

MODULES = {
    "masking": ("objectives/masking.py", "objectives/test_masking.py"),
    "pairs": (
        "pretraining/instances.py",
        "pretraining/test_instances.py pretraining/test_sequences.py",
    ),
    "windows": ("tasks/windows.py", "tasks/test_windows.py tasks/test_long.py"),
    "metrics": ("tasks/metrics.py", "tasks/test_metrics.py"),
    "resume": (
        "training/checkpoint.py",
        "training/test_training_checkpoint.py training/test_last_checkpoint.py "
        "training/test_runfolder.py training/test_trial.py",
    ),
    "template": ("tokenization/template.py", "tokenization/test_template.py"),
    "heads": (
        "families/heads.py",
        "families/test_registry.py model/test_heads.py",
    ),
    "offsets": ("tokenization/offsets.py", "tokenization/test_offsets.py"),
    "tables": ("io/csv_files.py", "io tasks/test_readers.py"),
    "rows": ("tasks/readers.py", "tasks"),
    "conll": ("io/annotations/conll.py", "io tasks"),
    "squad": ("io/annotations/squad.py", "io tasks"),
    "tagging": ("tasks/tagging.py", "tasks runtime/test_tagger.py"),
    "words": ("tasks/words.py", "tasks"),
    "spans": ("tasks/spans.py", "tasks"),
    "pipeline": ("runtime/pipeline.py", "runtime"),
    "weights": ("runtime/weights.py", "runtime"),
    "batching": ("runtime/batching.py", "runtime"),
    "embeddings": ("runtime/embeddings.py", "runtime"),
    "batches": ("pretraining/batches.py", "pretraining"),
    "optimizer": ("training/optimizer.py", "training"),
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


@dataclass(frozen=True)
class Mutant:
    """A module with one change.

    Attributes:
        line: of the change.
        statement: the line of the statement that has it; 0 outside of functions.
        what: is changed.
        source: of the module.
    """

    line: int
    statement: int
    what: str
    source: str


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
    """All changes of a tree, as (line, its statement's, what, parent, field, index, node)."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int, str, ast.AST, str, int | None, ast.AST | None]] = []
        self.statement, self.inside = 0, False  # a function

    def visit(self, node: ast.AST) -> None:
        outer = self.statement, self.inside
        if isinstance(node, ast.stmt) and self.inside:
            self.statement = node.lineno
        self.inside |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        self.changes_in(node)
        self.statement, self.inside = outer

    def changes_in(self, node: ast.AST) -> None:
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
                    own = self.inside and isinstance(child, ast.stmt)
                    statement = line if own else self.statement
                    self.found.append((line, statement, what, node, name, place, new))
                self.visit(child)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= 90 else text[:87] + "..."


def mutants(name: str, count: int, seed: int) -> Iterator[Mutant]:
    """A drawn sample."""
    source = (ROOT / "src/bothways" / MODULES[name][0]).read_text(encoding="utf-8")
    tree = ast.parse(source)
    sites = Sites()
    sites.visit(tree)
    random.Random(f"{seed} {name}").shuffle(sites.found)
    for line, statement, what, parent, field, index, node in sites.found[:count]:
        value = getattr(parent, field)
        old_node = value if index is None else value[index]
        put(parent, field, index, node or ast.Pass())
        yield Mutant(line, statement, what, ast.unparse(ast.fix_missing_locations(tree)))
        put(parent, field, index, old_node)


def put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


# --------------------------------------------------------------------------- which tests reach what


HIT = "import builtins\n__hit__ = getattr(builtins, '__hit__', lambda line: None)"


def with_hits(source: str) -> str:
    """The module, whose functions call ``__hit__(line)`` before each of their statements."""
    tree, done = ast.parse(source), set[int]()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if not isinstance(block, list) or id(block) in done:
                    continue
                hits = [ast.parse(f"__hit__({line.lineno})").body[0] for line in block]
                block[:] = [each for pair in zip(hits, block, strict=True) for each in pair]
                done.add(id(block))
    after = max(n for n, line in enumerate(tree.body) if n == 0 or is_future(line)) + 1
    tree.body[after:after] = ast.parse(HIT).body
    return ast.unparse(ast.fix_missing_locations(tree))


def is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def changed_functions(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    """The old and new code of functions that differ; None if what runs on import differs, too."""
    outer = [
        code.replace(co_consts=tuple(c for c in code.co_consts if not isinstance(c, CodeType)))
        for code in (old, new)
    ]
    if outer[0] != outer[1] or len(inner(old)) != len(inner(new)):
        return None
    found: list[tuple[CodeType, CodeType]] = []
    for one, other in zip(inner(old), inner(new), strict=True):
        if one == other:
            continue
        if one.co_flags & inspect.CO_OPTIMIZED:  # a function, not the body of a class
            found.append((one, other))
        elif (within := changed_functions(one, other)) is None:
            return None
        else:
            found += within
    return found


class Reached:
    """A plugin of pytest: which statements each test reaches, and how long it takes.

    Attributes:
        tests: seconds and lines, by test.
        imported: lines that are reached before any test.
    """

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.imported: set[int] = set()
        self.now = self.imported
        self.by_fixture: dict[str, set[int]] = {}
        self.tests: dict[str, tuple[float, list[int]]] = {}
        builtins.__hit__ = lambda line: self.now.add(line)  # type: ignore[attr-defined]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """What a fixture reaches, all tests that use it do."""
        outer, self.now = self.now, self.by_fixture.setdefault(fixturedef.argname, set())
        try:
            return (yield)
        finally:
            self.now = outer

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.now, began = set(), time.process_time()
        result = yield
        own = self.now.union(*(self.by_fixture.get(name, ()) for name in item.fixturenames))
        self.tests[item.nodeid] = (time.process_time() - began, sorted(own))
        return result

    def end(self) -> None:
        libraries = [
            name
            for name, module in list(sys.modules.items())
            if "site-packages" in (getattr(module, "__file__", None) or "")
            and not name.startswith("_pytest")
        ]
        found = {"tests": self.tests, "imported": sorted(self.imported), "libraries": libraries}
        (self.tree / "reached").write_text(json.dumps(found))


# ------------------------------------------------------------------------------------ running tests

NOT_PUT = 77  # the exit code of a fork whose functions cannot have the new code
ARGV = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]


class Forks:
    """A plugin of pytest: runs, for each mutant, the tests that reach it in a fork."""

    def __init__(
        self, name: str, tree: Path, tried: list[Mutant], reached: dict[str, Any], out: TextIO
    ):
        self.name, self.tree, self.tried, self.out = name, tree, tried, out
        self.tests, self.imported = reached["tests"], reached["imported"]
        self.forked = False
        self.outcomes: list[str] = []
        self.left: list[int] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool | None:
        """In the process that collected the tests True; in a fork None, so that they are run."""
        package = ".".join(["bothways", *Path(MODULES[self.name][0]).with_suffix("").parts])
        module = importlib.import_module(package)
        self.functions = [
            found
            for found in gc.get_objects()
            if isinstance(found, FunctionType) and found.__module__ == package
        ]
        self.code = compiled(inspect.getsource(module))
        items = quick_first(session.items, self.tests)
        for number, mutant in enumerate(self.tried):
            changed = changed_functions(self.code, compiled(mutant.source))
            if changed is None or mutant.statement in self.imported:
                self.left.append(number)
                continue
            own = [item for item in items if mutant.statement in (0, *self.tests[item.nodeid][1])]
            limit = 3 * sum(self.tests[item.nodeid][0] for item in own) + 10
            before, outcome = spent(), "survived"
            if own:
                if not (child := os.fork()):
                    self.begin(limit)
                    self.put(changed)
                    session.items[:] = own
                    return None
                outcome = waited(child, time.monotonic() + 20 * limit)
            if outcome == "not put":
                self.left.append(number)
                continue
            self.outcomes.append(outcome)
            tell(self.name, mutant, outcome, len(own), spent() - before, self.out)
        return True

    def begin(self, seconds: float) -> None:
        self.forked = True
        begin_fork(seconds)

    def put(self, changed: list[tuple[CodeType, CodeType]]) -> None:
        """Give the functions their new code, or end."""
        for old, new in changed:
            ours = [function for function in self.functions if function.__code__ == old]
            if not ours or len(new.co_freevars) != len(old.co_freevars):
                os._exit(NOT_PUT)
            for function in ours:
                function.__code__ = new

    def end(self) -> None:
        if not self.forked:
            (self.tree / "forks").write_text(json.dumps([self.outcomes, self.left]))


class QuickFirst:
    """A plugin of pytest: of a file's tests, the quick ones first."""

    def __init__(self, tests: dict[str, Any]):
        self.tests = tests

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = quick_first(items, self.tests)

    def end(self) -> None:
        pass


def quick_first(items: list[Any], tests: dict[str, Any]) -> list[Any]:
    files = list(dict.fromkeys(item.path for item in items))
    return sorted(items, key=lambda item: (files.index(item.path), tests[item.nodeid][0]))


def import_libraries(names: list[str]) -> None:
    for name in names:
        with suppress(BaseException):
            importlib.import_module(name)


def compiled(source: str) -> CodeType:
    return compile(source, "module", "exec", dont_inherit=True)


def begin_fork(seconds: float) -> None:
    """Make it a group of its own, and limit its time unless it is 0."""
    os.setsid()
    if seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 5))


def fork_tests(name: str, tree: Path, plugin: Any, seconds: float) -> int:
    """A fork that imports a module's tests, and the package from a source tree, and runs them."""
    if child := os.fork():
        return child
    begin_fork(seconds)
    quiet = os.open(tree / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path.insert(0, str(tree))
    status = 1
    with suppress(BaseException):
        files = [str(ROOT / "tests" / file) for file in MODULES[name][1].split()]
        status = int(pytest.main([*ARGV, *files], plugins=[plugin]))
        plugin.end()
    os._exit(status)


def waited(child: int, end: float) -> str:
    outcomes = {0: "survived", -signal.SIGXCPU: "timeout", NOT_PUT: "not put"}
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            outcome = outcomes.get(os.waitstatus_to_exitcode(status), "killed")
            break
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timeout"
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what tests left running
    return outcome


def spent() -> float:
    """Seconds of the processor that ended children have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tell(name: str, mutant: Mutant, outcome: str, tests: int, seconds: float, out: TextIO) -> None:
    row = {"module": name, "line": mutant.line, "change": mutant.what, "outcome": outcome}
    print(json.dumps({**row, "tests": tests, "seconds": round(seconds, 1)}), file=out, flush=True)


def measure(name: str, tree: Path, count: int, seed: int, out: TextIO) -> list[str]:
    """The outcomes of a module's mutants."""
    module = tree / "bothways" / MODULES[name][0]
    source = ast.unparse(ast.parse(module.read_text(encoding="utf-8")))

    def run(source: str, plugin: Any, seconds: float, wait: float = math.inf) -> str:
        module.write_text(source, encoding="utf-8")
        return waited(fork_tests(name, tree, plugin, seconds), time.monotonic() + wait)

    hits = with_hits((ROOT / "src/bothways" / MODULES[name][0]).read_text(encoding="utf-8"))
    if run(hits, Reached(tree), 600) != "survived":
        raise SystemExit((tree / "output").read_text(errors="replace") + f"\n{name} fails as it is")
    reached = json.loads((tree / "reached").read_text())
    import_libraries(reached["libraries"])
    tests, tried = reached["tests"], list(mutants(name, count, seed))
    run(source, Forks(name, tree, tried, reached, out), 0)
    outcomes, left = json.loads((tree / "forks").read_text())
    limit = 3 * sum(seconds for seconds, _ in tests.values()) + 20
    for mutant in (tried[number] for number in left):
        before = spent()
        outcomes.append(run(mutant.source, QuickFirst(tests), limit, 20 * limit))
        tell(name, mutant, outcomes[-1], len(tests), spent() - before, out)
    module.write_text(source, encoding="utf-8")
    return list(outcomes)


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
    import safetensors.torch  # noqa: F401
    import tokenizers  # noqa: F401
    import torch

    torch.set_num_threads(1)
    gc.freeze()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "src"
        shutil.copytree(ROOT / "src", tree)
        for name in options.modules or MODULES:  # what other modules compiled to is good
            module = tree / "bothways" / MODULES[name][0]
            for compiled in module.parent.glob(f"__pycache__/{module.stem}.*"):
                compiled.unlink()
        out = options.out.open("a") if options.out else os.fdopen(os.dup(1), "w")
        rows = [
            (name, measure(name, tree, options.count, options.seed, out))
            for name in options.modules or MODULES
        ]
    sound = True
    print("| module | mutants | killed | of these by time | survived |\n|---|---|---|---|---|")
    for name, outcomes in rows:
        killed, late, survived = map(outcomes.count, ("killed", "timeout", "survived"))
        share = (killed + late) / len(outcomes)
        sound &= share >= LEAST_KILLED
        print(f"| {name} | {len(outcomes)} | {killed + late} ({share:.0%}) | {late} | {survived} |")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
