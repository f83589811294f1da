"""Reading labelled examples: what is text stays text, and what is wrong is named by its line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import InputError
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Texts, read_rows

SINGLE = TaskOptions()


PAIR = TaskOptions(text="s1", text_b="s2", label="score", kind="regression")


def lines_left_out(rows: Texts) -> list[int]:
    assert rows.broken.lines == rows.broken.left_out == len(rows.broken.first)
    return [line for _, line, _ in rows.broken.first]


def write(folder: Path, content: str | bytes, name: str = "data.tsv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_files_to_predict_need_no_label(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path, "id\ts2\ts1\n0\tb\ta\n"), PAIR, labelled=False)
    assert (rows.a, rows.b, rows.labels) == (["a"], ["b"], None)


def test_a_last_line_of_tabs_is_an_example(tmp_path: Path) -> None:
    """A file to predict gets as many answers as it has lines."""
    rows = read_rows(write(tmp_path, "s1\ts2\na\tb\n\t\n\t\n\n \n"), PAIR, labelled=False)
    assert (rows.a, rows.b, rows.lines) == (["a", "", ""], ["b", "", ""], [2, 3, 4])
    objects = write(tmp_path, '{"s1": "a", "s2": "b"}\n\t\n', "x.jsonl")
    assert read_rows(objects, PAIR, labelled=False).lines == [1]


@pytest.mark.parametrize(
    ("kind", "label"), [("classification", "-1"), ("regression", "-1.0"), ("multilabel", "[-1]")]
)
def test_labels_that_are_not_given(tmp_path: Path, kind: Any, label: str) -> None:
    """As in test files of GLUE on the Hub."""
    path = write(tmp_path, f"sentence\tlabel\na\t{label}\nb\t{label}\n")
    options = replace(SINGLE, kind=kind)
    with pytest.raises(InputError, match=r"data\.tsv: labels are not given: each is -1"):
        read_rows(path, options, labelled=True)
    assert len(read_rows(path, options, labelled=False)) == 2
    if kind != "regression":  # a model of -1, 0 and 1
        assert len(read_rows(path, replace(options, labels=("-1", "1")), labelled=True)) == 2


def test_files_that_are_not_there_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.tsv: cannot be read: No such file"):
        read_rows(tmp_path / "none.tsv", SINGLE, labelled=True)
    with pytest.raises(InputError, match=r"\.csv"):
        read_rows(write(tmp_path, "a,b", "data.csv"), SINGLE, labelled=True)
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(InputError, match="is a folder, not a file"):
        read_rows(tmp_path / "folder.tsv", SINGLE, labelled=True)


JSON_TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


@given(st.lists(JSON_TEXT, min_size=1).filter(lambda texts: any(t.strip() for t in texts)))
def test_any_text_survives_jsonl(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    lines = [
        json.dumps({"sentence": text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(texts)
    ]
    path = write(tmp_path_factory.mktemp("jsonl"), "\n".join(lines), "d.jsonl")
    assert read_rows(path, SINGLE, labelled=False).a == texts


COLA = TaskOptions(columns=("source", "label", "star", "sentence"))


def test_a_task_whose_files_differ_in_their_header(tmp_path: Path) -> None:
    train = read_rows(write(tmp_path, "gj\t1\t\tFine.\ngj\t0\t*\tIs not.\n"), COLA, labelled=True)
    assert (train.a, train.labels, train.lines) == (["Fine.", "Is not."], [("1",), ("0",)], [1, 2])
    test = write(tmp_path, "index\tsentence\n0\tsentence\n1\tFine.\n", "test.tsv")
    rows = read_rows(test, COLA, labelled=False)
    assert (rows.a, rows.lines) == (["sentence", "Fine."], [2, 3])
    headed = write(tmp_path, "sentence\tlabel\nFine.\t1\n", "headed.tsv")
    assert read_rows(headed, COLA, labelled=True).labels == [("1",)]


def test_mnli_and_qqp_and_stsb_in_their_official_columns(tmp_path: Path) -> None:
    """Each by its declaration; quotation marks and parses are text."""
    mnli = (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
        "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
        '0\t1\t1n\tx\t( a )\t( b )\t(A)\t(B)\tThe "end\tIt ends.\tneutral\tentailment\n'
    )
    rows = read_rows(write(tmp_path, mnli), task_recipe("mnli").task, labelled=True)
    assert (rows.a, rows.b, rows.labels) == (['The "end'], ["It ends."], [("entailment",)])
    qqp = (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "1\t2\t3\tWhy?\tWhy not?\t0\n"
        "2\t4\t5\tWas he real? \n"
        "\tIs there evidence?\t1\n"
        "3\t6\t7\tHow?\tIn what way?\t1\n"
    )
    rows = read_rows(write(tmp_path, qqp), task_recipe("qqp").task, labelled=True)
    assert (rows.a, rows.labels, rows.lines) == (["Why?", "How?"], [("0",), ("1",)], [2, 5])
    assert lines_left_out(rows) == [3, 4]
    stsb = (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tnews\tf\t2012\t1\tn\tn\tA plane.\tAn air plane.\t5.000\n"
    )
    rows = read_rows(write(tmp_path, stsb), task_recipe("stsb").task, labelled=True)
    assert rows.labels == [("5.000",)]


def test_broken_lines_are_left_out_only_if_asked_and_only_of_labelled_files(tmp_path: Path) -> None:
    content = "sentence\tlabel\na\t1\nb\nc\t \nd\t0\n"
    path = write(tmp_path, content)
    with pytest.raises(InputError, match=r"data\.tsv:3: expected 2"):
        read_rows(path, SINGLE, labelled=True)
    skip = TaskOptions(broken="skip")
    rows = read_rows(path, skip, labelled=True)
    assert (rows.a, rows.labels, lines_left_out(rows)) == (["a", "d"], [("1",), ("0",)], [3, 4])
    with pytest.raises(InputError, match=r"data\.tsv:3: "):
        read_rows(path, skip, labelled=False)
    path = write(tmp_path, '{"sentence": "a", "label": 1}\n{\n{"sentence": "b"}\n', "d.jsonl")
    rows = read_rows(path, skip, labelled=True)
    assert (rows.a, lines_left_out(rows)) == (["a"], [2, 3])


@pytest.mark.parametrize("name", ["data.tsv", "data.csv"])
def test_rows_before_a_line_that_is_left_out_keep_their_numbers(name: str, tmp_path: Path) -> None:
    """The beginning of a file is read before its first row is given."""
    mark = "," if name.endswith("csv") else "\t"
    lines = ["sentence,label", "a,1", "b,0", "\xff,0", "c,1"]
    content = "\n".join(lines).replace(",", mark).encode("latin-1")
    rows = read_rows(write(tmp_path, content, name), TaskOptions(broken="skip"), labelled=True)
    assert (rows.a, rows.numbers, lines_left_out(rows)) == (["a", "b", "c"], [0, 1, 3], [4])
