"""Work that is divided among processes on this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from bothways.errors import BothwaysError, ConfigError, explain_missing
from bothways.io.processes import deaf_children, exit_with

T = TypeVar("T")


@contextlib.contextmanager
def in_processes(
    function: Callable[..., Any],
    items: Iterable[tuple[Any, ...]],
    *,
    workers: int,
    cluster: str | None = None,
    lost: type[BothwaysError],
    ordered: bool = True,
    option: str = "--workers",
) -> Iterator[Iterator[Any]]:
    """Apply a function to each of many items.

    Args:
        function: of a module, so that another process can import it.
        items: its arguments; only a few items and results are in memory at once.
        workers: processes; -1: one per core, 1: this one.
        cluster: address of a Dask scheduler whose workers are used instead.
        lost: the error that is raised if a worker was lost; what the function raises comes back
            as itself.
        ordered: results come in the order of the items; or else as they are ready.
        option: sets ``workers``, in messages.

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
            started = run(joblib.delayed(attempt)(function, *item) for item in items)
        results = stack.enter_context(contextlib.closing(started))
        try:
            yield results
        except Exception as error:
            if not (why := _why_lost(error, option)):
                raise
            raise lost(f"{why}.") from error


def attempt(function: Callable[..., T], *item: Any) -> T:
    """Apply a function in a worker process, and raise only what can be sent back.

    An exception that cannot be pickled, or made again from its pickle, would end the worker or
    break the pool, and be lost.
    """
    try:
        return function(*item)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise


def killed(remedy: str) -> str:
    """What to say of a worker that was ended by SIGKILL, without a final stop."""
    return (
        "a worker process was killed, most likely because memory ran out; run the same command "
        f"again with fewer {remedy}"
    )


def _why_lost(error: Exception, option: str) -> str:
    """What became of a worker or of the cluster; empty if the error is the task's."""
    if type(error).__module__.partition(".")[0] == "distributed":
        return f"a worker process was lost ({error}); run the same command again"
    if not isinstance(error, BrokenProcessPool):
        return ""
    if "SIGKILL" in str(error):
        return killed(option)
    if codes := re.search("{.*}", str(error)):
        return f"a worker process ended unexpectedly: {codes[0]}"
    # The cause is the traceback as text of what cannot be unpickled.
    trace = str(error.__cause__ or error).rstrip('\n"')
    return f"a worker process was lost: {trace.splitlines()[-1]}"


def _dask_client(address: str) -> Any:
    with explain_missing("a cluster"):
        from distributed import Client
    try:
        return Client(address, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ConfigError(f"cluster is {address!r}, which cannot be reached: {error}.") from error
