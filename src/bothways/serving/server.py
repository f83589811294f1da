"""`bothways serve`: one process that answers, or several under uvicorn's supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from filelock import FileLock, Timeout
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from bothways.errors import BothwaysError, ConfigError
from bothways.io.processes import exit_with
from bothways.io.terminal import print_note
from bothways.runtime.engine import AUTO, EngineOptions
from bothways.serving.options import KEY, SHARED, Limits, ServeConfig, server_key

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from bothways.serving.app import Server
    from bothways.serving.served import Engines

log = logging.getLogger("bothways.serving")
_GRACE = 1.0
"""Seconds in which a server that was asked to end still takes requests, but says it is not ready:
who sends them needs time to notice."""
_LAST = 0.1
"""Seconds after the deadline of what was accepted in which clients may still take their answers."""
_LATE = 0.3
"""Seconds after the deadline at which a process that has not ended by itself is ended."""
_BACKLOG = 2048
_SWITCH = 0.001
"""Seconds after which threads that work for requests make way for the one that has connections."""
_KEEP_ALIVE = 30
_HEALTH = 30
"""Seconds in which a worker must answer its supervisor; on a busy machine, starting takes long."""
_ARENA_MAX, _ARENAS = -8, 2
"""A parameter of glibc's mallopt, and its value: with an arena for every thread, memory that is
free in one is not used by others, and grows for thousands of requests."""
_PRODUCTS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), "32"
"""Of products in bf16, torch and oneDNN each keep what they compiled for the last 1,024 shapes, a
quarter of a MiB for each: in a process that computes batches of all sizes, hundreds of MiB. To
compile one takes a third of a millisecond. Both must be bounded, or the other keeps them."""
_THREADS = Path("/proc/self/task")


def serve(config: ServeConfig, *, leave: bool = True) -> int:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        config: which models, where, and what limits.
        leave: whether to end the process, too: without the interpreter's own end, which may take
            longer than is left.

    Raises:
        ConfigError: a name or address is not as it must be, the address is in use, or everyone
            could use the server.
        BothwaysError: a model cannot be loaded.
    """
    _ = config.folders  # refused now, before anything starts
    if not server_key() and not config.local and not config.open:
        raise ConfigError(
            f"host is {config.host}, which others can reach, and there is no {KEY} in the "
            "environment, so anyone could use the server. Set it to a secret that clients send "
            "(Authorization: Bearer SECRET), or say --open true."
        )
    _allow_connections(config.limits.connections)
    engines = choose_engines(config)
    for reason in dict.fromkeys(how.reason for how in engines.values() if how.reason):
        print_note(reason)
    os.environ.pop(SHARED, None)  # of another program, whose counters would be ours, too
    with _listening(config.host, config.port) as listener, _handlers_put_back():
        run = _serve_here if config.workers == 1 else _supervise
        status = run(config, engines, listener, leave)
    if leave:
        sys.stdout.flush()
        os._exit(status)
    return status


def choose_engines(config: ServeConfig) -> Engines:
    """How each model is computed, where the options leave that to a benchmark; all processes of a
    server then compute alike.

    Raises:
        BothwaysError: a folder cannot be loaded.
    """
    asked = EngineOptions(config.engine, config.device, config.precision)
    if config.precision != AUTO:
        return dict.fromkeys(config.folders, asked)
    from bothways.runtime.folder import load_model
    from bothways.runtime.speed import settled

    return {
        name: settled(asked, graph=load_model(folder).weights is None)
        for name, folder in config.folders.items()
    }


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another with --host "
            "and --port."
        ) from None


def _allow_connections(count: int) -> None:
    """Let the process open as many files as it may have connections, if the system does."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count + 256
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _say(listener: socket.socket, config: ServeConfig) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    more = "" if config.workers == 1 else f", {config.workers} workers"
    print(f"serving {', '.join(config.folders)} at http://{shown}:{port}{more}", flush=True)


# ---------------------------------------------------------------------------------------- signals


def _ending_signals() -> list[int]:
    """SIGTERM, SIGINT, and the signal of a terminal that is closed, unless that is ignored
    (``nohup``) or not known; none outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return []
    hangup = getattr(signal, "SIGHUP", None)
    heard = hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN
    numbers: list[int | None] = [signal.SIGTERM, signal.SIGINT, hangup if heard else None]
    return [number for number in numbers if number is not None]


@contextlib.contextmanager
def _handlers_put_back() -> Iterator[None]:
    """Whatever handlers of signals the block sets, those from before are set after it."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)


def _end_by_signals(server: Server, *, leave: bool) -> None:
    """Have signals end the server of the running event loop in two steps: it is not ready any more,
    and after :data:`_GRACE` seconds it takes no connections. With ``leave`` its process ends a
    moment after the deadline, whatever holds it."""
    loop, numbers = asyncio.get_running_loop(), _ending_signals()

    def begin(number: int, frame: FrameType | None) -> None:
        grace = 0.0 if number == signal.SIGINT else _GRACE
        left = max(0.0, server.limits.deadline - _GRACE + grace)
        again, server.ends_at = server.draining, min(server.ends_at, time.monotonic() + left)
        if not again:
            # What is broken off has a traceback in its log.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            if leave:
                _run_after(server.limits.deadline + _LATE, os._exit, 0)
        if not grace:
            stop(number, frame)
        elif not again:
            loop.call_soon_threadsafe(loop.call_later, grace, stop, number, None)

    if numbers:
        early = server.draining  # a signal came before the loop ran
        stop: Any = signal.getsignal(signal.SIGTERM)  # uvicorn's
        for number in numbers:
            signal.signal(number, begin)
        if early:
            stop(signal.SIGTERM, None)


def _run_after(seconds: float, function: Callable[..., object], *given: object) -> None:
    timer = threading.Timer(seconds, function, given)
    timer.daemon = True
    timer.start()


# ------------------------------------------------------------------------------------ one process


def _set_process_up() -> None:
    """What holds for the whole process, before it has threads and loads an engine."""
    sys.setswitchinterval(_SWITCH)
    names, capacity = _PRODUCTS
    for name in names:
        os.environ.setdefault(name, capacity)
    chosen = os.environ.get("MALLOC_ARENA_MAX", "") + os.environ.get("GLIBC_TUNABLES", "")
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        if not chosen:
            ctypes.CDLL(None).mallopt(_ARENA_MAX, _ARENAS)


def make_server(config: ServeConfig, engines: Engines, *, notes: bool = False) -> Server:
    """The models of a server with what its routes share; nothing listens yet.

    Args:
        config: which models, and what limits.
        engines: how each is computed.
        notes: whether to print what is to be said of the models.

    Raises:
        BothwaysError: a model cannot be loaded.
    """
    from bothways.serving.app import Server
    from bothways.serving.metrics import Metrics
    from bothways.serving.served import Threads, open_models

    threads, metrics = Threads(), Metrics()
    models = open_models(config, engines, threads, metrics)
    for served in models.values() if notes else ():
        for note in served.model.loaded.notes:
            print_note(f"{served.name}: {note}")
    return Server(
        *(models, threads, config.limits, metrics), key=server_key(), origins=config.origins
    )


def make_listener(server: Server, *, leave: bool = False) -> uvicorn.Server:
    """What takes connections for a server, when it is run."""
    from bothways.serving.app import application

    app = application(server, started=partial(_end_by_signals, server, leave=leave))
    return uvicorn.Server(_settings(app, server.limits))


def _settings(app: Any, limits: Limits, **more: Any) -> uvicorn.Config:
    from bothways.serving.protocol import LimitedProtocol

    return uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.ERROR,  # what is no HTTP is counted, and would fill the log
        access_log=False,  # paths are clients' own words
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(0.0, limits.deadline - _GRACE) + _LAST,  # type: ignore[arg-type]
        **more,
    )


def _serve_here(config: ServeConfig, engines: Engines, listener: socket.socket, leave: bool) -> int:
    _set_process_up()
    server = make_server(config, engines, notes=True)

    def note(*_: object) -> None:
        server.ends_at = min(server.ends_at, time.monotonic() + config.limits.deadline)

    for number in _ending_signals():  # before the loop has its own, and when it has ended
        signal.signal(number, note)
    _say(listener, config)
    make_listener(server, leave=leave).run(sockets=[listener])
    for served in server.models.values():
        served.batcher.stop(_LAST)
    return 0


# ------------------------------------------------------------------------------- several processes


def _take_share(folder: str, workers: int) -> int:
    """Take the lowest number that no other worker has, as long as this process lives, and run its
    threads on that share of the cores, where the system lets a process choose."""
    number = 0
    for number in range(workers):
        lock = FileLock(Path(folder) / f"worker-{number}.lock")
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
            _HELD.append(lock)
            break
    if hasattr(os, "sched_setaffinity") and _THREADS.is_dir():
        cores = sorted(os.sched_getaffinity(0))
        for thread in _THREADS.iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(int(thread.name), cores[number::workers] or cores)
    return number


_HELD: list[FileLock] = []


def _work(config: ServeConfig, engines: Engines, parent: int) -> Starlette:
    """The application of a worker process, which uvicorn asks for when its signals are set."""
    from bothways.serving.app import application

    exit_with(parent)
    # Nothing is in its hands yet.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _ending_signals()}
    _set_process_up()
    number = _take_share(os.environ[SHARED], config.workers)
    try:
        server = make_server(config, engines, notes=not number)  # the others would say the same
    except BothwaysError as error:
        print(f"bothways: error: {error}", file=sys.stderr, flush=True)
        sys.exit(STARTUP_FAILURE)
    for sent, handler in before.items():
        signal.signal(sent, handler)
    return application(server, started=partial(_end_by_signals, server, leave=True))


class _Workers(Multiprocess):
    """uvicorn's supervisor, which starts worker processes and replaces those that end.

    It waits for them without limit, so they end by themselves (:func:`_end_by_signals`).

    Args:
        config: of the server.
        settings: of each worker.
        listener: that all of them take connections from.
        leave: whether to end this process with the workers, a moment after the deadline.
    """

    def __init__(
        self, config: ServeConfig, settings: uvicorn.Config, listener: socket.socket, *, leave: bool
    ):
        from bothways.serving.metrics import Metrics

        numbers = _ending_signals()
        hangup = getattr(signal, "SIGHUP", None)
        super().__init__(settings, [listener])
        if hangup and hangup not in numbers:
            signal.signal(hangup, signal.SIG_IGN)
        for number in numbers:
            signal.signal(number, self._end)
        self._served, self._metrics, self._leave = config, Metrics(), leave
        self._ending = self.failed = False

    def _end(self, number: int, _: FrameType | None) -> None:
        """Pass a signal on at once, as :meth:`run` may be waiting for an answer of a worker."""
        self.signal_queue.append(signal.SIGTERM)
        for worker in self.processes:
            if self._ending and number == signal.SIGINT:
                worker.process.kill()
            else:
                worker.process.terminate()
        if not self._ending:
            _run_after(self._served.limits.deadline + _LATE + _LAST, self._late)
        self._ending = True

    def _late(self) -> None:
        for worker in self.processes:
            worker.process.kill()
        if self._leave:
            os._exit(0)

    def init_processes(self) -> None:
        """Start the first worker alone, so that what is wrong with a model is said once."""
        for count in (1, self._served.workers - 1):
            self.processes_num = count
            super().init_processes()
            while not all(worker.is_ready(1) for worker in self.processes):
                self.handle_signals()
                if self._ending or any(one.exitcode is not None for one in self.processes):
                    self.failed = not self._ending
                    self.should_exit.set()
                    return
        _say(self.sockets[0], self._served)

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended; but end if one cannot load the models."""
        from prometheus_client.multiprocess import mark_process_dead

        before = [*self.processes]
        super().keep_subprocess_alive()
        self.failed |= any(worker.exitcode == STARTUP_FAILURE for worker in self.processes)
        for old, new in zip(before, self.processes, strict=True):
            if new is not old:
                log.warning("a worker ended (%s); starting another", old.exitcode)
                self._metrics.replaced.inc()
                mark_process_dead(old.pid)  # type: ignore[no-untyped-call]


def _supervise(config: ServeConfig, engines: Engines, listener: socket.socket, leave: bool) -> int:
    """Oversee worker processes until a signal.

    Returns:
        The exit status: 1 if a worker could not load the models.
    """
    with tempfile.TemporaryDirectory(prefix="bothways-metrics-") as counted:
        os.environ[SHARED] = counted  # before the library is imported, here and in workers
        settings = _settings(
            partial(_work, config, engines, os.getpid()),
            config.limits,
            factory=True,
            workers=config.workers,
            timeout_worker_healthcheck=_HEALTH,
        )
        workers = _Workers(config, settings, listener, leave=leave)
        try:
            workers.run()
        finally:
            del os.environ[SHARED]
            for worker in workers.processes:
                worker.process.kill()
                worker.process.join()
        return int(workers.failed)
