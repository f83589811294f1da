"""Runs of fine-tuning, one after the other in this process or several at once in others.

A small model on short texts gains less from a second thread than from a second process: most of its
operations are too short to be divided.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from types import TracebackType

from bothways.config import FinetuneConfig, Restart, TaskOptions
from bothways.errors import RunError
from bothways.model.folder import Loaded, load_model
from bothways.tasks.data import Data, Opened, load_data
from bothways.tasks.report import SeedResult
from bothways.tasks.seeds import train_seed
from bothways.training.runtime import set_threads


class Jobs:
    """Who trains the runs.

    Used as a context: if it ends by an error, runs that have not begun are dropped, and those under
    way are finished and kept; at Ctrl-C they end too.

    Args:
        number: processes; 1 is this one.
    """

    def __init__(self, number: int):
        self.several = number > 1
        self._pool: ProcessPoolExecutor | None = None
        if self.several:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(number, context, initializer=_end_with_parent)

    def __enter__(self) -> Jobs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is None:
            return
        if kind is not None and not issubclass(kind, Exception):  # Ctrl-C, of this process alone
            for process in multiprocessing.active_children():
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def begin(
        self, config: FinetuneConfig, loaded: Loaded, data: Data, run: Opened, restart: Restart
    ) -> Callable[[], SeedResult]:
        """Hand over a run.

        Returns:
            What waits for its result; in this process, what trains it. Raises as
            :func:`bothways.tasks.seeds.train_seed`, and RunError if the process was killed.
        """
        if self._pool is None:
            return lambda: train_seed(config, loaded, data, run, restart)
        killed = RunError(
            f"{run.folder / restart.folder}: a process that trained has ended, killed perhaps for "
            "want of memory. What is finished is kept: run the same command again, with fewer "
            "--jobs."
        )
        try:
            future = self._pool.submit(_train, config, run, restart)
        except BrokenProcessPool:
            raise killed from None

        def wait() -> SeedResult:
            try:
                return future.result()
            except BrokenProcessPool:
                raise killed from None

        return wait


def _end_with_parent() -> None:
    """Have this process end without a word at Ctrl-C, and with the one that started it."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _train(config: FinetuneConfig, run: Opened, restart: Restart) -> SeedResult:
    set_threads(run.threads)
    loaded, data = _read(config.model, config.task, config.data, config.length)
    return train_seed(config, loaded, data, run, restart)


@lru_cache(maxsize=1)
def _read(model: str, task: TaskOptions, folder: str, length: int) -> tuple[Loaded, Data]:
    """Model and data, kept for the next run, which most often needs the same."""
    loaded = load_model(model)
    config = FinetuneConfig(model=model, task=task, data=folder, length=length)
    return loaded, load_data(config, loaded)
