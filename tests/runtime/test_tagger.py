"""Taggers, trained: what they learn, write, and find in running text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from bothways import cli
from bothways.api.model import load
from bothways.errors import ModelError
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.entities import Tagged, tag_texts
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import evaluate_file, task_for_file
from bothways.tasks.options import TaggingOptions, TaskOptions
from bothways.tasks.schemes import entity_spans, write_tags
from bothways.tasks.sentences import read_sentences
from bothways.tasks.tagging import TaggedFile, TaggingTask
from bothways.tasks.words import split_words
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.options import OptimizerOptions
from model_examples import BOTH_HEADS, small_bert, small_config
from tagging_examples import COMPOSED, LETTERS, SHAPE, TOKENIZER, VOCABULARY, tagging


def word_file(path: Path, count: int, seed: int) -> Path:
    """Words below w40 and full stops are outside; w50 begins an entity, w60 to w63 go on."""
    rng = np.random.default_rng(seed)
    lines: list[str] = []
    for i in range(count):
        if i % 8 == 0:
            lines.append("-DOCSTART- O\n")
        words = [f"w{n} O" for n in rng.integers(0, 40, int(rng.integers(2, 7)))]
        if i % 4:
            at = int(rng.integers(len(words)))
            words[at : at + 1] = ["w50 I-X", f"w{rng.integers(60, 64)} I-X"]
        if i % 3 == 0:
            words.append(". O")
        lines += [*words, ""]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder."""
    folder = tmp_path_factory.mktemp("tagging")
    save_model(
        folder / "start",
        EncoderModel(small_config(SHAPE), **BOTH_HEADS, seed=1),
        TOKENIZER,
    )
    options = dataclasses.replace(
        tagging(),
        name="words",
        train=str(word_file(folder / "train.conll", 160, 0)),
        dev=str(word_file(folder / "dev.conll", 48, 1)),
        test=str(word_file(folder / "test.conll", 16, 2)),
    )
    finetune(
        FinetuneConfig(
            task=options,
            model=str(folder / "start"),
            run=str(folder / "run"),
            epochs=8,
            batch_size=16,
            max_length=12,
            optimizer=OptimizerOptions(lr=5e-3, warmup=0.1, bias_correction=True),
            precision="fp32",
            threads=1,
        )
    )
    return folder


@pytest.mark.parametrize("word", ["London", "서울", "london"])
def test_capitals_that_the_vocabulary_loses_are_pointed_out(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path / "model", small_bert(small_config(SHAPE)), TOKENIZER)
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text(f"The O\nw1 O\n{word} B-X\n\n" * 4)
    task = TaskOptions(
        kind="tagging", train=str(tmp_path / "train.conll"), dev=str(tmp_path / "dev.conll")
    )
    finetune(
        FinetuneConfig(
            task=task,
            model=str(tmp_path / "model"),
            run=str(tmp_path / "run"),
            epochs=1,
            max_length=16,
        )
    )
    told = "the vocabulary is lower-cased" in capsys.readouterr().out
    assert told == (word == "London")


def test_each_file_is_measured_in_its_own_scheme(trained: Path, tmp_path: Path) -> None:
    """Not in the one that a task declares for its training file."""
    model = load_model(trained / "run/seed-0/model")
    before = evaluate_file(model, trained / "dev.conll")
    model.about["options"]["tagging"]["scheme"] = "iob1"
    vars(model).pop("task")
    gold = read_sentences(trained / "dev.conll", TaggingOptions(), labelled=True)
    assert gold.tags is not None
    tags = [write_tags(entity_spans(tags), len(tags), "iob2") for tags in gold.tags]
    assert "B-X" in chain.from_iterable(tags)
    sentences = [
        "".join(f"{word} {tag}\n" for word, tag in zip(words, row, strict=True))
        for words, row in zip(gold.words, tags, strict=True)
    ]
    (tmp_path / "iob2.conll").write_text("\n".join(sentences))
    assert evaluate_file(model, tmp_path / "iob2.conll").scores == before.scores


def test_predictions_in_another_scheme(trained: Path, tmp_path: Path) -> None:
    options = TaggingOptions(write="bioes")
    (tmp_path / "task.yaml").write_text("kind: tagging\ntagging_write: bioes\n")
    model, out = str(trained / "run/seed-0/model"), tmp_path / "out.conll"
    task, _ = task_for_file(load_model(model), TaskOptions(kind="tagging", tagging=options))
    assert task.written_scheme == "bioes"
    (tmp_path / "in.conll").write_text("w1\nw50\nw62\nw3\n")
    words = ["predict", model, "--file", str(tmp_path / "in.conll"), "--out", str(out)]
    assert cli.main([*words, "--task", str(tmp_path / "task.yaml")]) == 0
    assert out.read_text() == "w1 O\nw50 B-X\nw62 E-X\nw3 O\n"


def test_it_learns_and_writes_what_it_measured(trained: Path) -> None:
    model = load_model(trained / "run/seed-0/model")
    found = evaluate_file(model, trained / "dev.conll")
    assert found.scores["f1"] > 0.95
    written = read_sentences(
        trained / "run/seed-0/dev_predictions.tsv", TaggingOptions(scheme="iob1"), labelled=True
    )
    gold = read_sentences(trained / "dev.conll", TaggingOptions(), labelled=True)
    assert (written.words, written.documents) == (gold.words, gold.documents)
    task = TaggingTask(TaskOptions(kind="tagging", labels=("O", "B-X", "I-X"), metrics=("f1",)))
    part = TaggedFile(gold, None, encoded=None)  # type: ignore[arg-type]
    assert written.tags is not None
    assert task.measure(part, written.tags).scores["f1"] == found.scores["f1"]


def test_predicting_a_file_from_the_command_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = str(trained / "run/seed-0/model"), tmp_path / "out.conll"
    assert cli.main(["predict", model, "w1 w50 w62", "", "w3 w50"]) == 0
    rows = [line.split("\t")[:2] for line in capsys.readouterr().out.splitlines()]
    assert rows == [["text", "type"], ["0", "X"], ["2", "X"]]
    assert cli.main(["predict", model, "w1 w50 w62", "", "w3 w50"]) == 0
    assert [line.split("\t")[:2] for line in capsys.readouterr().out.splitlines()] == rows
    (tmp_path / "in.conll").write_text("w1\nw50\nw62\n\nw3\n")
    words = ["predict", model, "--file", str(tmp_path / "in.conll"), "--out", str(out)]
    assert cli.main(words) == 0
    assert "2 predictions" in capsys.readouterr().out
    assert out.read_text() == "w1 O\nw50 I-X\nw62 I-X\n\nw3 O\n"
    assert cli.main([*words[:4], "--set", "submission=true"]) == 1
    assert "tagging gives many" in capsys.readouterr().err
    assert cli.main(["predict", model, "w1 w50", "w3 " * 30]) == 0
    assert "1 of 2 texts are longer than 12 tokens: read in windows" in capsys.readouterr().err
    # Tags that are in the file stand beside the predicted ones.
    (tmp_path / "in.conll").write_text("w1 X O\nw50 X B-Q\n")
    assert cli.main(words) == 0
    assert out.read_text() == "w1 O O\nw50 B-Q I-X\n"
    assert cli.main(["predict", model, "w1 w50 w62"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split("\t")[1:4] == ["X", "3", "10"]


def test_texts_tagged_together_are_tagged_as_alone(trained: Path) -> None:
    model = load(trained / "run/seed-0/model")
    texts = ["w1, W50  w62. w3", " \u200b ", "", "w50 w62", "w1 w50 w62 " * 30]
    together = tag_texts(model.loaded, texts)
    assert [len(found.words) for found in together] == [6, 0, 0, 2, 90]
    for text, found in zip(texts, together, strict=True):
        alone = model.tag(text)
        assert found.windows == alone.windows == (17 if len(found.words) == 90 else 1)
        assert (found.text, found.words, found.tags) == (text, alone.words, alone.tags)
        assert [e.text for e in found.entities] == [e.text for e in alone.entities]
        assert found.probabilities == pytest.approx(alone.probabilities, abs=1e-5)
    nothing = Tagged(" ", (), (), (), (), ())
    assert model.tag(" ") == nothing
    assert model.tag(["w1 w50", " "]) == [model.tag("w1 w50"), nothing]
    assert model.tag([["w1", "w50"], []])[1] == dataclasses.replace(nothing, text="")
    assert model.tag([]) == tag_texts(model.loaded, []) == []
    several = model.tag([texts[0], texts[3]])
    assert isinstance(several, list)
    assert [found.tags for found in several] == [model.tag(t).tags for t in (texts[0], texts[3])]
    sentences = model.tag([["w1", "w50"], ["w62"]])
    assert isinstance(sentences, list)
    assert [found.words for found in sentences] == [("w1", "w50"), ("w62",)]


def test_entities_of_a_text_with_their_characters(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load(trained / "run/seed-0/model")
    text = "w1, W50  w62. w3"
    found = model.tag(text)
    assert found.words == ("w1", ",", "W50", "w62", ".", "w3")
    assert found.tags == ("O", "O", "I-X", "I-X", "O", "O")
    (entity,) = found.entities
    assert (entity.type, entity.text, entity.words) == ("X", "W50  w62", (2, 4))
    assert text[entity.start : entity.end] == entity.text
    assert 0.5 < entity.probability <= 1
    assert entity.probability == min(found.probabilities[2:4]) < max(found.probabilities[2:4])
    assert found.spans[5] == (14, 16)
    words: Sequence[str] = ["w1", "w50", "w62"]
    given = model.tag(words)
    assert given.text == "w1 w50 w62"
    assert [e.text for e in given.entities] == ["w50 w62"]
    marked = model.tag("w1 w5\u0301 w\u0301")  # uncased, the marks are stripped
    assert [marked.text[a:b] for a, b in marked.spans] == ["w1", "w5\u0301", "w\u0301"]
    # Longer than the encoder: every word still has a tag.
    long = model.tag("w1 w50 w62 " * 100)
    assert len(long.tags) == 300
    assert len(long.entities) > 90
    # Lines without words are passed over.
    folder = str(trained / "run/seed-0/model")
    assert cli.main(["predict", folder, text, "\u200b", " ", text]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert {line.split("\t")[0] for line in lines} == {"0", "3"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. army.", "The|U.S.|army|."),
        ("(the U.S.), e.g., Mr. O'Neil", "(|the|U.S.|)|,|e.g.|,|Mr|.|O'Neil"),
        (
            "(C. Lewis), J. K. Rowling, É. Zola. It is a. Plan B.",
            "(|C.|Lewis|)|,|J.|K.|Rowling|,|É.|Zola|.|It|is|a|.|Plan|B|.",
        ),
        ("E\u0301.\u0301 Zola, 이. 김", "E\u0301.\u0301|Zola|,|이|.|김"),
        ('He said: "well-known..."', 'He|said|:|"|well-known|.|.|.|"'),
        ("It grew 3.5. It cost $1,000.50!", "It|grew|3.5|.|It|cost|$|1,000.50|!"),
        ("Paris.\u200b \ufeffRome\u200b- \u200b \x00\n", "Paris|.|Rome|-"),
        ("cafe\u0301. \u00bfque\u0301? .\u0301", "cafe\u0301|.|\u00bf|que\u0301|?|.\u0301"),
        ("東京、大阪a b", "東|京|、|大|阪|a|b"),
        ("U.S\u0301.\u0301x U.S\u0301.\u0301", "U.S\u0301.\u0301x|U.S\u0301.\u0301"),
        (" \u0301 ", ""),
        ("", ""),
    ],
)
def test_running_text_is_cut_as_conll_files_are(text: str, words: str) -> None:
    assert [text[a:b] for a, b in split_words(TOKENIZER, text)] == [*filter(None, words.split("|"))]


@given(
    text=st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("a.B. -'é\u0301\u200b東")))
)
@pytest.mark.parametrize("tokenizer", [TOKENIZER, LETTERS, COMPOSED])
def test_words_of_a_text_leave_out_only_what_is_nothing(tokenizer: Tokenizer, text: str) -> None:
    end = 0
    for start, following in [*split_words(tokenizer, text), (len(text), len(text))]:
        assert end <= start <= following
        assert not tokenizer.encode_plain([text[end:start]])[0]
        end = following
    spans = split_words(tokenizer, text)
    assert all(a < b and not any(map(str.isspace, text[a:b])) for a, b in spans)
    assert all(tokenizer.encode_plain([text[a:b] for a, b in spans]))
    assert " ".join(text[a:b] for a, b in spans).split() == [text[a:b] for a, b in spans]


def test_a_word_of_a_text_is_read_as_in_a_file(trained: Path) -> None:
    """At its first piece, whatever punctuation it holds."""
    model = load(trained / "run/seed-0/model")
    text, words = "w1 w50 w62-w1's. w3", ["w1", "w50", "w62-w1's", ".", "w3"]
    found, given = model.tag(text), model.tag(words)
    assert found.words == tuple(words)
    assert (found.tags, found.probabilities) == (given.tags, given.probabilities)
    assert found.entities[0].text == "w50 w62-w1's"


def test_tags_need_a_head_for_tags(tmp_path: Path) -> None:
    model = small_bert(small_config(SHAPE), classes=2)
    save_model(
        tmp_path / "other", model, TOKENIZER, {"kind": "classification", "labels": ["a", "b"]}
    )
    with pytest.raises(
        ModelError, match=r"'classification', .* needs a model fine-tuned on tags of words"
    ):
        load(tmp_path / "other").tag("w1")


def test_a_tagger_of_transformers_tags(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        id2label=dict(enumerate(["O", "I-PER", "B-PER"])),
    )
    theirs = transformers.BertForTokenClassification(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    TOKENIZER.save(tmp_path / "theirs")
    words = [f"w{i}" for i in range(0, 90, 3)]
    found = load(tmp_path / "theirs").tag(words)
    ids = torch.tensor([TOKENIZER.encode(" ".join(words)).ids])
    with torch.no_grad():
        logits = theirs(ids).logits[0, 1:-1]
    best = [config.id2label[int(i)] for i in logits.argmax(-1)]
    assert entity_spans(best) == entity_spans(found.tags)
    np.testing.assert_allclose(found.probabilities, logits.softmax(-1).max(-1).values, atol=1e-5)
