"""Files in SQuAD's format: what is read, and what is refused with its place named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import InputError
from bothways.io.squad import GoldAnswer, read_questions
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
        ({"id": 5}, "'id' is 5; it must be a text"),
        ({"question": ["Who?"]}, r"id 'a'\): 'question' is \[\"Who\?\"\]"),
        ({"question": "W\0ho?"}, "'question' holds a NUL"),
        ({"question": "\ud83d"}, r"half of a surrogate pair \(\\ud83d\)"),
        ({"answers": "1999"}, "'answers' is \"1999\"; it must be a list"),
        ({"answers": ["1999"]}, 'answer 1 is "1999", but an object'),
        ({"answers": [{"text": "1999"}]}, "answer 1 lacks the key 'answer_start'"),
        ({"answers": [{"text": "1999", "answer_start": "19"}]}, 'answer_start is "19"'),
        ({"answers": [{"text": "1999", "answer_start": True}]}, "answer_start is true"),
        ({"answers": [{"text": 1999, "answer_start": 19}]}, "'text' is 1999"),
        ({"is_impossible": True}, "is_impossible is true, but it has 1 answers"),
        ({"answers": [], "is_impossible": False}, "is_impossible is false, but it has 0 answers"),
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
