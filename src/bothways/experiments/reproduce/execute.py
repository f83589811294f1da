"""Computing steps, each once, in one process or several, and their records.

``steps/NAME.json`` records a step's result, its settings, how long it took, and on what machine. A
recorded step is not computed again; an interrupted one continues in its folder. A lock, which ends
with its process, keeps two processes from computing the same step, so several commands may share a
folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bothways.errors import DivergenceError, RunError
from bothways.experiments.reproduce.grid import RUNS
from bothways.experiments.reproduce.options import ReproduceConfig
from bothways.experiments.reproduce.steps import Step
from bothways.io.files import write_json
from bothways.model.device import choose_device, usable_cores
from bothways.runtime.folder import RUN_FILE
from bothways.training.runfolder import versions

STEPS, LOGS = "steps", "logs"
Say = Callable[[str], None]
_INTERRUPTED = 130
_POLL_SECONDS = 0.2
_LOG_LINES = 12


@dataclass(frozen=True)
class Ledger:
    """The records of the steps computed in a folder.

    Attributes:
        out: the folder.
    """

    out: Path

    def path(self, step: Step) -> Path:
        """The file with the record of a step."""
        return self.out / STEPS / f"{step.name}.json"

    def record(self, step: Step) -> dict[str, Any] | None:
        """The record of a step; None if there is none, or it is damaged."""
        try:
            record: dict[str, Any] = json.loads(self.path(step).read_text(encoding="utf-8"))
            return record if record["key"] == step.key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def result(self, step: Step) -> dict[str, Any] | None:
        """The result of a step; None if it is not finished."""
        record = self.record(step)
        return None if record is None else record.get("result")

    def done(self, step: Step) -> bool:
        """Whether all wanted parts are recorded, or the step diverged, as it would again."""
        record, result = self.record(step), self.result(step)
        if record is None or result is None:
            return False
        return "diverged_at" in result or set(step.wanted) <= set(record["parts"])

    def usable(self, step: Step, files: Collection[str]) -> bool:
        """Whether a step is done and these files, which other steps read, are in its folder.

        Records are small and may be kept without the models and corpora, in a repository say.
        """
        folder = self.out / RUNS / step.name
        there = all((folder / name).exists() for name in files)
        return self.done(step) and (there or self.diverged(step) is not None)

    def diverged(self, step: Step) -> str | None:
        """Where a step diverged, if it did so without any result."""
        result = self.result(step) or {}
        return result.get("diverged_at")

    def seconds(self, step: Step) -> float:
        """Wall time of all attempts, except those that were killed."""
        record = self.record(step) or {}
        return sum(a["seconds"] or 0.0 for a in record.get("attempts", []))

    @contextlib.contextmanager
    def locked(self, name: str, say: Say) -> Iterator[None]:
        """Hold the lock of a step or a table; waits while another process has it."""
        path = self.out / STEPS / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            say(f"{name}: another process is computing it; waiting")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


def compute(
    step: Step, ledger: Ledger, config: ReproduceConfig, say: Say, files: Collection[str]
) -> None:
    """Compute a step and record it, unless that is done.

    Of its parts only those that are not recorded are computed, and added to the record.

    Args:
        step: to compute.
        ledger: where it is recorded.
        config: where and how to compute.
        say: receives a line if it has to wait for another process.
        files: of its folder, those that other steps read; see :func:`files_to_read`.

    Raises:
        BothwaysError: as the step's function, except for divergence, which is a result.
        RunError: a recorded step diverged when it was computed again for its files.
        KeyboardInterrupt: interrupted; the same call continues.
    """
    with ledger.locked(step.name, say):
        if ledger.usable(step, files):
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
            folder = ledger.out / RUNS / step.name
            result = step.compute(folder, parts, keep=config.keep_models)
            record["result"] = _merged(record["result"], result)
            record["parts"] += parts
            record["run"] = _run_record(folder)
        except DivergenceError as error:
            if record["result"] is not None:
                raise RunError(
                    f"{step.name} is on record, but diverged when it was computed again for other "
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
    before_step: Callable[[Step], None],
    after_step: Callable[[], None],
) -> None:
    """Compute every step of :func:`to_compute`, each after the steps it needs.

    Args:
        steps: by name, each after the steps it needs.
        ledger: the records so far; new ones are added.
        config: how many steps at once.
        say: receives a line for each step that starts.
        before_step: called before a step that this process computes; with several jobs, the process
            of each step makes the plan anew.
        after_step: called after each step.

    Raises:
        BothwaysError: a step failed.
        KeyboardInterrupt: interrupted.
    """
    if config.jobs > 1:
        _Pool(steps, ledger, config, say, after_step).run()
        return
    pending = to_compute(steps, ledger)
    for number, step in enumerate(steps.values(), 1):
        if step.name not in pending or blocked(step, steps, ledger):
            continue
        before_step(step)
        say(f"--- {number}/{len(steps)} {step.name}")
        compute(step, ledger, config, say, files_to_read(step, steps, pending))
        after_step()


def to_compute(steps: Mapping[str, Step], ledger: Ledger) -> set[str]:
    """Names of the steps not done, and of the done steps that they need whose files are gone."""
    pending: set[str] = set()

    def add(step: Step) -> None:
        pending.add(step.name)
        for needed in (steps[name] for name in step.needs):
            if needed.name not in pending and not ledger.usable(needed, step.reads(needed)):
                add(needed)

    for step in steps.values():
        if not ledger.done(step) and not blocked(step, steps, ledger):
            add(step)
    return pending


def files_to_read(step: Step, steps: Mapping[str, Step], pending: Collection[str]) -> set[str]:
    """The files of a step that it must leave: its outputs, and the snapshots that are read.

    Args:
        step: the step whose files they are.
        steps: by name.
        pending: names of the steps still to be computed, which may read them.
    """
    readers = (steps[name] for name in pending if step.name in steps[name].needs)
    return {*step.outputs(), *(file for reader in readers for file in reader.reads(step))}


def blocked(step: Step, steps: Mapping[str, Step], ledger: Ledger) -> str | None:
    """Why a step can never be computed: a step that it needs, or that one needs, diverged."""
    for name in step.needs:
        if ledger.diverged(steps[name]):
            return f"{name} diverged"
        if reason := blocked(steps[name], steps, ledger):
            return reason
    return None


class _Pool:
    """Computes several steps at once, each in its own process."""

    def __init__(
        self,
        steps: Mapping[str, Step],
        ledger: Ledger,
        config: ReproduceConfig,
        say: Say,
        after_step: Callable[[], None],
    ):
        self.steps, self.ledger, self.config = steps, ledger, config
        self.say, self.after_step = say, after_step
        self.pending = to_compute(steps, ledger)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        cores = config.threads or usable_cores()
        self.threads = max(1, cores // config.jobs)

    def run(self) -> None:
        """Compute the steps until none is left; SIGTERM stops those that run, as Ctrl-C does."""
        # In other threads signals are the caller's, and None was not set from Python: it could not
        # be put back.
        previous = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is not threading.main_thread():
            previous = None
        if previous is not None:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            while self._start_ready() or self.running:
                time.sleep(_POLL_SECONDS)
                for name in [n for n, p in self.running.items() if p.poll() is not None]:
                    self._finish(name, self.running.pop(name).returncode)
        except BaseException:
            self._stop()
            raise
        finally:
            if previous is not None:
                signal.signal(signal.SIGTERM, previous)

    def _start_ready(self) -> bool:
        """Start the steps that can start now; whether any step was or is still to be started."""
        waiting = [
            step
            for step in self.steps.values()
            if step.name in self.pending
            and step.name not in self.running
            and not blocked(step, self.steps, self.ledger)
        ]
        ready = [step for step in waiting if self.pending.isdisjoint(step.needs)]
        # What most others wait for goes first, so that the last steps can share the jobs.
        ready.sort(key=self._waiting_for, reverse=True)
        for step in ready[: self.config.jobs - len(self.running)]:
            self.say(f"--- {step.name}")
            self.running[step.name] = self._start(step)
        return bool(waiting)

    def _waiting_for(self, step: Step) -> int:
        """How many steps still to be computed need this one."""
        return sum(step.name in self.steps[name].needs for name in self.pending)

    def _start(self, step: Step) -> subprocess.Popen[bytes]:
        config = dataclasses.replace(
            self.config, step=step.name, jobs=1, threads=self.threads, plan=False
        )
        log = self._log(step.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "bothways", "reproduce", *arguments(config)],
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
            tail = "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])
            raise RunError(f"step {name} failed ({self._log(name)}):\n{tail}")
        self.pending.remove(name)
        self.after_step()

    def _stop(self) -> None:
        """Ask the processes to save their state and end, and wait for them."""
        for process in self.running.values():
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            process.wait()


def arguments(config: ReproduceConfig) -> list[str]:
    """Command line arguments that give these options."""
    words = [config.name]
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.name == "name" or value == item.default:
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{item.name}", *(str(v).lower() if v is True else str(v) for v in values)]
    return words


@functools.cache
def machine(config: ReproduceConfig) -> dict[str, Any]:
    """What the times depend on: machine, versions, threads, jobs, device."""
    return {
        **versions(),
        "cores": usable_cores(),
        "threads": config.threads or usable_cores(),
        "jobs": config.jobs,
        "device": choose_device(config.device).name,
    }


def _merged(before: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """The new result, with the runs (finished or diverged) of parts that were computed before."""
    before = before or {}
    names = [name for name in ("runs", "diverged") if name in new and name in before]
    return {**new, **{name: {**before[name], **new[name]} for name in names}}


def _run_record(folder: Path) -> dict[str, Any]:
    """What a run decided before its first step, and what changed since then."""
    path = folder / RUN_FILE
    if not path.exists():
        return {}
    run = json.loads(path.read_text(encoding="utf-8"))
    return {**run["resolved"], "changes": run.get("changes", [])}


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
