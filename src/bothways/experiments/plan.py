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
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor, nn

from bothways.config.fields import to_dict
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError
from bothways.experiments.bench import full_batches, memory_kib
from bothways.experiments.devices import (
    ACCELERATORS,
    Accelerator,
    Sharing,
    ddp_memory,
    ddp_sent,
    fsdp_memory,
    fsdp_sent,
    kept,
    micro_batch_seconds,
    sending_seconds,
    update_seconds,
)
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
SHAPES_OVERHEAD = {torch.bfloat16: 800 * 2**20, torch.float32: 400 * 2**20}
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
        tokens_per_second: without padding; the time of the optimizer's update is included.
        step_seconds: seconds per optimizer step.
        activations: bytes of a micro-batch that are kept for the backward pass.
        activations_recomputing: the same with ``--recompute``.
        peak, peak_recomputing: largest memory of the process in bytes, without and with
            ``--recompute``.
        steps, hours: None without a clock.
        epochs: passes over the corpus; None without a clock or a corpus.
        sent: bytes that a rank sends in a step; None if that is not computed.
    """

    length: int
    batch: int
    micro_batch: int
    sequence_tokens: float
    operations: float
    tokens_per_second: float
    step_seconds: float
    activations: float
    activations_recomputing: float
    peak: float
    peak_recomputing: float
    steps: int | None = None
    hours: float | None = None
    epochs: float | None = None
    sent: float | None = None


@dataclass(frozen=True, repr=False)
class Forecast:
    """The estimates for a run; shown, they are the tables of `bothways plan`.

    Attributes:
        model: the network.
        parameters: their number in each module; the output embedding is tied to the input's.
        weights, gradients, moments: bytes in memory; fp32, padding rows included.
        process: bytes of this process before any model: Python, torch and the other libraries.
        checkpoint, model_folder: bytes on disk of a training state and of a model.
        disk: bytes of the run folder: all checkpoints kept, one being written, the model, and the
            snapshots.
        precision, threads: of the run.
        corpus: its folder; None if lengths are assumed.
        phases: in order.
        steps, tokens, operations, hours: of the run; None without a clock.
        evaluation_hours: the part of ``hours`` that evaluation on held-out text takes.
        device: the kind of GPU if the figures are computed for one, not measured.
        ranks: processes that share the run.
        ddp, fsdp: what each way of sharing costs a rank; None if it was not computed.
    """

    model: ModelConfig
    parameters: dict[str, int]
    precision: ChosenPrecision
    threads: int
    corpus: str | None
    weights: int
    gradients: int
    moments: int
    process: int
    checkpoint: int
    model_folder: int
    disk: int
    phases: tuple[PhaseForecast, ...] = ()
    steps: int | None = None
    tokens: float | None = None
    operations: float | None = None
    hours: float | None = None
    evaluation_hours: float | None = None
    device: str | None = None
    ranks: int = 1
    ddp: Sharing | None = None
    fsdp: Sharing | None = None

    def __repr__(self) -> str:
        text = io.StringIO()
        console = text_console(file=text, width=100, highlight=False, color_system=None)
        for table in tables(self):
            console.print(table, markup=False, soft_wrap=isinstance(table, str))
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
    accelerator = ACCELERATORS.get(config.device)
    if accelerator:
        precision, process = _check_computed(config), 0
    else:
        precision, process = _measured_here(config)
    store = TokenStore.open(config.corpus) if config.corpus else None
    if config.start:
        shape = load_start(config, store).config
    else:
        size = store.tokenizer.vocab_size if store else config.vocab_size
        shape = config.shape(size, left_to_right=objective_of(config).causal)
    forecast = _from_shape(config, shape, precision, threads, process)
    texts = [_sample_text(config, phase, store, shape, i) for i, phase in enumerate(config.phases)]
    heldout = count_heldout(config, store) if store else config.evaluate.sequences
    pairs = list(zip(config.phases, texts, strict=True))
    if accelerator:
        forecast = _on_devices(config, forecast, accelerator, texts, heldout)
    else:
        phases = tuple(_phase(config, forecast, phase, text) for phase, text in pairs)
        forecast = _with_clock(config, replace(forecast, phases=phases), texts, heldout)
    if config.json:
        record = {"config": to_dict(config.resolved()), "versions": versions(), **to_dict(forecast)}
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
    return ChosenPrecision("bf16", f"computed for {config.device}, not run")


def _measured_here(config: PlanConfig) -> tuple[ChosenPrecision, int]:
    """The precision of a run on this machine's processor, and the memory of this process."""
    device = config.device
    assert device in ("auto", "cpu", "cuda")
    if choose_device(device).torch.type != "cpu":
        if device != "auto":
            raise ConfigError(
                "plan times this machine's processor, not its GPU. Pass --device cpu to plan for "
                "the processor, or the GPU's kind (such as h100) to compute its figures."
            )
        print_note(
            "speed and hours are those of the processor, not of the GPU, and so is the memory of "
            "the process; parameters, operations, weights, gradients, moments and disk hold for "
            "both"
        )
    precision = choose_for_training(config.precision)
    if config.kernels == "fast":
        why_not_compiled()  # loads the compiler, as training will
    return precision, _resident_bytes()


def _resident_bytes() -> int:
    """Memory of this process; 0 if the system does not report it."""
    return 1024 * (memory_kib("VmRSS") or 0)


def _from_shape(
    config: PlanConfig, shape: ModelConfig, precision: ChosenPrecision, threads: int, process: int
) -> Forecast:
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
        precision=precision,
        threads=threads,
        corpus=config.corpus or None,
        weights=4 * in_memory,
        gradients=4 * in_memory,
        moments=8 * in_memory,
        process=process,
        checkpoint=checkpoint,
        model_folder=model_folder,
        disk=checkpoints * checkpoint + models * model_folder,
    )


# --------------------------------------------------------------------------------
# The phases, measured.


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


def _phase(
    config: PlanConfig, forecast: Forecast, phase: Phase, text: _SampleText
) -> PhaseForecast:
    mean = float(text.lengths.mean())
    micro_batch = min(phase.micro_batch, phase.batch)
    # The sequences for a step of about a second on a small machine.
    deepest = forecast.model.at_depth(max(_depths(forecast.model)))
    length = max(1, round(mean))
    objective = objective_of(config)
    cost_of_one = objective.operations(deepest, length, text.targets)
    one = cost_of_one.matrix * mean
    timed = text.batches_of(max(1, min(micro_batch, round(_OPERATIONS / one))))
    cost = probe(config, forecast.model, text.micro_batch, timed, forecast.precision)
    tokens = phase.batch * mean
    seconds = tokens * cost.token_seconds + cost.update_seconds
    recomputing = cost.activations_recomputing
    return PhaseForecast(
        length=phase.length,
        batch=phase.batch,
        micro_batch=micro_batch,
        sequence_tokens=mean,
        operations=mean_operations(
            forecast.model, text.lengths, text.targets, objective.operations
        ),
        tokens_per_second=tokens / seconds,
        step_seconds=seconds,
        activations=cost.activations,
        activations_recomputing=recomputing,
        peak=_peak(config, forecast, phase, cost.activations, cost.activations),
        peak_recomputing=_peak(config, forecast, phase, recomputing, cost.layer),
    )


def _peak(
    config: PlanConfig, sizes: Forecast, phase: Phase, activations: float, pooled: float
) -> float:
    """The largest memory as a backward pass starts or ends, counted in tensors, and what libraries
    take besides.

    Gradients exist from the end of the first micro-batch's backward pass to the update. A
    checkpoint needs no copies. Compiled layers keep the weights rounded to their dtype; of a step
    of one micro-batch the gradients stay in it, too.

    Args:
        config, sizes, phase: of the run.
        activations: bytes kept for the backward pass.
        pooled: bytes of them that compiled layers hold for the next step. What plain layers kept
            becomes free during the backward pass.
    """
    shape, several = sizes.model, phase.batch > phase.micro_batch
    dtype = sizes.precision.dtype
    table = shape.padded_vocab * shape.hidden  # elements of the output embedding
    gradients, copies = float(sizes.gradients), 0.0
    earlier = gradients if several else 0.0
    if config.kernels == "plain" or not compiles(torch.empty(0, dtype=dtype)):
        cast = 0 if dtype == torch.float32 else 2 * table
        backward_starts = earlier + activations + 4 * table + cast
        backward_ends = gradients + 2 * 4 * table  # the embedding's two uses, being added
    else:
        if dtype != torch.float32:
            copies = sizes.weights / 2
            gradients = gradients if several else gradients / 2
        output = table * dtype.itemsize  # its gradient
        backward_starts = earlier + activations + output
        backward_ends = gradients + pooled + (output if several else 0)
    tensors = sizes.weights + copies + sizes.moments + max(backward_starts, backward_ends)
    return sizes.process + tensors + SHAPES_OVERHEAD[dtype]


@dataclass(frozen=True)
class Probe:
    """The cost of a phase, at the requested number of layers.

    Attributes:
        token_seconds: forward and backward pass, per token, without padding.
        update_seconds: the optimizer's update.
        activations: bytes that the forward pass of a full micro-batch keeps for its backward pass.
        activations_recomputing: the same with ``--recompute``, including the one layer that is
            being recomputed.
        layer: bytes of ``activations`` that one layer keeps.
    """

    token_seconds: float
    update_seconds: float
    activations: float
    activations_recomputing: float
    layer: float


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

    activations, recomputing = (
        at_depth([network.activations(micro_batch, recompute=recompute) for network in networks])
        for recompute in (False, True)
    )
    # The last layer keeps little, because few positions are computed: divide among the others.
    layer = (activations - recomputing) / max(1, shape.layers - 1)
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
    return Probe(token, update, activations, recomputing + layer, layer)


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


# --------------------------------------------------------------------------------
# The phases, computed for a GPU.


def _on_devices(
    config: PlanConfig,
    forecast: Forecast,
    device: Accelerator,
    texts: Sequence[_SampleText],
    heldout: int,
) -> Forecast:
    """Adds the phases as ``parallel`` shares them, and what both ways of sharing cost a rank."""

    def shared(parallel: Literal["ddp", "fsdp"]) -> Forecast:
        pairs = zip(config.phases, texts, strict=True)
        phases = [_computed(config, forecast, device, *pair, parallel) for pair in pairs]
        return _with_clock(config, replace(forecast, phases=tuple(phases)), texts, heldout)

    def cost(found: Forecast) -> Sharing:
        peaks = (p.peak_recomputing if config.recompute else p.peak for p in found.phases)
        return Sharing(max(peaks), max(p.sent or 0 for p in found.phases), found.hours)

    both = {"ddp": shared("ddp"), "fsdp": shared("fsdp")}
    return replace(
        both[config.parallel],
        device=config.device,
        ranks=config.ranks,
        ddp=cost(both["ddp"]),
        fsdp=cost(both["fsdp"]),
    )


def _computed(
    config: PlanConfig,
    forecast: Forecast,
    device: Accelerator,
    phase: Phase,
    text: _SampleText,
    parallel: Literal["ddp", "fsdp"],
) -> PhaseForecast:
    """A phase: the rank with most micro-batches computes, then sends; nothing is counted as done
    at the same time."""
    shape, ranks = forecast.model, config.ranks
    mean = float(text.lengths.mean())
    micro_batch = min(phase.micro_batch, phase.batch)
    rounds = -(-phase.batch // micro_batch // ranks)
    operations = mean_operations(shape, text.lengths, text.targets, objective_of(config).operations)
    layer = 4 * forecast.parameters["layers"] / shape.layers
    whole = parallel == "ddp" or ranks == 1  # a single process shards nothing
    if whole:
        sent = ddp_sent(forecast.weights, ranks=ranks)
        states = ddp_memory(forecast.weights, ranks=ranks, several=rounds > 1)
    else:
        sizes = {"layers": shape.layers, "ranks": ranks}
        sent = fsdp_sent(forecast.weights, layer, **sizes, rounds=rounds)
        states = fsdp_memory(forecast.weights, layer, **sizes)
    tokens = micro_batch * mean
    work = operations * (1 + _FORWARD if config.recompute else 1)
    seconds = rounds * micro_batch_seconds(device, shape, tokens, work)
    seconds += update_seconds(device, forecast.weights / (1 if whole else ranks))
    seconds += sending_seconds(device, sent, ranks=ranks)
    states += 2 * micro_batch * text.targets * shape.padded_vocab  # gradients of the scores
    activations = kept(shape, tokens, recompute=False)
    recomputing = kept(shape, tokens, recompute=True)
    return PhaseForecast(
        length=phase.length,
        batch=phase.batch,
        micro_batch=micro_batch,
        sequence_tokens=mean,
        operations=operations,
        tokens_per_second=phase.batch * mean / seconds,
        step_seconds=seconds,
        activations=activations,
        activations_recomputing=recomputing,
        peak=states + activations,
        peak_recomputing=states + recomputing,
        sent=sent,
    )


# --------------------------------------------------------------------------------
# The clock.


def _with_clock(
    config: PlanConfig, forecast: Forecast, texts: Sequence[_SampleText], heldout: int
) -> Forecast:
    """Adds steps, tokens, epochs and hours, if the recipe sets the length of the training.

    ``heldout``: sequences of an evaluation.
    """
    clock, phases = config.clock, forecast.phases
    if clock.steps is None and clock.tokens is None and clock.minutes is None:
        return forecast
    one = heldout * phases[0].step_seconds / phases[0].batch * _FORWARD
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
    planned = tuple(
        replace(
            phase,
            steps=count,
            hours=count * phase.step_seconds / 3600,
            epochs=count * phase.batch / text.instances if text.instances else None,
        )
        for phase, text, count in zip(phases, texts, counts, strict=True)
    )
    tokens = [count * p.batch * p.sequence_tokens for p, count in zip(planned, counts, strict=True)]
    evaluation_hours = evaluations * one / 3600
    return replace(
        forecast,
        phases=planned,
        steps=steps,
        tokens=sum(tokens),
        operations=sum(t * p.operations for t, p in zip(tokens, planned, strict=True)),
        hours=sum(p.hours or 0 for p in planned) + evaluation_hours,
        evaluation_hours=evaluation_hours,
    )


# --------------------------------------------------------------------------------
# What is printed.


def tables(forecast: Forecast) -> list[Table | str]:
    """A heading, the two tables, and notes on what they leave out."""
    model = forecast.model
    text = f"sequences of {forecast.corpus}" if forecast.corpus else "no corpus: full sequences"
    overhead = _bytes(SHAPES_OVERHEAD[DTYPES[forecast.precision.name]])
    no_clock = "no time estimate: no length is set; give --minutes, --steps or --tokens"
    if forecast.device:
        return _computed_tables(forecast, text, no_clock)
    threads = counted(forecast.threads, "thread")
    return [
        f"{_shape(model)}\n{text}; {forecast.precision.reason}; {threads}",
        _run_table(forecast),
        _phase_table(forecast),
        f"peak memory includes tensors, libraries and, a measured value, {overhead} for matrix "
        "kernels and the allocator",
        *([no_clock] if forecast.steps is None else []),
    ]


def _shape(model: ModelConfig) -> str:
    return (
        f"{counted(model.layers, 'layer')}, hidden {model.hidden}, {counted(model.heads, 'head')}, "
        f"feed-forward {model.intermediate}, vocabulary {model.vocab_size:,}"
    )


def _computed_tables(forecast: Forecast, text: str, no_clock: str) -> list[Table | str]:
    device, name = ACCELERATORS[forecast.device or ""], forecast.device
    ways = [way for way in (forecast.ddp, forecast.fsdp) if way]
    sharing = Table(f"a rank of {forecast.ranks:,}", "--parallel ddp", "--parallel fsdp")
    sharing.add_row("peak memory of tensors", *(_bytes(way.memory) for way in ways))
    sharing.add_row("sent in a step", *(_bytes(way.sent) for way in ways))
    if forecast.hours is not None:
        sharing.add_row("time of the run", *(_time(way.hours or 0) for way in ways))
    too_large = all(way.memory > device.memory for way in ways)
    return [
        f"{_shape(forecast.model)}\n{text}; bf16; {forecast.ranks:,} x {name}",
        _run_table(forecast),
        _phase_table(forecast),
        *([sharing] if forecast.ranks > 1 else []),
        f"computed, not run: {name} by its data sheet, and by the share of its rate that an H100 "
        "was measured to reach; sending counts as done after computing, over a ring",
        *(
            [
                f"it does not fit: {name} has {_bytes(device.memory)}. Choose smaller micro-batches"
                " or --recompute true, or share among more ranks with --parallel fsdp"
            ]
            if too_large
            else []
        ),
        *([no_clock] if forecast.steps is None else []),
    ]


def _run_table(forecast: Forecast) -> Table:
    """Weights, memory that does not depend on the batch, disk, and the run."""
    libraries = "memory: Python and libraries"
    weights = {f"weights: {name}": f"{n:,}" for name, n in forecast.parameters.items()}
    sections = [
        {**weights, "weights": f"{sum(forecast.parameters.values()):,}"},
        {
            "memory: weights": _bytes(forecast.weights),
            "memory: gradients": _bytes(forecast.gradients),
            "memory: the optimizer's moments": _bytes(forecast.moments),
            **({} if forecast.device else {libraries: _bytes(forecast.process)}),
        },
        {
            "disk: model folder": _bytes(forecast.model_folder),
            "disk: a checkpoint": _bytes(forecast.checkpoint),
            "disk: run folder at most": _bytes(forecast.disk),
        },
    ]
    if forecast.steps is not None and forecast.hours is not None:
        sections.append(
            {
                "steps": f"{forecast.steps:,}",
                "tokens": _count(forecast.tokens or 0),
                "operations": f"{forecast.operations or 0:.3g}",
                "time": _time(forecast.hours),
                "  evaluation on held-out text": _time(forecast.evaluation_hours or 0),
            }
        )
    table = Table(show_header=False)
    for section in sections:
        table.add_section()
        for row in section.items():
            table.add_row(*row)
    return table


_ROWS: dict[str, Callable[[PhaseForecast], str | None]] = {
    "sequences per step, per micro-batch": lambda p: f"{p.batch:,}, {p.micro_batch:,}",
    "tokens per sequence, without padding": lambda p: f"{p.sequence_tokens:.1f}",
    "operations per token": lambda p: f"{p.operations / 1e6:,.1f} M",
    "tokens per second": lambda p: f"{p.tokens_per_second:,.0f}",
    "seconds per step": lambda p: f"{p.step_seconds:.3g}",
    "activations": lambda p: _bytes(p.activations),
    "activations, --recompute": lambda p: _bytes(p.activations_recomputing),
    "peak memory": lambda p: _bytes(p.peak),
    "peak memory, --recompute": lambda p: _bytes(p.peak_recomputing),
    "steps": lambda p: None if p.steps is None else f"{p.steps:,}",
    "passes over the corpus": lambda p: None if p.epochs is None else f"{p.epochs:.2f}",
    "time": lambda p: None if p.hours is None else _time(p.hours),
}


def _phase_table(forecast: Forecast) -> Table:
    table = Table("phase", *(f"length {p.length}" for p in forecast.phases))
    for name, figure in _ROWS.items():
        cells = [figure(phase) for phase in forecast.phases]
        if any(cell is not None for cell in cells):
            table.add_row(name, *(cell or "" for cell in cells))
    return table


def _bytes(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"


def _count(value: float) -> str:
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:,.0f}"


def _time(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:,.1f} days"
    return f"{hours:.1f} hours" if hours >= 1.5 else f"{hours * 60:.1f} minutes"
