"""Questions on passages: SQuAD 1.1 and 2.0, nested as published, or flat with a question a row.

A nested file has articles, their paragraphs, and the questions on each, which may have no answer.
Lines mean nothing in it, so messages name the paragraph and the question. A flat one (JSON, JSON
lines, CSV, TSV, Parquet) repeats the passage for each question. Other keys, such as
``plausible_answers``, are ignored.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.broken import Broken
from bothways.io.columns import cell_value, checked_text
from bothways.io.lines import FALSE, TRUE, listed
from bothways.io.options import Format
from bothways.io.rows import DELIMITED, first_value, shown, table_suffix, whole_number
from bothways.io.tables import read_items, read_table
from bothways.io.terminal import counted

_IDS = ("id", "guid", "qid")
_QUESTIONS = ("question", "query")
_PASSAGES = ("context", "passage")
_ANSWERS = ("answers", "answer", "answer_text")
_STARTS = ("answer_start", "start")
_NONE = ("", "nan", "none", "null")
_FLAGS = {"is_impossible": True, "is_answerable": False, "answerable": False}
"""Keys that say whether a question has an answer -> the value where it has none."""
_NOTES = {
    "id": "without an id: numbered",
    "start": "with an answer without answer_start: its first occurrence in the passage is taken",
    "unmarked": "without an answer, although not marked as impossible: read as unanswerable",
}


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


def read_questions(path: str | Path, *, labelled: bool, form: Format | None = None) -> Questions:
    """Read a file of questions on passages.

    Args:
        path: nested or flat.
        labelled: read the answers too. If not, the file needs none.
        form: how the file is written.

    Raises:
        InputError: it is neither, two questions have one id, or a question is marked as impossible
            and has an answer; with the place.
    """
    path, broken = Path(path), Broken()
    rows = Questions(path, answers=[] if labelled else None)
    passages: dict[str, int] = {}
    seen: dict[str, str] = {}
    counts: Counter[str] = Counter()
    flags: set[bool] = set()
    answered: set[bool] = set()
    for place, where, item, holder in _items(path, form, broken):
        try:
            given = first_value(item, _IDS)
            counts["id"] += given is None
            id = _id(len(seen) + 1 if given is None else given)
            if id in seen:
                raise InputError(f"the id {id!r} is also that of {seen[id]}.")
            seen[id] = where or str(place)
            passage = _text(holder, _PASSAGES, passages)
            if not passage.strip():
                raise InputError(f"the passage of question {id!r} is empty.")
            rows.texts.append(_text(item, _QUESTIONS))
            if rows.answers is not None:
                rows.answers.append(_answers(item, passage, counts))
        except InputError as error:
            error.problem = f"{where}: {error.problem}" if where else error.problem
            error.place = error.place or place
            raise
        flags |= {_is_impossible(item)} if not _FLAGS.keys().isdisjoint(item) else set()
        answered |= {bool(item["answers"])} if "answers" in item else set()
        rows.ids.append(id)
        rows.passage_of.append(passages.setdefault(passage, len(passages)))
    if not len(rows):
        raise InputError("has no questions.", place=Place(path))
    rows.passages.extend(passages)
    # If all lists of answers are empty, they are withheld.
    some = True in flags or len(answered) == 2 or (True not in answered and not flags and None)
    notes = [
        f"{path.name}: {counted(n, 'question')} {_NOTES[name]}" for name, n in counts.items() if n
    ]
    return replace(
        rows,
        no_answer=rows.some_unanswerable if labelled else some,
        notes=(*broken.notes(path.name), *notes),
    )


def _items(
    path: Path, form: Format | None, broken: Broken
) -> Iterator[tuple[Place, str, Any, Any]]:
    """Each question: its place, where it is in an article, its object, and that with its
    passage."""
    read = read_table if table_suffix(path) in DELIMITED else read_items
    for n, (place, item) in enumerate(read(path, form, broken), start=1):
        if not isinstance(item, dict) or not {"paragraphs", "qas"} & item.keys():
            yield place, "", item, item
            continue
        paragraphs = [item] if "qas" in item else _list(item, "paragraphs", path)  # MRQA's
        for p, paragraph in enumerate(paragraphs, start=1):
            for q, question in enumerate(_list(paragraph, "qas", path), start=1):
                yield Place(path), f"article {n}, paragraph {p}, question {q}", question, paragraph


def _list(item: Any, name: str, path: Path) -> list[Any]:
    value = item.get(name) if isinstance(item, dict) else None
    if not isinstance(value, list):
        problem = f"expected an object with a list {name!r}, found {shown(item)}."
        raise InputError(problem, place=Place(path))
    return value


def _text(item: Any, names: tuple[str, ...], known: Container[object] = ()) -> str:
    value = first_value(item, names)
    if isinstance(value, str) and value in known:
        return value
    if value is None:
        found = listed([str(name) for name in item]) if isinstance(item, dict) else shown(item)
        raise InputError(f"expected a text under {names[0]!r}, found {found}.")
    return checked_text(value, names[0])


def _id(value: Any) -> str:
    """An id, which may be any scalar, as the text that predictions have as their key."""
    return json.dumps(value) if isinstance(value, int | float) else checked_text(value, "id")


def _is_impossible(item: Any) -> bool:
    """Whether a question is marked as one without an answer."""
    values = {name: str(item[name]).strip().lower() for name in _FLAGS.keys() & item.keys()}
    if unknown := {*values.values()} - {*TRUE, *FALSE, *_NONE}:
        raise InputError(f"{listed([*values])} is {unknown.pop()[:40]!r}, not true or false.")
    return any((v in TRUE) == _FLAGS[name] for name, v in values.items() if v not in _NONE)


def _answers(item: Any, passage: str, counts: Counter[str]) -> tuple[GoldAnswer, ...]:
    """The answers of a question; an empty text is none."""
    answers = []
    for text, given in _pairs(item):
        if not checked_text(text, "text").strip():
            continue
        start = whole_number(given)
        if given is None or given == "":
            counts["start"] += 1
            start = passage.find(text.strip())
        if start is None:
            raise InputError(f"answer_start is {shown(given)}; it must be a whole number.")
        answers.append(GoldAnswer(text, start))
    impossible = _is_impossible(item)
    if impossible and answers:
        raise InputError(
            f"it is marked as impossible, but there is an answer, {answers[0].text!r}."
        )
    counts["unmarked"] += not (answers or impossible or _FLAGS.keys().isdisjoint(item))
    return tuple(answers)


def _pairs(item: Any) -> list[tuple[Any, Any]]:
    """Text and start of each answer; None for a start that the file does not say."""
    if not any(name in item for name in _ANSWERS):
        if _is_impossible(item):
            return []
        raise InputError(f"expected answers under 'answers', found {listed(list(item))}.")
    value, start = first_value(item, _ANSWERS), first_value(item, _STARTS)
    if isinstance(value, str):  # in a cell of a table
        value = [] if value.strip().lower() in _NONE else cell_value(value)
        if isinstance(value, str) and value.startswith("{"):
            raise InputError(f"expected answers as JSON, found {value[:40]!r}.")
    if isinstance(value, dict) and isinstance(value.get("text"), list):  # as on the Hub
        starts = first_value(value, _STARTS) or [None] * len(value["text"])
        if len(starts) != len(value["text"]):
            raise InputError(f"{len(value['text'])} answers have {len(starts)} starts.")
        return [*zip(value["text"], starts, strict=True)]
    values = value if isinstance(value, list) else [] if value is None else [value]
    return [
        (one.get("text"), first_value(one, _STARTS)) if isinstance(one, dict) else (one, start)
        for one in values
    ]
