"""Questions on passages, from files in SQuAD's format.

Versions 1.1 and 2.0 share one format: articles, their paragraphs, and the questions on each, which
may have no answer. Lines mean nothing in JSON, so messages name article, paragraph and question.
Unused keys, such as ``plausible_answers``, are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bothways.errors import InputError
from bothways.io.json_files import read_json_file, surrogate_problem


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
    """

    path: Path
    passages: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    passage_of: list[int] = field(default_factory=list)
    answers: list[tuple[GoldAnswer, ...]] | None = None
    no_answer: bool | None = None

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
    """Read a file in SQuAD's format.

    Args:
        path: a ``.json`` file.
        labelled: read the answers too. If not, the file needs none.

    Raises:
        InputError: it is not JSON or not of this format, two questions have one id, or a text
            cannot be read; file, and article, paragraph or question are named.
    """
    path = Path(path)
    rows = Questions(path, answers=[] if labelled else None)
    seen: dict[str, str] = {}
    items: list[dict[str, Any]] = []
    for where, paragraph in _paragraphs(path, read_json_file(path)):
        rows.passages.append(_text(paragraph, "context", path, where))
        for number, item in enumerate(_list(paragraph, "qas", path, where), start=1):
            here = f"{where}, question {number}"
            id = _text(item, "guid" if "guid" in item and "id" not in item else "id", path, here)
            here = f"{here} (id {id!r})"
            if id in seen:
                raise InputError(
                    f"{here}: {seen[id]} has the same id; ids must differ, because predictions are "
                    "looked up by them.",
                    path=path,
                )
            seen[id] = here
            items.append(item)
            rows.ids.append(id)
            rows.texts.append(_text(item, "question", path, here))
            rows.passage_of.append(len(rows.passages) - 1)
            if rows.answers is not None:
                rows.answers.append(_answers(item, path, here))
    if not len(rows):
        raise InputError("has no questions.", path=path)
    return replace(rows, no_answer=rows.some_unanswerable if labelled else _no_answer(items))


def _no_answer(items: list[dict[str, Any]]) -> bool | None:
    """Whether some question has no answer, by whatever the file has; None if it does not say.

    If all lists of answers are empty, they are taken to be withheld.
    """
    flags = {item.get("is_impossible") is True for item in items if "is_impossible" in item}
    answered = {bool(item["answers"]) for item in items if "answers" in item}
    if True in flags or answered == {True, False}:
        return True
    return False if flags or True in answered else None


def _paragraphs(path: Path, content: Any) -> Iterator[tuple[str, Any]]:
    """Each paragraph, after a description of where it is in the file."""
    for a, article in enumerate(_list(content, "data", path, "the file"), start=1):
        title = article.get("title") if isinstance(article, dict) else None
        where = f"article {a}" + (f" ({title!r})" if title else "")
        for p, paragraph in enumerate(_list(article, "paragraphs", path, where), start=1):
            yield f"{where}, paragraph {p}", paragraph


def _answers(item: Any, path: Path, where: str) -> tuple[GoldAnswer, ...]:
    impossible = item.get("is_impossible", False)
    if impossible is True and "answers" not in item:
        return ()
    answers = []
    for number, answer in enumerate(_list(item, "answers", path, where), start=1):
        here = f"{where}, answer {number}"
        start = _value(answer, "answer_start", path, here)
        if not isinstance(start, int) or isinstance(start, bool):
            raise InputError(
                f"{here}: answer_start is {_short_json(start)}; it must be a whole number (of "
                "characters).",
                path=path,
            )
        answers.append(GoldAnswer(_text(answer, "text", path, here), start))
    if "is_impossible" in item and impossible != (not answers):
        raise InputError(
            f"{where}: is_impossible is {_short_json(impossible)}, but it has {len(answers)} "
            "answers.",
            path=path,
        )
    return tuple(answers)


def _value(item: Any, key: str, path: Path, where: str) -> Any:
    if not isinstance(item, dict):
        raise InputError(
            f"{where} is {_short_json(item)}, but an object with the key {key!r} is expected; is "
            "this a file in SQuAD's format?",
            path=path,
        )
    if key not in item:
        known = ", ".join(repr(name) for name in list(item)[:12]) or "none"
        raise InputError(f"{where} lacks the key {key!r}; its keys are {known}.", path=path)
    return item[key]


def _list(item: Any, key: str, path: Path, where: str) -> list[Any]:
    value = _value(item, key, path, where)
    if not isinstance(value, list):
        raise InputError(f"{where}: {key!r} is {_short_json(value)}; it must be a list.", path=path)
    return value


def _text(item: Any, key: str, path: Path, where: str) -> str:
    value = _value(item, key, path, where)
    if not isinstance(value, str):
        raise InputError(f"{where}: {key!r} is {_short_json(value)}; it must be a text.", path=path)
    if "\0" in value:
        raise InputError(
            f"{where}: {key!r} holds a NUL character; the file is damaged. If you remove it, note "
            "that answer_start counts it.",
            path=path,
        )
    if problem := surrogate_problem(value):
        raise InputError(f"{where}: {key!r} {problem}", path=path)
    return value


def _short_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 40 else text[:37] + "..."
