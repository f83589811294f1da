"""Pre-training, from a corpus folder to a model folder. Start reading here."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
    choose_for_training,
    describe_kernels,
    peak_memory_note,
    reset_peak_memory,
    set_threads,
)
from bothways.model.folder import save_model, write_model_files
from bothways.model.model import EncoderModel
from bothways.model.priming import primed_rows
from bothways.objectives.objective import PretrainingObjective
from bothways.pretraining.batches import PhaseBatches, prefetch
from bothways.pretraining.clock import EVALUATIONS, count_steps, phase_steps
from bothways.pretraining.evaluation import HeldOut, count_heldout, heldout_batches, measure
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.record import CURVES, Records, draw_curves, log_window
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
from bothways.training.checkpoint import CHECKPOINTS, Checkpoint, Write, check_space
from bothways.training.fit import fit
from bothways.training.fsdp import whole_model
from bothways.training.monitor import METRICS, Monitor, open_monitor, read_metrics
from bothways.training.ranks import Ranks, process_group
from bothways.training.runfolder import Run, locks_released, note_changes, open_run
from bothways.training.trainer import Trainer

MODEL = "model"
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
        opened = open_training(config, ranks)
        heldout = train(opened)
        return write_result(opened, heldout)


@dataclass(frozen=True)
class Opened:
    """A pre-training that is ready to begin or to continue.

    Attributes:
        config: what is left to decide.
        store: the corpus.
        model: in training.
        sources: the batches of each phase.
        objective: what the model is trained for.
        run: the run folder.
        numerics: what may change rounding, for run.json.
        ranks: the processes.
        notes: lines for the log.
    """

    config: PretrainConfig
    store: TokenStore
    model: EncoderModel
    sources: Sequence[PhaseBatches]
    objective: PretrainingObjective
    run: Run
    numerics: Mapping[str, Any]
    ranks: Ranks
    notes: Sequence[str]

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return int(self.run.resolved["steps"])

    @property
    def dtype(self) -> torch.dtype:
        """Arithmetic of the layers."""
        return DTYPES[self.numerics["precision"]]

    def about(self, step: int) -> dict[str, Any]:
        """For bothways.json of the model after a step."""
        return _about(self.config, self.store, step)

    def snapshot_about(self, step: int) -> dict[str, Any]:
        """The same, for a snapshot."""
        return {**self.about(step), "snapshot_of_steps": self.steps, "run": self.run.identity}


def open_training(config: PretrainConfig, ranks: Ranks) -> Opened:
    """The text, the network and the run folder."""
    threads, device = set_threads(config.threads), choose_device(config.device)
    check_micro_batches(config, ranks.size)
    store, objective = open_corpus(config.corpus), objective_of(config)
    model = starting_model(config, store).to(device.torch)
    model.shared.fast, model.shared.recompute = config.kernels == "fast", config.recompute
    dropouts = model.config.dropout, model.config.attention_dropout  # with --start, its own
    config = replace(config, model=config.model.with_dropouts(*dropouts))
    sources = [
        PhaseBatches(
            store,
            phase,
            pairs=config.pairs,
            masking=config.masking,
            objective=objective,
            seed=config.seed,
            number=number,
        )
        for number, phase in enumerate(config.phases)
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

    def decide() -> dict[str, Any]:  # when a run starts, and never again
        ranks.run_on_rank0(lambda: refuse_damaged(config.corpus))
        choice = ranks.run_on_rank0(lambda: choose_for_training(config.precision, model.device))
        model.shared.transposes = choice.transposes

        def new_trainer() -> Trainer[PretrainingBatch]:
            return Trainer(
                copy.deepcopy(model),
                replace(config.optimizer, lr=PretrainConfig().optimizer.lr),  # it is timed alone
                total_steps=1000,
                seed=0,
                dtype=DTYPES[choice.name],
                ranks=ranks,
                parallel=config.parallel,
            )

        steps, evaluations = count_steps(
            *(config.clock, sources, new_trainer, objective, ranks),
            every=config.evaluate.every,
            heldout=lambda: count_heldout(config, store),
        )
        return {
            "precision": choice.name,
            "reason": choice.reason,
            "transposed_gradients": choice.transposes,
            "steps": steps,
            "evaluations": evaluations,
            **numerics,
        }

    run = open_run(
        config.run,
        config,
        verb="pretrain",
        inputs=inputs,
        resolve=decide,
        ranks=ranks,
        without=SHAPE_OPTIONS if config.start else (),
    )
    model.shared.transposes = run.resolved.get("transposed_gradients", False)
    precision = run.resolved["precision"] if config.precision == "auto" else config.precision
    numerics = {"precision": precision, **numerics}
    return Opened(config, store, model, sources, objective, run, numerics, ranks, [device.reason])


def train(opened: Opened) -> HeldOut | None:
    """Train from the beginning or the newest checkpoint; the last held-out measurements."""
    config, model, ranks, steps = opened.config, opened.model, opened.ranks, opened.steps
    folder, keep = opened.run.folder, config.checkpoint.keep
    evaluations = int(opened.run.resolved.get("evaluations", EVALUATIONS))  # not in older runs
    evaluate_every = config.evaluate.every or -(-steps // evaluations)
    log_every = config.log_every or max(1, steps // _RECORDS)
    primed = bool(config.start) or config.model.init == "primed"
    trainer: Trainer[PretrainingBatch] = Trainer(
        model,
        config.optimizer,
        total_steps=steps,
        seed=config.seed,
        dtype=opened.dtype,
        ranks=ranks,
        parallel=config.parallel,
        frozen_rows=primed_rows(model.encoder, "encoder") if primed else {},
    )
    batches, records = PhaseSteps(opened), Records(model, opened.objective, opened.dtype, ranks)

    def write_model(path: Path, model: EncoderModel, step: int, write: Write) -> None:
        write_model_files(path, model, opened.store.tokenizer, opened.about(step), write)

    checkpoint = Checkpoint(
        folder / CHECKPOINTS,
        trainer,
        (batches, records.window),
        run=opened.run.identity,
        keep=keep,
        write_model=write_model,
    )
    notes = [*opened.notes]
    done = checkpoint.restore(notes.append)
    ranks.run_on_rank0(lambda: refuse(opened, done))
    with open_monitor(folder, steps, "pretrain", done, ranks) as watch:
        for line in describe(opened, done, notes):
            watch.say(line)
        if not opened.run.new:
            note_changes(opened.run, opened.numerics, watch.say, done=done, ranks=ranks)
        held = heldout_batches(config, opened.store, watch.say)
        ranks.check_same(
            {"held-out sequences": digest([batch.inputs.tokens.tolist() for batch in held])}
        )
        if done < steps:
            size, later = checkpoint.rehearse(), [n for n in config.snapshots if n > done]
            weights = sum(parameter.nbytes for parameter in model.parameters())
            most = (keep + 1) * size + (1 + len(config.snapshots)) * weights
            ranks.run_on_rank0(lambda: try_snapshots(folder, later))
            check = partial(check_space, folder, size, 0 if done else most, watch.say)
            ranks.run_on_rank0(check)
        heldout = None
        if done in (0, steps):  # the untrained model; of a finished run, what it has on record
            heldout = evaluate(opened, held, watch, done, record=done == 0)
        keep_model(opened, watch, done)
        reset_peak_memory(model.device)  # of measuring speeds
        for step in fit(
            trainer,
            opened.objective,
            batches.after(done),
            checkpoint,
            minutes=config.checkpoint.minutes,
            say=watch.say,
            saves_end=True,
        ):
            records.add(step)
            if step.due(log_every):
                log_window(watch, step.number, records.close(step))
            if step.due(evaluate_every):
                heldout = evaluate(opened, held, watch, step.number)
            if step.number in config.snapshots:
                step.settle()
                keep_model(opened, watch, step.number)
    return heldout


def write_result(opened: Opened, heldout: HeldOut | None) -> PretrainResult:
    """The end of a run: the model, those of the objective's parts, and the curves."""
    config, folder, tokenizer = opened.config, opened.run.folder, opened.store.tokenizer
    path = folder / MODEL
    model, samples = whole_model(opened.model, opened.ranks), Samples()
    if opened.ranks.is_rank0:
        about, say = opened.about(opened.steps), line_printer()
        save_model(path, model, tokenizer, about)
        for name, part in opened.objective.models(opened.model).items():
            made_by = f"bothways pretrain, as {name}"
            save_model(folder / name, part, tokenizer, {**about, "made_by": made_by})
        draw_curves(folder, opened.objective.terms)
        if opened.objective.fills_masks:
            samples = samples_of(path, config.corpus)
        page = write_page(folder, config.corpus, opened.objective.terms, samples)
        say(f"model: {path}\ncurves: {folder / CURVES}\npage: {page}")
        if memory := peak_memory_note(opened.model.device):
            say(memory)
    opened.ranks.barrier()
    snapshots = {n: snapshot_folder(folder, n) for n in sorted(config.snapshots)}
    return PretrainResult(folder, path, opened.steps, heldout, snapshots, samples)


# --------------------------------------------------------------------------------
# What the stage uses, in its order.


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


class PhaseSteps:
    """The micro-batches of every step, phase after phase."""

    def __init__(self, opened: Opened) -> None:
        self._sources, self._ranks = opened.sources, opened.ranks
        self._counts = phase_steps(opened.config.phases, opened.steps)
        self._device = opened.model.device

    def after(self, done: int) -> Iterator[tuple[int, list[PretrainingBatch]]]:
        """This process's for the steps that are left."""
        starts = accumulate(self._counts, initial=0)
        share = self._ranks.micro_batch_slice
        for source, count, start in zip(self._sources, self._counts, starts, strict=False):
            steps = range(max(done - start, 0), count)
            ahead = prefetch(source, steps, share=share, device=self._device)
            yield from zip((start + step for step in steps), ahead, strict=True)

    def state(self) -> dict[str, Any]:
        """How many instances each epoch has, copied from a thread that may add to them."""
        return {"epoch_sizes": [list(source.epoch_sizes) for source in self._sources]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Saves making the instances of earlier epochs again."""
        for source, sizes in zip(self._sources, state["epoch_sizes"], strict=True):
            source.epoch_sizes = list(sizes)


def refuse(opened: Opened, done: int) -> None:
    """Refuse to train a finished run without its checkpoints again, over its records; and snapshots
    that cannot be taken."""
    folder, snapshots = opened.run.folder, opened.config.snapshots
    if done == 0 and (folder / MODEL).exists():
        raise RunError(
            f"{folder} holds a finished run without its checkpoints: the model is "
            f"{folder / MODEL}. To train it again, choose another run folder, or remove this one."
        )
    check_snapshots(folder, snapshots, done=done, total=opened.steps)
    for step in snapshots:
        check_own(snapshot_folder(folder, step), opened.snapshot_about(step))


def describe(opened: Opened, done: int, notes: Sequence[str]) -> Iterator[str]:
    """The network, the text, how the run computes, and from where it continues."""
    config, shape, store, ranks = opened.config, opened.model.config, opened.store, opened.ranks
    heads = {name: HEADS[name].outputs for name in opened.model.heads}
    yield (
        f"{counted(shape.layers, 'layer')}, hidden {shape.hidden}, {counted(shape.heads, 'head')}, "
        f"vocabulary {shape.vocab_size:,}: {parameter_count(shape) / 1e6:.1f} M parameters "
        f"({parameter_count(shape, heads) / 1e6:.1f} M with the pre-training heads)"
    )
    if config.start:
        dropouts = f"{shape.dropout:g}, of attention weights {shape.attention_dropout:g}"
        yield f"weights of {config.start}, dropout {dropouts}"
    yield (
        f"corpus {store.folder}: {store.documents:,} documents, {store.sentences:,} sentences, "
        f"{store.tokens:,} tokens"
    )
    precision, resolved = opened.numerics["precision"], opened.run.resolved
    reason = f"{precision}: requested"
    if precision == resolved["precision"]:  # the reason was a measurement of that day
        reason = resolved["reason"] if opened.run.new else f"{precision}: as when the run began"
    several = f" in each of {ranks.size} processes ({config.parallel})" if ranks.size > 1 else ""
    threads = counted(opened.numerics["threads"], "thread")
    yield f"{opened.steps:,} steps; {reason}; {threads}{several}"
    fast = opened.model.shared.fast
    kernels = describe_kernels(shape, opened.model.device, opened.dtype, fast=fast)
    yield from filter(None, [*notes, kernels])
    if done:
        last = ", the last; nothing is left to train" if done == opened.steps else ""
        yield f"continuing after step {done:,}{last}"


def evaluate(
    opened: Opened,
    held: Sequence[PretrainingBatch],
    watch: Monitor,
    step: int,
    *,
    record: bool = True,
) -> HeldOut | None:
    """Draw the curves so far, and measure the model on the held-out sequences; None without any."""
    found = None
    if held:
        found = measure(opened.model, held, opened.dtype, opened.objective, opened.ranks)
        if record:
            watch.record(step, found.record())
        watch.say(f"step {step:,}: {found.sentence()}")
    if opened.ranks.is_rank0:
        draw_curves(opened.run.folder, opened.objective.terms)
    return found


def keep_model(opened: Opened, watch: Monitor, step: int) -> None:
    """Keep the model of this step if a snapshot of it is wanted and missing."""
    if step in opened.config.snapshots:
        folder, about = opened.run.folder, opened.snapshot_about(step)
        tokenizer = opened.store.tokenizer
        if keep_snapshot(folder, step, opened.model, tokenizer, about, opened.ranks):
            watch.say(f"step {step:,}: the model is kept in {snapshot_folder(folder, step)}")


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
