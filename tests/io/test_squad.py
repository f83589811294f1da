"""Files in SQuAD's format: what is read, and what is refused with its place named."""

from __future__ import annotations

import json
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
    with pytest.raises(InputError, match=r"'Fleas'.*paragraph 1.*id 'a'.*lacks the key 'answers'"):
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
        ([{"is_impossible": False, "answers": []}, {"is_impossible": True}], True),
    ],
)
def test_what_a_file_says_of_questions_without_answers(
    items: list[dict[str, Any]], no_answer: bool | None, tmp_path: Path
) -> None:
    questions = [item | {"id": str(n), "question": "When?"} for n, item in enumerate(items)]
    path = squad_file(tmp_path / "a.json", [paragraph(*questions)])
    assert read_questions(path, labelled=False).no_answer is no_answer


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.json:1: is not JSON"),
        (b'{"data":\n [,]}', "a.json:2: is not JSON"),
        (b'{"data": ["\xff"]}', "a.json:1: not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "SQuAD's format"),
        (b'{"data": ' + b"1" * 5000 + b"}", "a.json: holds a number of more than 4,300 digits"),
        (b'{"version": "1.1"}', "lacks the key 'data'; its keys are 'version'"),
        (b'{"data": {}}', "'data' is {}; it must be a list"),
        (b'{"data": []}', "has no questions"),
        (b'{"data": [7]}', "article 1 is 7"),
        (b'{"data": [{"title": "T"}]}', r"article 1 \('T'\) lacks the key 'paragraphs'"),
        (b'{"data": [{"paragraphs": [{"qas": []}]}]}', "paragraph 1 lacks the key 'context'"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_questions(path, labelled=True)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: cannot be read: No such file"):
        read_questions(tmp_path / "none.json", labelled=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": None}, "question 1: 'id' is null"),
        ({"question": ["Who?"]}, r"id 'a'\): 'question' is \[\"Who\?\"\]"),
        ({"question": "W\0ho?"}, "'question' holds a NUL"),
        ({"question": "\ud83d"}, r"half of a surrogate pair \(\\ud83d\)"),
        ({"answers": [{"text": "1999", "answer_start": True}]}, "answer_start is true"),
        ({"answers": [{"text": 1999, "answer_start": 19}]}, "'text' is 1999"),
        ({"id": ["a"]}, r"'id' is \[\"a\"\]; it must be a text"),
        ({"answers": 1999}, "'answers' is 1999; it must be a list of answers, or a text"),
        ({"answers": [{"text": "1999", "answer_start": "x"}]}, 'answer_start is "x"'),
        ({"is_impossible": "perhaps"}, "'is_impossible' is \"perhaps\"; it must be true or false"),
        ({"is_impossible": True}, "is_impossible is true, but it has 1 answers"),
    ],
)
def test_questions_that_are_none(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    item = question("a", "When?", ("1999", 19)) | changes
    path = tmp_path / "a.json"
    content = {"data": [{"title": "T", "paragraphs": [paragraph(item)]}]}
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as refused:
        read_questions(path, labelled=True)
    assert "a.json: article 1 ('T'), paragraph 1" in str(refused.value)


def test_a_nul_in_a_passage(tmp_path: Path) -> None:
    path = squad_file(tmp_path / "a.json", [paragraph(question("a", "?"), context="a\0b")])
    with pytest.raises(InputError, match=r"paragraph 1: 'context' holds a NUL"):
        read_questions(path, labelled=False)


def test_an_id_twice(tmp_path: Path) -> None:
    questions = [question("a", "When?", ("1999", 19)), question("a", "Where?", ("café", 4))]
    path = squad_file(tmp_path / "a.json", [paragraph(item) for item in questions])
    with pytest.raises(InputError, match=r"paragraph 2, question 1 .*paragraph 1, question 1"):
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
        ({"unanswerable": "True", "answers": None}, False),
        ({"is_answerable": False, "answers": []}, False),
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
    assert any("1 question without an answer and" in note for note in rows.notes) is noted


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
    searched = any("without the place where it begins" in note for note in rows.notes)
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
            "mrqa.jsonl",
            json.dumps({"header": {"dataset": "own"}})
            + "\n"
            + json.dumps(
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "qid": "1",
                            "question": "When?",
                            "answers": ["1999"],
                            "detected_answers": [{"text": "1999", "char_spans": [[19, 22]]}],
                        },
                        {"qid": "2", "question": "Who?", "answers": [], "detected_answers": []},
                    ],
                }
            ),
        ),
    ],
)
def test_forms_of_question_files(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    rows = read_questions(tmp_path / name, labelled=True)
    assert (rows.ids, rows.texts) == (["1", "2"], ["When?", "Who?"])
    assert (rows.passages, rows.passage_of) == ([CONTEXT], [0, 0])
    assert rows.answers == [(GoldAnswer("1999", 19),), ()]
    if name in ("lines.json", "list.jsonl", "columns.json"):
        assert rows.notes[0].startswith(f"{name}: it ")


def test_rows_without_ids_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Question,context,ANSWER\nWhen?,It was 1999.,1999\nWho?,It was Ann.,Ann\n")
    rows = read_questions(path, labelled=True)
    assert rows.ids == ["1", "2"]
    assert rows.answers == [(GoldAnswer("1999", 7),), (GoldAnswer("Ann", 7),)]
    assert any("2 questions without an id" in note for note in rows.notes)


def test_several_contexts_are_joined_and_counted(tmp_path: Path) -> None:
    item = {
        "id": "a",
        "contexts": ["One.", "It was 1999."],
        "question": "When?",
        "answers": ["1999"],
    }
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(item))
    rows = read_questions(path, labelled=True)
    assert rows.passages == ["One.\nIt was 1999."]
    assert rows.answers == [(GoldAnswer("1999", 12),)]
    assert any("1 passage in a list of texts" in note for note in rows.notes)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "Q,context\nx,y\n", "lacks a column 'question'.*the columns are 'Q', 'context'"),
        (
            "a.csv",
            "question,context,answers\nx,y,\"{'text': array(['y'])}\"\n",
            "line 2 .*arrays of NumPy",
        ),
        ("a.jsonl", '{"question": "x", "answers": []}\n', "line 1 lacks the key 'context'"),
        ("a.jsonl", '{"question": "x", "context": "y"}\n', "line 1 .*lacks the key 'answers'"),
        ("a.json", '[{"question": "x", "context": [["y"]], "answers": []}]', "'context' is"),
    ],
)
def test_flat_files_that_are_none(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_questions(tmp_path / name, labelled=True)
