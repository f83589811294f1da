"""CSV and TSV as spreadsheets and data frames write them: read rightly, or named."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import InputError
from bothways.io.fields import quoted_as_csv
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Rows, read_rows

TEXTS = ['He said "a fine day", twice', "one; two, three", "two\nlines", "a | bar"]


def write(folder: Path, content: str, name: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8", newline="")
    return path


def written(separator: str, texts: list[str], **settings: Any) -> str:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=separator, **settings)
    writer.writerow(["sentence", "label"])
    writer.writerows((text, "good" if n % 2 else "bad") for n, text in enumerate(texts))
    return file.getvalue()


def read(path: Path, **options: Any) -> Rows:
    return read_rows(path, TaskOptions(**options), labelled=True)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("first", ["", "sep={}\r\n", '"sep={}"\r\n', "SEP={}\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_separators_of_csv(separator: str, first: str, mark: str, tmp_path: Path) -> None:
    content = mark + first.format(separator) + written(separator, TEXTS)
    rows = read(write(tmp_path, content, "t.csv"))
    assert (rows.a, rows.labels) == (TEXTS, ["bad", "good"] * 2)
    assert rows.lines[0] == (3 if first else 2)


def test_the_names_that_are_needed_say_what_separates(tmp_path: Path) -> None:
    rows = read(write(tmp_path, "id;text, long;sentence;label\n1;x;a, b;good\n", "t.csv"))
    assert (rows.a, rows.labels) == (["a, b"], ["good"])
    one = write(tmp_path, "sentence\na, b\n", "t.csv")
    with pytest.raises(InputError, match="has 2 comma-separated columns where line 1 has 1"):
        read_rows(one, TaskOptions(), labelled=False)


def test_semicolons_and_decimal_commas(tmp_path: Path) -> None:
    numbered = {"text_a": "0", "label": "1", "header": False}
    rows = read(write(tmp_path, "fine;3,5\nbad;0,5\n", "t.csv"), **numbered)
    assert (rows.a, rows.labels) == (["fine", "bad"], ["3,5", "0,5"])
    # Commas of other kinds separate.
    rows = read(write(tmp_path, "fine; yes,3\nbad; no,5\n", "t.csv"), **numbered)
    assert (rows.a, rows.labels) == (["fine; yes", "bad; no"], ["3", "5"])


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_tsv_with_the_quotation_marks_of_a_csv_writer(quoting: Any, tmp_path: Path) -> None:
    texts = [*TEXTS, "a\ttab", '"', '"all"', "plain"]
    content = written("\t", texts, quoting=quoting)
    assert read(write(tmp_path, content, "t.tsv")).a == texts
    assert read(write(tmp_path, content.replace("\r\n", "\n"), "t.tsv")).a == texts


@pytest.mark.parametrize(
    "texts",
    [
        ['He said "no" to me', '""Twice""'],
        ['"Hello."', 'She said "yes"'],
        ['"Hello there.', 'And then."'],  # over two lines, if it were CSV
        ['"Hello."', "Bye."],
        ['A 5" pipe', 'It is ""odd""'],
    ],
)
def test_quotation_marks_of_text_in_tsv_are_text(texts: list[str], tmp_path: Path) -> None:
    content = "sentence\tlabel\n" + "".join(f"{text}\t1\n" for text in texts)
    assert read(write(tmp_path, content, "t.tsv")).a == texts


TEXT = st.text(st.characters(exclude_characters="\0\r\ufeff\x1a", codec="utf-8"))


@given(st.lists(TEXT))
def test_what_a_writer_writes_is_read(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    texts = [*texts, 'one "quoted" word']
    content = written("\t", texts, lineterminator="\n")
    assert quoted_as_csv(content.split("\n"))
    assert read(write(tmp_path_factory.mktemp("t"), content, "t.tsv")).a == texts


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_blank_lines_and_comments(name: str, tmp_path: Path) -> None:
    s = "," if name == "t.csv" else "\t"
    content = f"# exported\n#\n\nsentence{s}label\n\na{s}good\n \n\nb{s}bad\n\n"
    rows = read(write(tmp_path, content, name))
    assert (rows.a, rows.labels, rows.lines) == (["a", "b"], ["good", "bad"], [6, 9])
    # A '#' in the name of a column begins no comment.
    rows = read(write(tmp_path, f"#id{s}sentence{s}label\n1{s}a{s}x\n", name))
    assert rows.a == ["a"]
    with pytest.raises(InputError, match=r":3: has 1 .*: '# over'; "):
        read(write(tmp_path, f"sentence{s}label\na{s}x\n# over\n", name))


def test_a_file_of_single_texts_keeps_its_blank_lines(tmp_path: Path) -> None:
    """Each line to predict gets an answer."""
    path = write(tmp_path, "sentence\na\n\nb\n", "t.tsv")
    assert read_rows(path, TaskOptions(), labelled=False).a == ["a", "", "b"]


def test_blank_lines_of_json_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path, '{"sentence": "a", "label": 1}\n\n{"sentence": "b", "label": 2}\n', "t.jsonl"
    )
    rows = read(path)
    assert (rows.a, rows.lines) == (["a", "b"], [1, 3])


LABELS = {
    "numbers": (["1", "0", "1.0"], r":4: the labels '1.0' here and '1' on line 2"),
    "case": (["Good", "bad", "good"], r":4: the labels 'good' here and 'Good' on line 2"),
    "spaces": (["very good", "very\u00a0good", "bad"], r":3: .* differ in their spelling only"),
    "truth": (["1", "0", "True"], r":4: the labels 'True' here and '1' on line 2"),
    "missing": (["good", "nan", "bad"], r":3: the label 'nan' is how programs write a missing"),
    "N/A": (["good", "N/A", "bad"], r":3: the label 'N/A' is how"),
    "None": (["good", "bad", "None"], r":4: the label 'None' is how"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_are_no_classes_of_their_own(case: str, tmp_path: Path) -> None:
    labels, message = LABELS[case]
    content = "sentence\tlabel\n" + "".join(f"a\t{label}\n" for label in labels)
    path = write(tmp_path, content, "t.tsv")
    with pytest.raises(InputError, match=message):
        read(path)
    assert read(path, labels=tuple(labels)).labels == labels, "as named"


@pytest.mark.parametrize(
    "labels", [["1.0", "0.0"], ["none", "some"], ["True", "False"], ["1", "true", "2"], ["a", "á"]]
)
def test_labels_that_are(labels: list[str], tmp_path: Path) -> None:
    content = "sentence\tlabel\n" + "".join(f"a\t{label}\n" for label in labels)
    assert read(write(tmp_path, content, "t.tsv")).labels == labels


def test_labels_of_mixed_types_in_json(tmp_path: Path) -> None:
    lines = '{"sentence": "a", "label": 1}\n{"sentence": "b", "label": "1"}\n'
    assert read(write(tmp_path, lines, "t.jsonl")).labels == ["1", "1"], "one label"
    with pytest.raises(InputError, match=r":3: the labels '1\.0' here and '1' on line 1"):
        read(write(tmp_path, lines + '{"sentence": "c", "label": 1.0}\n', "t.jsonl"))
