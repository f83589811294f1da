"""Long work shows how far it is, on stderr alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bothways import console
from bothways.console import progress_of
from bothways.model.bert import Bert
from bothways.model.folder import save_model
from bothways.prediction.ensemble import load_ensemble
from bothways.prediction.predict import outputs_of
from bothways.tasks.examples import encode_examples
from bothways.tasks.kinds import task_of
from model_examples import small_config, small_tokenizer


def test_a_line_a_minute_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now))
    with progress_of("predicting") as show:
        for done in range(100, 2001, 100):  # of 10 seconds each
            now += 10
            show(done, 2000)
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.splitlines() == [
        "predicting: 600 of 2,000, 2 minutes left",
        "predicting: 1,200 of 2,000, 1 minutes left",
        "predicting: 1,800 of 2,000, 0 minutes left",
    ]


def test_short_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_of("predicting") as show:
        show(1, 2)
        show(2, 2)
    assert capsys.readouterr() == ("", "")


def test_an_ensemble_counts_the_sequences_of_all_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bothways.prediction.predict.PREDICT_TOKENS", 16)
    about = {"kind": "classification", "labels": ["a", "b"], "pair": False, "length": 8}
    for seed in (0, 1):
        model = Bert(small_config(), classes=2, seed=seed)
        save_model(tmp_path / str(seed), model, small_tokenizer(97), about)
    loaded = load_ensemble([tmp_path / "0", tmp_path / "1"])
    counts: list[tuple[int, int]] = []
    outputs_of(
        loaded,
        task_of(loaded),
        encode_examples(loaded.tokenizer, ["w1 w2 w3"] * 6, None, length=8),
        dtype=torch.float32,
        progress=lambda done, total: counts.append((done, total)),
    )
    assert {total for _, total in counts} == {12}
    done = [done for done, _ in counts]
    assert done == sorted(set(done))
    assert len(done) > 2
    assert done[-1] == 12
