"""Questions on passages, from files in SQuAD's format, and in flat ones.

Versions 1.1 and 2.0 share one format: articles, their paragraphs, and the questions on each, which
may have no answer. Lines mean nothing in JSON, so messages name article, paragraph and question.
Unused keys, such as ``plausible_answers``, are ignored. In flat files, each object (JSON, JSON
lines) or row (CSV, TSV) is a question with its passage, or a passage with its questions (MRQA).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.broken import Broken
from bothways.io.delimited import table_items
from bothways.io.json_files import (
    cell_value,
    in_json_lines,
    json_objects,
    read_json_file,
    surrogate_problem,
)
from bothways.io.lines import FALSE, TRUE, listed
from bothways.io.terminal import counted


@dataclass(frozen=True)
class GoldAnswer:
    """An answer as written in a file.

    Attributes:
        text: the answer.
        start: the file's claim of where it begins in the passage, in characters.
    """

    text: str
    start: int


@dataclass(frozen=True)
class Questions:
    """The questions of one file, in its order.

    Attributes:
        path: the file.
        passages: each once.
        ids, texts: of the questions.
        passage_of: the index of each question's passage in ``passages``.
        answers: of each question, empty if it has none; None if the file was read without answers.
        no_answer: whether some question has no answer, also where the file was read without
            answers; None if the file does not say.
        notes: what was read otherwise than it is written, as sentences.
    """

    path: Path
    passages: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    passage_of: list[int] = field(default_factory=list)
    answers: list[tuple[GoldAnswer, ...]] | None = None
    no_answer: bool | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def gold(self) -> list[tuple[str, ...]]:
        """The texts of each question's answers."""
        assert self.answers is not None, "the file was read without answers"
        return [tuple(answer.text for answer in answers) for answers in self.answers]

    @property
    def some_unanswerable(self) -> bool:
        """Whether some question of a labelled file has no answer, as in SQuAD 2.0."""
        return self.answers is not None and not all(self.answers)


def read_questions(path: str | Path, *, labelled: bool) -> Questions:
    """Read a file of questions on passages.

    Args:
        path: a ``.json`` file in SQuAD's format; or with a question, its passage and its answers in
            each object of a ``.json`` or ``.jsonl`` file, or each row of a ``.csv`` or ``.tsv``
            file.
        labelled: read the answers too. If not, the file needs none.

    Raises:
        InputError: it is none of these, two questions have one id, or a text cannot be read; file,
            and article, paragraph or question are named.
    """
    path = Path(path)
    try:
        return _questions_of(path, labelled=labelled)
    except InputError as error:
        error.place = error.place or Place(path)
        raise


def _questions_of(path: Path, *, labelled: bool) -> Questions:
    broken = Broken()
    rows = Questions(path, answers=[] if labelled else None)
    seen: dict[str, str] = {}
    items: list[dict[str, Any]] = []
    passages: dict[str, int] = {}  # of files that repeat them
    found = _Found()
    for where, paragraph, questions in _paragraphs(path, broken):
        flat = questions is None
        passage = _passage(paragraph, where, found)
        if not flat or passage not in passages:
            passages[passage] = len(rows.passages)
            rows.passages.append(passage)
        asked = [paragraph] if flat else _list(paragraph, "qas", where)
        if asked and not passage.strip():
            raise InputError(
                f"{where}: the passage is empty; fill it in, or leave its questions out."
            )
        for number, item in enumerate(asked, start=1):
            here = where if flat else f"{where}, question {number}"
            if isinstance(item, dict) and _first(item, _IDS) is None:
                found.numbered += 1
                item = {**item, "id": str(found.numbered)}
            id = _id(item, here)
            here = f"{here} (id {id!r})"
            if id in seen:
                raise InputError(
                    f"{here}: {seen[id]} has the same id; ids must differ, because predictions are "
                    "looked up by them."
                )
            seen[id] = here
            items.append(item)
            rows.ids.append(id)
            rows.texts.append(_text(item, _first(item, _QUESTIONS) or "question", here))
            rows.passage_of.append(passages[passage] if flat else len(rows.passages) - 1)
            if rows.answers is not None:
                rows.answers.append(_answers(item, passage, here, found))
    if not len(rows):
        raise InputError("has no questions.")
    no_answer = rows.some_unanswerable if labelled else _no_answer(items)
    return replace(rows, no_answer=no_answer, notes=(*broken.notes(path.name), *found.notes(path)))


_IDS = ("id", "guid", "qid", "question_id", "qas_id")
_QUESTIONS = ("question", "question_text", "query")
_PASSAGES = ("context", "passage", "paragraph", "contexts", "text")
_ANSWERS = ("answers", "answer", "answer_text", "detected_answers")
_STARTS = ("answer_start", "start", "answer_starts", "start_position")
_IMPOSSIBLE = ("is_impossible", "impossible", "unanswerable", "no_answer")
_POSSIBLE = ("is_answerable", "answerable", "has_answer")


@dataclass
class _Found:
    """What a file has that is read otherwise than it is written."""

    numbered: int = 0
    searched: int = 0
    unmarked: int = 0
    missing: int = 0
    joined: int = 0

    def notes(self, path: Path) -> list[str]:
        """As sentences."""
        notes = []
        if self.numbered:
            notes.append(f"{counted(self.numbered, 'question')} without an id: the number is it")
        if self.searched:
            notes.append(
                f"{counted(self.searched, 'answer')} without the place where it begins: the first "
                "with its text in the passage is taken"
            )
        if self.unmarked:
            notes.append(
                f"{counted(self.unmarked, 'question')} without an answer and not marked as "
                "unanswerable: read as such"
            )
        if self.missing:
            notes.append(
                f"{counted(self.missing, 'question')} with null, or nothing, in the place of an "
                "answer: read as unanswerable"
            )
        if self.joined:
            notes.append(f"{counted(self.joined, 'passage')} in a list of texts: joined by lines")
        return [f"{path.name}: {note}" for note in notes]


def _first(item: Any, names: Sequence[str]) -> str | None:
    """The first of some keys that an object has."""
    return next((name for name in names if name in item), None) if isinstance(item, dict) else None


def _paragraphs(path: Path, broken: Broken) -> Iterator[tuple[str, Any, Any]]:
    """Each passage: a description of its place, the object that has it, and its questions; None if
    that object is its one question."""
    if path.suffix.lower() in (".csv", ".tsv", ".txt"):
        for number, item in table_items(path, broken, _QUESTIONS, _PASSAGES):
            yield f"line {number}", item, None
        return
    content: Any = None
    if path.suffix.lower() == ".json" and not in_json_lines(path):
        content = read_json_file(path)
    articles = content["data"] if isinstance(content, dict) and "data" in content else content
    if isinstance(content, dict) and "paragraphs" in content:
        articles = [content]
    by_id = isinstance(content, dict) and "data" not in content and _are_flat([*content.values()])
    flat = content is None or by_id or _are_flat(articles)
    if flat or (isinstance(content, dict) and "data" not in content and _has_columns(content)):
        for number, item in json_objects(path, broken):
            if isinstance(item, dict) and item.keys() == {"header"}:  # MRQA's first line
                continue
            yield from _of_item(item, number)
        return
    if not isinstance(articles, list) or not articles or not isinstance(articles[0], dict):
        articles = _list(content, "data", "the file")
    for a, article in enumerate(articles, start=1):
        title = article.get("title") if isinstance(article, dict) else None
        where = f"article {a}" + (f" ({title!r})" if title else "")
        if isinstance(article, dict) and "paragraphs" not in article:
            raise InputError(
                f"{where} lacks the key 'paragraphs'; its keys are {listed(list(article))}. Write "
                'SQuAD\'s, or an object for each question: {"question": ..., "context": ..., '
                '"answers": {"text": [...], "answer_start": [...]}}.'
            )
        for p, paragraph in enumerate(_list(article, "paragraphs", where), start=1):
            yield f"{where}, paragraph {p}", paragraph, ()


def _of_item(item: Any, number: int) -> Iterator[tuple[str, Any, Any]]:
    """The passages of an object on a line of its own: an article, a passage or one question."""
    where = f"line {number}"
    if _first(item, ("paragraphs",)):
        for p, paragraph in enumerate(_list(item, "paragraphs", where), start=1):
            yield f"{where}, paragraph {p}", paragraph, ()
    elif _first(item, ("qas",)):
        yield where, item, ()
    else:
        yield where, item, None


def _are_flat(items: Any) -> bool:
    """Whether a list has questions or passages, not articles."""
    return (
        isinstance(items, list)
        and bool(items)
        and isinstance(items[0], dict)
        and "paragraphs" not in items[0]
        and ("qas" in items[0] or _first(items[0], _QUESTIONS) is not None)
    )


def _has_columns(content: dict[str, Any]) -> bool:
    name = _first(content, _QUESTIONS)
    return name is not None and isinstance(content[name], list | dict)


def _passage(item: Any, where: str, found: _Found) -> str:
    name = _first(item, _PASSAGES) or "context"
    value = item.get(name) if isinstance(item, dict) else None
    if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        found.joined += len(value) > 1
        item = {name: "\n".join(value)}
    return _text(item, name, where)


def _id(item: Any, where: str) -> str:
    """An id, which may be any scalar, as the text that predictions have as their key."""
    name = _first(item, _IDS) or "id"
    value = _value(item, name, where)
    if isinstance(value, int | float):
        return json.dumps(value)
    if not _text(item, name, where).strip():
        raise InputError(f"{where}: {name!r} is empty; predictions need it.")
    return str(value)


def _answers(item: Any, passage: str, where: str, found: _Found) -> tuple[GoldAnswer, ...]:
    impossible = _impossible(item, where)
    name = _first(item, _ANSWERS)
    if name is None and impossible:
        return ()
    if impossible is None and name is not None and _is_missing(item[name]):
        found.missing += 1
        return ()
    answers, blank = [], False
    for number, (text, start) in enumerate(_listed_answers(item, where), start=1):
        here = f"{where}, answer {number}"
        if isinstance(start, str) and re.fullmatch(r"-?\d+(\.0+)?", start.strip(), re.ASCII):
            start = int(float(start))  # as tables with empty cells hold whole numbers
        if isinstance(start, float) and start.is_integer():
            start = int(start)
        if start is not None and (not isinstance(start, int) or isinstance(start, bool)):
            raise InputError(
                f"{here}: answer_start is {_short_json(start)}; it must be a whole number (of "
                "characters)."
            )
        if not isinstance(text, str):
            _text({"text": text}, "text", here)
        if not text.strip():  # how some tools write that there is none
            blank = blank or not (start is None or start < 0)
            continue
        if start is None:
            found.searched += 1
            start = passage.find(text.strip())
        answers.append(GoldAnswer(_text({"text": text}, "text", here), start))
    if impossible and answers:
        raise InputError(
            f"{where}: is_impossible is true, but it has {len(answers)} answers. Remove the "
            "answers, or the mark."
        )
    found.unmarked += not answers and (impossible is False or (blank and not impossible))
    return tuple(answers)


def _listed_answers(item: Any, where: str) -> list[tuple[Any, Any]]:
    """Text and start of each answer, None for a start that the file does not say."""
    name = "detected_answers" if _first(item, ("detected_answers",)) else _first(item, _ANSWERS)
    if name is None:
        _value(item, "answers", where)
    assert name is not None
    value = item[name]
    if isinstance(value, str) and value.strip().startswith(("[", "{")):  # in a cell of a table
        value = _cell(value, where)
    if _is_missing(value):
        return []
    if isinstance(value, dict) and isinstance(value.get("text"), list):  # columns, as on the Hub
        starts = value.get("answer_start") or [None] * len(value["text"])
        if len(starts) != len(value["text"]):
            raise InputError(
                f"{where}: {len(value['text'])} answers have {len(starts)} starts; each needs one."
            )
        return list(zip(value["text"], starts, strict=True))
    if isinstance(value, str | dict):
        value = [value]
    if not isinstance(value, list):
        raise InputError(
            f"{where}: {name!r} is {_short_json(value)}; it must be a list of answers, or a text."
        )
    found: list[tuple[Any, Any]] = []
    given = _first(item, _STARTS)
    starts = item[given] if given is not None else None
    if isinstance(starts, str):
        starts = starts.strip() or None
    starts = starts if isinstance(starts, list) else [starts] * (len(value) == 1)
    for number, answer in enumerate(value):
        if isinstance(answer, str):
            found.append((answer, starts[number] if len(starts) == len(value) else None))
            continue
        text = _value(answer, "text", f"{where}, answer {number + 1}")
        if "char_spans" in answer:  # MRQA
            found.append((text, answer["char_spans"][0][0] if answer["char_spans"] else None))
        else:
            found.append((text, answer.get("answer_start", answer.get("start"))))
    return found


def _is_missing(value: Any) -> bool:
    """Whether null, or what a table has for it, stands in the place of answers."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NONE)


_NONE = ("", "nan", "none", "null", "n/a", "<na>")
_FALSE = (*FALSE, *_NONE)


def _impossible(item: Any, where: str) -> bool | None:
    """Whether a question is marked as one without an answer; None if there is no mark."""
    name = _first(item, (*_IMPOSSIBLE, *_POSSIBLE))
    if name is None:
        return None
    value = item[name]
    spelt = str(value).strip().lower()
    if isinstance(value, list | dict) or spelt not in (*TRUE, *_FALSE):
        raise InputError(f"{where}: {name!r} is {_short_json(value)}; it must be true or false.")
    return (spelt in TRUE) == (name in _IMPOSSIBLE)


def _cell(text: str, where: str) -> Any:
    """The answers in a cell of a table: JSON, or what Python writes for a list or dictionary."""
    value = cell_value(text)
    if value is text and "array(" in text:
        raise InputError(
            f"{where}: the answers are written as {text[:40]!r}, arrays of NumPy; write them as "
            "JSON, or text and start in columns answer and answer_start."
        )
    return value


def _no_answer(items: list[dict[str, Any]]) -> bool | None:
    """Whether some question has no answer, by whatever the file has; None if it does not say.

    If all lists of answers are empty, they are taken to be withheld.
    """
    flags = {
        item.get("is_impossible") in (True, 1, "true", "True", "1")
        for item in items
        if "is_impossible" in item
    }
    answered = {bool(item["answers"]) for item in items if "answers" in item}
    if True in flags or answered == {True, False}:
        return True
    return False if flags or True in answered else None


def _value(item: Any, key: str, where: str) -> Any:
    if not isinstance(item, dict):
        raise InputError(
            f"{where} is {_short_json(item)}, but an object with the key {key!r} is expected; is "
            "this a file in SQuAD's format?"
        )
    if key not in item:
        known = ", ".join(repr(name) for name in list(item)[:12]) or "none"
        raise InputError(f"{where} lacks the key {key!r}; its keys are {known}.")
    return item[key]


def _list(item: Any, key: str, where: str) -> list[Any]:
    value = _value(item, key, where)
    if not isinstance(value, list):
        raise InputError(f"{where}: {key!r} is {_short_json(value)}; it must be a list.")
    return value


def _text(item: Any, key: str, where: str) -> str:
    value = _value(item, key, where)
    if not isinstance(value, str):
        raise InputError(f"{where}: {key!r} is {_short_json(value)}; it must be a text.")
    if "\0" in value:
        raise InputError(
            f"{where}: {key!r} holds a NUL character; the file is damaged. If you remove it, note "
            "that answer_start counts it."
        )
    if problem := surrogate_problem(value):
        raise InputError(f"{where}: {key!r} {problem}")
    return value


def _short_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=repr)
    return text if len(text) <= 40 else text[:37] + "..."
