"""Print the tables of docs/scale.md: what 10^12 tokens take at each stage, from the plan's code and
from constants measured in benchmarks/. Takes seconds; nothing is run.

    python scripts/scale.py
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from bothways.experiments.devices import ACCELERATORS, REACHED
from bothways.experiments.options import PlanConfig
from bothways.experiments.plan import Forecast, plan
from bothways.families.options import SizeOptions
from bothways.model.flops import forward_operations
from bothways.training.options import ClockOptions, Phase

TOKENS = 1e12

# Measured: 332 MB of English gave 77.6 M tokens (EXPERIMENTS.md).
BYTES_PER_TOKEN = 332e6 / 77.6e6
# benchmarks/2026-11-21-vocabulary.md: a vocabulary of 30,522 from 327 MB, one worker; most of it
# is counting, which grows with the text.
VOCABULARY_RATE = 327e6 / 51.5  # bytes a processor second
# benchmarks/2026-11-21-corpus.md, with nothing else running.
CORPUS_RATE = 6.68e6  # bytes a processor second
# benchmarks/2026-11-27-scale.md: by documents, MB of lengths, tables and order, and processor
# seconds of tables.
TABLES = {
    1_000_000: (177, 1.2),
    10_000_000: (1_773, 14.3),
    100_000_000: (17_728, 172.9),
}
# The same: memory at most, and of the order of 256,781,932 instances seconds and passes.
MEMORY = 996 * 2**20
INSTANCES, ORDER_SECONDS, ORDER_PASSES = 256_781_932, 43.4, 31
TOKENS_PER_DOCUMENT = 160.1
# benchmarks/2026-11-26-h100.md: base, 256 x 128 and 64 x 512, and mini.
MEASURED = {
    ("base", 256, 128): (566_249, 11_736),
    ("base", 64, 512): (515_039, 11_714),
    ("mini", 256, 128): (3_055_335, None),
}
# benchmarks/2026-11-26-inference.md: MiniLM in fp32, one thread of a busy processor.
INFERENCE_RATE = 107 * 26.8  # tokens a second


def slope() -> tuple[float, float]:
    """Bytes on disk and processor seconds of the tables for each document: fitted lines."""
    counts = np.array([*TABLES], dtype=float)
    size, seconds = np.array([*TABLES.values()]).T
    return np.polyfit(counts, size, 1)[0] * 1e6, np.polyfit(counts, seconds, 1)[0]


def planned(size: Any, phase: Phase, **changes: Any) -> Forecast:
    """A run on H100s."""
    return plan(PlanConfig(model=SizeOptions(size=size), device="h100", phases=(phase,), **changes))


def years(seconds: float) -> str:
    """A duration, in the unit that suits it."""
    for unit, length in (("years", 365 * 86400), ("days", 86400), ("hours", 3600)):
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"


def large(size: float) -> str:
    """Bytes with a decimal prefix."""
    for unit, length in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9)):
        if size >= length:
            return f"{size / length:,.1f} {unit}"
    return f"{size / 1e6:,.0f} MB"


def stages() -> Iterator[tuple[str, str, str]]:
    """What, how much, and where it comes from."""
    text = TOKENS * BYTES_PER_TOKEN
    yield "text", large(text), "computed; 4.28 bytes a token measured (EXPERIMENTS.md)"
    rates = "computed; rate measured"
    yield (
        "vocabulary, from all of it: one core",
        years(text / VOCABULARY_RATE),
        f"{rates} (2026-11-21-vocabulary.md)",
    )
    yield (
        "vocabulary, from 1 % of it: 8 cores",
        years(text / 100 / VOCABULARY_RATE / 8),
        f"{rates}; that 8 cores share the work evenly is assumed",
    )
    yield "corpus: one core", years(text / CORPUS_RATE), f"{rates} (2026-11-21-corpus.md)"
    yield (
        "corpus: 1,000 cores",
        years(text / CORPUS_RATE / 1000),
        "computed; that workers share the work evenly is assumed",
    )
    yield "corpus: disk, two bytes a token", large(2 * TOKENS), "computed"
    each, seconds = slope()
    documents = TOKENS / TOKENS_PER_DOCUMENT
    fitted = "computed; slope measured (2026-11-27-scale.md)"
    yield (
        "tables of instances and order: memory, at most",
        large(MEMORY),
        "measured, up to 10^8 documents; above 2 billion instances the order takes more",
    )
    yield "the same: disk for each document", f"{each:,.0f} bytes", "measured"
    yield "the same for all, in each process", large(each * documents), fitted
    yield "tables: processor time of an epoch", years(seconds * documents), fitted
    instances = documents * INSTANCES / max(TABLES)
    passes = 256  # where parts of the usual size would be more
    yield "order: memory", large(24 * instances / passes), "computed, not run"
    yield (
        "order: processor time of an epoch",
        years(ORDER_SECONDS / ORDER_PASSES * passes * instances / INSTANCES),
        "computed; a pass over the keys measured",
    )
    one = planned("base", Phase(length=128, batch=256, micro_batch=256))
    yield (
        "pre-training base at 128: one H100, at the measured rate",
        years(TOKENS / MEASURED["base", 256, 128][0]),
        "computed; rate measured (2026-11-26-h100.md)",
    )
    yield (
        "the same, as planned",
        years(TOKENS / one.phases[0].tokens_per_second),
        "computed, not run",
    )
    for size, parallel in itertools.product(("base", "large"), ("ddp", "fsdp")):
        run = planned(
            size,
            Phase(length=512, batch=4096, micro_batch=32),
            ranks=64,
            parallel=parallel,
            clock=ClockOptions(tokens=int(TOKENS)),
        )
        (phase,), where = run.phases, f"pre-training {size} at 512: 64 H100s, {parallel}"
        yield where, years(3600 * (run.hours or 0)), "computed, not run"
        yield f"{where}: memory of a rank", large(phase.peak), "computed, not run"
        yield (
            f"{where}: sent by a rank in a step, in the run",
            f"{large(phase.sent)}, {large(phase.sent * (run.steps or 0))}",
            "computed; bytes of 2 gloo ranks counted (2026-11-26-scale.md)",
        )
    yield (
        "vectors of MiniLM: one core",
        years(TOKENS / INFERENCE_RATE),
        "computed; rate measured on a busy machine (2026-11-26-inference.md)",
    )
    shape = SizeOptions(size="base").resolve(30_522)
    operations = forward_operations(shape, np.array([128])) / 128
    yield (
        "vectors of base at 128: one H100",
        years(TOKENS * operations / (ACCELERATORS["h100"].rate * REACHED)),
        "computed, not run; that it reaches the share of training is assumed",
    )
    yield "vectors of 768 for every 128 tokens, on disk", large(TOKENS / 128 * 768 * 4), "computed"


def checks() -> Iterator[tuple[str, str, str, str]]:
    """Computed beside measured."""
    for (size, batch, length), (rate, memory) in MEASURED.items():
        phase = planned(size, Phase(length=length, batch=batch, micro_batch=batch)).phases[0]
        name = f"{size}, {batch} x {length}"
        found = phase.tokens_per_second
        yield f"{name}: tokens a second", f"{found:,.0f}", f"{rate:,}", f"{found / rate:.2f}"
        if memory:
            peak = phase.peak / 2**20
            yield f"{name}: MiB of tensors", f"{peak:,.0f}", f"{memory:,}", f"{peak / memory:.2f}"


def main() -> None:
    """Print both tables."""
    print("| what | takes | from |\n|---|---:|---|")
    for row in stages():
        print("|", " | ".join(row), "|")
    print("\n| one H100 | computed | measured | computed / measured |\n|---|---:|---:|---:|")
    for check in checks():
        print("|", " | ".join(check), "|")


if __name__ == "__main__":
    main()
