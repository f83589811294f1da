"""Left to right as a property of a model: made by pre-training, kept by every later use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bothways.api.model import Model, load
from bothways.errors import ConfigError, ModelError
from bothways.experiments.options import PlanConfig
from bothways.experiments.plan import plan
from bothways.families.options import SizeOptions
from bothways.finetuning.finetune import finetune
from bothways.model.batch import collate
from bothways.model.engine import network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.pretraining.evaluation import evaluate_pretraining
from bothways.pretraining.options import EvaluateOptions, PairOptions, PretrainConfig
from bothways.pretraining.pretrain import pretrain
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import evaluate_file, predict_texts
from bothways.tasks.options import TaskOptions
from bothways.training.options import ClockOptions, OptimizerOptions, Phase
from finetuning_examples import VOCABULARY, word_config, word_task
from model_examples import BOTH_HEADS, SHAPES, small_bert, small_config, small_tokenizer

pytestmark = pytest.mark.usefixtures("several_tiles")

SHAPE = (2, 32, 4, 64, VOCABULARY)


def recipe(corpus: Path, run: Path, objective: str = "left_to_right") -> PretrainConfig:
    return PretrainConfig(
        corpus=str(corpus),
        run=str(run),
        model=SizeOptions(layers=2, hidden=16, heads=2, intermediate=32, positions=64),
        clock=ClockOptions(steps=3),
        phases=(Phase(length=24, batch=8, micro_batch=8),),
        optimizer=OptimizerOptions(lr=1e-2),
        pairs=PairOptions(kind="single"),
        objective=(objective,),
        precision="fp32",
        threads=1,
        evaluate=EvaluateOptions(sequences=8),
    )


@pytest.fixture(scope="module")
def pretrained(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model folder of each direction. Read only."""
    folder = tmp_path_factory.mktemp("pretrained")
    return {
        kind: pretrain(recipe(tiny_corpus, folder / kind, kind)).model
        for kind in ("left_to_right", "masked")
    }


def sees_later(model: Model) -> bool:
    """Whether what stands after a token changes its hidden state."""
    rows = [[5, 6, 7], [5, 6, 8]]
    inputs = collate(rows, [[0] * 3] * 2, max_positions=8)
    with torch.no_grad():
        x_TH = model.network.encoder(inputs)
    return not torch.allclose(x_TH[:2], x_TH[3:5], atol=1e-5)


def test_the_model_folder_says_it(pretrained: dict[str, Path], tiny_corpus: Path) -> None:
    for kind, folder in pretrained.items():
        loaded = load_model(folder)
        assert loaded.config.left_to_right == (kind == "left_to_right")
        assert sees_later(Model(loaded)) == (kind != "left_to_right")
        config = json.loads((folder / "config.json").read_text())
        assert config["is_decoder"] == (kind == "left_to_right")
    assert config["architectures"] == ["BertForMaskedLM"]
    causal = pretrained["left_to_right"]
    assert json.loads((causal / "config.json").read_text())["architectures"] == ["BertLMHeadModel"]
    assert "left-to-right perplexity" in evaluate_pretraining(load_model(causal), tiny_corpus)


def test_a_folder_from_before_it_was_said_is_refused(pretrained: dict[str, Path]) -> None:
    loaded = load_model(pretrained["left_to_right"])
    folder = pretrained["left_to_right"].parent / "old"
    about = {**loaded.about, "masking": "left_to_right"}
    save_model(folder, network_of(loaded), loaded.tokenizer, about)
    config = json.loads((folder / "config.json").read_text())
    del config["is_decoder"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r'add "is_decoder": true to config\.json'):
        load_model(folder)


@pytest.mark.parametrize("pairs", ["next", "order"])
def test_no_second_loss_left_to_right(pairs: str, tiny_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the second loss reads the first token, which sees no"):
        pretrain(replace(recipe(tiny_corpus, tmp_path / "run"), pairs=PairOptions(kind=pairs)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("theirs", "wanted", "said"),
    [
        ("left_to_right", "masked", "reads left to right, and objective masked .* both ways"),
        ("masked", "left_to_right", "reads both ways, and objective left_to_right .* right;"),
    ],
)
def test_starting_from_the_other_direction_is_refused(
    pretrained: dict[str, Path],
    tiny_corpus: Path,
    tmp_path: Path,
    theirs: str,
    wanted: str,
    said: str,
) -> None:
    start = str(pretrained[theirs])
    with pytest.raises(ConfigError, match=said):
        pretrain(replace(recipe(tiny_corpus, tmp_path / "run", wanted), start=start))
    options = vars(recipe(tiny_corpus, tmp_path / "run", wanted))
    with pytest.raises(ConfigError, match=said):
        plan(PlanConfig(**{**options, "start": start}))


def test_going_on_from_its_own_direction(
    pretrained: dict[str, Path], tiny_corpus: Path, tmp_path: Path
) -> None:
    start = str(pretrained["left_to_right"])
    result = pretrain(replace(recipe(tiny_corpus, tmp_path / "run"), start=start))
    assert load_model(result.model).config.left_to_right


def test_verbs_that_it_cannot_serve_say_why(pretrained: dict[str, Path]) -> None:
    model = load(pretrained["left_to_right"])
    with pytest.raises(ModelError, match=r"left to right: at .MASK. it sees only the text be"):
        model.fill_mask("the [MASK] here")
    with pytest.raises(ModelError, match=r"left to right, where the first token sees neither text"):
        model.next_sentence("one", "two")
    with pytest.raises(ConfigError, match=r"pooling is cls.*set pooling to mean"):
        model.embed(["the bread"], pooling="cls")
    vectors = model.embed(["the baker sold the bread", "the baker sold the flour"])
    assert not np.allclose(*vectors, atol=1e-6)
    first, second = model.embed_tokens(["the baker sold bread", "the baker sold flour"])
    np.testing.assert_allclose(first.vectors[0], second.vectors[0], atol=1e-6)


# ------------------------------------------------------------------------------------ task heads


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    model = EncoderModel(small_config(SHAPE, left_to_right=True), **BOTH_HEADS, seed=11)
    model.next_sentence = None
    save_model(folder / "model", model, small_tokenizer(VOCABULARY))
    return folder / "model"


def test_fine_tuning_learns_from_the_last_token(start: Path, tmp_path: Path) -> None:
    """The first sees nothing: read there, every text would be given the same label."""
    word_task(tmp_path, 192, 0, "train.tsv")
    word_task(tmp_path, 64, 1, "dev.tsv")
    word_task(tmp_path, 20, 2, "test.tsv")
    config = replace(word_config(start, tmp_path, tmp_path / "run"), epochs=8, batch_size=12)
    result = finetune(config)
    scores = result.seeds[0].measurement.scores
    assert scores["accuracy"] > 0.9
    loaded = load_model(result.seeds[0].model)
    assert loaded.config.left_to_right
    assert loaded.about["pooled"] == "last"
    measured = evaluate_file(loaded, tmp_path / "dev.tsv").scores
    assert measured["accuracy"] == pytest.approx(scores["accuracy"])
    found = predict_texts(loaded, ["w20 w7 w31", "w20 w9 w31", "w7 w7 w7", "w9 w9"])
    assert found.labels == ["with", "without", "with", "without"]


@pytest.mark.parametrize("fast", [True, False])
def test_a_classifier_reads_the_last_token_of_each_sequence(fast: bool) -> None:
    model = small_bert(small_config(SHAPES[1], left_to_right=True), classes=3)
    model.shared.fast = fast
    rows = [[5, 6, 7, 8], [9], [10, 11]]
    inputs = collate(rows, [[0] * len(row) for row in rows], max_positions=8)
    with torch.no_grad():
        states = model.task_vectors(inputs, inputs.starts)
        torch.testing.assert_close(states, model.encoder(inputs)[torch.tensor([3, 4, 6])])
        changed = collate([[4, 6, 7, 8], *rows[1:]], [[0] * 4, [0], [0] * 2], max_positions=8)
        other = model.task_vectors(changed, changed.starts)
    assert (states[0] - other[0]).abs().max() > 0.01, "its last token sees the first"
    torch.testing.assert_close(states[1:], other[1:])


def test_heads_on_single_tokens_read_them() -> None:
    model = small_bert(small_config(SHAPES[1], left_to_right=True), tags=3)
    inputs = collate([[5, 6, 7, 8], [9, 10]], [[0] * 4, [0] * 2], max_positions=8)
    at = torch.tensor([1, 2, 5])
    with torch.no_grad():
        x_TH = model.encoder(inputs)
        torch.testing.assert_close(model.task_vectors(inputs, at), x_TH[at])
        every = model.task_vectors(inputs, torch.arange(6))
    torch.testing.assert_close(every, x_TH[:6])


def test_choices_are_scored_at_their_last_token(start: Path, tmp_path: Path) -> None:
    """Two choices that end alike differ all the same, and that is learned."""
    rng = np.random.default_rng(0)
    for name, count in (("train.jsonl", 192), ("dev.jsonl", 48)):
        lines = []
        for _ in range(count):
            texts = [[f"w{i}" for i in rng.integers(8, 90, 4)] for _ in range(2)]
            label = int(rng.integers(2))
            texts[label][int(rng.integers(3))] = "w7"
            row = {"text": "w1", "endings": [" ".join(t) for t in texts], "label": str(label)}
            lines.append(json.dumps(row))
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    options = TaskOptions(
        name="which",
        kind="choice",
        train=str(tmp_path / "train.jsonl"),
        dev=str(tmp_path / "dev.jsonl"),
        text="text",
        choices=("endings",),
    )
    config = replace(
        word_config(start, tmp_path, tmp_path / "run"), task=options, epochs=6, batch_size=24
    )
    assert finetune(config).seeds[0].measurement.scores["accuracy"] > 0.9
