"""Time a training step of two revisions in turns, in the same run on the same machine.

    git worktree add ../before REVISION
    python scripts/compare_revisions.py ../before/src src --size base --batch 16 --precision bf16

Each revision has a process of its own; they take turns, step by step, with the same batches of
random tokens. A ratio is that of neighbouring steps; the interval is of its median (a sign test's,
95 %). CPU time is that of all threads together, and is less disturbed by other programs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from scipy.stats import binom


def worker(options: argparse.Namespace) -> None:
    """Answer each line on stdin by a step on the batch with this number: its seconds, as JSON."""
    try:
        from bothways.experiments.bench import make_step, shape_and_batches
        from bothways.experiments.options import BenchTrainConfig
        from bothways.model.device import set_threads
    except ImportError:  # where 0.1 has them
        from bothways.bench.cases import shape_and_batches
        from bothways.bench.contenders import make_step
        from bothways.training.runtime import set_threads

        from bothways.config import BenchTrainConfig

    set_threads(options.threads)
    config, batches = shape_and_batches(
        BenchTrainConfig(size=options.size, batch=options.batch, length=options.length)
    )
    step = make_step("bothways", config, batches, options.precision)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        step(int(line))
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)


def main() -> None:
    """Run both revisions in turns and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="source folder (src) of the first revision")
    parser.add_argument("after", type=Path, help="source folder (src) of the second revision")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=15, help="pairs that are counted")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    running = [_start(source) for source in (options.before, options.after)]
    for number in range(4):  # not counted: compiling, and memory's first use
        for process in running:
            _step(process, number)
    found: list[list[list[float]]] = [[], []]
    for number in range(options.rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            found[which].append(_step(running[which], number))
    for process in running:
        process.kill()
        process.wait()
    for at, kind in enumerate(("wall", "CPU")):
        before, after = ([seconds[at] for seconds in side] for side in found)
        ratios = sorted(b / a for b, a in zip(before, after, strict=True))
        low, high = interval(ratios)
        print(
            f"{kind} seconds per step: {statistics.median(before):.4f} before, "
            f"{statistics.median(after):.4f} after; {statistics.median(ratios):.3f} times as fast "
            f"({low:.3f} to {high:.3f}, {len(ratios)} pairs)"
        )


def _start(source: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
    return subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], "--worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )


def _step(process: subprocess.Popen[str], number: int) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{number}\n")
    process.stdin.flush()
    if not (line := process.stdout.readline()):
        sys.exit("a revision's process has ended; its error is above")
    seconds: list[float] = json.loads(line)
    return seconds


def interval(ordered: list[float]) -> tuple[float, float]:
    """The shortest interval between two of the values, symmetric in rank, that holds the median
    with a probability of at least 95 %."""
    rank = max(0, int(binom.ppf(0.025, len(ordered), 0.5)) - 1)
    return ordered[rank], ordered[-1 - rank]


if __name__ == "__main__":
    main()
