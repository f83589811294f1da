"""The demonstration from end to end, on documents made up here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bothways.api.model import load
from bothways.errors import RunError
from bothways.experiments.demo import run as demo_run
from bothways.experiments.demo.harvest import Document
from bothways.experiments.demo.labelled import PACKAGES
from bothways.experiments.demo.options import DemoConfig
from bothways.finetuning.options import FinetuneConfig
from bothways.randomness import Purpose, below
from bothways.shipped import DEFAULT

WORDS = (
    "the value of this option is read once and kept for later calls when no other name was given "
    "then an empty list returns after each step so that files stay open until they are closed by "
    "whoever made them first unless errors happen while reading lines from some larger table"
).split()


def made_up_documents() -> list[Document]:
    documents = []
    for number in range(420):
        package = PACKAGES[number % len(PACKAGES)]
        picks = below(len(WORDS), 0, Purpose.DEMO, number, range(6 * 12)).reshape(6, 12)
        sentences = [" ".join(WORDS[i] for i in row).capitalize() + "." for row in picks]
        module = f"{package}.part{number}"
        documents.append(Document(package, module, f"{module}.call{number}", (tuple(sentences),)))
    return documents


def test_which_scores_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {"pretrained": 0.9, "random": 0.5, "shipped": 0.7}

    def tune(config: FinetuneConfig) -> Any:
        start = "random" if config.from_scratch else "pretrained"
        if config.model == DEFAULT:
            assert not config.from_scratch
            start = "shipped"
        return SimpleNamespace(scores={"accuracy": [scores[start]]}, baseline={"accuracy": 0.2})

    monkeypatch.setattr(demo_run, "finetune", tune)
    run: Any = SimpleNamespace(model=tmp_path / "m", run=tmp_path / "r")
    gain = demo_run._compare(DemoConfig(), tmp_path, run, "package")
    assert (gain.pretrained, gain.random, gain.shipped) == ((0.9,), (0.5,), (0.7,))
    assert gain.baseline == 0.2
    monkeypatch.setattr(demo_run, "_fillings", lambda *_: [])
    (row,) = [r for r in demo_run._report(tmp_path, run, [gain]).splitlines() if "package" in r]
    assert row.split()[-5:] == ["0.900", "0.500", "+0.400", "0.700", "0.200"]


def test_the_demonstration_runs_reports_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_run, "harvest", lambda workers: made_up_documents())  # noqa: ARG005
    monkeypatch.setattr(demo_run, "VOCABULARY", 200)
    monkeypatch.setattr(demo_run, "_MIN_MINUTES", 0.1)  # some steps on any machine
    config = DemoConfig(out=str(tmp_path / "out"), minutes=0.01, seeds=2)

    report = demo_run.demo(config)
    gains = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [gain["task"] for gain in gains] == ["follows", "package"]
    for gain in gains:
        assert len(gain["pretrained"]) == len(gain["random"]) == len(gain["shipped"]) == 2
        difference = sum(gain["pretrained"]) / 2 - sum(gain["random"]) / 2
        assert gain["gain"] == pytest.approx(difference)
        assert f"{gain['gain']:+.3f}" in report
    (folder,) = (tmp_path / "out").glob("pretrain-*min/model")
    assert str(folder) in report
    assert load(folder).fill_mask("the value of [MASK] option")
    assert (folder.parent / "curves.png").read_bytes().startswith(b"\x89PNG")

    with pytest.raises(RunError, match=r"made with --minutes 0\.01 --seed 0"):
        demo_run.demo(replace(config, seed=1))
    capsys.readouterr()
    again = demo_run.demo(config)
    assert "kept" in capsys.readouterr().out
    without_time = [line for line in again.splitlines() if "minutes in total" not in line]
    assert without_time == [line for line in report.splitlines() if "minutes in total" not in line]
