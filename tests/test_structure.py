"""The house rules that a reader can rely on: floors, no torch where none is needed."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

import bothways
from bothways.families import FAMILIES
from bothways.families.heads import CHOICE, HEADS, NEXT_SENTENCE, REPLACED
from bothways.runtime.engine import engines
from bothways.tasks.options import KIND_NAMES, TRAITS

ROOT = Path(bothways.__file__).parent
FLOORS = (
    {"errors", "shipped"},
    {"arrays", "randomness"},
    {"io"},
    {"config", "batch"},
    {"families"},
    {"tokenization"},
    {"corpus", "tasks"},
    {"runtime"},
    {"model", "exporting"},
    {"objectives"},
    {"training"},
    {"pretraining"},
    {"finetuning"},
    {"api"},
    {"experiments", "serving", "sklearn"},
    {"cli"},
    {"__main__"},
)
# Options are declared beside the stage that they are of. They hold no code of it, so any module may
# name them; what they import stands below them.
OPTIONS = "options"
BELOW_OPTIONS = ("errors", "shipped", "config", "families")
TORCH_FREE = (
    *(
        "errors",
        "arrays",
        "randomness",
        "io",
        "config",
        "batch",
        "tokenization",
        "corpus",
        "families",
    ),
    *("tasks", "runtime", "exporting", "api", "serving", "cli"),
)
LONG_FILE = 600
"""Lines of code (no blank lines, comments, docstrings); docs/architecture.md says why of longer."""
LONGEST_FAMILY = 125
FRAME_FILES = ("config", "family", "heads", "options", "parameters")
FRAME = {"families", *(f"families.{name}" for name in FRAME_FILES)}
# The name of a normalisation of text, which is that of a family, too.
NORMALISATIONS = ("tokenization",)


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


def for_each(names: Iterable[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """One test that checks each of these modules."""

    def one_test(check: Callable[[str], None]) -> Callable[[], None]:
        def test() -> None:
            for name in names:
                check(name)

        test.__doc__ = check.__doc__
        return test

    return one_test


def top(name: str) -> str:
    return name.partition(".")[0]


def floor(name: str) -> int:
    return next(i for i, names in enumerate(FLOORS) if top(name) in names)


def is_options(name: str) -> bool:
    return name.rpartition(".")[2] == OPTIONS


@for_each([name for name in MODULES if is_options(name)])
def test_options_import_no_stage(name: str) -> None:
    for other in imports(name, lazy=True):
        assert is_options(other) or top(other) in BELOW_OPTIONS, f"{name} imports {other}"


@for_each([name for name in MODULES if name])
def test_every_module_stands_on_a_floor(name: str) -> None:
    assert any(top(name) in names for names in FLOORS), f"{name} is on no floor; add it to FLOORS"


@for_each([name for name in MODULES if name])
def test_imports_come_from_floors_below(name: str) -> None:
    for other in imports(name, lazy=True):
        if top(other) == top(name) or is_options(other):
            continue
        assert floor(other) < floor(name), f"{name} imports {other}, which is not on a floor below"


def test_no_circles() -> None:
    graph = {name: imports(name, lazy=True) - {name} for name in MODULES}
    while ready := {name for name, needs in graph.items() if not needs & set(graph)}:
        graph = {name: needs for name, needs in graph.items() if name not in ready}
    assert not graph, f"these import each other in a circle: {sorted(graph)}"


def test_modules_without_torch_import_none() -> None:
    free = [name for name in MODULES if top(name) in TORCH_FREE or is_options(name)]
    names = [f"bothways.{name}" for name in free]
    script = (
        f"import importlib, sys\nfor name in {names}:\n    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_modules_import_where_posix_is_missing() -> None:
    """As on Windows, where none of them has been run."""
    names = [f"bothways.{name}".rstrip(".") for name in MODULES if name != "__main__"]
    script = (
        "import importlib, signal, sys\n"
        "for name in ('SIGHUP', 'SIGKILL'):\n    delattr(signal, name)\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios'):\n"
        "    sys.modules[name] = None\n"
        f"for name in {names}:\n    importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@for_each(list(MODULES))
def test_modules_are_documented(name: str) -> None:
    assert ast.get_docstring(tree(name)), f"{name} has no docstring"


def test_the_architecture_page_says_why_of_long_files() -> None:
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name, path in MODULES.items():
        if lines_of_code(path) > LONG_FILE:
            assert path.relative_to(ROOT).as_posix() in page, f"{name} is long; say why"


def lines_of_code(path: Path) -> int:
    """Lines that hold code: no blank ones, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


# Code lines, as `lines_of_code` counts them, and words of documentation. A number falls with what
# it counts; it rises only with a reason in docs/architecture.md.
BUDGET = {
    "api": 3020,
    "cli": 750,
    "config": 730,
    "corpus": 1710,
    "experiments": 3060,
    "exporting": 540,
    "families": 1550,
    "finetuning": 2840,
    "io": 3720,
    "model": 4240,
    "objectives": 540,
    "pretraining": 1800,
    "runtime": 5360,
    "serving": 1970,
    "shipped": 20,
    "tasks": 4370,
    "tokenization": 2900,
    "top": 490,
    "training": 1800,
    "scripts": 2880,
    "tests": 39730,
    "words of docs": 26830,
}


def test_no_folder_is_over_its_budget() -> None:
    root = Path(__file__).parents[1]
    found: Counter[str] = Counter()
    for name, path in MODULES.items():
        package = path.parent != ROOT
        found[top(name) if package else "top"] += lines_of_code(path)
    for folder in ("scripts", "tests"):
        found[folder] = sum(map(lines_of_code, (root / folder).rglob("*.py")))
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    pages = [page for page in pages if page.name != "names.md"]  # written by `make site`
    found["words of docs"] = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    over = {name: count for name, count in found.items() if count > BUDGET[name]}
    assert not over, f"over the budget of this test: {over}"
    loose = {name: count for name, count in found.items() if count < 0.97 * BUDGET[name] - 10}
    assert not loose, f"lower these budgets to what is there: {loose}"


def test_no_kind_of_task_is_compared_with_outside_tasks() -> None:
    """What the rest needs to know of a kind is one of its traits."""
    for name in MODULES:
        if top(name) in ("tasks", "pretraining"):  # whose masks are of other kinds
            continue
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.Compare) and "kind" in ast.unparse(node):
                values = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                found = values & {*TRAITS, *KIND_NAMES}
                assert not found, f"{name}, line {node.lineno}: {found}"


# --------------------------------------------------------------------- io opens what users wrote


# What bothways itself wrote or ships, and what the system and other packages have.
OWN_FILES = {
    "runtime.checksums": "its own checksums, byte by byte",
    "config.fields": "an options object as plain data",
    "config.recipes": "shipped and given recipes",
    "corpus.build_log": "the log of a build",
    "corpus.cached_encoder": "a tokenizer on its way to a worker",
    "corpus.duplicates": "temporary files of a build",
    "corpus.store": "corpus folders",
    "experiments.bench": "answers of its own process",
    "experiments.bench_infer": "copies of a model folder; the null device",
    "experiments.demo": "its own text and settings",
    "experiments.documentation": "sources of installed packages",
    "experiments.reproduce.steps": "its own records",
    "experiments.reproduce.run": "its own table",
    "experiments.reproduce.tables": "its own tables and scales",
    "finetuning.features": "its own records",
    "finetuning.glue": "its own predictions",
    "finetuning.finetune": "its own records",
    "model.weight_files": "tensors",
    "runtime.engine": "its own entry points",
    "runtime.inspection": "its own page",
    "runtime.model_card": "its own cards",
    "runtime.stored": "tensors",
    "runtime.speed": "its own figures; the system's",
    "tasks.catalogue": "shipped tasks",
    "tokenization.bert_settings": "a tokenizer of the library as plain data",
    "tokenization.extension": "a tokenizer of the library as plain data",
    "tokenization.reading": "the bytes of a vocabulary, to be copied",
    "tokenization.tokenizer": "a tokenizer of the library as plain data",
    "training.checkpoint": "checkpoints",
    "training.fit": "the null device",
    "training.monitor": "its own records",
    "training.runfolder": "run folders; the system's",
    "cli": "the null device",
    "api.sklearn": "the model folder of an estimator",
    "pretraining.pretrain": "its own curves",
}
OPENING = {"open", "read_text", "read_bytes"}
PARSING = {"load", "loads", "reader", "DictReader"}


def opens(node: ast.AST) -> bool:
    """Whether a call opens a file or takes JSON or CSV apart."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "open"
    if not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    if isinstance(owner, ast.Name) and owner.id in ("json", "csv"):
        return node.func.attr in PARSING
    # A token store is opened, too, but by its own class.
    return node.func.attr in OPENING and not (isinstance(owner, ast.Name) and "Store" in owner.id)


@for_each([n for n in MODULES if top(n) != "io"])
def test_only_io_opens_what_users_wrote(name: str) -> None:
    found = [line_of(node) for node in ast.walk(tree(name)) if opens(node)]
    if name in OWN_FILES:
        assert found, f"{name} opens nothing; take it off the list"
    else:
        assert not found, f"{name}, lines {found}: ask io, which has one policy for broken input"


# ----------------------------------------------------------------- sequences: one module knows them


TEMPLATE = "tokenization.template"
# Where a piece's name stands in a text that is about BERT's paper or the models made here, not
# about a tokenizer: what each is.
NAMES_ALLOWED = {
    "cli": "help",
    "cli.verbs": "examples",
    "pretraining.options": "a message on recipes of BERT",
    "batch": "a message for those who make batches by hand",
    "shipped": "the model in the package",
}
PIECES = ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", "<mask>", "<s>", "</s>", "<pad>", "<unk>")
OUTSIDE_TOKENIZATION = [name for name in MODULES if top(name) != "tokenization"]


def docstrings(name: str) -> set[int]:
    """The constants that are docstrings, of fields too, by identity."""
    return {id(node.value) for node in ast.walk(tree(name)) if isinstance(node, ast.Expr)}


def is_number(node: ast.AST | None, value: int) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return is_number(node.operand, -value)
    return isinstance(node, ast.Constant) and node.value == value


def line_of(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


SIZES = {"length", "max_length", "max_tokens", "room"}
COUNTED = {"tokens", "pieces", "query", "text", "texts", "segments", "encoding", "ids"}


def is_length(node: ast.AST) -> bool:
    """Whether an expression is the length of a sequence or text in tokens, by its names."""
    if isinstance(node, ast.BinOp):
        return is_length(node.left) or is_length(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return bool(COUNTED & identifiers(node.args[0]))
    return isinstance(node, ast.Name | ast.Attribute) and bool(SIZES & identifiers(node))


def identifiers(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }


def counts_special_tokens(node: ast.AST) -> bool:
    """``length - 2``, ``len(tokens) - 3``, ``len(pieces) + 2``: a length, and 2 or 3."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)):
        return False
    return any(
        is_length(other) and any(is_number(side, n) for n in (2, 3))
        for side, other in ((node.left, node.right), (node.right, node.left))
    )


@for_each([name for name in MODULES if name != TEMPLATE])
def test_only_the_template_cuts_special_tokens_off(name: str) -> None:
    for node in ast.walk(tree(name)):
        cut = isinstance(node, ast.Slice) and is_number(node.lower, 1) and is_number(node.upper, -1)
        assert not cut, f"{name}: [1:-1] on line {line_of(node)}; ask {TEMPLATE} instead"
        assert not counts_special_tokens(node), (
            f"{name}: {ast.unparse(node)} on line {line_of(node)} counts special tokens; ask "
            f"{TEMPLATE} instead"
        )


@for_each(OUTSIDE_TOKENIZATION)
def test_only_the_template_places_special_tokens(name: str) -> None:
    described = docstrings(name)
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("cls_id", "sep_id"), (
                f"{name}:{node.lineno}: {node.attr}; sequences are built by {TEMPLATE}"
            )
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = [piece for piece in PIECES if piece in node.value]
            assert not found or id(node) in described or name in NAMES_ALLOWED, (
                f"{name}:{node.lineno}: {found[0]}; other tokenizers spell it otherwise: ask for "
                "its role"
            )


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        ("length - 2", True),
        ("length - len(query) - 3", True),
        ("len(encoding.tokens) - 2", True),
        ("(length - 3) // 2", True),
        ("3 + len(text)", True),
        ("length - 1", False),
        ("width - 2", False),
        ("rank * 2", False),
    ],
)
def test_what_counting_special_tokens_looks_like(code: str, counted: bool) -> None:
    assert any(counts_special_tokens(node) for node in ast.walk(ast.parse(code))) == counted


def strings(name: str) -> list[ast.Constant]:
    """The string literals of a module, without docstrings."""
    prose = {
        id(node.value)
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    nodes = [node for node in ast.walk(tree(name)) if isinstance(node, ast.Constant)]
    return [node for node in nodes if isinstance(node.value, str) and id(node) not in prose]


@for_each([name for name in MODULES if name and top(name) != "families"])
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


# Names of heads that are also words for something else: a kind of task, an objective, a verb.
OTHER_MEANINGS = {CHOICE: "", REPLACED: "", NEXT_SENTENCE: "cli"}


@for_each([name for name in MODULES if name and top(name) != "families"])
def test_heads_are_named_in_their_folder_only(name: str) -> None:
    names = {head for head in HEADS if not name.startswith(OTHER_MEANINGS.get(head, "-"))}
    for node in strings(name):
        assert node.value not in names, f"{name}, line {node.lineno}: {node.value!r}"


# errors says which extra brings a package, and engines have the names of their packages.
@for_each([name for name in MODULES if top(name) in TORCH_FREE and name != "errors"])
def test_engines_are_named_in_their_module_only(name: str) -> None:
    own = {key for key, entry in engines().items() if entry.module != f"bothways.{name}"}
    for node in strings(name):
        assert node.value not in own, f"{name}, line {node.lineno}: {node.value!r}"


def test_modes_of_inference_are_the_engines() -> None:
    """What training does without gradients is not an inference."""
    for name in MODULES:
        if name != "model.engine" and name != "finetuning.features":  # a tagger on stored features
            text = MODULES[name].read_text(encoding="utf-8")  # PEFT has a setting of this name
            assert not re.search(r"\binference_mode\(|import .*\binference_mode", text), name


def test_a_family_is_a_page_of_data() -> None:
    for name, path in MODULES.items():
        if top(name) == "families" and name not in FRAME:
            lines = path.read_text(encoding="utf-8").count("\n")
            assert lines <= LONGEST_FAMILY, f"{name} has {lines} lines"
            functions = [n.name for n in ast.walk(tree(name)) if isinstance(n, ast.FunctionDef)]
            assert set(functions) <= {"read", "write", "classes"}, name


@for_each([name for name in MODULES if name])
def test_links_in_a_circle_raise_nowhere(name: str) -> None:
    """``Path.resolve`` raises a RuntimeError for them; ``io.files.real_path`` does not."""
    calls = [node for node in ast.walk(tree(name)) if isinstance(node, ast.Call)]
    lines = [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "resolve"
        if not call.args and not call.keywords
    ]
    assert not lines, f"{name} calls .resolve() in lines {lines}; take real_path"
