"""Scores of answers, to the digit as in the official scripts of SQuAD 1.1, SQuAD 2.0 and KorQuAD.

An answer is compared after normalisation: exactly, or by the F1 of the words (Korean: characters)
that it shares with a gold answer; with several gold answers, the best score counts. If questions
may have no answer, giving none is entirely right or entirely wrong.

Q questions.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InputError, Place
from bothways.io.annotations.squad import Questions, read_questions
from bothways.io.json_files import read_json_file
from bothways.io.terminal import counted

Convention = Literal["squad", "korean"]
Scores = NDArray[np.float64]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# KorQuAD first replaces these by spaces; other ASCII punctuation is simply removed.
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
    """Lower case, without punctuation, extra white space and, for SQuAD, English articles."""
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
    """Compare an answer to each of Q questions with the question's gold answers.

    Args:
        answers: as predicted; empty for "no answer".
        gold: the answers of each question; empty if it has none.
        convention: of normalisation, and whether words or characters are counted.
        no_answer: use the rules of SQuAD 2.0, where two answers that are empty after normalisation
            are equal, instead of those of 1.1, where they share no word.
    """
    exact, f1 = np.zeros(len(answers)), np.zeros(len(answers))
    for q, (answer, texts) in enumerate(zip(answers, gold, strict=True)):
        predicted = normalize_answer(answer, convention)
        expected = [normalize_answer(text, convention) for text in texts]
        if no_answer:
            expected = [text for text in expected if text] or [""]
        exact[q] = max((float(predicted == text) for text in expected), default=0.0)
        f1[q] = max((_f1(predicted, text, convention, no_answer) for text in expected), default=0.0)
    return AnswerScores(exact, f1)


def sum_in_order(values: Scores) -> float:
    """The sum, added in order as by the official scripts: the last digits depend on the order."""
    return float(np.cumsum(values)[-1]) if len(values) else 0.0


def choose_threshold(odds: Scores, answered: Scores, unanswered: Scores) -> float:
    """The threshold on ``odds`` above which no answer is given, for the highest sum of scores.

    Args:
        odds: float64 [Q]; score of no answer minus that of the best answer.
        answered: float64 [Q]; the question's score if the best answer is given.
        unanswered: float64 [Q]; the question's score if no answer is given.

    Returns:
        A value midway between the odds of two questions; of equally good ones the nearest to 0.
    """
    order = np.argsort(odds, kind="stable")
    sorted_odds, gain = odds[order], (answered - unanswered)[order]
    # Threshold k answers the k questions with the lowest odds. It exists only if the odds on both
    # sides of it differ.
    sums = np.concatenate([[0.0], np.cumsum(gain)])
    exists = np.concatenate([[True], sorted_odds[1:] > sorted_odds[:-1], [True]])
    edges = np.concatenate([[sorted_odds[0] - 1], sorted_odds, [sorted_odds[-1] + 1]])
    thresholds = (edges[:-1] + edges[1:]) / 2
    best = exists & (sums >= sums[exists].max() - 1e-9)
    candidates = thresholds[best]
    return float(candidates[np.abs(candidates).argmin()])


def no_answer_rates(
    answers: Sequence[str | None], gold: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Precision and recall of giving no answer; 0 where undefined.

    Args:
        answers: as predicted; empty for "no answer", None for a question without a prediction.
        gold: the answers of each question; empty if it has none.
    """
    predicted_none = np.array([answer == "" for answer in answers])
    gold_none = np.array([not texts for texts in gold])
    right = float((predicted_none & gold_none).sum())
    return {
        "no_answer_precision": right / max(1, int(predicted_none.sum())),
        "no_answer_recall": right / max(1, int(gold_none.sum())),
    }


def mostly_korean(gold: Sequence[Sequence[str]]) -> bool:
    """Whether more than half of the questions have a first answer with Hangul syllables."""
    return 2 * sum(any("가" <= c <= "힣" for c in texts[0]) for texts in gold if texts) > len(gold)


def score_file(
    predictions: str | Path,
    data: str | Path,
    *,
    convention: Convention = "squad",
    odds: str | Path | None = None,
) -> tuple[dict[str, float], list[str]]:
    """Score a file of predictions, whatever system made it.

    Args:
        predictions: JSON, an object of question id to answer.
        data: the questions with their answers, in SQuAD's format. If some have no answer, the rules
            are those of 2.0.
        convention: see :func:`score_answers`.
        odds: JSON, an object of question id to the odds, or the probability, of no answer.

    Returns:
        Scores in percent under the names of the official scripts, for 2.0 with the precision and
        recall of giving no answer; and notes. A question without a prediction scores 0. With
        ``odds`` also the best scores over all thresholds on them.

    Raises:
        InputError: a file that cannot be read, no odds for a question, or odds for a file in which
            every question has an answer.
    """
    rows = read_questions(data, labelled=True)
    answer_of = _read_predictions(Path(predictions))
    notes = [*rows.notes]
    missing = [id for id in rows.ids if id not in answer_of]
    if missing:
        notes.append(
            f"{counted(len(missing), 'question')} without a prediction: score 0 ({missing[0]!r})"
        )
    unknown = len(answer_of.keys() - set(rows.ids))
    if unknown:
        notes.append(f"{unknown:,} predictions are for ids that are not in {rows.path.name}")
    if convention == "squad" and mostly_korean(rows.gold):
        notes.append(
            "most answers are Korean; --convention korean compares by character, as KorQuAD"
        )
    answers = [answer_of.get(id) for id in rows.ids]
    v2 = rows.some_unanswerable
    texts = [answer or "" for answer in answers]
    scores = score_answers(texts, rows.gold, convention=convention, no_answer=v2)
    predicted = np.array([answer is not None for answer in answers])
    scores = AnswerScores(scores.exact * predicted, scores.f1 * predicted)
    if not v2:
        if odds is not None:
            raise InputError(
                "every question has an answer, so odds of no answer have no use; leave out odds.",
                place=Place(rows.path),
            )
        return {"exact_match": _percent(scores.exact), "f1": _percent(scores.f1)}, notes
    found = _by_answerable(scores, answers, rows)
    if odds is not None:
        found |= _over_thresholds(scores, answers, rows, _read_odds(Path(odds), rows, answers))
    return found, notes


def _by_answerable(
    scores: AnswerScores, answers: Sequence[str | None], rows: Questions
) -> dict[str, float]:
    """Scores over all questions, those with answers, and those without."""
    unanswerable = np.array([not texts for texts in rows.gold])
    groups = {
        "": np.ones(len(rows), dtype=bool),
        "HasAns_": ~unanswerable,
        "NoAns_": unanswerable,
    }
    percentages: dict[str, float] = {}
    for prefix, group in groups.items():
        if group.any():
            percentages[f"{prefix}exact"] = _percent(scores.exact[group])
            percentages[f"{prefix}f1"] = _percent(scores.f1[group])
            percentages[f"{prefix}total"] = int(group.sum())
    rates = no_answer_rates(answers, rows.gold)
    return percentages | {name: 100 * value for name, value in rates.items()}


def _over_thresholds(
    scores: AnswerScores, answers: Sequence[str | None], rows: Questions, odds: dict[str, float]
) -> dict[str, float]:
    """The highest score if answers are kept up to some odds, and the odds of the last one kept.

    As the official script: questions of equal odds are in the order of the odds file, and the
    first of several best thresholds counts.
    """
    unanswerable = np.array([not texts for texts in rows.gold])
    predicted = np.array([answer is not None for answer in answers])
    wrongly = np.array([bool(answer) for answer in answers])
    position = {id: q for q, id in enumerate(rows.ids) if predicted[q]}
    order = [position[id] for id in sorted(odds, key=odds.__getitem__) if id in position]
    without_answers = float((unanswerable & predicted).sum())
    found: dict[str, float] = {}
    for name, values in (("exact", scores.exact), ("f1", scores.f1)):
        gain = np.where(unanswerable, -1.0 * wrongly, values)[order]
        sums = np.cumsum([without_answers, *gain])
        kept = int(sums.argmax())
        found[f"best_{name}"] = 100.0 * float(sums[kept]) / len(rows)
        found[f"best_{name}_thresh"] = odds[rows.ids[order[kept - 1]]] if kept else 0.0
    return found


def _percent(values: Scores) -> float:
    return 100.0 * sum_in_order(values) / len(values)


def _read_predictions(path: Path) -> dict[str, str]:
    content = _read_object(path, "answers")
    for id, answer in content.items():
        if not isinstance(answer, str):
            raise InputError(
                f"the prediction for {id!r} is {str(answer)[:40]!r}; it must be a text.",
                place=Place(path),
            )
    return content


def _read_odds(path: Path, rows: Questions, answers: Sequence[str | None]) -> dict[str, float]:
    content = _read_object(path, "odds")
    for id, value in content.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise InputError(
                f"the odds for {id!r} are {str(value)[:40]!r}; they must be a number.",
                place=Place(path),
            )
    for id, answer in zip(rows.ids, answers, strict=True):
        if answer is not None and id not in content:
            raise InputError(
                f"has no odds for {id!r}, which has a prediction; give the file that was written "
                "with the predictions.",
                place=Place(path),
            )
    return content


def _read_object(path: Path, values: str) -> dict[str, Any]:
    content = read_json_file(path)
    if not isinstance(content, dict):
        raise InputError(f"is not a JSON object of question ids and {values}.", place=Place(path))
    return content


def _f1(answer: str, gold: str, convention: Convention, no_answer: bool) -> float:
    if convention == "korean":
        predicted, expected = list(answer.replace(" ", "")), list(gold.replace(" ", ""))
    else:
        predicted, expected = answer.split(), gold.split()
    if no_answer and not (predicted and expected):
        return float(predicted == expected)
    common = sum((Counter(predicted) & Counter(expected)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(expected)
    return (2 * precision * recall) / (precision + recall)
