"""Trains the seeds of fine-tuning runs, one after the other in this process or several at once in
worker processes.

A small model on short texts gains less from a second thread than from a second process, because
most of its operations are too short to be divided.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.synchronize import Event
from types import TracebackType

from bothways.config import FinetuneConfig, RunSeeds, TaskOptions
from bothways.errors import BothwaysError, ConfigError, RunError
from bothways.finetuning.extra_files import training_digests
from bothways.finetuning.results import SeedResult
from bothways.finetuning.run_seed import keeps_head, train_seed
from bothways.finetuning.run_setup import OpenedRun, model_digest
from bothways.finetuning.task_files import FinetuningData, load_data
from bothways.model.folder import LoadedModel, load_model
from bothways.processes import exit_with
from bothways.training.runtime import set_threads


@dataclass(frozen=True)
class SeedJob:
    """One seed of one setting, to be trained.

    Attributes:
        config: the setting.
        loaded: the starting model.
        data: the files of the task, encoded.
        run: the run folder to write to.
        run_seeds: the seeds of this run.
    """

    config: FinetuneConfig
    loaded: LoadedModel
    data: FinetuningData
    run: OpenedRun
    run_seeds: RunSeeds

    def train(self) -> SeedResult:
        """Train in this process."""
        return train_seed(self.config, self.loaded, self.data, self.run, self.run_seeds)


class PendingSeed:
    """A submitted job.

    Args:
        job: what was submitted.
        future: its result in the process pool. None without a pool: :meth:`result` then trains
            the job, so call it once.
        broken: makes the error to raise if the pool broke before the job was done.
    """

    def __init__(
        self,
        job: SeedJob,
        future: Future[SeedResult] | None,
        broken: Callable[[SeedJob], BothwaysError],
    ):
        self._job, self._future, self._broken = job, future, broken

    def result(self) -> SeedResult:
        """Wait for the job, or train it now.

        Raises:
            RunError: the worker process was killed.
            ConfigError: no worker process could start.
            BothwaysError: as :func:`bothways.finetuning.run_seed.train_seed`.
        """
        if self._future is None:
            return self._job.train()
        try:
            return self._future.result()
        except BrokenProcessPool:
            raise self._broken(self._job) from None


class SeedRunner:
    """Trains the jobs submitted to it.

    With one process, a job is trained in this process when its result is requested, so jobs are
    trained in the order in which results are collected. With several, a pool of worker processes
    starts on a job as soon as it is submitted and a worker is free.

    A context manager. If the block ends with an error, jobs that have not started are dropped, and
    those in progress are finished and kept; Ctrl-C ends those too.

    Args:
        processes: 1 trains in this process.

    Raises:
        ConfigError: a worker process that imports the running script has come to its call of
            fine-tuning.
    """

    def __init__(self, processes: int):
        self._pool: ProcessPoolExecutor | None = None
        if processes > 1:
            if getattr(multiprocessing.current_process(), "_inheriting", False):
                raise _script_without_guard()
            context = multiprocessing.get_context("spawn")
            self._worker_started = context.Event()
            self._others = set(multiprocessing.active_children())  # of the calling program
            self._pool = ProcessPoolExecutor(
                processes, context, initializer=_start_worker, initargs=(self._worker_started,)
            )

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
            for process in set(multiprocessing.active_children()) - self._others:
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def submit(self, job: SeedJob) -> PendingSeed:
        """Accept a job.

        Raises:
            RunError: a worker process was killed earlier, so the pool accepts no more jobs.
            ConfigError: no worker process could start.
        """
        if self._pool is None:
            return PendingSeed(job, None, self._broken)
        try:
            future = self._pool.submit(_train_in_worker, job.config, job.run, job.run_seeds)
        except BrokenProcessPool:
            raise self._broken(job) from None
        return PendingSeed(job, future, self._broken)

    def _broken(self, job: SeedJob) -> BothwaysError:
        """Why the pool broke."""
        if not self._worker_started.is_set():
            return _script_without_guard()
        return RunError(
            f"{job.run.folder / job.run_seeds.folder}: a worker process was killed, perhaps "
            "because memory ran out. Finished seeds are kept; run the same command again with "
            "fewer --jobs."
        )


def _script_without_guard() -> ConfigError:
    return ConfigError(
        "jobs: no worker process could start. Each first imports the script that is running, so "
        'the script must start fine-tuning below `if __name__ == "__main__":`; or leave jobs out.'
    )


def _start_worker(started: Event) -> None:
    """Report that this worker has started, and make it exit silently at Ctrl-C, and when its parent
    process ends."""
    started.set()
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    exit_with(parent.pid)


def _train_in_worker(config: FinetuneConfig, run: OpenedRun, run_seeds: RunSeeds) -> SeedResult:
    set_threads(run.threads)
    loaded, data = _load_in_worker(config.model, config.task, config.data, config.length)
    _refuse_changed(config, loaded, data, run)
    return train_seed(config, loaded, data, run, run_seeds)


def _refuse_changed(
    config: FinetuneConfig, loaded: LoadedModel, data: FinetuningData, run: OpenedRun
) -> None:
    """Refuse a model or files that have changed since the run was opened: the seed would be
    recorded as trained from what they were."""
    head = keeps_head(loaded, config, data.task)
    found = {
        **training_digests(config.located().task),
        "model": model_digest(loaded, weights=not config.from_scratch, head=head),
    }
    if changed := [name for name in found if found[name] != run.inputs.get(name)]:
        raise RunError(
            f"{run.folder}: {', '.join(changed)} changed while this command ran. Restore it and "
            "run the command again, or choose another run folder."
        )


@lru_cache(maxsize=1)
def _load_in_worker(
    model: str, task: TaskOptions, folder: str, length: int
) -> tuple[LoadedModel, FinetuningData]:
    """Model and data; kept, because the worker's next job usually needs the same."""
    loaded = load_model(model)
    config = FinetuneConfig(model=model, task=task, data=folder, length=length)
    return loaded, load_data(config, loaded)
