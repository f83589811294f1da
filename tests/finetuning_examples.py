"""Small tasks, a small starting model and a short recipe that the tests of fine-tuning share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from bothways.finetuning.options import FinetuneConfig
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.tasks.options import TaskOptions
from bothways.training.options import OptimizerOptions
from model_examples import BOTH_HEADS, small_config, small_tokenizer

VOCABULARY = 97
SHAPE = (2, 32, 4, 64, VOCABULARY)
MAGIC = "w7"
FAST = OptimizerOptions(lr=3e-3, warmup=0.1, bias_correction=True)


def words(rng: np.random.Generator, count: int) -> list[str]:
    return [f"w{i}" for i in rng.integers(8, 90, count)]


def word_task(folder: Path, count: int, seed: int, name: str) -> Path:
    """Is ``w7`` among the words?"""
    rng = np.random.default_rng(seed)
    lines = ["sentence\tlabel"]
    for i in range(count):
        text = words(rng, int(rng.integers(3, 10)))
        if i % 2:
            text[rng.integers(len(text))] = MAGIC
        lines.append(f"{' '.join(text)}\t{'with' if i % 2 else 'without'}")
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def pair_scores(folder: Path, count: int, seed: int, name: str) -> Path:
    """How many of three places hold ``w7``, over both texts."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        a, b = words(rng, 4), words(rng, 5)
        score = int(rng.integers(0, 4))
        for text, place in list(zip((a, b, b), (1, 0, 3), strict=True))[:score]:
            text[place] = MAGIC
        lines.append(json.dumps({"one": " ".join(a), "two": " ".join(b), "score": score / 2}))
    path = folder / name
    path.write_text("\n".join(lines))
    return path


def start_model(folder: Path) -> Path:
    """A model folder as pre-training leaves it."""
    model = EncoderModel(small_config(SHAPE), **BOTH_HEADS, seed=11)
    save_model(folder / "model", model, small_tokenizer(VOCABULARY))
    return folder / "model"


def word_files(folder: Path) -> Path:
    """train.tsv, dev.tsv and test.tsv of :func:`word_task`."""
    word_task(folder, 192, 0, "train.tsv")
    word_task(folder, 64, 1, "dev.tsv")
    word_task(folder, 20, 2, "test.tsv")
    return folder


def word_config(start: Path, data: Path, run: Path) -> FinetuneConfig:
    """One short epoch on :func:`word_files`."""
    return FinetuneConfig(
        task=TaskOptions(
            name="word",
            train=str(data / "train.tsv"),
            dev=str(data / "dev.tsv"),
            test=str(data / "test.tsv"),
        ),
        model=str(start),
        run=str(run),
        epochs=1,
        batch_size=48,
        max_length=16,
        optimizer=FAST,
        precision="fp32",
        threads=1,
    )


def weights(run: str | Path, seed: int = 0) -> dict[str, torch.Tensor]:
    return load_file(Path(run) / f"seed-{seed}" / "model" / "model.safetensors")


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
