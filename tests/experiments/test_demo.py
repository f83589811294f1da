"""The demonstration from end to end, on documents made up here."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bothways.api.model import load
from bothways.errors import RunError
from bothways.experiments import demo as demo_run
from bothways.experiments.demo import Gain
from bothways.experiments.documentation import PACKAGES, Document
from bothways.experiments.options import DemoConfig
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
        return SimpleNamespace(
            scores={"accuracy": [scores[start]]}, baseline={"accuracy": 0.2}, dev_examples=800
        )

    monkeypatch.setattr(demo_run, "finetune", tune)
    run: Any = SimpleNamespace(model=tmp_path / "m", run=tmp_path / "r")
    gain = demo_run._compare(DemoConfig(), run, "package")
    assert (gain.pretrained, gain.random, gain.shipped) == ((0.9,), (0.5,), (0.7,))
    assert gain.baseline == 0.2
    monkeypatch.setattr(demo_run, "_fillings", lambda *_: [])
    (row,) = [r for r in demo_run._report(DemoConfig(), run, [gain]).splitlines() if "package" in r]
    assert row.split()[-5:] == ["0.900", "0.500", "+0.400", "0.700", "0.200"]


@pytest.mark.parametrize(
    ("pretrained", "random", "clear"),
    [
        ((0.649, 0.644, 0.654), (0.513, 0.510, 0.516), True),
        ((0.540, 0.545, 0.535), (0.513, 0.510, 0.516), False),  # within what 800 examples tell
        ((0.66, 0.51, 0.60), (0.51, 0.60, 0.42), False),  # within what the seeds do
        ((0.51,), (0.52,), False),
        ((0.65,), (0.51,), True),
    ],
)
def test_a_gain_that_is_not_clear_is_named_on_its_line(
    pretrained: tuple[float, ...],
    random: tuple[float, ...],
    clear: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo_run, "_fillings", lambda *_: [])
    run: Any = SimpleNamespace(model=tmp_path / "m", run=tmp_path / "r")
    gain = Gain("follows", pretrained, random, (0.8,), 0.5, 800)
    text = demo_run._report(DemoConfig(minutes=2), run, [gain])
    (row,) = [row for row in text.splitlines() if "does B follow A?" in row]
    assert row.endswith("no clear gain: 2 minutes on this machine were too few") == (not clear)
    assert ("too few" in text) == (not clear)


@pytest.mark.parametrize(
    ("minutes", "epochs"), [(60.0, 6), (7.0, 6), (3.5, 3), (3.0, 3), (2.0, 2), (0.1, 2)]
)
def test_fine_tuning_is_short_where_minutes_are_few(
    minutes: float, epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_run, "finetune", lambda config: config.epochs)
    run: Any = SimpleNamespace(model=tmp_path / "m", run=tmp_path / "r")
    found: Any = demo_run._finetune(DemoConfig(minutes=minutes), run, "follows", "random")
    assert found == epochs


@pytest.mark.slow
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

    page = (tmp_path / "out/report.html").read_text()
    links = re.findall(r'href="([^"]+)"', page)
    assert len(links) == 6
    assert all((tmp_path / "out" / link).is_file() for link in links)
    for gain in gains:
        assert f"{gain['gain']:+.3f}" in page
    assert "data:image/png;base64," in page
    assert json.loads((folder.parent / "run.json").read_text())["started"] in page

    with pytest.raises(RunError, match=r"made with --minutes 0\.01 --seed 0"):
        demo_run.demo(replace(config, seed=1))
    capsys.readouterr()
    again = demo_run.demo(config)
    assert (tmp_path / "out/report.html").read_text() == page
    assert "kept" in capsys.readouterr().out
    without_time = [line for line in again.splitlines() if "minutes in total" not in line]
    assert without_time == [line for line in report.splitlines() if "minutes in total" not in line]
