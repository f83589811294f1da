"""Pre-training, from a corpus folder to a model folder. Start reading here."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

from bothways.config.fields import digest, to_dict
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, RunError
from bothways.model.batch import PretrainingBatch
from bothways.model.device import (
    DTYPES,
    borrowed_process,
    choose_device,
    describe_kernels,
    peak_memory_note,
    reset_peak_memory,
    set_threads,
    threads_phrase,
)
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.model.priming import primed_rows
from bothways.objectives.objective import pretraining_loss
from bothways.pretraining.batches import PhaseBatches, prefetch
from bothways.pretraining.clock import EVALUATIONS, resolve_clock
from bothways.pretraining.evaluation import HeldOut, heldout_batches, measure
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.record import CURVES, Utilization, Window, draw_curves, log_window
from bothways.pretraining.snapshots import (
    check_snapshots,
    keep_snapshot,
    snapshot_folder,
    try_snapshots,
)
from bothways.pretraining.start import (
    SHAPE_OPTIONS,
    objective_of,
    open_corpus,
    starting_model,
    weights_digest,
)
from bothways.training.checkpoint import restore_newest, save_checkpoint, try_checkpoint
from bothways.training.fsdp import whole_model
from bothways.training.monitor import Monitor, SilentMonitor
from bothways.training.ranks import Ranks, process_group
from bothways.training.runfolder import (
    Run,
    changed_numerics,
    locks_released,
    open_run,
    record_changes,
    recorded_changes,
)
from bothways.training.schedules import phase_steps
from bothways.training.trainer import Trainer

CHECKPOINTS, MODEL = "checkpoints", "model"
_RECORDS = 200  # in a run, if the config does not set the interval


@dataclass(frozen=True)
class PretrainResult:
    """A finished run.

    Attributes:
        run: the run folder.
        model: the model folder in it.
        steps: optimizer steps done.
        heldout: the last held-out measurements; None if nothing is held out.
        snapshots: the folders of the snapshots, by step.
    """

    run: Path
    model: Path
    steps: int
    heldout: HeldOut | None
    snapshots: dict[int, Path] = field(default_factory=dict)


@borrowed_process()
@locks_released()
def pretrain(config: PretrainConfig) -> PretrainResult:
    """Pre-train an encoder; continue if the run folder holds an unfinished run of this config.

    Under ``torchrun`` every process calls this, and each gets the result.

    Args:
        config: the recipe, with corpus and run folders.

    Raises:
        ConfigError, StoreError, ModelError, RunError: the config, corpus, start model or run
            folder cannot be used, or a snapshot cannot be taken; the message says why and what to
            do.
        DiskError: a checkpoint could not be written; the previous one is intact.
        OtherProcessError: another process has failed, and raises one of these.
        KeyboardInterrupt: interrupted; the state was saved after the step in progress.
    """
    with process_group() as ranks:
        return _pretrain(config, ranks)


def _pretrain(config: PretrainConfig, ranks: Ranks) -> PretrainResult:
    threads, device = set_threads(config.threads), choose_device(config.device)
    _check_micro_batches(config, ranks)
    store = open_corpus(config.corpus)
    model = starting_model(config, store).to(device.torch)
    shape = model.config  # with --start, its dropouts are used unless others are given
    size = config.model.with_dropouts(shape.dropout, shape.attention_dropout)
    config = replace(config, model=size)
    model.shared.fast = config.kernels == "fast"
    model.shared.recompute = config.recompute
    sources = [
        PhaseBatches(
            store, phase, pairs=config.pairs, masking=config.masking, seed=config.seed, number=i
        )
        for i, phase in enumerate(config.phases)
    ]
    numerics: dict[str, Any] = {"device": device.name, "threads": threads}
    numerics |= {"kernels": config.kernels, "processes": ranks.size}
    if ranks.size > 1:
        numerics["parallel"] = config.parallel
    inputs = {"corpus": store.fingerprint}
    if config.start:
        inputs["start"] = weights_digest(config.start)
    ranks.check_same(_shared_options(config) | inputs | {"device": device.torch.type})
    ranks.copy_from_rank0(model.parameters())  # another processor may draw other initial weights
    run = open_run(
        config.run,
        config,
        verb="pretrain",
        inputs=inputs,
        resolve=lambda: {**resolve_clock(config, store, model, sources, ranks), **numerics},
        ranks=ranks,
        without=SHAPE_OPTIONS if config.start else (),
    )
    precision = run.resolved["precision"] if config.precision == "auto" else config.precision
    model.shared.transposes = run.resolved.get("transposed_gradients", False)
    numerics = {"precision": precision, **numerics}
    return _Pretraining(config, run, store, model, sources, numerics, ranks).finish(device.reason)


def _check_micro_batches(config: PretrainConfig, ranks: Ranks) -> None:
    """Refuse more processes than a step has micro-batches."""
    for number, phase in enumerate(config.phases):
        count = -(-phase.batch // phase.micro_batch)
        if count < ranks.size:
            smaller = f"micro_batch {phase.batch // ranks.size}"
            if phase.batch < ranks.size:
                smaller = f"a batch of {ranks.size} or more in micro-batches of 1"
            raise ConfigError(
                f"phases[{number}]: batch {phase.batch} in micro-batches of {phase.micro_batch} "
                f"makes {count}, fewer than the {ranks.size} processes; start at most {count} "
                f"processes, or a new run with {smaller}."
            )


def _shared_options(config: PretrainConfig) -> dict[str, Any]:
    """The options that must be the same in all processes: all but paths and threads."""
    evaluate = replace(config.evaluate, corpus=None)
    shared = replace(config, corpus="", run="", start=None, threads=0, evaluate=evaluate)
    return to_dict(shared)


class _Pretraining:
    """The state of a run in progress."""

    def __init__(
        self,
        config: PretrainConfig,
        run: Run,
        store: TokenStore,
        model: EncoderModel,
        sources: list[PhaseBatches],
        numerics: dict[str, Any],
        ranks: Ranks,
    ):
        self.config, self.run, self.store, self.model = config, run, store, model
        self.sources, self.numerics, self.ranks = sources, numerics, ranks
        self.objective = objective_of(config)
        self.steps: int = run.resolved["steps"]
        self.trainer: Trainer[PretrainingBatch] = Trainer(
            model,
            config.optimizer,
            total_steps=self.steps,
            seed=config.seed,
            dtype=DTYPES[numerics["precision"]],
            ranks=ranks,
            parallel=config.parallel,
            frozen_rows=primed_rows(model.encoder, "encoder"),
        )
        self.evaluate_every = config.evaluate.every or -(-self.steps // EVALUATIONS)
        self.log_every = config.log_every or max(1, self.steps // _RECORDS)
        self.stop_requested = False

    def finish(self, device: str) -> PretrainResult:
        """Train to the end, and write the model.

        Args:
            device: the log line about the device and why it was chosen.
        """
        heldout = self._train([device])
        path = self.run.folder / MODEL
        model = whole_model(self.model, self.ranks)
        if self.ranks.is_rank0:
            about = _about(self.config, self.store, self.steps)
            save_model(path, model, self.store.tokenizer, about)
            for name, part in self.model.parts.items():
                assert isinstance(part, EncoderModel)
                about["made_by"] = f"bothways pretrain, as {name}"
                save_model(self.run.folder / name, part, self.store.tokenizer, about)
            draw_curves(self.run.folder)
            print(f"model: {path}\ncurves: {self.run.folder / CURVES}")
            if memory := peak_memory_note(self.model.device):
                print(memory)
        self.ranks.barrier()
        snapshots = {n: snapshot_folder(self.run.folder, n) for n in sorted(self.config.snapshots)}
        return PretrainResult(self.run.folder, path, self.steps, heldout, snapshots)

    def _train(self, notes: list[str]) -> HeldOut | None:
        """Train from the newest checkpoint, or step 0, to the end; the last held-out result."""
        folder = self.run.folder / CHECKPOINTS
        restored = restore_newest(
            folder,
            self.model,
            self.trainer.optimizer,
            notes.append,
            self.ranks,
            run=self.run.identity,
        )
        done, window = 0, Window(Utilization(self.model, self.trainer.dtype), self.objective)
        if restored is None:
            self.ranks.run_on_rank0(self._refuse_finished)
        else:
            done = restored.step
            window.restore(restored.extra.get("window"))  # older checkpoints have none
            for source, sizes in zip(self.sources, restored.extra["epoch_sizes"], strict=True):
                source.epoch_sizes = list(sizes)
        run, asked = self.run.folder, self.config.snapshots
        self.ranks.run_on_rank0(lambda: check_snapshots(run, asked, done=done, total=self.steps))
        with self._monitor(done) as watch:
            self._describe(watch, notes)
            if done:
                watch.say(f"continuing after step {done:,}")
            if not self.run.new:
                self._note_changes(watch, done)
            heldout = heldout_batches(self.config, self.store, watch.say)
            if self.ranks.size > 1:
                tokens = [batch.inputs.tokens.tolist() for batch in heldout]
                self.ranks.check_same({"held-out sequences": digest(tokens)})
            with self._interruptible():
                return self._loop(watch, done, heldout, window)

    def _refuse_finished(self) -> None:
        """Without its checkpoints, a finished run would be trained again, over its records."""
        model = self.run.folder / MODEL
        if model.exists():
            raise RunError(
                f"{self.run.folder} holds a finished run without its checkpoints: the model is "
                f"{model}. To train it again, choose another run folder, or remove this one."
            )

    def _monitor(self, done: int) -> Monitor:
        if not self.ranks.is_rank0:
            return SilentMonitor()
        return Monitor(self.run.folder, self.steps, "pretrain", done=done, tensorboard=True)

    def _loop(
        self, watch: Monitor, done: int, heldout: list[PretrainingBatch], window: Window
    ) -> HeldOut | None:
        result = None
        if done < self.steps:
            self._try_saving(watch, done, window)
        if done in (0, self.steps):  # a finished run has this result on record already
            result = self._evaluate(watch, done, heldout, record=done == 0)
        self._snapshot(watch, done)
        if done < self.steps and self.ranks.is_rank0:
            draw_curves(self.run.folder)  # as with every checkpoint, and so tried as they are
        window.start()
        reset_peak_memory(self.model.device)  # of measuring speeds
        saved_at = time.monotonic()
        for step, micro_batches in window.waiting_for(self._batches(done)):
            loss = pretraining_loss(micro_batches, self.objective, self.ranks)
            stats = self.trainer.step(step, micro_batches, loss)
            window.add(stats, micro_batches)
            now = step + 1
            if now % self.log_every == 0 or now == self.steps:
                self.trainer.check()
                log_window(watch, now, window.close(self.ranks))
            if now % self.evaluate_every == 0 or now == self.steps:
                self.trainer.check()
                with window.paused():
                    result = self._evaluate(watch, now, heldout)
            if now in self.config.snapshots:  # before the checkpoint, so that none can be missed
                self.trainer.check()  # waits for the steps before, which are no pause
                with window.paused():
                    self._snapshot(watch, now)
            old = time.monotonic() - saved_at > self.config.checkpoint.minutes * 60
            # Clocks differ between processes, and a signal may have reached only one of them.
            due, stop = self.ranks.any(old and self.ranks.is_rank0, self.stop_requested)
            if due or now == self.steps or stop:
                self.trainer.check()
                with window.paused():
                    self._save(now, window)
                saved_at = time.monotonic()
            if stop and now < self.steps:
                watch.say(f"interrupted after step {now}; the state is saved in {self.run.folder}")
                self.ranks.barrier()  # torchrun ends those that are left when one has ended
                raise KeyboardInterrupt
        return result

    def _batches(self, done: int) -> Iterator[tuple[int, list[PretrainingBatch]]]:
        """Every remaining step of all phases, with this process's micro-batches."""
        counts = phase_steps(self.config.phases, self.steps)
        starts = accumulate(counts, initial=0)
        for source, count, start in zip(self.sources, counts, starts, strict=False):
            steps = range(max(done - start, 0), count)
            ahead = prefetch(
                source, steps, share=self.ranks.micro_batch_slice, device=self.model.device
            )
            for step, micro_batches in zip(steps, ahead, strict=True):
                yield start + step, micro_batches

    def _evaluate(
        self, watch: Monitor, step: int, batches: list[PretrainingBatch], *, record: bool = True
    ) -> HeldOut | None:
        if not batches:
            return None
        result = measure(self.model, batches, self.trainer.dtype, self.objective, self.ranks)
        if record:
            watch.record(step, result.record())
        watch.say(f"step {step:,}: {result.sentence()}")
        return result

    def _snapshot(self, watch: Monitor, step: int) -> None:
        if step not in self.config.snapshots:
            return
        self.trainer.check()
        about = {**_about(self.config, self.store, step), "snapshot_of_steps": self.steps}
        folder, tokenizer = self.run.folder, self.store.tokenizer
        if keep_snapshot(folder, step, self.model, tokenizer, about, self.ranks):
            watch.say(f"step {step:,}: the model is kept in {snapshot_folder(folder, step)}")

    def _save(self, step: int, window: Window) -> None:
        keep = self.config.checkpoint.keep
        save_checkpoint(**self._checkpoint(step, window), keep=keep)
        if self.ranks.is_rank0:
            draw_curves(self.run.folder)

    def _try_saving(self, watch: Monitor, done: int, window: Window) -> None:
        """See that checkpoints and snapshots can be written, before a step is trained."""
        size = try_checkpoint(**self._checkpoint(done + 1, window))
        folder = self.run.folder
        later = [step for step in self.config.snapshots if step > done]
        self.ranks.run_on_rank0(lambda: try_snapshots(folder, later))
        if done == 0 and self.ranks.is_rank0:
            models = 1 + len(self.config.snapshots)
            weights = sum(p.nbytes for p in self.model.parameters())  # nearly
            needed = (max(self.config.checkpoint.keep, 1) + 1) * size + models * weights
            free = shutil.disk_usage(folder).free
            if free < needed:
                watch.say(
                    f"{folder}: the run may need {needed / 2**20:,.0f} MiB (its checkpoints, one "
                    f"of them being written, snapshots and model), {free / 2**20:,.0f} MiB are "
                    "free; free some space, or lower --checkpoint.keep"
                )

    def _checkpoint(self, step: int, window: Window) -> dict[str, Any]:
        """What a checkpoint is written from."""
        return {
            "folder": self.run.folder / CHECKPOINTS,
            "step": step,
            "model": self.model,
            "tokenizer": self.store.tokenizer,
            "optimizer": self.trainer.optimizer,
            "run": self.run.identity,
            "about": _about(self.config, self.store, step),
            "extra": {
                # Copies: the thread that prepares batches may add to them while they are written.
                "epoch_sizes": [list(source.epoch_sizes) for source in self.sources],
                "window": window.state(),
            },
            "ranks": self.ranks,
        }

    def _describe(self, watch: Monitor, notes: list[str]) -> None:
        """Log the model, the corpus, and how the run computes."""
        shape, resolved = self.model.config, self.run.resolved
        with_heads = shape.parameters(heads=list(self.model.heads))
        watch.say(
            f"{shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads, vocabulary "
            f"{shape.vocab_size:,}: {shape.parameters() / 1e6:.1f} M parameters "
            f"({with_heads / 1e6:.1f} M with the pre-training heads)"
        )
        if self.config.start:
            watch.say(
                f"weights of {self.config.start}, dropout {shape.dropout:g}, of attention weights "
                f"{shape.attention_dropout:g}"
            )
        watch.say(
            f"corpus {self.store.folder}: {self.store.documents:,} documents, "
            f"{self.store.sentences:,} sentences, {self.store.tokens:,} tokens"
        )
        name, threads = self.numerics["precision"], self.numerics["threads"]
        reason = f"{name}: requested"
        if name == resolved["precision"]:  # the reason is a measurement on the machine of that day
            reason = resolved["reason"] if self.run.new else f"{name}: as when the run began"
        processes = ""
        if self.ranks.size > 1:
            processes = f" in each of {self.ranks.size} processes ({self.config.parallel})"
        watch.say(f"{self.steps:,} steps; {reason}; {threads_phrase(threads)}{processes}")
        fast, dtype = self.model.shared.fast, self.trainer.dtype
        form = describe_kernels(shape, self.model.device, dtype, fast=fast)
        for note in [*notes, form] if form else notes:
            watch.say(note)

    def _note_changes(self, watch: Monitor, done: int) -> None:
        """Log and record changes that may make the bits differ from an uninterrupted run's."""
        changes = changed_numerics(self.run, self.numerics)
        *_, last = [{}, *recorded_changes(self.run, done + 1)]
        first = last["from_step"] if changes == last.get("changes") else done + 1
        for change in changes:
            watch.say(f"changed since the run started, bits may differ from step {first}: {change}")
        if not changes and last.get("changes"):
            watch.say(f"as when the run started again, from step {done + 1}")
        if self.ranks.is_rank0:
            record_changes(self.run, done + 1, changes)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let Ctrl-C, SIGTERM and a closed terminal finish the step and save; a second Ctrl-C stops
        at once."""

        def request_stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
            if number == hangup:  # to the terminal nothing can be printed any more
                for stream in terminals:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            # Job schedulers and torchrun may each send SIGTERM.
            if self.stop_requested and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stop_requested = True

        hangup = getattr(signal, "SIGHUP", None)  # Windows has none
        terminals = [stream for stream in (1, 2) if os.isatty(stream)]  # closed, they are none
        previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        if hangup and signal.getsignal(hangup) is not signal.SIG_IGN:  # as under nohup
            previous[hangup] = signal.getsignal(hangup)
        if threading.current_thread() is not threading.main_thread():
            previous = {}  # Python delivers signals to the main thread: they are the caller's
        set_here: dict[signal.Signals, Any] = {}
        try:
            for number, handler in previous.items():
                if handler is not None:  # one that was not set from Python cannot be put back
                    set_here[number] = handler
                    signal.signal(number, request_stop)
            yield
        finally:
            for number, handler in set_here.items():
                signal.signal(number, handler)


def _about(config: PretrainConfig, store: TokenStore, steps: int) -> dict[str, Any]:
    """How a model was made, for its bothways.json."""
    return {
        "made_by": "bothways pretrain",
        "corpus": store.fingerprint,
        "steps": steps,
        "seed": config.seed,
        "start": config.start,
        "pairs": config.pairs.kind,
        "masking": config.masking.kind,
        **({"objective": "replaced"} if config.objectives.replaced else {}),
    }
