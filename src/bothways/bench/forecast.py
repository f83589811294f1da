"""`bothways plan`: what a pre-training run needs, before it is begun."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bothways.bench.cases import full_batches
from bothways.bench.probe import probe, probe_sequences
from bothways.config import ModelConfig, Phase, PlanConfig, to_dict
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError
from bothways.files import write_json
from bothways.model.batch import PretrainingBatch
from bothways.model.cost import mean_operations
from bothways.model.heads import Bert
from bothways.pretraining.batches import PairBatches
from bothways.pretraining.clock import EVALUATIONS
from bothways.pretraining.objective import PAIR_TASKS
from bothways.pretraining.start import load_start
from bothways.training.device import choose_device
from bothways.training.precision import Choice, choose_precision
from bothways.training.runfolder import versions
from bothways.training.runtime import set_threads
from bothways.training.schedules import phase_steps, total_steps

_SAMPLE = 512  # sequences of a corpus that tell how long they are
_PARTS = 2  # different micro-batches that are timed
# What matrix kernels and the allocator take beside tensors where shapes differ from step to step:
# as measured, 0.6 to 0.9 GiB from tiny to base (benchmarks/2026-11-21-plan.md).
_OTHER_SHAPES = 800 * 2**20
_FORWARD = 1 / 3  # of a training step's operations


@dataclass(frozen=True)
class PhaseForecast:
    """One phase.

    Attributes:
        length, batch, micro_batch: as asked for.
        sequence_tokens: mean real tokens of a sequence.
        operations: floating-point operations of matrix products for each token, forward and
            backward, counting what the result needs.
        tokens_per_second: real tokens, the optimizer's update included.
        step_seconds: of an optimizer step.
        activations: bytes that a micro-batch keeps for the backward pass.
        activations_recomputing: the same with ``--recompute``.
        peak, peak_recomputing: bytes at most, the process itself included, without and with it.
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
    """What a run needs.

    Attributes:
        model: the network.
        parameters: of each part; the output embedding is that of the input.
        precision, threads: of the run.
        corpus: its folder; None if lengths are assumed.
        weights, gradients, moments: bytes in memory; fp32, padding rows included.
        process: bytes of this process before any model: Python, torch and the other libraries.
        checkpoint, model_folder: bytes of a training state and of a model on disk.
        disk: bytes of the run folder: all checkpoints kept, one being written, the model, and the
            snapshots.
        phases: in order.
        steps, tokens, operations, hours: of the run; None without a clock.
        evaluation_hours: of them, measuring on held-out text.
    """

    model: ModelConfig
    parameters: dict[str, int]
    precision: Choice
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
class _Text:
    """The sequences of a phase.

    Attributes:
        lengths: int64 [sequences].
        targets: predicted tokens, mean of a sequence.
        whole: a micro-batch.
        parts: some smaller ones, of this many sequences each.
        instances: of a pass over the corpus; None without one.
    """

    lengths: Any
    targets: float
    whole: PretrainingBatch
    parts: Callable[[int], list[PretrainingBatch]]
    instances: int | None


def plan(config: PlanConfig) -> Forecast:
    """Forecast a run of ``bothways pretrain`` with the same options; seconds to two minutes.

    Raises:
        ConfigError, StoreError, ModelError: as pre-training would.
    """
    threads = set_threads(config.threads)
    if choose_device(config.device).torch.type != "cpu":
        raise ConfigError(
            "plan times this machine's processor; what a GPU would do is not foretold. Say "
            "--device cpu to plan for the processor."
        )
    precision = choose_precision(config.precision)
    process = _resident()
    store = TokenStore.open(config.corpus) if config.corpus else None
    shape = _shape(config, store)
    sizes = _sizes(config, shape, process)
    texts = [_text(config, phase, store, shape, i) for i, phase in enumerate(config.phases)]
    phases = [
        _phase(config, sizes, phase, text, precision.dtype)
        for phase, text in zip(config.phases, texts, strict=True)
    ]
    forecast = _with_clock(
        config,
        replace(
            sizes,
            precision=precision,
            threads=threads,
            corpus=config.corpus or None,
            phases=tuple(phases),
        ),
        texts,
    )
    if config.json:
        record = {"config": to_dict(config), "versions": versions(), **to_dict(forecast)}
        write_json(Path(config.json), record)
    return forecast


def _shape(config: PlanConfig, store: TokenStore | None) -> ModelConfig:
    if config.start:
        return load_start(config, store).config
    return config.shape(store.tokenizer.vocab_size if store else config.vocab_size)


# -------------------------------------------------------------------------------- from shape alone


def _sizes(config: PlanConfig, shape: ModelConfig, process: int) -> Forecast:
    """All that needs no measuring."""
    with torch.device("meta"):
        model = Bert(shape, pretraining=True)
    if config.pairs.kind not in PAIR_TASKS:
        model.next_sentence = None
    padding = (shape.padded_vocab - shape.vocab_size) * shape.hidden
    parts: dict[str, nn.Module | None] = {
        "embeddings": model.encoder.embeddings,
        "layers": model.encoder.layers,
        "pooler": model.encoder.pooler,
        "masked-LM head": model.masked_lm,
        "pair head": model.next_sentence,
    }
    parameters = {name: _count(part) for name, part in parts.items() if part is not None}
    held = sum(parameters.values())
    parameters["embeddings"] -= padding
    on_disk = 4 * (held - padding)
    checkpoint = on_disk + 8 * held
    return Forecast(
        model=shape,
        parameters=parameters,
        precision=Choice("fp32", ""),
        threads=0,
        corpus=None,
        weights=4 * held,
        gradients=4 * held,
        moments=8 * held,
        process=process,
        checkpoint=checkpoint,
        model_folder=on_disk,
        disk=(config.checkpoint.keep + 1) * checkpoint + (1 + len(config.snapshots)) * on_disk,
        phases=(),
    )


def _count(part: nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


# ------------------------------------------------------------------------------ the phases, probed


def _text(
    config: PlanConfig, phase: Phase, store: TokenStore | None, shape: ModelConfig, number: int
) -> _Text:
    """Sequences of the corpus; without one, full ones of random words."""
    micro_batch = min(phase.micro_batch, phase.batch)
    if store is None:

        def made(sequences: int) -> list[PretrainingBatch]:
            steps = full_batches(
                shape.vocab_size,
                batch=sequences,
                length=phase.length,
                count=_PARTS,
                pairs=config.pairs.kind,
                masking=config.masking,
            )
            return [part for step in steps for part in step]

        whole = made(micro_batch)[0]
        lengths = np.array([phase.length])
        return _Text(lengths, whole.masked.count / micro_batch, whole, made, None)
    corpus = store

    def source(sequences: int, sizes: list[int] | None = None) -> PairBatches:
        return PairBatches(
            corpus,
            replace(phase, batch=_PARTS * sequences, micro_batch=sequences),
            pairs=config.pairs,
            masking=config.masking,
            seed=config.seed,
            number=number,
            epoch_sizes=sizes,
        )

    sample = source(micro_batch)
    some = sample.first(max(_SAMPLE, micro_batch))
    lengths = np.concatenate([part.inputs.lengths for part in some])
    targets = sum(part.masked.count for part in some) / len(lengths)

    def read(sequences: int) -> list[PretrainingBatch]:
        return source(sequences, sample.epoch_sizes).micro_batches(0)

    return _Text(lengths, targets, some[0], read, sample.epoch_sizes[0])


def _phase(
    config: PlanConfig, sizes: Forecast, phase: Phase, text: _Text, dtype: torch.dtype
) -> PhaseForecast:
    mean = float(text.lengths.mean())
    micro_batch = min(phase.micro_batch, phase.batch)
    few = probe_sequences(sizes.model, length=mean, targets=text.targets, most=micro_batch)
    found = probe(config, sizes.model, text.whole, text.parts(few), dtype)
    tokens = phase.batch * mean
    other = 0 if config.corpus == "" else _OTHER_SHAPES  # assumed lengths are all alike
    seconds = tokens * found.token_seconds + found.update_seconds
    return PhaseForecast(
        length=phase.length,
        batch=phase.batch,
        micro_batch=micro_batch,
        sequence_tokens=mean,
        operations=mean_operations(sizes.model, text.lengths, text.targets),
        tokens_per_second=tokens / seconds,
        step_seconds=seconds,
        activations=found.kept,
        activations_recomputing=found.kept_recomputing,
        peak=_peak(sizes, phase, found.kept, dtype) + other,
        peak_recomputing=_peak(sizes, phase, found.kept_recomputing, dtype) + other,
    )


def _peak(sizes: Forecast, phase: Phase, activations: float, dtype: torch.dtype) -> float:
    """The largest of three moments, counted in tensors.

    The gradients are held from the end of the first micro-batch's backward pass to the update, so
    together with a micro-batch's activations only where there are several.
    """
    shape = sizes.model
    embedding = shape.padded_vocab * shape.hidden * 4  # the gradient of the output embedding
    cast = 0 if dtype == torch.float32 else embedding // 2
    before = sizes.gradients if phase.batch > phase.micro_batch else 0
    backward_begins = before + activations + embedding + cast
    backward_ends = sizes.gradients + 2 * embedding  # input and output embedding, being added
    checkpoint = sizes.moments  # copied to be written
    most = max(backward_begins, backward_ends, checkpoint)
    return sizes.process + sizes.weights + sizes.moments + most


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return 0


# --------------------------------------------------------------------------------------- the clock


def _with_clock(config: PlanConfig, forecast: Forecast, texts: Sequence[_Text]) -> Forecast:
    """Steps, tokens, epochs and hours, if the recipe says how long to train."""
    clock, phases = config.clock, forecast.phases
    if clock.steps is None and clock.tokens is None and clock.minutes is None:
        return forecast
    first = phases[0]
    one = config.evaluate.sequences * first.step_seconds / first.batch * _FORWARD
    seconds = [p.step_seconds for p in phases]
    if clock.minutes is not None:
        if config.evaluate.every:
            seconds = [s + one / config.evaluate.every for s in seconds]
        else:
            spent = min(EVALUATIONS * one / 60, clock.minutes / 2)
            clock = replace(clock, minutes=clock.minutes - spent)
    steps = total_steps(
        clock,
        config.phases,
        step_tokens=[p.batch * p.sequence_tokens for p in phases],
        step_seconds=seconds,
    )
    evaluations = steps // config.evaluate.every if config.evaluate.every else EVALUATIONS
    done = []
    for own, text, count in zip(phases, texts, phase_steps(config.phases, steps), strict=True):
        epochs = count * own.batch / text.instances if text.instances else None
        hours = count * own.step_seconds / 3600
        done.append(replace(own, steps=count, hours=hours, epochs=epochs))
    tokens = [(p.steps or 0) * p.batch * p.sequence_tokens for p in done]
    measuring = evaluations * one / 3600
    return replace(
        forecast,
        phases=tuple(done),
        steps=steps,
        tokens=sum(tokens),
        operations=sum(t * p.operations for t, p in zip(tokens, done, strict=True)),
        hours=sum(p.hours or 0 for p in done) + measuring,
        evaluation_hours=measuring,
    )
