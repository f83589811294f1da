"""A run's scores and predictions are repeated by `evaluate` and `predict` from its folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bothways import cli
from bothways.errors import NonFiniteError
from bothways.finetuning import setup
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.results import FinetuneResult
from bothways.model.engine import TorchEngine
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import evaluate_file
from bothways.tasks.kinds import KINDS
from bothways.tasks.options import TaskOptions, WindowOptions
from finetuning_examples import FAST, pair_scores, start_model, word_task, words
from model_examples import small_config
from question_examples import word_questions
from several_examples import label_files, score_files


def tagged_words(path: Path, count: int, seed: int) -> Path:
    """``w7`` and the word after it are an entity."""
    rng = np.random.default_rng(seed)
    sentences = []
    for _ in range(count):
        text = words(rng, int(rng.integers(4, 14)))
        place = int(rng.integers(len(text) - 1))
        text[place] = "w7"
        tags = {place: "B-X", place + 1: "I-X"}
        sentences.append("\n".join(f"{w} {tags.get(i, 'O')}" for i, w in enumerate(text)))
    path.write_text("\n\n".join(sentences) + "\n")
    return path


def endings(path: Path, count: int, seed: int) -> Path:
    """The ending with ``w7`` is right."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        right = int(rng.integers(3))
        choices = [" ".join([*words(rng, 3), "w7" if c == right else "w8"]) for c in range(3)]
        rows.append({"context": " ".join(words(rng, 6)), "choices": choices, "label": right})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def task_of_kind(folder: Path, kind: str) -> TaskOptions:
    """A task with files of its own in a folder."""
    parts: dict[str, tuple[int, int]] = {"train": (96, 0), "dev": (64, 1), "test": (33, 2)}
    options: dict[str, Any] = {"kind": kind}
    if kind == "classification":
        files = {p: word_task(folder, *of, f"{p}.tsv") for p, of in parts.items()}
    elif kind == "regression":
        files = {p: pair_scores(folder, *of, f"{p}.jsonl") for p, of in parts.items()}
        options |= {"text": "one", "text_b": "two", "label": "score"}
    elif kind == "multilabel":
        files = {p: folder / f"{p}.jsonl" for p in parts}
        label_files(folder, (96, 64, 33))
    elif kind == "multiregression":
        files = {p: folder / f"{p}.tsv" for p in ("train", "dev")}
        score_files(folder, (96, 64))
        files["test"] = files["dev"].rename(folder / "test.tsv")
        score_files(folder, (96, 64))
        options["label_columns"] = ("colour", "warmth")
    elif kind == "tagging":
        files = {p: tagged_words(folder / f"{p}.conll", *of) for p, of in parts.items()}
    elif kind == "choice":
        files = {p: endings(folder / f"{p}.jsonl", *of) for p, of in parts.items()}
        options |= {"text": "context", "choices": ("choices",)}
    else:
        files = {
            p: word_questions(folder / f"{p}.json", *of, no_answer=True) for p, of in parts.items()
        }
    paths = {part: str(path) for part, path in files.items()}
    return TaskOptions(**paths, **options)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


def run_of(start: Path, folder: Path, kind: str, **changes: Any) -> FinetuneConfig:
    config = FinetuneConfig(
        task=task_of_kind(folder, kind), model=str(start), run=str(folder / "run"), epochs=2,
        batch_size=16, max_length=24, optimizer=FAST, precision="bf16", seeds=(0,),
    )  # fmt: skip
    return dataclasses.replace(config, **changes)


def check_repeated(
    config: FinetuneConfig, result: FinetuneResult, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores are equal in full, and so are the files of predictions."""
    folder = result.run / "seed-0"
    (seed,) = result.seeds
    loaded = load_model(folder / "model")
    assert evaluate_file(loaded, config.task.dev).scores == seed.measurement.scores
    assert loaded.about["dev"] == seed.measurement.scores
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = {k[4:]: v for k, v in records[-1].items() if k.startswith("dev_")}
    metrics = json.loads((folder / "metrics.json").read_text())
    assert last == seed.measurement.scores == metrics["epochs"][-1]
    capsys.readouterr()
    assert cli.main(["evaluate", str(folder / "model"), config.task.dev]) == 0
    shown = capsys.readouterr()
    assert "--precision" not in shown.err
    lines = [line for line in shown.out.splitlines() if ": " in line]  # others are of classes
    printed = dict(line.split(": ") for line in lines)
    assert printed == {k: f"{v:.4f}" for k, v in seed.measurement.scores.items()}
    out = folder / "again" / "test_predictions.tsv"
    out.parent.mkdir()
    words = ["predict", str(folder / "model"), "--file", config.task.test or "", "--out", str(out)]
    assert cli.main(words) == 0
    written = sorted(out.parent.iterdir())
    assert written
    for path in written:
        assert path.read_bytes() == (folder / path.name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_repeats_the_scores_of_training_in_bf16(
    start: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run measured in the precision of training, the verbs in fp32."""
    config = run_of(start, tmp_path, kind, epochs=8, batch_size=8)
    check_repeated(config, finetune(config), capsys)


@pytest.mark.parametrize(
    "changes",
    [
        {"kernels": "plain"},
        {"lstm": 8},
        {"recompute": True},
        {"max_length": 8, "windows": True},
        {"optimizer": dataclasses.replace(FAST, optimizer="lamb")},
    ],
    ids=str,
)
def test_no_option_of_training_changes_how_it_is_measured(
    start: Path, tmp_path: Path, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    windows = changes.pop("windows", False)
    config = run_of(start, tmp_path, "classification", **changes)
    if windows:
        task = dataclasses.replace(config.task, long="windows", windows=WindowOptions(stride=2))
        config = dataclasses.replace(config, task=task)
    check_repeated(config, finetune(config), capsys)


def test_files_added_later_are_measured_in_the_same_way(start: Path, tmp_path: Path) -> None:
    config = run_of(start, tmp_path, "classification")
    finetune(config)
    # Another name: the same sentences as dev.
    (tmp_path / "copy.tsv").write_bytes(Path(config.task.dev).read_bytes())
    task = dataclasses.replace(config.task, measure=(str(tmp_path / "copy.tsv"),))
    (seed,) = finetune(dataclasses.replace(config, task=task)).seeds
    assert seed.further["copy"].scores == seed.measurement.scores
    folder = tmp_path / "run" / "seed-0"
    copied = (folder / "copy_predictions.tsv").read_bytes()
    assert copied == (folder / "dev_predictions.tsv").read_bytes()


def test_a_run_measures_with_the_kernels_of_a_loaded_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They round otherwise, which a model as small as those above does not show."""
    model = EncoderModel(small_config(), classes=2, seed=0)
    model.shared.fast = False
    seen: list[bool] = []

    def look(engine: TorchEngine, *_: object, **__: object) -> None:
        seen.append(engine.network.shared.fast and engine.dtype == torch.float32)
        raise NonFiniteError("damaged")

    monkeypatch.setattr(setup, "predict_outputs", look)
    with pytest.raises(NonFiniteError):
        setup.measured_outputs(TorchEngine(model), None)  # type: ignore[arg-type]
    assert seen == [True]
    assert not model.shared.fast
