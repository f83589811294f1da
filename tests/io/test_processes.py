"""Workers end when the process that started them ends, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

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
