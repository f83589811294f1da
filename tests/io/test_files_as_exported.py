"""Files as programs export them and as people keep them: read with the right values and a note of
what was read otherwise, or named with a remedy, which is followed here to the letter."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import InputError
from bothways.io.annotations.conll import ConllFormat
from bothways.io.annotations.squad import read_questions
from bothways.io.annotations.tagged import read_tagged
from bothways.io.records import ParagraphReader
from bothways.io.text_columns import table_in, text_columns
from bothways.tasks.options import SplitConfig, TaggingOptions, TaskOptions
from bothways.tasks.readers import Rows, read_rows, row_windows
from bothways.tasks.sentences import Sentences, read_sentences
from bothways.tasks.spans import SpanTask
from bothways.tasks.split import split

AB = (["a good one", "b"], ["x", "y"])
ROWS = "sentence,label\na good one,x\nb,y\n"


def write(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_bytes(content.encode())
    return folder / name


def read(path: Path, **options: Any) -> Rows:
    return read_rows(path, TaskOptions(**options), labelled=True)


def tagged(path: Path, labels: tuple[str, ...] = ()) -> Sentences:
    return read_sentences(path, TaggingOptions(), labelled=True, labels=labels)


def followed(error: BaseException, path: Path, new: str = "") -> Path:
    """The file that the command in a message writes."""
    command = re.search(r"\b(?:tail|sed|awk|python3?) .*OLD.*? > NEW(?:\.\w+)?", str(error))
    assert command is not None, error
    target = path.with_name(new or f"new{path.suffix}")
    shell = re.sub(r"NEW(\.\w+)?", target.name, command[0].replace("OLD", path.name))
    subprocess.run(["bash", "-c", shell], cwd=path.parent, check=True)
    return target


# -------------------------------------------------------------------------------- columns of texts


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (["id", "text"], ["text"]),
        (["title", "text"], ["text", "title"]),
        (["Review Text", "Rating"], ["Review Text"]),
        (["reviewText", "overall"], ["reviewText"]),
        (["tweet_text", "sentiment"], ["tweet_text"]),
        (["Comment", "label"], ["Comment"]),
        (["context", "question", "id"], []),
    ],
)
def test_usual_names_of_columns_of_texts(columns: list[str], found: list[str]) -> None:
    assert text_columns(columns) == found


def test_that_a_column_was_chosen_among_several_is_said(tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.csv", "title,body,label\nt,a,x\nu,b,y\n"))
    assert found.a == ["t", "u"]
    assert "the texts are those of 'title', not of 'body'" in " ".join(found.broken.remarks)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv"])
def test_the_separator_by_a_usual_name(name: str, separator: str, tmp_path: Path) -> None:
    content = ROWS.replace("sentence", "review").replace(",", separator)
    found = read(write(tmp_path, name, content))
    assert (found.a, found.labels) == AB


@pytest.mark.parametrize(
    ("lines", "columns"),
    [
        (["id,text", "1,a", "2,b"], ("id", "text")),
        (["id;review", '1;"a;b"', "2;b"], ("id", "review")),
        (["text\tlabel", "a, b\tx"], ("text", "label")),
        ([",text", "0,a", "1,b"], ("", "text")),
        (["text, then", "more, and"], ("text", "then")),
        (["text", "a"], None),
        (["Text, he said.", "a, b"], None),
        (["id,text", "1,a,b"], None),
        (["Hello, world", "Bye, all"], None),
        (["text,label"], None),
    ],
)
def test_lines_that_are_a_table(lines: list[str], columns: tuple[str, ...] | None) -> None:
    found = table_in(lines)
    assert (found and found.columns) == columns


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_a_table_is_no_text_to_learn_from(separator: str, tmp_path: Path) -> None:
    rows = ROWS.replace("sentence,label", "text,label").replace(",", separator)
    path = write(tmp_path, "a.txt", rows)
    reader = ParagraphReader()
    with pytest.raises(InputError, match=r"a\.txt: its first line names columns") as raised:
        list(reader.read(path, lambda _: None))
    new = followed(raised.value, path)
    assert [*reader.read(new, lambda _: None)] == ["a good one", "b"]


# --------------------------------------------------------------------------- above and below tables

TITLES = ["Report of 2024", "Report of 2024,,", "Report of 2024\n\nmade by us", "Report, all"]


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize("text", ["sentence", "text", "what they wrote"])
def test_a_title_above_a_table(title: str, text: str, tmp_path: Path) -> None:
    if text not in ("sentence", "text") and title == "Report, all":
        pytest.skip("looks like names of columns")
    path = write(tmp_path, "a.csv", f"{title}\n{ROWS.replace('sentence', text)}")
    with pytest.raises(InputError, match="the names of the columns") as raised:
        read(path)
    options = {"text_a": text} if text == "what they wrote" else {}
    found = read(followed(raised.value, path), **options)
    assert (found.a, found.labels) == AB


def test_a_title_above_words_and_questions(tmp_path: Path) -> None:
    words = "sentence_id,word,tag\n1,Mary,B-PER\n1,left,O\n"
    for name, content in (("a.csv", words), ("a.tsv", words.replace(",", "\t"))):
        path = write(tmp_path, name, f"Report of 2024\n{content}")
        with pytest.raises(InputError, match="the names of the columns") as raised:
            tagged(path)
        assert tagged(followed(raised.value, path)).tags == [["B-PER", "O"]]
    path = write(tmp_path, "q.csv", "Report of 2024,,\nquestion,context,answer\nq,Mary left,Mary\n")
    with pytest.raises(InputError, match="the names of the columns") as raised:
        read_questions(path, labelled=True)
    assert read_questions(followed(raised.value, path), labelled=True).gold == [("Mary",)]


def test_comments_above_a_table_are_said(tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.csv", f"# made by us\n# in 2024\n{ROWS}"))
    assert (found.a, found.labels) == AB
    assert found.broken.remarks == ["2 lines of comments above the columns: left out"]
    words = tagged(write(tmp_path, "w.tsv", "# by us\nword\ttag\nMary\tB-PER\n#\tO\n"))
    assert words.words == [["Mary", "#"]]
    path = write(tmp_path, "q.csv", "# by us\nquestion,context,answer\nq,Mary left,Mary\n")
    assert read_questions(path, labelled=True).gold == [("Mary",)]


@pytest.mark.parametrize("by", [None, "sentence"])
def test_split_knows_comments_titles_and_empty_rows(by: str | None, tmp_path: Path) -> None:
    rows = "".join(f"text {n},x\n" for n in range(20))
    content = f"sentence,label\n{rows},\n,\n"
    path = write(tmp_path, "a.csv", f"# made by us\n{content}")
    told = split(SplitConfig(file=str(path), out=str(tmp_path / "parts"), by=by))
    assert "a.csv: 1 line of comments above the columns: left out" in told
    assert "a.csv: 2 rows without any value are left out" in told
    parts = [read(tmp_path / "parts" / f"{name}.csv").a for name in ("train", "dev")]
    assert sorted(parts[0] + parts[1]) == sorted(f"text {n}" for n in range(20))
    path = write(tmp_path, "b.csv", f"Report of 2024\n{content}")
    with pytest.raises(InputError, match="the names of the columns seem to stand on line 2"):
        split(SplitConfig(file=str(path), out=str(tmp_path / "other"), by=None))


def test_rows_of_separators_alone_are_counted(tmp_path: Path) -> None:
    for labelled in (True, False):
        path = write(tmp_path, "a.csv", f"{ROWS},\n,\n,\n")
        found = read_rows(path, TaskOptions(), labelled=labelled)
        assert found.a == AB[0]
        assert found.broken.remarks == ["3 rows without any value are left out"]
    path = write(tmp_path, "q.csv", "question,context,answer\nq,Mary left,Mary\n,,\n,,\n")
    questions = read_questions(path, labelled=True)
    assert questions.texts == ["q"]
    assert "q.csv: 2 rows without any value are left out" in questions.notes


# ----------------------------------------------------------------------------------- kept columns


def test_a_kept_value_may_be_missing(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "a.jsonl",
        '{"text": "a", "id": null}\n{"text": "b", "id": NaN}\n{"text": "c", "id": 3}\n',
    )
    (rows,) = row_windows(path, TaskOptions(), labelled=False, keep=("id", "text"))
    assert rows.kept == [[None, "a"], [None, "b"], [3, "c"]]


# ------------------------------------------------------------------------- controls of Label Studio


def task(text: str, chosen: dict[str, str], **data: str) -> dict[str, Any]:
    """A task of Label Studio with a choice by each control."""
    results = [
        {"from_name": name, "to_name": "text", "type": "choices", "value": {"choices": [one]}}
        for name, one in chosen.items()
    ]
    return {"data": {"text": text, **data}, "annotations": [{"result": results}]}


def write_json(folder: Path, *items: object) -> Path:
    return write(folder, "a.json", json.dumps([*items]))


def test_a_control_of_another_name_is_named(tmp_path: Path) -> None:
    path = write_json(tmp_path, task("a", {"mood": "x"}), task("b", {"mood": "y"}))
    with pytest.raises(InputError, match=r"chosen in this task stands under 'mood': --label mood"):
        read(path)
    assert read(path, label="mood").labels == ["x", "y"]
    path = write_json(tmp_path, task("a", {"mood": "x", "about": "z"}))
    with pytest.raises(InputError, match="stands under 'about', 'mood'"):
        read(path)
    short = {"text": "a", "mood": "x", "id": 1, "annotator": 1, "annotation_id": 1}
    with pytest.raises(InputError, match=r"such as 'mood': --label mood"):
        read(write_json(tmp_path, short))


def test_further_controls_are_said(tmp_path: Path) -> None:
    path = write_json(tmp_path, task("a", {"label": "x", "about": "z"}), task("b", {"label": "y"}))
    found = read(path)
    assert found.labels == ["x", "y"]
    assert "annotators answered 'about', too; the labels are those of 'label'" in " ".join(
        found.broken.remarks
    )


def test_further_controls_of_the_short_form_are_said(tmp_path: Path) -> None:
    who = {"annotator": 1, "annotation_id": 3, "created_at": "2024", "lead_time": 3.1}
    spans = [{"start": 0, "end": 1, "text": "a", "labels": ["X"]}]
    path = write_json(
        tmp_path,
        {"text": "a", "source": "web", "id": 1, "label": "x", "about": "z", "ner": spans, **who},
        {"text": "b", "source": "web", "id": 2, "label": "y", "about": "z", "ner": [], **who},
    )
    found = read(path, text_a="text")
    assert found.labels == ["x", "y"]
    assert found.broken.remarks == [
        "annotators answered 'about', 'ner', too; the labels are those of 'label'"
    ]


def test_a_label_of_the_data_beside_another_control(tmp_path: Path) -> None:
    """It was taken in silence."""
    path = write_json(tmp_path, task("a", {"mood": "x"}, label="old"))
    with pytest.raises(InputError, match=r"of its own data, and what was chosen .*'mood': --label"):
        read(path)
    assert read(path, label="mood").labels == ["x"]


def test_choices_are_no_spans(tmp_path: Path) -> None:
    """Every word was O."""
    path = write_json(tmp_path, task("Mary left", {"mood": "x"}), task("She sang", {"mood": "y"}))
    with pytest.raises(InputError, match=r"no task has a span; .*--kind .* --label mood"):
        tagged(path)


# -------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", "{'text': 'a good one', 'label': 'x'}\n{'text': \"b\", 'label': 'y'}\n"),
        ("a.jsonl", '{"text": "a good one", "label": "x", "z": None}\n{"text": "b", "label": "y"}'),
        ("a.json", "[{'text': 'a good one', 'label': 'x'},\n {'text': 'b', 'label': 'y'}]"),
        ("a.json", "{'data': [{'text': 'a good one', 'label': 'x'}, {'text': 'b', 'label': 'y'}]}"),
        ("a.csv", "{'text': 'a good one', 'label': 'x'}\n{'text': 'b', 'label': 'y'}\n"),
    ],
)
def test_what_python_prints(name: str, content: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match="is written as Python prints it") as raised:
        read(path)
    found = read(followed(raised.value, path, "new.json" if name == "a.json" else "new.jsonl"))
    assert (found.a, found.labels) == AB


def test_what_python_prints_of_words_spans_and_questions(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", "[('Mary left', {'entities': [(0, 4, 'PER')]})]")
    with pytest.raises(InputError, match="is written as Python prints it") as raised:
        tagged(path)
    assert tagged(followed(raised.value, path)).tags == [["B-PER", "O"]]
    asked = "[{'question': 'q', 'context': 'Mary left', 'answers': {'text': ['Mary'], "
    path = write(tmp_path, "q.json", asked + "'answer_start': [0]}}]")
    with pytest.raises(InputError, match="is written as Python prints it") as raised:
        read_questions(path, labelled=True)
    assert read_questions(followed(raised.value, path), labelled=True).gold == [("Mary",)]
    path = write(tmp_path, "c.jsonl", "{'text': 'one'}\n")
    with pytest.raises(InputError, match="is written as Python prints it") as raised:
        list(ParagraphReader().read(path, lambda _: None))
    assert [*ParagraphReader().read(followed(raised.value, path), lambda _: None)] == ["one"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("DATA = [('Mary left', {'entities': []})]", "It is code of Python"),
        ("[{'text': 'a', 'label': nan}]", "quotation marks are those that Python prints"),
        ('[{"text": "a" "label": "x"}]', r"is not JSON \(Expecting ',' delimiter.*\)\)\.$"),
    ],
)
def test_what_is_almost_python(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, "a.json", content))


def test_keys_that_differ(tmp_path: Path) -> None:
    rows = '{"text": "a good one", "label": "x"}\n{"Text": "c", "label": "x"}\n'
    path = write(tmp_path, "a.jsonl", rows + '{"text": "b", "label": "y"}\n')
    with pytest.raises(InputError, match=r":2: key 'text' is missing.*Line 1 has it, with 'text'"):
        read(path)
    found = read(path, broken="skip")  # as the message says; it had no examples
    assert (found.a, found.labels, found.broken.left_out) == (*AB, 1)
    with pytest.raises(InputError, match="Name yours: --text KEY and --label KEY"):
        read(write(tmp_path, "b.jsonl", '{"what": "a", "label": "x"}\n'))


def test_missing_labels_and_answers(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "a", "label": null}\n{"text": "b", "label": []}\n')
    with pytest.raises(InputError, match=r":1: key 'label' is null.*an empty list, \[\]"):
        read(path, kind="multilabel")
    one = {"context": "Mary left", "question": "q"}
    for items in ([{"answers": None}, {"answer": None}, {"answer": " "}], [{"answer": "nan"}] * 3):
        own = [{**one, **item} for item in [*items, {"answer": "Mary", "answer_start": 0}]]
        found = read_questions(write_json(tmp_path, *own), labelled=True)
        assert found.gold == [(), (), (), ("Mary",)]


def test_questions_without_any_answer_are_not_trained_on(tmp_path: Path) -> None:
    items = [{"context": "Mary left", "question": "q", "answers": {"text": []}}] * 3
    found = read_questions(write_json(tmp_path, *items), labelled=True)
    with pytest.raises(InputError, match=r"a\.json: no question has an answer"):
        SpanTask.define(TaskOptions(kind="spans"), found)


# ----------------------------------------------------------------------------------- words and tags


def test_a_table_of_short_texts_is_not_one_of_words(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "id,text\n1,Paris is nice\n2,Rome\n3,London\n4,Berlin\n")
    with pytest.raises(InputError, match="its rows hold texts, such as 'Paris is nice'"):
        read_tagged(path, ConllFormat(), labelled=False)
    path = write(tmp_path, "b.csv", "text,tag\nNew York,B-LOC\nis,O\nbig,O\n")
    found = read_tagged(path, ConllFormat(), labelled=True)
    assert found.sentences is not None
    assert found.sentences.words == [["New York", "is", "big"]]
