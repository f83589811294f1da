"""When a session is killed, and in which state it then was.

What trains is caught starting up (loops compile then, if the cache is empty), training, writing a
checkpoint and finishing; other commands at any moment between their start and end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from killed_sessions import Session

STARTING, TRAINING, SAVING, FINISHING = "starting up", "training", "saving", "finishing"
WORKING = "working"

_AIMS = (TRAINING, STARTING, SAVING, TRAINING, SAVING, FINISHING)
_STARTUP = 3.0  # seconds in which a session starts up, if no loops have to be compiled
METRICS = "metrics.jsonl"


def recorded(out: Path) -> int:
    """Size of the records in bytes, which grows with every step."""
    return sum(_size(path) for path in [out / METRICS, *out.glob(f"*/{METRICS}")])


def unfinished(out: Path) -> set[tuple[int, int]]:
    """Checkpoints that are being written, or were when the run was killed."""
    found = set()
    for pattern in ("checkpoints/.partial-*", "*/.partial-*", "*/checkpoints/.partial-*"):
        for path in out.glob(pattern):
            try:
                entry = path.stat()
            except FileNotFoundError:  # finished in between
                continue
            found.add((entry.st_ino, entry.st_mtime_ns))
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@dataclass(frozen=True)
class Pace:
    """How long a run takes without interruption, in seconds."""

    before: float
    """Until the first step of training, with loops that have to be compiled."""
    rest: float
    """From then on."""


class Moments:
    """Moments at which sessions of one command are killed.

    Args:
        trains: it writes records while it trains; otherwise moments are random.
        last: what such a run writes last but for its reports.
    """

    def __init__(self, *, trains: bool, last: str = ""):
        self._trains, self._last = trains, last

    def pace(self, session: Session, out: Path) -> Pace:
        """Let a session run to its end."""
        session.wait_for(lambda: not self._trains or recorded(out) > 0)
        begun = time.monotonic()
        session.process.wait()
        return Pace(begun - session.started, time.monotonic() - begun)

    def wait(
        self,
        session: Session,
        out: Path,
        pace: Pace,
        *,
        number: int,
        compiles: bool,
        draw: random.Random,
    ) -> Callable[[], str]:
        """Wait until it is time for kill ``number``.

        Args:
            session: the session to kill.
            out: the folder it writes.
            pace: of a run like this one.
            number: counts the kills; the states aimed at follow from it.
            compiles: the session finds an empty cache of loops.
            draw: of the moments.

        Returns:
            What tells the state in which the session was killed, from its folder.
        """
        if not self._trains:
            session.wait(draw.uniform(0, pace.before + pace.rest))
            return lambda: WORKING
        before = unfinished(out)
        grows = _Growth(out)
        aim = _AIMS[number % len(_AIMS)]
        if aim == STARTING:
            delay = draw.uniform(0, pace.before if compiles else _STARTUP)
        elif aim == FINISHING:
            session.wait_for(lambda: grows() and (out / self._last).exists())
            delay = draw.uniform(0, 0.3)
        else:
            session.wait_for(grows)
            delay = draw.uniform(0, pace.rest)
            if aim == SAVING:
                session.wait_for(lambda: bool(unfinished(out) - before))
                delay = draw.uniform(0, 0.03)
        session.wait(delay)

        def state() -> str:
            if unfinished(out) - before:
                return SAVING
            if (out / self._last).exists():
                return FINISHING
            return TRAINING if grows() else STARTING

        return state


class _Growth:
    """Whether records have grown since this was made.

    A session that continues a run cuts its records back to the step it continues from, and then
    adds one with every step.
    """

    def __init__(self, out: Path):
        self._out, self._last, self._grown = out, recorded(out), False

    def __call__(self) -> bool:
        now = recorded(self._out)
        self._grown = self._grown or now > self._last
        self._last = now
        return self._grown
