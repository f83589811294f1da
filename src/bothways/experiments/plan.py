"""`bothways plan`: estimates the time, memory and disk that a pre-training run needs.

A deep network is not built. All layers cost the same, so time and memory are linear in their
number, and two shallow networks of the requested width determine both lines. The two take turns in
being trained with the real training step, on a micro-batch reduced to about a second's work.

For a GPU that :mod:`bothways.experiments.devices` knows, nothing is trained: the same figures are
computed from the shape and the device's data sheet.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor, nn

from bothways.config.fields import to_dict
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError
from bothways.experiments.bench import full_batches, memory_kib
from bothways.experiments.devices import ACCELERATORS, Accelerator, computed_step, kept
from bothways.experiments.options import PlanConfig
from bothways.families.config import ModelConfig
from bothways.families.heads import HEADS
from bothways.io import html
from bothways.io.files import write_json
from bothways.io.terminal import counted, print_note, text_console
from bothways.model.batch import PretrainingBatch
from bothways.model.device import (
    DTYPES,
    ChosenPrecision,
    borrowed_process,
    choose_device,
    choose_for_training,
    set_threads,
)
from bothways.model.flops import mean_operations
from bothways.model.kernels.compiled import compiles, why_not_compiled
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.clock import EVALUATIONS, phase_steps, reserve_evaluations, total_steps
from bothways.pretraining.evaluation import count_heldout
from bothways.pretraining.pretrain import check_micro_batches
from bothways.pretraining.snapshots import check_snapshots
from bothways.pretraining.start import load_start, new_model, objective_of
from bothways.training.options import Phase
from bothways.training.runfolder import versions
from bothways.training.trainer import Trainer, step_loss

_SAMPLE = 512  # sequences of a corpus from which the lengths are estimated
_PARTS = 2  # different micro-batches that are timed
# Memory that matrix kernels and the allocator take besides the tensors. In fp32 0.3 to 0.6 GiB from
# tiny to base (benchmarks/2026-11-25-plan.md); in bf16 0.6 to 0.9 GiB, measured when activations
# took more than their size (benchmarks/2026-11-21-plan.md).
OVERHEAD = {torch.bfloat16: 800 * 2**20, torch.float32: 400 * 2**20}
_FORWARD = 1 / 3  # fraction of a training step's operations
# Depths that are measured; a network of few layers is measured itself.
_DEPTHS, _FEW = (1, 3), 4
# Approximate floating-point operations of a timed step; number of timed steps.
_OPERATIONS, _ROUNDS = 4e11, 6


@dataclass(frozen=True)
class PhaseForecast:
    """One phase.

    Attributes:
        length, batch, micro_batch: as configured.
        sequence_tokens: mean tokens per sequence, without padding.
        operations: floating-point operations of matrix products per token, forward and backward,
            counting those that the result needs.
        step_seconds: seconds per optimizer step.
        activations: bytes of a micro-batch that are kept for the backward pass.
        peak: largest memory of the process (on a GPU, of its tensors) in bytes.
        sent: bytes that a rank sends in a step.
        instances: sequences in a pass over the corpus; None without a corpus.
        steps: None without a clock.
    """

    length: int
    batch: int
    micro_batch: int
    sequence_tokens: float
    operations: float
    step_seconds: float
    activations: float
    peak: float
    sent: float = 0.0
    instances: int | None = None
    steps: int | None = None

    @property
    def tokens_per_second(self) -> float:
        """Without padding; the time of the optimizer's update is included."""
        return self.batch * self.sequence_tokens / self.step_seconds

    @property
    def hours(self) -> float | None:
        """None without a clock."""
        return None if self.steps is None else self.steps * self.step_seconds / 3600

    @property
    def epochs(self) -> float | None:
        """Passes over the corpus; None without a clock or a corpus."""
        return self.steps * self.batch / self.instances if self.steps and self.instances else None


@dataclass(frozen=True, repr=False)
class Forecast:
    """The estimates for a run; shown, they are the tables of `bothways plan`.

    Attributes:
        model: the network.
        parameters: their number in each module; the output embedding is tied to the input's.
        weights, gradients, moments: bytes in memory; fp32, padding rows included.
        process: bytes of this process before any model; 0 on a GPU that is only computed.
        checkpoint, model_folder: bytes on disk of a training state and of a model.
        disk: bytes of the run folder: all checkpoints kept, one being written, the model, and the
            snapshots.
        setting: what the figures hold for, in words.
        phases: in order.
        steps, tokens, operations, hours: of the run; None without a clock.
        evaluation_hours: the part of ``hours`` that evaluation on held-out text takes.
        notes: what the figures leave out.
    """

    model: ModelConfig
    parameters: dict[str, int]
    weights: int
    gradients: int
    moments: int
    process: int
    checkpoint: int
    model_folder: int
    disk: int
    setting: str
    phases: tuple[PhaseForecast, ...] = ()
    steps: int | None = None
    tokens: float | None = None
    operations: float | None = None
    hours: float | None = None
    evaluation_hours: float | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        text = io.StringIO()
        console = text_console(file=text, width=100, highlight=False, color_system=None)
        for part in tables(self):
            console.print(part, markup=False, soft_wrap=isinstance(part, str))
        return text.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        return html.fragment("", html.preformatted(repr(self)))


@borrowed_process()
def plan(config: PlanConfig) -> Forecast:
    """Estimate a run of ``bothways pretrain`` with the same options; takes seconds to two minutes.

    Raises:
        ConfigError, StoreError, ModelError: as pre-training would; on a GPU that is only computed,
            options whose cost is not.
    """
    threads = set_threads(config.threads)
    gpu = ACCELERATORS.get(config.device)
    precision = _check_computed(config) if gpu else _measured_here(config)
    process = 0 if gpu else _resident_bytes()
    store = TokenStore.open(config.corpus) if config.corpus else None
    if config.start:
        shape = load_start(config, store).config
    else:
        size = store.tokenizer.vocab_size if store else config.vocab_size
        shape = config.shape(size, left_to_right=objective_of(config).causal)
    text = f"sequences of {config.corpus}" if store else "no corpus: full sequences"
    where = f"{config.ranks:,} x {config.device}" if gpu else counted(threads, "thread")
    setting = f"{text}; {precision.reason}; {where}"
    forecast = _from_shape(config, shape, process, setting)
    phases = []
    for number, phase in enumerate(config.phases):
        sample = _sample_text(config, phase, store, shape, number)
        if gpu:
            phases.append(_computed(config, forecast, gpu, phase, sample))
        else:
            phases.append(_measured(config, forecast, precision, phase, sample))
    overhead = _bytes(OVERHEAD[DTYPES[precision.name]])
    notes = [
        f"computed, not run: {config.device} by its data sheet, and by the share of its rate that "
        "an H100 was measured to reach; sending counts as done after computing, over a ring"
        if gpu
        else f"peak memory includes tensors, libraries and, a measured value, {overhead} for "
        "matrix kernels and the allocator"
    ]
    if gpu and max(phase.peak for phase in phases) > gpu.memory:
        notes.append(
            f"it does not fit: {config.device} has {_bytes(gpu.memory)}. Choose smaller "
            "micro-batches or --recompute true, or share among more ranks with --parallel fsdp"
        )
    forecast = replace(forecast, phases=tuple(phases), notes=tuple(notes))
    sequences = count_heldout(config, store) if store else config.evaluate.sequences
    forecast = _with_clock(config, forecast, sequences)
    if config.json:
        record = {"config": to_dict(config.resolved()), "versions": versions(), **to_dict(forecast)}
        for own, found in zip(record["phases"], forecast.phases, strict=True):
            own |= {"tokens_per_second": found.tokens_per_second, "hours": found.hours}
        write_json(Path(config.json), record)
    return forecast


def _check_computed(config: PlanConfig) -> ChosenPrecision:
    """The precision of a run on a GPU that is only computed."""
    check_micro_batches(config, config.ranks)
    if config.precision == "fp32":
        raise ConfigError(
            f"precision is fp32, but of {config.device} only the rate of bf16 products is known; "
            "leave --precision out."
        )
    return ChosenPrecision("bf16", f"bf16, computed for {config.device}")


def _measured_here(config: PlanConfig) -> ChosenPrecision:
    """The precision of a run on this machine's processor."""
    device = config.device
    assert device in ("auto", "cpu", "cuda")
    if choose_device(device).torch.type != "cpu":
        if device != "auto":
            raise ConfigError(
                "plan times this machine's processor, not its GPU. Pass --device cpu to plan for "
                "the processor, or the GPU's kind (such as h100) to compute its figures."
            )
        print_note("speed, hours and memory of the process are those of the processor, not the GPU")
    if config.kernels == "fast":
        why_not_compiled()  # loads the compiler, as training will
    return choose_for_training(config.precision)


def _resident_bytes() -> int:
    """Memory of this process; 0 if the system does not report it."""
    return 1024 * (memory_kib("VmRSS") or 0)


def _from_shape(config: PlanConfig, shape: ModelConfig, process: int, setting: str) -> Forecast:
    """Weights, memory and disk, which need no measuring."""
    with torch.device("meta"):
        model = new_model(config, shape)
    if len(model.parts) and config.device in ACCELERATORS:
        raise ConfigError(
            f"the cost of objective {config.objective[0]} on {config.device} is not computed; plan "
            "it on this machine (--device cpu)."
        )
    padding = (shape.padded_vocab - shape.vocab_size) * shape.embedding_width
    modules = {
        "embeddings": model.encoder.embeddings,
        "layers": model.encoder.layers,
        "pooler": model.encoder.pooler,
        **{HEADS[name].title: head for name, head in model.heads.items()},
        **dict(model.parts.named_children()),
    }
    parameters: dict[str, int] = {}
    counted: set[nn.Parameter] = set()  # a part may share some of the model's
    for name, module in modules.items():
        own = set() if module is None else {*module.parameters()} - counted
        if own:
            parameters[name] = sum(parameter.numel() for parameter in own)
        counted |= own
    in_memory = sum(parameters.values())
    parameters["embeddings"] -= padding
    model_folder = 4 * (in_memory - padding)
    checkpoint = model_folder + 8 * in_memory
    models, checkpoints = 1 + len(config.snapshots), config.checkpoint.keep + 1
    return Forecast(
        model=shape,
        parameters=parameters,
        weights=4 * in_memory,
        gradients=4 * in_memory,
        moments=8 * in_memory,
        process=process,
        checkpoint=checkpoint,
        model_folder=model_folder,
        disk=checkpoints * checkpoint + models * model_folder,
        setting=setting,
    )


# --------------------------------------------------------------------------------
# The phases.


class _SampleText(NamedTuple):
    """The sequences of a phase.

    Attributes:
        lengths: int64 [sequences].
        targets: mean predicted tokens per sequence.
        micro_batch: one as the run will have it.
        batches_of: makes some smaller micro-batches, of this many sequences each.
        instances: in one pass over the corpus; None without a corpus.
    """

    lengths: NDArray[np.int64]
    targets: float
    micro_batch: PretrainingBatch
    batches_of: Callable[[int], list[PretrainingBatch]]
    instances: int | None


def _sample_text(
    config: PlanConfig, phase: Phase, store: TokenStore | None, shape: ModelConfig, number: int
) -> _SampleText:
    """Sequences of the corpus; without a corpus, sequences of full length with random words."""
    micro_batch, objective = min(phase.micro_batch, phase.batch), objective_of(config)
    if store is None:

        def random_batches(sequences: int) -> list[PretrainingBatch]:
            steps = full_batches(
                shape.vocab_size,
                batch=sequences,
                length=phase.length,
                count=_PARTS,
                pairs=config.pairs.kind,
                rate=config.masking.rate,
                causal=objective.causal,
            )
            return [batch for step in steps for batch in step]

        batch = random_batches(micro_batch)[0]
        lengths = np.array([phase.length])
        return _SampleText(lengths, batch.masked.count / micro_batch, batch, random_batches, None)
    corpus = store

    def source(sequences: int, epoch_sizes: list[int] | None = None) -> PhaseBatches:
        return PhaseBatches(
            corpus,
            replace(phase, batch=_PARTS * sequences, micro_batch=sequences),
            pairs=config.pairs,
            masking=config.masking,
            objective=objective,
            seed=config.seed,
            number=number,
            epoch_sizes=epoch_sizes,
        )

    sample = source(micro_batch)
    batches = sample.first(max(_SAMPLE, micro_batch))
    lengths = np.concatenate([batch.inputs.lengths for batch in batches])
    targets = sum(batch.masked.count for batch in batches) / len(lengths)

    def corpus_batches(sequences: int) -> list[PretrainingBatch]:
        return source(sequences, sample.epoch_sizes).micro_batches(0)

    return _SampleText(lengths, targets, batches[0], corpus_batches, sample.epoch_sizes[0])


def _measured(
    config: PlanConfig,
    forecast: Forecast,
    precision: ChosenPrecision,
    phase: Phase,
    text: _SampleText,
) -> PhaseForecast:
    """A phase on this machine."""
    shape, mean = forecast.model, float(text.lengths.mean())
    micro_batch = min(phase.micro_batch, phase.batch)
    # The sequences for a step of about a second on a small machine.
    deepest = shape.at_depth(max(_depths(shape)))
    operations = objective_of(config).operations
    cost_of_one = operations(deepest, max(1, round(mean)), text.targets)
    sequences = round(_OPERATIONS / (cost_of_one.matrix * mean))
    timed = text.batches_of(max(1, min(micro_batch, sequences)))
    cost = probe(config, shape, text.micro_batch, timed, precision)
    return PhaseForecast(
        length=phase.length,
        batch=phase.batch,
        micro_batch=micro_batch,
        sequence_tokens=mean,
        operations=mean_operations(shape, text.lengths, text.targets, operations),
        step_seconds=phase.batch * mean * cost.token_seconds + cost.update_seconds,
        activations=cost.activations,
        peak=_peak(config, forecast, precision, phase, cost),
        instances=text.instances,
    )


@dataclass(frozen=True)
class Probe:
    """The cost of a phase, at the requested number of layers.

    Attributes:
        token_seconds: forward and backward pass, per token, without padding.
        update_seconds: the optimizer's update.
        activations: bytes that the forward pass of a full micro-batch keeps for its backward pass;
            with ``--recompute`` also the layer that is being recomputed.
        pooled: bytes of them that compiled layers hold for the next step.
    """

    token_seconds: float
    update_seconds: float
    activations: float
    pooled: float


def _peak(
    config: PlanConfig, sizes: Forecast, precision: ChosenPrecision, phase: Phase, cost: Probe
) -> float:
    """The largest memory as a backward pass starts or ends, counted in tensors, and what libraries
    take besides.

    Gradients exist from the end of the first micro-batch's backward pass to the update. A
    checkpoint needs no copies. Compiled layers keep the weights rounded to their dtype; of a step
    of one micro-batch the gradients stay in it, too. What plain layers kept becomes free during
    the backward pass.
    """
    several, dtype = phase.batch > phase.micro_batch, precision.dtype
    table = sizes.model.padded_vocab * sizes.model.hidden  # elements of the output embedding
    gradients, copies = float(sizes.gradients), 0.0
    earlier = gradients if several else 0.0
    if config.kernels == "plain" or not compiles(torch.empty(0, dtype=dtype)):
        cast = 0 if dtype == torch.float32 else 2 * table
        backward_starts = earlier + cost.activations + 4 * table + cast
        backward_ends = gradients + 2 * 4 * table  # the embedding's two uses, being added
    else:
        if dtype != torch.float32:
            copies = sizes.weights / 2
            gradients = gradients if several else gradients / 2
        output = table * dtype.itemsize  # its gradient
        backward_starts = earlier + cost.activations + output
        backward_ends = gradients + cost.pooled + (output if several else 0)
    tensors = sizes.weights + copies + sizes.moments + max(backward_starts, backward_ends)
    return sizes.process + tensors + OVERHEAD[dtype]


def _depths(shape: ModelConfig) -> tuple[int, ...]:
    return (shape.layers,) if shape.layers <= _FEW else _DEPTHS


def probe(
    config: PlanConfig,
    shape: ModelConfig,
    micro_batch: PretrainingBatch,
    timed: Sequence[PretrainingBatch],
    precision: ChosenPrecision,
) -> Probe:
    """Measure a phase.

    Args:
        config: optimizer, kernels, kind of pairs, recomputing.
        shape: the requested network.
        micro_batch: one as the run will have it; its memory is measured.
        timed: smaller micro-batches of the same phase; these are timed.
        precision: arithmetic of the layers.
    """
    depths = _depths(shape)
    networks = [_Network(config, shape.at_depth(depth), precision) for depth in depths]

    def at_depth(values: Sequence[float]) -> float:
        """Extrapolate from a value per measured network."""
        first, last = values[0], values[-1]
        steps = depths[-1] - depths[0]
        return first + (last - first) / steps * (shape.layers - depths[0]) if steps else first

    activations = pooled = at_depth([n.activations(micro_batch, recompute=False) for n in networks])
    if config.recompute:
        inputs = at_depth([n.activations(micro_batch, recompute=True) for n in networks])
        # The last layer keeps little, because few positions are computed: divide among the others.
        pooled = (activations - inputs) / max(1, shape.layers - 1)
        activations = inputs + pooled
    for batch in timed:  # warm-up
        for network in networks:
            network.step(batch)
    rounds = [
        [network.step(timed[i % len(timed)]) for network in networks]
        for i in range(max(_ROUNDS, len(timed)))
    ]
    token, update = (
        at_depth([statistics.median(of[kind] for of in own) for own in zip(*rounds, strict=True)])
        for kind in (0, 1)
    )
    return Probe(token, update, activations, pooled)


class _Network:
    """A shallow network and its trainer."""

    def __init__(self, config: PlanConfig, shape: ModelConfig, precision: ChosenPrecision):
        self.config, self.dtype = config, precision.dtype
        self.model = new_model(config, shape)
        self.model.shared.fast = config.kernels == "fast"
        self.model.shared.transposes = precision.transposes
        self.trainer: Trainer[PretrainingBatch] = Trainer(
            self.model, config.optimizer, total_steps=1000, seed=0, dtype=self.dtype
        )
        self.update_start = 0.0
        self.trainer.before_update = self._note_update_start
        self.steps = 0

    def _note_update_start(self) -> None:
        self.update_start = time.perf_counter()

    def step(self, batch: PretrainingBatch) -> tuple[float, float]:
        """Train on a micro-batch; the seconds of a token and of the update."""
        self.model.shared.recompute = self.config.recompute
        start = time.perf_counter()
        self.trainer.step(self.steps, [batch], step_loss([batch], objective_of(self.config)))
        end = time.perf_counter()
        self.steps += 1
        tokens = int(batch.inputs.bounds[-1])
        return (self.update_start - start) / tokens, end - self.update_start

    def activations(self, batch: PretrainingBatch, *, recompute: bool) -> float:
        """Bytes of tensors that a forward pass keeps for the backward pass."""
        self.model.shared.recompute = recompute
        weights = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
        sizes: dict[int, int] = {}

        def count(x: Tensor) -> Tensor:
            at = x.untyped_storage().data_ptr()
            if at not in weights:
                sizes[at] = x.untyped_storage().nbytes()
            return x.detach()  # itself, it could keep alive the graph that keeps it

        self.model.train()
        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            loss = step_loss([batch], objective_of(self.config))
            value, _ = loss(self.model, batch, self.dtype)
        in_frames = self.model.shared.pool.kept
        del value
        return float(sum(sizes.values()) + in_frames)


def _computed(
    config: PlanConfig, forecast: Forecast, gpu: Accelerator, phase: Phase, text: _SampleText
) -> PhaseForecast:
    """A phase on GPUs: the rank with most micro-batches computes, then sends."""
    shape, mean = forecast.model, float(text.lengths.mean())
    micro_batch = min(phase.micro_batch, phase.batch)
    operations = mean_operations(shape, text.lengths, text.targets)
    step = computed_step(
        gpu,
        shape,
        weights=forecast.weights,
        layer=4 * forecast.parameters["layers"] / shape.layers,
        tokens=micro_batch * mean,
        operations=operations * (1 + _FORWARD if config.recompute else 1),
        ranks=config.ranks,
        rounds=-(-phase.batch // micro_batch // config.ranks),
        sharded=config.parallel == "fsdp",
    )
    scores = 2 * micro_batch * text.targets * shape.padded_vocab  # their gradients
    activations = kept(shape, micro_batch * mean, recompute=config.recompute)
    return PhaseForecast(
        length=phase.length,
        batch=phase.batch,
        micro_batch=micro_batch,
        sequence_tokens=mean,
        operations=operations,
        step_seconds=step.seconds,
        activations=activations,
        peak=step.states + scores + activations,
        sent=step.sent,
        instances=text.instances,
    )


def _with_clock(config: PlanConfig, forecast: Forecast, sequences: int) -> Forecast:
    """Adds steps, tokens and hours, if the recipe sets the length of the training.

    ``sequences``: of an evaluation.
    """
    clock, phases = config.clock, forecast.phases
    if clock.steps is None and clock.tokens is None and clock.minutes is None:
        note = "no time estimate: no length is set; give --minutes, --steps or --tokens"
        return replace(forecast, notes=(*forecast.notes, note))
    one = sequences * phases[0].step_seconds / phases[0].batch * _FORWARD
    seconds, planned_evaluations = [p.step_seconds for p in phases], EVALUATIONS
    if clock.minutes is not None:
        clock, seconds, planned_evaluations = reserve_evaluations(
            clock, seconds, config.evaluate.every, one
        )
    step_tokens = [p.batch * p.sequence_tokens for p in phases]
    steps = total_steps(clock, config.phases, step_tokens=step_tokens, step_seconds=seconds)
    check_snapshots(Path(config.run), config.snapshots, done=0, total=steps)
    every = config.evaluate.every or -(-steps // planned_evaluations)
    evaluations = -(-steps // every) + 1  # before the first step and after the last, too
    counts = phase_steps(config.phases, steps)
    phases = tuple(replace(p, steps=count) for p, count in zip(phases, counts, strict=True))
    tokens = [count * own for count, own in zip(counts, step_tokens, strict=True)]
    evaluation_hours = evaluations * one / 3600
    return replace(
        forecast,
        phases=phases,
        steps=steps,
        tokens=sum(tokens),
        operations=sum(t * p.operations for t, p in zip(tokens, phases, strict=True)),
        hours=sum(p.hours or 0 for p in phases) + evaluation_hours,
        evaluation_hours=evaluation_hours,
    )


# --------------------------------------------------------------------------------
# What is printed.


def tables(forecast: Forecast) -> list[Table | str]:
    """A heading, the two tables, and notes on what they leave out."""
    model = forecast.model
    shape = (
        f"{counted(model.layers, 'layer')}, hidden {model.hidden}, {counted(model.heads, 'head')}, "
        f"feed-forward {model.intermediate}, vocabulary {model.vocab_size:,}"
    )
    run = Table(show_header=False)
    for name, count in {**forecast.parameters, "": sum(forecast.parameters.values())}.items():
        run.add_row(f"weights: {name}" if name else "weights", f"{count:,}")
    run.add_section()
    for field in ("weights", "gradients", "moments", "process"):
        if size := getattr(forecast, field):
            run.add_row(f"memory: {field}", _bytes(size))
    run.add_section()
    for name in ("model_folder", "checkpoint", "disk"):
        run.add_row(f"disk: {_DISK[name]}", _bytes(getattr(forecast, name)))
    if forecast.steps is not None and forecast.hours is not None:
        run.add_section()
        run.add_row("steps", f"{forecast.steps:,}")
        run.add_row("tokens", f"{(forecast.tokens or 0) / 1e6:,.3g} million")
        run.add_row("operations", f"{forecast.operations or 0:.3g}")
        run.add_row("time", _time(forecast.hours))
        run.add_row("  evaluation on held-out text", _time(forecast.evaluation_hours or 0))
    phases = Table("phase", *(f"length {p.length}" for p in forecast.phases))
    for name, figure in _ROWS.items():
        cells = [figure(phase) for phase in forecast.phases]
        if any(cells):
            phases.add_row(name, *(cell or "" for cell in cells))
    return [f"{shape}\n{forecast.setting}", run, phases, *forecast.notes]


_DISK = {"model_folder": "model folder", "checkpoint": "a checkpoint", "disk": "run folder at most"}
_ROWS: dict[str, Callable[[PhaseForecast], str | None]] = {
    "sequences per step, per micro-batch": lambda p: f"{p.batch:,}, {p.micro_batch:,}",
    "tokens per sequence, without padding": lambda p: f"{p.sequence_tokens:.1f}",
    "operations per token": lambda p: f"{p.operations / 1e6:,.1f} M",
    "tokens per second": lambda p: f"{p.tokens_per_second:,.0f}",
    "seconds per step": lambda p: f"{p.step_seconds:.3g}",
    "activations": lambda p: _bytes(p.activations),
    "peak memory": lambda p: _bytes(p.peak),
    "sent by a rank in a step": lambda p: _bytes(p.sent) if p.sent else None,
    "steps": lambda p: None if p.steps is None else f"{p.steps:,}",
    "passes over the corpus": lambda p: None if p.epochs is None else f"{p.epochs:.2f}",
    "time": lambda p: None if p.hours is None else _time(p.hours),
}


def _bytes(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"


def _time(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:,.1f} days"
    return f"{hours:.1f} hours" if hours >= 1.5 else f"{hours * 60:.1f} minutes"
