"""Rows that do not say what they seem to: shifted by a comma, joined, vectors in place of labels,
or one object by keys. The right values, or what is wrong and a remedy."""

from __future__ import annotations

import bz2
import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bothways.errors import InputError
from bothways.io.annotations.squad import read_questions
from bothways.io.records import ParagraphReader
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Rows, read_rows
from bothways.tasks.texts import RegressionTask

AB = (["a", "b"], ["x", "y"])
SEVERAL = {"kind": "multilabel"}


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path, **options: Any) -> Rows:
    return read_rows(path, TaskOptions(**options), labelled=True)


# ---------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    "content",
    [
        "sentence,label\na,x,\nb,y,\n",
        "sentence,label\na,x,,,\nb,y\n",
        "sentence,label,\na,x\nb,y,\n",
        "sentence,,label\na,,x\nb,,y\n",
        ",sentence,label\n7,a,x\n8,b,y\n",
    ],
)
def test_separators_that_part_nothing(content: str, tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.csv", content))
    assert (found.a, found.labels) == AB


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence,label,note\nb,y,\nOne, two,x,\n", r":3: has 4 comma-separated columns"),
        (
            "sentence,label,note\nOne, two,x,\nb,y,\n",
            r":3: has 3 columns, and line 2 has more, which are empty",
        ),
        ("sentence,label\nb,y\nOne, two,\n", r":3: has 3 comma-separated columns"),
        ("sentence,label,,\nb,y,,\nOne, two,x,\n", r":3: holds 'x' behind the last column with"),
        ("sentence,label\na,x\nlabel,sentence\ny,b\n", r":3: repeats the column names of line 1"),
        ("sentence,label\na,x\nSentence , LABEL\nb,y\n", r":3: repeats the column names of line 1"),
        ("id,sentence,label\n1,One, two,x,\n2,b,y\n", r":2: has 5 comma-separated columns"),
        ("sentence,label,note\nOne, two,x,\nb,y,z\n", r":3: has 3 columns, and line 2 has more"),
        ("sentence,label\n--------,-----\na,x\n", r":2: is a line of dashes.* sed '2d' OLD > NEW"),
        ('sentence,label\r"a\nc",x\rb,y\r', r":1: a line break .*carriage return"),
        ('[\n  {"sentence": "a", "label": "x"}\n]\n', r":1: this is JSON; name the file"),
    ],
)
def test_rows_that_are_shifted(content: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", content)
    with pytest.raises(InputError, match=message):
        read(path)


def test_a_text_may_be_a_name(tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.csv", "sentence,label\nlabel,x\nsentence,y\n"))
    assert (found.a, found.labels) == (["label", "sentence"], ["x", "y"])


def test_names_of_rows_that_have_no_name(tmp_path: Path) -> None:
    """As R's write.table leaves them; the command in the message is followed."""
    content = '"sentence","label"\n"doc_a","a","x"\n"doc_b","b","y"\n'
    with pytest.raises(InputError, match=r":2: .*R's write\.table") as raised:
        read(write(tmp_path, "OLD.csv", content))
    command = re.search(r"sed .*?OLD > NEW", str(raised.value))
    assert command is not None
    shell = command[0].replace("OLD", "OLD.csv").replace("NEW", "NEW.csv")
    subprocess.run(["bash", "-c", shell], cwd=tmp_path, check=True)
    found = read(tmp_path / "NEW.csv")
    assert (found.a, found.labels) == AB


def test_archives_are_named(tmp_path: Path) -> None:
    content = "sentence\tlabel\na\tx\n"
    with pytest.raises(InputError, match="decompress it"):
        read(write(tmp_path, "a.tsv.bz2", bz2.compress(content.encode())))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("a.tsv", content)
    with pytest.raises(InputError, match="unpack it"):
        read(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.yaml"])
def test_records_are_no_text_to_learn_from(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, "text\tlabel\n")
    with pytest.raises(InputError, match="holds records"):
        [*ParagraphReader().read(path, lambda _: None)]


@pytest.mark.parametrize(
    ("score", "remedy"),
    [
        ("\u22121.5", r"write -1\.5; the minus sign here is that of typesetters"),
        ("1.234,56", r"write 1234\.56, with a decimal point alone"),
        ("1,23,456", r"write 123456 if the comma parts thousands"),
        ("1,234", r"write 1234 if the comma parts thousands, 1\.234 if it is a decimal comma"),
    ],
)
def test_scores_that_are_named(score: str, remedy: str, tmp_path: Path) -> None:
    options = TaskOptions(kind="regression")
    rows = read_rows(
        write(tmp_path, "a.tsv", f"sentence\tlabel\na\t{score}\n"), options, labelled=True
    )
    with pytest.raises(InputError, match=rf":2: .*{remedy}"):
        RegressionTask(options).targets(rows)


def test_second_texts_of_other_spellings(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "a,b,label\none,NaN,x\ntwo,three,y\n")
    found = read(path, text_a="a", text_b="b")
    assert "texts such as 'NaN' (line 2)" in " ".join(found.broken.remarks)
    path = write(tmp_path, "b.csv", "a,b,label\none,b'c',x\ntwo,b'd',y\n")
    with pytest.raises(InputError, match="every text is written as Python writes bytes"):
        read(path, text_a="a", text_b="b")


# -------------------------------------------------------------------------------- several labels


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["[0, 0, 1]", "[1, 1, 0]", "[0, 0, 0]"], ""),
        (["[0.0, 0.0, 1.0]", "[1.0, 1.0, 0.0]", "[0.0, 0.0, 0.0]"], ""),
        (["[False, False, True]", "[True, True, False]", "[False, False, False]"], ","),
        (["0 0 1", "1 1 0", "0 0 0"], " "),
        (["0,0,1", "1,1,0", "0,0,0"], ","),
    ],
)
def test_vectors_of_0_and_1(cells: list[str], separator: str, tmp_path: Path) -> None:
    """As scikit-learn, setfit and simpletransformers have several labels."""
    lines = "".join(f"t{n}\t{cell}\n" for n, cell in enumerate(cells))
    path = write(tmp_path, "a.tsv", f"sentence\tlabel\n{lines}")
    options = {**SEVERAL, "label_separator": separator}
    with pytest.raises(
        InputError, match=r":2: .* a vector of 0 and 1.* task\.labels with 3 names\."
    ):
        read(path, **options)
    with pytest.raises(InputError, match="with 3 names, not 2"):
        read(path, **options, labels=("p", "q"))
    assert read(path, **options, labels=("p", "q", "r")).several == [("r",), ("p", "q"), ()]


def test_vectors_of_two(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "sentence\tlabel\nt0\t[0, 1]\nt1\t[1, 0]\n")
    with pytest.raises(InputError, match="every example has the labels 0 and 1, as vectors"):
        read(path, **SEVERAL)
    assert read(path, **SEVERAL, labels=("p", "q")).several == [("q",), ("p",)]


def test_numbers_that_are_labels(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "sentence\tlabel\nt0\t[0, 3]\nt1\t[1]\nt2\t[0, 1]\n")
    expected = [("0", "3"), ("1",), ("0", "1")]
    assert read(path, **SEVERAL).several == expected
    assert read(path, **SEVERAL, labels=("0", "1", "3")).several == expected


@pytest.mark.parametrize("separator", ["", ","])
def test_lists_as_python_shows_them(separator: str, tmp_path: Path) -> None:
    options = {**SEVERAL, "label_separator": separator}
    path = write(tmp_path, "a.tsv", "sentence\tlabel\nt0\t{'b', 'a'}\nt1\tset()\n")
    assert read(path, **options).several == [("a", "b"), ()]
    for cell in ("dict_keys(['a'])", "array(['a'], dtype=object)", "frozenset()"):
        path = write(tmp_path, "b.tsv", f"sentence\tlabel\nt0\t{cell}\n")
        with pytest.raises(InputError, match=r":2: .* a list as neither JSON nor Python writes it"):
            read(path, **options)


# ------------------------------------------------------------------------------------------ JSON


@pytest.mark.parametrize(
    "content",
    [
        {"1": {"sentence": "a", "label": "x"}, "2": {"sentence": "b", "label": "y"}},
        {"u": {"sentence": "a", "label": "x"}, "v": {"sentence": "b", "label": "y", "z": 1}},
        {"sentence": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}},
        {"sentence": {"u": "a", "v": "b"}, "label": {"u": "x", "v": "y"}},
        {
            n: {"u": a, "v": b}
            for n, a, b in (("sentence", "a", "b"), ("label", "x", "y"), ("n", 1, 2))
        },
    ],
)
def test_rows_and_columns_by_keys(content: object, tmp_path: Path) -> None:
    """Of pandas, orient="index" and orient="columns"."""
    found = read(write(tmp_path, "a.json", json.dumps(content)))
    assert (found.a, found.labels) == AB


def test_one_task_or_text(tmp_path: Path) -> None:
    one = {
        "data": {"sentence": "a"},
        "annotations": [{"result": [result("choices", choices=["x"])]}],
    }
    for content in (one, {"text": "-", "sentence": "a", "mood": "x"}):
        found = read(write(tmp_path, "a.json", json.dumps(content)), label="mood")
        assert (found.a, found.labels) == (["a"], ["x"])


def test_keys_are_ids(tmp_path: Path) -> None:
    items = {f"q{n}": {"question": "Who?", "context": "Ann", "answers": ["Ann"]} for n in range(2)}
    found = read_questions(write(tmp_path, "a.json", json.dumps(items)), labelled=True)
    assert found.ids == ["q0", "q1"]
    assert found.answers is not None
    assert [[answer.text for answer in own] for own in found.answers] == [["Ann"], ["Ann"]]


def result(kind: str, **value: object) -> dict[str, Any]:
    return {"from_name": "mood", "to_name": "text", "type": kind, "value": value}


def tasks(*results: dict[str, Any]) -> str:
    each = enumerate(results)
    return json.dumps(
        [
            {"id": n, "data": {"sentence": f"t{n}"}, "annotations": [{"result": [r]}]}
            for n, r in each
        ]
    )


def test_other_controls_of_label_studio(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", tasks(result("textarea", text=["x"])))
    assert read(path, label="mood").labels == ["x"]
    path = write(tmp_path, "b.json", tasks(result("taxonomy", taxonomy=[["x", "y"]])))
    with pytest.raises(InputError, match="it is a taxonomy, which is read as no label"):
        read(path, label="mood")


def test_discarded_responses_of_argilla(tmp_path: Path) -> None:
    states = ("submitted", "discarded")
    items = [
        {"sentence": s, "label.responses": ["x"], "label.responses.status": [s]} for s in states
    ]
    path = write(tmp_path, "a.json", json.dumps(items))
    found = read(path, label="label.responses")
    assert (found.a, found.labels) == (["submitted"], ["x"])
    assert "1 example that the annotator rejected or skipped" in " ".join(found.broken.remarks)
    assert len(read_rows(path, TaskOptions(), labelled=False)) == 2


def test_an_object_of_one_value(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", json.dumps([{"sentence": "a", "label": {"score": 3.5}}]))
    with pytest.raises(InputError, match=r"For its value: --label label\.score\.") as raised:
        read(path, kind="regression")
    label = str(raised.value).split("--label ")[1].split(". ")[0]
    assert read(path, kind="regression", label=label).labels == ["3.5"]


def test_tabs_and_quotation_marks_under_the_name_of_csv(tmp_path: Path) -> None:
    options = {"header": False, "text_a": "0", "label": "2"}
    for content, message in (
        ('a\tx\t1\n"b\t"y\t2\nc\tz\t3\n', r":1: has 1 columns"),
        ('a\tx\t1\n"b"d\ty\t2\nc\tz\t3\n', r":2: a quotation mark"),
    ):
        with pytest.raises(InputError, match=rf"{message}.*name the file \.tsv"):
            read(write(tmp_path, "a.csv", content), **options)
        found = read(write(tmp_path, "a.tsv", content), **options)
        assert (found.a[1][:2], found.labels) == ('"b', ["1", "2", "3"])


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(InputError, match="is a folder, and not that of a data set"):
        read(tmp_path / "d")


def test_types_of_other_libraries(tmp_path: Path) -> None:
    kind = {"ARROW:extension:name": "other.period"}
    fields = [pa.field("sentence", pa.string()), pa.field("label", pa.int64(), metadata=kind)]
    table = pa.table({"sentence": ["a"], "label": [7]}, schema=pa.schema(fields))
    pq.write_table(table, tmp_path / "a.parquet")
    said = " ".join(read(tmp_path / "a.parquet").broken.remarks)
    assert said == "the values of 'label' are those that other.period is stored as"


@pytest.mark.parametrize("label", ["b'x'", 'b"x"', "tensor(1)", "np.int64(1)", "np.str_('x')"])
def test_labels_as_python_prints_them(label: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(f"text\tlabel\na\ty\nb\t{label}\n")
    with pytest.raises(InputError, match=r":3: .*how Python prints"):
        read_rows(path, TaskOptions(text_a="text"), labelled=True)
    named = TaskOptions(text_a="text", labels=("y", label))
    assert read_rows(path, named, labelled=True).labels == ["y", label]


def test_texts_that_are_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\n['a', 'b']\tx\n['c']\ty\n")
    rows = read_rows(path, TaskOptions(text_a="text"), labelled=True)
    assert "every text is a list" in " ".join(rows.broken.notes("a.tsv"))
    path.write_text("text\tlabel\n['a', 'b']\tx\nc\ty\n")
    rows = read_rows(path, TaskOptions(text_a="text"), labelled=True)
    assert not rows.broken.notes("a.tsv")
