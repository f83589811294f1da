"""Pre-training, from a corpus folder to a model folder. Start reading here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from bothways.config.fields import digest, to_dict
from bothways.corpus.store import TokenStore, refuse_damaged
from bothways.errors import ConfigError, RunError
from bothways.families.heads import HEADS, parameter_count
from bothways.io import html
from bothways.io.terminal import counted, line_printer
from bothways.model.batch import PretrainingBatch
from bothways.model.device import (
    DTYPES,
    borrowed_process,
    choose_device,
    describe_kernels,
    peak_memory_note,
    set_threads,
)
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.model.priming import primed_rows
from bothways.pretraining.batches import PhaseBatches, prefetch
from bothways.pretraining.clock import EVALUATIONS, phase_steps, resolve_clock
from bothways.pretraining.evaluation import HeldOut, heldout_batches, measure
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.record import CURVES, Utilization, Window, draw_curves, log_window
from bothways.pretraining.report import write_page
from bothways.pretraining.samples import Samples, samples_of
from bothways.pretraining.snapshots import (
    check_own,
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
from bothways.training.checkpoint import ModelCheckpoints
from bothways.training.fit import Place, Plan, fit
from bothways.training.fsdp import whole_model
from bothways.training.monitor import METRICS, Monitor, read_metrics
from bothways.training.ranks import Ranks, process_group
from bothways.training.runfolder import Run, locks_released, note_changes, open_run

CHECKPOINTS, MODEL = "checkpoints", "model"
_RECORDS = 200  # in a run, if the config does not set the interval


@dataclass(frozen=True, repr=False)
class PretrainResult:
    """A finished run; in a notebook it shows its curves.

    Attributes:
        run: the run folder.
        model: the model folder in it.
        steps: optimizer steps done.
        heldout: the last held-out measurements; None if nothing is held out.
        snapshots: the folders of the snapshots, by step.
        samples: words that the model puts in for hidden ones; of several processes, the first has
            them.
    """

    run: Path
    model: Path
    steps: int
    heldout: HeldOut | None
    snapshots: dict[int, Path] = field(default_factory=dict)
    samples: Samples = field(default_factory=Samples, repr=False)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The records of training: ``step``, and losses, accuracies or held-out scores."""
        return read_metrics(self.run / METRICS)

    def plot(self) -> html.Png:
        """The curves of training: the bytes of a PNG, which a notebook shows; empty if there are
        none."""
        path = self.run / CURVES
        return html.Png(path.read_bytes() if path.exists() else b"")

    def __repr__(self) -> str:
        measured = "" if self.heldout is None else f"; {self.heldout.sentence()}"
        return f"pre-trained for {self.steps:,} steps: {self.model}{measured}"

    def _repr_html_(self) -> str:
        parts = [html.paragraph(repr(self))]
        if picture := self.plot():
            parts.append(html.picture(picture, "losses and accuracies by step"))
        return html.fragment("", *parts)


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
    check_micro_batches(config, ranks.size)
    store, objective = open_corpus(config.corpus), objective_of(config)
    model = starting_model(config, store).to(device.torch)
    shape = model.config  # with --start, its dropouts are used unless others are given
    size = config.model.with_dropouts(shape.dropout, shape.attention_dropout)
    config = replace(config, model=size)
    model.shared.fast = config.kernels == "fast"
    model.shared.recompute = config.recompute
    sources = [
        PhaseBatches(
            store,
            phase,
            pairs=config.pairs,
            masking=config.masking,
            objective=objective,
            seed=config.seed,
            number=i,
        )
        for i, phase in enumerate(config.phases)
    ]
    numerics: dict[str, Any] = {"device": device.name, "threads": threads}
    numerics |= {"kernels": config.kernels, "processes": ranks.size}
    if ranks.size > 1:
        numerics["parallel"] = config.parallel
    if config.evaluate.corpus:  # scores on it are compared with those of earlier sessions
        heldout = TokenStore.open(config.evaluate.corpus, "heldout").fingerprint
        numerics["evaluate_corpus"] = heldout
    inputs = {"corpus": store.fingerprint}
    if config.start:
        inputs["start"] = weights_digest(config.start)
    ranks.check_same(_shared_options(config) | inputs | {"device": device.torch.type})
    ranks.copy_from_rank0(model.parameters())  # another processor may draw other initial weights

    def resolve() -> dict[str, Any]:  # when a run starts, and never again
        ranks.run_on_rank0(lambda: refuse_damaged(config.corpus))
        return {**resolve_clock(config, store, model, sources, ranks), **numerics}

    run = open_run(
        config.run,
        config,
        verb="pretrain",
        inputs=inputs,
        resolve=resolve,
        ranks=ranks,
        without=SHAPE_OPTIONS if config.start else (),
    )
    precision = run.resolved["precision"] if config.precision == "auto" else config.precision
    model.shared.transposes = run.resolved.get("transposed_gradients", False)
    numerics = {"precision": precision, **numerics}
    plan = _Pretraining(config, run, store, model, numerics, ranks, device.reason)
    batches = _Steps(sources, phase_steps(config.phases, plan.steps), ranks, device.torch)
    place = Place(run.folder, plan.checkpoints(), "pretrain", ranks, tensorboard=True)
    fit(model, plan.objective, batches, plan, place)
    return _write_model(plan)


def _write_model(plan: _Pretraining) -> PretrainResult:
    """The end of a run: the model, those of the objective's parts, and the curves."""
    config, store, folder = plan.config, plan.store, plan.run.folder
    path = folder / MODEL
    model, samples = whole_model(plan.model, plan.ranks), Samples()
    if plan.ranks.is_rank0:
        about = _about(config, store, plan.steps)
        save_model(path, model, store.tokenizer, about)
        for name, part in plan.objective.models(plan.model).items():
            about["made_by"] = f"bothways pretrain, as {name}"
            save_model(folder / name, part, store.tokenizer, about)
        draw_curves(folder, plan.objective.terms)
        say = line_printer()
        samples = samples_of(path, config)
        page = write_page(folder, config, samples)
        say(f"model: {path}\ncurves: {folder / CURVES}\npage: {page}")
        if memory := peak_memory_note(plan.model.device):
            say(memory)
    plan.ranks.barrier()
    snapshots = {n: snapshot_folder(folder, n) for n in sorted(config.snapshots)}
    return PretrainResult(folder, path, plan.steps, plan.heldout, snapshots, samples)


def check_micro_batches(config: PretrainConfig, ranks: int) -> None:
    """Refuse more processes than a step has micro-batches."""
    for number, phase in enumerate(config.phases):
        count = -(-phase.batch // phase.micro_batch)
        if count < ranks:
            smaller = f"micro_batch {phase.batch // ranks}"
            if phase.batch < ranks:
                smaller = f"a batch of {ranks} or more in micro-batches of 1"
            raise ConfigError(
                f"phases[{number}]: batch {phase.batch} in micro-batches of {phase.micro_batch} "
                f"makes {count}, fewer than the {ranks} processes; start at most {count} "
                f"processes, or a new run with {smaller}."
            )


def _shared_options(config: PretrainConfig) -> dict[str, Any]:
    """The options that must be the same in all processes: all but paths and threads."""
    evaluate = replace(config.evaluate, corpus=None)
    shared = replace(config, corpus="", run="", start=None, threads=0, evaluate=evaluate)
    return to_dict(shared)


class _Steps:
    """The micro-batches of every step of all phases.

    Args:
        sources: of each phase.
        counts: steps of each phase.
        ranks: the processes that divide them.
        device: where they are computed.
    """

    def __init__(
        self,
        sources: Sequence[PhaseBatches],
        counts: Sequence[int],
        ranks: Ranks,
        device: torch.device,
    ):
        self._sources, self._counts, self._ranks, self._device = sources, counts, ranks, device

    def after(self, done: int) -> Iterator[tuple[int, list[PretrainingBatch]]]:
        """Every step that is left, with this process's micro-batches."""
        starts = accumulate(self._counts, initial=0)
        share = self._ranks.micro_batch_slice
        for source, count, start in zip(self._sources, self._counts, starts, strict=False):
            steps = range(max(done - start, 0), count)
            ahead = prefetch(source, steps, share=share, device=self._device)
            for step, micro_batches in zip(steps, ahead, strict=True):
                yield start + step, micro_batches

    def state(self) -> dict[str, Any]:
        """How many instances the epochs have, which saves making earlier ones again."""
        # Copies: the thread that prepares batches may add to them while they are written.
        return {"epoch_sizes": [list(source.epoch_sizes) for source in self._sources]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with what was saved."""
        for source, sizes in zip(self._sources, state["epoch_sizes"], strict=True):
            source.epoch_sizes = list(sizes)


class _Pretraining(Plan[PretrainingBatch]):
    """What is done between the steps of a pre-training.

    Args:
        config: the recipe.
        run: the opened run folder.
        store: the corpus.
        model: in training.
        numerics: what may change rounding, for run.json.
        ranks: the processes.
        device_note: the log line about the device and why it was chosen.

    Attributes:
        heldout: the last held-out measurements; None if nothing is held out.
    """

    def __init__(
        self,
        config: PretrainConfig,
        run: Run,
        store: TokenStore,
        model: EncoderModel,
        numerics: dict[str, Any],
        ranks: Ranks,
        device_note: str,
    ):
        self.config, self.run, self.store, self.model = config, run, store, model
        self.numerics, self.ranks, self.device_note = numerics, ranks, device_note
        self.objective = objective_of(config)
        self.heldout: HeldOut | None = None
        primed = bool(config.start) or config.model.init == "primed"
        dtype, steps = DTYPES[numerics["precision"]], int(run.resolved["steps"])
        super().__init__(
            config.optimizer,
            steps,
            config.seed,
            dtype,
            config.checkpoint.minutes,
            Window(Utilization(model, self.objective, dtype), self.objective),
            parallel=config.parallel,
            frozen_rows=primed_rows(model.encoder, "encoder") if primed else {},
            saves_end=True,
            saves_first=False,
        )
        evaluations = int(run.resolved.get("evaluations", EVALUATIONS))  # not in older runs
        self._evaluate_every = config.evaluate.every or -(-steps // evaluations)
        self._log_every = config.log_every or max(1, steps // _RECORDS)

    def checkpoints(self) -> ModelCheckpoints:
        """Those of the run."""
        return ModelCheckpoints(
            self.run.folder / CHECKPOINTS,
            self.store.tokenizer,
            lambda step: _about(self.config, self.store, step),
            keep=self.config.checkpoint.keep,
            run=self.run.identity,
            ranks=self.ranks,
        )

    def check(self, done: int) -> None:
        """Refuse a finished run without its checkpoints, which would be trained again, over its
        records; and snapshots that cannot be taken."""
        folder, model = self.run.folder, self.run.folder / MODEL

        def refuse() -> None:
            if done == 0 and model.exists():
                raise RunError(
                    f"{folder} holds a finished run without its checkpoints: the model is {model}. "
                    "To train it again, choose another run folder, or remove this one."
                )
            check_snapshots(folder, self.config.snapshots, done=done, total=self.steps)
            for step in self.config.snapshots:
                check_own(snapshot_folder(folder, step), self._snapshot_about(step))

        self.ranks.run_on_rank0(refuse)

    def begin(self, watch: Monitor, done: int, notes: list[str]) -> None:
        """Log the model, the corpus, how the run computes, and what has changed since it began."""
        self._describe(watch, [self.device_note, *notes])
        if done:
            last = ", the last; nothing is left to train" if done == self.steps else ""
            watch.say(f"continuing after step {done:,}{last}")
        if not self.run.new:
            note_changes(self.run, self.numerics, watch.say, done=done, ranks=self.ranks)
        self._batches = heldout_batches(self.config, self.store, watch.say)
        if self.ranks.size > 1:
            tokens = [batch.inputs.tokens.tolist() for batch in self._batches]
            self.ranks.check_same({"held-out sequences": digest(tokens)})

    def tried(self, watch: Monitor, done: int, size: int) -> None:
        """Try the snapshots, too."""
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
                    "free; free some space, or lower checkpoint_keep"
                )

    def first(self, watch: Monitor, done: int) -> None:
        """The untrained model; of a finished run, the result that is on record already."""
        if done in (0, self.steps):
            self._evaluate(watch, done, record=done == 0)

    def logs(self, now: int) -> bool:
        """At the interval, and at the end."""
        return now % self._log_every == 0 or now == self.steps

    def log(self, watch: Monitor, now: int, record: dict[str, float]) -> None:
        """See :func:`log_window`."""
        log_window(watch, now, record)

    def measures(self, now: int) -> bool:
        """At the interval, and at the end."""
        return now % self._evaluate_every == 0 or now == self.steps

    def measure(self, watch: Monitor, now: int) -> None:
        """On the held-out sequences."""
        self._evaluate(watch, now)

    def _evaluate(self, watch: Monitor, step: int, *, record: bool = True) -> None:
        if not self._batches:
            return
        self.heldout = measure(self.model, self._batches, self.dtype, self.objective, self.ranks)
        if record:
            watch.record(step, self.heldout.record())
        watch.say(f"step {step:,}: {self.heldout.sentence()}")

    def keeps(self, now: int) -> bool:
        """At the steps of the snapshots."""
        return now in self.config.snapshots

    def keep(self, watch: Monitor, now: int) -> None:
        """As a model folder, unless it was kept when the run passed this step before."""
        folder, tokenizer, about = self.run.folder, self.store.tokenizer, self._snapshot_about(now)
        if keep_snapshot(folder, now, self.model, tokenizer, about, self.ranks):
            watch.say(f"step {now:,}: the model is kept in {snapshot_folder(folder, now)}")

    def _snapshot_about(self, step: int) -> dict[str, Any]:
        about = _about(self.config, self.store, step)
        return {**about, "snapshot_of_steps": self.steps, "run": self.run.identity}

    def saved(self) -> None:
        """Curves are drawn with every checkpoint."""
        if self.ranks.is_rank0:
            draw_curves(self.run.folder, self.objective.terms)

    def _describe(self, watch: Monitor, notes: list[str]) -> None:
        """Log the model, the corpus, and how the run computes."""
        shape, resolved = self.model.config, self.run.resolved
        heads = {name: HEADS[name].outputs for name in self.model.heads}
        watch.say(
            f"{counted(shape.layers, 'layer')}, hidden {shape.hidden}, "
            f"{counted(shape.heads, 'head')}, vocabulary {shape.vocab_size:,}: "
            f"{parameter_count(shape) / 1e6:.1f} M parameters "
            f"({parameter_count(shape, heads) / 1e6:.1f} M with the pre-training heads)"
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
        watch.say(f"{self.steps:,} steps; {reason}; {counted(threads, 'thread')}{processes}")
        fast, dtype = self.model.shared.fast, self.dtype
        form = describe_kernels(shape, self.model.device, dtype, fast=fast)
        for note in [*notes, form] if form else notes:
            watch.say(note)


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
        "objective": config.objective[0],
    }
