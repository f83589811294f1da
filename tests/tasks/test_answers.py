"""Scores of answers: the official digits, the rules of each version, and the threshold."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import InputError
from bothways.tasks.answers import (
    choose_threshold,
    no_answer_rates,
    score_answers,
    score_file,
)
from question_examples import question, squad_file


def one(answer: str, *gold: str, **rules: object) -> tuple[float, float]:
    found = score_answers([answer], [gold], **rules)  # type: ignore[arg-type]
    return float(found.exact[0]), float(found.f1[0])


@pytest.mark.parametrize(
    "system", ["bert-ensemble", "logistic-regression", "match-lstm-ensemble", "slqa-ensemble"]
)
def test_the_official_digits(shared_data: Callable[[str], Path], system: str) -> None:
    folder = shared_data("squad/official-predictions")
    expected = json.loads((folder / "expected.json").read_text())[f"{system}.json"]
    found, _ = score_file(folder / f"{system}.json", shared_data("squad/v1.1/dev-v1.1.json"))
    assert found == expected, "equal to the last digit"


def test_no_answer_is_right_or_wrong_as_a_whole() -> None:
    assert one("", no_answer=True) == (1.0, 1.0)
    assert one("x", no_answer=True) == (0.0, 0.0)
    assert one("", "x", no_answer=True) == (0.0, 0.0)
    assert one("the", "a", "x", no_answer=True) == (0.0, 0.0), "an answer of no words is left out"
    assert one("", "the", no_answer=True) == (1.0, 1.0)
    # Under the rules of 1.1, answers of which nothing is left are equal but share no word.
    assert one("the", "a") == (1.0, 0.0)


# Rules step by step, as the official scripts of SQuAD 2.0 and KorQuAD 1.0 order them. (On 200,000
# random answers these two agreed with scripts as their authors published them, 2026-11-23.)


def without_punctuation(text: str) -> str:
    return "".join(c for c in text if c not in string.punctuation)


def normal_in_english(text: str) -> str:
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", without_punctuation(text.lower())).split())


def normal_in_korean(text: str) -> str:
    for quote in "'\"《》<>〈〉()‘’":
        text = text.replace(quote, " ")
    return " ".join(without_punctuation(text.lower()).split())


def shared(one: list[str], other: list[str]) -> float:
    common = sum((Counter(one) & Counter(other)).values())
    if not common:
        return 0.0
    precision, recall = common / len(one), common / len(other)
    return 2 * precision * recall / (precision + recall)


def step_by_step_2_0(answer: str, gold: list[str]) -> tuple[float, float]:
    texts = [text for text in gold if normal_in_english(text)] or [""]
    pairs = [(normal_in_english(answer), normal_in_english(text)) for text in texts]
    f1 = [shared(a.split(), g.split()) if a and g else float(a == g) for a, g in pairs]
    return max(float(a == g) for a, g in pairs), max(f1)


def step_by_step_korquad(answer: str, gold: list[str]) -> tuple[float, float]:
    pairs = [(normal_in_korean(answer), normal_in_korean(text)) for text in gold]
    f1 = [shared([*a.replace(" ", "")], [*g.replace(" ", "")]) for a, g in pairs]
    return max(float(a == g) for a, g in pairs), max(f1)


WORDS = st.sampled_from(
    [
        *"the a an cat Dog . , ' \" ( ) 《 》 ‘ ’ é Ⅳ 가 나다 서울 - – $ 12 İ".split(),
        "\u3000",
        " ",
        "",
    ]
)
ANSWERS = st.lists(WORDS, max_size=6).flatmap(
    lambda words: st.sampled_from(["", " "]).map(lambda space: space.join(words))
)


@given(ANSWERS, st.lists(ANSWERS, max_size=3))
def test_the_rules_of_2_0_step_by_step(answer: str, gold: list[str]) -> None:
    assert one(answer, *gold, no_answer=True) == pytest.approx(step_by_step_2_0(answer, gold))


@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=3))
def test_the_rules_of_korquad_step_by_step(answer: str, gold: list[str]) -> None:
    expected = step_by_step_korquad(answer, gold)
    assert one(answer, *gold, convention="korean") == pytest.approx(expected)


def test_precision_and_recall_of_no_answer() -> None:
    rates = no_answer_rates(["", "", "x", "y"], [(), ("a",), (), ("b",)])
    assert rates == {"no_answer_precision": 0.5, "no_answer_recall": 0.5}
    assert set(no_answer_rates(["x"], [("x",)]).values()) == {0.0}
    rates = no_answer_rates(["", None, None], [(), (), ("a",)])
    assert rates == {"no_answer_precision": 1.0, "no_answer_recall": 0.5}


QUESTIONS = st.lists(
    st.tuples(st.integers(-4, 4), st.sampled_from([0.0, 0.5, 1.0]), st.booleans()), min_size=1
)


@given(QUESTIONS)
def test_no_threshold_is_better(questions: list[tuple[int, float, bool]]) -> None:
    odds = np.array([q[0] for q in questions], float)
    answered = np.array([0.0 if q[2] else q[1] for q in questions])
    unanswered = np.array([float(q[2]) for q in questions])

    def sum_at(threshold: float) -> float:
        return float(np.where(odds > threshold, unanswered, answered).sum())

    found = choose_threshold(odds, answered, unanswered)
    assert sum_at(found) == max(sum_at(t) for t in [-5.0, *(odds + 0.1).tolist()])


def test_of_equal_thresholds_that_nearest_to_zero() -> None:
    same = np.ones(4)
    assert choose_threshold(np.array([-7.0, -1.0, 2.0, 9.0]), same, same) == 0.5


def test_a_file_of_predictions(tmp_path: Path) -> None:
    data = squad_file(
        tmp_path / "data.json",
        [
            {
                "context": "one two three",
                "qas": [
                    question("a", "?", ("one", 0)),
                    question("b", "?", ("two three", 4)),
                    question("c", "?", impossible=True),
                    question("d", "?", impossible=True),
                ],
            }
        ],
    )
    predictions = tmp_path / "predictions.json"
    predictions.write_text(json.dumps({"a": "one", "b": "two", "c": "", "e": "x"}))
    found, notes = score_file(predictions, data)
    assert found["exact"] == 50.0
    assert found["f1"] == pytest.approx(100 * (1 + 2 / 3 + 1) / 4)
    assert (found["HasAns_total"], found["NoAns_total"]) == (2, 2)
    assert (found["HasAns_exact"], found["NoAns_exact"]) == (50.0, 50.0)
    assert (found["no_answer_precision"], found["no_answer_recall"]) == (100.0, 50.0)
    assert "1 question without a prediction: score 0 ('d')" in notes
    assert "1 predictions are for ids that are not in data.json" in notes


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "one", "one two", "zero"]),  # predicted
            st.sampled_from(["", "one", "two three"]),  # gold
            st.integers(-2, 2),
        ),
        min_size=1,
    ).filter(lambda questions: any(not gold for _, gold, _ in questions))
)
def test_the_best_scores_over_thresholds_step_by_step(
    tmp_path_factory: pytest.TempPathFactory, questions: list[tuple[str, str, int]]
) -> None:
    folder, context = tmp_path_factory.mktemp("odds"), "one two three"
    asked = [
        question(str(q), "?", (gold, context.index(gold)))
        if gold
        else question(str(q), "?", impossible=True)
        for q, (_, gold, _) in enumerate(questions)
    ]
    data = squad_file(folder / "data.json", [{"context": context, "qas": asked}])
    answers, odds = folder / "answers.json", folder / "odds.json"
    answers.write_text(json.dumps({str(q): text for q, (text, _, _) in enumerate(questions)}))
    odds.write_text(json.dumps({str(q): value for q, (_, _, value) in enumerate(questions)}))
    plain, _ = score_file(answers, data)
    found, _ = score_file(answers, data, odds=odds)
    assert {name: found[name] for name in plain} == plain
    for name, part in (("exact", 0), ("f1", 1)):
        best = sum_so_far = sum(not gold for _, gold, _ in questions)
        threshold = 0.0
        for text, gold, value in sorted(questions, key=lambda asked: asked[2]):
            right = step_by_step_2_0(text, [gold])[part] if gold else -float(bool(text))
            sum_so_far += right
            if sum_so_far > best:
                best, threshold = sum_so_far, value
        assert found[f"best_{name}"] == pytest.approx(100 * best / len(questions))
        assert found[f"best_{name}_thresh"] == threshold


def test_odds_that_do_not_fit_the_predictions(tmp_path: Path) -> None:
    qas = [question("a", "?", ("one", 0)), question("b", "?", impossible=True)]
    data = squad_file(tmp_path / "data.json", [{"context": "one", "qas": qas}])
    answers, odds = tmp_path / "answers.json", tmp_path / "odds.json"
    answers.write_text('{"a": "one", "b": "one"}')
    odds.write_text('{"a": -1, "b": 2.5, "another": 0}')
    found, _ = score_file(answers, data, odds=odds)
    assert (found["exact"], found["best_exact"], found["best_exact_thresh"]) == (50.0, 100.0, -1)
    for content, message in (
        ("[]", "not a JSON object of question ids and odds"),
        ('{"a": "x", "b": 0}', "odds for 'a' are 'x'"),
        ('{"a": true, "b": 0}', "odds for 'a' are 'True'"),
        ('{"a": NaN, "b": 0}', "odds for 'a' are 'nan'"),
        ('{"a": 0}', "no odds for 'b'"),
    ):
        odds.write_text(content)
        with pytest.raises(InputError, match=message):
            score_file(answers, data, odds=odds)
    answers.write_text('{"a": "one"}')
    odds.write_text('{"a": 0}')
    found, _ = score_file(answers, data, odds=odds)
    assert found["best_exact"] == 50.0, "a question without a prediction scores 0"
    answered = squad_file(tmp_path / "answered.json", [{"context": "one", "qas": qas[:1]}])
    with pytest.raises(InputError, match="every question has an answer"):
        score_file(answers, answered, odds=odds)


def test_korean_answers_scored_by_word_are_pointed_out(tmp_path: Path) -> None:
    asked = question("a", "?", ("서울", 0))
    data = squad_file(tmp_path / "data.json", [{"context": "서울 특별시", "qas": [asked]}])
    predictions = tmp_path / "predictions.json"
    predictions.write_text('{"a": "서울시"}')
    assert any("--convention korean" in note for note in score_file(predictions, data)[1])
    assert score_file(predictions, data, convention="korean")[1] == []
    for content, message in (
        ("[]", "not a JSON object"),
        ('{"a": 3}', "prediction for 'a' is '3'"),
        ("{", "not JSON"),
    ):
        predictions.write_text(content)
        with pytest.raises(InputError, match=message):
            score_file(predictions, data)
