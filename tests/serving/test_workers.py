"""The server as a process: it ends as it should, and workers are replaced."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import onnx
import pytest

import bothways
from bothways import cli
from bothways.api.calls import export
from serving_examples import make_folders, offline

GOOD = {"inputs": "w1 w2 w3"}


@contextmanager
def serving(folder: str, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The server's address and process."""
    command = [sys.executable, "-m", "bothways", "serve", folder, "--port", "0", *options]
    with started([*command, "--engine", "onnxruntime"]) as found:
        yield found


@contextmanager
def started(command: list[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The same of another command."""
    environment = {**os.environ, "PYTHONPATH": str(Path(bothways.__file__).parents[1])}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        line = read_line(process)
        found = re.search(r"http://\S+?:\d+", line)
        assert found, (line, process.communicate(timeout=10))
        yield found.group(), process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def read_line(process: subprocess.Popen[str]) -> str:
    """The first line of its output, for which it has two minutes."""
    assert process.stdout is not None
    killer = threading.Timer(120, process.kill)
    killer.start()
    line = process.stdout.readline()
    killer.cancel()
    return line


def wait_for(url: str, status: int = 200) -> None:
    until = time.monotonic() + 120  # on a busy machine, loading takes long
    while time.monotonic() < until:
        try:
            if httpx.get(url, verify=False).status_code == status:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"{url} did not answer {status}")


def test_sigterm_says_not_ready_and_ends_with_its_answers_given(tmp_path: Path) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    with serving(folder) as (url, process):
        wait_for(f"{url}/ready")
        with httpx.Client(base_url=url) as client:
            assert client.post("/", json=GOOD).status_code == 200
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert client.get("/ready").status_code == 503
            assert client.get("/health").status_code == 200
            assert client.post("/", json=GOOD).status_code == 200
        assert process.wait(timeout=25) == 0, "before the deadline"
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("numbers", [["SIGTERM"], ["SIGHUP"], ["SIGINT", "SIGINT"]])
def test_signals_as_soon_as_it_serves(numbers: list[str], tmp_path: Path) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    with serving(folder) as (_, process):
        for name in numbers:
            process.send_signal(getattr(signal, name))
            time.sleep(0.2)
        assert process.wait(timeout=25) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


STUCK = """
import sys, threading
from bothways.cli import main
from bothways.tokenization.tokenizer import Tokenizer
encode = Tokenizer.encode
Tokenizer.encode = lambda s, text: threading.Event().wait() if "w9" in text else encode(s, text)
if __name__ == "__main__":
    words = ["serve", {folder!r}, "--port", "0", "--engine", "onnxruntime"]
    sys.exit(main([*words, "--set", "limits_deadline=1", "--workers", {workers!r}]))
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_outlives_its_deadline_does_not_hold_the_end(workers: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"  # worker processes read it, too
    folder = make_folders(tmp_path, "classes")["classes"]
    program.write_text(STUCK.format(folder=folder, workers=workers))
    with started([sys.executable, str(program)]) as (url, process):
        for _ in range(2):
            assert httpx.post(f"{url}/tokenize", json={"inputs": "w9"}).status_code == 504
        with ThreadPoolExecutor(1) as pool:
            accepted = pool.submit(httpx.post, f"{url}/tokenize", json={"inputs": "w9"})
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            assert accepted.result().status_code == 504
        assert process.wait(timeout=25) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_model_that_cannot_be_loaded(workers: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bothways", "serve", str(tmp_path), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(bothways.__file__).parents[1])}
    more = ["--workers", workers, "--engine", "onnxruntime", "--precision", "fp32"]
    done = subprocess.run(
        [*command, *more], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.count("config.json does not exist") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("cut off", "is missing, damaged or truncated"),
        ("other weights", "does not match its checksum"),
    ],
)
def test_a_graph_that_is_not_its_folders_is_named(
    damage: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    export(folder, tmp_path / "out")
    graph = tmp_path / "out/onnx/model.onnx"
    if damage == "cut off":
        graph.write_bytes(graph.read_bytes()[:-1000])
    else:
        model = onnx.load(graph)
        model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
        onnx.save(model, graph)
    assert cli.main(["serve", str(tmp_path / "out"), "--port", "0", "--precision", "fp32"]) == 1
    assert f"onnx/model.onnx {said}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="of Linux")
def test_killed_workers_are_replaced_and_the_others_answer(tmp_path: Path) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    expected = sorted(offline(folder).predict([GOOD["inputs"]]).values[0].tolist())
    with serving(folder, "--workers", "2") as (url, process):
        cores = [os.sched_getaffinity(pid) for pid in workers_of(process)]
        assert len(cores) == 2
        for count in (1.0, 2.0):
            victim = workers_of(process)[0]
            os.kill(victim, signal.SIGKILL)
            until, answered = time.monotonic() + 60, 0
            while victim in workers_of(process) or len(workers_of(process)) < 2 or answered < 20:
                assert time.monotonic() < until
                with contextlib.suppress(httpx.TransportError):  # those that the worker had
                    answer = httpx.post(url, json=GOOD, timeout=20, verify=False)
                    assert sorted(one["score"] for one in answer.json()[0]) == expected
                    answered += 1
            metrics = httpx.get(f"{url}/metrics", timeout=20).text
            assert f"bothways_replaced_workers_total {count}" in metrics
        wait_for(f"{url}/ready")
        again = [os.sched_getaffinity(pid) for pid in workers_of(process)]
        assert sorted(map(sorted, again)) == sorted(map(sorted, cores)), "each has its share again"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=40) == 0


@pytest.mark.slow
def test_a_worker_that_cannot_load_ends_the_server(tmp_path: Path) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    with serving(folder, "--workers", "2", "--precision", "fp32") as (_, process):
        shutil.rmtree(folder)
        os.kill(workers_of(process)[0], signal.SIGKILL)
        assert process.wait(timeout=60) == 1
        assert process.stderr is not None
        said = process.stderr.read()
    assert said.count("bothways: error: ") == 1
    assert "Traceback" not in said


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The process ids of the workers, in the order in which they were started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = []
    for pid in map(int, children):
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_products_of_many_shapes_do_not_stay_in_memory() -> None:
    """In bf16, in a process that is set up to serve."""
    script = """
import ctypes, torch
from bothways.model.inference import Product
from bothways.serving.server import _set_process_up

class Info(ctypes.Structure):
    _fields_ = [(f"field{n}", ctypes.c_size_t) for n in range(10)]

info = ctypes.CDLL(None).mallinfo2
info.restype = Info
_set_process_up()
product = Product(torch.ones(64, 64), torch.bfloat16)
with torch.inference_mode():
    for rows in range(1, 301):
        product(torch.ones(rows, 64, dtype=torch.bfloat16))
        if rows == 100:
            before = info().field7
print(info().field7 - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(bothways.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "mallinfo2" in done.stderr:
        pytest.skip("an older glibc")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**22
