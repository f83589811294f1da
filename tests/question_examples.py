"""Questions that a small model can learn, and files of them in SQuAD's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FIRST, LAST = ("w1", "w2"), ("w5", "w6")


def squad_file(path: Path, paragraphs: list[dict[str, Any]], *, title: str = "Fleas") -> Path:
    """One article of these paragraphs."""
    content = {"version": "own", "data": [{"title": title, "paragraphs": paragraphs}]}
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def question(
    id: str, text: str, *answers: tuple[str, int], impossible: bool | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {"id": id, "question": text}
    found["answers"] = [{"text": text, "answer_start": start} for text, start in answers]
    return found if impossible is None else found | {"is_impossible": impossible}


def word_questions(
    path: Path, count: int, seed: int, *, no_answer: bool = False, words: int = 24
) -> Path:
    """Answers begin with ``w1`` or ``w2`` and end with ``w5`` or ``w6``, a word between them.

    With ``no_answer`` every third passage has none of these.
    """
    rng = np.random.default_rng(seed)
    paragraphs = []
    for i in range(count):
        text = [f"w{n}" for n in rng.integers(8, 90, int(rng.integers(words // 2, words)))]
        place = int(rng.integers(len(text) - 2))
        answers: list[tuple[str, int]] = []
        impossible = no_answer and i % 3 == 0
        if not impossible:
            text[place], text[place + 2] = FIRST[rng.integers(2)], LAST[rng.integers(2)]
            answers = [(" ".join(text[place : place + 3]), len(" ".join([*text[:place], ""])))]
        item = question(f"q{i}", "w3 w4", *answers, impossible=impossible if no_answer else None)
        paragraphs.append({"context": " ".join(text), "qas": [item]})
    return squad_file(path, paragraphs)
