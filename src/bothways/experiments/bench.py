"""Speed of training and of inference beside other libraries, in the same run.

    python -m bothways.experiments.bench train --size mini --batch 32
    python -m bothways.experiments.bench infer mini-en --texts sentences.txt

Contenders take turns, so that changes in the machine's speed affect all of them. A ratio is the
median over the rounds of the ratio within a round.

B sequences, L sequence length, T tokens of a flat batch, M masked positions.
"""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bothways.batch import IGNORE
from bothways.config.parsing import CommandLine
from bothways.corpus.store import TokenStore
from bothways.errors import BothwaysError, ConfigError
from bothways.experiments.options import BenchInferConfig, BenchTrainConfig
from bothways.families.config import ModelConfig
from bothways.families.options import SizeOptions
from bothways.io.files import write_json
from bothways.io.terminal import counted
from bothways.model.batch import PretrainingBatch, flat_inputs, masked_targets
from bothways.model.device import (
    CPU,
    DTYPES,
    borrowed_process,
    choose_device,
    choose_precision,
    find_peak,
    set_threads,
    synchronize,
    transposing_pays,
)
from bothways.model.flops import mean_operations
from bothways.model.model import EncoderModel
from bothways.objectives.masked import MaskedLM
from bothways.objectives.masking import max_predictions
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.options import MaskOptions, PairOptions
from bothways.training.options import OptimizerOptions, PairKind, Phase
from bothways.training.runfolder import versions
from bothways.training.trainer import Trainer, step_loss

Steps = Sequence[Sequence[PretrainingBatch]]
"""The micro-batches of each step."""
RunStep = Callable[[int], None]
"""Trains on the batches with this number; numbers beyond the last start over."""
Say = Callable[[str], None]

OURS = ("bothways", "bothways fp32", "bothways plain")
PEERS = ("transformers fp32", "transformers bf16", "transformers bf16 compile")
BATCHES = 4
"""Different batches, used in turn."""
_FIRST_WORD = 5  # lower ids are special in most vocabularies; which ids are drawn does not matter
_MEMORY_STEPS = 3


@dataclass(frozen=True)
class Result:
    """One contender.

    Attributes:
        name: of the contender.
        seconds: of each timed step, in order.
        tokens_per_second: median, padding not counted.
        faster: the factor by which the first contender ("bothways") is faster than this one, median
            over the rounds.
        share_of_peak: fraction of the matrix-product rate in its precision (measured, or from a
            GPU's data sheet), counting only the operations that the result needs.
        peak_mib: peak memory beyond what the process used before the model, or on a GPU of all
            tensors; None if not measured.
    """

    name: str
    seconds: list[float]
    tokens_per_second: float
    faster: float
    share_of_peak: float
    peak_mib: float | None


@borrowed_process()
def bench_train(options: BenchTrainConfig, *, say: Say = print) -> list[Result]:
    """Time the contenders, print a table and, if requested, write JSON. Those of transformers that
    cannot run here are left out.

    Raises:
        ConfigError: an unknown contender, or transformers is not installed.
        StoreError: the corpus cannot be opened.
    """
    threads, device = set_threads(options.threads), choose_device(options.device)
    config, steps = shape_and_batches(options)
    precision = choose_precision(options.precision, device.torch)
    tokens = statistics.mean(map(real_tokens, steps))
    padded = sum(b.inputs.sequences * b.inputs.longest for step in steps for b in step) / len(steps)
    say(
        f"{options.size}: {counted(config.layers, 'layer')}, hidden {config.hidden}, vocabulary "
        f"{config.vocab_size:,}; {tokens:,.0f} tokens per step, {tokens / padded:.0%} of the size "
        f"when padded to the longest; {counted(threads, 'thread')}; {device.reason}; "
        f"{precision.reason}"
    )
    peaks = {name: find_peak(device.torch, dtype) for name, dtype in DTYPES.items()}
    say(", ".join(f"{n} matrix products: {p.flops / 1e9:,.0f} GFLOP/s" for n, p in peaks.items()))
    # Memory first: on a GPU, this process holds what its contenders needed from the timing on.
    memory = {
        name: peak_memory(options, name, precision.name, say) if options.memory else None
        for name in options.contenders
    }
    seconds = _time(options, config, steps, precision.name, device.torch, say)
    rounds = [[steps[i] for i in _batches_of_round(r, device.torch)] for r in range(options.rounds)]
    round_tokens = [statistics.mean(map(real_tokens, own)) for own in rounds]
    needed = [_operations(config, own) for own in rounds]
    ours = seconds[options.contenders[0]]
    results = []
    for name, own in seconds.items():
        rates = [n / t for n, t in zip(round_tokens, own, strict=True)]
        flops = statistics.median(r * n for r, n in zip(rates, needed, strict=True))
        kind = next((kind for kind in DTYPES if kind in name), precision.name)
        faster = statistics.median(t / o for t, o in zip(own, ours, strict=True))
        share = flops / peaks[kind].flops
        results.append(Result(name, own, statistics.median(rates), faster, share, memory[name]))
    say(_table(results))
    if options.out:
        peers = {"transformers"} & {name.partition(" ")[0] for name in seconds}
        record = {
            "options": asdict(options),
            "versions": {
                **versions(),
                **{peer: version(peer) for peer in peers},
                "system": platform.platform(),
            },
            "device": device.name,
            "threads": threads,
            "precision": precision.name,
            "matrix_flops_per_second": {name: peak.flops for name, peak in peaks.items()},
            "peak_from": {name: peak.source for name, peak in peaks.items()},
            "real_tokens_a_step": tokens,
            "real_tokens_a_step_by_round": round_tokens,
            "real_token_share": tokens / padded,
            "results": [asdict(result) for result in results],
        }
        write_json(Path(options.out), record)
    return results


def _operations(config: ModelConfig, steps: Steps) -> float:
    """Operations that the result needs, per token without padding."""
    batches = [batch for step in steps for batch in step]
    lengths = np.concatenate([batch.inputs.lengths for batch in batches])
    return mean_operations(config, lengths, sum(b.masked.count for b in batches) / len(lengths))


def _batches_of_round(number: int, device: torch.device) -> list[int]:
    """The batches on which steps are timed in a round: one, each in turn; on a GPU all, because the
    host prepares the next step meanwhile."""
    return [number % BATCHES] if device.type == "cpu" else list(range(BATCHES))


def _time(
    options: BenchTrainConfig,
    config: ModelConfig,
    steps: Steps,
    precision: str,
    device: torch.device,
    say: Say,
) -> dict[str, list[float]]:
    """Seconds of each contender's step, round by round; the mean over a round's batches."""
    runners: dict[str, RunStep] = {}
    for name in options.contenders:
        start = time.perf_counter()
        try:
            runners[name] = _warm(make_step(name, config, steps, precision, device), device)
        except RuntimeError as error:  # torch's: no memory, nothing to compile with
            if not (runners and name.startswith("transformers")):  # ratios are to the first
                raise
            say(f"  {name}: left out: {str(error).partition(chr(10))[0]}")
            continue
        elapsed = time.perf_counter() - start
        say(f"  {name}: first {BATCHES} steps {elapsed:.1f} s, not counted")
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(options.rounds):
        batches = _batches_of_round(number, device)
        for name, step in runners.items():
            # Not counted: the others' steps have taken its memory and its caches.
            step(batches[0] + BATCHES - 1)
            synchronize(device)
            start = time.perf_counter()
            for batch in batches:
                step(batch)
            synchronize(device)
            seconds[name].append((time.perf_counter() - start) / len(batches))
    return seconds


def _warm(step: RunStep, device: torch.device) -> RunStep:
    """The step, run on every batch. A function, so that one that fails is not kept in memory."""
    for batch in range(BATCHES):
        step(batch)
    synchronize(device)
    return step


def _table(results: Sequence[Result]) -> str:
    ours = results[0].name
    lines = [f"{'':<27} tokens/s  {ours} is  share of peak   peak memory   seconds per step"]
    for result in results:
        memory = "-" if result.peak_mib is None else f"{result.peak_mib:,.0f} MiB"
        spread = f"{min(result.seconds):.3f} to {max(result.seconds):.3f}"
        lines.append(
            f"{result.name:<27} {result.tokens_per_second:8,.0f} {result.faster:9.2f} times "
            f"{result.share_of_peak:12.0%} {memory:>14}   {spread}"
        )
    return "\n".join(lines)


# --------------------------------------------------------------------------------
# Batches, the same for bothways and transformers.


def shape_and_batches(options: BenchTrainConfig) -> tuple[ModelConfig, Steps]:
    """The network's shape, and the batches to train it on.

    Raises:
        StoreError: the corpus cannot be opened.
    """
    batch, length, vocab_size = options.batch, options.length, options.vocab_size
    if options.corpus:
        store = TokenStore.open(options.corpus)
        vocab_size = store.tokenizer.vocab_size
        steps = real_batches(store, batch=batch, length=length, count=BATCHES)
    else:
        steps = full_batches(vocab_size, batch=batch, length=length, count=BATCHES)
    config = SizeOptions(size=options.size).resolve(vocab_size)
    return replace(config, attention_dropout=options.attention_dropout), steps


def full_batches(
    vocab_size: int,
    *,
    batch: int,
    length: int,
    count: int,
    pairs: PairKind = "next",
    rate: float = MaskOptions.rate,
    causal: bool = False,
) -> list[list[PretrainingBatch]]:
    """Steps of ``batch`` sequences of exactly ``length`` random tokens each."""
    rng = np.random.default_rng(0)
    paired = pairs in ("next", "order")
    targets = length - 1 if causal else max_predictions(length, rate)
    starts = np.arange(batch)[:, None] * length
    steps = []
    for _ in range(count):
        tokens = rng.integers(_FIRST_WORD, vocab_size, batch * length)
        positions = [
            np.arange(length - 1) if causal else rng.permutation(np.arange(1, length - 1))[:targets]
            for _ in range(batch)
        ]
        at = (np.sort(positions, axis=1) + starts).ravel()
        half = length // 2 if paired else length
        segments = np.tile(np.arange(length) >= half, batch).astype(np.int64)
        bounds = np.arange(batch + 1) * length
        inputs = flat_inputs(tokens, segments, bounds, max_positions=length)
        labels = torch.from_numpy(rng.integers(0, 2, batch)) if paired else None
        steps.append([PretrainingBatch(inputs, masked_targets(at, tokens[at]), labels)])
    return steps


def real_batches(
    store: TokenStore, *, batch: int, length: int, count: int
) -> list[list[PretrainingBatch]]:
    """Steps of segment pairs of a corpus, with their real lengths."""
    phase = Phase(length=length, batch=batch, micro_batch=batch)
    source = PhaseBatches(store, phase, pairs=PairOptions(), masking=MaskOptions(), seed=0)
    return [source.micro_batches(step) for step in range(count)]


def padded(batch: PretrainingBatch) -> dict[str, Tensor]:
    """The same sequences, padded to the longest as transformers' collators do.

    Returns:
        ``input_ids``, ``token_type_ids``, ``attention_mask``, ``labels``: int64 [B, L], labels are
        -100 at positions that are not masked; ``next_sentence_label``: int64 [B].
    """
    inputs, masked = batch.inputs, batch.masked
    real = torch.arange(inputs.longest) < torch.from_numpy(inputs.lengths)[:, None]
    assert batch.random_next is not None  # sequences of one segment are not measured here
    labels = torch.full((len(inputs.tokens),), IGNORE)
    labels[masked.positions[: masked.count]] = masked.ids[: masked.count]

    def rows(values: Tensor, fill: int) -> Tensor:
        out = torch.full((inputs.sequences, inputs.longest), fill)
        out[real] = values[: int(inputs.bounds[-1])]
        return out

    return {
        "input_ids": rows(inputs.tokens, 0),
        "token_type_ids": rows(inputs.segments, 0),
        "attention_mask": real.long(),
        "labels": rows(labels, IGNORE),
        "next_sentence_label": batch.random_next,
    }


def real_tokens(step: Sequence[PretrainingBatch]) -> int:
    """Tokens of a step, padding not counted."""
    return sum(int(batch.inputs.bounds[-1]) for batch in step)


# --------------------------------------------------------------------------------
# The contenders: one training step, ours and transformers', ready to be timed.


def make_step(
    name: str, config: ModelConfig, steps: Steps, precision: str, device: torch.device = CPU
) -> RunStep:
    """A contender's training step on one of these batches.

    Args:
        name: of :data:`OURS` or :data:`PEERS`.
        config: the shape, the same for all.
        steps: micro-batches of each step.
        precision: of ``bothways`` and ``bothways plain``.
        device: where it runs; the batches are moved there beforehand.
    """
    if name in OURS:
        chosen = "fp32" if name == "bothways fp32" else precision
        return _ours(config, steps, chosen, device, fast=name != "bothways plain")
    if name in PEERS:
        return _theirs(config, steps, device, bf16="bf16" in name, compiled="compile" in name)
    raise ConfigError(f"unknown contender {name!r}; choose from {', '.join((*OURS, *PEERS))}.")


def _ours(
    config: ModelConfig, steps: Steps, precision: str, device: torch.device, *, fast: bool
) -> RunStep:
    model = EncoderModel(config, masked_lm=True, next_sentence=True).to(device)
    model.shared.fast = fast
    if device.type == "cpu" and fast:
        model.shared.transposes = transposing_pays(DTYPES[precision])
    trainer: Trainer[PretrainingBatch] = Trainer(
        model, OptimizerOptions(), total_steps=10_000, seed=0, dtype=DTYPES[precision]
    )
    if device.type != "cpu":
        steps = [[batch.to(device) for batch in micro_batches] for micro_batches in steps]
    done = 0

    def step(number: int) -> None:
        nonlocal done
        micro_batches = steps[number % len(steps)]
        trainer.step(done, micro_batches, step_loss(micro_batches, MaskedLM()))
        done += 1

    return step


def _theirs(
    config: ModelConfig, steps: Steps, device: torch.device, *, bf16: bool, compiled: bool
) -> RunStep:
    """transformers' model as its documentation trains it: AdamW, clipping, autocast."""
    try:
        from transformers import BertConfig, BertForPreTraining
    except ImportError as error:
        raise ConfigError(
            "transformers is not installed, so there is nothing to compare with; "
            "pip install 'bothways[bench]', or leave its contenders out."
        ) from error
    shape = BertConfig(
        vocab_size=config.padded_vocab,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.intermediate,
        max_position_embeddings=config.positions,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
    )
    model: Any = BertForPreTraining(shape).train().to(device)
    forward: Any = torch.compile(model) if compiled else model
    options = OptimizerOptions()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, weight_decay=options.weight_decay, fused=True
    )
    batches = [[_arguments(padded(b), device) for b in micro_batches] for micro_batches in steps]

    def step(number: int) -> None:
        micro_batches = batches[number % len(batches)]
        for batch in micro_batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                loss = forward(**batch).loss
            (loss / len(micro_batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _arguments(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The arguments of transformers' forward pass; without a mask that hides nothing, which would
    keep its compiled form from the fastest attention."""
    hides = not batch["attention_mask"].all()
    return {k: x.to(device) for k, x in batch.items() if hides or k != "attention_mask"}


# --------------------------------------------------------------------------------
# Peak memory of a contender's training, measured in a process of its own: this module's main.


def peak_memory(options: BenchTrainConfig, name: str, precision: str, say: Say) -> float | None:
    """Peak memory in MiB of some steps, beyond that of the process with its libraries; on a GPU, of
    tensors.

    Args:
        options: of the benchmark.
        name: of the contender.
        precision: of ``bothways`` and ``bothways plain``.
        say: is told why it could not be measured, for instance for lack of memory.

    Returns:
        None if it could not be measured.
    """
    request = json.dumps({**asdict(options), "contenders": [name], "precision": precision})
    words = [sys.executable, "-m", "bothways.experiments.bench", "memory", request]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        say(f"  {name}: its memory could not be measured: {reason}")
        return None
    return float(done.stdout.split()[-1])


def _measure_memory(request: str) -> None:
    options = BenchTrainConfig(**json.loads(request))
    set_threads(options.threads)
    device = choose_device(options.device).torch
    config, steps = shape_and_batches(options)
    (name,), precision = options.contenders, options.precision
    # Libraries are loaded, and loops compiled, when they are first used; that is not counted.
    smallest = replace(config, vocab_size=64, hidden=64, heads=1, intermediate=64, layers=2)
    batches = full_batches(64, batch=2, length=8, count=1)
    make_step(name, smallest, batches, precision, device)(0)
    torch.compiler.reset()  # a graph compiled for two shapes would be one for all
    with contextlib.suppress(OSError):  # resets the system's record of the peak, if possible
        Path("/proc/self/clear_refs").write_text("5")
    before = _high_water()
    step = make_step(name, config, steps, precision, device)
    for number in range(_MEMORY_STEPS):
        step(number)
    if device.type == "cuda":
        print(torch.cuda.max_memory_allocated(device) / 2**20)
    else:
        print((_high_water() - before) / 1024)


def memory_kib(field: str) -> int | None:
    """A field of this process's status in KiB; None if the system does not report it."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
    return None


def _high_water() -> int:
    """Peak resident memory in KiB."""
    if (peak := memory_kib("VmHWM")) is not None:
        return peak
    try:
        import resource
    except ImportError:
        raise ConfigError("peak memory is not measured on this system; leave memory out.") from None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


def main(words: Sequence[str]) -> None:
    """Time training or inference, by the words of a command line."""
    what, own = (words[0], words[1:]) if words else ("", ())
    if what == "memory":
        _measure_memory(own[0])
    elif what == "train":
        prog = "python -m bothways.experiments.bench train"
        bench_train(CommandLine(BenchTrainConfig, prog).parse(own))
    elif what == "infer":
        from bothways.experiments.bench_infer import bench_infer

        prog = "python -m bothways.experiments.bench infer"
        bench_infer(CommandLine(BenchInferConfig, prog, ("model",)).parse(own))
    else:
        sys.exit("usage: python -m bothways.experiments.bench train|infer ...; see --help of each")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BothwaysError as error:
        sys.exit(f"bench: {error}")
