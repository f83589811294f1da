"""The texts of files to embed: lines, or the column that `predict --file` would read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bothways import cli
from bothways.model.folder import save_model
from model_examples import small_bert, small_config, small_tokenizer

VOCABULARY = 97


TEXTS = ["w1 w2", "w3", "w4 w5 w6"]


ROWS = [{"id": str(n), "document": text, "gold": "x"} for n, text in enumerate(TEXTS)]


Embed = Callable[..., tuple[Any, str]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``pretrained``, ``tuned`` on a column, ``pairs`` on two, and ``tagger``."""
    root = tmp_path_factory.mktemp("models")
    config, tokenizer = small_config((1, 32, 4, 50, VOCABULARY)), small_tokenizer(VOCABULARY)
    save_model(root / "pretrained", small_bert(config, seed=1), tokenizer)
    columns = {"text": "document", "label": "gold"}
    base = {"kind": "classification", "labels": ["x", "y"], "length": 12}
    for name, options in (("tuned", {}), ("pairs", {"text_b": "gold"})):
        about = {**base, "pair": bool(options), "options": {**columns, **options}}
        save_model(root / name, small_bert(config, classes=2, seed=1), tokenizer, about)
    tagger = {"kind": "tagging", "labels": ["O", "B-X"], "length": 12, "options": {"name": "t"}}
    save_model(root / "tagger", small_bert(config, tags=2, seed=1), tokenizer, tagger)
    return root


@pytest.fixture
def embed(folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Embed:
    """Embeds with a model; the vectors, or None, and what was said on stderr."""

    def run(model: str, *words: object) -> tuple[Any, str]:
        out = tmp_path / "vectors.npz"
        out.unlink(missing_ok=True)
        argv = ["embed", str(folders / model), *map(str, words), "--out", str(out)]
        argv += ["--precision", "fp32"]  # auto says what it chose
        status = cli.main(argv)
        said = capsys.readouterr().err
        if status:
            assert said.startswith("bothways: error: ")
            assert not out.exists()
            return None, said
        with np.load(out) as stored:
            return stored["embeddings"], said

    return run


def write_rows(path: Path, rows: list[dict[str, str]] = ROWS) -> Path:
    """In the format that the name says."""
    if path.suffix == ".json":
        text = json.dumps(rows, indent=1)
    elif path.suffix == ".jsonl":
        text = "\n".join(map(json.dumps, rows))
    else:
        mark = {".csv": ",", ".tsv": "\t", ".txt": "\t"}[path.suffix.lower()]
        text = "\n".join(mark.join(row) for row in [list(rows[0]), *(r.values() for r in rows)])
    path.write_text(text + "\n")
    return path


FORMATS = pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.json", "a.txt", "A.TSV"])


@FORMATS
def test_a_column_of_a_labelled_file_is_embedded(name: str, embed: Embed, tmp_path: Path) -> None:
    """The header and whole rows were, with ids, tabs and labels."""
    path = write_rows(tmp_path / name)
    expected, _ = embed("pretrained", *TEXTS)
    found, said = embed("pretrained", "--file", path, "--text", "document")
    np.testing.assert_array_equal(found, expected)
    assert said == ""  # it was named
    found, said = embed("tuned", "--file", path)
    np.testing.assert_array_equal(found, embed("tuned", *TEXTS)[0])
    assert said == f"note: {name}: the texts are those of the column 'document'\n"


@FORMATS
def test_a_column_that_cannot_be_told_is_asked_for(name: str, embed: Embed, tmp_path: Path) -> None:
    path = write_rows(tmp_path / name, [{"id": "1", "post": text} for text in TEXTS])
    for model in ("pretrained", "tagger"):
        found, said = embed(model, "--file", path)
        assert found is None
        assert f"{path}:" in said
        assert "no column 'text'; the columns are 'id', 'post'." in said
        assert "(see the option text)" in said
    _, said = embed("tuned", "--file", path, "--text", "posts")
    assert "no column 'posts'" in said
    assert "Did you mean 'post'?" in said


def test_the_task_says_which_column_it_is(embed: Embed, tmp_path: Path) -> None:
    expected, _ = embed("pretrained", *TEXTS)
    nsmc = write_rows(tmp_path / "ratings.txt")
    found, _ = embed("pretrained", "--file", nsmc, "--task", "nsmc")
    np.testing.assert_array_equal(found, expected)
    (tmp_path / "a.csv").write_text("".join(f"x,{text}\n" for text in TEXTS))
    (tmp_path / "own.yaml").write_text("text: '1'\nlabel: '0'\nheader: false\n")
    own = ("--file", tmp_path / "a.csv", "--task", tmp_path / "own.yaml")
    found, said = embed("pretrained", *own)
    np.testing.assert_array_equal(found, expected)
    assert "column '1'" in said
    _, said = embed("pretrained", "--file", tmp_path / "a.csv", "--task", "conll2003")
    assert "of kind tagging, whose files have no column of texts" in said


def test_second_texts_are_left_out_and_said_to_be(embed: Embed, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.tsv")
    found, said = embed("pairs", "--file", path)
    np.testing.assert_array_equal(found, embed("pairs", *TEXTS)[0])
    assert "the second texts are not embedded; --text gold embeds them" in said
    found, said = embed("pairs", "--file", path, "--text", "gold")
    np.testing.assert_array_equal(found, embed("pairs", "x", "x", "x")[0])
    assert "not embedded" not in said


@pytest.mark.parametrize(
    "text",
    ["w1 w2\nw3\nw4 w5 w6\n", "w1\tw2\nw3\nw4 w5 w6\n", "w1 w2\n\nw4\tw5\tw6\n"],
    ids=["plain", "a tab in the first", "a tab in the last"],
)
@pytest.mark.parametrize("name", ["a.txt", "a.text", "a"])
def test_lines_stay_texts(text: str, name: str, embed: Embed, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    for model in ("pretrained", "tuned"):
        found, said = embed(model, "--file", tmp_path / name)
        np.testing.assert_array_equal(found, embed(model, *text.splitlines())[0])
        assert not said


SENTENCES = {
    "a.conll": "w1 O\nw2 B-X\n\nw3 O\n\nw4 O\nw5 O\nw6 O\n",
    "a.jsonl": "".join(json.dumps({"text": text, "label": [[0, 2, "X"]]}) + "\n" for text in TEXTS),
    "a.csv": "sentence_id,word,tag\n1,w1,O\n1,w2,B-X\n2,w3,O\n3,w4,O\n3,w5,O\n3,w6,O\n",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_of_tagged_words_are_texts(name: str, embed: Embed, tmp_path: Path) -> None:
    """What a tagger's `predict --file` takes; rows were embedded whole."""
    (tmp_path / name).write_text(SENTENCES[name])
    found, said = embed("tagger", "--file", tmp_path / name)
    np.testing.assert_array_equal(found, embed("tagger", *TEXTS)[0])
    assert "a text is a sentence of tagged words" in said


def test_questions_or_their_passages(embed: Embed, tmp_path: Path) -> None:
    qas = [{"id": n, "question": text, "answers": []} for n, text in enumerate(TEXTS)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "w7 w8", "qas": qas}]}]}))
    found, said = embed("pretrained", "--file", path)
    np.testing.assert_array_equal(found, embed("pretrained", *TEXTS)[0])
    assert "column 'question'" in said
    found, _ = embed("pretrained", "--file", path, "--text", "context")
    np.testing.assert_array_equal(found, embed("pretrained", *["w7 w8"] * 3)[0])


def test_a_tagger_writes_what_it_reads(folders: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(SENTENCES["a.jsonl"])
    model = str(folders / "tagger")
    argv = ["predict", model, "--file", str(tmp_path / "a.jsonl"), "--out"]
    assert cli.main([*argv, str(tmp_path / "p.jsonl")]) == 0
    items = list(map(json.loads, (tmp_path / "p.jsonl").read_text().splitlines()))
    assert [item["text"] for item in items] == TEXTS
    assert all(list(item) == ["text", "label"] for item in items)
    assert cli.main([*argv, str(tmp_path / "p.ann"), "--format", "brat"]) == 0
    assert (tmp_path / "p.txt").read_text() == "\n".join(TEXTS) + "\n"
