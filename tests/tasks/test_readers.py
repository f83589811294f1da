"""Reading labelled examples: what is text stays text, and what is wrong is named by its line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bothways.errors import ConfigError, InputError
from bothways.io.broken import Broken
from bothways.io.fields import quoted_as_csv
from bothways.io.lines import Layout, Line, stream_lines
from bothways.io.tables import read_table
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Rows, read_rows

SINGLE = TaskOptions()
PAIR = TaskOptions(text_a="s1", text_b="s2", label="score", kind="regression")
NUMBERED = TaskOptions(text_a="3", label="1", header=False)
MRPC = TaskOptions(text_a="#1 String", text_b="#2 String", label="Quality")


def lines_left_out(rows: Rows) -> list[int]:
    assert rows.broken.lines == rows.broken.left_out == len(rows.broken.first)
    return [line for _, line, _ in rows.broken.first]


def write(folder: Path, content: str | bytes, name: str = "data.tsv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_quotation_marks_are_text(tmp_path: Path) -> None:
    path = write(tmp_path, 'sentence\tlabel\n"lone\t1\nsay ""hi""\t0\n"a"\t1\n')
    rows = read_rows(path, SINGLE, labelled=True)
    assert rows.a == ['"lone', 'say ""hi""', '"a"']
    assert rows.labels == ["1", "0", "1"]
    assert rows.lines == [2, 3, 4]
    assert rows.b is None


def test_mark_crlf_spaces_and_unicode_line_breaks(tmp_path: Path) -> None:
    content = "\ufeffsentence\tlabel\r\na\u2028b\x85c \t 1\r\n\tb\r\n\r\n"
    rows = read_rows(write(tmp_path, content), SINGLE, labelled=True)
    assert rows.a == ["a\u2028b\x85c ", ""]
    assert rows.labels == ["1", "b"]
    assert rows.empty == 1


def test_columns_by_number(tmp_path: Path) -> None:
    rows = read_rows(
        write(tmp_path, "gj\t1\t\tFine.\ngj\t0\t*\tIs not.\n"), NUMBERED, labelled=True
    )
    assert rows.a == ["Fine.", "Is not."]
    assert rows.labels == ["1", "0"]
    assert rows.lines == [1, 2]


def test_files_to_predict_need_no_label(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path, "id\ts2\ts1\n0\tb\ta\n"), PAIR, labelled=False)
    assert (rows.a, rows.b, rows.labels) == (["a"], ["b"], None)


def test_a_last_line_of_tabs_is_an_example(tmp_path: Path) -> None:
    """A file to predict gets as many answers as it has lines."""
    rows = read_rows(write(tmp_path, "s1\ts2\na\tb\n\t\n\t\n\n \n"), PAIR, labelled=False)
    assert (rows.a, rows.b, rows.lines) == (["a", "", ""], ["b", "", ""], [2, 3, 4])
    objects = write(tmp_path, '{"s1": "a", "s2": "b"}\n\t\n', "x.jsonl")
    assert read_rows(objects, PAIR, labelled=False).lines == [1]


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
def test_a_line_with_too_long_a_text(tmp_path: Path, suffix: str) -> None:
    header = "" if suffix == "jsonl" else "sentence\n"
    path = write(tmp_path, header + "x" * (2**20 + 1), f"x.{suffix}")
    with pytest.raises(InputError, match="longer than 1 MiB, the limit for a text that") as refused:
        read_rows(path, TaskOptions(), labelled=False)
    assert "max_line_mib" not in str(refused.value)


def test_json_labels(tmp_path: Path) -> None:
    labels = ["x", 3, 2.5, True]
    lines = [json.dumps({"label": label, "sentence": "t\tt"}) for label in labels]
    rows = read_rows(write(tmp_path, "\n".join(lines), "d.jsonl"), SINGLE, labelled=True)
    assert rows.labels == ["x", "3", "2.5", "true"]
    assert rows.a == ["t\tt"] * 4
    missing = '{"label": 1, "sentence": "a"}\n{"label": NaN, "sentence": "b"}\n'
    with pytest.raises(InputError, match=r"d\.jsonl:2: key 'label' holds NaN; a missing label"):
        read_rows(write(tmp_path, missing, "d.jsonl"), SINGLE, labelled=True)


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence\tlabel\na\t1\nb\t0\tmore\n", r"data\.tsv:3: has 3 .* line 1 has 2"),
        ("sentence\tlabel\na\t1\nb\nc\t0\n", r"data\.tsv:3: has 1 tab.* has 2: 'b'; a text may"),
        ("sentence\tlabel\na\t1\nb,0\n", r"data\.tsv:3: .*: 'b,0'; with commas between"),
        ("sentence\tlabel\na\t1\nsentence\tlabel\n", r"data\.tsv:3: repeats the column names"),
        ("sentense\tlabel\na\t1\n", r"data\.tsv:1: .*lacks .*'sentence'.*Did you mean 'sentense'"),
        ("sentence\ttag\na\t1\n", r"data\.tsv:1: .*lacks .*'label'.*'sentence', 'tag'"),
        ("sentence\tlabel\tlabel\na\t1\t1\n", r"data\.tsv:1: .*twice .*'label'"),
        ("sentence\tlabel\na\t \n", r"data\.tsv:2: the label is empty"),
        ("", r"data\.tsv: is empty"),
        ("\n\n \n", r"data\.tsv: is empty"),
        ("sentence\tlabel\n", r"data\.tsv: has no examples"),
        ("sentence\tlabel\n\t1\n \t0\n", r"every text in column 'sentence' is empty"),
        (b"sentence\tlabel\na\t1\nab\xff\t1\n", r"data\.tsv:3: not UTF-8: byte 0xff at byte 2"),
        (b"sentence\tlabel\na\0b\t1\n", r"data\.tsv:2: NUL character at character 1 "),
        ("sentence\tlabel\na\t1\n".encode("utf-16"), r"data\.tsv:1: the file is UTF-16"),
    ],
)
def test_malformed_tsv(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_rows(write(tmp_path, content), SINGLE, labelled=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r":2: is not JSON"),
        ("[1]", r":2: is JSON but not an object"),
        ("[" * 100_000, r":2: is not JSON"),
        ('{"sentense": "a", "label": 1}', r":2: key 'sentence' is missing.*mean 'sentense'"),
        ('{"sentence": null, "label": 1}', r":2: key 'sentence' is null"),
        ('{"sentence": 5, "label": 1}', r":2: key 'sentence' holds 5; a text is a string"),
        ('{"sentence": "a", "label": [1, 2]}', r":2: key 'label' holds 2 labels.*multilabel"),
        ('{"sentence": "a", "label": []}', r":2: key 'label' holds \[\]"),
        ('{"sentence": "a", "label": ""}', r":2: the label is empty"),
        ('{"sentence": "a", "label": "a\\tb"}', r":2: the label .* tab"),
        ('{"sentence": "\\ud800", "label": 1}', r":2: .*surrogate"),
        ('{"sentence": "a\\u0000", "label": 1}', r":2: holds a NUL"),
    ],
)
def test_malformed_jsonl(tmp_path: Path, line: str, message: str) -> None:
    good = '{"sentence": "a", "label": 1}\n'
    with pytest.raises(InputError, match=message):
        read_rows(write(tmp_path, f"{good}{line}\n{good}", "d.jsonl"), SINGLE, labelled=True)


def test_files_that_are_not_there_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.tsv: cannot be read: No such file"):
        read_rows(tmp_path / "none.tsv", SINGLE, labelled=True)
    with pytest.raises(InputError, match=r"\.csv"):
        read_rows(write(tmp_path, "a,b", "data.csv"), SINGLE, labelled=True)
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(InputError, match="is a folder, not a file"):
        read_rows(tmp_path / "folder.tsv", SINGLE, labelled=True)


def test_column_numbers_are_checked(tmp_path: Path) -> None:
    path = write(tmp_path, "a\t1\n")
    with pytest.raises(InputError, match=r"2 columns, 0 to 1; there is no column 3"):
        read_rows(path, NUMBERED, labelled=True)
    with pytest.raises(ConfigError, match=r"'sentence'.*numbers from 0"):
        read_rows(path, TaskOptions(header=False), labelled=True)
    # The official CoLA files have no header: say so when one is looked for.
    with pytest.raises(InputError, match=r"task\.header false"):
        read_rows(path, SINGLE, labelled=True)


TSV_TEXT = st.text(st.characters(exclude_characters="\t\n\r\0", codec="utf-8"))
JSON_TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


@given(st.lists(TSV_TEXT, min_size=1).filter(lambda texts: any(t.strip() for t in texts)))
def test_any_text_survives_tsv(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    content = "".join(f"{text}\t{i}\n" for i, text in enumerate(["sentence", *texts]))
    path = write(tmp_path_factory.mktemp("tsv"), content.replace("\t0\n", "\tlabel\n", 1))
    rows = read_rows(path, SINGLE, labelled=True)
    assume(not quoted_as_csv(path.read_text(encoding="utf-8").split("\n")))
    # What ends up at the start of a line in joined files is no text.
    assert rows.a == [text.lstrip("\ufeff\x1a") for text in texts]
    assert rows.labels == [str(i + 1) for i in range(len(texts))]


@given(st.lists(JSON_TEXT, min_size=1).filter(lambda texts: any(t.strip() for t in texts)))
def test_any_text_survives_jsonl(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    lines = [
        json.dumps({"sentence": text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(texts)
    ]
    path = write(tmp_path_factory.mktemp("jsonl"), "\n".join(lines), "d.jsonl")
    assert read_rows(path, SINGLE, labelled=False).a == texts


@pytest.mark.parametrize(
    ("options", "folder", "counts"),
    [
        (MRPC, "MRPC", {"train": 3668, "dev": 408}),
        (SINGLE, "SST-2", {"train": 67349, "dev": 872}),
        (TaskOptions(text_a="sentence1", text_b="sentence2"), "RTE", {"train": 2490, "dev": 277}),
        (
            TaskOptions(text_a="sentence1", text_b="sentence2", label="score", kind="regression"),
            "STS-B",
            {"train": 5749, "dev": 1500},
        ),
        (NUMBERED, "CoLA", {"train": 8551, "dev": 1043}),
    ],
)
def test_official_files(
    shared_data: Callable[[str], Path],
    options: TaskOptions,
    folder: str,
    counts: dict[str, int],
) -> None:
    for part, count in counts.items():
        rows = read_rows(shared_data(f"glue/{folder}/{part}.tsv"), options, labelled=True)
        assert len(rows) == count
        assert rows.empty == 0


# ------------------------------------------------- files of one task with and without a header line

COLA = TaskOptions(columns=("source", "label", "star", "sentence"))


def test_a_task_whose_files_differ_in_their_header(tmp_path: Path) -> None:
    train = read_rows(write(tmp_path, "gj\t1\t\tFine.\ngj\t0\t*\tIs not.\n"), COLA, labelled=True)
    assert (train.a, train.labels, train.lines) == (["Fine.", "Is not."], ["1", "0"], [1, 2])
    test = write(tmp_path, "index\tsentence\n0\tsentence\n1\tFine.\n", "test.tsv")
    rows = read_rows(test, COLA, labelled=False)
    assert (rows.a, rows.lines) == (["sentence", "Fine."], [2, 3])
    headed = write(tmp_path, "sentence\tlabel\nFine.\t1\n", "headed.tsv")
    assert read_rows(headed, COLA, labelled=True).labels == ["1"]


def test_declared_columns_are_checked(tmp_path: Path) -> None:
    path = write(tmp_path, "gj\t1\tFine.\n")
    with pytest.raises(InputError, match=r"data\.tsv:1: has 3 .* task\.columns names 4"):
        read_rows(path, COLA, labelled=True)
    wrong = TaskOptions(columns=("label", "sentense", "x"))
    with pytest.raises(ConfigError, match=r"it must name column 'sentence' once.*mean 'sentense'"):
        read_rows(path, wrong, labelled=True)


def test_mnli_and_qqp_and_stsb_in_their_official_columns(tmp_path: Path) -> None:
    """Each by its declaration; quotation marks and parses are text."""
    mnli = (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
        "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
        '0\t1\t1n\tx\t( a )\t( b )\t(A)\t(B)\tThe "end\tIt ends.\tneutral\tentailment\n'
    )
    rows = read_rows(write(tmp_path, mnli), task_recipe("mnli").task, labelled=True)
    assert (rows.a, rows.b, rows.labels) == (['The "end'], ["It ends."], ["entailment"])
    qqp = (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "1\t2\t3\tWhy?\tWhy not?\t0\n"
        "2\t4\t5\tWas he real? \n"
        "\tIs there evidence?\t1\n"
        "3\t6\t7\tHow?\tIn what way?\t1\n"
    )
    rows = read_rows(write(tmp_path, qqp), task_recipe("qqp").task, labelled=True)
    assert (rows.a, rows.labels, rows.lines) == (["Why?", "How?"], ["0", "1"], [2, 5])
    assert lines_left_out(rows) == [3, 4]
    stsb = (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tnews\tf\t2012\t1\tn\tn\tA plane.\tAn air plane.\t5.000\n"
    )
    rows = read_rows(write(tmp_path, stsb), task_recipe("stsb").task, labelled=True)
    assert rows.labels == ["5.000"]


# ------------------------------------------------------------------------- broken lines, JSON lists


def test_broken_lines_are_left_out_only_if_asked_and_only_of_labelled_files(tmp_path: Path) -> None:
    content = "sentence\tlabel\na\t1\nb\nc\t \nd\t0\n"
    path = write(tmp_path, content)
    with pytest.raises(InputError, match=r"data\.tsv:3: .*task\.broken skip"):
        read_rows(path, SINGLE, labelled=True)
    skip = TaskOptions(broken="skip")
    rows = read_rows(path, skip, labelled=True)
    assert (rows.a, rows.labels, lines_left_out(rows)) == (["a", "d"], ["1", "0"], [3, 4])
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


def test_quotation_marks_behind_the_beginning_count_after_a_comment(tmp_path: Path) -> None:
    rows = [f"row {n}\t1" for n in range(2000)]
    content = "\n".join(["# made by a program", "sentence\tlabel", *rows, '"say ""hi"""\t1']) + "\n"
    read = read_rows(write(tmp_path, content), SINGLE, labelled=True)
    assert read.a[-1] == 'say "hi"'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("w " * 100_000 + "\n", "lacks the column 'sentence'"),
        ("sent\rence,label\na,x\n", r"a line break within a field \(a carriage return\)"),
    ],
)
def test_first_lines_that_are_no_names(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_rows(write(tmp_path, content, "data.csv"), SINGLE, labelled=True)


@pytest.mark.parametrize("name", ["data.csv", "data.tsv"])
def test_the_beginning_that_is_kept_of_a_table_has_a_size(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand long texts would be a gigabyte."""
    mark = "," if name.endswith("csv") else "\t"
    rows = [f"{'w ' * 50}{n}{mark}1" for n in range(50)]
    content = "\n".join([f"sentence{mark}label", *rows, f'"say ""hi"""{mark}1']) + "\n"
    path, coming = write(tmp_path, content, name), []

    def counted(*args: Any, **options: Any) -> Iterator[Line]:
        for line in stream_lines(*args, **options):
            coming.append(line[0])
            yield line

    monkeypatch.setattr("bothways.io.delimited._KEPT", 500)
    monkeypatch.setattr("bothways.io.delimited.stream_lines", counted)
    if name == "data.csv":  # tabs are told apart from text by all quotation marks of a file
        next(read_table(path, ["sentence"], Layout(), Broken()))
        assert len(coming) < 10
    found = read_rows(path, SINGLE, labelled=True)
    assert (len(found), found.a[-1]) == (51, 'say "hi"')


KLUE = TaskOptions(text_a="s", label="labels.real", kind="regression")


def test_json_lists_and_keys_inside(tmp_path: Path) -> None:
    one, two = '{"s": "하나,]", "labels": {"real": 4.5}}', '{"s": "둘",\n "labels": {"real": 1}}'
    content = f"\n [\n {one},\n\n {two}\n]\n"
    rows = read_rows(write(tmp_path, content, "d.json"), KLUE, labelled=True)
    assert (rows.a, rows.labels, rows.lines) == (["하나,]", "둘"], ["4.5", "1"], [3, 5])
    flat = '[{"s": "a", "labels.real": 2}]'
    assert read_rows(write(tmp_path, flat, "d.json"), KLUE, labelled=True).labels == ["2"]


def test_rows_of_values_have_as_many_as_there_are_columns(tmp_path: Path) -> None:
    """As pandas writes by orient='split'; a value beyond the columns was dropped."""
    table = {"columns": [0, 1], "data": [["a", "x"], ["b", "y", "z"], ["c", "x"]]}
    path = write(tmp_path, json.dumps(table, indent=1), "d.json")
    options = TaskOptions(text_a="0", label="1", broken="skip")
    with pytest.raises(InputError, match=r"d\.json:11: has 3 values for 2 columns"):
        read_rows(path, replace(options, broken="error"), labelled=True)
    rows = read_rows(path, options, labelled=True)
    assert (rows.a, rows.labels, lines_left_out(rows)) == (["a", "c"], ["x", "x"], [11])


def test_lines_are_those_of_the_list_that_is_read(tmp_path: Path) -> None:
    about = {"data": ["of which", "another"]}
    items = [{"sentence": text, "label": "x"} for text in "abc"]
    path = write(tmp_path, json.dumps({"about": about, "data": items}, indent=1), "d.json")
    assert read_rows(path, SINGLE, labelled=True).lines == [9, 13, 17]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"s": "a"}', r"d\.json:1: is not a JSON list"),
        ("[]", r"d\.json: has no examples"),
        ("\n[ ]\n", r"d\.json: has no examples"),
        ('[{"s": "a", "labels": {"real": 1}}\n {"s": "b"}]', r"d\.json:2: the list breaks off"),
        ('[{"s": "a", "labels": {"real": 1}},\n', r"d\.json:1: is not JSON"),
        ('[{"s": "a", "labels": {"real": 1}},\n]', r"d\.json:2: is not JSON"),
        ('[\n"a"]', r"d\.json:2: the list holds"),
        ('[\n\n{"s": "a", "labels": {"reel": 1}}]', r"d\.json:3: key 'labels\.real' is missing"),
        ('[{"s": "a", "labels": 3}]', r"d\.json:1: key 'labels\.real' is missing"),
        ('[{"s": "a", "labels": {"real": null}}]', r"d\.json:1: key 'labels\.real' is null"),
        ("[" * 100_000, r"d\.json:1: "),
        ('[{"s": "a", "labels": {"real": 1}}\n]\n\n[{"s": "b"}]', r"d\.json:4: .* follows the end"),
        ('[{"s": "a", "labels": {"real": 1}}]]', r"d\.json:1: '\]' follows the end of the list"),
        ('[]\n[{"s": "a"}]', r"d\.json:2: .* follows the end"),
    ],
)
def test_malformed_json_lists(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_rows(write(tmp_path, content, "d.json"), KLUE, labelled=True)


def test_csv_of_spreadsheets_with_decimal_commas(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('label;sentence\n"gut";"Käse, ""alt"";\nSenf"\nschlecht;1,5 Brote\n')
    rows = read_rows(path, TaskOptions(), labelled=True)
    assert rows.a == ['Käse, "alt";\nSenf', "1,5 Brote"]
    assert (rows.labels, rows.lines) == (["gut", "schlecht"], [2, 4])
    path.write_text('"sentence";label;"a, b"\nx;1;y\n')
    assert read_rows(path, TaskOptions(), labelled=True).a == ["x"]
    path.write_text("label;sentence\na;b;c\n")
    with pytest.raises(InputError, match=r"x\.csv:2: has 3 semicolon-separated"):
        read_rows(path, TaskOptions(), labelled=True)
    numbered = TaskOptions(text_a="1", label="0", header=False)
    path.write_text("schlecht;1,5 Brote\ngut;zwei\nschlecht;drei\n")  # commas in line 1
    assert read_rows(path, numbered, labelled=True).a == ["1,5 Brote", "zwei", "drei"]
    path.write_text("bad,1;5\ngood,two\n")
    assert read_rows(path, numbered, labelled=True).a == ["1;5", "two"]
    path.write_text("Gut; sehr gut\nSchlecht\n")  # texts alone
    alone = TaskOptions(text_a="0", header=False)
    assert read_rows(path, alone, labelled=False).a == ["Gut; sehr gut", "Schlecht"]


def test_csv_has_real_quoting(tmp_path: Path) -> None:
    """Commas, doubled quotation marks and line breaks are text within quotation marks; a lone
    quotation mark inside an unquoted field is one too."""
    path = tmp_path / "x.csv"
    lines = ["\ufefflabel,sentence", 'a,"one, two"', 'b,"say ""so""', 'then"', 'a,5" long', "", ""]
    path.write_bytes("\r\n".join(lines).encode())
    rows = read_rows(path, TaskOptions(), labelled=True)
    assert rows.a == ["one, two", 'say "so"\nthen', '5" long']
    assert (rows.labels, rows.lines) == (["a", "b", "a"], [2, 3, 5])
    path.write_text('a,"one\n\ntwo"\nb,three,four\n')
    numbered = TaskOptions(text_a="1", label="0", header=False)
    with pytest.raises(InputError, match=r"x\.csv:4: has 3 comma-separated"):
        read_rows(path, numbered, labelled=True)
    named = TaskOptions(columns=("label", "sentence"), broken="skip")
    rows = read_rows(path, named, labelled=True)
    assert (rows.a, lines_left_out(rows)) == (["one\n\ntwo"], [4])
    path.write_text('label,sentence\na,one\nb,"never closed\na,two\n')
    with pytest.raises(InputError, match=r"x\.csv:3: a quotation mark"):
        read_rows(path, TaskOptions(), labelled=True)
    path.write_bytes(b"label,sentence\na,one\rtwo\n")
    with pytest.raises(InputError, match=r"x\.csv:2: a line break within a field \(a carriage"):
        read_rows(path, TaskOptions(), labelled=True)
    path.write_text('label,sentence\na,one\nb,"' + "long\n" * 300_000 + '"\n')
    with pytest.raises(InputError, match=r"x\.csv:3: holds a field longer than 1 MiB.*Break it up"):
        read_rows(path, TaskOptions(), labelled=True)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.conll", "EU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n", "ner"),
        ("a.txt", "EU B-ORG\nrejects O\n", "ner"),
        ("a.jsonl", '{"text": "Ada lives", "label": [[0, 3, "PER"]]}\n' * 2, "ner"),
        (
            "a.json",
            '{"data": [{"paragraphs": [{"context": "Ada.", "qas": [{"question": "Who?", "id": "1",'
            ' "answers": [{"text": "Ada", "answer_start": 0}]}]}]}]}',
            "qa",
        ),
        ("a.csv", "Question,Context,Answer\nWho?,Ada.,Ada\n", "qa"),
        (
            "a.json",
            '[{"data": {"text": "Ada"}, "annotations": [{"result": [{"from_name": "label",\n'
            '"type": "labels", "value": {"start": 0, "end": 3, "labels": ["PER"]}}]}]}]',
            "ner",
        ),
        ("a.tsv", "review\tstars\ngood\t1\n", ""),
        ("b.jsonl", '{"review": "good", "stars": 1}\n', ""),
    ],
)
def test_a_file_of_another_kind_is_recognised(
    tmp_path: Path, name: str, content: str, kind: str
) -> None:
    path = write(tmp_path, content, name)
    with pytest.raises(InputError) as caught:
        read_rows(path, TaskOptions(), labelled=True)
    found = f"(task.kind {kind}), not like classification. "
    assert (found in str(caught.value)) == bool(kind)
    if kind:  # before what follows from it, whose remedy would be another
        assert caught.value.problem.startswith("The file looks like ")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", "label,id,text\nyes,A,a dog\n"),
        ("x.tsv", "text\tlabel\na dog\tyes\n"),
        ("x.jsonl", '{"text": "a dog", "label": "yes"}\n'),
    ],
)
def test_the_usual_names_of_a_column_of_texts(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path, content, name)
    for labelled in (True, False):
        rows = read_rows(path, TaskOptions(), labelled=labelled)
        assert (rows.a, rows.text) == (["a dog"], "text")
        assert rows.broken.notes("x") == [
            "x: it has no column 'sentence'; the texts are those of 'text'"
        ]
    capital = write(tmp_path, "id,Text,label\n1,a,yes\n", "capital.csv")
    assert read_rows(capital, TaskOptions(), labelled=True).text == "Text"
    both = write(tmp_path, "text\tlabel\tsentence\na\tyes\tb\n", "both.tsv")
    assert read_rows(both, TaskOptions(), labelled=True).a == ["b"]
    for options in (
        TaskOptions(text_a="content"),
        TaskOptions(text_b="title"),
        TaskOptions(label="text"),
        TaskOptions(kind="choice", choices=("title", "label")),
    ):
        with pytest.raises(InputError, match=r":1: .*(lacks|missing)"):
            read_rows(path, options, labelled=options.label == "text")


def test_one_column_of_csv_whatever_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, 'sentence,label\n"a, b",yes\n', "x.tsv")
    assert read_rows(path, TaskOptions(), labelled=False).a == ["a, b"]
