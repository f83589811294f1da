"""Peak memory of a contender's training, measured in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bothways.errors import ConfigError
from bothways.experiments.bench.cases import full_batches, shape_and_batches
from bothways.experiments.bench.contenders import make_step
from bothways.experiments.bench.options import BenchTrainConfig
from bothways.model.device import choose_device, set_threads

_STEPS = 3


def peak_memory(
    options: BenchTrainConfig, name: str, precision: str, say: Callable[[str], None]
) -> float | None:
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
    done = subprocess.run(
        [sys.executable, "-m", "bothways.experiments.bench.memory", request],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        say(f"  {name}: its memory could not be measured: {reason}")
        return None
    return float(done.stdout.split()[-1])


def _measure(request: str) -> None:
    values = json.loads(request)
    options = BenchTrainConfig(**{**values, "contenders": tuple(values["contenders"])})
    set_threads(options.threads)
    device = choose_device(options.device).torch
    config, steps = shape_and_batches(options)
    (name,), precision = options.contenders, options.precision
    # Libraries are loaded, and loops compiled, when they are first used; that is not counted.
    smallest = replace(config, vocab_size=64, hidden=64, heads=1, intermediate=64, layers=2)
    batches = full_batches(64, batch=2, length=8, count=1)
    make_step(name, smallest, batches, precision, device)(0)
    torch.compiler.reset()  # a graph compiled for two shapes would be one for all
    before = _start_high_water()
    step = make_step(name, config, steps, precision, device)
    for number in range(_STEPS):
        step(number)
    if device.type == "cuda":
        print(torch.cuda.max_memory_allocated(device) / 2**20)
    else:
        print((_high_water() - before) / 1024)


def _start_high_water() -> int:
    """KiB resident now; resets the system's record of the peak, if possible."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _high_water()


def _high_water() -> int:
    """Peak resident memory in KiB."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    try:
        import resource
    except ImportError:
        raise ConfigError("peak memory is not measured on this system; leave memory out.") from None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


if __name__ == "__main__":
    _measure(sys.argv[1])
