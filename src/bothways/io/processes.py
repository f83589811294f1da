"""Processes: the cores that one may use, and that none outlives the one that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

from bothways.errors import NOT_INTERRUPTED

INTERRUPTED = "interrupted; what was saved, if anything, is kept: run the same command again"
_LOOK_EVERY = 1.0  # seconds


def usable_cores() -> int:
    """The cores that this process may use; all of the machine's where the system cannot tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """End what runs in the block as Ctrl-C does when the process is asked to end, or its terminal
    closes: work that is under way is put away, and the same command goes on from it.

    Once interrupted, a second Ctrl-C ends the process at once: what libraries clean up would be
    interrupted in turn, with a traceback of each.

    Signals that are ignored (``nohup``) or handled already stay so, and those of other threads.
    """
    wanted = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP", "SIGINT")]
    if threading.current_thread() is not threading.main_thread():
        wanted = []
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in wanted if number}
    ours = {number: handler for number, handler in before.items() if handler in usual}
    for number in ours:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    specs = [getattr(sys.modules.get(name), "__spec__", None) for name in NOT_INTERRUPTED]
    if any(getattr(spec, "_initializing", False) for spec in specs):
        with contextlib.suppress(OSError):
            os.write(2, f"{INTERRUPTED}\n".encode())
        os._exit(130)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
    """Processes that are started in the block never see Ctrl-C, which a terminal sends to all: what
    they were doing, such as importing, would be a traceback of each. The one that started them sees
    it after the block, and ends them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # Started with the first child, where it lets the signal through again (Python before 3.12).
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep Ctrl-C until the block is over, such as the import of a large library: of one that was
    imported by half, a notebook's process can make no use any more."""
    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if here else None
    if not callable(before):  # ignored, or not set from Python
        yield
        return
    kept: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: kept.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if kept:
            before(*kept[0])


def usual_threads() -> int:
    """The threads of a computation if nobody says how many: one per core that this process may use,
    at most OMP_NUM_THREADS, which ``torchrun`` sets itself and is ignored under it."""
    limit, cores = os.environ.get("OMP_NUM_THREADS", ""), usable_cores()
    if limit.isdecimal() and int(limit) and "LOCAL_WORLD_SIZE" not in os.environ:
        return min(cores, int(limit))
    return cores


def exit_with(parent: int) -> None:
    """End this worker process soon after its parent has ended; the first thing that workers call.

    Args:
        parent: the parent's process id.
    """
    when_orphaned(parent, lambda: os._exit(1))


def launcher() -> int:
    """The process that started this one, or 0 if it has ended before this was called.

    Of the process that adopts orphans only process 1 is recognised, and only on Linux: it is no
    launcher of Python code unless it runs Python itself.
    """
    parent = os.getppid()
    try:
        program = Path("/proc/1/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return parent
    return 0 if parent == 1 and b"python" not in program else parent


def when_orphaned(parent: int, action: Callable[[], object]) -> None:
    """Do something, in a thread, soon after this process's parent has ended.

    Args:
        parent: the parent's process id; 0 if it has ended already.
        action: what to do.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY)
        action()

    threading.Thread(target=watch, daemon=True).start()
