"""What a wheel installs is complete: it works from any folder, without a checkout.

(That README's commands do, all of them and with their trainings, is tested in test_readme.py.)
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from bothways import cli
from bothways.config.recipes import shipped_recipes
from installed_package import ROOT, run_steps

# EXPERIMENTS.md, CHANGELOG.md and benchmarks/ are left out: they record what was typed at the time.
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "results" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "src/bothways/shipped").glob("*/README.md")),
    *shipped_recipes().values(),
]
TAKE_RECIPES = ("pretrain", "plan")
QUICK = ["--set", "layers=1", "hidden=32", "heads=2", "kernels=plain"]


def files_below(folder: Path) -> set[str]:
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {str(path) for path in found if "__pycache__" not in path.parts}


def succeeds(installed: Path, steps: list[tuple[str, Any]], folder: Path) -> str:
    done = run_steps(installed, steps, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commands(text: str) -> list[list[str]]:
    """The words after ``bothways`` of each command with a recipe: on lines of their own (in blocks,
    comments and the help), and in running text between backticks."""
    verbs = rf"(?:{'|'.join(TAKE_RECIPES)}) \s*[\w./]"
    lines = re.findall(rf"^[ #$]*(?:torchrun .*? )?bothways ({verbs}.*)$", text, re.MULTILINE)
    quoted = re.findall(rf"`bothways\s+({verbs}[^`]*)`", text)
    # In the help, three spaces separate a command from what it does.
    return [shlex.split(" ".join(c.partition("   ")[0].split())) for c in [*lines, *quoted]]


def test_the_wheel_has_every_file_of_the_package(installed: Path) -> None:
    assert files_below(installed / "bothways") == files_below(ROOT / "src" / "bothways")


def test_recipes_are_read_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    script = (
        "import bothways, json, pathlib, sys\n"
        "from bothways.config.recipes import shipped_recipes\n"
        "assert str(pathlib.Path(bothways.__file__).parents[1]) == sys.path[1], sys.path\n"
        "for name in shipped_recipes():\n"
        "    print(name, bothways.load_recipe(bothways.PretrainConfig, name).clock)\n"
    )
    shown = succeeds(installed, [("script", script)], tmp_path)
    for name in shipped_recipes():
        assert re.search(rf"^{name} ClockOptions\(.*=\d", shown, re.MULTILINE)
    assert not list(tmp_path.iterdir())


def test_every_command_with_a_recipe_that_is_shown(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The documents', the help's and the recipes' own, as far as their options."""
    shown = {str(path): path.read_text(encoding="utf-8") for path in DOCUMENTS}
    for words in ([], *([verb] for verb in TAKE_RECIPES)):
        assert cli.main([*words, "--help"]) == 0
        shown[" ".join(words) or "help"] = capsys.readouterr().out.replace("NAME", "tiny")
    found = {place: commands(text) for place, text in shown.items()}
    for place in ("README.md", "results/README.md", "docs/pretraining.md"):
        assert found[str(ROOT / place)], place
    assert all(found[str(path)] for path in shipped_recipes().values())
    assert all(found[place] for place in TAKE_RECIPES)
    steps = [
        ("bothways", [*words[: words.index(">") if ">" in words else None], "--print-config"])
        for place in found
        for words in found[place]
    ]
    assert {words[0] for _, words in steps} == set(TAKE_RECIPES)
    printed = succeeds(installed, steps, tmp_path)
    assert printed.count("\nsteps: ") == len(steps)
    assert not list(tmp_path.iterdir())


def test_no_document_names_the_folder_where_recipes_were() -> None:
    """A path into a checkout is no name."""
    for path in DOCUMENTS:
        assert not re.search(r"(?<!bothways/)\brecipes/", path.read_text(encoding="utf-8")), path


def test_recipes_are_planned_and_trained_from_an_empty_folder(
    installed: Path, tmp_path: Path, tiny_corpus: Path
) -> None:
    quick = [*QUICK, "phases=[{length: 48, batch: 4, micro_batch: 4}]"]
    run = ["--corpus", str(tiny_corpus), "--run", "run", "--set", "evaluate_sequences=64"]
    shown = succeeds(
        installed,
        [
            ("bothways", ["plan", "mini-ko", "--vocab-size", "300", *quick]),
            ("bothways", ["plan", "mini-ko", "--minutes", "4", *run[:2], *quick]),
            ("bothways", ["pretrain", "mini-ko", "--steps", "2", *run, *quick]),
        ],
        tmp_path,
    )
    assert "8,000" in shown, "the recipe's steps"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_the_paper_is_reproduced_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    """A recipe by name; the scale's text and tasks are made from installed packages."""
    words = ["reproduce", "masking-rate", "--recipe", "tiny", "--set", "steps=2", "--out", "out"]
    shown = succeeds(installed, [("bothways", [*words, "--plan"])], tmp_path)
    assert "to do" in shown


@pytest.mark.slow
def test_the_demonstration_needs_no_checkout(installed: Path, tmp_path: Path) -> None:
    words = ["demo", "--minutes", "0.2", "--seeds", "1"]
    shown = succeeds(installed, [("bothways", words)], tmp_path)
    assert "accuracy on held-out functions" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["demo-out"]
