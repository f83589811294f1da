"""The whole path, on the command line alone: text to a fine-tuned model that is put to use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers

from bothways import cli

PLACES = ["harbour", "market", "forest", "station"]
ANIMALS = ["dog", "cat", "horse", "goose", "fox"]
Run = Callable[..., str]


@pytest.fixture
def bothways(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a verb that must succeed; gives what it prints on standard output."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*words: str | Path) -> str:
        capsys.readouterr()
        status = cli.main([str(word) for word in words])
        shown = capsys.readouterr()
        assert status == 0, shown.err
        return shown.out

    return run


def write_text(path: Path) -> None:
    """Little stories, each about one animal in one place, so that next sentences can be told."""
    stories = []
    for n in range(120):
        animal, place = ANIMALS[n % 5], PLACES[n // 5 % 4]
        stories.append(
            f"The {animal} number {n} lives at the {place}.\n"
            f"Every day the {animal} walks around the {place}.\n"
            f"At night the {animal} sleeps near the {place} again.\n"
        )
    path.write_text("\n".join(stories))


def write_task(path: Path, start: int, count: int) -> None:
    """Is the animal a bird?"""
    lines = ["id\tsentence\tlabel"]
    for n in range(start, start + count):
        animal = "goose" if n % 2 else ANIMALS[n // 2 % 3]
        label = "bird" if n % 2 else "none"
        lines.append(f"{n}\tNumber {n}, the {animal} of the {PLACES[n % 3]}.\t{label}")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_text_to_a_model_in_use(bothways: Run, tmp_path: Path) -> None:
    text, corpus, run = tmp_path / "text.txt", tmp_path / "corpus", tmp_path / "run"
    write_text(text)
    said = bothways("vocab", "--files", text, "--size", "150", "--out", tmp_path / "vocabulary")
    assert "likelihood" in said
    argv = ("--files", text, "--tokenizer", tmp_path / "vocabulary", "--out", corpus)
    said = bothways("corpus", *argv, "--heldout", "0.1")
    assert "train" in said

    phases = "[{length: 32, share: 1.0, batch: 32, micro_batch: 32}]"
    pretrain = [
        *("pretrain", "tiny", "--corpus", corpus, "--run", run, "--phases", phases),
        *("--steps", "60", "--evaluate-every", "30"),
        *("--hidden", "64", "--precision", "fp32", "--threads", "1"),
    ]
    said = bothways(*pretrain)
    model = run / "model"
    assert f"model: {model}" in said
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [r["heldout_mlm_loss"] for r in records if "heldout_mlm_loss" in r]
    assert losses[-1] < losses[0] - 1
    before = (model / "model.safetensors").read_bytes()
    assert f"model: {model}" in bothways(*pretrain)  # finished: nothing is trained again
    assert (model / "model.safetensors").read_bytes() == before

    said = bothways("fill-mask", model, "Every day the [MASK] walks around the market.")
    assert len(re.findall(r"^ +\d+\.\d%  \S+ +Every day", said, re.MULTILINE)) == 5
    said = bothways("next-sentence", model, "The dog lives at the harbour.", "Every day it walks.")
    assert re.fullmatch(r"follows: \d+\.\d%   random: \d+\.\d%\n", said)

    for name, start, count in [("train", 0, 160), ("dev", 160, 60), ("test", 220, 30)]:
        write_task(tmp_path / f"{name}.tsv", start, count)
    files = [w for n in ("train", "dev") for w in (f"--{n}", tmp_path / f"{n}.tsv")]
    tuned = tmp_path / "tuned"
    said = bothways(
        *(
            "finetune",
            "--model",
            model,
            "--run",
            tuned,
            *files,
            "--max-length",
            "32",
            "--epochs",
            "8",
        ),
        *("--lr", "2e-3", "--batch-size", "16", "--precision", "fp32", "--threads", "1"),
    )
    assert "accuracy" in said
    tuned_model = tuned / "seed-0" / "model"

    out = tmp_path / "predictions.tsv"
    bothways("predict", tuned_model, "--file", tmp_path / "test.tsv", "--out", out)
    header, *rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert header == ["index", "prediction", "p(bird)", "p(none)"]
    gold = [line.split("\t")[2] for line in (tmp_path / "test.tsv").read_text().splitlines()[1:]]
    right = np.mean([row[1] == label for row, label in zip(rows, gold, strict=True)])
    assert right > 0.9
    said = bothways("evaluate", tuned_model, tmp_path / "test.tsv")
    assert f"accuracy: {right:.4f}\n" in said

    bothways("embed", model, "A dog.", "The fox.", "--out", tmp_path / "vectors.npz")
    with np.load(tmp_path / "vectors.npz") as stored:
        assert stored["embeddings"].shape == (2, 64)
    bothways("convert", tuned_model, tmp_path / "copy")
    copied = (tmp_path / "copy" / "model.safetensors").read_bytes()
    assert copied == (tuned_model / "model.safetensors").read_bytes()
    for folder in (corpus, run, model, tuned, tuned_model, tmp_path / "copy"):
        assert bothways("info", folder, "--check") == f"{folder}: sound\n"
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "copy")
    assert theirs.config.id2label == {0: "bird", 1: "none"}
