"""Weights do not depend on what the process did before, nor on who compiled its loops."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bothways.io.files import sha256
from bothways.runtime.stored import WEIGHTS
from finetuning_examples import start_model, word_files

JOBS = Path(__file__).with_name("history_jobs.py")
RUNS = ("pretrained", "finetuned/seed-0")
OTHER_WORK = "predict,train_others"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Path) -> Path:
    """What all processes read, and their caches of loops."""
    folder = tmp_path_factory.mktemp("history")
    start_model(folder)
    word_files(folder)
    shutil.copytree(tiny_corpus, folder / "corpus")
    return folder


def weights(folder: Path, precision: str, cache: str, history: str = "") -> list[str]:
    """Train in a process of its own; digests of the weights."""
    out = folder / f"{precision} {cache} {history}"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
        "NUMBA_CACHE_DIR": str(folder / f"{precision} {cache}"),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    command = [sys.executable, JOBS, folder, out, precision, history]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [sha256(out / run / "model" / WEIGHTS) for run in RUNS]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_histories(folder: Path, precision: str) -> None:
    first = weights(folder, precision, "full")
    for cache, history in (
        ("full", "compile_backwards"),
        ("full", OTHER_WORK),
        ("begun by other work", OTHER_WORK),
        ("begun backwards", f"compile_backwards,{OTHER_WORK}"),
        ("begun backwards", ""),
        ("none", "without_cache"),
        ("none", f"without_cache,compile_backwards,{OTHER_WORK}"),
    ):
        assert weights(folder, precision, cache, history) == first, (cache, history)


@pytest.mark.slow
def test_another_precision_before(folder: Path) -> None:
    """Loops then have several compiled forms, made in another order."""
    for precision, other in (("fp32", "bf16"), ("bf16", "fp32")):
        first = weights(folder, precision, "own")
        assert weights(folder, precision, "other first", f"train_in_{other}") == first
