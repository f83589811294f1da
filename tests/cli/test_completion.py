"""Completion of verbs, options and values by a shell."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from bothways import cli
from bothways.cli import completion, verbs
from bothways.tasks.catalogue import task_recipe

CASES = {
    "pre": ["predict", "pretrain"],
    "finetune --tr": ["--train"],
    "finetune mr": ["mrpc"],
    "finetune --keep b": ["best"],
    "corpus sh": ["show"],
    "corpus --lan": ["--language"],
    "pretrain --size b": ["base"],
    "pretrain mini-k": ["mini-ko"],
    "help fi": ["fill-mask", "finetune"],
    "completion ": ["bash", "zsh", "fish"],
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes() -> None:
    lines = [completion.script(["bash"]), "run=$(complete -p bothways | sed 's/.*-F //;s/ .*//')"]
    for line in CASES:
        words = ["bothways", *line.split(" ")]
        quoted = " ".join(f"'{word}'" for word in words)
        lines += [f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMPREPLY=()"]
        lines += [f"$run bothways '{words[-1]}' '{words[-2]}'", 'echo "${COMPREPLY[*]}"']
    done = subprocess.run(["bash"], input="\n".join(lines), capture_output=True, text=True)
    assert dict(zip(CASES, map(str.split, done.stdout.splitlines()), strict=True)) == CASES


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_scripts_have_every_verb_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*cli.VERBS, "text-field", "masking-kind"):
        assert word in script
    if checker := shutil.which(shell):
        flag = "--no-execute" if shell == "fish" else "-n"
        subprocess.run([checker, flag], input=script, text=True, check=True)


def test_scripts_need_no_torch() -> None:
    script = (
        "import sys\nfrom bothways import cli\n"
        "for shell in ('bash', 'zsh', 'fish'):\n    assert cli.main(['completion', shell]) == 0\n"
        "heavy = {'torch', 'tokenizers', 'pyarrow', 'sklearn', 'numpy', 'scipy', 'rich'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_tagging_tasks_are_told_by_their_text() -> None:
    """Completion and help have no time to read all declared tasks."""
    found = verbs._declared_tagging_tasks()
    declared = verbs._declared_tasks()
    assert {*found} == {n for n in declared if task_recipe(n).task.kind == "tagging"}
