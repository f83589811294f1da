"""`bothways serve`: one process that answers, or several under uvicorn's supervisor."""

from __future__ import annotations

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
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import SIGNALS, Multiprocess, Process

from bothways.errors import BothwaysError, ConfigError
from bothways.io.processes import exit_with
from bothways.io.terminal import print_note
from bothways.runtime.engine import AUTO, EngineOptions
from bothways.serving.options import KEY, SHARED, Limits, ServeConfig, server_key

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from bothways.runtime.folder import LoadedModel
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
    _allow_connections()
    engines = choose_engines(config)
    for reason in dict.fromkeys(how.reason for how in engines.values() if how.reason):
        print_note(reason)
    os.environ.pop(SHARED, None)  # of another program, whose counters would be ours, too
    before = {number: signal.getsignal(number) for number in SIGNALS}
    run = _serve_here if config.workers == 1 else _supervise
    try:
        with _listening(config.host, config.port) as listener:
            status = run(config, engines, listener, leave)
    finally:
        with contextlib.suppress(ValueError):  # in another thread than the main one
            for number, handler in before.items():
                signal.signal(number, handler)
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


def _allow_connections() -> None:
    """Let the process open as many files, and so connections, as the system allows."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
    found: list[int] = [signal.SIGTERM, signal.SIGINT]
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        found.append(hangup)
    return found


def _end_by_signals(server: Server, *, leave: bool) -> None:
    """Have signals end the server of the running event loop in two steps: it is not ready any more,
    and after :data:`_GRACE` seconds it takes no connections. With ``leave`` its process ends a
    moment after the deadline, whatever holds it."""
    numbers = _ending_signals()
    # The bound method of uvicorn's server, which would end by the signal again.
    running: Any = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)

    def begin(number: int, _: FrameType | None) -> None:
        if server.draining:
            running.force_exit |= number == signal.SIGINT
            return
        grace = 0.0 if number == signal.SIGINT else _GRACE
        left = max(0.0, server.limits.deadline - _GRACE + grace)
        server.ends_at = time.monotonic() + left
        if leave:
            _run_after(server.limits.deadline + _LATE, os._exit, 0)
        _run_after(grace, setattr, running, "should_exit", True)

    for number in numbers:
        signal.signal(number, begin)


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


def make_server(config: ServeConfig, engines: Engines) -> Server:
    """The models of a server with what its routes share; nothing listens yet.

    Args:
        config: which models, and what limits.
        engines: how each is computed.

    Raises:
        BothwaysError: a model cannot be loaded.
    """
    from bothways.serving.app import Server
    from bothways.serving.metrics import Metrics
    from bothways.serving.served import Threads, open_models

    threads, metrics = Threads(), Metrics()
    models = open_models(config, engines, threads, metrics)
    return Server(
        *(models, threads, config.limits, metrics), key=server_key(), origins=config.origins
    )


def make_listener(
    server: Server, *, leave: bool = False, say: Callable[[], None] = lambda: None
) -> uvicorn.Server:
    """What takes connections for a server, when it is run; ``say`` is called when it does."""
    from bothways.serving.app import application

    def started() -> None:
        _end_by_signals(server, leave=leave)
        say()

    app = application(server, started)
    return uvicorn.Server(_settings(app, server.limits))


def _settings(app: Any, limits: Limits, **more: Any) -> uvicorn.Config:
    from bothways.serving.protocol import LimitedProtocol

    return uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.CRITICAL,  # what is no HTTP is counted, and would fill the log
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
    server = make_server(config, engines)
    for served in server.models.values():
        _note(served.name, served.model.loaded)
    say = partial(_say, listener, config)
    make_listener(server, leave=leave, say=say).run(sockets=[listener])
    for served in server.models.values():
        served.batcher.stop(_LAST)
    return 0


# ------------------------------------------------------------------------------- several processes


def _work(config: ServeConfig, engines: Engines, parent: int) -> Starlette:
    """The application of a worker process, which uvicorn asks for when its signals are set."""
    from bothways.serving.app import application

    exit_with(parent)
    uvicorns = {number: signal.signal(number, signal.SIG_DFL) for number in _ending_signals()}
    _set_process_up()
    try:
        server = make_server(config, engines)
    except BothwaysError as error:
        print(f"bothways: error: {error}", file=sys.stderr, flush=True)
        sys.exit(STARTUP_FAILURE)
    for number, handler in uvicorns.items():
        signal.signal(number, handler)
    return application(server, partial(_end_by_signals, server, leave=True))


class _Workers(Multiprocess):
    """uvicorn's supervisor, which starts worker processes and replaces those that end. It waits for
    them without limit, so they end by themselves (:func:`_end_by_signals`).

    Args:
        config: of the server.
        settings: of each worker.
        listener: that all of them take connections from.
    """

    def __init__(self, config: ServeConfig, settings: uvicorn.Config, listener: socket.socket):
        from bothways.serving.metrics import Metrics

        self._ending = _ending_signals()
        super().__init__(settings, [listener])
        self._served, self._metrics, self.failed = config, Metrics(), False

    def handle_hup(self) -> None:
        """End when the terminal closes, unless that is ignored."""
        if getattr(signal, "SIGHUP", None) in self._ending:
            self.handle_term()

    def init_processes(self) -> None:
        """Start the workers, and say so when all of them take requests."""
        super().init_processes()
        self._share_cores(self.processes)
        while not all(worker.is_ready(1) for worker in self.processes):
            self.handle_signals()
            if any(worker.exitcode is not None for worker in self.processes):
                self.keep_subprocess_alive()
            if self.should_exit.wait(0.1):
                return
        _say(self.sockets[0], self._served)

    def _share_cores(self, started: Sequence[Process]) -> None:
        """Give workers that have no threads yet their shares of the cores, where the system can."""
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            for worker in started:
                share = cores[self.processes.index(worker) :: len(self.processes)]
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.sched_setaffinity(worker.pid or 0, share or cores)

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended; but end if one cannot load the models."""
        from prometheus_client.multiprocess import mark_process_dead

        before = [*self.processes]
        super().keep_subprocess_alive()
        self.failed |= any(worker.exitcode == STARTUP_FAILURE for worker in self.processes)
        for old, new in zip(before, self.processes, strict=True):
            if new is not old:
                self._share_cores([new])
                log.warning("a worker ended (%s); starting another", old.exitcode)
                self._metrics.replaced.inc()
                mark_process_dead(old.pid)  # type: ignore[no-untyped-call]


def _supervise(config: ServeConfig, engines: Engines, listener: socket.socket, _: bool) -> int:
    """Oversee worker processes until a signal.

    Returns:
        The exit status: 1 if a worker could not load the models.
    """
    from bothways.runtime.folder import load_model

    for name, folder in config.folders.items():  # what is wrong with one is said once
        _note(name, load_model(folder))
    with tempfile.TemporaryDirectory(prefix="bothways-metrics-") as counted:
        os.environ[SHARED] = counted  # before the library is imported, here and in workers
        settings = _settings(
            partial(_work, config, engines, os.getpid()),
            config.limits,
            factory=True,
            workers=config.workers,
            timeout_worker_healthcheck=_HEALTH,
        )
        workers = _Workers(config, settings, listener)
        try:
            workers.run()
        finally:
            del os.environ[SHARED]
            for worker in workers.processes:
                worker.process.kill()
                worker.process.join()
        return int(workers.failed)


def _note(name: str, loaded: LoadedModel) -> None:
    for note in loaded.notes:
        print_note(f"{name}: {note}")
