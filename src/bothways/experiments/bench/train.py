"""`bothways bench train`: our training step compared with transformers', in the same run.

Contenders take turns, so that changes in the machine's speed affect all of them. A ratio is the
median over the rounds of the ratio within a round.
"""

from __future__ import annotations

import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from bothways.experiments.bench.cases import BATCHES, real_tokens, shape_and_batches
from bothways.experiments.bench.contenders import Step, make_step
from bothways.experiments.bench.memory import peak_memory
from bothways.experiments.bench.options import BenchTrainConfig
from bothways.families.config import ModelConfig
from bothways.io.files import write_json
from bothways.model.batch import PretrainingBatch
from bothways.model.device import (
    DTYPES,
    borrowed_process,
    choose_device,
    choose_precision,
    find_peak,
    set_threads,
    synchronize,
    threads_phrase,
)
from bothways.model.flops import mean_operations
from bothways.model.kernels import compiled
from bothways.training.runfolder import versions


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
def bench_train(options: BenchTrainConfig, *, say: Callable[[str], None] = print) -> list[Result]:
    """Time the contenders, print a table and, if requested, write JSON. Those of transformers that
    cannot run here are left out.

    Raises:
        ConfigError: an unknown contender, or transformers is not installed.
        StoreError: the corpus cannot be opened.
    """
    threads, device = set_threads(options.threads), choose_device(options.device)
    config, steps = shape_and_batches(options)
    precision = choose_precision(options.precision, device.torch)
    tokens = statistics.mean(real_tokens(step) for step in steps)
    padded = sum(_padded_tokens(batch) for step in steps for batch in step) / len(steps)
    share = tokens / padded
    say(
        f"{options.size}: {config.layers} layers, hidden {config.hidden}, vocabulary "
        f"{config.vocab_size:,}; {tokens:,.0f} tokens per step, {share:.0%} of the size when "
        f"padded to the longest; {threads_phrase(threads)}; {device.reason}; "
        f"{precision.reason}"
    )
    if options.profile:
        step = make_step("bothways", config, steps, precision.name, device.torch)
        say(profile(step, on_gpu=device.torch.type == "cuda"))
        return []
    peaks = {name: find_peak(device.torch, dtype) for name, dtype in DTYPES.items()}
    say(", ".join(f"{n} matrix products: {p.flops / 1e9:,.0f} GFLOP/s" for n, p in peaks.items()))
    # Memory first: on a GPU, this process holds what its contenders needed from the timing on.
    memory = {
        name: peak_memory(options, name, precision.name, say) if options.memory else None
        for name in options.contenders
    }
    seconds = _time(options, config, steps, precision.name, device.torch, say)
    rounds = [_batches_of_round(r, device.torch) for r in range(options.rounds)]
    round_tokens = [statistics.mean(real_tokens(steps[i]) for i in batches) for batches in rounds]
    needed = [_operations(config, [steps[i] for i in batches]) for batches in rounds]
    ours = seconds[options.contenders[0]]
    results = []
    for name, step_seconds in seconds.items():
        rates = [n / t for n, t in zip(round_tokens, step_seconds, strict=True)]
        flops = statistics.median(r * n for r, n in zip(rates, needed, strict=True))
        kind = "fp32" if "fp32" in name else "bf16" if "bf16" in name else precision.name
        results.append(
            Result(
                name=name,
                seconds=step_seconds,
                tokens_per_second=statistics.median(rates),
                faster=statistics.median(t / o for t, o in zip(step_seconds, ours, strict=True)),
                share_of_peak=flops / peaks[kind].flops,
                peak_mib=memory[name],
            )
        )
    say(_table(results))
    if options.out:
        measured = {
            "device": device.name,
            "threads": threads,
            "precision": precision.name,
            "matrix_flops_per_second": {name: peak.flops for name, peak in peaks.items()},
            "peak_from": {name: peak.source for name, peak in peaks.items()},
            "real_tokens_a_step": tokens,
            "real_tokens_a_step_by_round": round_tokens,
            "real_token_share": share,
        }
        _write(Path(options.out), options, results, measured)
    return results


def _padded_tokens(batch: PretrainingBatch) -> int:
    return batch.inputs.sequences * batch.inputs.longest


def _operations(config: ModelConfig, steps: Sequence[Sequence[PretrainingBatch]]) -> float:
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
    steps: Sequence[Sequence[PretrainingBatch]],
    precision: str,
    device: torch.device,
    say: Callable[[str], None],
) -> dict[str, list[float]]:
    """Seconds of each contender's step, round by round; the mean over a round's batches."""
    runners: dict[str, Step] = {}
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


def _warm(step: Step, device: torch.device) -> Step:
    """The step, run on every batch. A function, so that one that fails is not kept in memory."""
    for batch in range(BATCHES):
        step(batch)
    synchronize(device)
    return step


# Kinds of work, by what the names of operations contain; the first that fits. Library operations
# begin with aten, compiled loops with loop.
_KINDS = (
    ("matrix products", r"aten::(mm|addmm|bmm|linear|mkldnn)"),
    ("optimizer", r"loop adam|aten::_fused_adam|aten::_foreach_"),
    ("norms and sums of gradients", r"loop sum_squares|aten::(sum|linalg_vector_norm)"),
    ("GELU", r"loop gelu|aten::gelu"),
    ("loss over the vocabulary", r"loop cross_entropy"),
    ("other compiled loops", r"loop "),
    ("copies", r"aten::(copy_|clone|cat|contiguous|index_select|gather)"),
    ("fills", r"aten::(zero_|fill_|zeros|index_fill_)"),
    ("other library operations", r"aten::"),
)


def profile(step: Step, *, on_gpu: bool = False) -> str:
    """The time of a step by kind of work, and by operation; on a GPU the GPU's time. Shares are of
    the whole step, as it is with the profiler running."""
    clock = attrgetter("self_device_time_total" if on_gpu else "self_cpu_time_total")
    step(0)
    if on_gpu:
        torch.cuda.synchronize()
    with torch.profiler.profile() as profiler, _named_loops():
        start = time.perf_counter()
        for batch in range(1, 4):
            step(batch)
        if on_gpu:
            torch.cuda.synchronize()
        total = (time.perf_counter() - start) * 1e6
    # An operation's GPU time is that of its kernels, which have rows of their own as well.
    operations = [row for row in profiler.key_averages() if row.device_type.name == "CPU"]
    rows = sorted(operations, key=clock, reverse=True)
    kinds = dict.fromkeys((name for name, _ in _KINDS), 0.0)
    for row in rows:
        for name, pattern in _KINDS:
            if re.match(pattern, row.key):
                kinds[name] += clock(row)
                break
    lines = [f"{'kind of work':<44} share  milliseconds"]
    lines += [
        f"{name:<44} {spent / total:5.1%} {spent / 3e3:13.1f}" for name, spent in kinds.items()
    ]
    lines += ["", f"{'operation':<44} share  milliseconds  calls per step"]
    for row in rows[:25]:
        spent = clock(row)
        lines.append(
            f"{row.key[:44]:<44} {spent / total:5.1%} {spent / 3e3:13.1f} {row.count / 3:15.0f}"
        )
    others = sum(map(clock, rows[25:]))
    outside = max(0.0, total - others - sum(map(clock, rows[:25])))
    where = "the GPU waits" if on_gpu else "outside torch: random numbers, indices"
    for what, spent in ((f"{len(rows[25:])} other operations", others), (where, outside)):
        lines.append(f"{what:<44} {spent / total:5.1%} {spent / 3e3:13.1f}")
    return "\n".join(lines)


@contextmanager
def _named_loops() -> Iterator[None]:
    """Let the profiler see the compiled loops, which are not operations of the library."""
    run = compiled.run

    def named(name: str, *arguments: Any) -> None:
        with torch.profiler.record_function(f"loop {name}"):
            run(name, *arguments)

    with patch.object(compiled, "run", named):
        yield


# ------------------------------------------------------------------------------------------ output


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


def _write(
    path: Path,
    options: BenchTrainConfig,
    results: Sequence[Result],
    measured: dict[str, Any],
) -> None:
    peers = {}
    if any("transformers" in result.name for result in results):
        from importlib.metadata import version

        peers["transformers"] = version("transformers")
    write_json(
        path,
        {
            "options": asdict(options),
            "versions": {**versions(), **peers, "system": platform.platform()},
            **measured,
            "results": [asdict(result) for result in results],
        },
    )
