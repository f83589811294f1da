"""Several processes do what one does, sharded or not; they stop, fail and go on together.

The runs are those of ``ranks_jobs.py``, made once for all tests here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bothways import cli
from bothways.errors import ConfigError
from bothways.model.engine import load_network
from bothways.runtime.stored import WEIGHTS
from bothways.training import ranks
from bothways.training.monitor import METRICS, read_metrics
from bothways.training.ranks import Ranks, process_group
from bothways.training.runfolder import read_run

STOP = 4


Outcomes = Mapping[str, list[dict[str, Any]]]


ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "CUDA_VISIBLE_DEVICES": "",  # two processes would want a card each
}


DIED = "another process of the run has died"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def jobs(folder: Path, tiny_corpus: Path) -> Outcomes:
    """What each process of each job came to."""
    script = Path(__file__).with_name("ranks_jobs.py")
    command = [sys.executable, str(script), str(folder), str(tiny_corpus)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    found: Outcomes = json.loads((folder / "jobs.json").read_text())
    return found


def weights(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(run / "model" / WEIGHTS)
    return found


def records(run: Path) -> list[dict[str, float]]:
    speed = ("tokens_per_second", "loader_wait")
    found = read_metrics(run / METRICS)
    return [{k: v for k, v in r.items() if k not in speed} for r in found]


def steps_of(jobs: Outcomes, *names: str) -> dict[tuple[int, int], str]:
    """The content of each micro-batch that these jobs trained on, by step and number."""
    found = {}
    for name in names:
        for outcome in jobs[name]:
            for line in outcome["notes"].splitlines():
                step, number, content = json.loads(line)
                assert (step, number) not in found, "trained on twice"
                found[step, number] = content
    return found


def test_gradients_are_those_of_one_process(jobs: Outcomes) -> None:
    for outcome in jobs["gradients"]:
        assert outcome["status"] == 0, outcome["err"]
        found = json.loads(outcome["notes"])
        assert set(found) == {"ddp", "fsdp"}
        # Of the norm of each parameter's gradient; fp32 has 6e-8.
        assert all(difference < 1e-6 for difference in found.values())


RUNS = {
    "ddp": ["ddp"],
    "fsdp": ["fsdp"],
    "2-1": ["begun on 2", "ended on 1"],
    "fsdp-ddp": ["begun sharded", "ended whole"],
    "1-fsdp": ["begun on 1", "ended sharded"],
}


@pytest.mark.parametrize("run", list(RUNS))
def test_a_run_is_that_of_one_process(jobs: Outcomes, folder: Path, run: str) -> None:
    assert [outcome["status"] for outcome in jobs[RUNS[run][-1]]] in ([0], [0, 0])
    assert steps_of(jobs, *RUNS[run]) == steps_of(jobs, "one"), "the same text, the same masks"
    one, other = weights(folder / "one"), weights(folder / run)
    for name, value in one.items():
        # Adam's updates have the size of the rate, 5e-3, whatever the gradient's.
        assert (value - other[name]).abs().max() < 5e-6, name
    expected, found = records(folder / "one"), records(folder / run)
    assert [r["step"] for r in found] == [r["step"] for r in expected]
    for theirs, ours in zip(expected, found, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_large_models_are_sharded_in_bf16_and_recompute(jobs: Outcomes, folder: Path) -> None:
    """The masters are fp32; what is computed in bf16 may round another way where a sum did."""
    for name in ("half", "half sharded"):
        assert {outcome["status"] for outcome in jobs[name]} == {0}
    assert steps_of(jobs, "half sharded") == steps_of(jobs, "half")
    one, other = weights(folder / "half"), weights(folder / "half-fsdp")
    for name, value in one.items():
        assert value.dtype == other[name].dtype == torch.float32
        assert (value - other[name]).abs().max() < 5e-3, name
    losses = [
        [r["mlm_loss"] for r in records(folder / run) if "mlm_loss" in r]
        for run in ("half", "half-fsdp")
    ]
    assert losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


def test_the_trust_ratio_of_lamb_is_that_of_whole_matrices(jobs: Outcomes, folder: Path) -> None:
    for name in ("lamb", "lamb sharded"):
        assert {outcome["status"] for outcome in jobs[name]} == {0}
    one, other = weights(folder / "lamb"), weights(folder / "lamb-fsdp")
    for name, value in one.items():
        assert (value - other[name]).abs().max() < 2e-5, name


@pytest.mark.parametrize("run", list(RUNS))
@pytest.mark.usefixtures("jobs")
def test_held_rows_stayed(folder: Path, run: str) -> None:
    """Queries and keys for words are multiples of the identity before and after; values are not."""
    layer = load_network(folder / run / "model").encoder.layers[0]
    q, k, v = layer.attention.qkv.weight[:, 8:].unflatten(0, (3, 16))[:, 8:].detach()
    assert torch.equal(q, k)
    assert torch.equal(q, q[0, 0] * torch.eye(8))
    assert (v != 0).all()


@pytest.mark.parametrize("run", list(RUNS))
@pytest.mark.usefixtures("jobs")
def test_snapshots_are_whole(folder: Path, run: str) -> None:
    kept = sorted((folder / run / "snapshots").iterdir())
    assert [path.name for path in kept] == ["2", "6"]
    for path in kept:
        one = load_network(folder / "one/snapshots" / path.name).state_dict()
        for name, value in load_network(path).state_dict().items():
            assert (value - one[name]).abs().max() < 5e-6, name


def test_buckets_hold_every_gradient_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_BUCKET_BYTES", 40)
    gradients = [torch.full((n,), float(n)) for n in (3, 20, 1, 4, 9)]
    buckets = list(ranks._buckets(gradients))
    assert [[len(g) for g in bucket] for bucket in buckets] == [[3], [20], [1, 4], [9]]
    assert [id(g) for bucket in buckets for g in bucket] == [*map(id, gradients)]


def test_initial_weights_are_the_first_processs(jobs: Outcomes, folder: Path) -> None:
    assert [o["status"] for o in jobs["other weights"]] == [0, 0]
    expected, found = weights(folder / "ddp"), weights(folder / "other-weights")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_the_first_process_speaks_and_writes(jobs: Outcomes, folder: Path) -> None:
    for run in ("ddp", "fsdp"):
        first, second = jobs[run]
        assert f"1 thread in each of 2 processes ({run})" in first["out"]
        assert second["out"] == second["err"] == ""
        assert first["err"].lstrip().startswith("next:"), "what comes next, and nothing else"
        resolved = read_run(folder / run)["resolved"]
        assert (resolved["processes"], resolved["parallel"]) == (2, run)
    assert "parallel" not in read_run(folder / "one")["resolved"]
    assert len(list((folder / "ddp" / "tensorboard").iterdir())) == 1


def test_minutes_are_decided_for_all(jobs: Outcomes, folder: Path) -> None:
    assert "interrupted after step 1" in jobs["minutes"][0]["out"]
    assert [len(o["notes"].splitlines()) for o in jobs["minutes"]] == [2, 1]
    assert read_run(folder / "minutes")["resolved"]["steps"] > 1


def test_a_signal_to_one_stops_all(jobs: Outcomes) -> None:
    for name in ("begun on 2", "begun sharded"):
        outcomes = jobs[name]
        assert sorted(o["status"] for o in outcomes) == [1, 130]
        assert f"interrupted after step {STOP}; the state is saved" in outcomes[0]["out"]
        said = "".join(o["err"] for o in outcomes)
        assert (
            said
            == "interrupted; what was saved, if anything, is kept: run the same command again\n"
        )
        assert len(steps_of(jobs, name)) == 3 * STOP


@pytest.mark.parametrize(
    ("run", "job", "change"),
    [
        ("2-1", "ended on 1", "processes: 2 -> 1"),
        ("fsdp-ddp", "ended whole", "parallel: fsdp -> ddp"),
        ("1-fsdp", "ended sharded", "processes: 1 -> 2"),
    ],
)
def test_another_form_is_said_and_recorded(
    jobs: Outcomes, folder: Path, run: str, job: str, change: str
) -> None:
    assert f"continuing after step {STOP}" in jobs[job][0]["out"]
    assert f"bits may differ from step {STOP + 1}: {change}" in jobs[job][0]["out"]
    assert read_run(folder / run)["changes"] == [{"from_step": STOP + 1, "changes": [change]}]


def test_a_killed_process_is_missed_and_the_run_goes_on(jobs: Outcomes, folder: Path) -> None:
    first, second = jobs["killed"]
    assert (first["status"], second["status"]) == (1, -signal.SIGKILL)
    assert DIED in first["err"]
    assert "torchrun --max_restarts" in first["err"]
    assert [o["status"] for o in jobs["continued"]] == [0, 0]
    assert "bits may differ" not in jobs["continued"][0]["out"]
    unbroken, found = (folder / run / "model" / WEIGHTS for run in ("ddp", "killed"))
    assert found.read_bytes() == unbroken.read_bytes()
    assert records(folder / "killed") == records(folder / "ddp")


@pytest.mark.parametrize(
    ("job", "status", "said"),
    [
        ("broken", 1, "the disk of this process is full; empty it."),
        ("other options", 1, "seed: 0 on rank 0, 1 on rank 1"),
        ("too many", 1, "makes 2, fewer than the 3 processes; start at most 2"),
    ],
)
def test_an_error_is_shown_once(jobs: Outcomes, job: str, status: int, said: str) -> None:
    outcomes = jobs[job]
    spoken = [o for o in outcomes if o["err"]]
    assert len(spoken) == 1
    assert said in spoken[0]["err"]
    assert "Traceback" not in spoken[0]["err"]
    assert spoken[0]["status"] == status
    assert all(o["status"] == 1 for o in outcomes if o is not spoken[0])


def test_no_process_trains_if_nothing_could_be_saved(jobs: Outcomes, folder: Path) -> None:
    assert [outcome["notes"] for outcome in jobs["unsaved"]] == ["", ""]
    assert not (folder / "unsaved" / "checkpoints").exists()


def test_processes_that_cannot_meet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["pretrain"]) == 1
    assert "torchrun --nproc_per_node N" in capsys.readouterr().err
    assert cli.main(["--version"]) == 0, "waits for nobody"
    assert cli.main(["info", "x", "--check"]) == 2
    assert "info runs in one process" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "started by torchrun")
    assert cli.main(["info", "x", "--check"]) == 1
    assert capsys.readouterr() == ("", "")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match="WORLD_SIZE is not a number"), process_group():
        pass


def test_micro_batch_slices_cover_the_step() -> None:
    parts = list(range(7))
    shares = [parts[Ranks(rank, 3).micro_batch_slice] for rank in range(3)]
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]


def torchrun(folder: Path, run: str, corpus: Path, *options: str) -> list[str]:
    recipe = str(folder / "long.yaml")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", *options]
    verb = ["-m", "--", "bothways", "pretrain", recipe, "--corpus", str(corpus)]
    return [*launch, *verb, "--run", str(folder / run)]


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())


@pytest.mark.slow
@pytest.mark.usefixtures("jobs")
def test_torchrun_starts_all_again_after_a_kill(folder: Path, tiny_corpus: Path) -> None:
    text = (folder / "recipe.yaml").read_text()
    (folder / "long.yaml").write_text(text.replace("steps: 8", "steps: 60"))
    unbroken = torchrun(folder, "unbroken", tiny_corpus)
    subprocess.run(unbroken, check=True, capture_output=True, env=ENVIRONMENT)
    command = torchrun(folder, "killed-twice", tiny_corpus, "--max_restarts", "3")
    run, log = folder / "killed-twice", folder / "torchrun.log"
    with log.open("w") as file:
        command += ["--checkpoint-minutes", "0.005"]
        process = subprocess.Popen(command, stdout=file, stderr=file, env=ENVIRONMENT)
    for rank, step in ((1, 0), (0, 20)):
        while not any(int(p.name[5:]) > step for p in (run / "checkpoints").glob("step-*")):
            assert process.poll() is None, log.read_text()
            time.sleep(0.01)
        os.kill(children(process.pid)[rank], signal.SIGKILL)
    assert process.wait() == 0, log.read_text()
    assert log.read_text().count("continuing after step") == 2
    assert log.read_text().count(DIED) <= 2, "once a kill, unless torchrun was faster"
    for name in (f"model/{WEIGHTS}", "checkpoints/step-60/training.safetensors"):
        assert (run / name).read_bytes() == (folder / "unbroken" / name).read_bytes()
    assert records(run) == records(folder / "unbroken")
