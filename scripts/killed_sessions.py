"""A command that is started, killed with SIGKILL and started again, each time as a session."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

PROCESS, GROUP, RANK = "process", "group", "rank"
"""What is killed: the process of the command, its group, or one process that it has started."""

PATIENCE = 60.0  # seconds in which a command has to end when one of its processes was killed
LEAVING = 60.0
"""Seconds after which no process of a killed session may be left: ranks without their torchrun
finish a step, and may have to compile its loops."""

_MARK = "BOTHWAYS_KILLED_SESSION"
_NUMBERS = count()


@dataclass
class Session:
    """A started command, its output in a log."""

    process: subprocess.Popen[bytes]
    mark: str
    started: float = field(default_factory=time.monotonic)
    killed: float = 0.0

    def wait_for(self, moment: Callable[[], bool]) -> None:
        """Wait until the moment has come, or the process has ended."""
        while self.process.poll() is None and not moment():
            time.sleep(0.0005)

    def wait(self, seconds: float) -> None:
        """Wait for a time, or until the process has ended."""
        until = time.monotonic() + seconds
        self.wait_for(lambda: time.monotonic() >= until)

    def kill(self, way: str, draw: random.Random) -> bool:
        """Kill it, and wait until its first process has ended.

        Returns:
            Whether it was killed; false if it had ended before.
        """
        if self.process.poll() is not None:
            return False
        # What has not been waited for keeps its number, so none of these can be another's by now.
        ranks = _children(self.process.pid) if way == RANK else []
        if way == GROUP:
            os.killpg(self.process.pid, signal.SIGKILL)
        elif ranks:
            os.kill(draw.choice(ranks), signal.SIGKILL)
        else:
            self.process.kill()
        self.killed = time.monotonic()
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise StuckError(f"goes on {PATIENCE:.0f} s after one of its processes died") from None
        return status != 0

    def end_what_is_left(self) -> int:
        """End the processes that are left when there should be none; returns how many."""
        while (left := self._alive()) and time.monotonic() < self.killed + LEAVING:
            time.sleep(0.1)
        for process in left:
            os.kill(process, signal.SIGKILL)
        return len(left)

    def _alive(self) -> list[int]:
        """Processes of this session. All inherit its mark, also those in groups of their own."""
        mark = f"{_MARK}={self.mark}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:  # another user's, or ended meanwhile
                continue
        return found


class StuckError(Exception):
    """A command that cannot go on after a kill."""


def start(words: list[str], place: Path, environment: Mapping[str, str]) -> Session:
    """Start a command in a folder; its output is appended to ``session.log`` there."""
    mark = f"{os.getpid()}-{next(_NUMBERS)}"
    with (place / "session.log").open("ab") as log:
        process = subprocess.Popen(
            words,
            cwd=place,
            env={**environment, _MARK: mark},
            stdout=log,
            stderr=log,
            start_new_session=True,  # a group of its own, to be killed as one
        )
    return Session(process, mark)


def log_of(place: Path) -> str:
    """The end of what the sessions in a folder have said."""
    return (place / "session.log").read_text(errors="replace")[-3000:]


def _children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())
