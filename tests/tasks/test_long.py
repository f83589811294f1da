"""Texts longer than the encoder: windows show all of them, and their outputs make one answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways import cli
from bothways.errors import InputError
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.setup import measured_outputs
from bothways.model.engine import TorchEngine, as_loaded, network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import LoadedModel, load_model
from bothways.runtime.pipeline import evaluate_file, predict_texts
from bothways.tasks.examples import CHUNK, Examples, encode_examples
from bothways.tasks.options import TaskOptions, WindowOptions
from bothways.tasks.texts import LabelTask, ScoreTask
from bothways.tasks.windows import encode_windows, pool_windows
from bothways.training.options import OptimizerOptions
from model_examples import small_bert, small_config, small_tokenizer

VOCABULARY = 97


TOKENIZER = small_tokenizer(VOCABULARY)


CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id


WINDOWS = TaskOptions(labels=("a", "b", "c"), long="windows")


SHORT = st.lists(st.integers(0, 91), max_size=60)


def text(words: list[int] | range) -> str:
    return " ".join(f"w{i}" for i in words)


def rows(examples: Examples) -> list[list[int]]:
    return [row.tolist() for row in np.split(examples.tokens, examples.bounds[1:-1])]


def owned(options: TaskOptions = WINDOWS, *, pair: bool = False, classes: int = 3) -> LoadedModel:
    """A model whose folder says how long texts are read."""
    model = small_bert(small_config((1, 16, 2, 32, VOCABULARY)), classes=classes, seed=3)
    windows = {"stride": options.windows.stride, "pooling": options.windows.pooling}
    stored = {"long": options.long, "windows": windows, "metrics": ["accuracy"]}
    stored |= {"text_b": "b"} if pair else {}
    about = {"kind": "classification", "labels": ["a", "b", "c"], "pair": pair, "length": 12}
    return as_loaded(model, TOKENIZER, {**about, "options": stored})


@given(st.lists(SHORT, min_size=1, max_size=6), st.integers(3, 20), st.integers(1, 25) | st.none())
def test_windows_of_texts(texts: list[list[int]], length: int, stride: int | None) -> None:
    """Laid over each other at the stride, they are the text."""
    found = encode_windows(TOKENIZER, [*map(text, texts)], None, length=length, stride=stride)
    room = length - 2
    step = min(stride or (room + 1) // 2, room)
    assert found.cut == 0
    assert found.owners.tolist() == sorted(found.owners)
    for n, ids in enumerate(texts):
        own = [row for row, owner in zip(rows(found), found.owners, strict=True) if owner == n]
        assert all(row[0] == CLS and row[-1] == SEP and len(row) <= length for row in own)
        pieces = own[0][1:-1]
        for k, row in enumerate(own[1:], 1):
            assert pieces[k * step :] == row[1 : 1 + len(pieces) - k * step]
            pieces = pieces[: k * step] + row[1:-1]
        assert pieces == TOKENIZER.encode_plain([text(ids)])[0]
    assert found.whole is not None
    assert found.whole.tolist() == [len(ids) + 2 for ids in texts], "overlaps count once"


@given(SHORT, SHORT, st.integers(5, 140))
def test_windows_of_pairs(a: list[int], b: list[int], length: int) -> None:
    """The one with more pieces is cut, B where they are equal; the other stands in every window."""
    found = encode_windows(TOKENIZER, [text(a)], [text(b)], length=length)
    first, second = TOKENIZER.encode_plain([text(a), text(b)])
    room = length - 3
    kept = (first if len(b) >= len(a) else second)[: room // 2]
    seen: set[int] = set()
    for row, (start, end) in zip(rows(found), pairwise(found.bounds), strict=True):
        assert len(row) <= length
        middle = row.index(SEP)
        halves = [row[1:middle], row[middle + 1 : -1]]
        assert found.segments[start:end].tolist() == [0] * (middle + 1) + [1] * (len(halves[1]) + 1)
        if len(a) + len(b) <= room:
            assert halves == [first, second]
            assert len(found) == 1
        else:
            assert halves[int(len(b) < len(a))] == kept
            seen |= set(halves[int(len(b) >= len(a))])
    if len(a) + len(b) > room:
        assert seen == set(second if len(b) >= len(a) else first)
        assert found.cut == (min(len(a), len(b)) > room // 2)
    assert found.whole is not None
    assert found.whole.tolist() == [len(a) + len(b) + 3]


@given(st.lists(SHORT, min_size=1, max_size=5), st.booleans())
def test_what_fits_is_encoded_as_ever(texts: list[list[int]], pair: bool) -> None:
    a, b = [*map(text, texts)], [*map(text, reversed(texts))] if pair else None
    ours = encode_windows(TOKENIZER, a, b, length=130)
    usual = encode_examples(TOKENIZER, a, b, length=130)
    for name in ("tokens", "segments", "bounds", "items", "read_positions", "owners"):
        found, expected = getattr(ours, name), getattr(usual, name)
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("encode", [encode_windows, encode_examples])
@pytest.mark.parametrize("counts", [(1, 2), (2, 1), (CHUNK, CHUNK + 1), (CHUNK + 1, CHUNK)])
def test_pairs_that_do_not_match(encode: Callable[..., Examples], counts: tuple[int, int]) -> None:
    a, b = (["w1"] * count for count in counts)
    message = f"^{counts[0]} first segments but {counts[1]} second segments were given"
    with pytest.raises(InputError, match=message):
        encode(TOKENIZER, a, b, length=20)


def test_how_outputs_are_combined() -> None:
    examples = encode_windows(
        TOKENIZER, [text(range(7)), "w1", text(range(12))], None, length=7, stride=5
    )
    assert examples.owners.tolist() == [0, 0, 1, 2, 2, 2]
    assert (examples.first_items.tolist(), examples.windowed) == ([0, 2, 3], 2)
    outputs = np.array([[1, 5], [3, 1], [7, 8], [0, 0], [1, 2], [5, 1]], np.float32)
    expected = {
        "mean": [[2, 3], [7, 8], [2, 1]],
        "max": [[3, 5], [7, 8], [5, 2]],
        "first": [[1, 5], [7, 8], [0, 0]],
    }
    for name, values in expected.items():
        found = pool_windows(outputs, examples, WindowOptions(pooling=name))  # type: ignore[arg-type]
        assert found.dtype == np.float32
        assert found.tolist() == values


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
def test_a_long_text_is_what_its_windows_are(pooling: str) -> None:
    """The prediction equals that of the windows given one by one as texts."""
    windows = WindowOptions(stride=10, pooling=pooling)  # type: ignore[arg-type]
    options = replace(WINDOWS, windows=windows)
    loaded = owned(options)
    parts = [text(range(10)), text(range(10, 20)), text(range(20, 25))]
    long = predict_texts(loaded, [" ".join(parts), "w5 w6"])
    assert (long.several, long.cut, long.length) == (1, 0, 12)
    alone = encode_examples(TOKENIZER, [*parts, "w5 w6"], None, length=12)
    logits = measured_outputs(TorchEngine(network_of(loaded)), alone)
    combined = {"mean": logits[:3].mean(0), "max": logits[:3].max(0), "first": logits[0]}[pooling]
    expected = np.exp(combined) / np.exp(combined).sum()
    np.testing.assert_allclose(long.values[0], expected, atol=1e-5)
    short = predict_texts(owned(TaskOptions(labels=("a", "b", "c"))), ["w5 w6"])
    np.testing.assert_allclose(long.values[1], short.values[0], atol=1e-6)


def document_file(path: Path, count: int, seed: int, *, pair: bool = False) -> Path:
    """A document is of class "with" if ``w7`` stands late in it, where cutting would lose it."""
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(count):
        words = rng.integers(8, 90, int(rng.integers(20, 45))).tolist()
        if i % 2:
            for at in range(14, len(words), 4):
                words[at] = 7
        row = {"sentence": text(words), "label": "with" if i % 2 else "without"}
        lines.append(json.dumps(row | ({"query": text(range(8, 8 + i % 30))} if pair else {})))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "model"
    save_model(folder, EncoderModel(small_config((2, 32, 4, 64, VOCABULARY)), seed=11), TOKENIZER)
    return folder


def config(folder: Path, start: Path, options: TaskOptions, **more: int) -> FinetuneConfig:
    pair = options.text_b is not None
    train = str(document_file(folder / "train.jsonl", 96, 0, pair=pair))
    dev = str(document_file(folder / "dev.jsonl", 40, 1, pair=pair))
    fast = OptimizerOptions(lr=3e-3, warmup=0.1, bias_correction=True)
    task = replace(options, train=train, dev=dev, test=dev)
    own = {"max_length": 16, "epochs": 4, "batch_size": 16, **more}
    return FinetuneConfig(
        task=task,
        model=str(start),
        run=str(folder / f"run-{options.long}"),
        optimizer=fast,
        precision="fp32",
        threads=1,
        **own,
    )


def test_documents_are_learned_beyond_the_length(
    tmp_path: Path, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for long in ("cut", "windows"):
        options = TaskOptions()
        if long == "windows":
            options = replace(options, long="windows", windows=WindowOptions(8, "max"))
        recipe = config(tmp_path, start, options)
        document_file(tmp_path / "train.jsonl", 288, 0)  # enough for every seed to learn it
        result = finetune(recipe)
        found[long] = result.mean("accuracy")
        notes = [note for note in result.notes if note.startswith("dev.jsonl")]
        assert len(notes) == 2  # dev is the test file too
        assert (
            "40 of 40 examples were cut to 16 tokens" in notes[0]
            if long == "cut"
            else "40 of 40 texts are longer than 16 tokens and are read in" in notes[0]
        )
    assert found["windows"] > 0.85 > found["cut"]
    folder = tmp_path / "run-windows/seed-0"
    lines = (folder / "test_predictions.tsv").read_text().splitlines()
    assert len(lines) == 41, "a line for each document, not for each window"
    loaded = load_model(folder / "model")
    scores = evaluate_file(loaded, tmp_path / "dev.jsonl").scores
    assert scores["accuracy"] == found["windows"]
    capsys.readouterr()
    document = text([*range(8, 40), 7, 7, 7])
    assert cli.main(["predict", str(folder / "model"), document, "w9"]) == 0
    shown = capsys.readouterr()
    assert "1 of 2 texts are longer than 16 tokens: read in windows" in shown.err
    assert len(shown.out.splitlines()) == 3


def test_targets_and_baselines_count_documents(tmp_path: Path) -> None:
    """A document of many windows is measured once, also by the answer that needs no text."""
    path = tmp_path / "x.tsv"
    path.write_text(f"sentence\tlabel\nw1\ta\nw2\ta\n{text(range(90))}\tb\n")
    options = replace(WINDOWS, labels=(), windows=WindowOptions(stride=1))
    rows = LabelTask.read(path, options, labelled=True)
    task = LabelTask.define(options, rows)
    part = task.encode(TOKENIZER, rows, length=12)
    assert len(part.examples) == 83
    assert part.examples.gold.tolist() == [0, 0, *[1] * 81]
    assert task.gold(part).tolist() == [0, 0, 1]
    assert task.baseline(part, part).scores["accuracy"] == 2 / 3
    outputs = np.zeros((83, 2), np.float32)
    outputs[2:, 1] = 1
    found = task.decode(part, outputs)
    assert found.shape == (3, 2)
    assert task.measure(part, found).scores["accuracy"] == 1
    path.write_text(f"sentence\tlabel\nw1\t1\nw2\t2\n{text(range(90))}\t6\n")
    rows = ScoreTask.read(path, replace(options, kind="regression"), labelled=True)
    score = ScoreTask.define(replace(options, kind="regression"), rows)
    part = score.encode(TOKENIZER, rows, length=12)
    assert score.gold(part).tolist() == [1, 2, 6]
    assert len(score.table(part, score.decode(part, np.ones((83, 1), np.float32)))) == 4
