"""docs/tasks.md and docs/labels.md are true: their declarations, commands and Python run, on small
files."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from bothways import cli
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from model_examples import small_config, small_tokenizer

PAGE = (Path(__file__).parents[1] / "docs/tasks.md").read_text(encoding="utf-8")
TEAMS = ("billing", "shipping", "other")


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)

    def text() -> str:
        return " ".join(f"w{i}" for i in rng.integers(8, 90, 5))

    for name in ("tickets", "likeness"):
        Path(name).mkdir()
    for name, count in (("train", 12), ("dev", 9), ("test", 3)):
        lines = ["id\tmessage\tteam", *(f"{i}\t{text()}\t{TEAMS[i % 3]}" for i in range(count))]
        Path(f"tickets/{name}.tsv").write_text("\n".join(lines) + "\n")
        lines = [f"{i}\t{rng.random():.2f}\t{text()}\t{text()}" for i in range(count)]
        if name == "train":
            lines.insert(4, "broken")
        Path(f"likeness/pairs-{name}.tsv").write_text("\n".join(lines) + "\n")
    shape = dataclasses.replace(small_config((2, 32, 4, 64, 97)), positions=64)
    save_model(tmp_path / "MODEL", EncoderModel(shape, seed=3), small_tokenizer(97))


def test_the_page_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("yaml"):
        name = re.match(r"# (\S+\.yaml)\n", block)
        assert name, "a declaration begins with the name of its file"
        Path(name[1]).write_text(block)
    commands = [line[2:] for block in blocks("console") for line in block.splitlines()]
    assert len(commands) == 4
    for command in commands:
        status = cli.main(shlex.split(command)[1:])
        assert status == 0, f"{command}\n{capsys.readouterr().err}"
    (block,) = blocks("python")
    exec(compile(block, "docs/tasks.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "1 broken lines were left out: 5. Line 5: " in shown
    kept = json.loads(Path("runs/likeness/seed-0/metrics.json").read_text())
    assert "spearman" in kept["further"]["pairs-test"]["scores"]
    assert Path("runs/likeness/seed-0/pairs-test_predictions.tsv").exists()
    rows = json.loads(Path("runs/table/table.json").read_text())["rows"]
    assert [row["file"] for row in rows if row["main"]] == ["pairs-dev", "pairs-test"]
    assert len(Path("runs/tickets/seed-2/test_predictions.tsv").read_text().splitlines()) == 4


def test_the_page_on_labels_runs_as_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[1] / "docs/labels.md").read_text(encoding="utf-8")
    rng = np.random.default_rng(1)
    lines = ["customer,text,label"]
    for i in range(160):
        text = " ".join(f"w{n}" for n in rng.integers(8, 90, 5))
        label = "complaint" if i % 10 == 0 else "fine"
        lines.append(f"C{i // 2},{'w7 w7 ' if label == 'complaint' else ''}{text},{label}")
    Path("tickets.csv").write_text("\n".join(lines) + "\n")
    commands = [line[2:] for block in blocks("console", page) for line in block.splitlines()]
    assert len(commands) == 7
    for command in commands:
        words = shlex.split(command)[1:]
        cheap = ["--model", str(tmp_path / "MODEL"), "--max-length", "16", "--threads", "1"]
        status = cli.main([*words, *(cheap if words[0] == "finetune" else [])])
        assert status == 0, f"{command}\n{capsys.readouterr().err}"
    shown = capsys.readouterr().out
    assert "160 examples in 5 folds" in shown
    assert "standard deviation of f1_macro between the means of 2 divisions into folds" in shown
    assert "search over 2 settings" in shown
    (code,) = blocks("python", page)
    exec(compile(code.replace("mini-en", "MODEL"), "docs/labels.md", "exec"), {})
