"""`bothways plan`: estimates the time, memory and disk that a pre-training run needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bothways.config.fields import to_dict
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError
from bothways.experiments.bench.cases import full_batches
from bothways.experiments.plan.options import PlanConfig
from bothways.experiments.plan.probe import probe, probe_sequences
from bothways.families.config import ModelConfig
from bothways.io.files import write_json
from bothways.io.terminal import print_note
from bothways.model.batch import PretrainingBatch
from bothways.model.device import (
    ChosenPrecision,
    borrowed_process,
    choose_device,
    choose_for_training,
    set_threads,
)
from bothways.model.flops import mean_operations
from bothways.model.kernels.compiled import compiles, why_not_compiled
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.clock import EVALUATIONS, reserve_evaluations
from bothways.pretraining.evaluation import count_heldout
from bothways.pretraining.snapshots import check_snapshots
from bothways.pretraining.start import load_start, new_model
from bothways.training.options import Phase
from bothways.training.runfolder import versions
from bothways.training.schedules import phase_steps, total_steps

_SAMPLE = 512  # sequences of a corpus from which the lengths are estimated
_PARTS = 2  # different micro-batches that are timed
# Memory that matrix kernels and the allocator take besides the tensors. In fp32 0.3 to 0.6 GiB from
# tiny to base (benchmarks/2026-11-25-plan.md); in bf16 0.6 to 0.9 GiB, measured when activations
# took more than their size (benchmarks/2026-11-21-plan.md).
SHAPES_OVERHEAD = {torch.bfloat16: 800 * 2**20, torch.float32: 400 * 2**20}
_FORWARD = 1 / 3  # fraction of a training step's operations


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


@dataclass(frozen=True)
class Forecast:
    """The estimates for a run.

    Attributes:
        model: the network.
        parameters: their number in each module; the output embedding is tied to the input's.
        precision, threads: of the run.
        corpus: its folder; None if lengths are assumed.
        weights, gradients, moments: bytes in memory; fp32, padding rows included.
        process: bytes of this process before any model: Python, torch and the other libraries.
        checkpoint, model_folder: bytes on disk of a training state and of a model.
        disk: bytes of the run folder: all checkpoints kept, one being written, the model, and the
            snapshots.
        phases: in order.
        steps, tokens, operations, hours: of the run; None without a clock.
        evaluation_hours: the part of ``hours`` that evaluation on held-out text takes.
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
    phases: tuple[PhaseForecast, ...]
    steps: int | None = None
    tokens: float | None = None
    operations: float | None = None
    hours: float | None = None
    evaluation_hours: float | None = None


@dataclass(frozen=True)
class _Sizes:
    """The estimates that follow from the network's shape, with the meaning they have in
    :class:`Forecast`."""

    model: ModelConfig
    parameters: dict[str, int]
    weights: int
    gradients: int
    moments: int
    process: int
    checkpoint: int
    model_folder: int
    disk: int


@dataclass(frozen=True)
class _SampleText:
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


@borrowed_process()
def plan(config: PlanConfig) -> Forecast:
    """Estimate a run of ``bothways pretrain`` with the same options; takes seconds to two minutes.

    Raises:
        ConfigError, StoreError, ModelError: as pre-training would.
    """
    threads = set_threads(config.threads)
    if choose_device(config.device).torch.type != "cpu":
        if config.device != "auto":
            raise ConfigError(
                "plan times this machine's processor; the speed of a GPU cannot be estimated. Pass "
                "--device cpu to plan for the processor."
            )
        print_note(
            "speed and hours are those of the processor, not of the GPU, and so is the memory of "
            "the process; parameters, operations, weights, gradients, moments and disk hold for "
            "both"
        )
    precision = choose_for_training(config.precision)
    if config.kernels == "fast":
        why_not_compiled()  # loads the compiler, as training will
    process = _resident_bytes()
    store = TokenStore.open(config.corpus) if config.corpus else None
    shape = _shape(config, store)
    sizes = _sizes(config, shape, process)
    texts = [_sample_text(config, phase, store, shape, i) for i, phase in enumerate(config.phases)]
    phases = tuple(
        _phase(config, sizes, phase, text, precision)
        for phase, text in zip(config.phases, texts, strict=True)
    )
    forecast = Forecast(
        **vars(sizes),
        precision=precision,
        threads=threads,
        corpus=config.corpus or None,
        phases=phases,
    )
    heldout = count_heldout(config, store) if store else config.evaluate.sequences
    forecast = _with_clock(config, forecast, texts, heldout)
    if config.json:
        record = {"config": to_dict(config.resolved()), "versions": versions(), **to_dict(forecast)}
        write_json(Path(config.json), record)
    return forecast


def _shape(config: PlanConfig, store: TokenStore | None) -> ModelConfig:
    if config.start:
        return load_start(config, store).config
    return config.shape(store.tokenizer.vocab_size if store else config.vocab_size)


# -------------------------------------------------------------------------------- from shape alone


def _sizes(config: PlanConfig, shape: ModelConfig, process: int) -> _Sizes:
    """Weights, memory and disk, which need no measuring."""
    with torch.device("meta"):
        model = new_model(config, shape)
    padding = (shape.padded_vocab - shape.vocab_size) * shape.embedding_width
    modules: dict[str, nn.Module | None] = {
        "embeddings": model.encoder.embeddings,
        "layers": model.encoder.layers,
        "pooler": model.encoder.pooler,
        "masked-LM head": model.masked_lm,
        "pair head": model.next_sentence,
    }
    parameters = {name: _count(m) for name, m in modules.items() if m is not None}
    in_memory = sum(parameters.values())
    parameters["embeddings"] -= padding
    model_folder = 4 * (in_memory - padding)
    checkpoint = model_folder + 8 * in_memory
    models, checkpoints = 1 + len(config.snapshots), config.checkpoint.keep + 1
    return _Sizes(
        model=shape,
        parameters=parameters,
        weights=4 * in_memory,
        gradients=4 * in_memory,
        moments=8 * in_memory,
        process=process,
        checkpoint=checkpoint,
        model_folder=model_folder,
        disk=checkpoints * checkpoint + models * model_folder,
    )


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# ---------------------------------------------------------------------------- the phases, measured


def _sample_text(
    config: PlanConfig, phase: Phase, store: TokenStore | None, shape: ModelConfig, number: int
) -> _SampleText:
    """Sequences of the corpus; without a corpus, sequences of full length with random words."""
    micro_batch = min(phase.micro_batch, phase.batch)
    if store is None:

        def random_batches(sequences: int) -> list[PretrainingBatch]:
            steps = full_batches(
                shape.vocab_size,
                batch=sequences,
                length=phase.length,
                count=_PARTS,
                pairs=config.pairs.kind,
                masking=config.masking,
            )
            return [batch for step in steps for batch in step]

        batch = random_batches(micro_batch)[0]
        lengths = np.array([phase.length])
        return _SampleText(lengths, batch.masked.count / micro_batch, batch, random_batches, None)
    corpus = store

    def source(sequences: int, sizes: list[int] | None = None) -> PhaseBatches:
        return PhaseBatches(
            corpus,
            replace(phase, batch=_PARTS * sequences, micro_batch=sequences),
            pairs=config.pairs,
            masking=config.masking,
            seed=config.seed,
            number=number,
            epoch_sizes=sizes,
        )

    sample = source(micro_batch)
    batches = sample.first(max(_SAMPLE, micro_batch))
    lengths = np.concatenate([batch.inputs.lengths for batch in batches])
    targets = sum(batch.masked.count for batch in batches) / len(lengths)

    def corpus_batches(sequences: int) -> list[PretrainingBatch]:
        return source(sequences, sample.epoch_sizes).micro_batches(0)

    return _SampleText(lengths, targets, batches[0], corpus_batches, sample.epoch_sizes[0])


def _phase(
    config: PlanConfig,
    sizes: _Sizes,
    phase: Phase,
    text: _SampleText,
    precision: ChosenPrecision,
) -> PhaseForecast:
    mean = float(text.lengths.mean())
    micro_batch = min(phase.micro_batch, phase.batch)
    sequences = probe_sequences(sizes.model, length=mean, targets=text.targets, most=micro_batch)
    cost = probe(config, sizes.model, text.micro_batch, text.batches_of(sequences), precision)
    dtype = precision.dtype
    tokens = phase.batch * mean
    seconds = tokens * cost.token_seconds + cost.update_seconds
    return PhaseForecast(
        length=phase.length,
        batch=phase.batch,
        micro_batch=micro_batch,
        sequence_tokens=mean,
        operations=mean_operations(sizes.model, text.lengths, text.targets),
        tokens_per_second=tokens / seconds,
        step_seconds=seconds,
        activations=cost.activations,
        activations_recomputing=cost.activations_recomputing,
        peak=_peak(config, sizes, phase, dtype, cost.activations, cost.activations),
        peak_recomputing=_peak(
            config, sizes, phase, dtype, cost.activations_recomputing, cost.layer
        ),
    )


def _peak(
    config: PlanConfig,
    sizes: _Sizes,
    phase: Phase,
    dtype: torch.dtype,
    activations: float,
    pooled: float,
) -> float:
    """The largest memory as a backward pass starts or ends, counted in tensors, and what libraries
    take besides.

    Gradients exist from the end of the first micro-batch's backward pass to the update. A
    checkpoint needs no copies. Compiled layers keep the weights rounded to their dtype; of a step
    of one micro-batch the gradients stay in it, too.

    Args:
        config, sizes, phase, dtype: of the run.
        activations: bytes kept for the backward pass.
        pooled: bytes of them that compiled layers hold for the next step. What plain layers kept
            becomes free during the backward pass.
    """
    shape, several = sizes.model, phase.batch > phase.micro_batch
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


def _resident_bytes() -> int:
    """Memory of this process; 0 if the system does not report it."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return 0


# --------------------------------------------------------------------------------------- the clock


def _with_clock(
    config: PlanConfig, forecast: Forecast, texts: Sequence[_SampleText], heldout: int
) -> Forecast:
    """Adds steps, tokens, epochs and hours, if the recipe sets the length of the training.

    ``heldout``: sequences of an evaluation.
    """
    clock, phases = config.clock, forecast.phases
    if clock.steps is None and clock.tokens is None and clock.minutes is None:
        return forecast
    first = phases[0]
    one = heldout * first.step_seconds / first.batch * _FORWARD
    seconds = [p.step_seconds for p in phases]
    if clock.minutes is not None:
        clock, seconds = reserve_evaluations(clock, seconds, config.evaluate.every, one)
    steps = total_steps(
        clock,
        config.phases,
        step_tokens=[p.batch * p.sequence_tokens for p in phases],
        step_seconds=seconds,
    )
    check_snapshots(Path(config.run), config.snapshots, done=0, total=steps)
    evaluations = steps // config.evaluate.every if config.evaluate.every else EVALUATIONS
    planned = []
    for phase, text, count in zip(phases, texts, phase_steps(config.phases, steps), strict=True):
        epochs = count * phase.batch / text.instances if text.instances else None
        hours = count * phase.step_seconds / 3600
        planned.append(replace(phase, steps=count, hours=hours, epochs=epochs))
    tokens = [(p.steps or 0) * p.batch * p.sequence_tokens for p in planned]
    evaluation_hours = evaluations * one / 3600
    return replace(
        forecast,
        phases=tuple(planned),
        steps=steps,
        tokens=sum(tokens),
        operations=sum(t * p.operations for t, p in zip(tokens, planned, strict=True)),
        hours=sum(p.hours or 0 for p in planned) + evaluation_hours,
        evaluation_hours=evaluation_hours,
    )
