"""The only training loop: steps, records, measurements, checkpoints, and how they are interrupted.

Pre-training, fine-tuning and taggers on features are calls of :func:`fit` with different parts: a
model, an objective, batches, a plan (how long, what is measured and when) and a place (the folder,
its checkpoints, the processes). What a checkpoint holds besides weights and optimizer is the state
of these parts.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.io.run_folders import runs_stay
from bothways.model.device import reset_peak_memory
from bothways.model.shared import Trainable
from bothways.objectives.objective import Objective
from bothways.tasks.examples import step_batches
from bothways.tasks.metrics import Measurement
from bothways.training.checkpoint import Checkpoints
from bothways.training.monitor import Monitor, SilentMonitor
from bothways.training.options import OptimizerOptions
from bothways.training.ranks import SINGLE_PROCESS, Ranks
from bothways.training.trainer import Stats, Trainer, step_loss

T = TypeVar("T")
M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class Part(Protocol):
    """What a checkpoint holds besides weights and optimizer."""

    def state(self) -> dict[str, Any]:
        """JSON-able data, and tensors, by names that no other part has."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of all parts, as it was saved."""


class Batches(Part, Protocol[M_co]):
    """The micro-batches of every step."""

    def after(self, done: int) -> Iterator[tuple[int, Sequence[M_co]]]:
        """Each step that is left after so many, from 0, with this process's micro-batches."""


class Means(Generic[M]):
    """The statistics of the steps since the last record, and their means.

    Args:
        only: the names of those that are recorded; all if not given.
    """

    def __init__(self, only: Collection[str] | None = None) -> None:
        self._only = only
        self._recent: list[Stats] = []

    def start(self) -> None:
        """Training begins now, or goes on."""

    def waiting_for(self, batches: Iterator[T]) -> Iterator[T]:
        """The batches, as they are trained on."""
        return batches

    def paused(self) -> AbstractContextManager[None]:
        """Something else than training is done in the block."""
        return nullcontext()

    def add(self, stats: Stats, batches: Sequence[M]) -> None:  # noqa: ARG002
        """Count a step: its statistics and its micro-batches."""
        self._recent.append(stats)

    def close(self, ranks: Ranks) -> dict[str, float]:  # noqa: ARG002
        """The record; the next window begins."""
        recent, self._recent = self._recent, []
        names = [n for n in (recent[0] if recent else {}) if self._only is None or n in self._only]
        return {name: float(np.mean([float(r[name]) for r in recent])) for name in names}

    def recorded(self, done: int) -> int:
        """The step of the last record, after so many steps."""
        return done - len(self._recent)

    def state(self) -> dict[str, Any]:
        """The statistics so far."""
        return {"recent": [{k: float(v) for k, v in stats.items()} for stats in self._recent]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the statistics of an interrupted run."""
        self._recent = list(state.get("recent", []))  # older ones were saved at records only


@dataclass
class Plan(ABC, Generic[M]):
    """How a training goes on, and what is done between its steps.

    The methods are called in this order: :meth:`check`, :meth:`begin`, :meth:`tried` if there are
    steps to train, :meth:`first`, and then after every step what is due of :meth:`log`,
    :meth:`measure`, :meth:`keep` and :meth:`saved`.

    Attributes:
        optimizer: with its schedule.
        steps: of the whole training.
        seed: keys the dropout, with step and micro-batch.
        dtype: arithmetic of the layers.
        minutes: between checkpoints.
        window: makes the records.
        parts: what else a checkpoint holds.
        parallel, frozen_rows, clips_apart: as for :class:`bothways.training.trainer.Trainer`.
        saves_end: the last step is always saved; otherwise if there is a checkpoint already. If so,
            little follows it, and one who asks it to stop then gets the end instead.
        saves_first: what is due to be saved is saved before measuring, too, which may take longer
            than training; :meth:`first` makes up for a measurement that was missed.
    """

    optimizer: OptimizerOptions
    steps: int
    seed: int
    dtype: torch.dtype
    minutes: float
    window: Means[M]
    parts: Sequence[Part] = ()
    parallel: Literal["ddp", "fsdp"] = "ddp"
    frozen_rows: Mapping[str, torch.Tensor] | None = None
    clips_apart: bool = False
    saves_end: bool = False
    saves_first: bool = True

    def check(self, done: int) -> None:
        """Refuse what cannot be done after so many steps."""

    def begin(self, watch: Monitor, done: int, notes: list[str]) -> None:
        """Say what is trained and how.

        Args:
            watch: says it.
            done: steps that are done.
            notes: what was said of the checkpoints.
        """

    def tried(self, watch: Monitor, done: int, size: int) -> None:
        """A checkpoint of so many bytes can be written: try what else is, and say if the disk may
        be too small."""

    def first(self, watch: Monitor, done: int) -> None:
        """What is measured before the first of the steps that are left."""

    @abstractmethod
    def logs(self, now: int) -> bool:
        """Whether a window closes after so many steps."""

    def log(self, watch: Monitor, now: int, record: dict[str, float]) -> None:
        """Record a window, and show it."""
        watch.log(now, record)

    @abstractmethod
    def measures(self, now: int) -> bool:
        """Whether to measure after so many steps."""

    @abstractmethod
    def measure(self, watch: Monitor, now: int) -> None:
        """Measure the model, and record the result."""

    def ends(self, now: int) -> bool:  # noqa: ARG002
        """Whether training ends after so many steps, before all of them."""
        return False

    def keeps(self, now: int) -> bool:  # noqa: ARG002
        """Whether the model after so many steps is to be kept."""
        return False

    def keep(self, watch: Monitor, now: int) -> None:
        """Write the model of this step, unless that was done before."""

    def saved(self) -> None:
        """A checkpoint was written."""


@dataclass(frozen=True)
class Place:
    """Where a training writes, and in which processes it runs.

    Attributes:
        folder: of its records.
        checkpoints: restored from, and saved to.
        title: its name beside the progress.
        ranks: the processes.
        tensorboard: event files are written, too.
        alone: no other process shows its progress on the same terminal: a bar may be shown, and
            signals stop the training.
    """

    folder: Path
    checkpoints: Checkpoints
    title: str
    ranks: Ranks = SINGLE_PROCESS
    tensorboard: bool = False
    alone: bool = True

    def monitor(self, steps: int, done: int) -> Monitor:
        """What shows the progress of this process."""
        if not self.ranks.is_rank0:
            return SilentMonitor()
        options = {"tensorboard": self.tensorboard, "bar": self.alone}
        return Monitor(self.folder, steps, self.title, done=done, **options)


def fit(
    model: Trainable, objective: Objective[M], batches: Batches[M], plan: Plan[M], place: Place
) -> None:
    """Train a model to the end of its plan, from its newest checkpoint if there is one.

    A first save is tried before the first step, so that what would fail later loses nothing.
    Signals (Ctrl-C, SIGTERM, a closed terminal) let the step be finished and saved.

    Args:
        model: trained in place.
        objective: computes the losses.
        batches: the micro-batches of every step.
        plan: how long, and what is done between the steps.
        place: the folder, its checkpoints, the processes.

    Raises:
        DivergenceError: a gradient was not finite.
        DiskError: a record or a checkpoint could not be written; the one before is intact.
        RunError: training cannot continue from any of the checkpoints.
        KeyboardInterrupt: interrupted; the state was saved after the step in progress.
    """
    training = _Training(model, objective, batches, plan, place)
    notes: list[str] = []
    done = training.restore(notes.append)
    plan.check(done)
    with place.monitor(plan.steps, plan.window.recorded(done)) as watch:
        plan.begin(watch, done, notes)
        with _interruptible(place.alone) as signals:
            training.prepare(watch, done)
            training.train(watch, done, signals)


class _Training(Generic[M]):
    """What :func:`fit` does, piece by piece; the arguments are its."""

    def __init__(
        self,
        model: Trainable,
        objective: Objective[M],
        batches: Batches[M],
        plan: Plan[M],
        place: Place,
    ):
        self.model, self.objective, self.batches = model, objective, batches
        self.plan, self.place = plan, place
        self.trainer: Trainer[M] = Trainer(
            model,
            plan.optimizer,
            total_steps=plan.steps,
            seed=plan.seed,
            dtype=plan.dtype,
            ranks=place.ranks,
            parallel=plan.parallel,
            frozen_rows=plan.frozen_rows,
            clips_apart=plan.clips_apart,
        )
        self.parts: tuple[Part, ...] = (batches, plan.window, *plan.parts)
        self.saved_at = 0.0

    def restore(self, say: Callable[[str], None]) -> int:
        """Continue from the newest checkpoint; the number of steps done."""
        restored = self.place.checkpoints.restore(self.model, self.trainer.optimizer, say)
        if restored is None:
            return 0
        for part in self.parts:
            part.restore(restored.extra)
        return restored.step

    def prepare(self, watch: Monitor, done: int) -> None:
        """Try to save, and measure and keep what is to be measured and kept before a step."""
        plan, trains = self.plan, done < self.plan.steps
        if trains:
            content = self.model, self.trainer.optimizer, self._state()
            plan.tried(watch, done, self.place.checkpoints.try_save(done + 1, *content))
        plan.first(watch, done)
        if plan.keeps(done):
            plan.keep(watch, done)
        if trains:
            plan.saved()  # tried, as saving was
        plan.window.start()
        reset_peak_memory(self.model.device)  # of measuring speeds
        self.saved_at = time.monotonic()

    def train(self, watch: Monitor, done: int, signals: _Signals) -> None:
        """Every step that is left, and what is due after it."""
        plan, window, ranks = self.plan, self.plan.window, self.place.ranks
        saved = self.place.checkpoints
        if plan.ends(done):
            return
        for step, micro_batches in window.waiting_for(self.batches.after(done)):
            loss = step_loss(micro_batches, self.objective, ranks)
            window.add(self.trainer.step(step, micro_batches, loss), micro_batches)
            now, last = step + 1, step + 1 == plan.steps
            if plan.logs(now):
                self.trainer.check()
                plan.log(watch, now, window.close(ranks))
            if plan.measures(now):
                self.trainer.check()
                if plan.saves_first:
                    self._save_if_due(watch, now, signals, anyway=last and saved.exist())
                with window.paused():
                    plan.measure(watch, now)
            if plan.keeps(now):  # before the checkpoint, so that none can be missed
                self.trainer.check()  # waits for the steps before, which are no pause
                with window.paused():
                    plan.keep(watch, now)
            self._save_if_due(watch, now, signals, anyway=last and plan.saves_end)
            if plan.ends(now):
                break

    def _save_if_due(self, watch: Monitor, now: int, signals: _Signals, *, anyway: bool) -> None:
        """Save after some minutes, or when a signal has asked for the end, which then comes."""
        ranks, at_end = self.place.ranks, now == self.plan.steps and self.plan.saves_end
        old = time.monotonic() - self.saved_at >= self.plan.minutes * 60
        # Clocks differ between processes, and a signal may have reached only one of them.
        due, stop = ranks.any(old and ranks.is_rank0, signals.stop)
        if due or stop or anyway:
            self.trainer.check()
            with self.plan.window.paused():
                content = self.model, self.trainer.optimizer, self._state()
                self.place.checkpoints.save(now, *content)
                self.plan.saved()
            self.saved_at = time.monotonic()
        if stop and not at_end:
            saved = (
                f"the state is saved in {self.place.folder}" if runs_stay() else "nothing is kept"
            )
            watch.say(f"interrupted after step {now}; {saved}")
            ranks.barrier()  # torchrun ends those that are left when one has ended
            raise KeyboardInterrupt

    def _state(self) -> dict[str, Any]:
        """That of all parts."""
        return {name: value for part in self.parts for name, value in part.state().items()}


@dataclass
class _Signals:
    """Whether a signal has asked for the end."""

    stop: bool = False


@contextmanager
def _interruptible(enabled: bool) -> Iterator[_Signals]:
    """Let Ctrl-C, SIGTERM and a closed terminal finish the step and save; a second Ctrl-C stops at
    once."""
    signals = _Signals()

    def request_stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if number == hangup:  # to the terminal nothing can be printed any more
            for stream in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        # Job schedulers and torchrun may each send SIGTERM.
        if signals.stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        signals.stop = True

    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]  # closed, they are none
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if hangup and signal.getsignal(hangup) is not signal.SIG_IGN:  # as under nohup
        previous[hangup] = signal.getsignal(hangup)
    if not enabled or threading.current_thread() is not threading.main_thread():
        previous = {}  # Python delivers signals to the main thread: they are the caller's
    set_here: dict[signal.Signals, Any] = {}
    try:
        for number, handler in previous.items():
            if handler is not None:  # one that was not set from Python cannot be put back
                set_here[number] = handler
                signal.signal(number, request_stop)
        yield signals
    finally:
        for number, handler in set_here.items():
            signal.signal(number, handler)


def run_ahead(
    make: Callable[[int], T], steps: Iterable[int], *, ahead: int, device: torch.device
) -> Iterator[T]:
    """``make(step)`` of each step, in order; a thread prepares them while earlier ones are
    computed.

    Args:
        make: called in a thread; it may move its result to ``device``.
        steps: in order.
        ahead: steps prepared in advance; 0 makes each on demand, without a thread.
        device: becomes the thread's current device.
    """
    if ahead == 0:
        yield from map(make, steps)
        return

    def prepare() -> None:
        if device.type == "cuda":  # a new thread starts with device 0, whatever its process uses
            torch.cuda.set_device(device)

    with ThreadPoolExecutor(1, initializer=prepare) as thread:
        waiting: list[Future[T]] = []
        try:
            for step in steps:
                waiting.append(thread.submit(make, step))
                if len(waiting) > ahead:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()


# --------------------------------------------------------------------------------
# Epochs over examples, as fine-tuning and taggers on features have them: every example once, in a
# new order, and then the dev file is measured.


class EpochBatches(Generic[M]):
    """The micro-batches of every step of some epochs.

    Args:
        items: the examples' numbers.
        batch: examples of a step; the last one of an epoch may have fewer.
        epochs: how many.
        seed: keys the order.
        make: the micro-batches of the examples of a step.
        device: where they are computed.
    """

    def __init__(
        self,
        items: NDArray[np.int64],
        batch: int,
        epochs: int,
        *,
        seed: int,
        make: Callable[[NDArray[np.int64]], list[M]],
        device: torch.device,
    ):
        self._items, self._batch, self.epochs, self._seed = items, batch, epochs, seed
        self._make, self._device = make, device
        self.per_epoch = -(-len(items) // batch)

    def after(self, done: int) -> Iterator[tuple[int, list[M]]]:
        """Every step that is left, with its micro-batches."""
        ahead = 0 if self._device.type == "cpu" else 2  # on a CPU, training itself uses all cores
        for epoch in range(done // self.per_epoch, self.epochs):
            order = step_batches(len(self._items), self._batch, seed=self._seed, epoch=epoch)
            steps, start = [self._items[chosen] for chosen in order], epoch * self.per_epoch
            left = range(max(done - start, 0), len(steps))
            made = run_ahead(
                partial(_make_at, self._make, steps), left, ahead=ahead, device=self._device
            )
            for i, micro_batches in zip(left, made, strict=True):
                yield start + i, micro_batches

    def state(self) -> dict[str, Any]:
        """None: the order is a function of the epoch."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """There is nothing to restore."""


def _make_at(make: Callable[[T], list[M]], steps: Sequence[T], i: int) -> list[M]:
    return make(steps[i])


class EpochScores:
    """What was measured after each epoch, and the time since the beginning.

    Attributes:
        measured: scores on dev after each epoch that is trained and measured.
    """

    def __init__(self) -> None:
        self.measured: list[Measurement] = []
        self._started, self._before = time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """Spent by earlier processes up to the checkpoint, and by this one."""
        return self._before + time.monotonic() - self._started

    def state(self) -> dict[str, Any]:
        """Scores and time."""
        return {"measured": [epoch.record() for epoch in self.measured], "seconds": self.seconds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with what was saved."""
        self.measured = [Measurement.from_record(record) for record in state["measured"]]
        self._before = state["seconds"]


class EpochPlan(Plan[M]):
    """A plan of epochs, after each of which dev is measured.

    Args:
        name: of the training, in messages.
        batches: the epochs.
        scores: what is measured.
        record_every: steps between records within an epoch; 0 for one an epoch.
        optimizer, seed, dtype, minutes, window, parts, clips_apart: as for :class:`Plan`.
    """

    def __init__(
        self,
        name: str,
        batches: EpochBatches[M],
        scores: EpochScores,
        *,
        optimizer: OptimizerOptions,
        seed: int,
        dtype: torch.dtype,
        minutes: float,
        record_every: int = 0,
        window: Means[M] | None = None,
        parts: Sequence[Part] = (),
        clips_apart: bool = False,
    ):
        self.name, self.batches, self.scores = name, batches, scores
        self._record_every = record_every
        super().__init__(
            optimizer,
            batches.per_epoch * batches.epochs,
            seed,
            dtype,
            minutes,
            window or Means(),
            parts=(scores, *parts),
            clips_apart=clips_apart,
        )

    @abstractmethod
    def evaluate(self, now: int) -> Measurement:
        """Predict dev after so many steps, and measure the predictions."""

    def tell(self, watch: Monitor, epoch: int, measurement: Measurement) -> None:
        """Say what was measured after an epoch, from 1."""
        shown = ", ".join(f"{k} {v:.4f}" for k, v in measurement.scores.items())
        notes = "".join(f" ({note})" for note in measurement.notes)
        watch.say(f"{self.name} epoch {epoch}: dev {shown}{notes}")

    def begin(self, watch: Monitor, done: int, notes: list[str]) -> None:  # noqa: ARG002
        """Say where a training that was interrupted goes on."""
        if done:
            epochs = self.batches.epochs
            epoch = min(done // self.batches.per_epoch + 1, epochs)
            watch.say(
                f"{self.name}: continuing after step {done:,} of {self.steps:,}, from its "
                f"checkpoint in epoch {epoch} of {epochs}"
            )

    def first(self, watch: Monitor, done: int) -> None:
        """An epoch that was trained and saved, but not measured; and if all are done, the
        predictions once more."""
        if done and self.measures(done):
            if len(self.scores.measured) < done // self.batches.per_epoch:
                self.measure(watch, done)
            elif done == self.steps:
                self.evaluate(done)

    def logs(self, now: int) -> bool:
        """At the interval; the last record of an epoch has the scores, too."""
        every = self._record_every
        return every > 0 and now % every == 0 and not self.measures(now)

    def measures(self, now: int) -> bool:
        """After every epoch."""
        return now % self.batches.per_epoch == 0

    def measure(self, watch: Monitor, now: int) -> None:
        """Record the scores of an epoch with the last statistics of training."""
        measurement = self.evaluate(now)
        self.scores.measured.append(measurement)
        scores = {f"dev_{k}": v for k, v in measurement.scores.items()}
        epoch = now // self.batches.per_epoch
        watch.log(now, {"epoch": epoch, **self.window.close(SINGLE_PROCESS), **scores})
        self.tell(watch, epoch, measurement)
