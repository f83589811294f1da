"""A BiLSTM between encoder and task head: what is read, trained, saved, loaded and refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bothways.api.model import Model
from bothways.errors import ConfigError, ModelError, RunError
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.setup import new_model
from bothways.model.batch import collate
from bothways.model.engine import network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.start import starting_model
from bothways.runtime.ensemble import load_ensemble
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import evaluate_file, predict_texts
from bothways.tasks.kinds import task_of
from bothways.tasks.options import TaskOptions
from bothways.tasks.texts import LabelTask
from finetuning_examples import VOCABULARY, start_model, word_config, word_files
from model_examples import POSITIONS, SHAPES, small_bert, small_config, small_tokenizer

pytestmark = pytest.mark.usefixtures("several_tiles")

UNITS = 16  # twice that is the hidden size, so that shapes alone would not tell a head apart
ROWS = [[5, 6, 7, 8], [9], [10, 11, 12]]
HEADS: list[dict[str, Any]] = [{"classes": 3}, {"tags": 3}, {"spans": True}]


def inputs_of(rows: list[list[int]]) -> Any:
    return collate(rows, [[0] * len(row) for row in rows], max_positions=POSITIONS)


# --------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("left_to_right", [False, True])
@torch.no_grad()
def test_a_classifier_reads_the_ends_of_both_directions(left_to_right: bool) -> None:
    config = small_config(SHAPES[1], left_to_right=left_to_right)
    model = small_bert(config, classes=3, lstm=UNITS)
    inputs = inputs_of(ROWS)
    states = model.task_vectors(inputs, inputs.starts)
    assert states.shape == (3, 2 * UNITS)
    assert model.lstm is not None
    lstm = model.lstm.layers[0]
    x_TH = model.encoder(inputs)
    for row, start, stop in zip(states, inputs.bounds, inputs.bounds[1:], strict=False):
        _, (final, _) = lstm(x_TH[None, start:stop])  # the library's own last states
        torch.testing.assert_close(row, final.flatten())
    logits = model.task_logits(states)
    torch.testing.assert_close(logits, model.classifier.output(states))  # type: ignore[union-attr]


@torch.no_grad()
def test_other_heads_read_its_outputs() -> None:
    model = small_bert(small_config(SHAPES[1]), tags=3, lstm=UNITS)
    inputs, at = inputs_of(ROWS), torch.tensor([1, 3, 4, 6])
    assert model.lstm is not None
    x_T2U = model.lstm(model.encoder(inputs)[:8], [4, 1, 3])
    torch.testing.assert_close(model.task_vectors(inputs, at), x_T2U[at])
    torch.testing.assert_close(model.task_vectors(inputs, torch.arange(8)), x_T2U)
    alone = model.task_vectors(inputs_of(ROWS[2:]), torch.arange(3))
    torch.testing.assert_close(x_T2U[5:], alone, msg="sequences do not mix")


@pytest.mark.parametrize("heads", HEADS)
def test_everything_below_the_head_is_trained(heads: dict[str, Any]) -> None:
    model = small_bert(small_config(SHAPES[1]), lstm=UNITS, **heads).train()
    inputs = inputs_of(ROWS)
    at = inputs.starts if "classes" in heads else torch.arange(8)
    model.task_logits(model.task_vectors(inputs, at, dtype=torch.bfloat16)).sum().backward()
    without = {n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert without <= {"encoder.embeddings.segments.weight"}
    assert model.encoder.pooler is None


def test_it_is_drawn_by_the_seed() -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        model = EncoderModel(small_config(SHAPES[1]), classes=2, lstm=UNITS, seed=seed)
        assert model.lstm is not None
        return model.lstm.state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert len(first) == 8
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert not torch.equal(value, other[name])
        assert float(value.abs().max()) <= 1 / UNITS**0.5
    without = EncoderModel(small_config(SHAPES[1]), classes=2, seed=1)
    assert without.lstm is None
    assert without.lstm_units == 0


# ------------------------------------------------------------------------------- model folders


@pytest.mark.parametrize("left_to_right", [False, True])
@pytest.mark.parametrize("heads", HEADS)
@torch.no_grad()
def test_saved_and_loaded(heads: dict[str, Any], left_to_right: bool, tmp_path: Path) -> None:
    config = small_config(SHAPES[1], left_to_right=left_to_right)
    model = small_bert(config, lstm=UNITS, **heads)
    save_model(tmp_path / "m", model, small_tokenizer(128))
    loaded = load_model(tmp_path / "m")
    assert (loaded.unused, loaded.fresh) == ([], [])
    assert loaded.config == config
    assert loaded.about["lstm"] == network_of(loaded).lstm_units == UNITS
    theirs = network_of(loaded).state_dict()
    assert theirs.keys() == model.state_dict().keys()
    assert all(torch.equal(value, theirs[name]) for name, value in model.state_dict().items())


def test_transformers_refuses_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = small_bert(small_config(SHAPES[1]), classes=2, lstm=UNITS)
    save_model(tmp_path / "m", model, small_tokenizer(128))
    with pytest.raises(ValueError, match="`bothways-bert-bilstm`"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    # The class itself would take any BERT; it does not find a head that fits by its shape alone.
    _, info = transformers.BertForSequenceClassification.from_pretrained(
        tmp_path / "m", output_loading_info=True
    )
    pooler = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias", *pooler}
    assert "automatic classes refuse" in load_model(tmp_path / "m").about["transformers"]


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("lstm.layers.0.weight_hh_l0", "lacks 2 of the weights.*lstm.layers.0.weight_hh_l0"),
        ("lstm.classifier", "a BiLSTM but no head on top of it"),
    ],
)
def test_a_damaged_one_is_refused(prefix: str, said: str, tmp_path: Path) -> None:
    model = small_bert(small_config(SHAPES[1]), classes=2, lstm=UNITS)
    save_model(tmp_path / "m", model, small_tokenizer(128))
    path = tmp_path / "m/model.safetensors"
    kept = {name: w for name, w in load_file(path).items() if not name.startswith(prefix)}
    save_file(kept, path)
    with pytest.raises(ModelError, match=said):
        load_model(tmp_path / "m")


def test_other_peoples_lstms_stay_unused(tmp_path: Path) -> None:
    save_model(tmp_path / "m", small_bert(small_config(SHAPES[1])), small_tokenizer(128))
    path = tmp_path / "m/model.safetensors"
    save_file({**load_file(path), "lstm.weight_ih_l0": torch.zeros(8, 32)}, path)
    loaded = load_model(tmp_path / "m")
    assert loaded.unused == ["lstm.weight_ih_l0"]
    assert network_of(loaded).lstm is None


# ---------------------------------------------------------------------------------- fine-tuning


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.tsv, dev.tsv, test.tsv and a model folder. Read only."""
    folder = tmp_path_factory.mktemp("files")
    start_model(folder)
    return word_files(folder)


def config_of(files: Path, run: Path, **changes: Any) -> FinetuneConfig:
    base = word_config(files / "model", files, run)
    return replace(base, epochs=6, batch_size=16, lstm=UNITS, **changes)


@pytest.fixture(scope="module")
def tuned(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return finetune(config_of(files, tmp_path_factory.mktemp("tuned") / "run", seeds=(0, 1)))


def test_it_learns_and_serves(tuned: Any, files: Path) -> None:
    for seed in tuned.seeds:
        loaded = load_model(seed.model)
        assert network_of(loaded).lstm_units == UNITS
        assert seed.measurement.scores["accuracy"] > 0.9
        measured = evaluate_file(loaded, files / "dev.tsv").scores
        assert measured == pytest.approx(seed.measurement.scores)
        found = predict_texts(loaded, ["w20 w7 w31", "w20 w9 w31"])
        assert found.labels == ["with", "without"]
        assert np.isfinite(Model(loaded).embed(["w20 w7"])).all()
    both = predict_texts(load_ensemble([tuned.run]), ["w20 w7 w31", "w20 w9 w31"])
    assert both.labels == ["with", "without"]


def test_the_option_is_part_of_the_recipe(tuned: Any, files: Path) -> None:
    config = config_of(files, tuned.run, seeds=(0, 1))
    assert [s.model for s in finetune(config).seeds] == [s.model for s in tuned.seeds]
    with pytest.raises(RunError, match="lstm: 16 in the folder, 8 requested"):
        finetune(replace(config, lstm=8))
    with pytest.raises(ConfigError, match="lstm is -1; it must be at least 0"):
        FinetuneConfig(lstm=-1)


def test_head_seeds_draw_it(files: Path) -> None:
    loaded = load_model(files / "model")
    config = config_of(files, files / "unused")
    task = LabelTask(TaskOptions(labels=("a", "b"), metrics=("accuracy",)))

    def weights(seed: int) -> torch.Tensor:
        model = new_model(loaded, config, task, seed)
        assert model.lstm is not None
        return next(model.lstm.parameters())

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_going_on_keeps_or_drops_it(tuned: Any, files: Path, tmp_path: Path) -> None:
    start = load_model(tuned.seeds[0].model)
    task = task_of(start)
    config = config_of(files, tmp_path / "run", head="keep")
    kept = new_model(start, config, task, seed=9)
    assert kept.lstm is not None
    theirs = network_of(start).lstm.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(v, theirs[n]) for n, v in kept.lstm.state_dict().items())
    assert new_model(start, replace(config, head="new", lstm=0), task, seed=9).lstm is None
    for units in (0, 8):
        with pytest.raises(ConfigError, match=f"these labels with lstm {units}; set head to new"):
            new_model(start, replace(config, lstm=units), task, seed=9)


def test_pre_training_takes_the_encoder_alone(tuned: Any) -> None:
    model_folder = tuned.seeds[0].model

    class Store:
        tokenizer = load_model(model_folder).tokenizer

    config = PretrainConfig(start=str(model_folder))
    phases = (replace(config.phases[0], length=16, share=1.0),)
    model = starting_model(replace(config, phases=phases), Store())  # type: ignore[arg-type]
    assert model.lstm is None
    assert model.task_head is None


@pytest.mark.parametrize("kind", ["tagging", "spans", "choice", "regression"])
def test_other_kinds_of_tasks(kind: str, files: Path, tmp_path: Path) -> None:
    options = {"tagging": tagging, "spans": spans, "choice": choice, "regression": regression}
    task = options[kind](tmp_path)
    config = replace(
        word_config(files / "model", files, tmp_path / "run"),
        task=task,
        max_length=24,
        batch_size=8,
    )
    result = finetune(replace(config, lstm=8, epochs=2))
    loaded = load_model(result.seeds[0].model)
    assert network_of(loaded).lstm_units == 8
    assert task_of(loaded).options.kind == kind
    measured = evaluate_file(loaded, task.dev).scores
    assert measured == pytest.approx(result.seeds[0].measurement.scores, abs=1e-6)


def words(rng: np.random.Generator, count: int) -> list[str]:
    return [f"w{i}" for i in rng.integers(8, VOCABULARY - 10, count)]


def tagging(folder: Path) -> TaskOptions:
    rng = np.random.default_rng(0)
    for name in ("train.conll", "dev.conll"):
        blocks = [
            "\n".join(f"{w} {'B-X' if int(w[1:]) % 3 == 0 else 'O'}" for w in words(rng, 6))
            for _ in range(24)
        ]
        (folder / name).write_text("\n\n".join(blocks) + "\n")
    return TaskOptions(
        kind="tagging", train=str(folder / "train.conll"), dev=str(folder / "dev.conll")
    )


def spans(folder: Path) -> TaskOptions:
    rng = np.random.default_rng(0)
    for name in ("train.json", "dev.json"):
        paragraphs = []
        for i in range(24):
            own = words(rng, 8)
            context, at = " ".join(own), int(rng.integers(8))
            start = len(" ".join([*own[:at], ""]))
            answer = {"text": own[at], "answer_start": start}
            qa = {"id": str(i), "question": own[at], "answers": [answer]}
            paragraphs.append({"context": context, "qas": [qa]})
        (folder / name).write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return TaskOptions(kind="spans", train=str(folder / "train.json"), dev=str(folder / "dev.json"))


def choice(folder: Path) -> TaskOptions:
    rng = np.random.default_rng(0)
    for name in ("train.jsonl", "dev.jsonl"):
        rows = [
            {"text": "w1", "endings": [" ".join(words(rng, 3)) for _ in range(2)], "label": "1"}
            for _ in range(24)
        ]
        (folder / name).write_text("\n".join(map(json.dumps, rows)) + "\n")
    return TaskOptions(
        kind="choice",
        train=str(folder / "train.jsonl"),
        dev=str(folder / "dev.jsonl"),
        text="text",
        choices=("endings",),
    )


def regression(folder: Path) -> TaskOptions:
    rng = np.random.default_rng(0)
    for name in ("train.jsonl", "dev.jsonl"):
        rows = [
            {"sentence": " ".join(words(rng, 5)), "label": float(rng.random())} for _ in range(24)
        ]
        (folder / name).write_text("\n".join(map(json.dumps, rows)) + "\n")
    return TaskOptions(
        kind="regression", train=str(folder / "train.jsonl"), dev=str(folder / "dev.jsonl")
    )
