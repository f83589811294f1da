"""scripts/: what was measured is reused under the same settings only."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bothways.config.parsing import CommandLine
from bothways.experiments.options import BenchTrainConfig
from bothways.model.folder import save_model
from bothways.runtime.folder import load_model
from model_examples import SHAPES, small_bert, small_config, small_tokenizer

CPU_CHECK = Path(__file__).parents[1] / "scripts" / "cpu_check.sh"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """The script that the test is parametrized with."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    return importlib.import_module(request.param)


def call(script: ModuleType, *words: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script.__name__, *map(str, words)])
        script.main()


@pytest.mark.parametrize("script", ["package_model"], indirect=True)
@pytest.mark.parametrize(
    ("own", "words", "expected"), [(0.0, [], 0.1), (0.2, [], 0.2), (0.2, ["--dropout", 0], 0.0)]
)
def test_a_package_keeps_its_dropout(
    script: ModuleType, tmp_path: Path, own: float, words: list[Any], expected: float
) -> None:
    shape = dataclasses.replace(small_config(SHAPES[0]), dropout=own, attention_dropout=own)
    save_model(tmp_path / "model", small_bert(shape), small_tokenizer(SHAPES[0][4]))
    call(script, tmp_path / "model", tmp_path / "out", *words)
    packed = load_model(tmp_path / "out").config
    assert (packed.dropout, packed.attention_dropout) == (expected, expected)


@pytest.mark.parametrize("script", ["check_bugs"], indirect=True)
def test_bugs_can_be_put_back(script: ModuleType) -> None:
    """`make check-bugs` does it; here, that what the list names is there."""
    bugs = script.read_bugs()
    assert len(bugs) >= 40
    assert [problem for problem in map(script.stale, bugs) if problem] == []


@pytest.mark.parametrize("script", ["compare_kernels"], indirect=True)
def test_a_curve_of_other_settings_is_refused(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(options: Any, *_: Any) -> dict[str, Any]:
        loss = [1.0] * options.steps
        return {"loss": loss, "heldout_loss": 1.0, "cpu_seconds": 1.0, "settings": vars(options)}

    monkeypatch.setattr(script, "_train", train)
    words = ["corpus", "--out", tmp_path, "--runs", "fast", "plain", "--threads", 1]
    call(script, *words, "--steps", 30)
    call(script, *words, "--steps", 30, "--smooth", 5)
    with pytest.raises(SystemExit, match=r"fast\.json was made with steps 30, not 40; move it"):
        call(script, *words, "--steps", 40)


@pytest.mark.parametrize("script", ["measure_plan"], indirect=True)
def test_a_plan_of_other_settings_is_refused(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(words: list[str]) -> dict[str, Any]:
        return {"settings": {"words": words}}

    monkeypatch.setattr(script, "_measure", measure)
    monkeypatch.setattr(script, "_table", lambda _: "")
    words = ["corpus", "--out", tmp_path / "plan.json"]
    call(script, *words, "--cases", "tiny", "base")
    call(script, *words, "--cases", "small")
    with pytest.raises(SystemExit, match=r"'tiny' was measured with .*length: 128.*length: 64"):
        call(script, *words, "--cases", "small", "--length", 64)


@pytest.mark.parametrize("script", ["compare_digests"], indirect=True)
def test_what_differs_between_two_trees_is_told_apart_from_what_is_refused(
    script: ModuleType,
) -> None:
    old = {
        "a: x": "12ab",
        "a: y": "34cd",
        "b: x": "56ef",
        "c: printed": "78ab",
        "d: run": "!",
        "e: x": "9",
    }
    new = {"a: x": "12ab", "a: y": "00cd", "b: run": "refused: why", "d: run": "!", "e: z": "9"}
    new["c: printed"] = "refused: other"
    lines, differing = script.table({"old": old, "new": new})
    verdicts = {line.partition("  ")[0].strip(): line.split("  ")[-1].strip() for line in lines}
    assert verdicts == {
        **{"a: x": "same", "a: y": "DIFFERENT", "b: x": "refused", "b: run": "refused"},
        **{"c: printed": "refused", "d: run": "FAILS IN BOTH"},
        **{"e: x": "DIFFERENT", "e: z": "DIFFERENT"},
    }
    assert differing == 4


def asked_of(tmp_path: Path, precision: str, *parts: str) -> list[list[str]]:
    """The words of each command that cpu_check.sh gives to Python, on a machine of this kind."""
    asked, python = tmp_path / "asked", tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && echo {precision} && exit\n'
        f"printf '%s\\n' \"$@\" END >>{asked}\n"
    )
    python.chmod(0o755)
    words = (tmp_path / "out", "corpus", "glue", "model", python, *parts)
    subprocess.run(["sh", CPU_CHECK, *words], check=True, capture_output=True)
    commands = asked.read_text().split("END\n")[:-1]
    return [command.splitlines() for command in commands]


@pytest.mark.parametrize(("precision", "count"), [("bf16", 10), ("fp32", 8)])
def test_the_check_of_a_cpu_gives_options_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, count: int
) -> None:
    monkeypatch.syspath_prepend(str(CPU_CHECK.parent))
    commands = asked_of(tmp_path, precision)
    assert len(commands) == count
    for words in commands:
        if words[:3] == ["-m", "bothways.experiments.bench", "train"]:
            options = CommandLine(BenchTrainConfig, "bench train").parse(words[3:])
            assert ("transformers bf16" in options.contenders) == (precision == "bf16")
        else:
            script = importlib.import_module(Path(words[0]).stem)
            monkeypatch.setattr(sys, "argv", words)
            options = script._arguments()
            assert getattr(options, "precision", precision) in (precision, "fp32")


def test_the_check_of_a_cpu_runs_the_parts_it_is_asked_for(tmp_path: Path) -> None:
    (words,) = asked_of(tmp_path, "fp32", "base")
    assert words[words.index("--size") + 1] == "base"
    with pytest.raises(subprocess.CalledProcessError):
        asked_of(tmp_path, "fp32", "bse")


@pytest.mark.parametrize("script", ["scale"], indirect=True)
def test_the_page_of_scale_is_what_the_script_prints(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    call(script)
    page = Path(__file__).parents[1] / "docs" / "scale.md"
    assert capsys.readouterr().out in page.read_text(encoding="utf-8")
