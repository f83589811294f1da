"""Tables of all formats: the same bytes give these rows, or an error that names file and line."""

# ruff: noqa: E501
# fmt: off

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.errors import InputError
from bothways.io.broken import Broken
from bothways.io.rows import Format
from bothways.io.tables import read_items, read_table
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import read_rows

KO = "text\tlabel\n좋아요\tx\n정말 싫어요\ty\n"
KO_ROWS = [(2, "좋아요", "x"), (3, "정말 싫어요", "y")]
JA = "text\tlabel\nとても面白いです\tx\n"

READ: dict[str, tuple[str, str | bytes, dict[str, Any], list[tuple[int, str, str]]]] = {
    "tabs": ("a.tsv", "text\tlabel\nhi\tx\nyo\ty", {}, [(2, "hi", "x"), (3, "yo", "y")]),
    "default column sentence": ("a.tsv", "label\tsentence\nx\thi\n", {}, [(2, "hi", "x")]),
    "text before sentence": ("a.tsv", "sentence\ttext\tlabel\no\thi\tx\n", {}, [(2, "hi", "x")]),
    "byte order mark, CRLF": ("a.csv", "\ufefftext,label\r\nhi,x\r\n", {}, [(2, "hi", "x")]),
    "carriage returns": ("a.tsv", "text\tlabel\rhi\tx\ryo\ty\r", {}, [(2, "hi", "x"), (3, "yo", "y")]),
    "commas under .tsv": ("a.tsv", "text,label\nhi,x\n", {}, [(2, "hi", "x")]),
    "tabs under .csv": ("a.csv", "text\tlabel\nhi, you\tx\n", {}, [(2, "hi, you", "x")]),
    "semicolons": ("a.csv", "text;label\nhi, you;x\n", {}, [(2, "hi, you", "x")]),
    "sep=": ("a.csv", "sep=;\ntext;label\nhi;x\n", {}, [(3, "hi", "x")]),
    "another delimiter": ("a.csv", "text^label\nhi^x\n", {"delimiter": "^"}, [(2, "hi", "x")]),
    "several lines": ("a.csv", 'text,label\n"a\nb",x\nyo,y\n', {}, [(2, "a\nb", "x"), (4, "yo", "y")]),
    "doubled marks": ("a.csv", 'text,label\n"a ""b"", c",x\n', {}, [(2, 'a "b", c', "x")]),
    "marks are text in TSV": ("a.tsv", 'text\tlabel\n"a" b\tx\nc "\ty\n', {}, [(2, '"a" b', "x"), (3, 'c "', "y")]),
    "pandas' TSV": ("a.tsv", 'text\tlabel\n"a ""b"" c"\tx\nyo\ty\n', {}, [(2, 'a "b" c', "x"), (3, "yo", "y")]),
    "a tab inside": ("a.tsv", 'text\tlabel\n"a\tb"\tx\nyo\ty\n', {}, [(2, "a\tb", "x"), (3, "yo", "y")]),
    "all enclosed": ("a.tsv", '"text"\t"label"\n"hi"\t"x"\n', {}, [(2, "hi", "x")]),
    "quoting none": ("a.csv", 'text,label\n"hi" he said,x\n', {"quoting": "none"}, [(2, '"hi" he said', "x")]),
    "quoting csv": ("a.tsv", 'text\tlabel\n"hi"\tx\n', {"quoting": "csv"}, [(2, "hi", "x")]),
    "an index, empty columns": ("a.csv", ",text,label,,\n0,hi,x,,\n", {}, [(2, "hi", "x")]),
    "rows of delimiters": ("a.csv", "text,label\nhi,x\n,\n,\n", {}, [(2, "hi", "x")]),
    "empty texts": ("a.tsv", "text\tlabel\nhi\tx\n\ty\n", {}, [(2, "hi", "x"), (3, "", "y")]),
    "NA is a text": ("a.csv", "text,label\nNA,x\nnan,y\n", {}, [(2, "NA", "x"), (3, "nan", "y")]),
    "a total is a row": ("a.csv", "text,label\nhi,3\nyo,4\nmean,5\n", {}, [(2, "hi", "3"), (3, "yo", "4"), (4, "mean", "5")]),
    "line separators": ("a.tsv", "text\tlabel\na\u2028b\x85c\tx\n", {}, [(2, "a\u2028b\x85c", "x")]),
    "no header": ("a.tsv", "hi\tx\n", {"header": False, "text": "0", "label": "1"}, [(1, "hi", "x")]),
    "named columns": ("a.tsv", "hi\tx\n", {"columns": ("text", "label")}, [(1, "hi", "x")]),
    "named columns, and a header": ("a.tsv", "label\ttext\nx\thi\n", {"columns": ("text", "label")}, [(2, "hi", "x")]),
    "JSON lines": ("a.jsonl", '{"text":"a","label":2}\n\n{"text":"b","label":true}\n', {}, [(1, "a", "2"), (3, "b", "true")]),
    "JSON lines under .json": ("a.json", '{"text":"a","label":1}\n{"text":"b","label":2}\n', {}, [(1, "a", "1"), (2, "b", "2")]),
    "a list": ("a.json", '[\n{"text":"a","label":1},\n{"text":"b",\n"label":2}]', {}, [(2, "a", "1"), (3, "b", "2")]),
    "a list on a line": ("a.json", '[{"text":"a","label":1},{"text":"b","label":2}]', {}, [(1, "a", "1"), (2, "b", "2")]),
    "data": ("a.json", '{"version":1,"data":[{"text":"a","label":1}]}', {}, [(1, "a", "1")]),
    "columns": ("a.json", '{"text":{"0":"a","1":"b"},"label":{"0":1,"1":2}}', {}, [(1, "a", "1"), (2, "b", "2")]),
    "keys inside": ("a.jsonl", '{"text":"a","meta":{"label":[3]}}\n', {"label": "meta.label"}, [(1, "a", "3")]),
    "cp949": ("a.tsv", KO.encode("cp949"), {"encoding": "cp949"}, KO_ROWS),
    "cp932": ("a.tsv", JA.encode("cp932"), {"encoding": "cp932"}, [(2, "とても面白いです", "x")]),
    "UTF-16 with a mark": ("a.tsv", KO.encode("utf-16"), {}, KO_ROWS),
    "UTF-16 without": ("a.tsv", KO.encode("utf-16-le"), {"encoding": "utf-16-le"}, KO_ROWS),
    "UTF-16 JSON": ("a.json", '[{"text":"좋","label":1}]'.encode("utf-16"), {}, [(1, "좋", "1")]),
}
"""File, content, options of the task -> line, text and label of each row."""


@pytest.mark.parametrize("case", READ)
def test_rows(case: str, tmp_path: Path) -> None:
    name, content, options, expected = READ[case]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = read_rows(path, TaskOptions(**options), labelled=True)
    labels = [label for (label,) in rows.labels or []]
    assert [*zip(rows.lines, rows.a, labels, strict=True)] == expected


REFUSED: dict[str, tuple[str, str | bytes, int | None, str, str | None]] = {
    "no file": ("-", "", None, "No such file", None),
    "empty": ("a.tsv", "\n", None, "is empty", None),
    "no rows": ("a.tsv", "text\tlabel\n", None, "no examples", None),
    "no such column": ("a.tsv", "body\tlabel\nhi\tx\n", None, "'body'", "text"),
    "an example as header": ("a.tsv", "hi\tx\nyo\ty\n", None, "'hi', 'x'", "text"),
    "header repeated": ("a.tsv", "text\tlabel\nhi\tx\ntext\tlabel\n", 3, "repeats the column names", None),
    "column twice": ("a.tsv", "text\ttext\tlabel\nhi\tyo\tx\n", 1, "'text'", None),
    "too few fields": ("a.tsv", "text\tlabel\nhi\tx\nyo\n", 3, "expected 2 tab-separated fields", "quoting"),
    "too many": ("a.csv", "text,label\nhi, you,x\n", 2, "expected 2 comma-separated fields", "delimiter"),
    "beside the columns": ("a.csv", "label,text,,\nx,hi, you,\n", 2, "' you' in a column without", "delimiter"),
    "a mark in a field": ("a.csv", 'text,label\n"hi" he said,x\n', 2, "quotation mark", "quoting"),
    "marks that change": ("a.tsv", 'text\tlabel\n"a ""b"" c"\tx\n' + "d\tx\n" * 20000 + 'e "f\tx\n', 20003, "quotation mark", "quoting"),
    "JSON under .csv": ("a.csv", '{"text": "hi"}\n', 1, "JSON", None),
    "HTML under .csv": ("a.csv", "<!DOCTYPE html><html>", None, "HTML", None),
    "PDF": ("a.csv", b"%PDF-1.7\n", None, "a PDF document", None),
    "gzip": ("a.tsv", b"\x1f\x8b\x08", None, "a gzip archive", None),
    "NUL": ("a.tsv", "text\tlabel\n" + "hi\tx\n" * 9 + "y\0o\ty\n", 11, "NUL", None),
    "cp949": ("a.tsv", KO.encode("cp949"), 2, "cp949", "encoding"),
    "cp932": ("a.tsv", JA.encode("cp932"), 2, "cp932", "encoding"),
    "UTF-16": ("a.tsv", KO.encode("utf-16-le"), 1, "utf-16-le", "encoding"),
    "one damaged line": ("a.tsv", KO.encode() + "é\tx\n".encode("latin-1"), 4, "damaged", None),
    "label missing": ("a.tsv", "text\tlabel\nhi\t\n", 2, "label is empty", None),
    "label N/A": ("a.tsv", "text\tlabel\nhi\tx\nyo\tN/A\n", 3, "missing label", None),
    "no gold label": ("a.tsv", "text\tlabel\nhi\tentailment\nyo\t-\n", 3, "missing label", None),
    "labels by case": ("a.tsv", "text\tlabel\nhi\tGood\nyo\tgood\n", 3, "'Good'", None),
    "labels by space": ("a.jsonl", '{"text":"a","label":"a b"}\n{"text":"b","label":"a  b"}\n', 2, "'a b'", None),
    "1 and 1.0": ("a.csv", "text,label\nhi,1\nyo,1.0\n", 3, "'1.0'", None),
    "label null": ("a.jsonl", '{"text":"a","label":null}\n', 1, "no label", None),
    "several labels": ("a.jsonl", '{"text":"a","label":["x","y"]}\n', 1, "not one label", None),
    "no text": ("a.jsonl", '{"text":5,"label":1}\n', 1, "not a text", None),
    "not an object": ("a.jsonl", '{"text":"a","label":1}\n["b",2]\n', 2, "expected an object", None),
    "not JSON": ("a.jsonl", '{"text":"a","label":1}\n{"text":\n', 2, "is not JSON", None),
    "key twice": ("a.jsonl", '{"text":"a","label":1,"label":2}\n', 1, "'label' twice", None),
    "key twice in a list": ("a.json", '[{"text":"a","label":1},\n{"text":"a:","text":"b","label":2}]', 2, "'text' twice", None),
    "a list broken off": ("a.json", '[\n{"text":"a","label":1},\n{"text":', 3, "is not JSON", None),
    "text after a list": ("a.json", '[{"text":"a","label":1}]\n]', 1, "expected an object", None),
    "half a surrogate pair": ("a.jsonl", '{"text":"\\ud83d","label":1}\n', 1, "half a surrogate pair", None),
    "another format": ("a.docx", "hi", None, ".tsv, .txt, .csv", None),
    "no workbook": ("a.xlsx", b"PK", None, "workbook", None),
    "no Parquet": ("a.parquet", b"PAR1", None, "Parquet", None),
}
"""File, content -> line, what the message names, and the option."""


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, tmp_path: Path) -> None:
    name, content, line, named, option = REFUSED[case]
    path = tmp_path / name
    if name != "-":
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as raised:
        read_rows(path, TaskOptions(), labelled=True)
    error = raised.value
    assert error.place is not None
    assert (error.place.source, error.place.row) == (path, line)
    assert named in error.problem
    assert error.option in (option, "broken" if option is None else option)


def test_rows_that_cannot_be_read_are_left_out_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    content = 'text,label\nhi,x\n"caf\xe9\nmore ""é",y\nyo\nyo,y\n'
    path.write_bytes(content.encode("latin-1"))
    rows = read_rows(path, TaskOptions(broken="skip"), labelled=True)
    assert (rows.a, rows.lines, rows.broken.left_out) == (["hi", "yo"], [2, 6], 2)


def test_a_file_in_another_encoding_is_not_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes((KO + "매우 좋은 영화\tx\n" * 30).encode("cp949"))
    with pytest.raises(InputError, match="cp949"):
        read_rows(path, TaskOptions(broken="skip"), labelled=True)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff\x1a")), min_size=2),
    st.sampled_from([",", "\t", ";"]),
)  # fmt: skip
def test_what_the_csv_module_writes(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], delimiter: str
) -> None:
    texts = [text.replace("\r", "") for text in texts]
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([("text", "label"), *((text, "x") for text in texts)])
    path = tmp_path_factory.mktemp("any") / "a.csv"
    path.write_text(out.getvalue(), encoding="utf-8", newline="")
    form = Format(delimiter=delimiter, quoting="csv")
    assert [row.values["text"] for row in read_table(path, form)] == texts


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())), min_size=1
    )
)
def test_any_json(tmp_path_factory: pytest.TempPathFactory, items: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "a.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "a.json").write_text(json.dumps(items, indent=1))
    for name in ("a.jsonl", "a.json"):
        assert [item for _, item in read_items(folder / name)] == items


def test_a_list_larger_than_the_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    items = [{"text": "a" * n, "label": -n} for n in range(0, 700, 3)] + [{"text": "b" * 99999}]
    path.write_text(json.dumps(items))
    assert [item for _, item in read_items(path)] == items


# ------------------------------------------------------------------------------- workbooks, Parquet


def workbook(path: Path, sheets: dict[str, list[list[Any]]], merged: str = "") -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    if merged:
        sheet.merge_cells(merged)
    book.save(path)
    return path


ROWS: list[list[Any]] = [["text", "label"], ["hi", 1], [None, None], ["yo", 2.5], ["NA", True]]


def test_a_workbook(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", {"notes": [], "data": ROWS})
    found = [(row.place.row, *row.values.values()) for row in read_table(path)]
    assert found == [(2, "hi", "1"), (4, "yo", "2.5"), (5, "NA", "true")]


@pytest.mark.parametrize(
    ("sheets", "merged", "named", "option"),
    [
        ({"a": ROWS, "b": ROWS}, "", "2 sheets with cells: 'a', 'b'", "sheet"),
        ({"a": []}, "", "no rows", None),
        ({"a": [["text", "text"], ["a", "b"]]}, "", "'text'", None),
        ({"a": [["text", None], ["a", "b"]]}, "", "without a name", None),
        ({"a": ROWS}, "A2:A4", "merged", None),
    ],
)
def test_workbooks_that_are_refused(
    sheets: dict[str, list[list[Any]]], merged: str, named: str, option: str, tmp_path: Path
) -> None:
    path = workbook(tmp_path / "a.xlsx", sheets, merged)
    with pytest.raises(InputError) as raised:
        [*read_table(path)]
    assert named in raised.value.problem
    assert raised.value.option == option


def test_a_sheet_by_name(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", {"a": ROWS, "b": [["text"], ["other"]]})
    assert [row.values for row in read_table(path, Format(sheet="b"))] == [{"text": "other"}]
    with pytest.raises(InputError, match="no sheet 'c', but 'a', 'b'"):
        [*read_table(path, Format(sheet="c"))]


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    features = {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}}
    table = pa.table({"text": ["hi", "yo"], "label": [1, 0], "__index_level_0__": [5, 6]})
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    path = tmp_path / "a.parquet"
    parquet.write_table(table.replace_schema_metadata(about), path)
    found = [(row.place.row, row.values) for row in read_table(path)]
    assert found == [
        (1, {"text": "hi", "label": "good"}),
        (2, {"text": "yo", "label": "bad"}),
    ]


def test_warnings_of_damaged_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("text\n" + "cafÃ© &amp; \ufffd\n" * 3, encoding="utf-8")
    broken = Broken()
    [*read_table(path, broken=broken)]
    assert [remark.count("3 such lines") for remark in broken.remarks] == [1, 1, 1]
