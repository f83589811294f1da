"""Measure how fast batches are made, and check their statistics against the definitions.

    OMP_NUM_THREADS=1 python scripts/measure_batches.py corpus --instances 100000 --out figures

For each kind of sequence and length: tokens per second of CPU time and of wall time on one core
(creating an epoch's instances, reading, masking and torch tensors included), and statistics over
this many instances. Whole epochs of next-sentence pairs are compared with the original generator's
rules, applied one sentence at a time with Python's own random numbers. Prints Markdown, and writes
a figure for each length.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray

from bothways.corpus.store import TokenStore
from bothways.model.batch import PretrainingBatch
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.instances import create_instances
from bothways.pretraining.options import MaskOptions, PairOptions
from bothways.training.options import MaskKind, PairKind, Phase

matplotlib.use("Agg")
import matplotlib.pyplot as plt

KINDS: tuple[PairKind, ...] = ("next", "order", "full", "single")
MICRO_BATCH = {128: 64, 512: 16}
Counts = NDArray[np.int64]


@dataclass
class Statistics:
    """Counts over instances at one length."""

    length: int
    sequences: int = 0
    tokens: int = 0
    ones: int = 0
    labels: int = 0
    targets: int = 0
    as_mask: int = 0
    kept: int = 0
    without_target: int = 0
    expected_targets: float = 0.0
    lengths: Counts = field(init=False)
    segments: tuple[Counts, Counts] = field(init=False)
    places: Counts = field(init=False)
    full_sequences: int = 0

    def __post_init__(self) -> None:
        self.lengths, self.places = (np.zeros(self.length + 1, dtype=np.int64) for _ in "ab")
        self.segments = (self.lengths.copy(), self.lengths.copy())

    def add(self, batch: PretrainingBatch, mask_id: int) -> None:
        """Count a micro-batch."""
        bounds, count = batch.inputs.bounds, batch.masked.count
        lengths, at = batch.inputs.lengths, batch.masked.positions.numpy()[:count]
        shown, ids = batch.inputs.tokens.numpy(), batch.masked.ids.numpy()[:count]
        self.sequences += len(lengths)
        self.tokens += int(bounds[-1])
        self.lengths += np.bincount(lengths, minlength=self.length + 1)
        if batch.random_next is not None:
            self.labels += len(lengths)
            self.ones += int(batch.random_next.sum())
        second = np.add.reduceat(batch.inputs.segments.numpy()[: bounds[-1]], bounds[:-1])
        self.segments[0][:] += np.bincount(lengths - second, minlength=self.length + 1)
        self.segments[1][:] += np.bincount(second, minlength=self.length + 1)
        row = np.searchsorted(bounds, at, side="right") - 1
        self.targets += count
        self.as_mask += int((shown[at] == mask_id).sum())
        self.kept += int((shown[at] == ids).sum())
        self.without_target += len(lengths) - len(np.unique(row))
        self.expected_targets += float(np.maximum(np.rint(lengths * 0.15), 1).sum())
        full = lengths == self.length
        self.full_sequences += int(full.sum())
        place = (at - bounds[:-1][row])[full[row]]
        self.places += np.bincount(place, minlength=self.length + 1)


@dataclass(frozen=True)
class Speed:
    """Tokens per second; ``epoch`` is the CPU time of creating an epoch's instances."""

    cpu: float
    wall: float
    epoch: float


def measure(
    store: TokenStore, kind: PairKind, masks: MaskKind, length: int, instances: int
) -> tuple[Speed, Statistics]:
    """Speed and statistics of one kind at one length."""
    batches = PhaseBatches(
        store,
        Phase(length=length, batch=256, micro_batch=MICRO_BATCH.get(length, 32)),
        pairs=PairOptions(kind=kind),
        masking=MaskOptions(kind=masks),
        seed=0,
    )
    batches.micro_batches(0)  # imports, page cache of the first shard
    epoch_size = len(batches.instances(0))
    start = time.process_time(), time.perf_counter()
    batches.instances(1)
    creating = time.process_time() - start[0], time.perf_counter() - start[1]
    steps = max(1, min(instances, epoch_size) // 256)  # one epoch at most: creates no other
    start, tokens = (time.process_time(), time.perf_counter()), 0
    for step in range(steps):
        tokens += sum(int(batch.inputs.bounds[-1]) for batch in batches.micro_batches(step))
    spent = time.process_time() - start[0], time.perf_counter() - start[1]
    share = steps * 256 / epoch_size
    cpu, wall = (tokens / (s + share * c) for s, c in zip(spent, creating, strict=True))
    found = Statistics(length)
    for step in range(-(-instances // 256)):
        for batch in batches.micro_batches(step):
            found.add(batch, store.tokenizer.mask_id)
    return Speed(cpu, wall, creating[0]), found


# ------------------------------------------- the original's rules, one sentence at a time


def original(
    documents: list[list[int]], length: int, rng: random.Random
) -> Iterator[tuple[int, int, bool]]:
    """For each instance of an epoch: the tokens of A and B, and whether B is random."""
    limit = length - 3
    for index, document in enumerate(documents):
        target = rng.randint(2, limit) if rng.random() < 0.1 else limit
        chunk: list[int] = []
        i = 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(chunk) >= target:
                cut = 1 if len(chunk) < 2 else rng.randint(1, len(chunk) - 1)
                a, b = sum(chunk[:cut]), sum(chunk[cut:])
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    b = _random_text(rng, documents, index, target - a)
                    i -= len(chunk) - cut
                yield (*_cut(a, b, limit), is_random)
                chunk = []
            i += 1


def _random_text(rng: random.Random, documents: list[list[int]], index: int, wanted: int) -> int:
    other = rng.randrange(len(documents) - 1)
    text, tokens = documents[other + (other >= index)], 0
    for sentence in text[rng.randrange(len(text)) :]:
        tokens += sentence
        if tokens >= wanted:
            break
    return tokens


def _cut(a: int, b: int, limit: int) -> tuple[int, int]:
    while a + b > limit:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    return a, b


def compare_epochs(store: TokenStore, length: int, epochs: int) -> list[str]:
    """Whole epochs of :func:`original` and of ours: mean and standard deviation over epochs.

    Documents differ in size and one in ten is short, so single epochs differ by more than their
    number of instances would suggest.
    """
    limit, ends = length - 3, store.sentence_bounds
    documents = [
        np.diff(ends[a : b + 1]).tolist() for a, b in pairwise(store.document_bounds.tolist())
    ]
    rng = random.Random(1)
    summaries: dict[str, list[tuple[float, ...]]] = {"the original's rules": [], "bothways": []}
    for epoch in range(epochs):
        theirs = np.array(list(original(documents, length, rng)))
        tokens = theirs[:, 0] + theirs[:, 1]
        summaries["the original's rules"].append(_summary(tokens, limit, theirs[:, 2]))
        ours = create_instances(store, length=length, options=PairOptions(), seed=7, epoch=epoch)
        assert ours.b is not None
        assert ours.label is not None
        tokens = np.diff(ends[ours.a])[:, 0] + np.diff(ends[ours.b])[:, 0]
        summaries["bothways"].append(_summary(np.minimum(tokens, limit), limit, ours.label))
    lines = [f"| {epochs} epochs | instances | tokens each | under full length | label 1 |"]
    lines.append("|---|---|---|---|---|")
    for name, epoch_values in summaries.items():
        mean, deviation = np.mean(epoch_values, axis=0), np.std(epoch_values, axis=0, ddof=1)
        cells = [f"{m:,.4g} ± {d:.2g}" for m, d in zip(mean[1:], deviation[1:], strict=True)]
        lines.append(f"| {name} | {mean[0]:,.0f} ± {deviation[0]:.0f} | {' | '.join(cells)} |")
    return lines


def _summary(text: Counts, limit: int, label: NDArray[np.generic]) -> tuple[float, ...]:
    return len(text), text.mean() + 3, 100 * (text < limit).mean(), 100 * label.astype(bool).mean()


# ------------------------------------------------------------------------------------- printing


def row(name: str, found: Statistics) -> str:
    """A row of the table of statistics."""
    full = found.full_sequences * 1.0
    mean = [
        float((np.arange(found.length + 1) * c).sum() / found.sequences) for c in found.segments
    ]
    cells = [
        name,
        f"{found.sequences:,}",
        f"{found.tokens / found.sequences:.2f}",
        f"{1 - found.lengths[found.length] / found.sequences:.2%}",
        f"{found.lengths[: found.length // 2].sum() / found.sequences:.2%}",
        f"{found.ones / found.labels:.2%}" if found.labels else "",
        f"{mean[0]:.2f} / {mean[1]:.2f}",
    ]
    if found.targets:
        random_word = found.targets - found.as_mask - found.kept
        inner = found.places[1 : found.length - 1] / max(full, 1)
        cells += [
            f"{found.targets / found.tokens:.3%}",
            f"{found.expected_targets / found.tokens:.3%}",
            f"{found.without_target}",
            f"{found.as_mask / found.targets:.2%} / {random_word / found.targets:.2%} / "
            f"{found.kept / found.targets:.2%}",
            f"{inner.min():.4f} to {inner.max():.4f}",
        ]
    return "| " + " | ".join(cells + [""] * (12 - len(cells))) + " |"


HEAD = """\
| kind, masks | instances | tokens each | under full length | under half | label 1 | mean A / B | \
targets | by definition | without target | [MASK] / random / kept | chosen at each position |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def draw(path: Path, found: dict[str, Statistics]) -> None:
    """Plot the lengths of sequences and segments, and targets by position; a row per kind."""
    figure, axes = plt.subplots(len(found), 3, figsize=(13, 2.4 * len(found)), squeeze=False)
    for line, (name, own) in zip(axes, found.items(), strict=True):
        x = np.arange(own.length + 1)
        line[0].semilogy(x, np.maximum(own.lengths / own.sequences, 1e-6), drawstyle="steps-mid")
        line[0].set_ylabel(name)
        for label, counts in zip("AB", own.segments, strict=True):
            if counts[1:].any():
                line[1].plot(x[1:], counts[1:] / own.sequences, label=label)
        line[1].legend()
        if own.full_sequences:
            line[2].plot(x[:-1], own.places[:-1] / own.full_sequences)
            line[2].set_ylim(0, 0.25)
    for axis, title in zip(
        axes[0],
        (
            "sequences of each length",
            "segments of each length",
            "targets at each position",
        ),
        strict=True,
    ):
        axis.set_title(title)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus")
    parser.add_argument("--instances", type=int, default=100_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("figures"))
    chosen = parser.parse_args()
    store = TokenStore.open(chosen.corpus)
    chosen.out.mkdir(parents=True, exist_ok=True)
    print(f"{store.documents:,} documents, {store.sentences:,} sentences, {store.tokens:,} tokens")
    for length in chosen.lengths:
        speeds, found = [], {}
        for kind in KINDS:
            for masks in ("pieces", "words") if kind in ("next", "single") else ("pieces",):
                name = f"{kind}, {masks}"
                speed, found[name] = measure(store, kind, masks, length, chosen.instances)
                cells = (f"{speed.cpu / 1e6:.2f}", f"{speed.wall / 1e6:.2f}", f"{speed.epoch:.3f}")
                speeds.append(f"| {name} | {' | '.join(cells)} |")
        print(f"\n## Length {length}\n")
        print("| kind, masks | M tokens / CPU s | M tokens / s | epoch, CPU s |")
        print("|---|---|---|---|", *speeds, sep="\n")
        print("", HEAD, *(row(name, own) for name, own in found.items()), sep="\n", flush=True)
        if store.documents > 1 and chosen.epochs > 1:
            print("", *compare_epochs(store, length, chosen.epochs), sep="\n", flush=True)
        draw(chosen.out / f"batches-{length}.png", found)


if __name__ == "__main__":
    main()
