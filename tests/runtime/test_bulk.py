"""Files of any size: read in windows, written in parts, continued after kills to the same bytes."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bothways import cli
from bothways.errors import RunError
from bothways.io.parts import Parts
from bothways.model.folder import save_model
from bothways.runtime import bulk, engine
from bothways.tasks import readers
from model_examples import small_bert, small_config, small_tokenizer

VOCABULARY = 97
ROWS = 53
# An engine that gives a function of the tokens, and takes its time if that is asked for.
ENGINE = """
import contextlib, os, time
import numpy as np


class Dummy:
    name, precision = "dummy", "fp32"

    def __init__(self, loaded):
        self.loaded, self.pause = loaded, float(os.environ.get("PAUSE", 0))

    def working(self):
        return contextlib.nullcontext()

    def compute(self, batch, heads={}, layers=()):
        time.sleep(self.pause)
        found = {h: self.rows(batch.tokens[at], self.loaded.heads[h]) for h, at in heads.items()}
        for layer in layers:
            found[f"layer {layer}"] = self.rows(batch.tokens + layer, self.loaded.config.hidden)
        return found

    def rows(self, tokens, columns):
        return np.sin(tokens[:, None] * np.arange(1, columns + 1)).astype(np.float32)
"""
# The program with windows of a few rows.
SCRIPT = """
import sys
from bothways import cli
from bothways.tasks import readers
readers.WINDOW_ROWS = 10
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the path, with an installed package that brings the engine."""
    site = tmp_path_factory.mktemp("site")
    about = site / "dummy-1.0.dist-info"
    about.mkdir()
    (site / "dummy_engine.py").write_text(ENGINE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: dummy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[bothways.engines]\ndummy = dummy_engine:Dummy\n")
    return site


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    config, tokenizer = small_config((1, 32, 4, 50, VOCABULARY)), small_tokenizer(VOCABULARY)
    base = {"kind": "classification", "labels": ["x", "y"], "length": 12}
    for name, options in (("tuned", {}), ("pairs", {"text_b": "other"})):
        columns = {"text_a": "text", "label": "gold", **options}
        about = {**base, "pair": bool(options), "options": columns}
        save_model(root / name, small_bert(config, classes=2, seed=1), tokenizer, about)
    scores = {"kind": "regression", "length": 12, "options": {"text_a": "text", "label": "gold"}}
    save_model(root / "scores", small_bert(config, classes=1, seed=1), tokenizer, scores)
    return root


def texts() -> list[str]:
    rng = np.random.default_rng(0)
    words = [[f"w{n}" for n in rng.integers(0, 90, size)] for size in rng.integers(0, 20, ROWS)]
    return [" ".join(own) for own in words]


def write(path: Path) -> Path:
    """The texts in the format that the name asks for."""
    rows = [{"id": n, "text": text, "other": f"w{n}"} for n, text in enumerate(texts())]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=20)
    elif path.suffix == ".txt":
        path.write_text("".join(row["text"] + "\n" for row in rows))
    else:
        separator = "," if path.suffix == ".csv" else "\t"
        lines = [separator.join(rows[0]), *(separator.join(map(str, r.values())) for r in rows)]
        path.write_text("\n".join(lines) + "\n")
    return path


Run = Callable[..., str]


@pytest.fixture
def run(
    models: Path, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs a verb with the engine and windows of so many rows; what it says on stderr."""
    monkeypatch.syspath_prepend(site)

    def call(verb: str, model: str, *words: object, rows: int = 10, status: int = 0) -> str:
        monkeypatch.setattr(readers, "WINDOW_ROWS", rows)
        engine = [] if "--engine" in words else ["--engine", "dummy"]
        argv = [verb, str(models / model), *map(str, words), *engine]
        assert cli.main([*argv, "--precision", "fp32"]) == status
        return capsys.readouterr().err

    return call


def content(path: Path) -> Any:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pydict()
    if path.suffix == ".arrow":
        return pa.ipc.open_file(path).read_all().to_pydict()
    return path.read_bytes()


@pytest.mark.parametrize("given", [".jsonl", ".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize("made", [".jsonl", ".csv", ".tsv", ".parquet", ".json"])
def test_predictions_do_not_depend_on_windows(
    run: Run, tmp_path: Path, given: str, made: str
) -> None:
    file = write(tmp_path / f"in{given}")
    whole, parts = tmp_path / f"whole{made}", tmp_path / f"parts{made}"
    for out, rows in ((whole, 1000), (parts, 10)):
        run("predict", "tuned", "--file", file, "--keep", "id", "text", "--out", out, rows=rows)
    assert content(whole) == content(parts)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([file.name, whole.name, parts.name])
    if made == ".parquet":
        table = pq.read_table(parts)
        assert table.column_names == ["index", "id", "text", "prediction", "p(x)", "p(y)"]
        assert table["index"].to_pylist() == list(range(ROWS))
        assert table["text"].to_pylist() == texts()
        assert table.schema.field("p(x)").type == pa.float64()
        assert pq.ParquetFile(parts).num_row_groups == 6


# A value for each row of three windows: columns that change their type from one to the next.
KEPT: dict[str, list[Any]] = {
    "id": [*range(30)],
    "price": [1] * 10 + [2.5, None] * 5 + [3] * 10,
    "sure": [True, None] * 15,
    "none": [None] * 30,
    "mixed": [7] * 10 + ["seven"] * 20,
    "where": [{"page": 3, "of": [1, 2]}] * 30,
    "note": [" a  b\n\tc "] * 30,
}


@pytest.mark.parametrize("verb", ["predict", "embed"])
@pytest.mark.parametrize("given", [".jsonl", ".parquet"])
@pytest.mark.parametrize("rows", [1000, 10])
def test_values_are_kept_as_they_are(
    verb: str, given: str, rows: int, run: Run, tmp_path: Path
) -> None:
    names = [name for name in KEPT if given != ".parquet" or name != "mixed"]
    kept = [{name: KEPT[name][n] for name in names} for n in range(30)]
    file = tmp_path / f"in{given}"
    of_rows = [{"text": f"w{n}", **own} for n, own in enumerate(kept)]
    if given == ".parquet":
        pq.write_table(pa.Table.from_pylist(of_rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in of_rows))
    words = ["--file", file, "--keep", *names, "--out"]
    if verb == "embed":
        words = ["--text_a", "text", *words]

    run(verb, "tuned", *words, tmp_path / "a.jsonl", rows=rows)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [{n: json.loads(line)[n] for n in names} for line in lines] == kept

    run(verb, "tuned", *words, tmp_path / "a.parquet", rows=rows)
    table = pq.read_table(tmp_path / "a.parquet")
    for name in names:
        given_values = KEPT[name]
        if name in ("mixed", "where"):  # no one type has them
            given_values = [v if isinstance(v, str) else json.dumps(v) for v in given_values]
        assert table[name].to_pylist() == given_values
    assert table.schema.field("id").type == pa.int64()
    assert table.schema.field("price").type == pa.float64()

    if verb == "embed":
        run(verb, "tuned", *words, tmp_path / "a.npz", rows=rows)
        with np.load(tmp_path / "a.npz") as stored:
            assert stored["id"].tolist() == KEPT["id"]
            assert stored["note"].tolist() == KEPT["note"]
            assert stored["sure"].tolist() == ["true", ""] * 15
        return
    said = run(verb, "tuned", *words, tmp_path / "a.csv", rows=rows)
    assert "line breaks" not in said
    with (tmp_path / "a.csv").open(newline="") as stream:
        found = [*csv.DictReader(stream)]
    assert [row["note"] for row in found] == KEPT["note"]
    assert [row["sure"] for row in found] == ["true", ""] * 15
    assert json.loads(found[0]["where"]) == KEPT["where"][0]
    said = run(verb, "tuned", *words, tmp_path / "a.tsv", rows=rows)
    assert "tabs and line breaks of 30 kept cells are spaces in a.tsv" in said
    found = [line.split("\t") for line in (tmp_path / "a.tsv").read_text().splitlines()]
    assert {row[1 + names.index("note")] for row in found[1:]} == {" a  b c "}


def test_cells_of_tables_are_kept_as_they_are(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,id,note\nw1,007,"  two  spaces\nand a line "\n')
    words = ("--file", tmp_path / "a.csv", "--keep", "id", "note", "--out")
    run("predict", "tuned", *words, tmp_path / "o.jsonl")
    (found,) = map(json.loads, (tmp_path / "o.jsonl").read_text().splitlines())
    assert (found["id"], found["note"]) == ("007", "  two  spaces\nand a line ")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        (["\udfff"], "surrogate"),
        (math.inf, "JSON has no form for"),
        ({"a": [math.nan]}, "JSON has no form for"),
    ],
)
def test_values_that_cannot_be_kept(value: Any, problem: str, run: Run, tmp_path: Path) -> None:
    file, out = tmp_path / "a.jsonl", tmp_path / "o.jsonl"
    file.write_text(json.dumps({"text": "w1", "note": value}) + "\n")
    said = run("predict", "tuned", "--file", file, "--keep", "note", "--out", out, status=1)
    assert problem in said
    assert "a.jsonl:1: " in said
    assert not out.exists()


@pytest.mark.parametrize("rows", [1000, 10])
@pytest.mark.parametrize(
    "pair",
    [
        (2**53 + 1, 0.5),
        (2**63, 1),
        (1.5, True),
        (0, False),
        (1.0, "x"),
        ({"a": 1}, {"b": 2}),
        ({}, {}),
        ([], [1, "x"]),
        (None, [None]),
    ],
)
def test_values_of_no_one_type_are_json_in_parquet(
    pair: tuple[Any, Any], rows: int, run: Run, tmp_path: Path
) -> None:
    file, out = tmp_path / "a.jsonl", tmp_path / "o.parquet"
    values = [pair[0]] * 10 + [pair[1]] * 10
    lines = [json.dumps({"text": "w1", "id": value}) for value in values]
    file.write_text("\n".join(lines) + "\n")
    run("predict", "tuned", "--file", file, "--keep", "id", "--out", out, rows=rows)
    as_text = [v if isinstance(v, str) or v is None else json.dumps(v) for v in values]
    assert pq.read_table(out)["id"].to_pylist() == as_text


def test_line_ends_in_csv(run: Run, tmp_path: Path) -> None:
    file, out = tmp_path / "a.jsonl", tmp_path / "o.csv"
    values = ["a\rb", "a\nb", 'a"b', "a\r", "\r\n"]
    lines = [json.dumps({"text": "w1", "note": value}) for value in values]
    file.write_text("\n".join(lines) + "\n")
    run("predict", "tuned", "--file", file, "--keep", "note", "--out", out)
    with out.open(newline="") as stream:
        assert [row["note"] for row in csv.DictReader(stream)] == values


LONG = "w1 " * 400_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"id,text\n1,w1\n2,{LONG}\n3,w3\n", [0, 2]),
        (f'id,text\n1,w1\n2,"{LONG}"\n3,w3\n', [0, 2]),
        (f'id,text\n1,w1\n2,"w2\n{LONG}\nw2"\n3,w3\n', [0, 2]),
        (f'id,text\n1,w1\n2,"{LONG}\nw2"\n3,w3\n', [0, 2]),
        (f'id,text\n1,w1\n2,"w2\n{LONG}"\n3,w3\n', [0, 2]),
        (f'id,text\n1,"w1\nw1"\n2,{LONG}\n3,"w3\nw3"\n', [0, 2]),
        ('id,text\n1,w1\n2,"w2\n\x00\nw2"\n3,w3\n', [0, 2]),
    ],
)
def test_rows_of_several_lines_are_left_out_whole(
    text: str, expected: list[int], run: Run, tmp_path: Path
) -> None:
    file, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    file.write_text(text)
    words = ("--file", file, "--out", out, "--broken", "skip")
    run("predict", "tuned", *words)
    found = [json.loads(line)["index"] for line in out.read_text().splitlines()]
    assert found == expected


@pytest.mark.parametrize("given", [".jsonl", ".csv", ".tsv", ".parquet", ".txt"])
@pytest.mark.parametrize("made", [".jsonl", ".npy", ".parquet", ".arrow", ".npz"])
def test_vectors_do_not_depend_on_windows(run: Run, tmp_path: Path, given: str, made: str) -> None:
    file = write(tmp_path / f"in{given}")
    whole, parts = tmp_path / f"whole{made}", tmp_path / f"parts{made}"
    words = [] if given == ".txt" else ["--text_a", "text"]
    for out, rows in ((whole, 1000), (parts, 10)):
        run("embed", "tuned", "--file", file, *words, "--out", out, rows=rows)
    assert content(whole) == content(parts)
    if made == ".npy":
        assert np.load(parts).shape == (ROWS, 32)
        kept = run("embed", "tuned", "--file", file, "--keep", "id", "--out", parts, status=1)
        assert "a .npy file holds one array" in kept


def test_vectors_of_tokens_and_other_tasks(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl")
    for rows in (1000, 10):
        out = tmp_path / f"{rows}.parquet"
        words = ("--file", file, "--text_a", "text", "--pooling", "tokens")
        run("embed", "tuned", *words, "--out", out, rows=rows)
        for model in ("pairs", "scores"):
            out = tmp_path / f"{model}-{rows}.jsonl"
            run("predict", model, "--file", file, "--out", out, rows=rows)
    assert content(tmp_path / "10.parquet") == content(tmp_path / "1000.parquet")
    for model in ("pairs", "scores"):
        assert content(tmp_path / f"{model}-10.jsonl") == content(tmp_path / f"{model}-1000.jsonl")


def test_the_notes_are_those_of_the_whole_file(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl")
    said = [
        run("predict", "tuned", "--file", file, "--out", tmp_path / "o.jsonl", rows=rows)
        for rows in (1000, 10)
    ]
    assert "examples were cut to 12 tokens" in said[0]
    assert sorted(said[0].splitlines()) == sorted(said[1].splitlines())


def test_rows_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"text": f"w{n}"}).encode() for n in range(35)]
    lines[3], lines[17] = b"{", b'{"text": "w\xff"}'
    lines[31] = b'{"text": 7}'
    file.write_bytes(b"\n".join(lines))
    for rows in (10, 1000):
        said = run("predict", "tuned", "--file", file, "--out", out, status=1, rows=rows)
        assert f"{file}:4: is not JSON" in said
        said = run("predict", "tuned", "--file", file, "--out", out, "--broken", "skip", rows=rows)
        assert "in.jsonl: 3 broken lines were left out: 4, 18, 32. Line 4: is not JSON" in said
        found = [json.loads(line)["index"] for line in out.read_text().splitlines()]
        assert found == [n for n in range(35) if n not in (3, 17, 31)]
    said = run("embed", "tuned", "--file", file, "--text_a", "text", "--out", out, status=1)
    assert f"{file}:4: is not JSON" in said
    words = ("--file", file, "--text_a", "text", "--out", out, "--broken", "skip")
    assert "3 broken lines were left out: 4, 18, 32" in run("embed", "tuned", *words)
    assert len(out.read_text().splitlines()) == 32


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".txt", ".parquet"])
@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_a_row_that_is_too_long_is_left_out(
    verb: str, ending: str, run: Run, tmp_path: Path
) -> None:
    long = "w1 " * 400_000
    given = ["w1", long, "w2", "w3 " * 800_000, "w4"]
    file, out = tmp_path / f"in{ending}", tmp_path / "out.jsonl"
    if ending == ".parquet":
        pq.write_table(pa.table({"text": given}), file)
    elif ending == ".jsonl":
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in given))
    else:
        rows = given if ending == ".txt" else ["text\tid", *(f"{text}\t1" for text in given)]
        lines = "\n".join(rows) + "\n"
        file.write_text(lines.replace("\t", ",") if ending == ".csv" else lines)
    first = 3 if ending in (".csv", ".tsv") else 2
    words = ["--file", file, "--out", out]
    if verb == "embed" or ending == ".txt":
        words = [*words, *([] if ending == ".txt" else ["--text_a", "text"])]
    verb = "embed" if ending == ".txt" else verb
    said = run(verb, "tuned", *words, status=1)
    assert f"{file}:{first}: " in said
    assert "1 MiB" in said
    said = run(verb, "tuned", *words, "--broken", "skip")
    assert f"2 broken lines were left out: {first}, {first + 2}. Line {first}: " in said
    assert "longer than 1 MiB" in said
    found = [json.loads(line) for line in out.read_text().splitlines()]
    if verb == "embed":
        assert [row["text"] for row in found] == ["w1", "w2", "w4"]
    else:
        assert [row["index"] for row in found] == [0, 2, 4]


def test_other_columns_are_named(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "in.parquet")
    out = tmp_path / "out.npy"
    said = run("embed", "tuned", "--file", file, "--text_a", "txt", "--out", out, status=1)
    assert "no column 'txt'; the columns are 'id', 'text', 'other'. Did you mean" in said
    said = run("embed", "tuned", "--file", file, "--text_a", "id", "--out", out, status=1)
    assert "column 'id' holds 0, not a text" in said
    nulls = tmp_path / "nulls.parquet"
    pq.write_table(pa.table({"text": ["w1", None]}), nulls)
    said = run("embed", "tuned", "--file", nulls, "--text_a", "text", "--out", out, status=1)
    assert "nulls.parquet:2: column 'text' holds null" in said
    assert not out.exists()


def test_a_repaired_file_goes_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was computed before a row that cannot be read is kept; what changed is made again."""
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"text": f"w{n}"}) for n in range(45)]
    file.write_text("\n".join([*lines[:37], "{", *lines[38:]]))
    assert "in.jsonl:38" in run("predict", "tuned", "--file", file, "--out", out, status=1)
    assert not out.exists()
    lines[12] = json.dumps({"text": "w80"})
    file.write_text("\n".join(lines))
    computed = []
    compute = bulk.Labelling.compute

    def counted(self: Any, loaded: Any, prepared: Any) -> Any:
        computed.append(prepared.rows.lines[0])
        return compute(self, loaded, prepared)

    monkeypatch.setattr(bulk.Labelling, "compute", counted)
    said = run("predict", "tuned", "--file", file, "--out", out)
    assert "continued from the parts in out.jsonl.parts" in said
    assert computed[0] == 11
    assert 1 not in computed
    again = tmp_path / "again.jsonl"
    run("predict", "tuned", "--file", file, "--out", again, rows=1000)
    assert out.read_bytes() == again.read_bytes()


def test_parts_of_another_command_are_not_used(run: Run, tmp_path: Path) -> None:
    file, out = write(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    file.write_text(file.read_text() + "{")
    words = ("--file", file, "--text_a", "text", "--out", out)
    run("embed", "tuned", *words, status=1)
    assert (tmp_path / "out.jsonl.parts").is_dir()
    file = write(tmp_path / "in.jsonl")
    assert "continued" not in run("embed", "tuned", *words, "--normalize", "true")
    expected = tmp_path / "e.jsonl"
    run("embed", "tuned", *words[:-1], expected, "--normalize", "true", rows=1000)
    assert out.read_bytes() == expected.read_bytes()


def test_parts_of_another_engine_are_not_used(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none is named, of an environment that has others."""
    file, out = write(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    whole = file.read_text()
    file.write_text(whole + "{")
    words = ("embed", "tuned", "--file", file, "--text_a", "text")
    run(*words, "--engine", "auto", "--out", out, status=1)
    file.write_text(whole)
    others = {name: entry for name, entry in engine.engines().items() if name == "onnxruntime"}
    monkeypatch.setattr(engine, "engines", lambda **_: others)
    assert "continued" not in run(*words, "--engine", "auto", "--out", out)
    expected = tmp_path / "expected.jsonl"
    run(*words, "--engine", "onnxruntime", "--out", expected)
    assert out.read_bytes() == expected.read_bytes()


def test_only_parts_are_removed(run: Run, tmp_path: Path) -> None:
    file, out, own = write(tmp_path / "in.jsonl"), tmp_path / "o.jsonl", tmp_path / "o.jsonl.parts"
    words = ("embed", "tuned", "--file", file, "--text_a", "text", "--out", out)
    own.mkdir()
    (own / "notes.txt").write_text("mine")
    assert "and holds other files" in run(*words, status=1)
    assert (own / "notes.txt").read_text() == "mine"
    (own / "notes.txt").unlink()
    run(*words)
    assert not own.exists()
    own.write_text("mine")
    assert "cannot be written" in run(*words, status=1)
    assert own.read_text() == "mine"
    own.unlink()
    out.unlink()
    out.mkdir()
    assert f"{out} is a folder" in run(*words, status=1)
    assert not own.exists()


def test_one_process_writes(tmp_path: Path) -> None:
    with (
        Parts(tmp_path / "o.jsonl", {}),
        pytest.raises(RunError, match="another process is writing"),
        Parts(tmp_path / "o.jsonl", {}),
    ):
        pass


def test_a_kill_while_parts_are_joined(tmp_path: Path) -> None:
    with Parts(tmp_path / "o.jsonl", {"a": (1,)}) as parts:
        for number in range(3):
            parts.add(number, "d", b"%d\n" % number, {"rows": 1})
        (parts._folder / "00000001.jsonl").rename(tmp_path / "away")
        with pytest.raises(Exception, match="cannot be written"):
            parts.join(3)
    assert not (tmp_path / "o.jsonl").exists()
    with Parts(tmp_path / "o.jsonl", {"a": (1,)}) as parts:
        assert parts.resumed
        assert parts.known(0, "d") == {"rows": 1, "digest": "d"}
        assert parts.known(0, "e") is None
        assert parts.known(1, "d") is None
        parts.add(1, "d", b"1\n", {"rows": 1})
        parts.join(3, b"head\n")
    assert (tmp_path / "o.jsonl").read_bytes() == b"head\n0\n1\n2\n"
    assert not list(tmp_path.glob("*.parts"))


def started(site: Path, words: list[str], pause: float = 0.0) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, "PAUSE": str(pause)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words],
        env=env,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[bytes]) -> str:
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said.decode()
    return said.decode()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_killed_at_any_point(verb: str, models: Path, site: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl")
    suffix = ".tsv" if verb == "predict" else ".parquet"

    def words(out: Path) -> list[str]:
        own = ["--text_a", "text", "--precision", "fp32"] if verb == "embed" else ["--keep", "id"]
        named = [str(models / "tuned"), "--file", str(file), "--out", str(out)]
        return [verb, *named, "--engine", "dummy", *own]

    expected, out = tmp_path / f"expected{suffix}", tmp_path / f"out{suffix}"
    finished(started(site, words(expected)))
    for after in (0, 1, 2, 4):
        process = started(site, words(out), pause=0.2)
        parts = tmp_path / f"out{suffix}.parts"
        while len(list(parts.glob(f"*{suffix}"))) < after or not parts.exists():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.07 * after)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert not out.exists()
    assert "continued from the parts" in finished(started(site, words(out)))
    assert out.read_bytes() == expected.read_bytes()


@pytest.mark.slow
def test_several_workers_write_the_same(models: Path, site: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "in.csv")
    found = []
    for workers in ("1", "2"):
        out = tmp_path / f"{workers}.csv"
        words = ["predict", str(models / "tuned"), "--file", str(file), "--out", str(out)]
        finished(started(site, [*words, "--engine", "dummy", "--workers", workers]))
        found.append(out.read_bytes())
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_cluster_writes_the_same(run: Run, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra `cluster` is missing")
    file, own, out = write(tmp_path / "in.csv"), tmp_path / "own.jsonl", tmp_path / "out.jsonl"
    words = ("predict", "tuned", "--file", file, "--engine", "onnxruntime")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        for target, more in ((own, ()), (out, ("--cluster", cluster.scheduler_address))):
            run(*words, "--out", target, *more)
    assert own.read_bytes() == out.read_bytes()


@pytest.mark.slow
def test_memory_does_not_grow(models: Path, site: Path, tmp_path: Path) -> None:
    """A million lines take little more memory than a hundred thousand."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the largest memory of a process is read from /proc")
    script = (
        "import sys\nfrom bothways import cli\nassert cli.main(sys.argv[1:]) == 0\n"
        # (That of getrusage counts the process that started this one, too.)
        "print(next(x.split()[1] for x in open('/proc/self/status') if x.startswith('VmHWM')))\n"
    )
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    peaks = []
    for lines in (100_000, 1_000_000):
        file = tmp_path / "in.txt"
        with file.open("w") as opened:
            opened.writelines(f"w{n % 90} w{n % 7}\n" for n in range(lines))
        out = tmp_path / "out.npy"
        words = ["embed", str(models / "tuned"), "--file", str(file), "--out", str(out)]
        done = subprocess.run(
            [sys.executable, "-c", script, *words, "--engine", "dummy"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert np.load(out, mmap_mode="r").shape == (lines, 32)
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] < 1.15 * peaks[0], peaks
