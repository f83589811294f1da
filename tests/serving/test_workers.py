"""The server as a process: it ends as it should, and workers are replaced."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+?:\d+", line)
        assert found, (line, process.communicate(timeout=10))
        yield found.group(), process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


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
import threading
from bothways.cli import main
from bothways.tokenization.tokenizer import Tokenizer
encode = Tokenizer.encode
Tokenizer.encode = lambda s, text: threading.Event().wait() if "w9" in text else encode(s, text)
main(["serve", {folder!r}, "--port", "0", "--engine", "onnxruntime", "--limits.deadline", "1"])
"""


def test_what_outlives_its_deadline_does_not_hold_the_end(tmp_path: Path) -> None:
    program = STUCK.format(folder=make_folders(tmp_path, "classes")["classes"])
    with started([sys.executable, "-c", program]) as (url, process):
        for _ in range(2):
            assert httpx.post(f"{url}/tokenize", json={"inputs": "w9"}).status_code == 504
        with ThreadPoolExecutor(1) as pool:
            accepted = pool.submit(httpx.post, f"{url}/tokenize", json={"inputs": "w9"})
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            assert accepted.result().status_code == 504
        assert process.wait(timeout=25) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="of Linux")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_full_disk_under_stdout(workers: str, tmp_path: Path) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    command = [sys.executable, "-m", "bothways", "serve", folder, "--port", "0"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*command, "--engine", "onnxruntime", "--workers", workers, "--spare", "false"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(Path(bothways.__file__).parents[1])},
        )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("bothways: error: standard output: No space left")


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bothways", "serve", str(tmp_path), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(bothways.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 1
    assert "config.json does not exist" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("damage", "said"),
    [("cut off", "is damaged or truncated"), ("other weights", "does not match its checksum")],
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
def test_a_killed_worker_is_replaced_and_its_requests_are_counted(tmp_path: Path) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    expected = sorted(offline(folder).predict([GOOD["inputs"]]).values[0].tolist())
    with serving(folder, "--workers", "2") as (url, process):
        wait_for(f"{url}/ready")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

        def workers() -> list[int]:
            found = []
            for pid in map(int, children.read_text().split()):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"spawn_main" in command:
                    found.append(pid)
            return found

        def has(pid: int) -> bool:
            return str(pid) in children.read_text().split()

        until = time.monotonic() + 20
        while len(workers()) < 3 and time.monotonic() < until:  # with the spare one
            time.sleep(0.05)
        time.sleep(3)
        failures = 0
        with ThreadPoolExecutor(8) as pool:
            ending = gone = False

            def ask() -> tuple[int, int, int]:
                good = bad = late = 0
                while not ending:
                    after = gone
                    try:
                        answer = httpx.post(url, json=GOOD, timeout=20, verify=False)
                        assert answer.status_code == 200
                        scores = [one["score"] for one in answer.json()[0]]
                        assert sorted(scores) == expected
                        good += 1
                    except httpx.TransportError:
                        bad += 1
                        late += after
                return good, bad, late

            asking = [pool.submit(ask) for _ in range(8)]
            try:
                time.sleep(0.5)
                victim = workers()[0]
                os.kill(victim, signal.SIGKILL)
                until = time.monotonic() + 10
                # Its sockets are closed when its parent no longer has it, not yet when it has no
                # memory; until then clients connect to it.
                while has(victim) or len(workers()) < 2:
                    assert time.monotonic() < until
                    time.sleep(0.02)
                gone = True
                time.sleep(3)
            finally:
                ending = True
            found = [one.result() for one in asking]
        good, failures, late = (sum(column) for column in zip(*found, strict=True))
        assert good > 5
        assert failures < good
        assert not late, "of the requests that began when the worker had gone"
        metrics = httpx.get(f"{url}/metrics").text
        assert "bothways_replaced_workers_total 1.0" in metrics
        until = time.monotonic() + 20
        while len(workers()) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(workers()) == 3, "a spare one again"
        lost = re.search(r"(?m)^bothways_lost_requests_total (\S+)", metrics)
        assert lost
        assert float(lost.group(1)) <= failures
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="of Linux")
@pytest.mark.parametrize("spare", ["true", "false"])
def test_workers_that_end_one_after_another_are_replaced(spare: str, tmp_path: Path) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    with serving(folder, "--workers", "2", "--spare", spare) as (url, process):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for _ in range(3):
            wait_for(f"{url}/ready")
            first = next(
                pid
                for pid in children.read_text().split()
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
            )
            os.kill(int(first), signal.SIGKILL)
            time.sleep(0.5)
        wait_for(f"{url}/ready")
        assert httpx.post(url, json=GOOD, timeout=20, verify=False).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The process ids of the workers, in the order in which they were started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = []
    for pid in map(int, children):
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def replace(folder: str) -> None:
    """By a model of another head."""
    shutil.rmtree(folder)
    shutil.move(make_folders(Path(folder).parent, "several")["several"], folder)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="of Linux")
@pytest.mark.parametrize("change", [replace, shutil.rmtree])
def test_a_worker_does_not_serve_another_model_beside_the_first(
    change: Callable[[str], object], tmp_path: Path
) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    with serving(folder, "--workers", "2", "--spare", "false") as (url, process):
        wait_for(f"{url}/ready")
        expected = httpx.post(url, json=GOOD, timeout=20).json()
        change(folder)
        os.kill(workers_of(process)[0], signal.SIGKILL)
        until = time.monotonic() + 60
        answered = 0
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                assert httpx.post(url, json=GOOD, timeout=20).json() == expected
                answered += 1
        assert answered > 0
        assert process.wait(timeout=1) == 1
        assert process.stderr is not None
        said = process.stderr.read()
    assert "the files of the model classes have changed since the server began" in said
    assert said.count("Start the server again") == 1
    assert "the server ends: start it again" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="of Linux")
def test_a_spare_worker_has_the_first_model_and_no_other_comes_after_it(tmp_path: Path) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    with serving(folder, "--workers", "2") as (url, process):
        wait_for(f"{url}/ready")
        expected = httpx.post(url, json=GOOD, timeout=20).json()
        until = time.monotonic() + 60
        while len(workers_of(process)) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(3)  # the spare one has loaded
        replace(folder)
        os.kill(workers_of(process)[0], signal.SIGKILL)
        time.sleep(5)  # another spare one has looked at the folder
        assert process.poll() is None
        for _ in range(20):
            assert httpx.post(url, json=GOOD, timeout=20).json() == expected
        assert len(workers_of(process)) == 2
        os.kill(workers_of(process)[0], signal.SIGKILL)
        assert process.wait(timeout=60) == 1
        assert process.stderr is not None
        said = process.stderr.read()
    assert "the others answer as before, until one of them ends" in said
    assert "the server ends: start it again" in said


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="of Linux")
def test_a_worker_serves_the_same_model_that_was_written_again(tmp_path: Path) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    with serving(folder, "--workers", "2", "--spare", "false") as (url, process):
        wait_for(f"{url}/ready")
        shutil.rmtree(folder)
        make_folders(tmp_path, "classes")
        first = workers_of(process)[0]
        os.kill(first, signal.SIGKILL)
        until = time.monotonic() + 60
        while first in workers_of(process) or len(workers_of(process)) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(5)
        assert process.poll() is None
        assert httpx.post(url, json=GOOD, timeout=20).status_code == 200
        assert len(workers_of(process)) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


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
    )
    if "mallinfo2" in done.stderr:
        pytest.skip("an older glibc")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**22
