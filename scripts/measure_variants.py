"""CPU time of a fine-tuning step of a mini encoder: both ways, left to right, and with a BiLSTM.

    python scripts/measure_variants.py --precision bf16

Each network takes the same batch of random sequences in turn, on one thread; the time is that of
the process on its core, which other programs disturb less than the clock's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np

from bothways.config import OptimizerOptions, SizeOptions
from bothways.model.heads import Bert
from bothways.tasks.examples import Examples, TaskBatch
from bothways.tasks.task import task_loss
from bothways.training.engine import Trainer
from bothways.training.precision import DTYPES
from bothways.training.runtime import set_threads

SEQUENCES, SHORTEST, LONGEST, VOCABULARY = 32, 10, 60, 16_384
NOT_COUNTED = 2
# Left to right, and units of the BiLSTM.
NETWORKS = {
    "both ways": (False, 0),
    "left to right": (True, 0),
    "BiLSTM of 256": (False, 256),
}


def make_batch() -> TaskBatch:
    """A step of two classes."""
    rng = np.random.default_rng(0)
    bounds = np.cumsum([0, *rng.integers(SHORTEST, LONGEST, SEQUENCES)])
    tokens = rng.integers(5, VOCABULARY, bounds[-1]).astype(np.int32)
    examples = Examples.of_sequences(tokens, np.zeros(len(tokens), np.int8), bounds)
    labelled = examples.with_targets(rng.integers(0, 2, SEQUENCES))
    return labelled.batch(np.arange(SEQUENCES), max_positions=512)


def main() -> None:
    """Print every repetition, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="bf16", help="bf16 or fp32 (bf16)")
    parser.add_argument("--rounds", type=int, default=7, help="steps that count (7)")
    options = parser.parse_args()
    set_threads(1)
    shape, batch = SizeOptions(size="mini").resolve(VOCABULARY), make_batch()
    trainers: dict[str, Trainer[TaskBatch]] = {
        name: Trainer(
            Bert(replace(shape, left_to_right=causal), classes=2, lstm=units),
            OptimizerOptions(),
            total_steps=1000,
            seed=0,
            dtype=DTYPES[options.precision],
        )
        for name, (causal, units) in NETWORKS.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in NETWORKS}
    for step in range(NOT_COUNTED + options.rounds):
        for name, trainer in trainers.items():
            start = time.process_time()
            trainer.step(step, [batch], task_loss("class", SEQUENCES))
            seconds[name].append(time.process_time() - start)
    print(f"{options.precision}, {int(batch.inputs.bounds[-1]):,} tokens a step, CPU seconds:")
    for name, own in seconds.items():
        counted = own[NOT_COUNTED:]
        shown = " ".join(f"{value:.3f}" for value in counted)
        print(f"{name}: median {statistics.median(counted):.3f} ({shown})")


if __name__ == "__main__":
    main()
