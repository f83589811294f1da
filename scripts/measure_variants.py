"""CPU time of a fine-tuning step of a mini encoder: bidirectional, left to right, with a BiLSTM.

    python scripts/measure_variants.py --precision bf16

The networks train on the same batch of random sequences in turn, on one thread. Measured is the
CPU time of the process, which other programs disturb less than wall time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np

from bothways.families.options import SizeOptions
from bothways.model.device import DTYPES, set_threads
from bothways.model.model import EncoderModel
from bothways.objectives.labelled import LabelledExamples
from bothways.tasks.examples import Examples, TaskBatch
from bothways.training.options import OptimizerOptions
from bothways.training.trainer import Trainer, step_loss

SEQUENCES, SHORTEST, LONGEST, VOCABULARY = 32, 10, 60, 16_384
WARM_UP = 2
# By name: left to right or not, units of the BiLSTM.
NETWORKS = {
    "both ways": (False, 0),
    "left to right": (True, 0),
    "BiLSTM of 256": (False, 256),
}


def make_batch() -> TaskBatch:
    """A batch of random sequences with two classes."""
    rng = np.random.default_rng(0)
    bounds = np.cumsum([0, *rng.integers(SHORTEST, LONGEST, SEQUENCES)])
    tokens = rng.integers(5, VOCABULARY, bounds[-1]).astype(np.int32)
    examples = Examples.of_sequences(tokens, np.zeros(len(tokens), np.int8), bounds)
    labelled = examples.with_targets(rng.integers(0, 2, SEQUENCES))
    return labelled.batch(np.arange(SEQUENCES), max_positions=512)


def main() -> None:
    """Measure, and print every repetition and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="bf16", help="bf16 or fp32 (bf16)")
    parser.add_argument("--rounds", type=int, default=7, help="steps to measure (7)")
    options = parser.parse_args()
    set_threads(1)
    shape, batch = SizeOptions(size="mini").resolve(VOCABULARY), make_batch()
    trainers: dict[str, Trainer[TaskBatch]] = {
        name: Trainer(
            EncoderModel(replace(shape, left_to_right=causal), classes=2, lstm=units),
            OptimizerOptions(),
            total_steps=1000,
            seed=0,
            dtype=DTYPES[options.precision],
        )
        for name, (causal, units) in NETWORKS.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in NETWORKS}
    for step in range(WARM_UP + options.rounds):
        for name, trainer in trainers.items():
            start = time.process_time()
            trainer.step(step, [batch], step_loss([batch], LabelledExamples("class")))
            seconds[name].append(time.process_time() - start)
    print(f"{options.precision}, {int(batch.inputs.bounds[-1]):,} tokens per step, CPU seconds:")
    for name, times in seconds.items():
        counted = times[WARM_UP:]
        shown = " ".join(f"{value:.3f}" for value in counted)
        print(f"{name}: median {statistics.median(counted):.3f} ({shown})")


if __name__ == "__main__":
    main()
