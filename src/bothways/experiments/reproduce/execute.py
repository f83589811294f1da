"""Computing steps, each once, in one process or several, and their records.

``steps/NAME.json`` records a step's result, its settings, how long it took, and on what machine. A
recorded step is not computed again; an interrupted one continues in its folder. A lock, which ends
with its process, keeps two processes from computing the same step, so several commands may share a
folder.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bothways.errors import DivergenceError, RunError
from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce.grid import RUNS
from bothways.experiments.reproduce.steps import Step
from bothways.io.files import write_json
from bothways.io.processes import usable_cores
from bothways.io.run_folders import RUN_FILE
from bothways.model.device import choose_device
from bothways.training.runfolder import versions

STEPS, LOGS = "steps", "logs"
Steps = Mapping[str, Step]
"""By name, each after the steps it needs."""
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
        return (self.record(step) or {}).get("result")

    def done(self, step: Step) -> bool:
        """Whether all wanted parts are recorded, or the step diverged, as it would again."""
        record = self.record(step)
        if record is None or (result := record.get("result")) is None:
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
        return (self.result(step) or {}).get("diverged_at")

    def attempts(self, step: Step) -> list[dict[str, Any]]:
        """When a step was begun, and how long each took; None for those that were killed."""
        return list((self.record(step) or {}).get("attempts", []))

    def seconds(self, step: Step) -> float:
        """Wall time of all attempts, except those that were killed."""
        return sum(attempt["seconds"] or 0.0 for attempt in self.attempts(step))

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


# --------------------------------------------------------------------------------
# What is to do.


def to_compute(steps: Steps, ledger: Ledger) -> set[str]:
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


def files_to_read(step: Step, steps: Steps, pending: Collection[str]) -> set[str]:
    """The files of a step that it must leave: its outputs, and the snapshots that are read.

    Args:
        step: the step whose files they are.
        steps: by name.
        pending: names of the steps still to be computed, which may read them.
    """
    readers = (steps[name] for name in pending if step.name in steps[name].needs)
    return {*step.outputs(), *(file for reader in readers for file in reader.reads(step))}


def blocked(step: Step, steps: Steps, ledger: Ledger) -> str | None:
    """Why a step can never be computed: a step that it needs, or that one needs, diverged."""
    for name in step.needs:
        if ledger.diverged(steps[name]):
            return f"{name} diverged"
        if reason := blocked(steps[name], steps, ledger):
            return reason
    return None


# --------------------------------------------------------------------------------
# One step.


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
        now = datetime.now(UTC).isoformat(timespec="seconds")
        attempt: dict[str, Any] = {"started": now, "seconds": None, "cpu_seconds": None}
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
            for runs in ("runs", "diverged"):  # with those of parts that were computed before
                if runs in result:
                    result[runs] = {**(record["result"] or {}).get(runs, {}), **result[runs]}
            record["result"] = result
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


def _run_record(folder: Path) -> dict[str, Any]:
    """What a run decided before its first step, and what changed since then."""
    path = folder / RUN_FILE
    if not path.exists():
        return {}
    run = json.loads(path.read_text(encoding="utf-8"))
    return {**run["resolved"], "changes": run.get("changes", [])}


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])


# --------------------------------------------------------------------------------
# All steps.


def compute_all(
    steps: Steps,
    ledger: Ledger,
    config: ReproduceConfig,
    say: Say,
    before_step: Callable[[Step], None],
    after_step: Callable[[], None],
) -> None:
    """Compute every step of :func:`to_compute`, each after the steps it needs.

    Args:
        steps: of the table.
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
    pending = to_compute(steps, ledger)
    if config.jobs > 1:
        with _interrupted_by_sigterm():
            _compute_in_jobs(steps, ledger, config, say, after_step, pending)
        return
    for number, step in enumerate(steps.values(), 1):
        if step.name in pending and not blocked(step, steps, ledger):
            before_step(step)
            say(f"--- {number}/{len(steps)} {step.name}")
            compute(step, ledger, config, say, files_to_read(step, steps, pending))
            after_step()


def _compute_in_jobs(
    steps: Steps,
    ledger: Ledger,
    config: ReproduceConfig,
    say: Say,
    after_step: Callable[[], None],
    pending: set[str],
) -> None:
    """Several steps at once, each in a process of its own; those end with this one."""
    running: dict[str, subprocess.Popen[bytes]] = {}

    def waiting_for(step: Step) -> int:
        return sum(step.name in steps[name].needs for name in pending)

    try:
        while True:
            ready = [
                steps[name]
                for name in steps
                if name in pending - running.keys()
                and pending.isdisjoint(steps[name].needs)
                and not blocked(steps[name], steps, ledger)
            ]
            # What most others wait for goes first, so that the last steps can share the jobs.
            ready.sort(key=waiting_for, reverse=True)
            for step in ready[: config.jobs - len(running)]:
                say(f"--- {step.name}")
                running[step.name] = start_job(step, config)
            if not running:
                return
            time.sleep(_POLL_SECONDS)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                _check_job(name, running.pop(name).returncode, config)
                pending.remove(name)
                after_step()
    except BaseException:
        for process in running.values():  # they save their state and end
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGTERM)
        for process in running.values():
            process.wait()
        raise


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM is as Ctrl-C in the block."""
    # In other threads signals are the caller's, and None was not set from Python: it could not be
    # put back.
    previous = signal.getsignal(signal.SIGTERM)
    if previous is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def start_job(step: Step, config: ReproduceConfig) -> subprocess.Popen[bytes]:
    """A process that computes a step, with its share of the threads."""
    threads = max(1, (config.threads or usable_cores()) // config.jobs)
    config = replace(config, step=step.name, jobs=1, threads=threads, plan=False)
    log = _log(step.name, config)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "bothways", "reproduce", *arguments(config)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def _log(name: str, config: ReproduceConfig) -> Path:
    return Path(config.out) / LOGS / f"{name}.log"


def _check_job(name: str, status: int, config: ReproduceConfig) -> None:
    if status in (_INTERRUPTED, -signal.SIGINT):
        raise KeyboardInterrupt
    if status != 0:
        log = _log(name, config)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])
        raise RunError(f"step {name} failed ({log}):\n{tail}")


def arguments(config: ReproduceConfig) -> list[str]:
    """Command line arguments that give these options."""
    words = [config.name]
    for item in fields(config):
        value = getattr(config, item.name)
        if item.name != "name" and value != item.default:
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--{item.name}", *(str(v).lower() if v is True else str(v) for v in values)]
    return words
