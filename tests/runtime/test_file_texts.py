"""The texts of files to embed: lines, or the column that `predict --file` would read."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
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
        assert "(see --text)" in said
    _, said = embed("tuned", "--file", path, "--text", "posts")
    assert "no column 'posts'" in said
    assert "Did you mean 'post'?" in said


def test_the_usual_column_needs_no_name(embed: Embed, tmp_path: Path) -> None:
    rows = [{"sentence": text, "label": "x"} for text in TEXTS]
    found, said = embed("pretrained", "--file", write_rows(tmp_path / "a.tsv", rows))
    np.testing.assert_array_equal(found, embed("pretrained", *TEXTS)[0])
    assert "column 'sentence'" in said


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


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a.tsv.gz", "truncated or damaged"),
        ("a.csv.zst", "truncated or damaged"),
        ("a.parquet", "cannot be read as Parquet"),
        ("a.JSONL", "is not JSON"),
    ],
)
def test_other_records_are_refused(name: str, problem: str, embed: Embed, tmp_path: Path) -> None:
    (tmp_path / name).write_text("w1 O\n")
    found, said = embed("pretrained", "--file", tmp_path / name)
    assert found is None
    assert problem in said


def test_columns_need_a_file(embed: Embed) -> None:
    for option in (("--text", "x"), ("--task", "nsmc")):
        assert "need --file" in embed("pretrained", "w1", *option)[1]


def test_a_column_named_twice(embed: Embed, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("sentence\tsentence\nw1\tw2\n")
    assert "two columns are named 'sentence'" in embed("pretrained", "--file", path)[1]


def test_a_table_is_no_text_to_search_for_an_answer(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "a.tsv")
    model = str(folders / "pretrained")
    assert cli.main(["predict", model, "--question", "Who?", "--file", str(path)]) == 1
    assert "this holds records, and their syntax would be read as text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"text": "w1"}\n{"text": "w2"}\n', "this looks like JSON"),
        ("text,label\nw1 w2,x\nw3 w4,y\n", "this looks like a table"),
    ],
)
def test_what_is_no_text_to_search_for_an_answer(
    content: str, problem: str, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `corpus` and `embed` name as no text was searched in silence."""
    (tmp_path / "a.txt").write_text(content)
    model = str(folders / "pretrained")
    assert (
        cli.main(["predict", model, "--question", "Who?", "--file", str(tmp_path / "a.txt")]) == 1
    )
    said = capsys.readouterr().err
    assert re.search(problem, " ".join(said.split()))
    assert "--text_" not in said


# ------------------------------------------------------------ files of other kinds, kept columns

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


@pytest.mark.parametrize("ending", ["jsonl", "arrow", "npz"])
def test_ids_are_kept(ending: str, folders: Path, tmp_path: Path) -> None:
    path, out = write_rows(tmp_path / "a.csv"), tmp_path / f"v.{ending}"
    words = ["--file", str(path), "--text", "document", "--keep", "id", "gold", "--out", str(out)]
    assert cli.main(["embed", str(folders / "pretrained"), *words]) == 0
    if ending == "npz":
        with np.load(out) as stored:
            assert stored["id"].tolist() == ["0", "1", "2"]
            assert stored["gold"].tolist() == ["x", "x", "x"]
    elif ending == "jsonl":
        items = [json.loads(line) for line in out.read_text().splitlines()]
        assert [(i["id"], i["gold"], i["text"]) for i in items] == [
            (str(n), "x", text) for n, text in enumerate(TEXTS)
        ]
    else:
        with pa.ipc.open_file(out) as file:
            assert file.read_all().column_names == ["id", "gold", "text", "embedding"]


@pytest.mark.parametrize("ending", ["jsonl", "npz"])
def test_the_texts_themselves_are_kept(ending: str, folders: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "a.csv", tmp_path / f"v.{ending}"
    path.write_text("text,id\n" + "".join(f"{text},{n}\n" for n, text in enumerate(TEXTS)))
    words = ["embed", str(folders / "pretrained"), "--file", str(path), "--keep", "text", "id"]
    assert cli.main([*words, "--out", str(out)]) == 0
    if ending == "npz":
        with np.load(out) as stored:
            assert stored["text"].tolist() == TEXTS
    else:
        items = [json.loads(line) for line in out.read_text().splitlines()]
        assert [(item["text"], item["id"]) for item in items] == [
            (text, str(n)) for n, text in enumerate(TEXTS)
        ]


@pytest.mark.parametrize("separator", [",", ";", "|"])
def test_rows_of_a_table_under_the_name_of_a_text(
    separator: str, embed: Embed, tmp_path: Path
) -> None:
    rows = [f"text{separator}label", *(f"{text}{separator}x" for text in TEXTS)]
    (tmp_path / "a.txt").write_text("\n".join(rows) + "\n")
    found, said = embed("pretrained", "--file", tmp_path / "a.txt")
    np.testing.assert_array_equal(found, embed("pretrained", *TEXTS)[0])
    assert "the column 'text'" in said


@pytest.mark.parametrize(
    ("verb", "model", "status", "said"),
    [
        ("predict", "tuned", 1, "standard input is a table"),
        ("tokenize", "pretrained", 0, "note: standard input looks like a table"),
    ],
)
def test_a_table_on_standard_input(
    verb: str,
    model: str,
    status: int,
    said: str,
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"text,label\nw1,x\nw2,y\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    assert cli.main([verb, str(folders / model)]) == status
    assert said in capsys.readouterr().err


def test_what_cannot_be_kept(embed: Embed, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv")
    word = ("--file", path, "--text", "document", "--keep")
    assert "no column 'idd'" in embed("pretrained", *word, "idd")[1]
    assert "keep need --file" in embed("pretrained", "w1", "--keep", "id")[1]
    (tmp_path / "a.conll").write_text(SENTENCES["a.conll"])
    said = embed("tagger", "--file", tmp_path / "a.conll", "--keep", "id")[1]
    assert "a.conll has tagged words" in said


# ------------------------------------------------------------------- predictions by their suffix


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl", "json", "txt"])
@pytest.mark.parametrize("keep", [(), ("id", "document")])
def test_predictions_are_written_as_their_name_says(
    ending: str, keep: tuple[str, ...], folders: Path, tmp_path: Path
) -> None:
    rows = [{**row, "document": row["document"] + ', "w7"'} for row in ROWS]
    path, out = tmp_path / "a.jsonl", tmp_path / f"p.{ending}"
    path.write_text("\n".join(json.dumps({**row, "id": int(row["id"])}) for row in rows))
    words = ["predict", str(folders / "tuned"), "--file", str(path), "--out", str(out)]
    assert cli.main([*words, *(["--keep", *keep] if keep else [])]) == 0
    text = out.read_text()
    if ending in ("json", "jsonl"):
        items = json.loads(text) if ending == "json" else list(map(json.loads, text.splitlines()))
        assert list(items[0]) == ["index", *keep, "prediction", "p(x)", "p(y)"]
        assert items[1]["index"] == 1
        assert items[1]["p(x)"] + items[1]["p(y)"] == pytest.approx(1, abs=1e-5)
        assert [item.get("document") for item in items] == [
            r["document"] if keep else None for r in rows
        ]
    else:
        found = list(
            csv.reader(
                text.splitlines(),
                delimiter="," if ending == "csv" else "\t",
                quoting=csv.QUOTE_MINIMAL if ending == "csv" else csv.QUOTE_NONE,
            )
        )
        assert found[0] == ["index", *keep, "prediction", "p(x)", "p(y)"]
        assert {len(row) for row in found} == {len(found[0])}
        if keep:
            assert [row[1:3] for row in found[1:]] == [[r["id"], r["document"]] for r in rows]


@pytest.mark.parametrize(
    ("name", "said"), [("p.tsv", False), ("p", False), ("p.txt", False), ("p.xyz", True)]
)
def test_another_ending_gets_tabs_and_is_noted(
    name: str, said: bool, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write_rows(tmp_path / "a.jsonl"), tmp_path / name
    words = ["predict", str(folders / "tuned"), "--file", str(path), "--out", str(out)]
    assert cli.main(words) == 0
    assert out.read_text().startswith("index\tprediction\t")
    assert (f"{name}: its columns are separated by tabs" in capsys.readouterr().err) == said


def test_what_cannot_be_written(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "a.jsonl")
    (tmp_path / "a.conll").write_text(SENTENCES["a.conll"])
    for model, file, words, problem in (
        ("tuned", path, ["--format", "doccano"], "--format is for tagging"),
        ("tagger", tmp_path / "a.conll", ["--format", "docano"], "choose from conll, csv, brat"),
        ("tagger", tmp_path / "a.conll", ["--keep", "id"], "Leave out --keep"),
        ("tuned", path, ["--keep", "nothing"], "no column 'nothing'"),
        ("tuned", path, ["--keep", "id", "prediction"], "keep: prediction is a column of the out"),
        ("tuned", path, ["--keep", "p(x)"], "rename yours in the file"),
    ):
        out = tmp_path / "p.jsonl"
        argv = ["predict", str(folders / model), "--file", str(file), "--out", str(out), *words]
        assert cli.main(argv) == 1
        assert problem in capsys.readouterr().err
        assert not out.exists()


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
