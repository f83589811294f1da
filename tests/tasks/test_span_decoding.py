"""From outputs of a model to answers: scores of spans, windows, and options that fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import ConfigError, InputError
from bothways.io.annotations.squad import GoldAnswer, Questions
from bothways.tasks.options import SpanOptions, TaskOptions
from bothways.tasks.spans import RankedAnswers, SpanTask, best_spans, span_scores
from model_examples import small_tokenizer

VOCABULARY = 97


def slowly(outputs: np.ndarray, best: np.ndarray, longest: int) -> dict[tuple[int, int], float]:
    return {
        (i, j): float(outputs[i, 0]) + float(outputs[j, 1])
        for i in range(len(outputs))
        for j in range(i, min(i + longest, len(outputs)))
        if best[i]
    }


@given(st.integers(0, 12), st.integers(1, 15), st.integers(0, 10_000))
def test_all_answers_of_a_window(pieces: int, longest: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = rng.integers(-3, 3, (pieces, 2)).astype(np.float32)
    best = rng.random(pieces) < 0.7
    expected = slowly(outputs, best, longest)
    scores = span_scores(outputs, best, longest)
    assert scores.shape == (pieces, min(longest, max(1, pieces)))
    found = {(int(i), int(i + n)): float(scores[i, n]) for i, n in np.argwhere(scores > -np.inf)}
    assert found == expected
    rows, columns = best_spans(scores, 5)
    top = [expected[int(i), int(i + n)] for i, n in zip(rows, columns, strict=True)]
    assert top == sorted(expected.values(), reverse=True)[:5]


@given(st.integers(1, 300), st.integers(1, 200), st.integers(0, 10_000))
def test_of_equal_scores_the_first(size: int, count: int, seed: int) -> None:
    scores = np.random.default_rng(seed).choice([-np.inf, 0.0, 1.0, 2.0], (size, 3))
    rows, columns = best_spans(scores, count)
    finite = [i for i, score in enumerate(scores.ravel()) if np.isfinite(score)]
    expected = sorted(finite, key=lambda i: -scores.ravel()[i])[:count]
    assert (rows * 3 + columns).tolist() == expected


def rows_of(passage: str, *golds: str) -> Questions:
    gold = tuple(GoldAnswer(text, passage.index(text)) for text in golds)
    return Questions(Path("q.json"), [passage], ["q"], ["w1"], [0], [gold] if golds else None)


def decoded(passage: str, scores: dict[str, tuple[float, float]], **options: Any) -> RankedAnswers:
    """What is found where the outputs are 0 but for these words (the first of their kind)."""
    rows = rows_of(passage)
    task = SpanTask.define(TaskOptions(kind="spans", spans=SpanOptions(**options)), rows)
    part = task.encode(small_tokenizer(VOCABULARY), rows, length=64)
    outputs = np.zeros((len(part.examples.read_positions), 2), np.float32)
    words = passage.split()
    for word, values in scores.items():
        outputs[0 if word == "[CLS]" else part.passage_bounds[0, 0] + words.index(word)] = values
    return task.decode(part, outputs)[0]


def test_the_best_answers_with_probabilities() -> None:
    found = decoded("w1 w2 w3 w2", {"w1": (3, 0), "w3": (1, 2)}, no_answer=False, n_best=3)
    best, *others = found.answers
    assert (best.text, best.start, best.end, best.score) == ("w1 w2 w3", 0, 8, 5.0)
    assert [a.score for a in others] == [3.0, 3.0]
    weights = np.exp([5.0, 3.0, 3.0])
    assert [a.probability for a in found.answers] == pytest.approx(weights / weights.sum())
    assert found.null_odds == 0.0


def test_equal_words_are_one_answer() -> None:
    found = decoded("w1 w2 w1", {"w1": (2, 2)}, no_answer=False, n_best=20)
    texts = [a.text for a in found.answers]
    assert len(texts) == len(set(texts)) == 5
    assert (texts[0], found.answers[0].score) == ("w1", 4.0), "that of its best place"


def test_no_answer_competes_at_cls() -> None:
    outputs = {"[CLS]": (2.0, 2.5), "w1": (3.0, 1.0)}
    found = decoded("w1 w2", outputs, no_answer=True)
    assert [(a.text, a.score) for a in found.answers][:2] == [("", 4.5), ("w1", 4.0)]
    assert found.null_odds == 0.5
    assert found.best == "w1"
    assert "" not in [a.text for a in decoded("w1 w2", outputs, no_answer=False).answers]


def test_over_windows() -> None:
    """No answer by the window that is least for it; an answer by that with the most context."""
    words = [f"w{10 + i}" for i in range(10)]
    rows = rows_of(" ".join(words))
    options = TaskOptions(kind="spans", spans=SpanOptions(no_answer=True, stride=3))
    task = SpanTask.define(options, rows)
    part = task.encode(small_tokenizer(VOCABULARY), rows, length=11)
    assert part.passage_bounds.tolist() == [[3, 10], [3, 10]]  # words 0 to 6, and 3 to 9
    outputs = np.zeros((22, 2), np.float32)
    outputs[0], outputs[11] = 2.5, 1.0
    outputs[3 + 6, 0] = 9.0  # the last word of the first window, which the second shows better
    outputs[11 + 3 + 2] = 3.0  # word 5, at its best in the second window
    (found,) = task.decode(part, outputs)
    assert (found.best, found.answers[0].score) == ("w15", 6.0)
    assert found.null_odds == 2.0 - 6.0
    assert "w16" not in [a.text for a in found.answers if a.score > 3]


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_the_best_of_all_windows(seed: int, n_best: int) -> None:
    """Each window's best are compared, not all of its answers; of equal scores the first wins."""
    rng = np.random.default_rng(seed)
    rows = rows_of(" ".join(f"w{i}" for i in rng.integers(1, 40, 60)))
    spans = SpanOptions(no_answer=False, stride=5, answer_length=4, n_best=n_best)
    task = SpanTask.define(TaskOptions(kind="spans", spans=spans), rows)
    part = task.encode(small_tokenizer(VOCABULARY), rows, length=16)
    outputs = rng.integers(0, 3, (len(part.examples.read_positions), 2)).astype(np.float32)
    (found,) = task.decode(part, outputs)
    best: dict[str, tuple[float, int]] = {}
    seen = 0
    bounds = part.passage_bounds + part.examples.output_bounds[:-1, None]
    for first, end in bounds:
        own = span_scores(outputs[first:end], part.best[first:end], 4)
        for start, length in np.argwhere(np.isfinite(own)):
            text = rows.passages[0][part.starts[first + start] : part.ends[first + start + length]]
            candidate = (-float(own[start, length]), seen)
            best[text] = min(best.get(text, candidate), candidate)
            seen += 1
    wanted = sorted((order, text) for text, order in best.items())[:n_best]
    assert len(bounds) > 5
    assert [(a.text, -a.score) for a in found.answers] == [(t, score) for (score, _), t in wanted]


def test_an_empty_passage_has_no_answer() -> None:
    found = decoded("", {}, no_answer=False)
    assert [a.text for a in found.answers] == [""]
    assert found.best == ""


def test_options_that_fit_no_file() -> None:
    rows = rows_of("w1 w2", "w2")
    with pytest.raises(ConfigError, match="spans have answers, not labels"):
        SpanTask.define(TaskOptions(kind="spans", labels=("a", "b")), rows)
    with pytest.raises(ConfigError, match="choose from f1, exact_match, each once"):
        SpanTask.define(TaskOptions(kind="spans", metrics=("no_answer_recall",)), rows)
    with pytest.raises(ConfigError, match=r"long windows is .* not spans"):
        TaskOptions(kind="spans", long="windows")
    with pytest.raises(ConfigError, match=r"spans_stride is 0"):
        SpanOptions(stride=0)
    task = SpanTask.define(TaskOptions(kind="spans"), rows)
    assert task.metrics == ("f1", "exact_match")
    none = dataclasses.replace(rows, answers=[()])
    with pytest.raises(InputError, match="question 'q' has no answer, but all questions"):
        task.encode(small_tokenizer(VOCABULARY), none, length=64)
