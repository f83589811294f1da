"""Trains the seeds of fine-tuning runs, one after the other in this process or several at once in
worker processes.

A small model on short texts gains less from a second thread than from a second process, because
most of its operations are too short to be divided.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType

from bothways.config import FinetuneConfig, Restart, TaskOptions
from bothways.errors import RunError
from bothways.model.folder import Loaded, load_model
from bothways.tasks.report import SeedResult
from bothways.tasks.run_seed import train_seed
from bothways.tasks.run_setup import OpenedRun
from bothways.tasks.task_files import FinetuningData, load_data
from bothways.training.runtime import set_threads


@dataclass(frozen=True)
class SeedJob:
    """One seed of one setting, to be trained.

    Attributes:
        config: the setting.
        loaded: the starting model.
        data: the files of the task, encoded.
        run: the run folder to write to.
        restart: the seeds of this run.
    """

    config: FinetuneConfig
    loaded: Loaded
    data: FinetuningData
    run: OpenedRun
    restart: Restart

    def train(self) -> SeedResult:
        """Train in this process."""
        return train_seed(self.config, self.loaded, self.data, self.run, self.restart)


class PendingSeed:
    """A submitted job.

    Args:
        job: what was submitted.
        future: its result in the process pool. None without a pool: :meth:`result` then trains
            the job, so call it once.
    """

    def __init__(self, job: SeedJob, future: Future[SeedResult] | None):
        self._job, self._future = job, future

    def result(self) -> SeedResult:
        """Wait for the job, or train it now.

        Raises:
            RunError: the worker process was killed.
            BothwaysError: as :func:`bothways.tasks.run_seed.train_seed`.
        """
        if self._future is None:
            return self._job.train()
        try:
            return self._future.result()
        except BrokenProcessPool:
            raise _worker_killed(self._job) from None


class SeedRunner:
    """Trains the jobs submitted to it.

    With one process, a job is trained in this process when its result is requested, so jobs are
    trained in the order in which results are collected. With several, a pool of worker processes
    starts on a job as soon as it is submitted and a worker is free.

    A context manager. If the block ends with an error, jobs that have not started are dropped, and
    those in progress are finished and kept; Ctrl-C ends those too.

    Args:
        processes: 1 trains in this process.
    """

    def __init__(self, processes: int):
        self._pool: ProcessPoolExecutor | None = None
        if processes > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(processes, context, initializer=_exit_with_parent)

    @property
    def parallel(self) -> bool:
        """Whether jobs are trained in worker processes, from when they are submitted."""
        return self._pool is not None

    def __enter__(self) -> SeedRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is None:
            return
        # Ctrl-C may have been sent to this process alone, as a supervisor does.
        if kind is not None and not issubclass(kind, Exception):
            for process in multiprocessing.active_children():
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def submit(self, job: SeedJob) -> PendingSeed:
        """Accept a job.

        Raises:
            RunError: a worker process was killed earlier, so the pool accepts no more jobs.
        """
        if self._pool is None:
            return PendingSeed(job, None)
        try:
            future = self._pool.submit(_train_in_worker, job.config, job.run, job.restart)
        except BrokenProcessPool:
            raise _worker_killed(job) from None
        return PendingSeed(job, future)


def _worker_killed(job: SeedJob) -> RunError:
    return RunError(
        f"{job.run.folder / job.restart.folder}: a worker process was killed, perhaps because "
        "memory ran out. Finished seeds are kept; run the same command again with fewer --jobs."
    )


def _exit_with_parent() -> None:
    """Make this worker exit silently at Ctrl-C, and when its parent process ends."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _train_in_worker(config: FinetuneConfig, run: OpenedRun, restart: Restart) -> SeedResult:
    set_threads(run.threads)
    loaded, data = _load_in_worker(config.model, config.task, config.data, config.length)
    return train_seed(config, loaded, data, run, restart)


@lru_cache(maxsize=1)
def _load_in_worker(
    model: str, task: TaskOptions, folder: str, length: int
) -> tuple[Loaded, FinetuningData]:
    """Model and data; kept, because the worker's next job usually needs the same."""
    loaded = load_model(model)
    config = FinetuneConfig(model=model, task=task, data=folder, length=length)
    return loaded, load_data(config, loaded)
