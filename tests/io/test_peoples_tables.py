"""Tables as spreadsheets, databases, surveys and data frames leave them: the right values, or what
is wrong and a remedy, which is followed here to the letter."""

from __future__ import annotations

import datetime
import decimal
import json
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bothways.errors import InputError
from bothways.io import frames
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Rows, read_rows

AB = (["a", "b"], ["x", "y"])
SEVERAL = {"kind": "multilabel"}
Book = Any


def write(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_bytes(content.encode())
    return folder / name


def read(path: Path, **options: Any) -> Rows:
    return read_rows(path, TaskOptions(**options), labelled=True)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("sentence,label,\na,x\nb,y\n", AB),  # an empty name, which the rows lack
        ("sentence,\u200blabel\ufeff\na,x\nb,y\n", AB),
        ("sep=\\t\nsentence\tlabel\na\tx\nb\ty\n", AB),
        ("sentence,label\na,['x']\nb,\"['y']\"\n", AB),
        ('sentence,label\na,"[""x""]"\nb,y\n', AB),
        ('sentence,label\na,"{""choices"":[""x""]}"\nb,y\n', AB),
    ],
)
def test_what_is_read(content: str, expected: object, tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.csv", content))
    assert (found.a, found.labels) == expected


@pytest.mark.parametrize("separator", ["", ",", "|"])
@pytest.mark.parametrize("listed", ["\"['x', 'y']\"", '"[""x"", ""y""]"', "\"('x', 'y')\""])
def test_lists_in_cells(listed: str, separator: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", f"sentence,label\na,{listed}\nb,[]\nc,['x']\n")
    assert read(path, **SEVERAL, label_separator=separator).several == [("x", "y"), (), ("x",)]


def test_a_separator_at_the_end_of_labels(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "sentence,label\na,x|y|\nb,x\n")
    assert read(path, **SEVERAL, label_separator="|").several == [("x", "y"), ("x",)]


@pytest.mark.parametrize("cell", ["['x' 'y']", "[1 0 1]", '"{x,y}"', "\"{'x' y}\""])
@pytest.mark.parametrize("separator", ["", ","])
def test_lists_of_other_programs(cell: str, separator: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", f"sentence,label\na,{cell}\n")
    with pytest.raises(InputError, match=r":2: column 'label' holds .*neither JSON nor Python"):
        read(path, **SEVERAL, label_separator=separator)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["x", "\\N"], r":3: the label .*N' is how programs write a missing value"),
        (["#DIV/0!", "x"], r":2: the label '#DIV/0!' is how programs"),
        (["x", "'y'"], ":3: the label 'y' stands in quotation marks"),
        (["x", '="y"'], ':3: the label ="y" stands in quotation marks'),
        (["x#y", "x", "y"], r":2: .*'x#y' is 'x', 'y' with '#' between.*label_separator '#'"),
        (["x", "y/x", "y"], r":3: .*'y/x' .*with '/' between"),
        (["1-2", "02. Jan"], r":3: the label '02. Jan' is a date, and others are such as '1-2'"),
        (["\u2764", "\u2764\ufe0f"], r":3: the labels .* differ in their spelling only"),
        (["yes", "true", "no"], r":3: the labels 'true' here and 'yes' on line 2 differ"),
        (["1", "no", "0", "yes"], r":4: the labels '0' here and 'no' on line 3 differ"),
        (["['x', 'y']", "['x']"], r":2: column 'label' holds 2 labels.*multilabel"),
        (["{'label': 'x'}", "y"], r":2: column 'label' holds an object"),
    ],
)
def test_labels_that_are_named(labels: list[str], message: str, tmp_path: Path) -> None:
    lines = "".join(f"t{n}\t{label}\n" for n, label in enumerate(labels))
    path = write(tmp_path, "a.tsv", "sentence\tlabel\n" + lines)
    with pytest.raises(InputError, match=message):
        read(path)
    assert read(path, labels=tuple(labels)).labels == labels


def test_one_label_with_a_separator_of_its_own(tmp_path: Path) -> None:
    labels = ["x-y", "very good", "y", "C", "C++", "C#", "[UNK]", "(other)", "1-2", "10 days"]
    lines = "".join(f"t{n},{label}\n" for n, label in enumerate(labels))
    assert read(write(tmp_path, "a.csv", f"sentence,label\n{lines}")).labels == labels


def test_the_sum_below_a_table(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "sentence,label\na,x\nb,y\nTotal:,2\n")
    with pytest.raises(InputError, match=r":4: the last row, 'Total:' with '2', seems to sum up"):
        read(path)
    assert read(path, labels=("x", "y", "2")).labels == ["x", "y", "2"]
    path = write(tmp_path, "b.csv", "sentence,label\nTotal,1\nb,0\nc,1\nSum,0\n")
    assert read(path).labels == ["1", "0", "1", "0"]


def test_texts_of_other_spellings(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "sentence,label\nb'one',x\nb'two',y\n")
    with pytest.raises(InputError, match=r":2: every text is written as Python writes bytes"):
        read(path)
    path = write(tmp_path, "b.csv", "sentence,label\n'one',x\n'two',y\n")
    assert "every text stands in single quotation marks" in " ".join(read(path).broken.remarks)
    path = write(tmp_path, "c.csv", "sentence,label\none,x\nNaN,y\n")
    assert "texts such as 'NaN' (line 3)" in " ".join(read(path).broken.remarks)


FOLLOWED = {
    "names below a title": ("a.csv", "My data,\n,\nsentence,label\na,x\nb,y\n", {}, AB),
    "R": ("a.csv", '"sentence","label"\n"1","a","x"\n"2","b","y"\n', {}, AB),
    "R, tabs": ("a.tsv", '"sentence"\t"label"\n"1"\t"a"\t"x"\n"2"\t"b"\t"y"\n', {}, AB),
    "Qualtrics": (
        "a.csv",
        'sentence,label\n"What?\nSay.",Kind\n"{""ImportId"":""Q1""}","{""ImportId"":""Q2""}"\n'
        "a,x\nb,y\n",
        {},
        AB,
    ),
    "SurveyMonkey": ("a.csv", "sentence,label\nOpen-Ended Response,Response\na,x\nb,y\n", {}, AB),
    "fastText": ("a.txt", "__label__x a\n__label__y b\n", {}, AB),
    "fastText, several": (
        "a.txt",
        "__label__x __label__y a\n__label__y b\n",
        {**SEVERAL, "label_separator": ","},
        (["a", "b"], [("x", "y"), ("y",)]),
    ),
}


@pytest.mark.parametrize("case", FOLLOWED)
def test_remedies_followed_to_the_letter(case: str, tmp_path: Path) -> None:
    name, content, options, expected = FOLLOWED[case]
    path = write(tmp_path, name, content)
    with pytest.raises(InputError) as raised:
        read(path, **options)
    command = re.search(r"(tail|sed|\(printf) .*?OLD\)? > NEW(\.tsv)?", str(raised.value))
    assert command is not None, raised.value
    new = "NEW.tsv" if command[2] else f"NEW{path.suffix}"
    shell = command[0].replace("OLD", name).replace("NEW.tsv", "NEW").replace("NEW", new)
    subprocess.run(["bash", "-c", shell], cwd=tmp_path, check=True)
    found = read(tmp_path / new, **options)
    assert (found.a, found.several if options else found.labels) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "'sentence','label'\n'a','x'\n", "names stand in single quotation marks"),
        ("a.txt", "+---+---+\n| sentence | label |\n", r"drawn with lines.*mysql --batch"),
        ("a.txt", " sentence | label\n----------+-------\n a | x\n", r":2: .*dashes.*psql --csv"),
        ("a.csv", 'sentence,label\n "a, b",x\n', "directly behind the comma; remove the spaces"),
        ("a.csv", "sentence,label,z\na,x\n", "a row has as many as line 1, empty ones included"),
        ("a.csv", "sentence,label,label\na,x,y\n", r"twice the column 'label'.*Rename or remove"),
        ("a.xls", "x", "save it as .xlsx"),
        ("a.conll", "a O\n", "--kind tagging"),
    ],
)
def test_what_is_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, name, content))


@pytest.mark.parametrize(
    "content",
    [
        '[{"sentence": "a", "label": "x"}, {"sentence": "b", "label": "NaN"}]',
        '{"data": [{"sentence": "a", "label": "x"}, {"sentence": "b", "label": "NaN"}]}',
        '{"sentence": ["a", "b"],\n\n "label": ["x", "NaN"]}',
        '{"sentence": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "NaN"}}',
    ],
)
def test_rows_of_json_without_lines_have_numbers(content: str, tmp_path: Path) -> None:
    """As pandas and polars write them."""
    with pytest.raises(InputError, match=r"a\.json:2: the label 'NaN'"):
        read(write(tmp_path, "a.json", content))
    assert read(tmp_path / "a.json", labels=("x", "NaN")).lines == [1, 2]


# ------------------------------------------------------------------------- spreadsheets, Parquet


def spreadsheet(path: Path, fill: Callable[[Book], object]) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    fill(book)
    book.save(path)
    return path


def rows_of(*rows: tuple[object, ...]) -> Callable[[Book], object]:
    return lambda book: [book.active.append(row) for row in (("sentence", "label"), *rows)]


def test_cells_are_texts(tmp_path: Path) -> None:
    """A spreadsheet makes numbers and dates of what looks like them."""
    rows = [(2020, 1), ("b", "1"), (datetime.datetime(2020, 1, 2), 0), (" ", None), (1.5, True)]
    path = spreadsheet(tmp_path / "a.xlsx", rows_of(*rows, ("c_x000D_\nd", 2)))
    found = read(path, labels=("0", "1", "2", "true"))
    assert found.a == ["2020", "b", "2020-01-02", "1.5", "c\r\nd"]
    assert found.labels == ["1", "1", "0", "true", "2"]
    assert found.lines == [2, 3, 4, 6, 7]


def test_a_sheet_that_says_it_is_smaller(tmp_path: Path) -> None:
    """As some programs write it."""
    path = spreadsheet(tmp_path / "a.xlsx", rows_of(("a", "x"), ("b", "y")))
    with zipfile.ZipFile(path) as book:
        parts = {name: book.read(name) for name in book.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    assert b'ref="A1:B3"' in parts[sheet]
    parts[sheet] = parts[sheet].replace(b'ref="A1:B3"', b'ref="A1:B2"')
    with zipfile.ZipFile(path, "w") as book:
        for name, content in parts.items():
            book.writestr(name, content)
    found = read(path)
    assert (found.a, found.labels) == AB


def test_an_index_without_a_name(tmp_path: Path) -> None:
    def fill(book: Book) -> None:
        for row in ((None, "sentence", "label"), (0, "a", "x"), (1, "b", "y")):
            book.active.append(row)

    found = read(spreadsheet(tmp_path / "a.xlsx", fill))
    assert (found.a, found.labels) == AB


def test_merged_cells_and_formulas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def merged(book: Book) -> None:
        rows_of(("a", "x"), ("b", None), ("c", "y"))(book)
        book.active.merge_cells("B2:B3")

    with pytest.raises(InputError, match=r":3: column 'label' is one of the merged cells B2:B3"):
        read(spreadsheet(tmp_path / "a.xlsx", merged))
    monkeypatch.setattr(frames, "_MOST_MERGED", 1)
    with pytest.raises(InputError, match=r"a\.xlsx: has the merged cells B2:B3, more than 1, of"):
        read(tmp_path / "a.xlsx")
    path = spreadsheet(tmp_path / "b.xlsx", rows_of(("a", "x"), ('=A2&"!"', "y")))
    with pytest.raises(InputError, match=r":3: column 'sentence' is a formula whose value"):
        read(path)


def test_sheets_and_hidden_rows(tmp_path: Path) -> None:
    def fill(book: Book) -> None:
        book.active.title = "old"
        rows_of(("q", "z"))(book)
        book.active.sheet_state = "hidden"
        for row in (("sentence", "label"), ("a", "x"), ("b", "y")):
            (book["new"] if "new" in book else book.create_sheet("new")).append(row)
        book["new"].row_dimensions[3].hidden = True

    found = read(spreadsheet(tmp_path / "a.xlsx", fill))
    assert (found.a, found.labels) == AB
    said = " ".join(found.broken.remarks)
    assert "first sheet, 'new', is read, and not 'old'" in said
    assert "1 row that the spreadsheet hides" in said

    def cover(book: Book) -> None:
        book.active.append(["About"])
        book.active.append(["by me"])
        book.create_sheet("data").append(["sentence", "label"])

    with pytest.raises(
        InputError, match=r"'sentence' is missing.*'Sheet', is read, and not 'data'"
    ):
        read(spreadsheet(tmp_path / "b.xlsx", cover))


FEATURES = {
    "label": {"names": ["no", "yes"], "_type": "ClassLabel"},
    "about": {"tone": {"names": ["dull", "gay"], "_type": "ClassLabel"}},
}


def test_types_of_parquet(tmp_path: Path) -> None:
    day, at = datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, 4)
    columns = {
        "date": [day, day],
        "time": [at, at],
        "exact": [decimal.Decimal("1.50"), decimal.Decimal("2.00")],
        "bytes": [b"x", b"y"],
        "picture": [b"\xff\xd8", b"\xff\xd8"],
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"sentence": ["a", "b"], **columns}), path)
    expected = {
        "date": ["2020-01-02"] * 2,
        "time": ["2020-01-02 03:04:00"] * 2,
        "exact": ["1.50", "2.00"],
        "bytes": ["x", "y"],
    }
    assert {name: read(path, label=name).labels for name in expected} == expected
    with pytest.raises(InputError, match=r"a.parquet:1: key 'picture' holds .*a label is a string"):
        read(path, label="picture")


@pytest.mark.parametrize("saved", ["parquet", "folder"])
def test_names_of_classes(saved: str, tmp_path: Path) -> None:
    table = pa.table({"sentence": ["a", "b"], "label": [1, 0], "about": [{"tone": 1}, {"tone": 0}]})
    path = tmp_path / ("d.parquet" if saved == "parquet" else "d")

    def save(table: pa.Table) -> None:
        if saved == "parquet":
            about = json.dumps({"info": {"features": FEATURES}})
            pq.write_table(table.replace_schema_metadata({"huggingface": about}), path)
            return
        path.mkdir(exist_ok=True)
        with (
            pa.OSFile(str(path / "d.arrow"), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as writer,
        ):
            writer.write_table(table)
        (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "d.arrow"}]}))
        (path / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))

    save(table)
    assert read(path).labels == ["yes", "no"]
    assert read(path, label="about.tone").labels == ["gay", "dull"]
    save(table.set_column(1, "label", pa.array([-1, 0])))  # as test sets without labels have it
    with pytest.raises(InputError, match=r":1: key 'label' is null"):
        read(path)
    save(table.append_column("label", pa.array([1, 1])))
    with pytest.raises(InputError, match="has the column 'label' twice"):
        read(path)


def test_a_selection_of_a_data_set(tmp_path: Path) -> None:
    state = {"_data_files": [{"filename": "d.arrow"}], "_indices_files": [{"filename": "i.arrow"}]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match=r"a selection of the rows .*flatten_indices"):
        read(tmp_path)
