"""Small tasks of several labels and of several scores that tests share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bothways.finetuning.options import FinetuneConfig
from bothways.tasks.options import TaskOptions
from finetuning_examples import FAST, words

MAGIC_WORDS = {"red": "w7", "green": "w6", "blue": "w5"}


def labelled_texts(count: int, seed: int) -> list[tuple[str, list[str]]]:
    """Which of ``w7``, ``w6`` and ``w5`` are among the words? In a quarter of the texts, none."""
    rng = np.random.default_rng(seed)
    examples = []
    for i in range(count):
        text = words(rng, int(rng.integers(3, 8)))
        names = [name for name in MAGIC_WORDS if i % 4 and rng.random() < 0.5]
        for name in names:
            text.insert(int(rng.integers(len(text))), MAGIC_WORDS[name])
        examples.append((" ".join(text), names))
    return examples


def label_files(folder: Path, counts: tuple[int, int, int] = (256, 64, 20)) -> Path:
    """train.jsonl, dev.jsonl and test.jsonl, with lists of labels."""
    for seed, (name, count) in enumerate(zip(("train", "dev", "test"), counts, strict=True)):
        lines = [
            json.dumps({"sentence": text, "label": labels})
            for text, labels in labelled_texts(count, seed)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def score_files(folder: Path, counts: tuple[int, int] = (256, 64)) -> Path:
    """train.tsv and dev.tsv, with a column for each of two scores: of colours, and of words."""
    for seed, (name, count) in enumerate(zip(("train", "dev"), counts, strict=True)):
        lines = ["sentence\tcolour\twarmth"]
        for text, labels in labelled_texts(count, seed):
            lines.append(f"{text}\t{len(labels) / 2}\t{('red' in labels) - ('blue' in labels)}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def label_config(start: Path, data: Path, run: Path) -> FinetuneConfig:
    """A few epochs on :func:`label_files`."""
    return FinetuneConfig(
        task=TaskOptions(
            name="colours",
            kind="multilabel",
            train=str(data / "train.jsonl"),
            dev=str(data / "dev.jsonl"),
            test=str(data / "test.jsonl"),
        ),
        model=str(start),
        run=str(run),
        epochs=8,
        batch_size=16,
        max_length=16,
        optimizer=FAST,
        precision="fp32",
        threads=1,
    )


def score_config(start: Path, data: Path, run: Path) -> FinetuneConfig:
    """A few epochs on :func:`score_files`."""
    return FinetuneConfig(
        task=TaskOptions(
            name="colours",
            kind="multiregression",
            train=str(data / "train.tsv"),
            dev=str(data / "dev.tsv"),
            label_columns=("colour", "warmth"),
        ),
        model=str(start),
        run=str(run),
        epochs=8,
        batch_size=16,
        max_length=16,
        optimizer=FAST,
        precision="fp32",
        threads=1,
    )
