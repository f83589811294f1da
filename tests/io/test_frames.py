"""Spreadsheets, Parquet files and saved data sets are read as the same rows in other forms are."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bothways import cli
from bothways.errors import ConfigError, InputError
from bothways.io.annotations.conll import ConllFormat
from bothways.io.annotations.squad import read_questions
from bothways.io.annotations.tagged import read_tagged
from bothways.io.broken import Broken
from bothways.io.frames import frame_objects
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import read_rows

openpyxl = pytest.importorskip("openpyxl")

ROWS: list[dict[str, Any]] = [
    {"sentence": "할머니가 빵을 샀다.", "label": "good", "stars": 4},
    {"sentence": 'a "quoted", text\nof two lines', "label": "bad", "stars": 1},
    {"sentence": "", "label": "bad", "stars": 2},
]
Write = Callable[[Path, list[dict[str, Any]]], Path]


def spreadsheet(path: Path, rows: list[dict[str, Any]]) -> Path:
    book = openpyxl.Workbook()
    book.active.append([*rows[0]])
    for row in rows:
        book.active.append([*row.values()])
    book.save(path.with_suffix(".xlsx"))
    return path.with_suffix(".xlsx")


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def dataset(path: Path, rows: list[dict[str, Any]], features: dict[str, Any] | None = None) -> Path:
    """As ``save_to_disk`` of Hugging Face's data sets writes it, in two files."""
    path.mkdir()
    table, names = pa.Table.from_pylist(rows), []
    for number, part in enumerate((table[:1], table[1:])):
        names.append({"filename": f"data-{number:05}-of-00002.arrow"})
        with (
            (path / names[-1]["filename"]).open("wb") as file,
            pa.ipc.new_stream(file, table.schema) as writer,
        ):
            writer.write_table(part)
    (path / "state.json").write_text(json.dumps({"_data_files": names, "_split": "train"}))
    (path / "dataset_info.json").write_text(json.dumps({"features": features or {}}))
    return path


FORMS = [spreadsheet, parquet, dataset]


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_json_lines(form: Write, tmp_path: Path) -> None:
    lines = tmp_path / "data.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    path = form(tmp_path / "data", ROWS)
    for options in (
        TaskOptions(),
        TaskOptions(kind="regression", label="stars"),
        TaskOptions(labels=("good", "bad")),
    ):
        one, other = (read_rows(file, options, labelled=True) for file in (lines, path))
        assert (one.a, one.labels) == (other.a, other.labels)
    first = 2 if form is spreadsheet else 1
    assert other.lines == [first, first + 1, first + 2]
    with pytest.raises(InputError, match=rf"{path.name}.*'text' is missing.*sentence"):
        read_rows(path, TaskOptions(text_a="text"), labelled=True)


def test_classes_of_a_data_set_have_their_names(tmp_path: Path) -> None:
    rows = [{"sentence": "a", "label": 1}, {"sentence": "b", "label": 0}]
    path = dataset(tmp_path / "d", rows, {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}})
    assert read_rows(path, TaskOptions(), labelled=True).labels == ["yes", "no"]


@pytest.mark.parametrize("form", [parquet, dataset])
def test_questions_and_tags(form: Write, tmp_path: Path) -> None:
    answers = {"text": ["a baker"], "answer_start": [7]}
    asked = [
        {"id": str(n), "question": "Who?", "context": "It was a baker.", "answers": answers}
        for n in range(2)
    ]
    found = read_questions(form(tmp_path / "questions", asked), labelled=True)
    assert list(found.texts) == ["Who?", "Who?"]
    tags: list[Any] = [
        {"tokens": ["Ann", "sang"], "ner_tags": ["B-PER", "O"]},
        {"tokens": ["In", "Rome"], "ner_tags": ["O", "B-LOC"]},
    ]
    path = form(tmp_path / "tags", tags)
    lines = tmp_path / "tags.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in tags))
    one, other = (read_tagged(file, ConllFormat(), labelled=True) for file in (lines, path))
    assert (one.format, one.sentences) == (other.format, other.sentences)
    if form is dataset:
        names = ["O", "B-PER", "B-LOC"]
        numbered = [{**row, "ner_tags": [names.index(t) for t in row["ner_tags"]]} for row in tags]
        feature = {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "List"}
        again = dataset(tmp_path / "numbered", numbered, {"ner_tags": feature})
        assert read_tagged(again, ConllFormat(), labelled=True).sentences == one.sentences


def test_cells_of_a_spreadsheet(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append([])
    sheet.append(["when", "n", "x", "", None])
    sheet.append([datetime.date(2020, 1, 2), 3, 0.5, None])
    sheet.append([])
    sheet.append([True, None, "text"])
    book.create_sheet("notes").append(["something"])
    book.save(tmp_path / "a.xlsx")
    broken = Broken()
    rows = [*frame_objects(tmp_path / "a.xlsx", broken)]
    assert rows[0][1] == {"when": "2020-01-02", "n": "3", "x": "0.5"}
    assert rows[1] == (5, {"when": "true", "n": "", "x": "text"})
    assert any("first sheet, 'Sheet', is read" in note for note in broken.notes("a.xlsx"))
    sheet.append(["1", 2, 3, "stray"])
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(InputError, match=r"a.xlsx:6: holds 'stray' in a column without a name"):
        [*frame_objects(tmp_path / "a.xlsx", broken)]


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, why in {"a.xlsx": "as a spreadsheet", "a.parquet": "as Parquet"}.items():
        with pytest.raises(InputError, match="no such file"):
            read_rows(tmp_path / name, TaskOptions(), labelled=True)
        (tmp_path / name).write_bytes(b"text")
        with pytest.raises(InputError, match=f"{name}.*cannot be read {why}"):
            read_rows(tmp_path / name, TaskOptions(), labelled=True)
    splits = tmp_path / "splits"
    splits.mkdir()
    (splits / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InputError, match=r"splits train, test; name .*splits/train"):
        read_rows(splits, TaskOptions(), labelled=True)
    broken = dataset(tmp_path / "broken", ROWS)
    (broken / "data-00001-of-00002.arrow").write_bytes(b"no arrow")
    with pytest.raises(InputError, match=r"data-00001.*save_to_disk"):
        read_rows(broken, TaskOptions(), labelled=True)
    twice = spreadsheet(tmp_path / "twice", [{"a": 1, "a ": 2}])
    with pytest.raises(InputError, match="the column 'a' twice"):
        read_rows(twice, TaskOptions(), labelled=True)
    empty = parquet(tmp_path / "empty", ROWS)
    pq.write_table(pq.read_table(empty)[:0], empty)
    with pytest.raises(InputError, match="has no rows"):
        read_rows(empty, TaskOptions(), labelled=True)
    path = spreadsheet(tmp_path / "fine", ROWS)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ConfigError, match=r"bothways\[frames\]"):
        read_rows(path, TaskOptions(), labelled=True)


def test_from_a_spreadsheet_to_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"sentence": f"the {'good' if n % 2 else 'bad'} boat {n}", "label": "yn"[n % 2]}
        for n in range(16)
    ]
    train, dev = spreadsheet(Path("train"), rows), dataset(Path("dev"), rows[:8])
    test = parquet(Path("test"), [{"sentence": row["sentence"]} for row in rows[:3]])
    words = ["finetune", "--run", "r", "--task.train", train, "--task.dev", dev, "--epochs", "1"]
    more = ["--task.predict", test, "--length", "16", "--precision", "fp32"]
    for _ in range(2):
        assert cli.main([*map(str, words), *map(str, more)]) == 0, capsys.readouterr().err
    assert "seed 0: finished before, kept" in capsys.readouterr().out
    model = "r/seed-0/model"
    for given in (train, dev, test):
        assert cli.main(["predict", model, "--file", str(given), "--out", "p.tsv"]) == 0
        assert len(Path("p.tsv").read_text().splitlines()) == {train: 17, dev: 9, test: 4}[given]
        words = ["embed", model, "--file", str(given), "--out", "v.npz"]
        assert cli.main(words) == 0, capsys.readouterr().err
    assert cli.main(["evaluate", model, str(dev)]) == 0
