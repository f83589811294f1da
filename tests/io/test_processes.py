"""Workers end when the process that started them ends, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bothways.io import processes
from bothways.io.processes import when_orphaned

PARENT = """\
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from bothways.io.processes import exit_with

def work(_):
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    with ProcessPoolExecutor(1, initializer=exit_with, initargs=(os.getpid(),)) as pool:
        list(pool.map(work, [0]))
"""


def test_workers_end_with_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        assert parent.stdout.read() == b"", "nobody holds the pipe any more"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the worker is still there")


def test_the_action_comes_when_the_parent_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([7, 7, 1])
    done = threading.Event()
    monkeypatch.setattr(processes.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(processes, "_LOOK_EVERY", 0.0)
    when_orphaned(7, done.set)
    assert done.wait(5)
    assert not list(parents)


def test_a_parent_that_ended_before_anyone_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun killed while its processes import torch: they would wait for its store for hours."""
    program = {"/proc/1/cmdline": b"/sbin/init\0splash\0"}
    monkeypatch.setattr(processes.Path, "read_bytes", lambda path: program[str(path)])
    monkeypatch.setattr(processes.os, "getppid", lambda: 7)
    assert processes.launcher() == 7
    monkeypatch.setattr(processes.os, "getppid", lambda: 1)
    assert processes.launcher() == 0
    done = threading.Event()
    when_orphaned(0, done.set)
    assert done.wait(5)
    program["/proc/1/cmdline"] = b"/usr/bin/python3\0/usr/local/bin/torchrun\0"
    assert processes.launcher() == 1, "torchrun is the first process of a container"


def test_signals_of_a_verb_are_as_ctrl_c_and_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), processes.interrupted_by_signals():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with processes.interrupted_by_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


BUSY = """\
import os, sys, time
from bothways import cli
from bothways.tokenization import build
def wait(*_, **__):
    print("busy", flush=True)
    time.sleep(60)
build.build_vocabulary = wait
sys.exit(cli.main(["vocab", "--files", sys.argv[1], "--size", "100", "--out", sys.argv[2]]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_every_verb_says_that_it_was_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A text.\n")
    words = [sys.executable, "-c", BUSY, str(tmp_path / "a.txt"), str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        process.send_signal(number)
        _, shown = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        shown == "interrupted; what was saved, if anything, is kept: run the same command again\n"
    )


IMPORTING = """\
import sys
from bothways import cli
from bothways.tokenization import build
def wait(*_, **__):
    import torch
build.build_vocabulary = wait
sys.exit(cli.main(["vocab", "--files", sys.argv[1], "--size", "100", "--out", sys.argv[2]]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_while_torch_is_imported(number: signal.Signals, tmp_path: Path) -> None:
    """Whose own import does not bear an exception."""
    (tmp_path / "a.txt").write_text("A text.\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        "import time\nprint('busy', flush=True)\n"
        "try:\n    time.sleep(60)\nexcept BaseException:\n    import os\n    os.abort()\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    words = [sys.executable, "-c", IMPORTING, str(tmp_path / "a.txt"), str(tmp_path / "out")]
    pipe, env = subprocess.PIPE, {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        process.send_signal(number)
        _, shown = process.communicate(timeout=60)
    assert (process.returncode, shown) == (130, f"{processes.INTERRUPTED}\n")


UNWINDING = """\
import sys, time
from bothways import cli
from bothways.tokenization import build
def wait(*_, **__):
    try:
        print("busy", flush=True)
        time.sleep(60)
    finally:
        print("cleaning", flush=True)
        time.sleep(60)
build.build_vocabulary = wait
sys.exit(cli.main(["vocab", "--files", sys.argv[1], "--size", "100", "--out", sys.argv[2]]))
"""


def test_a_second_ctrl_c_ends_at_once_and_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A text.\n")
    words = [sys.executable, "-c", UNWINDING, str(tmp_path / "a.txt"), str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        for line in ("busy\n", "cleaning\n"):
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    assert (process.returncode, shown) == (-signal.SIGINT, "")


CHILD = "import signal, time; print('up', flush=True); time.sleep(2); print('whole', flush=True)"


def test_children_never_see_ctrl_c() -> None:
    with processes.deaf_children():
        words = [sys.executable, "-c", CHILD]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[0] == "whole\n"
    assert child.returncode == 0
    with pytest.raises(KeyboardInterrupt), processes.deaf_children():
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_waits_for_the_end_of_an_import() -> None:
    done = []

    def load() -> None:
        with processes.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("whole")

    with pytest.raises(KeyboardInterrupt):
        load()
    assert done == ["whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
