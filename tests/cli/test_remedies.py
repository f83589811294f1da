"""Remedies: an option that a message names is one of the verb that says it, or of one it names."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import bothways
from bothways import cli
from bothways.cli.verbs import VERBS, Verb
from bothways.config.parsing import shown
from bothways.model.folder import save_model
from model_examples import BOTH_HEADS, small_bert, small_tokenizer

_OPTION = re.compile(r"(?<![\w-])--([a-z](?:[a-z_0-9.-]*[a-z0-9])?)(?![-\w])")
_OF_OTHERS = {
    "csv",
    "wrap",
    "revision",
    "nproc_per_node",
    "max_restarts",
    "na-prob-file",
    "batch",
    "index-url",
    "no-index",
}  # commands of other programs
_COMMON = {"help", "set", "print-config", "version", "verbose"}


def options_of_verbs() -> dict[str, set[str]]:
    """The options of the command line by verb."""
    found = {}
    for name, verb in VERBS.items():
        own = [verb] if isinstance(verb, Verb) else verb.actions.values()
        options = (option for one in own for option in one.words(name).listed())
        found[name] = {shown(option.name).removeprefix("--") for option in options}
    return found


OPTIONS = options_of_verbs()


def lacking(message: str, verb: str) -> list[str]:
    """The options in a message that neither its verb has, nor one that is named before them."""
    found = []
    for option in _OPTION.finditer(message):
        named = re.findall(r"`(?:bothways )?([a-z-]+)", message[: option.start()])
        if option[1] not in _COMMON.union(*(OPTIONS.get(name, set()) for name in (verb, *named))):
            found.append(option[0])
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and files whose columns are not those that any of them knows."""
    root = tmp_path_factory.mktemp("remedies")
    labels = {"kind": "classification", "labels": ["a", "b"]}
    known = {**labels, "options": {"kind": "classification", "labels": ["a", "b"]}}
    for name, heads, about in (
        ("ours", {"classes": 2}, known),
        ("theirs", {"classes": 2}, labels),
        ("pretrained", BOTH_HEADS, {}),
        ("vectors", {}, {}),
    ):
        save_model(root / name, small_bert(**heads), small_tokenizer(97), about)
    (root / "theirs/bothways.json").unlink()
    bothways.export(root / "ours", root / "graph")
    (root / "other.tsv").write_text("one\ttwo\nw1\ta\nw2\tb\n")
    row = {"sentence": "w1", "label": {"x": "a"}, "marks": {"p": 1, "q": 0}, "none": {"z": {}}}
    (root / "objects.jsonl").write_text(json.dumps(row) + "\n")
    (root / "numbers.jsonl").write_text(json.dumps({"other": 1}) + "\n")
    marks = {"sentence": "w1", "label": {"p": 1, "q": 0}}
    (root / "marks.jsonl").write_text(json.dumps(marks) + "\n")
    return root


FILES = ("other.tsv", "objects.jsonl", "numbers.jsonl", "marks.jsonl")
MODELS = ("ours", "theirs", "pretrained", "vectors", "graph")


def commands() -> Iterator[str]:
    for file in FILES:
        yield f"finetune --train {file} --dev 0.5 --model vectors"
        for model in MODELS:
            yield f"predict {model} --file {file}"
            yield f"evaluate {model} {file}"
            yield f"embed {model} --file {file} --out v.npz"
            yield f"embed {model} --file {file} --text nothing --out v.npz"
            yield f"export {model} out --int8 --speedup 0 --gate {file}"
            yield f"export {model} out --int8 --speedup 0 --gate {file} --text-b x"
    for kept in ("label", "marks", "none"):
        yield f"predict ours --file objects.jsonl --out p.tsv --keep {kept}"
        yield f"embed ours --file objects.jsonl --out v.npz --keep {kept}"
    yield "export ours out --text sentence"
    yield "finetune --train other.tsv --dev 0.5 --model graph"
    for model in MODELS:
        yield f"inspect {model} w1 --attribute gradients"
        yield f"rank {model} w1 w2"


def test_messages_name_options_that_the_verb_has(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    wrong, failed = [], 0
    for command in commands():
        shutil.rmtree("out", ignore_errors=True)
        capsys.readouterr()
        failed += bool(cli.main(command.split()))
        for line in capsys.readouterr().err.splitlines():
            options = lacking(line, command.split()[0])
            if line.startswith("bothways: error") and options:
                wrong.append(f"{command}: {options}\n  {line}")
    assert not wrong, "\n".join(wrong)
    assert failed > 60


def test_no_option_is_of_no_verb() -> None:
    """In the text of any module: a name that is misspelt, or went."""
    known = _COMMON.union(_OF_OTHERS, *OPTIONS.values())
    source = Path(bothways.__file__).parent
    wrong = []
    for path in sorted({*source.rglob("*.py")} - {source / "io/html.py"}):  # which has styles
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                own = {option for option in _OPTION.findall(node.value) if option not in known}
                wrong += [f"{path.relative_to(source)}:{node.lineno}: --{option}" for option in own]
    assert not wrong, "\n".join(wrong)
