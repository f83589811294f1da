"""The training loop as a generator: it trains a step, hands it out, and saves when that is due.

    done = checkpoint.restore(say)
    for step in fit(trainer, objective, batches_after(done), checkpoint, minutes=5):
        window.add(step)
        if step.due(10):
            watch.log(step.number, window.close())
        if step.due(100):
            measure(model)

Whatever the body does belongs to its step: a checkpoint is written after the body, so a run that
continues begins with the next step and repeats nothing. Ctrl-C, SIGTERM and a closed terminal let
the step and its body finish; then the state is saved and KeyboardInterrupt leaves the loop.

Write ``for step in fit(...)``: a generator held in a variable keeps the signal handlers after a
``break``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.io.run_folders import runs_stay
from bothways.objectives.objective import Objective
from bothways.tasks.examples import step_batches
from bothways.tasks.metrics import Measurement
from bothways.training.checkpoint import Checkpoint
from bothways.training.trainer import Stats, Trainer, step_loss

A = TypeVar("A")
T = TypeVar("T")
M = TypeVar("M")


class Clock:
    """Seconds of training: of waiting for batches, of steps, and of the device catching up. The
    body and saving are left out, because the generator is not running then."""

    def __init__(self) -> None:
        self.seconds = self.waited = 0.0

    @contextmanager
    def running(self, *, waiting: bool = False) -> Iterator[None]:
        """Count the block."""
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        self.seconds += spent
        self.waited += spent * waiting


@dataclass(frozen=True)
class Step(Generic[M]):
    """A step that was trained.

    Attributes:
        number: steps done, this one included.
        last: no other step follows.
        stats: its losses and accuracies, learning rate and norm; on a GPU perhaps not computed yet.
        batches: this process's micro-batches.
        clock: of the training so far in this process.
        settle: waits for the device; raises DivergenceError if a gradient was not finite.
        save_if_due: fit does so after the body; a body that takes long may before.
    """

    number: int
    last: bool
    stats: Stats
    batches: Sequence[M]
    clock: Clock
    settle: Callable[[], None]
    save_if_due: Callable[[], None]

    def due(self, every: int) -> bool:
        """Whether this is one of every so many steps, or the last; waits for the device."""
        if self.number % every and not self.last:
            return False
        self.settle()
        return True


def fit(
    trainer: Trainer[M],
    objective: Objective[M],
    batches: Iterator[tuple[int, Sequence[M]]],
    checkpoint: Checkpoint,
    *,
    minutes: float,
    say: Callable[[str], None],
    saves_end: bool = False,
    signals: bool = True,
) -> Iterator[Step[M]]:
    """Train on every step's micro-batches.

    Args:
        trainer: a model, its optimizer and schedule, in the processes that share the steps.
        objective: computes the losses.
        batches: the steps that are left, numbered from 0, with this process's micro-batches.
        checkpoint: what is saved, and where.
        minutes: between checkpoints; one more is written when a signal asks for the end.
        say: prints that training was interrupted.
        saves_end: save after the last step, too; a signal then no longer interrupts.
        signals: those to this process end the training; otherwise they are the caller's.

    Raises:
        DivergenceError: a gradient was not finite.
        DiskError: a checkpoint could not be written; the one before is intact.
        KeyboardInterrupt: interrupted, and saved.
    """
    ranks, clock, last_save = trainer.ranks, Clock(), time.monotonic()

    def settle() -> None:
        with clock.running():
            trainer.check()

    def save_if_due(number: int, *, end: bool = False) -> None:
        nonlocal last_save
        late = ranks.is_rank0 and time.monotonic() - last_save >= minutes * 60
        # One decision for all processes: their clocks differ, and a signal may reach only some.
        due, stop = ranks.any(late, bool(arrived))
        if due or stop or end:
            settle()
            checkpoint.save(number)
            last_save = time.monotonic()
        if stop and not end:
            place = checkpoint.folder.parent
            kept = f"the state is saved in {place}" if runs_stay() else "nothing is kept"
            say(f"interrupted after step {number}; {kept}")
            ranks.barrier()  # torchrun ends the others as soon as one has ended
            raise KeyboardInterrupt

    with stop_requests(signals) as arrived:
        while True:
            with clock.running(waiting=True):
                found = next(batches, None)
            if found is None:
                return
            index, own = found
            with clock.running():
                stats = trainer.step(index, own, step_loss(own, objective, ranks))
            number, last = index + 1, index + 1 == trainer.total_steps
            yield Step(number, last, stats, own, clock, settle, partial(save_if_due, number))
            save_if_due(number, end=last and saves_end)


@contextmanager
def stop_requests(enabled: bool) -> Iterator[list[int]]:
    """The signals that asked for the end while the block runs; a second Ctrl-C ends it at once."""
    arrived: list[int] = []
    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]  # not recognised once closed

    def note(number: int, _: Any) -> None:
        for stream in terminals if number == hangup else ():
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        # Job schedulers and torchrun may each send SIGTERM.
        if arrived and number == signal.SIGINT:
            raise KeyboardInterrupt
        arrived.append(number)

    before: dict[int, Any] = {}
    if enabled and threading.current_thread() is threading.main_thread():  # handlers run there
        before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, hangup) if n}
        if hangup and before[hangup] is signal.SIG_IGN:  # nohup
            del before[hangup]
        # One that was not set from Python cannot be put back.
        before = {n: handler for n, handler in before.items() if handler is not None}
    try:
        for number in before:
            signal.signal(number, note)
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Window:
    """Means of the statistics of the steps since the last record, or of those named."""

    def __init__(self, *only: str) -> None:
        self._only, self.steps, self._sums = only, 0, dict[str, Any]()

    def add(self, step: Step[Any]) -> None:
        """Count a step."""
        self.steps += 1
        for name in self._only or step.stats:
            self._sums[name] = self._sums.get(name, 0.0) + step.stats[name]

    def close(self) -> dict[str, float]:
        """The means; the next window begins."""
        means = {name: float(value) / self.steps for name, value in self._sums.items()}
        self.steps, self._sums = 0, {}
        return means

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        sums = {name: float(value) for name, value in self._sums.items()}
        return {"window": {"steps": self.steps, "sums": sums}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue."""
        self.steps, self._sums = state["window"]["steps"], dict(state["window"]["sums"])


def run_ahead(
    make: Callable[[A], T], items: Iterable[A], *, ahead: int, device: torch.device
) -> Iterator[T]:
    """``make(item)`` of each item, in order; a thread makes them while earlier ones are used.

    Args:
        make: called in a thread; it may move its result to ``device``.
        items: in order.
        ahead: how many are made in advance; 0 makes each on demand, without a thread.
        device: becomes the thread's current device.
    """
    if ahead == 0:
        yield from map(make, items)
        return

    def prepare() -> None:
        if device.type == "cuda":  # a new thread starts with device 0, whatever its process uses
            torch.cuda.set_device(device)

    with ThreadPoolExecutor(1, initializer=prepare) as thread:
        waiting: list[Future[T]] = []
        try:
            for item in items:
                waiting.append(thread.submit(make, item))
                if len(waiting) > ahead:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()


# --------------------------------------------------------------------------------
# Epochs over examples, as fine-tuning and taggers have them, and what is measured after each.


def epochs_of(
    items: NDArray[np.int64],
    batch: int,
    epochs: int,
    *,
    seed: int,
    done: int,
    make: Callable[[NDArray[np.int64]], list[M]],
    device: torch.device,
) -> Iterator[tuple[int, list[M]]]:
    """The micro-batches of the steps that are left; an epoch has every item once, in its order.

    Args:
        items: the examples' numbers.
        batch: examples of a step; the last one of an epoch may have fewer.
        epochs: how many.
        seed: keys the order.
        done: steps done.
        make: the micro-batches of the examples of a step.
        device: where they are computed.
    """
    per_epoch = -(-len(items) // batch)
    ahead = 0 if device.type == "cpu" else 2  # on a CPU, training itself uses all cores
    for epoch in range(done // per_epoch, epochs):
        first = epoch * per_epoch
        order = step_batches(len(items), batch, seed=seed, epoch=epoch)[max(done - first, 0) :]
        made = run_ahead(lambda chosen: make(items[chosen]), order, ahead=ahead, device=device)
        yield from zip(range(first + per_epoch - len(order), first + per_epoch), made, strict=True)


class EpochScores:
    """The scores of each epoch, and the seconds spent; both continue from a checkpoint."""

    def __init__(self) -> None:
        self.measured, self._started = list[Measurement](), time.monotonic()

    @property
    def seconds(self) -> float:
        """Of earlier processes up to their last checkpoint, and of this one."""
        return time.monotonic() - self._started

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"measured": [epoch.record() for epoch in self.measured], "seconds": self.seconds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue."""
        self.measured = [Measurement.from_record(record) for record in state["measured"]]
        self._started -= state["seconds"]
