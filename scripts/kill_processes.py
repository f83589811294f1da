"""Processes that a test starts and kills, with all that they start in turn (Linux)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

MARK = "BOTHWAYS_KILL_TEST"
"""A variable of the environment, which a process hands on to all that it starts."""
PATIENCE = 10.0
"""Seconds after a kill within which all processes of a command should have ended."""


class Session:
    """A command that runs.

    Only processes that carry this session's own mark are ever killed, so it cannot be others that
    have got the number of one that ended.
    """

    def __init__(self, command: tuple[str, ...], folder: Path, log: Path, env: Mapping[str, str]):
        self._mark = f"{MARK}={uuid.uuid4().hex}"
        environment = {**env, MARK: self._mark.partition("=")[2]}
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )

    def running(self) -> list[int]:
        """The processes of this command."""
        self.process.poll()
        return [int(p.name) for p in Path("/proc").glob("[0-9]*") if self._is_ours(int(p.name))]

    def _is_ours(self, process: int) -> bool:
        try:
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:  # ended, or somebody else's
            return False
        return self._mark.encode() in variables

    def wait_for(self, moment: Callable[[], bool]) -> None:
        """Wait until the moment has come, or the process has ended."""
        while self.process.poll() is None and not moment():
            time.sleep(0.0005)

    def kill(self, how: str, draw: random.Random) -> None:
        """Kill with SIGKILL: ``main``, the process that was started; ``group``, its process group
        and those of its children, which torchrun starts in sessions of their own; ``rank``, one
        child at random."""
        main = self.process.pid
        others = [p for p in self.running() if p != main]
        if how == "group":
            for process in (main, *others):
                with suppress(ProcessLookupError):
                    os.killpg(os.getpgid(process), signal.SIGKILL)
        elif how == "rank" and (ranks := [p for p in others if _parent(p) == main]):
            self._kill_one(draw.choice(ranks))
        else:
            self._kill_one(main)

    def _kill_one(self, process: int) -> None:
        if self._is_ours(process):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def remaining(self) -> int:
        """How many processes are left after :data:`PATIENCE`; they are killed then."""
        until = time.monotonic() + PATIENCE
        while (left := self.running()) and time.monotonic() < until:
            time.sleep(0.02)
        for process in left:
            self._kill_one(process)
        self.process.wait()
        return len(left)


def _parent(process: int) -> int:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])
