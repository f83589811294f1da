"""The public names of the package: all there, loaded when used and not before."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bothways


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = (
        "import sys, bothways\n"
        "assert dir(bothways) and bothways.__all__\n"
        "from bothways import PretrainConfig, BothwaysError\n"
        "heavy = {'torch', 'tokenizers', 'pyarrow', 'sklearn', 'matplotlib', 'scipy', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "from bothways import Tokenizer, build_corpus, learn_vocabulary\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", bothways.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(bothways, name)
    assert found.__name__ == name
    assert found.__doc__, f"{name} has no docstring"
    assert found.__module__.startswith(f"bothways.{bothways._HOMES[name]}")


def test_type_checkers_see_the_same_names() -> None:
    source = ast.parse(Path(bothways.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    seen = {
        alias.name: str(node.module).removeprefix("bothways.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == bothways._HOMES


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="module 'bothways' has no attribute 'pretrian'"):
        bothways.pretrian  # noqa: B018
    assert set(bothways.__all__) <= set(dir(bothways))
