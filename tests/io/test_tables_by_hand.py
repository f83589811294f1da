"""Tables with other separators and other quotation marks: the right values, or a remedy that is
followed here to the letter."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import InputError
from bothways.io.oddities.forms import KEEP, look_at_forms
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Rows, read_rows

TEXTS = ['a "good", great film', "bad film"]


def write(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_bytes(content.encode())
    return folder / name


def read(path: Path, **options: Any) -> Rows:
    return read_rows(path, TaskOptions(**options), labelled=True)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv"])
@pytest.mark.parametrize(
    ("content", "remark"),
    [
        ('"sentence" "label"\n"a ""good"", great film" "pos"\n"bad film" "neg"\n', "spaces"),
        (
            '"sentence" "label"\n"1" "a \\"good\\", great film" "pos"\n"2" "bad film" "neg"\n',
            "names of rows",
        ),
        (
            '"id" "sentence" "label"\n"1" 7 "a \\"good\\", great film" "pos"\n'
            '"2" 8 "bad film" "neg"\n',
            "stand behind backslashes",
        ),
    ],
)
def test_tables_of_r(name: str, content: str, remark: str, tmp_path: Path) -> None:
    found = read(write(tmp_path, name, content))
    assert (found.a, found.labels) == (TEXTS, ["pos", "neg"])
    notes = " ".join(found.broken.notes(name))
    assert remark in notes
    assert "separated by spaces" in notes


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'sentence,label\n"a \\"good\\", great film",pos\nbad film,neg\n'),
        ("a.csv", 'label;sentence\npos;"a \\"good\\", great film"\nneg;"bad film"\n'),
        ("a.tsv", '"sentence"\t"label"\n"a \\"good\\", great film"\t"pos"\n"bad film"\t"neg"\n'),
        ("a.tsv", 'sentence\tlabel\n"a \\"good\\", great film"\tpos\nbad film\tneg\n'),
        ("a.txt", 'sentence,label\n"a \\"good\\", great film",pos\nbad film,neg\n'),
    ],
)
def test_backslashes_before_quotation_marks(name: str, content: str, tmp_path: Path) -> None:
    found = read(write(tmp_path, name, content))
    assert (found.a, found.labels) == (TEXTS, ["pos", "neg"])
    assert "stand behind backslashes" in " ".join(found.broken.notes(name))


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.csv", 'sentence,label\n"C:\\",pos\n"b",neg\n', "C:\\"),
        ("a.csv", 'sentence,label\n"a \\n ""b""",pos\n"b",neg\n', 'a \\n "b"'),
        ("a.tsv", 'sentence\tlabel\nsays \\"yes\\"\tpos\nb\tneg\n', 'says \\"yes\\"'),
    ],
)
def test_backslashes_that_are_text(name: str, content: str, text: str, tmp_path: Path) -> None:
    found = read(write(tmp_path, name, content))
    assert found.a[0] == text
    assert "backslashes" not in " ".join(found.broken.notes(name))


def test_backslashes_after_the_beginning_have_a_remedy(tmp_path: Path) -> None:
    plain = "".join(f"text {n},pos\n" for n in range(2500))
    path = write(tmp_path, "a.csv", f'sentence,label\n{plain}"a \\"good\\", great film",neg\n')
    with pytest.raises(InputError, match=r":2502: .*backslashes") as raised:
        read(path)
    assert read(followed(raised.value, path)).a[-1] == TEXTS[0]


def followed(error: InputError, path: Path) -> Path:
    """The file that the command of a message makes."""
    command = re.search(r"(python3 -c|sed ').*OLD > NEW(\.\w+)?", str(error))
    assert command is not None, error
    new = path.with_name(f"new{command[2] or path.suffix}")
    shell = command[0].replace(f"NEW{command[2] or ''}", str(new)).replace("OLD", str(path))
    subprocess.run(shell, shell=True, check=True)
    return new


@pytest.mark.parametrize("mark", ["\u3000", "\u00a0", "\uff0c", "~", "::", "^", "\x01", "@@@"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
def test_other_separators_have_a_remedy(name: str, mark: str, tmp_path: Path) -> None:
    rows = [("sentence", "label"), ("a good film", "pos"), ("bad, film", "neg")]
    path = write(tmp_path, name, "".join(f"{mark.join(row)}\n" for row in rows))
    with pytest.raises(InputError, match="separates no columns here") as raised:
        read(path)
    found = read(followed(raised.value, path))
    assert (found.a, found.labels) == (["a good film", "bad, film"], ["pos", "neg"])


def test_commas_in_a_text_file_are_not_told_as_quotation_marks(tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.txt", "sentence,label\na good film,pos\nbad film,neg\n"))
    assert found.broken.notes("a.txt") == [
        "a.txt: its columns are separated by commas, though its name ends in .txt"
    ]


LINES = ['{"sentence": "a", "label": "x"}', '{"sentence": "b", "label": "y"}']


def test_commas_at_the_ends_of_json_lines(tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.jsonl", "".join(f"{line},\n" for line in LINES)))
    assert (found.a, found.labels) == (["a", "b"], ["x", "y"])
    assert found.broken.remarks == ["2 lines end in a comma, which is left out"]


def test_commas_behind_lines_as_python_prints_them(tmp_path: Path) -> None:
    """The command wrote a list of each."""
    content = "".join(f"{line},\n" for line in LINES).replace('"', "'")
    path = write(tmp_path, "a.jsonl", content)
    with pytest.raises(InputError, match="as Python prints it") as raised:
        read(path)
    assert read(followed(raised.value, path)).labels == ["x", "y"]


@pytest.mark.parametrize(
    "content",
    [
        '{"meta": {"n": 2}, "nlu": {"examples": [' + ", ".join(LINES) + '], "more": []}}',
        '{"dataset": [' + ", ".join(LINES) + '], "version": 1}',
    ],
)
def test_the_only_list_of_examples_in_an_object(content: str, tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.json", content))
    assert (found.a, found.labels) == (["a", "b"], ["x", "y"])
    assert "of one object" in " ".join(found.broken.remarks)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '[["a text", "x"], ["b text", "y"]]', "JSON but not an object"),
        ("a.json", '[["x", "a text"], ["y", "b text"]]', "JSON but not an object"),
        ("a.jsonl", '["a text", "x"]\n["b text", "y"]\n', "JSON but not an object"),
        ("a.json", '{"a text": "x", "b text": "y"}', "a value under each of its 2 keys"),
        (
            "a.jsonl",
            "".join(
                json.dumps({"messages": [{"content": f"{text} text"}, {"content": label}]}) + "\n"
                for text, label in ("ax", "by")
            ),
            "It is a dialogue",
        ),
        (
            "a.json",
            json.dumps(
                [
                    {
                        "conversations": [
                            {"from": "human", "value": f"{text} text"},
                            {"value": label},
                        ]
                    }
                    for text, label in ("ax", "by")
                ]
            ),
            "It is a dialogue",
        ),
    ],
)
def test_texts_and_labels_without_keys_have_a_command(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match=message) as raised:
        read(path)
    found = read(followed(raised.value, path), text_a="text")
    assert (found.a, found.labels) == (["a text", "b text"], ["x", "y"])


def test_lists_of_pairs_in_an_object(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", '{"train": [["a text", "x"], ["b text", "y"]], "val": []}')
    with pytest.raises(InputError, match="If 'train' holds the examples") as raised:
        read(path)
    path = followed(raised.value, path)
    with pytest.raises(InputError, match="JSON but not an object") as raised:
        read(path)
    assert read(followed(raised.value, path), text_a="text").labels == ["x", "y"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", " ".join(LINES) + "\n", "It holds several objects"),
        ("a.jsonl", "".join(LINES) + "\n", "It holds several objects"),
        ("a.tsv", r"sentence\tlabel" + "\n" + r"a\tx" + "\n" + r"b\ty" + "\n", "in place of tabs"),
    ],
)
def test_rows_that_are_not_parted_have_a_command(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match=message) as raised:
        read(path)
    found = read(followed(raised.value, path))
    assert (found.a, found.labels) == (["a", "b"], ["x", "y"])


def test_objects_without_any_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No key has a text; write an object for each"):
        read(write(tmp_path, "a.jsonl", '{"ids": [1, 2], "label": 0}\n'))


def test_texts_all_in_quotation_marks_with_backslashes(tmp_path: Path) -> None:
    """As R and others write texts alone in them."""
    content = (
        'id\tlabel\tsentence\n"1_8"\tpos\t"a \\"good\\", great film"\n"2_9"\tneg\t"bad film"\n'
    )
    found = read(write(tmp_path, "a.tsv", content))
    assert (found.a, found.labels) == (TEXTS, ["pos", "neg"])


@pytest.mark.parametrize("mark", ["|", ",", ";"])
def test_columns_by_number_in_a_text_file(mark: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", f"a{mark}x\nb{mark}y\n")
    found = read(path, text_a="0", label="1", header=False)
    assert (found.a, found.labels) == (["a", "b"], ["x", "y"])


def test_commas_in_a_table_of_one_column(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "sentence\na, b\nc\n")
    with pytest.raises(InputError, match=r":2: .*or name the file \.tsv"):
        read_rows(path, TaskOptions(), labelled=False)
    assert read_rows(path.rename(tmp_path / "a.tsv"), TaskOptions(), labelled=False).a == [
        "a, b",
        "c",
    ]


def test_several_lists_of_examples_in_an_object(tmp_path: Path) -> None:
    content = '{"train": [' + LINES[0] + '], "test": [' + LINES[1] + "]}"
    path = write(tmp_path, "a.json", content)
    with pytest.raises(InputError, match="holds 2 lists of examples, 'train', 'test'") as raised:
        read(path)
    assert read(followed(raised.value, path)).a == ["a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("INSERT INTO t VALUES('x','p');\nINSERT INTO t VALUES('y','n');\n", "statements of SQL"),
        ("- text: x\n  label: p\n- text: y\n  label: n\n", "this is YAML"),
        ("@relation r\n@attribute text string\n@data\n'x',p\n", "this is ARFF"),
        ("1 1:0.5 3:0.2\n-1 2:0.1\n", "as libsvm has them"),
        ("<table><tr><th>sentence</th><th>label</th></tr>\n</table>\n", "a page of HTML"),
        ("- one point\n- another: text\n", "the header lacks the column"),
        ("Mary: hello\nJohn: hi\n", "the header lacks the column"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv"])
def test_what_is_no_table(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, name, content))


@pytest.mark.parametrize("escaped", [True, False])
def test_a_table_of_r_is_no_text(escaped: bool, tmp_path: Path) -> None:
    rows = [f'"{n}" 7 "text ""{n}"" here" "pos"\n' for n in range(1, 6)]
    content = '"id" "sentence" "label"\n' + "".join(rows)
    content = re.sub(r'(?<=\w) ""|""(?= )', lambda m: m[0].replace('""', '\\"'), content)
    content = content if escaped else content.replace('\\"', '""')
    path = write(tmp_path, "a.txt", content)
    with pytest.raises(InputError, match=r"as R's write\.table has it") as raised:
        look_at_forms(content.split("\n")).refuse(path, KEEP)
    assert followed(raised.value, path).read_text().split("\n")[:2] == [
        'text "1" here',
        'text "2" here',
    ]
