"""Scores of answers, to the digit as the official scripts of SQuAD 1.1, SQuAD 2.0 and KorQuAD give
them.

An answer is compared after normalisation: exactly, or by the F1 of the words (Korean: of the
characters) that it shares with a gold answer; of several gold answers the best counts. Where
questions may have no answer, giving none is right or wrong as a whole.

Q questions.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InputError
from bothways.tasks.questions import Questions, read_json_file, read_questions

Convention = Literal["squad", "korean"]
Scores = NDArray[np.float64]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# KorQuAD puts a space for these first, which ASCII's punctuation would otherwise just lose.
_QUOTES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


@dataclass(frozen=True)
class AnswerScores:
    """Scores of one set of answers.

    Attributes:
        exact: float64 [Q], 0 or 1.
        f1: float64 [Q], from 0 to 1.
    """

    exact: Scores
    f1: Scores


def normalize_answer(text: str, convention: Convention = "squad") -> str:
    """Lower case, without punctuation, extra white space and (SQuAD) English articles."""
    text = text.lower()
    if convention == "korean":
        return " ".join(text.translate(_QUOTES).translate(_PUNCTUATION).split())
    return " ".join(_ARTICLES.sub(" ", text.translate(_PUNCTUATION)).split())


def score_answers(
    answers: Sequence[str],
    gold: Sequence[Sequence[str]],
    *,
    convention: Convention = "squad",
    no_answer: bool = False,
) -> AnswerScores:
    """Compare an answer to each of Q questions with its gold answers.

    Args:
        answers: as predicted; empty for "no answer".
        gold: for each question its answers; none where it has no answer.
        convention: of normalisation, and whether words or characters are counted.
        no_answer: the rules of SQuAD 2.0, where two answers of which nothing is left after
            normalisation are equal, instead of those of 1.1, where they share no word.
    """
    exact, f1 = np.zeros(len(answers)), np.zeros(len(answers))
    for q, (answer, texts) in enumerate(zip(answers, gold, strict=True)):
        own = normalize_answer(answer, convention)
        known = [normalize_answer(text, convention) for text in texts]
        if no_answer:
            known = [text for text in known if text] or [""]
        exact[q] = max((float(own == text) for text in known), default=0.0)
        f1[q] = max((_f1(own, text, convention, no_answer) for text in known), default=0.0)
    return AnswerScores(exact, f1)


def total(values: Scores) -> float:
    """The sum, added up in order as the official scripts do: the last digits depend on it."""
    return float(np.cumsum(values)[-1]) if len(values) else 0.0


def choose_threshold(odds: Scores, answered: Scores, unanswered: Scores) -> float:
    """The threshold on ``odds`` above which no answer is given, for the highest sum of scores.

    Args:
        odds: float64 [Q]; score of no answer less that of the best answer.
        answered: float64 [Q]; the question's score if the best answer is given.
        unanswered: float64 [Q]; its score if none is.

    Returns:
        The middle between the two questions that it parts; of equally good ones that nearest to 0.
    """
    order = np.argsort(odds, kind="stable")
    sorted_odds, gain = odds[order], (answered - unanswered)[order]
    sums = np.concatenate([[0.0], np.cumsum(gain)])  # the k questions of least odds are answered
    apart = np.concatenate([[True], sorted_odds[1:] > sorted_odds[:-1], [True]])
    edges = np.concatenate([[sorted_odds[0] - 1], sorted_odds, [sorted_odds[-1] + 1]])
    middles = (edges[:-1] + edges[1:]) / 2
    best = apart & (sums >= sums[apart].max() - 1e-9)
    candidates = middles[best]
    return float(candidates[np.abs(candidates).argmin()])


def no_answer_rates(answers: Sequence[str], gold: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision and recall of giving no answer; 0 where undefined."""
    given = np.array([not answer for answer in answers])
    none = np.array([not texts for texts in gold])
    both = float((given & none).sum())
    return {
        "no_answer_precision": both / max(1, int(given.sum())),
        "no_answer_recall": both / max(1, int(none.sum())),
    }


def score_file(
    predictions: str | Path, data: str | Path, *, convention: Convention = "squad"
) -> tuple[dict[str, float], list[str]]:
    """Score a file of predictions, of whatever system.

    Args:
        predictions: JSON, an object of question id to answer.
        data: the questions with their answers, in SQuAD's format. The rules are those of 2.0 if
            some of them have none.
        convention: see :func:`score_answers`.

    Returns:
        Scores in percent under the names that the official scripts give them, and for 2.0 the
        precision and recall of giving no answer; and what a reader must know. A question without
        a prediction has the score 0.

    Raises:
        InputError: a file that cannot be read.
    """
    rows = read_questions(data, labelled=True)
    known = _read_predictions(Path(predictions))
    notes = []
    missing = [id for id in rows.ids if id not in known]
    if missing:
        notes.append(f"{len(missing):,} questions have no prediction and score 0 ({missing[0]!r})")
    strange = len(known.keys() - set(rows.ids))
    if strange:
        notes.append(f"{strange:,} predictions are for no question of {rows.path.name}")
    answers = [known.get(id, "") for id in rows.ids]
    v2 = rows.some_unanswerable
    scores = score_answers(answers, rows.gold, convention=convention, no_answer=v2)
    there = np.array([id in known for id in rows.ids])
    scores = AnswerScores(scores.exact * there, scores.f1 * there)
    if not v2:
        return {"exact_match": _percent(scores.exact), "f1": _percent(scores.f1)}, notes
    return _by_answerable(scores, answers, rows), notes


def _by_answerable(scores: AnswerScores, answers: list[str], rows: Questions) -> dict[str, float]:
    """All questions, those with answers, those without."""
    none = np.array([not texts for texts in rows.gold])
    found: dict[str, float] = {}
    for name, those in (("", none | True), ("HasAns_", ~none), ("NoAns_", none)):
        if those.any():
            found[f"{name}exact"] = _percent(scores.exact[those])
            found[f"{name}f1"] = _percent(scores.f1[those])
            found[f"{name}total"] = int(those.sum())
    rates = no_answer_rates(answers, rows.gold)
    return found | {name: 100 * value for name, value in rates.items()}


def _percent(values: Scores) -> float:
    return 100.0 * total(values) / len(values)


def _read_predictions(path: Path) -> dict[str, str]:
    content = read_json_file(path)
    if not isinstance(content, dict):
        raise InputError("holds no object of question ids and answers.", path=path)
    for id, answer in content.items():
        if not isinstance(answer, str):
            raise InputError(
                f"the prediction for {id!r} is {str(answer)[:40]!r}; it must be a text.", path=path
            )
    return content


def _f1(answer: str, gold: str, convention: Convention, no_answer: bool) -> float:
    if convention == "korean":
        ours, theirs = list(answer.replace(" ", "")), list(gold.replace(" ", ""))
    else:
        ours, theirs = answer.split(), gold.split()
    if no_answer and not (ours and theirs):
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    if not common:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return (2 * precision * recall) / (precision + recall)
