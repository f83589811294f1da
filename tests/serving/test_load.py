"""scripts/load_serve.py in small: many clients at once, more than the queue takes, clients that
trickle or tokenize, SIGTERM, a worker that is killed."""

from __future__ import annotations

import asyncio
import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest

from serving_examples import make_folders

SEED = 1


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
        return importlib.import_module("load_serve")


def test_mixed_requests_overload_and_trickling_clients(script: ModuleType, tmp_path: Path) -> None:
    folders = make_folders(tmp_path).values()
    options = ("--set", "limits_tokens=20000", "--set", "limits_receipt=1")
    with script.serving(folders, "onnxruntime", "fp32", SEED, *options) as trial:
        asked = trial.requests(150)
        compared = asyncio.run(script.compare(trial, asked, 8))
        assert compared.found == {"equal": 150}
        assert abs(asyncio.run(script.alone(trial, 30))) < script.TIMEOUT
        over = asyncio.run(script.overload(trial, 48, 0.7))
        assert set(over.found) <= {200, 429}
        assert over.found[200]
        assert over.latest < 30
        for others in (script.trickling(60), script.tokenizing):
            assert asyncio.run(script.beside(trial, asked, 8, others, rounds=1)) < 100
        assert asyncio.run(script.ended(trial, 8)) < 31


@pytest.mark.slow
def test_mixed_requests_in_bf16(script: ModuleType, tmp_path: Path) -> None:
    with script.serving(make_folders(tmp_path).values(), "torch", "bf16", SEED) as trial:
        compared = asyncio.run(script.compare(trial, trial.requests(100), 8))
    assert compared.found == {"equal": 100}


def test_answers_are_compared(script: ModuleType) -> None:
    rows = [{"label": "a", "score": 0.5004}, {"label": "b", "score": 0.5}]
    assert script.same(rows, rows, 0)
    assert not script.same(rows, rows[::-1], 0)
    assert script.same(rows, [{"label": "b", "score": 0.5006}, rows[0]], 1e-3)
    assert not script.same(rows, [rows[0], {"label": "b", "score": 0.6}], 1e-3)
    assert not script.same(rows, rows[:1], 1e-3)
    assert not script.same([0.5], [0.5 + 1e-9], 0)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="of Linux")
def test_a_killed_worker(script: ModuleType, tmp_path: Path) -> None:
    folders = make_folders(tmp_path, "classes", "vectors").values()
    with script.serving(folders, "onnxruntime", "fp32", SEED, "--workers", "2") as trial:
        dead = asyncio.run(script.killed(trial, 16, 2.0))
    assert dead.replaced < 20
    assert dead.different == 0
    assert dead.after
