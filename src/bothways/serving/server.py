"""`bothways serve`: one process that answers, or several under a parent that replaces them."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from bothways.errors import BothwaysError, ConfigError
from bothways.io.processes import exit_with
from bothways.io.terminal import print_note
from bothways.runtime.engine import AUTO, EngineOptions
from bothways.serving.options import KEY, SHARED, ServeConfig, server_key

if TYPE_CHECKING:
    import uvicorn

    from bothways.serving.app import Server
    from bothways.serving.served import Engines
    from bothways.serving.sources import Sources

log = logging.getLogger("bothways.serving")
_GRACE = 1.0
"""Seconds in which a server that was asked to end still takes requests, but says it is not ready:
who sends them needs time to notice."""
_LAST = 0.1
"""Seconds after the deadline of what was accepted in which clients may still take their answers."""
_FINALIZE = 3.0
"""Seconds that an interpreter with torch may take to end on a busy machine."""
_BACKLOG = 2048
_SWITCH = 0.001
"""Seconds after which threads that work for requests make way for the one that has connections."""
_KEEP_ALIVE = 30
_ARENA_MAX, _ARENAS = -8, 2
"""A parameter of glibc's mallopt, and its value: with an arena for every thread, memory that is
free in one is not used by others, and grows for thousands of requests."""
_PRODUCTS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), "32"
"""Of products in bf16, torch and oneDNN each keep what they compiled for the last 1,024 shapes, a
quarter of a MiB for each: in a process that computes batches of all sizes, hundreds of MiB. To
compile one takes a third of a millisecond. Both must be bounded, or the other keeps them."""
_LOOK = 0.05
"""Seconds between looks at the workers."""
_THREADS = Path("/proc/self/task")
_TRIES = 3
"""Workers in a row that may end before they are ready."""
_CHANGED = 3
"""The exit status of a worker that found other models than the server began with."""


def serve(config: ServeConfig, *, leave: bool = True) -> int:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        config: which models, where, and what limits.
        leave: whether to end the process if the interpreter would not end in time by itself.

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
    if config.workers == 1:
        os.environ.pop(SHARED, None)  # of another program, whose counters would be ours, too
        _set_process_up()
        with _listening(config.host, config.port) as listener:
            server = _loaded(config, engines)
            ends_at = _answer(server, listener, lambda: _say(listener, list(server.models)))
        status = 0
    else:
        parent = _Parent(config, engines)
        status, ends_at = parent.run(), parent.ends_at
    return _leave(status, ends_at) if leave else status


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


def _listening(host: str, port: int, **how: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, **how)
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


def _hangup() -> list[int]:
    """The signal of a terminal that is closed, unless it is ignored (``nohup``) or not known."""
    number = getattr(signal, "SIGHUP", None)
    return [] if number is None or signal.getsignal(number) is signal.SIG_IGN else [number]


def _say(listener: socket.socket, models: list[str], more: str = "") -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"serving {', '.join(models)} at http://{shown}:{port}{more}", flush=True)


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


def make_server(
    config: ServeConfig, engines: Engines, *, in_hand: Callable[[int], object] | None = None
) -> Server:
    """The models of a server with what its routes share; nothing listens yet.

    Args:
        config: which models, and what limits.
        engines: how each is computed.
        in_hand: called with the number of requests that are being answered, when it changes.

    Raises:
        BothwaysError: a model cannot be loaded.
    """
    from bothways.serving.app import Server
    from bothways.serving.metrics import Metrics
    from bothways.serving.served import Threads, open_models

    threads, metrics = Threads(), Metrics()
    models = open_models(config, engines, threads, metrics)
    server = Server(
        *(models, threads, config.limits, metrics), key=server_key(), origins=config.origins
    )
    if in_hand is not None:
        server.in_hand = in_hand
    return server


def make_listener(server: Server, ready: Callable[[], object] | None = None) -> uvicorn.Server:
    """What takes connections for a server, when it is run; ``ready`` is called once it does, and
    heeds signals."""
    import uvicorn

    from bothways.serving.app import application
    from bothways.serving.protocol import protocol

    class Listener(uvicorn.Server):
        """Ends in two steps: not ready any more, and then no connections."""

        drained_at = math.inf
        failed: OSError | None = None

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            try:
                if ready is not None:
                    ready()
            except OSError as error:  # such as a full disk under stdout: ends like a signal
                self.failed, self.should_exit = error, True

        def run(self, sockets: list[socket.socket] | None = None) -> None:
            super().run(sockets)
            if self.failed is not None:
                raise self.failed

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Also :func:`_hangup`."""
            in_main = threading.current_thread() is threading.main_thread()
            before = {n: signal.signal(n, self.handle_exit) for n in _hangup() if in_main}
            try:
                with super().capture_signals():
                    yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
            if server.draining:
                self.should_exit = True
                self.force_exit = sig == signal.SIGINT
            now = time.monotonic()
            server.ends_at = min(server.ends_at, now + server.limits.deadline)
            self.drained_at = now + (0 if sig == signal.SIGINT else _GRACE)

        async def on_tick(self, counter: int) -> bool:
            self.should_exit |= time.monotonic() >= self.drained_at
            return await super().on_tick(counter)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # What is broken off has a traceback in its log.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            left = min(server.ends_at - time.monotonic(), server.limits.deadline)
            self.config.timeout_graceful_shutdown = max(0.0, left) + _LAST  # type: ignore[assignment]
            await super().shutdown(sockets)

    return Listener(
        uvicorn.Config(
            application(server),
            http=protocol(server.limits, server.metrics),
            ws="none",
            lifespan="on",
            log_config=None,
            log_level=logging.ERROR,  # what is no HTTP is counted, and would fill the log
            access_log=False,  # paths are clients' own words
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE,
        )
    )


def _loaded(config: ServeConfig, engines: Engines, worker: _Slot | None = None) -> Server:
    """The models, with what is to be said of them."""
    server = make_server(config, engines, in_hand=None if worker is None else worker.in_hand)
    if worker is None or worker.number == 0:  # the others would say the same
        for served in server.models.values():
            for note in served.model.loaded.notes:
                print_note(f"{served.name}: {note}")
    return server


def _answer(server: Server, listener: socket.socket, ready: Callable[[], object]) -> float:
    """Answer until a signal; when the process must end, which is now if an engine does not stop."""
    make_listener(server, ready).run(sockets=[listener])
    stopped = all(one.batcher.stop(0.1) for one in server.models.values())
    return server.ends_at if stopped else 0.0


def _leave(status: int, ends_at: float) -> int:
    """The exit status; if there is no time to end the interpreter by then, end the process."""
    if ends_at - time.monotonic() < _FINALIZE:
        sys.stdout.flush()
        os._exit(status)
    return status


# ------------------------------------------------------------------------------- several processes


class _Slot:
    """What a worker tells its parent: of this, its number and two shared arrays.

    Args:
        number: of the worker; None until a spare one is given the number of one that ended.
        in_hand, ready: by number.
    """

    def __init__(self, number: int | None, in_hand: Any, ready: Any):
        self.number, self._in_hand, self._ready = number, in_hand, ready

    def in_hand(self, count: int) -> None:
        """Note how many requests are being answered."""
        if self.number is not None:
            self._in_hand[self.number] = count

    def is_ready(self) -> None:
        """Note that the models are loaded, and connections come."""
        if self.number is not None:
            self._ready[self.number] = 1


class _Cores:
    """Those that the workers share, where the system lets a process choose.

    Args:
        workers: how many share them.
    """

    def __init__(self, workers: int):
        self._workers = workers
        self._all: list[int] = []
        if hasattr(os, "sched_setaffinity") and _THREADS.is_dir():
            self._all = sorted(os.sched_getaffinity(0))

    def take(self, number: int | None) -> None:
        """Let all threads of this process run on the share of a worker, and those that they start.
        A spare one, which may get any number, has the smallest share."""
        first = self._workers - 1 if number is None else number
        share = self._all[first :: self._workers] or self._all
        for thread in _THREADS.iterdir() if share else ():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(int(thread.name), share)


def _work(
    config: ServeConfig,
    engines: Engines,
    sources: Sources,
    slot: _Slot,
    port: int,
    parent: int,
    told: Connection,
) -> None:
    """A worker process; if its slot has no number yet, a spare one, which loads the models, says so
    and waits for one."""
    from bothways.serving.sources import ChangedError

    exit_with(parent)
    signal.signal(signal.SIGINT, lambda *_: os._exit(1))  # nothing is in its hands yet
    _set_process_up()
    cores = _Cores(config.workers)
    cores.take(slot.number)
    try:
        sources.refuse_changed()  # also where they could not be loaded any more
        server = _loaded(config, engines, slot)
        sources.refuse_changed()  # meanwhile
        if slot.number is None:
            told.send(None)
            slot.number = told.recv()
            cores.take(slot.number)
        # Not before: of who connects, the system sends each listener its share.
        with _listening(config.host, port, reuse_port=True) as listener:
            status = _leave(0, _answer(server, listener, slot.is_ready))
    except BothwaysError as error:
        print(f"bothways: error: {error}", file=sys.stderr)
        status = _CHANGED if isinstance(error, ChangedError) else 1
    except EOFError:  # the parent ended before it gave a number
        status = 1
    sys.exit(status)


class _Worker:
    """A worker process, as its parent has it.

    Args:
        process: started.
        told: a connection to it.
    """

    def __init__(self, process: BaseProcess, told: Connection):
        self.process, self._told = process, told
        self._loaded = False

    @property
    def ended(self) -> bool:
        """Whether the process has."""
        return self.process.exitcode is not None

    @property
    def loaded(self) -> bool:
        """Whether a spare one has ever said that it has loaded its models."""
        with contextlib.suppress(EOFError, OSError):  # it has ended
            if not self._loaded and self._told.poll():
                self._told.recv()
                self._loaded = True
        return self._loaded

    def take_on(self, number: int) -> bool:
        """Give a spare one its number; False if it has not loaded its models, or has ended."""
        if self.ended or not self.loaded:
            return False
        try:
            self._told.send(number)
        except OSError:  # just now
            return False
        return True

    def signal(self, number: int) -> None:
        """Send the process a signal, unless it has ended."""
        if self.process.pid and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)


class _Parent:
    """Starts workers, replaces those that end, and ends them with itself.

    A spare worker has loaded the models and takes the place of one that ends at once: to start
    another takes seconds, more with larger models. The next spare one is started then.

    All workers answer alike: one that finds other files than the first does not serve them, and the
    server ends, with what it has accepted answered, when it would need that one. To go on with
    fewer would end with none, later and less noticed.

    Args:
        config: of the server.
        engines: how each model is computed.
    """

    def __init__(self, config: ServeConfig, engines: Engines):
        if not getattr(socket, "SO_REUSEPORT", None):
            raise ConfigError(
                "this system cannot share a port among processes; leave out --workers."
            )
        self.config, self._engines = config, engines
        # Not forked: threads of engines that this process may have would be missing in a fork.
        self._context = multiprocessing.get_context("spawn")
        self._in_hand = self._context.RawArray("q", config.workers)
        self._ready = self._context.RawArray("b", config.workers)
        self._workers: dict[int, _Worker] = {}
        self._spare: _Worker | None = None
        self._spare_fails = False
        self._ending, self.ends_at = False, math.inf

    def run(self) -> int:
        """Oversee the workers until a signal.

        Returns:
            The exit status: 1 if the workers end before they have ever answered, or one that is
            needed finds other models than the server began with.

        Raises:
            ModelError: the folder of a model cannot be read.
        """
        from bothways.serving.sources import Sources

        config = self.config
        with _listening(config.host, config.port):
            pass  # nobody else has the port
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        with (
            socket.socket(family) as holder,  # keeps the port, and takes no connections
            tempfile.TemporaryDirectory(prefix="bothways-metrics-") as counted,
        ):
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind((config.host, config.port))
            os.environ[SHARED] = counted  # before the library is imported, here and in workers
            from bothways.serving.metrics import Metrics

            self._metrics = Metrics()
            self._port = holder.getsockname()[1]
            for signal_number in (signal.SIGTERM, signal.SIGINT, *_hangup()):
                signal.signal(signal_number, self._end)
            self._sources = Sources(config.folders)
            self._start(0)  # alone, so that what is wrong with a model is said once
            self._sources.sum_up()
            while not self._ready[0] and not self._ending:
                if self._workers[0].ended:
                    return 1
                time.sleep(_LOOK)
            for number in range(1, config.workers):
                self._start(number)
            while not all(self._ready) and not self._ending:
                if any(worker.ended for worker in self._workers.values()):
                    break  # another is started below
                time.sleep(_LOOK)
            if not self._ending:
                _say(holder, list(config.folders), f", {config.workers} workers")
                self._keep_spare()
            return self._oversee()

    def _end(self, number: int, _: FrameType | None) -> None:
        self._ending = True
        self.ends_at = min(self.ends_at, time.monotonic() + self.config.limits.deadline)
        for worker in self._workers.values():
            worker.signal(number)

    def _start(self, number: int) -> None:
        """Start the worker of a number, or give it to the spare one."""
        self._ready[number] = self._in_hand[number] = 0
        spare = self._spare
        if spare is not None and spare.take_on(number):
            self._workers[number], self._spare = spare, None
        else:
            self._workers[number] = self._spawn(number)

    def _spawn(self, number: int | None) -> _Worker:
        own, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_work,
            args=(
                *(self.config, self._engines, self._sources),
                *(_Slot(number, self._in_hand, self._ready), self._port, os.getpid(), theirs),
            ),
            name="spare worker" if number is None else f"worker {number}",
            daemon=True,  # ended with this process, whatever ends it
        )
        process.start()
        theirs.close()  # so that the end of the process is the end of the connection
        return _Worker(process, own)

    def _keep_spare(self) -> None:
        if self.config.spare and self._spare is None and not self._spare_fails:
            self._spare = self._spawn(None)

    def _oversee(self) -> int:
        failures = 0
        while not self._ending:
            wait([worker.process.sentinel for worker in self._workers.values()], timeout=_LOOK)
            for number, worker in self._workers.items():
                if not worker.ended or self._ending:
                    continue
                if worker.process.exitcode == _CHANGED and not self._ready[number]:
                    return self._give_up(
                        "the files of the models have changed since the server began, and no "
                        "worker can take the place of one that ended"
                    )
                self._bury(number, worker.process)
                failures = 0 if self._ready[number] else failures + 1
                if failures >= _TRIES:
                    return self._give_up("workers end before they are ready")
                self._start(number)
            if self._spare is not None and self._spare.ended:
                self._bury_spare(self._spare)
            if all(self._ready) and not self._ending:  # a worker that starts has the cores first
                self._keep_spare()
        return self._finish(0)

    def _give_up(self, why: str) -> int:
        log.error("%s; the server ends: start it again", why)
        self._end(signal.SIGTERM, None)
        return self._finish(1)

    def _finish(self, status: int) -> int:
        """Wait until the workers have ended."""
        if self._spare is not None:
            self._spare.process.kill()  # it has nothing in hand
            self._spare.process.join()
        for worker in self._workers.values():
            worker.process.join(max(0.0, self.ends_at + 3 * _LAST - time.monotonic()))
            if not worker.ended:
                worker.process.kill()
        return status

    def _bury_spare(self, spare: _Worker) -> None:
        """Let another take its place; but if it could not load the models (there is no memory, or
        the folders are others), only after a worker was replaced. The others answer as before."""
        from prometheus_client.multiprocess import mark_process_dead

        changed = spare.process.exitcode == _CHANGED and not spare.loaded
        more = "; the others answer as before, until one of them ends" if changed else ""
        log.warning("the spare worker ended (%s)%s", spare.process.exitcode, more)
        self._spare, self._spare_fails = None, not spare.loaded
        mark_process_dead(spare.process.pid)  # type: ignore[no-untyped-call]

    def _bury(self, number: int, worker: BaseProcess) -> None:
        """Count what a worker had in hand when it ended."""
        from prometheus_client.multiprocess import mark_process_dead

        lost = int(self._in_hand[number])
        log.warning(
            "worker %d ended (%s) with %d requests in hand; starting another",
            *(number, worker.exitcode, lost),
        )
        self._spare_fails = False
        self._metrics.lost.inc(lost)
        self._metrics.replaced.inc()
        mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
