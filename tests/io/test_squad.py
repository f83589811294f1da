"""Files in SQuAD's format: what is read, and what is refused with its place named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import InputError
from bothways.io.annotations.squad import GoldAnswer, read_questions
from question_examples import question, squad_file

CONTEXT = "The café opened in 1999. It closed soon."


def paragraph(*questions: dict[str, Any], context: str = CONTEXT) -> dict[str, Any]:
    return {"context": context, "qas": list(questions)}


def test_both_versions_are_read(tmp_path: Path) -> None:
    impossible = question("c", "Who?", impossible=True)
    impossible["plausible_answers"] = [{"text": "café", "answer_start": 4}]
    path = squad_file(
        tmp_path / "a.json",
        [
            paragraph(question("a", "When?", ("1999", 19), ("in 1999", 16))),
            paragraph(question("b", "What?", ("x", 0), impossible=False), impossible, context="xy"),
        ],
    )
    rows = read_questions(path, labelled=True)
    assert rows.ids == ["a", "b", "c"]
    assert rows.texts == ["When?", "What?", "Who?"]
    assert rows.passages == [CONTEXT, "xy"]
    assert rows.passage_of == [0, 1, 1]
    assert rows.answers == [
        (GoldAnswer("1999", 19), GoldAnswer("in 1999", 16)),
        (GoldAnswer("x", 0),),
        (),
    ]
    assert rows.gold == [("1999", "in 1999"), ("x",), ()]
    assert rows.some_unanswerable


def test_without_answers(tmp_path: Path) -> None:
    item = {"id": "a", "question": "When?"}
    path = squad_file(tmp_path / "a.json", [paragraph(item)])
    rows = read_questions(path, labelled=False)
    assert rows.answers is None
    assert not rows.some_unanswerable
    with pytest.raises(
        InputError, match=r"a\.json: article 1, paragraph 1, question 1: expected answers under"
    ):
        read_questions(path, labelled=True)
    item["is_impossible"] = True  # type: ignore[assignment]
    squad_file(path, [paragraph(item)])
    assert read_questions(path, labelled=True).answers == [()]


@pytest.mark.parametrize(
    ("items", "no_answer"),
    [
        ([{}, {}], None),
        ([{"answers": []}, {"answers": []}], None),
        ([{"answers": [{"text": "x"}]}, {"answers": []}], True),
        ([{"answers": [{"text": "x"}]}, {}], False),
        ([{"is_impossible": False}, {"is_impossible": False}], False),
        ([{"is_answerable": False}, {"is_answerable": "false"}], True),
        ([{"is_impossible": False, "answers": []}, {"is_impossible": True}], True),
    ],
)
def test_what_a_file_says_of_questions_without_answers(
    items: list[dict[str, Any]], no_answer: bool | None, tmp_path: Path
) -> None:
    questions = [item | {"id": str(n), "question": "When?"} for n, item in enumerate(items)]
    path = squad_file(tmp_path / "a.json", [paragraph(*questions)])
    assert read_questions(path, labelled=False).no_answer is no_answer


TABLE = b"id,context,question,answers\n"
WHERE = "article 1, paragraph 1, question 1: "
A_QUESTION = question("a", "When?", ("1999", 19))


def _flat(**changes: Any) -> bytes:
    return json.dumps([{"context": CONTEXT, **A_QUESTION, **changes}]).encode()


def _nested(**changes: Any) -> bytes:
    article = {"paragraphs": [paragraph(A_QUESTION | changes)]}
    return json.dumps({"data": [article]}).encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'{"data":\n [,]}', ":2: is not JSON"),
        ("a.json", b'{"data": ["\xff"]}', ":1: "),
        ("a.json", b"[" * 100_000, ":1: is not JSON"),
        ("a.json", b"[1]", ":1: "),
        ("a.json", b'{"version": "1.1"}', "'version'"),
        ("a.json", b'{"data": {}}', "'data'"),
        ("a.json", b'{"data": [{"title": "T"}]}', "expected a text under 'context', found 'title'"),
        ("a.json", b'{"data": [{"paragraphs": 7}]}', "expected an object with a list 'paragraphs'"),
        ("a.json", b'{"data": [{"paragraphs": [{"qas": []}]}]}', "has no questions"),
        ("a.json", _nested(id=["a"]), f"a.json: {WHERE}column 'id' holds"),
        ("a.json", _nested(question=["?"]), f"{WHERE}column 'question' holds"),
        ("a.json", _nested(question="W\0ho?"), f"{WHERE}column 'question' holds"),
        ("a.json", _nested(question="\ud83d"), f"{WHERE}column 'question' holds"),
        ("a.json", _nested(answers=[{"text": "x", "answer_start": "x"}]), 'answer_start is "x"'),
        (
            "a.json",
            _nested(answers=[{"text": 1999, "answer_start": 19}]),
            "column 'text' holds 1999",
        ),
        ("a.json", _nested(answers=1999), "column 'text' holds 1999"),
        ("a.json", _nested(is_impossible="perhaps"), "'is_impossible' is 'perhaps'"),
        ("a.json", _nested(is_answerable=False), "marked as impossible, but there is an answer"),
        ("a.json", _nested(is_impossible=True), "marked as impossible, but there is an answer"),
        ("a.json", _flat(context=" "), ":1: the passage of question 'a' is empty"),
        ("a.json", _flat(context="a\0b"), "'context' holds"),
        ("a.json", _flat(answers={"text": ["a", "b"], "answer_start": [1]}), "2 answers have 1"),
        ("a.jsonl", b'{"question": "x", "answers": []}\n', ":1: expected a text under 'context'"),
        ("a.jsonl", b'{"question": "x", "context": "y"}\n', "expected answers under 'answers'"),
        ("a.csv", b"Q,context\nx,y\n", "'question'"),
        ("a.csv", TABLE + b"1,x,y,\"{'text': array(['y'])}\"\n", ":2: expected answers as JSON"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"^{re.escape(str(tmp_path / name))}.*") as refused:
        read_questions(tmp_path / name, labelled=True)
    assert message in str(refused.value)


def test_an_id_twice(tmp_path: Path) -> None:
    questions = [question("a", "When?", ("1999", 19)), question("a", "Where?", ("café", 4))]
    path = squad_file(tmp_path / "a.json", [paragraph(item) for item in questions])
    with pytest.raises(InputError, match=r"paragraph 2, question 1.*'a'.*paragraph 1, question 1"):
        read_questions(path, labelled=True)


def test_klue_names_its_ids_otherwise(tmp_path: Path) -> None:
    item = {"guid": "klue-1", "question": "w1", "answers": [{"text": "w2", "answer_start": 0}]}
    path = squad_file(tmp_path / "klue.json", [{"context": "w2", "qas": [item]}])
    assert read_questions(path, labelled=True).ids == ["klue-1"]


# ------------------------------------------------------------------------ what tools write besides


@pytest.mark.parametrize(
    ("written", "key"),
    [(5, "5"), (-5, "-5"), (7211011040021040393, "7211011040021040393"), (1.5, "1.5"), ("a", "a")],
)
def test_ids_are_any_scalar(tmp_path: Path, written: object, key: str) -> None:
    item = question("a", "When?", ("1999", 19)) | {"id": written}
    path = squad_file(tmp_path / "a.json", [paragraph(item)])
    assert read_questions(path, labelled=True).ids == [key]


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        ({"is_impossible": True, "answers": [{"text": "", "answer_start": -1}]}, False),
        ({"is_impossible": True, "answers": []}, False),
        ({"is_impossible": "true", "answers": []}, False),
        ({"is_impossible": 1, "answers": [{"text": "", "answer_start": 0}]}, False),
        ({"answers": None}, False),
        ({"answers": [{"text": "", "answer_start": -1}]}, False),
        ({"answers": {"text": [], "answer_start": []}}, False),
        ({"is_impossible": False, "answers": []}, True),
        ({"is_impossible": "no", "answers": [{"text": "", "answer_start": -1}]}, True),
    ],
)
def test_spellings_of_unanswerable(tmp_path: Path, changes: dict[str, Any], noted: bool) -> None:
    item = {"id": "b", "question": "Who?", **changes}
    first = question("a", "When?", ("1999", 19))
    rows = read_questions(squad_file(tmp_path / "a.json", [paragraph(first, item)]), labelled=True)
    assert rows.answers == [(GoldAnswer("1999", 19),), ()]
    assert rows.no_answer is True
    assert any("1 question without an answer," in note for note in rows.notes) is noted


@pytest.mark.parametrize(
    "answers",
    [
        "1999",
        ["1999"],
        [{"text": "1999"}],
        [{"text": "1999", "answer_start": "19"}],
        [{"text": "1999", "answer_start": 19.0}],
        {"text": ["1999"], "answer_start": [19]},
        {"text": "1999", "answer_start": 19},
    ],
)
def test_spellings_of_answers(tmp_path: Path, answers: object) -> None:
    item = {"id": "a", "question": "When?", "answers": answers}
    rows = read_questions(squad_file(tmp_path / "a.json", [paragraph(item)]), labelled=True)
    assert rows.answers == [(GoldAnswer("1999", 19),)]
    searched = any("without answer_start" in note for note in rows.notes)
    assert searched is ("19" not in str(answers).replace("1999", ""))


FLAT = [
    {
        "id": 1,
        "context": CONTEXT,
        "question": "When?",
        "answers": {"text": ["1999"], "answer_start": [19]},
    },
    {"id": 2, "context": CONTEXT, "question": "Who?", "answers": {"text": [], "answer_start": []}},
]


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.json", json.dumps(FLAT)),
        ("data.json", json.dumps({"version": "1", "data": FLAT})),
        ("lines.jsonl", "\n".join(map(json.dumps, FLAT))),
        ("lines.json", "\n".join(map(json.dumps, FLAT))),
        ("list.jsonl", json.dumps(FLAT, indent=1)),
        ("columns.json", json.dumps(_columns(FLAT))),
        (
            "table.csv",
            "id,context,question,answer,answer_start\n"
            f'1,"{CONTEXT}",When?,1999,19\n2,"{CONTEXT}",Who?,,\n',
        ),
        (
            "table.tsv",
            "id\tcontext\tquestion\tanswer_text\n"
            f"1\t{CONTEXT}\tWhen?\t1999\n2\t{CONTEXT}\tWho?\tnan\n",
        ),
        (
            "hub.csv",
            f'id,context,question,answers\n1,"{CONTEXT}",When?,'
            "\"{'text': ['1999'], 'answer_start': [19]}\"\n"
            f'2,"{CONTEXT}",Who?,[]\n',
        ),
        (
            "articles.json",
            json.dumps(
                [
                    {
                        "title": "T",
                        "paragraphs": [
                            {
                                "context": CONTEXT,
                                "qas": [
                                    {k: v for k, v in row.items() if k != "context"} for row in FLAT
                                ],
                            }
                        ],
                    }
                ]
            ),
        ),
        (
            "paragraphs.jsonl",
            json.dumps({"context": CONTEXT, "qas": [{**row, "context": "x"} for row in FLAT]}),
        ),
    ],
)
def test_forms_of_question_files(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    rows = read_questions(tmp_path / name, labelled=True)
    assert (rows.ids, rows.texts) == (["1", "2"], ["When?", "Who?"])
    assert (rows.passages, rows.passage_of) == ([CONTEXT], [0, 0])
    assert rows.answers == [(GoldAnswer("1999", 19),), ()]


def test_rows_without_ids_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("question,context,answer\nWhen?,It was 1999.,1999\nWho?,It was Ann.,Ann\n")
    rows = read_questions(path, labelled=True)
    assert rows.ids == ["1", "2"]
    assert rows.answers == [(GoldAnswer("1999", 7),), (GoldAnswer("Ann", 7),)]
    assert any("2 questions without an id" in note for note in rows.notes)
