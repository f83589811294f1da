"""One compute thread per model, which makes batches of what all requests ask for.

A :class:`Batcher` stands before a model's engine and is one itself. So a request runs through the
same code as a call from Python, in a thread of its own, and only where that asks the engine its
sequences meet those of others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways import arrays
from bothways.batch import Batch, flat_batch
from bothways.runtime.engine import NONE, Engine, Inside, batch_limit, inspecting, layer_name
from bothways.serving.refusals import RefusedError
from bothways.tasks.examples import PREDICT_TOKENS

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
_LOOKED_AT = 2048
"""Waiting sequences among which a batch is chosen."""
_SMOOTHING = 0.2
_TELLING = 4
"""Of a full batch, the part from which on its rate tells how fast a queue is worked off."""


@dataclass(eq=False)
class Ticket:
    """A request that was accepted.

    Attributes:
        deadline: by ``time.monotonic``.
        reserved: tokens it was thought to have.
        characters: of its texts.
        tokens: those that were asked of the engine for it.
    """

    deadline: float
    reserved: int
    characters: int = 0
    tokens: int = 0


TICKET: ContextVar[Ticket | None] = ContextVar("TICKET", default=None)
"""The request for which this thread works."""


class Gate:
    """Lets the threads of as many requests work at a time. A thread gives up its place while it
    waits for the engine; that of one which works beyond its deadline is taken away.

    Args:
        places: requests at a time.
    """

    def __init__(self, places: int):
        self._free = threading.Semaphore(places)
        self._inside: dict[Ticket, bool] = {}

    def enter(self, ticket: Ticket) -> None:
        """Wait for a place.

        Raises:
            RefusedError: the deadline passed.
        """
        if not self._free.acquire(timeout=max(0.0, ticket.deadline - time.monotonic())):
            raise past_deadline()
        self._inside[ticket] = True
        if time.monotonic() > ticket.deadline:  # nobody may take the place away any more
            self.leave(ticket)
            raise past_deadline()

    def leave(self, ticket: Ticket) -> None:
        """Give up the place, unless it was given up or taken away before."""
        if self._inside.pop(ticket, False):
            self._free.release()


class _Job:
    """A call of the engine, which is done when all its sequences are; or one sequence to be
    inspected, alone."""

    def __init__(
        self,
        batch: Batch,
        heads: Mapping[str, Integers],
        layers: Sequence[int],
        inspect: Callable[[Batch], Inside] | None = None,
    ):
        self.batch, self.heads, self.layers, self.inspect = batch, heads, tuple(layers), inspect
        self.kind: object = (*sorted(heads), *sorted({*layers})) if inspect is None else self
        self.future: Future[Any] = Future()
        self.order = {head: np.argsort(at, kind="stable") for head, at in heads.items()}
        self.found: list[dict[str, Floats]] = [{}] * batch.sequences
        self.left = batch.sequences
        ticket = TICKET.get()
        self.deadline = ticket.deadline if ticket else float("inf")

    def entries(self) -> list[Entry]:
        """Its sequences, with the tokens that each head reads of them."""
        bounds, lengths = self.batch.bounds, self.batch.lengths.tolist()
        found = [Entry(self, n, length, self.kind) for n, length in enumerate(lengths)]
        for head, at in self.heads.items():
            ordered = at[self.order[head]]
            cuts = np.searchsorted(ordered, bounds[1 : len(found)])
            for entry, own in zip(found, np.split(ordered, cuts), strict=True):
                entry.heads[head] = own - bounds[entry.number]
        return found

    def put(self, number: int, found: dict[str, Floats]) -> None:
        """Store the outputs of a sequence; of the last one, the call is done."""
        self.found[number] = found
        self.left -= 1
        if not self.left and not self.future.done():
            whole = {name: np.concatenate([one[name] for one in self.found]) for name in found}
            for head, order in self.order.items():
                ordered, whole[head] = whole[head], np.empty_like(whole[head])
                whole[head][order] = ordered
            self.future.set_result(whole)

    def fail(self, error: BaseException) -> None:
        """End with an error, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(eq=False)
class Entry:
    """A sequence that waits.

    Attributes:
        job: that asked for it.
        number: among the job's sequences.
        length: in tokens.
        kind: what is asked of it; sequences of one kind can share a batch.
        heads: the tokens that each head reads, counted from its first.
    """

    job: _Job
    number: int
    length: int
    kind: object
    heads: dict[str, Integers] = field(default_factory=dict)


def choose(waiting: Sequence[Entry], budget: int) -> list[Entry]:
    """The next batch: the oldest sequence, and with it those of its kind and the nearest lengths.

    Args:
        waiting: one or more, the oldest first.
        budget: tokens of the batch, counted as if all were as long as its longest.
    """
    first, *others = (entry for entry in waiting if entry.kind == waiting[0].kind)
    others.sort(key=lambda entry: abs(entry.length - first.length))
    chosen, longest = [first], first.length
    for entry in others:
        width = max(longest, entry.length)
        if width * (len(chosen) + 1) <= budget:
            chosen.append(entry)
            longest = width
    return chosen


class Batcher:
    """An engine that computes for several threads at once, in batches of all they ask for.

    Args:
        engine: that computes.
        gate: that threads which work for a request leave while they wait here.
        observe: called after each batch with its sequences, its tokens and its seconds.
        budget: tokens of a batch; for an engine that is slower with as many, fewer.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        gate: Gate,
        observe: Callable[[int, int, float], object],
        budget: int = PREDICT_TOKENS,
    ):
        self._engine, self._gate, self._observe = engine, gate, observe
        self.name, self.precision = engine.name, engine.precision
        self.budget = batch_limit(engine, budget)
        """Tokens of a batch, counted as if all its sequences were as long as the longest."""
        self._waiting: list[Entry] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._ended: BaseException | None = None
        self.rate = 0.0
        """Tokens per second of late, in batches full enough to tell; 0 before the first."""
        self._started: float | None = None
        self.longest = 0.0
        """Seconds that a batch took at most."""
        self._thread = threading.Thread(target=self._serve, name="compute", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> float:
        """Seconds for which the engine has been at work on a batch; infinity if its thread has
        ended."""
        if not self._thread.is_alive():
            return float("inf")
        started = self._started
        return 0.0 if started is None else time.monotonic() - started

    def working(self) -> AbstractContextManager[None]:
        """Nothing: the compute thread is in the engine's own block all the time."""
        return nullcontext()

    def stop(self, within: float) -> bool:
        """End the compute thread when nothing waits any more; whether it has, in so many
        seconds."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(within)
        return not self._thread.is_alive()

    def compute(
        self, batch: Batch, heads: Mapping[str, Integers] = NONE, layers: Sequence[int] = ()
    ) -> dict[str, Floats]:
        """As :meth:`bothways.runtime.engine.Engine.compute`, in a batch with others' sequences.

        Raises:
            RefusedError: the deadline of this thread's request passed before.
        """
        found: dict[str, Floats] = self._wait_for(_Job(batch, heads, layers))
        return found

    def inspect(self, batch: Batch) -> Inside:
        """As :class:`bothways.runtime.engine.Engine` has it, when it is this request's turn.

        Raises:
            ConfigError: the engine does not have it.
            RefusedError: as :meth:`compute`.
        """
        found: Inside = self._wait_for(_Job(batch, {}, (), inspecting(self._engine)))
        return found

    def _wait_for(self, job: _Job) -> Any:
        entries, ticket = job.entries(), TICKET.get()
        with self._changed:
            if self._ended is not None:  # nobody would ever compute it
                raise self._ended
            self._waiting += entries
            self._changed.notify()
        if ticket is None:
            return job.future.result()
        ticket.tokens += int(job.batch.bounds[-1])
        self._gate.leave(ticket)
        try:
            found = job.future.result(max(0.0, ticket.deadline - time.monotonic()))
        except TimeoutError:  # the engine is still at work for others
            raise past_deadline() from None
        self._gate.enter(ticket)
        return found

    def _serve(self) -> None:
        ended: BaseException = RefusedError("unavailable", "the server ends.")
        try:
            self._work()
        except BaseException as error:  # whoever waits must not wait for ever
            ended = error
            raise
        finally:
            with self._changed:
                self._ended, left = ended, self._waiting
                self._waiting = []
            for entry in left:
                entry.job.fail(ended)

    def _work(self) -> None:
        with self._engine.working():
            while True:
                with self._changed:
                    while not self._waiting and not self._stopped:
                        self._changed.wait()
                    if not self._waiting:
                        return
                    chosen = self._take()
                if chosen:
                    self._compute(chosen)

    def _take(self) -> list[Entry]:
        """The next batch, off the queue; what is past its deadline leaves it, too."""
        now = time.monotonic()
        for job in {entry.job for entry in self._waiting if entry.job.deadline < now}:
            job.fail(past_deadline())
        self._waiting = [entry for entry in self._waiting if not entry.job.future.done()]
        if not self._waiting:
            return []
        chosen = choose(self._waiting[:_LOOKED_AT], self.budget)
        taken = set(map(id, chosen))
        self._waiting = [entry for entry in self._waiting if id(entry) not in taken]
        return chosen

    def _compute(self, chosen: list[Entry]) -> None:
        """Compute a batch, or job by job if that fails, so that none fails for another."""
        self._started = time.monotonic()
        try:
            self._run(chosen, self._started)
        except Exception as error:  # whatever it is, it is the requests' answer
            jobs = list(dict.fromkeys(entry.job for entry in chosen))
            if len(jobs) == 1:
                jobs[0].fail(error)
                return
            for job in jobs:
                self._compute([entry for entry in chosen if entry.job is job])
        finally:
            self._started = None

    def _run(self, chosen: list[Entry], started: float) -> None:
        first = chosen[0].job
        if first.inspect is not None:  # of a kind of its own, so by itself
            first.future.set_result(first.inspect(first.batch))
            return
        whole = len(chosen) == first.batch.sequences and all(e.job is first for e in chosen)
        if whole:
            batch, heads = first.batch, first.heads
        else:
            batch, heads = merge(chosen)
        found = self._engine.compute(batch, heads, first.layers)
        seconds, tokens = time.monotonic() - started, int(batch.bounds[-1])
        self.longest = max(self.longest, seconds)
        if tokens * _TELLING >= self.budget:
            rate = tokens / max(seconds, 1e-6)
            self.rate = rate if not self.rate else self.rate + _SMOOTHING * (rate - self.rate)
        self._observe(len(chosen), tokens, seconds)
        if whole:
            first.future.set_result(found)
            return
        rows = {head: arrays.bounds([len(e.heads[head]) for e in chosen]) for head in heads}
        rows |= {layer_name(layer): batch.bounds for layer in first.layers}
        for n, entry in enumerate(chosen):
            own = {name: found[name][at[n] : at[n + 1]] for name, at in rows.items()}
            entry.job.put(entry.number, own)


def past_deadline() -> RefusedError:
    """The answer to a request that could not be computed in time."""
    return RefusedError(
        "deadline",
        "the deadline passed before the request could be computed; send less, or later.",
        headers={"Retry-After": "1"},
    )


def merge(chosen: Sequence[Entry]) -> tuple[Batch, dict[str, Integers]]:
    """The sequences as one batch, and the tokens of them that each head reads."""
    bounds = arrays.bounds([entry.length for entry in chosen])

    def joined(field: str) -> Integers:
        parts = []
        for entry in chosen:
            start = int(entry.job.batch.bounds[entry.number])
            parts.append(getattr(entry.job.batch, field)[start : start + entry.length])
        return np.concatenate(parts)

    heads = {
        head: np.concatenate([e.heads[head] + start for e, start in zip(chosen, bounds)])  # noqa: B905
        for head in chosen[0].heads
    }
    longest = max(entry.length for entry in chosen)
    batch = flat_batch(joined("tokens"), joined("segments"), bounds, max_positions=longest)
    return batch, heads
