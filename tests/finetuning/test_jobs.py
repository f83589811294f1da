"""Runs in several processes: the same results, and nothing lost when one is killed."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bothways.config.fields import to_dict
from bothways.errors import DiskError, InputError, RunError
from bothways.finetuning import finetune as jobs
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig, SearchOptions
from bothways.finetuning.setup import load_data, model_digest, training_digests
from bothways.runtime.folder import load_model
from finetuning_examples import start_model, word_config, word_files

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    folder = tmp_path_factory.mktemp("jobs")
    found = word_config(start_model(folder), word_files(folder), folder / "none")
    return dataclasses.replace(found, seeds=SEEDS, threads=1)


def at(config: FinetuneConfig, run: Path, **changes: Any) -> FinetuneConfig:
    return dataclasses.replace(config, run=str(run), **changes)


def weights(run: Path) -> dict[str, np.ndarray]:
    return {
        f"{seed}.{name}": value
        for seed in SEEDS
        for name, value in load_file(run / f"seed-{seed}/model/model.safetensors").items()
    }


@pytest.mark.long
def test_processes_compute_what_one_computes(config: FinetuneConfig, tmp_path: Path) -> None:
    alone = finetune(at(config, tmp_path / "alone"))
    before = {process.pid for process in multiprocessing.active_children()}  # of other tests
    shared = finetune(at(config, tmp_path / "shared", jobs=2))
    assert shared.scores == alone.scores
    ours, theirs = weights(tmp_path / "shared"), weights(tmp_path / "alone")
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value)
    for file in ("dev_predictions.tsv", "test_predictions.tsv"):
        assert (tmp_path / "shared/seed-2" / file).read_bytes() == (
            tmp_path / "alone/seed-2" / file
        ).read_bytes()
    assert {process.pid for process in multiprocessing.active_children()} <= before


@pytest.mark.slow
def test_a_search_in_processes(config: FinetuneConfig, tmp_path: Path) -> None:
    search = SearchOptions(lr=(3e-3, 1e-4), epochs=(1, 2))
    asked = at(config, tmp_path / "run", seeds=(0,), search=search, jobs=2)
    result = finetune(asked)
    assert result.search is not None
    assert len(result.search.settings) == 4
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("metrics.json")}
    again = finetune(dataclasses.replace(asked, jobs=1))
    assert again.search is not None
    assert again.search.table() == result.search.table()
    assert times == {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("metrics.json")}


def test_errors_come_through(config: FinetuneConfig, tmp_path: Path) -> None:
    """A file that changed after it was read here is read by the processes themselves."""
    data = tmp_path / "data"
    data.mkdir()
    asked = at(word_config(Path(config.model), word_files(data), tmp_path / "run"), tmp_path / "r")
    code = (
        "import sys, json\n"
        "from bothways.config.fields import from_dict\n"
        "from bothways.finetuning.options import FinetuneConfig\n"
        "from bothways.finetuning import finetune as module\n"
        "from bothways.errors import InputError\n"
        "read = module.load_data\n"
        "def spoil(config, loaded):\n"
        "    data = read(config, loaded)\n"
        "    open(config.located().task.dev, 'a').write('one column only\\n')\n"
        "    return data\n"
        "if __name__ == '__main__':\n"
        "    module.load_data = spoil\n"
        "    config = from_dict(FinetuneConfig, json.loads(sys.argv[1]))\n"
        "    try:\n"
        "        module.finetune(config)\n"
        "    except InputError as error:\n"
        "        print('refused:', error)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    words = [sys.executable, str(script), json.dumps(to_dict(dataclasses.replace(asked, jobs=2)))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert "refused:" in done.stdout, done.stderr
    assert "dev.tsv" in done.stdout
    assert InputError.__name__ not in done.stderr


def test_a_worker_trains_from_what_the_run_was_opened_with(
    config: FinetuneConfig, tmp_path: Path
) -> None:
    task = dataclasses.replace(config.task, train=str(tmp_path / "train.tsv"))
    shutil.copy(config.task.train, task.train)
    config = dataclasses.replace(config, task=task)
    loaded = load_model(config.model)
    data = load_data(config, loaded)
    inputs = {**training_digests(config.task), "model": model_digest(loaded, weights=True)}
    run: Any = SimpleNamespace(folder=tmp_path / "run", inputs=inputs)
    jobs.refuse_changed(config, loaded, data, run)
    with Path(task.train).open("a") as file:
        file.write("w1\twith\n")
    with pytest.raises(RunError, match=r"run: train changed while this command ran"):
        jobs.refuse_changed(config, loaded, data, run)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_seed_that_fails_does_not_stop_the_others(
    config: FinetuneConfig, tmp_path: Path, processes: int
) -> None:
    """Something stands in the way of the second of three."""
    asked = at(config, tmp_path / "run", jobs=processes)
    finetune(dataclasses.replace(asked, seeds=(0,)))
    (tmp_path / "run/seed-1").mkdir()
    (tmp_path / "run/seed-1/checkpoints").write_text("in the way")
    with pytest.raises(DiskError, match="seed-1"):
        finetune(asked)
    assert (tmp_path / "run/seed-2/metrics.json").exists()
    (tmp_path / "run/seed-1/checkpoints").unlink()
    assert len(finetune(asked).seeds) == 3


RUN = """
import json, signal, sys
from bothways.config.fields import from_dict
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning import finetune as jobs
from bothways.finetuning.setup import training_digests
from bothways.finetuning.finetune import finetune
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    finetune(from_dict(FinetuneConfig, json.loads(sys.argv[1])))
"""


def start(asked: FinetuneConfig, folder: Path) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(RUN)
    words = [sys.executable, str(script), json.dumps(to_dict(asked))]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def children(process: subprocess.Popen[str]) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def wait_for(run: Path, process: subprocess.Popen[str]) -> None:
    """Until one run is under way."""
    until = time.monotonic() + 90
    while not list(run.rglob("seed-*")):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("who", ["worker", "parent", "interrupted"])
def test_a_killed_process(config: FinetuneConfig, tmp_path: Path, who: str) -> None:
    asked = at(config, tmp_path / "run", jobs=2, epochs=200)
    process = start(asked, tmp_path)
    wait_for(tmp_path / "run", process)
    workers = children(process)
    if who == "worker":
        trainers = [
            pid for pid in workers if b"popen_loky" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(trainers[0], signal.SIGKILL)
    elif who == "parent":
        process.kill()
    else:
        process.send_signal(signal.SIGINT)  # to it alone, as a supervisor does
    _, told = process.communicate(timeout=60)
    assert process.returncode != 0
    if who == "worker":
        assert RunError.__name__ in told
        assert "fewer --jobs" in told
    until = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < until, "processes are left over"
        time.sleep(0.05)
