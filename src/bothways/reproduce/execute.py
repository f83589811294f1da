"""Computing steps: each once, in one process or several, and what is on record of them.

``steps/NAME.json`` keeps what a step gave, its settings, how long it took, and on what machine. A
step on record is not computed again; one that was interrupted goes on in its folder. A lock that
dies with its process keeps two processes off one step, so several commands may share a folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bothways.config import ReproduceConfig
from bothways.errors import DivergenceError, RunError
from bothways.files import write_json
from bothways.reproduce.grid import RUNS
from bothways.reproduce.steps import Step
from bothways.training.device import choose_device
from bothways.training.runfolder import RUN_FILE, versions

STEPS, LOGS = "steps", "logs"
Say = Callable[[str], None]
_INTERRUPTED = 130
_POLL_SECONDS = 0.2
_LOG_LINES = 12


@dataclass(frozen=True)
class Ledger:
    """What was computed in a folder.

    Attributes:
        out: the folder.
    """

    out: Path

    def path(self, step: Step) -> Path:
        """The record of a step."""
        return self.out / STEPS / f"{step.name}.json"

    def record(self, step: Step) -> dict[str, Any] | None:
        """What is on record of it; None if nothing is, or it is damaged."""
        try:
            found = json.loads(self.path(step).read_text(encoding="utf-8"))
            return found if found["key"] == step.key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def result(self, step: Step) -> dict[str, Any] | None:
        """What it gave; None if it is not finished."""
        record = self.record(step)
        return None if record is None else record.get("result")

    def done(self, step: Step) -> bool:
        """Whether all that is wanted of it is there (or it diverged, as it would again)."""
        record, result = self.record(step), self.result(step)
        if record is None or result is None:
            return False
        return "diverged_at" in result or set(step.wanted) <= set(record["parts"])

    def lost(self, step: Step) -> bool:
        """Whether what other steps would read of it is gone, though it is on record: the records
        are small and may be kept elsewhere, in a repository say, than models and corpora."""
        if not self.done(step) or self.diverged(step):
            return False
        folder = self.out / RUNS / step.name
        return not all((folder / part).exists() for part in step.read_by_others())

    def diverged(self, step: Step) -> str | None:
        """Why it has nothing to show, if it diverged."""
        result = self.result(step) or {}
        return result.get("diverged_at")

    def seconds(self, step: Step) -> float:
        """Wall time over all attempts that are on record; those killed are not."""
        record = self.record(step) or {}
        return sum(a["seconds"] or 0.0 for a in record.get("attempts", []))

    @contextlib.contextmanager
    def locked(self, step: Step, say: Say) -> Iterator[None]:
        """While this process alone computes the step; waits for another that does."""
        path = self.out / STEPS / f"{step.name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say(f"{step.name}: another process computes it; waiting")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def compute(step: Step, ledger: Ledger, config: ReproduceConfig, say: Say) -> None:
    """Compute a step and put it on record; nothing is done if it is there.

    Of its parts only those that are not on record are computed, and added to it.

    Raises:
        BothwaysError: as its function, but for divergence, which is a result.
        RunError: what was on record diverged when it was made again.
        KeyboardInterrupt: interrupted; the same call goes on.
    """
    with ledger.locked(step, say):
        if ledger.done(step) and not ledger.lost(step):
            return
        before = ledger.record(step) or {}
        started = time.monotonic(), _cpu_seconds()
        attempt: dict[str, Any] = {"started": _now(), "seconds": None, "cpu_seconds": None}
        record: dict[str, Any] = {
            "format": 1,
            "name": step.name,
            "kind": step.kind,
            "key": step.key,
            "inputs": list(step.inputs),
            "needs": list(step.needs),
            "settings": step.settings(),
            "parts": list(before.get("parts", [])),
            "result": before.get("result"),
            "attempts": [*before.get("attempts", []), attempt],
            "machine": machine(config),
        }
        write_json(ledger.path(step), record)
        try:
            parts = [part for part in step.wanted if part not in record["parts"]]
            found = step.compute(ledger.out / RUNS / step.name, parts, keep=config.keep_models)
            record["result"] = _merged(record["result"], found)
            record["parts"] += parts
            record["run"] = _decided(ledger.out / RUNS / step.name)
        except DivergenceError as error:
            if record["result"] is not None:
                raise RunError(
                    f"{step.name} is on record, and diverged when it was made again for other "
                    f"steps ({error}). Its record is kept; those steps need another machine or a "
                    "new --out."
                ) from None
            record["result"] = {"diverged_at": str(error)}
        finally:
            attempt["seconds"] = round(time.monotonic() - started[0], 2)
            attempt["cpu_seconds"] = round(_cpu_seconds() - started[1], 2)
            write_json(ledger.path(step), record)


def compute_all(
    steps: Mapping[str, Step],
    ledger: Ledger,
    config: ReproduceConfig,
    say: Say,
    after: Callable[[], None],
) -> None:
    """Compute every step of :func:`to_compute`, each after those it needs.

    Args:
        steps: by name, in an order in which each follows its needs.
        ledger: what is there, and where the rest goes.
        config: how many at once.
        say: hears what begins.
        after: called after each step.

    Raises:
        BothwaysError: a step failed.
        KeyboardInterrupt: interrupted.
    """
    if config.jobs > 1:
        _Pool(steps, ledger, config, say, after).run()
        return
    wanted = to_compute(steps, ledger)
    for number, step in enumerate(steps.values(), 1):
        if step.name not in wanted or hopeless(step, steps, ledger):
            continue
        say(f"--- {number}/{len(steps)} {step.name}")
        compute(step, ledger, config, say)
        after()


def to_compute(steps: Mapping[str, Step], ledger: Ledger) -> set[str]:
    """Names of the steps that are not there, and of those on record that they need and that left
    nothing to read."""
    wanted: set[str] = set()

    def want(step: Step) -> None:
        wanted.add(step.name)
        for needed in (steps[name] for name in step.needs):
            if needed.name not in wanted and (ledger.lost(needed) or not ledger.done(needed)):
                want(needed)

    for step in steps.values():
        if not ledger.done(step) and not hopeless(step, steps, ledger):
            want(step)
    return wanted


def hopeless(step: Step, steps: Mapping[str, Step], ledger: Ledger) -> str | None:
    """Why a step cannot be computed: one that it needs diverged."""
    for name in step.needs:
        if ledger.diverged(steps[name]):
            return f"{name} diverged"
        if reason := hopeless(steps[name], steps, ledger):
            return reason
    return None


class _Pool:
    """Steps in processes of their own, several at once."""

    def __init__(
        self,
        steps: Mapping[str, Step],
        ledger: Ledger,
        config: ReproduceConfig,
        say: Say,
        after: Callable[[], None],
    ):
        self.steps, self.ledger, self.config = steps, ledger, config
        self.say, self.after = say, after
        self.left = to_compute(steps, ledger)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        cores = config.threads or len(os.sched_getaffinity(0))
        self.threads = max(1, cores // config.jobs)

    def run(self) -> None:
        """Until nothing is left."""
        try:
            while self._start_ready() or self.running:
                time.sleep(_POLL_SECONDS)
                for name in [n for n, p in self.running.items() if p.poll() is not None]:
                    self._finish(name, self.running.pop(name).returncode)
        except BaseException:
            self._stop()
            raise

    def _start_ready(self) -> bool:
        """Start what can be; whether anything is left to start now or later."""
        left = False
        for step in (step for step in self.steps.values() if step.name in self.left):
            if step.name in self.running or hopeless(step, self.steps, self.ledger):
                continue
            left = True
            if self.left.isdisjoint(step.needs) and len(self.running) < self.config.jobs:
                self.say(f"--- {step.name}")
                self.running[step.name] = self._start(step)
        return left

    def _start(self, step: Step) -> subprocess.Popen[bytes]:
        own = dataclasses.replace(
            self.config, step=step.name, jobs=1, threads=self.threads, plan=False
        )
        log = self._log(step.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "bothways", "reproduce", *words(own)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def _log(self, name: str) -> Path:
        return self.ledger.out / LOGS / f"{name}.log"

    def _finish(self, name: str, status: int) -> None:
        if status in (_INTERRUPTED, -signal.SIGINT):
            raise KeyboardInterrupt
        if status != 0:
            lines = self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()
            shown = "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])
            raise RunError(f"step {name} failed ({self._log(name)}):\n{shown}")
        self.left.remove(name)
        self.after()

    def _stop(self) -> None:
        """Let the processes save what they have."""
        for process in self.running.values():
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            process.wait()


def words(config: ReproduceConfig) -> list[str]:
    """The words of a command line that gives these options."""
    found = [config.name]
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.name == "name" or value == item.default:
            continue
        values = value if isinstance(value, tuple) else (value,)
        found += [f"--{item.name}", *(str(v).lower() if v is True else str(v) for v in values)]
    return found


@functools.cache
def machine(config: ReproduceConfig) -> dict[str, Any]:
    """What times depend on."""
    return {
        **versions(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": config.threads or len(os.sched_getaffinity(0)),
        "jobs": config.jobs,
        "device": choose_device(config.device).name,
    }


def _merged(before: dict[str, Any] | None, found: dict[str, Any]) -> dict[str, Any]:
    """The result with the runs, sound and diverged, of parts that were computed earlier."""
    names = [name for name in ("runs", "diverged") if name in found and name in (before or {})]
    return {**found, **{name: {**(before or {})[name], **found[name]} for name in names}}


def _decided(folder: Path) -> dict[str, Any]:
    """What a run decided before its first step, and what changed on the way."""
    path = folder / RUN_FILE
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {**found["resolved"], "changes": found.get("changes", [])}


def _cpu_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
