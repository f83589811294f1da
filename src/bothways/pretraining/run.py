"""Pre-training, from a corpus folder to a model folder; read from top to bottom."""

from __future__ import annotations

import copy
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch

from bothways.config import ModelConfig, PairKind, Phase, PretrainConfig
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, StoreError
from bothways.files import sha256
from bothways.model.batch import PretrainingBatch
from bothways.model.encoder import init_weights
from bothways.model.folder import OLD_WEIGHTS, WEIGHTS, load_model, save_model
from bothways.model.heads import Bert, MaskedLMHead, NextSentenceHead
from bothways.pretraining.batches import PairBatches, prefetch
from bothways.pretraining.objective import PAIR_TASKS, HeldOut, measure, pretraining_loss
from bothways.pretraining.plan import unfit
from bothways.pretraining.utilization import Utilization
from bothways.randomness import Purpose
from bothways.training.device import (
    choose_device,
    describe_attention,
    peak_memory_note,
    synchronize,
)
from bothways.training.engine import Stats, Trainer
from bothways.training.monitor import METRICS, Monitor, read_metrics
from bothways.training.plots import plot_panels
from bothways.training.precision import DTYPES, choose_precision, set_threads
from bothways.training.runfolder import Run, changed_numerics, open_run, record_changes
from bothways.training.schedules import phase_steps, total_steps
from bothways.training.state import restore_newest, save_checkpoint

Head = TypeVar("Head", bound=torch.nn.Module)
T = TypeVar("T")

CHECKPOINTS, MODEL, CURVES = "checkpoints", "model", "curves.png"
_EVALUATION_SEED = 20190610  # held-out pairs are the same for every run on a corpus
_LOADER_WAIT_SHOWN = 0.03  # share of the time
_EVALUATIONS, _RECORDS = 20, 200  # in a run, where the config leaves the interval open


@dataclass(frozen=True)
class PretrainResult:
    """A finished run.

    Attributes:
        run: the run folder.
        model: the model folder in it.
        steps: optimizer steps done.
        heldout: the last held-out measurements; None where the corpus has no held-out part.
    """

    run: Path
    model: Path
    steps: int
    heldout: HeldOut | None


def pretrain(config: PretrainConfig) -> PretrainResult:
    """Pre-train an encoder; continue if the run folder holds an unfinished run of this config.

    Args:
        config: the recipe, with corpus and run folders.

    Raises:
        ConfigError, StoreError, ModelError, RunError: the config, corpus, start model or run
            folder cannot be used; the message says why and what to do.
        DiskError: a checkpoint could not be written; the one before is intact.
        KeyboardInterrupt: interrupted; the state was saved after the step in progress.
    """
    threads, device = set_threads(config.threads), choose_device(config.device)
    store = _open_corpus(config.corpus)
    model = _starting_model(config, store).to(device.torch)
    model.shared.fast = config.kernels == "fast"
    model.shared.recompute = config.recompute
    sources = [
        PairBatches(
            store, phase, pairs=config.pairs, masking=config.masking, seed=config.seed, number=i
        )
        for i, phase in enumerate(config.phases)
    ]
    numerics = {"device": device.name, "threads": threads, "kernels": config.kernels}
    inputs = {"corpus": store.fingerprint}
    if config.start:
        inputs["start"] = _weights_digest(Path(config.start))
    run = open_run(
        config.run,
        config,
        verb="pretrain",
        inputs=inputs,
        resolve=lambda: {**_resolve(config, model, sources), **numerics},
    )
    precision = run.resolved["precision"] if config.precision == "auto" else config.precision
    heldout = _Pretraining(
        config, run, store, model, sources, {"precision": precision, **numerics}
    ).train(device.reason)
    return _finish(config, run, store, model, heldout)


def _open_corpus(folder: str) -> TokenStore:
    if not folder:
        raise ConfigError("no corpus was given; build one with `bothways corpus`, then --corpus.")
    return TokenStore.open(folder)


def _starting_model(config: PretrainConfig, store: TokenStore) -> Bert:
    """New weights, or those of --start with the pre-training heads it lacks."""
    if not config.start:
        shape = config.model.resolve(store.tokenizer.vocab_size)
        return _fit_heads(Bert(shape, pretraining=True, seed=config.seed), config)
    loaded = load_model(config.start)
    if loaded.tokenizer.fingerprint != store.tokenizer.fingerprint:
        raise StoreError(
            f"{config.corpus} was built with another vocabulary than {config.start} has; build it "
            f"again with --tokenizer {config.start}."
        )
    model = loaded.model
    longest = max(phase.length for phase in config.phases)
    if longest > model.config.positions:
        raise ConfigError(
            f"phases: length {longest} is over the {model.config.positions} positions of "
            f"{config.start}; shorten the phase."
        )
    model.classifier = None
    # The heads are numbered as in a new model, so that they draw different numbers.
    if model.masked_lm is None:
        model.masked_lm = _new_head(MaskedLMHead(model.config), model.config, config.seed, 0)
    if model.next_sentence is None:
        head = NextSentenceHead(model.config)
        model.next_sentence = _new_head(head, model.config, config.seed, 1)
    return _fit_heads(model, config)


def _fit_heads(model: Bert, config: PretrainConfig) -> Bert:
    """Without the head for pairs if there are none: untrained, it would answer at random."""
    if config.pairs.kind not in PAIR_TASKS:
        model.next_sentence = None
    return model


def _new_head(head: Head, shape: ModelConfig, seed: int, index: int) -> Head:
    init_weights(head, shape, seed=seed, purpose=Purpose.HEAD, index=index)
    return head


def _weights_digest(folder: Path) -> str:
    """Of the file that :func:`load_model` reads."""
    path = folder / WEIGHTS
    return sha256(path if path.exists() else folder / OLD_WEIGHTS)[:16]


# ---------------------------------------------------------------- what is decided before step 1


def _resolve(config: PretrainConfig, model: Bert, sources: Sequence[PairBatches]) -> dict[str, Any]:
    precision = choose_precision(config.precision, model.device)
    steps = _count_steps(config, model, sources, DTYPES[precision.name])
    return {"precision": precision.name, "reason": precision.reason, "steps": steps}


def _count_steps(
    config: PretrainConfig, model: Bert, sources: Sequence[PairBatches], dtype: torch.dtype
) -> int:
    clock, phases = config.clock, config.phases
    tokens, seconds = [0.0] * len(phases), [0.0] * len(phases)
    if clock.tokens is not None:
        tokens = [
            float(sum(b.inputs.bounds[-1] for b in source.micro_batches(0))) for source in sources
        ]
    if clock.minutes is not None:
        seconds = [_probe(model, source, dtype, config.pairs.kind) for source in sources]
        # Evaluations are forward passes, about a third of a step's work for each sequence.
        evaluation = config.evaluate.sequences / phases[0].batch * seconds[0] / 3
        if config.evaluate.every:
            seconds = [own + evaluation / config.evaluate.every for own in seconds]
        else:
            spent = min(_EVALUATIONS * evaluation / 60, clock.minutes * 0.5)
            clock = replace(clock, minutes=clock.minutes - spent)
    return total_steps(clock, phases, step_tokens=tokens, step_seconds=seconds)


def _probe(model: Bert, source: PairBatches, dtype: torch.dtype, pairs: PairKind) -> float:
    """Seconds of one step, from a few micro-batches trained on a copy of the model."""
    batches = source.micro_batches(0)
    some = [batches[i % len(batches)] for i in range(4)]
    options = PretrainConfig().optimizer
    trainer: Trainer[PretrainingBatch] = Trainer(
        copy.deepcopy(model), options, total_steps=1000, seed=0, dtype=dtype
    )
    times = []
    for step, batch in enumerate(some):
        start = time.perf_counter()
        trainer.step(step, [batch.to(model.device)], pretraining_loss([batch], pairs))
        synchronize(model.device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:]) * len(batches)


# ------------------------------------------------------------------------------------- the loop


class _Pretraining:
    """The state of a run in progress."""

    def __init__(
        self,
        config: PretrainConfig,
        run: Run,
        store: TokenStore,
        model: Bert,
        sources: list[PairBatches],
        numerics: dict[str, Any],
    ):
        self.config, self.run, self.store, self.model = config, run, store, model
        self.sources, self.numerics = sources, numerics
        self.steps: int = run.resolved["steps"]
        self.trainer: Trainer[PretrainingBatch] = Trainer(
            model,
            config.optimizer,
            total_steps=self.steps,
            seed=config.seed,
            dtype=DTYPES[numerics["precision"]],
        )
        self.evaluate_every = config.evaluate.every or max(1, self.steps // _EVALUATIONS)
        self.log_every = config.log_every or max(1, self.steps // _RECORDS)
        self.stop_asked = False

    def train(self, device: str) -> HeldOut | None:
        """From the newest checkpoint, or from step 0, to the end; the last held-out result.

        Args:
            device: the reason for it, for the log.
        """
        notes = [device]
        folder = self.run.folder / CHECKPOINTS
        restored = restore_newest(folder, self.model, self.trainer.optimizer, notes.append)
        done = 0
        if restored is not None:
            done = restored.step
            for source, sizes in zip(self.sources, restored.extra["epoch_sizes"], strict=True):
                source.epoch_sizes = list(sizes)
        with Monitor(self.run.folder, self.steps, "pretrain", done=done, tensorboard=True) as watch:
            self._greet(watch, notes)
            if done:
                self._continue(watch, done)
            heldout = heldout_batches(self.config, self.store, watch.say)
            with self._interruptible():
                return self._loop(watch, done, heldout)

    def _loop(self, watch: Monitor, done: int, heldout: list[PretrainingBatch]) -> HeldOut | None:
        window = _Window(Utilization(self.model, self.trainer.dtype))
        saved_at = time.monotonic()
        result = None
        if done in (0, self.steps):  # the result of a finished run is on record already
            result = self._evaluate(watch, done, heldout, record=done == 0)
        pairs = self.config.pairs.kind
        for step, micro_batches in window.waiting_for(self._batches(done)):
            loss = pretraining_loss(micro_batches, pairs)
            stats = self.trainer.step(step, micro_batches, loss)
            window.add(stats, micro_batches)
            now = step + 1
            if now % self.log_every == 0 or now == self.steps:
                self.trainer.check()
                _log(watch, now, window.close())
            if now % self.evaluate_every == 0 or now == self.steps:
                self.trainer.check()
                with window.paused():
                    result = self._evaluate(watch, now, heldout)
            due = time.monotonic() - saved_at > self.config.checkpoint.minutes * 60
            if due or now == self.steps or self.stop_asked:
                self._save(now)
                saved_at = time.monotonic()
            if self.stop_asked and now < self.steps:
                watch.say(f"interrupted after step {now}; the state is saved in {self.run.folder}")
                raise KeyboardInterrupt
        return result

    def _batches(self, done: int) -> Iterator[tuple[int, list[PretrainingBatch]]]:
        """Every remaining step with its micro-batches, through the phases."""
        counts = phase_steps(self.config.phases, self.steps)
        starts = accumulate(counts, initial=0)
        for source, count, start in zip(self.sources, counts, starts, strict=False):
            own = range(max(done - start, 0), count)
            for step, batch in zip(
                own, prefetch(source, own, device=self.model.device), strict=True
            ):
                yield start + step, batch

    def _evaluate(
        self, watch: Monitor, step: int, batches: list[PretrainingBatch], *, record: bool = True
    ) -> HeldOut | None:
        if not batches:
            return None
        result = measure(self.model, batches, self.trainer.dtype, self.config.pairs.kind)
        if record:
            watch.record(step, result.record())
        watch.say(f"step {step:,}: {result.sentence()}")
        return result

    def _save(self, step: int) -> None:
        self.trainer.check()
        save_checkpoint(
            self.run.folder / CHECKPOINTS,
            step,
            self.model,
            self.store.tokenizer,
            self.trainer.optimizer,
            about=_about(self.config, self.store, step),
            extra={"epoch_sizes": [source.epoch_sizes for source in self.sources]},
            keep=self.config.checkpoint.keep,
        )
        draw_curves(self.run.folder)

    def _greet(self, watch: Monitor, notes: list[str]) -> None:
        shape, resolved = self.model.config, self.run.resolved
        watch.say(
            f"{shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads, vocabulary "
            f"{shape.vocab_size:,}: {shape.parameters() / 1e6:.1f} M parameters "
            f"({shape.parameters(heads=True) / 1e6:.1f} M with the pre-training heads)"
        )
        watch.say(
            f"corpus {self.store.folder}: {self.store.documents:,} documents, "
            f"{self.store.sentences:,} sentences, {self.store.tokens:,} tokens"
        )
        name, threads = self.numerics["precision"], self.numerics["threads"]
        reason = resolved["reason"] if name == resolved["precision"] else f"{name}: asked for"
        watch.say(f"{self.steps:,} steps; {reason}; {threads} threads")
        fast, dtype = self.model.shared.fast, self.trainer.dtype
        form = describe_attention(shape, self.model.device, dtype, fast=fast)
        for note in [*notes, form] if form else notes:
            watch.say(note)

    def _continue(self, watch: Monitor, done: int) -> None:
        """Say where the run goes on, and if its bits may differ from those of an unbroken one."""
        watch.say(f"continuing after step {done:,}")
        changes = changed_numerics(self.run, self.numerics)
        for change in changes:
            watch.say(
                f"changed since the run began, bits may differ from step {done + 1}: {change}"
            )
        if changes:
            record_changes(self.run, done + 1, changes)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM finish the step and save; a second Ctrl-C stops at once."""

        def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
            if self.stop_asked:
                raise KeyboardInterrupt
            self.stop_asked = True

        try:
            before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread: leave signals to the caller
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Window:
    """Averages of the steps since the last record."""

    def __init__(self, utilization: Utilization) -> None:
        self._utilization = utilization
        self._open()

    def _open(self) -> None:
        self._start, self._steps, self._tokens = time.perf_counter(), 0, 0
        self._waited = 0.0
        self._sums: Stats = {}

    def waiting_for(self, batches: Iterator[T]) -> Iterator[T]:
        """The batches; the time until each is there counts as waiting for the loader."""
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            self._waited += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    def add(self, stats: Stats, batches: Sequence[PretrainingBatch]) -> None:
        self._steps += 1
        self._utilization.add(batches)
        self._tokens += int(sum(b.inputs.bounds[-1] for b in batches))
        for name, value in stats.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def close(self) -> dict[str, float]:
        """The record, with tokens a second; starts the next window."""
        means = {name: float(value) / self._steps for name, value in self._sums.items()}
        record = {"loss": sum(v for name, v in means.items() if name.endswith("_loss")), **means}
        seconds = time.perf_counter() - self._start
        record["tokens_per_second"] = self._tokens / seconds
        record.update(self._utilization.close(record["tokens_per_second"]))
        record["loader_wait"] = self._waited / seconds
        self._open()
        return record

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that does not count for tokens a second."""
        start = time.perf_counter()
        yield
        self._start += time.perf_counter() - start


def _log(watch: Monitor, step: int, record: dict[str, float]) -> None:
    """Record everything; show the loader's share of the time only where it costs something."""
    watch.record(step, record)
    worth = record["loader_wait"] > _LOADER_WAIT_SHOWN
    watch.show(step, {k: v for k, v in record.items() if k != "loader_wait" or worth})


# ---------------------------------------------------------------------- measuring and finishing


def heldout_batches(config: PretrainConfig, store: TokenStore, say: Any) -> list[PretrainingBatch]:
    """The held-out micro-batches of a run, the same for every run on this corpus."""
    folder = config.evaluate.corpus or store.folder
    heldout, kind = TokenStore.open(folder, "heldout"), config.pairs.kind
    if unfit(heldout, kind) and heldout.fingerprint != store.fingerprint:
        heldout = TokenStore.open(folder)  # a corpus built for measuring need not be split
    if heldout.tokenizer.fingerprint != store.tokenizer.fingerprint:
        raise StoreError(
            f"{folder} was built with another vocabulary than {store.folder}; build it again with "
            f"--tokenizer {store.folder}."
        )
    if problem := unfit(heldout, kind):
        say(f"no held-out evaluation: {problem}")
        return []
    return evaluation_batches(heldout, config.phases[0].length, config.evaluate.sequences, config)


def evaluation_batches(
    store: TokenStore, length: int, sequences: int, config: PretrainConfig
) -> list[PretrainingBatch]:
    """This many sequences of a store, at most one pass over it, in micro-batches of 64, drawn by a
    seed of their own."""
    source = PairBatches(
        store,
        Phase(length=length, batch=64, micro_batch=64),
        pairs=config.pairs,
        masking=config.masking,
        seed=_EVALUATION_SEED,
    )
    return source.first(sequences)


def draw_curves(folder: Path) -> None:
    """Write curves.png of a run from its metrics."""
    records = read_metrics(folder / METRICS)

    def curve(name: str) -> tuple[list[float], list[float]]:
        found = [(r["step"], r[name]) for r in records if r.get(name) is not None]
        return [x for x, _ in found], [y for _, y in found]

    def last(name: str) -> tuple[list[float], list[float]]:
        x, y = curve(name)
        return x[-1:], y[-1:]

    panels = {
        "masked-LM loss (nats)": {
            "training": curve("mlm_loss"),
            "held out": curve("heldout_mlm_loss"),
        },
        "masked-LM accuracy": {
            "training": curve("mlm_accuracy"),
            "held out": curve("heldout_mlm_accuracy"),
            "most frequent token": last("heldout_mlm_baseline"),
        },
    }
    for prefix, name in PAIR_TASKS.values():
        panels[f"{name} accuracy"] = {
            "training": curve(f"{prefix}_accuracy"),
            "held out": curve(f"heldout_{prefix}_accuracy"),
            "commoner answer": last(f"heldout_{prefix}_baseline"),
        }
    shown = {title: {n: c for n, c in curves.items() if c[0]} for title, curves in panels.items()}
    plot_panels(folder / CURVES, {title: curves for title, curves in shown.items() if curves})


def _finish(
    config: PretrainConfig, run: Run, store: TokenStore, model: Bert, heldout: HeldOut | None
) -> PretrainResult:
    steps: int = run.resolved["steps"]
    path = run.folder / MODEL
    save_model(path, model, store.tokenizer, _about(config, store, steps))
    draw_curves(run.folder)
    memory = peak_memory_note(model.device)
    print(f"model: {path}\ncurves: {run.folder / CURVES}" + (memory and f"\n{memory}"))
    return PretrainResult(run.folder, path, steps, heldout)


def _about(config: PretrainConfig, store: TokenStore, steps: int) -> dict[str, Any]:
    return {
        "made_by": "bothways pretrain",
        "corpus": store.fingerprint,
        "steps": steps,
        "seed": config.seed,
        "start": config.start,
        "pairs": config.pairs.kind,
        "masking": config.masking.kind,
    }
