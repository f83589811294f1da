"""scripts/: what was measured is reused under the same settings only."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bothways.config.parsing import parse
from bothways.errors import InputError
from bothways.experiments.options import BenchTrainConfig
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.results import FinetuneResult, SeedResult
from bothways.model.engine import as_loaded
from bothways.model.folder import save_model
from bothways.runtime.folder import load_model
from bothways.tasks.metrics import Measurement
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


@pytest.mark.parametrize("script", ["score_model"], indirect=True)
def test_each_model_has_a_primed_start_of_its_own(script: ModuleType, tmp_path: Path) -> None:
    first, second = (
        as_loaded(small_bert(small_config(shape)), small_tokenizer(shape[4]), {})
        for shape in SHAPES[:2]
    )
    folders = [script._primed(loaded, tmp_path) for loaded in (first, second, first)]
    assert folders[0] == folders[2] != folders[1]
    assert json.loads(Path(folders[1], "config.json").read_text())["vocab_size"] == SHAPES[1][4]


@pytest.mark.parametrize("script", ["score_model"], indirect=True)
def test_each_dev_file_of_qnli_is_split_by_itself(script: ModuleType, tmp_path: Path) -> None:
    given = dict.fromkeys(("batch", "epochs", "dropout", "lr"))
    seen = []
    for name in ("first", "second"):
        folder = tmp_path / name
        (folder / "QNLI").mkdir(parents=True)
        rows = [f"{n}\tWho {n}?\tThe {name} {n}.\tentailment" for n in range(40)]
        text = "\n".join(["index\tquestion\tsentence\tlabel", *rows]) + "\n"
        (folder / "QNLI" / "dev.tsv").write_text(text)
        options = argparse.Namespace(glue=folder, work=tmp_path / "work", **given)
        task = script._recipe("qnli", options).task
        seen.append(Path(task.train).read_text())
        assert Path(task.dev).exists()
    assert "The first" in seen[0]
    assert "The second" in seen[1]


@pytest.mark.parametrize("script", ["score_model"], indirect=True)
def test_the_score_over_folds_is_the_mean_of_their_tests_by_seed(script: ModuleType) -> None:
    def fold(*scores: float) -> dict[str, Any]:
        seeds = [{"dev": {"accuracy": 0}, "further": {"test": {"accuracy": s}}} for s in scores]
        return {"model": {"seeds": seeds, "baseline": {"accuracy": 0.25}}}

    runs = {f"codah-{i}": fold(0.4 + i / 100, 0.5 + i / 100) for i in range(5)}
    runs["codah-0"] = fold(0.4, 0.5, 0.9)  # a seed more
    last = script.table({"runs": runs})[-1]
    assert last == "| codah, mean of the folds' tests, accuracy | 2 | 47.0 ± 7.1 | |"
    runs["codah-3"] = fold()  # begun
    assert "mean of the folds" not in "".join(script.table({"runs": runs}))


@pytest.mark.parametrize("script", ["score_model"], indirect=True)
def test_seeds_measured_on_other_files_are_refused(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: FinetuneConfig) -> FinetuneResult:
        seeds = [SeedResult(n, Measurement({"accuracy": 0.5}), tmp_path, 1.0) for n in config.seeds]
        return FinetuneResult(
            tmp_path, "WNLI", ("accuracy",), tuple(seeds), {"accuracy": 0.4}, 2, (), config.setting
        )

    monkeypatch.setattr(script, "finetune", train)
    save_model(tmp_path / "model", small_bert(small_config(SHAPES[0])), small_tokenizer(97))
    (tmp_path / "WNLI").mkdir()
    for part in ("train", "dev"):
        rows = "index\tsentence1\tsentence2\tlabel\n0\tOne.\tTwo.\t0\n"
        (tmp_path / "WNLI" / f"{part}.tsv").write_text(rows)
    words = [tmp_path / "model", "--glue", tmp_path, "--out", tmp_path / "scores"]
    words += ["--tasks", "wnli", "--starts", "model", "--work", tmp_path / "work"]
    call(script, *words, "--seeds", 1)
    call(script, *words, "--seeds", 2)
    found = json.loads((tmp_path / "scores" / "scores.json").read_text())
    runs = found["runs"]["wnli"]["model"]["seeds"]
    assert [run["seed"] for run in runs] == [0, 1]
    assert all("torch" in run["versions"] for run in runs)
    (tmp_path / "WNLI" / "dev.tsv").write_text(rows + "1\tOne.\tThree.\t1\n")
    with pytest.raises(SystemExit, match="wnli, model: was measured on other files; move"):
        call(script, *words, "--seeds", 3)
    (tmp_path / "WNLI" / "dev.tsv").unlink()
    with pytest.raises(InputError, match=r"no such file \(task\.dev"):
        call(script, *words, "--seeds", 3)


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
    def measure(words: list[str], *, recompute: bool) -> dict[str, Any]:
        return {"settings": {"words": words}, "recompute": recompute}

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
        if words[:4] == ["-m", "bothways", "bench", "train"]:
            options = parse(BenchTrainConfig, words[4:], prog="bench train", description="")
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
