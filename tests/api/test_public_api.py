"""The public names of the package: all there, loaded when used and not before."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import bothways

QUICK = {
    "steps": 2,
    "layers": 1,
    "hidden": 32,
    "evaluate_every": 2,
    "evaluate_sequences": 64,
}


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
    assert found.__module__.startswith(f"bothways.{bothways._MODULES[name]}")


def test_the_example_of_the_package_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_text_file: Path,
) -> None:
    """On other text, and with a recipe that is changed to take seconds."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text(tiny_text_file.read_text())
    monkeypatch.chdir(tmp_path)
    example = (bothways.__doc__ or "").partition("::\n\n")[2].partition("\n\nLabelled data")[0]
    assert "minutes=5" in example
    example = example.replace("minutes=5", f"**{QUICK}")
    exec(compile(textwrap.dedent(example), "bothways", "exec"), {})
    shown = capsys.readouterr().out.splitlines()[-1]
    assert shown.startswith("Paris is the ")
    assert shown.endswith(" of France.")


def test_type_checkers_see_the_same_names() -> None:
    source = ast.parse(Path(bothways.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    seen = {
        alias.name: str(node.module).removeprefix("bothways.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == bothways._MODULES


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="module 'bothways' has no attribute 'pretrian'"):
        bothways.pretrian  # noqa: B018
    assert set(bothways.__all__) <= set(dir(bothways))
