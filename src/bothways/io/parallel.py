"""Work that is divided among processes on this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from bothways.errors import BothwaysError, ConfigError
from bothways.io.processes import deaf_children, exit_with


@contextlib.contextmanager
def in_processes(
    function: Callable[..., Any],
    items: Iterable[tuple[Any, ...]],
    *,
    workers: int,
    cluster: str | None = None,
    lost: type[BothwaysError],
    ordered: bool = True,
) -> Iterator[Iterator[Any]]:
    """Apply a function to each of many items.

    Args:
        function: of a module, so that another process can import it.
        items: its arguments; only a few items and results are in memory at once.
        workers: processes; -1: one per core, 1: this one.
        cluster: address of a Dask scheduler whose workers are used instead.
        lost: the error that is raised if a worker was lost.
        ordered: results come in the order of the items; or else as they are ready.

    Raises:
        ConfigError: the cluster cannot be reached, or Dask is not installed.
    """
    import joblib  # of the extra data

    with contextlib.ExitStack() as stack:
        if cluster:
            client = stack.enter_context(_dask_client(cluster))
            stack.enter_context(joblib.parallel_config(backend="dask", client=client))
        run = joblib.Parallel(
            n_jobs=-1 if cluster else workers,
            return_as="generator" if ordered else "generator_unordered",
            pre_dispatch="2*n_jobs",
            batch_size=1,
            initializer=exit_with,  # of local processes
            initargs=(os.getpid(),),
        )
        with deaf_children():
            started = run(joblib.delayed(function)(*item) for item in items)
        results = stack.enter_context(contextlib.closing(started))
        try:
            yield results
        except Exception as error:
            if not _is_lost_worker(error):
                raise
            raise lost(
                f"a worker process was lost ({error}), most likely killed for using too much "
                "memory. Run the same command again to continue, perhaps with fewer --workers."
            ) from error


def _is_lost_worker(error: Exception) -> bool:
    """Whether a process or the cluster failed, rather than the task it was running."""
    of_cluster = type(error).__module__.partition(".")[0] == "distributed"
    return of_cluster or isinstance(error, BrokenProcessPool)


def _dask_client(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise ConfigError(
            "cluster is given, but dask is not installed; install the extra: "
            "pip install 'bothways[cluster]'"
        ) from error
    try:
        return Client(address, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cluster is {address!r}, which cannot be reached ({error}). Give the address that "
            "`dask scheduler` prints, such as tcp://host:8786."
        ) from error
