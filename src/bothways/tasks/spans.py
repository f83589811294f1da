"""Answers that are words of a passage: SQuAD 1.1 and 2.0 (Devlin et al. 2019, 4.2 and 4.3).

The score of an answer from token i to token j is S·T_i + E·T_j, that of no answer S·C + E·C at
[CLS]. Q questions, N windows of all of them, R their tokens, P pieces of a window's passage, L the
longest answer in tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import punctuation
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.special import softmax

from bothways.config import TaskOptions
from bothways.errors import ConfigError, InputError
from bothways.files import write_json
from bothways.tasks.answers import (
    Scores,
    choose_threshold,
    no_answer_rates,
    score_answers,
    total,
)
from bothways.tasks.metrics import Measurement
from bothways.tasks.passages import PassagePart, encode_questions
from bothways.tasks.questions import Questions, read_questions
from bothways.tasks.report_panels import ExampleScores, Mistake, Panel, confusion_panel
from bothways.tasks.task import Outputs, Part, Task
from bothways.tokenization.tokenizer import Tokenizer

METRICS = ("f1", "exact_match")
NO_ANSWER_METRICS = ("no_answer_precision", "no_answer_recall")
# Candidates looked at for each answer kept: the same words often stand in several places.
_SPARE = 10
# In the report: question words, characters of a passage, and beside its answers.
_SHOWN_WORDS, _SHOWN_PASSAGE, _SHOWN_AROUND = 12, 300, 120
_LENGTHS = (("none", 0), ("1", 1), ("2", 2), ("3 to 4", 4), ("5 to 8", 8), ("9 or more", 10**9))


@dataclass(frozen=True)
class Answer:
    """An answer to a question.

    Attributes:
        text: the passage's own characters; empty for "no answer".
        start, end: where they are in the passage, ``passage[start:end]``.
        score: S·T_i + E·T_j.
        probability: among the answers kept.
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class Answered:
    """What was found for a question.

    Attributes:
        answers: different texts, best first, "no answer" among them where that is possible.
        best: the best that is an answer; empty if the passage is.
        odds: the score of no answer, the least over the windows, less that of the best answer; 0
            where every question has an answer.
    """

    answers: tuple[Answer, ...]
    best: str
    odds: float


class SpanTask(Task[Questions, list[Answered]]):
    """Questions on passages."""

    loss = "place"
    head = "spans"
    needs_columns = False

    @property
    def outputs(self) -> int:
        """Start and end."""
        return 2

    @property
    def pair(self) -> bool:
        """Question and passage."""
        return True

    @property
    def no_answer(self) -> bool:
        """Questions may have no answer."""
        return bool(self.options.spans.no_answer)

    @classmethod
    def read(cls, path: Path, options: TaskOptions, *, labelled: bool) -> Questions:  # noqa: ARG003
        """SQuAD's JSON."""
        return read_questions(path, labelled=labelled)

    @classmethod
    def define(cls, options: TaskOptions, train: Questions) -> Self:
        """Whether questions may have no answer is found in the file, if not given."""
        if options.labels:
            raise ConfigError("task.labels is given, but spans have answers, not labels.")
        spans = options.spans
        if spans.no_answer is None:
            spans = replace(spans, no_answer=train.some_unanswerable)
        known = METRICS + (NO_ANSWER_METRICS if spans.no_answer else ())
        metrics = options.metrics or known
        unknown = [name for name in metrics if name not in known]
        if unknown or len(set(metrics)) < len(metrics):
            raise ConfigError(
                f"task.metrics is {', '.join(metrics)}; for spans choose from {', '.join(known)}, "
                "each once."
            )
        return cls(replace(options, metrics=metrics, spans=spans))

    def encode(self, tokenizer: Tokenizer, rows: Questions, *, length: int) -> PassagePart:
        """In windows."""
        if rows.some_unanswerable and not self.no_answer:
            assert rows.answers is not None
            first = next(id for id, found in zip(rows.ids, rows.answers, strict=True) if not found)
            raise InputError(
                f"question {first!r} has no answer, but this task's questions all have one "
                "(task.spans.no_answer, or what the training file has).",
                path=rows.path,
            )
        return encode_questions(tokenizer, rows, self.options.spans, length=length)

    def decode(self, part: Part[Questions], outputs: Outputs) -> list[Answered]:
        """The best answers to each question."""
        assert isinstance(part, PassagePart)
        bounds = np.searchsorted(part.examples.owners, np.arange(len(part.rows) + 1))
        return [
            self._answer(part, outputs, q, range(bounds[q], bounds[q + 1]))
            for q in range(len(part.rows))
        ]

    def _answer(
        self, part: PassagePart, outputs: Outputs, question: int, windows: range
    ) -> Answered:
        """The best answers over the windows of a question."""
        options = self.options.spans
        scores, places, none = [], [], []
        for n in windows:
            at = int(part.examples.rows[n])
            first, end = at + part.texts[n]
            scores.append(
                span_scores(outputs[first:end], part.best[first:end], options.answer_length)
            )
            places.append(np.arange(first, end))
            none.append(float(outputs[at].astype(np.float64).sum()))
        scores_PL = np.concatenate(scores)
        i, length = best_places(scores_PL, options.n_best * _SPARE)
        found = scores_PL[i, length]
        starts = np.concatenate(places)[i]
        spans = zip(part.starts[starts].tolist(), part.ends[starts + length].tolist(), strict=True)
        passage = part.rows.passages[part.rows.passage_of[question]]
        kept: dict[str, tuple[int, int, float]] = {}
        for (start, end), score in zip(spans, found.tolist(), strict=True):
            if len(kept) < options.n_best:
                kept.setdefault(passage[start:end], (start, end, score))
        best = next(iter(kept), "")
        odds = 0.0
        if self.no_answer or not kept:
            null = min(none)
            odds = null - kept[best][2] if kept else 0.0
            kept[""] = (0, 0, null)
        return Answered(_with_probabilities(kept), best, odds)

    def texts(self, predictions: list[Answered], threshold: float | None = None) -> list[str]:
        """The answers that are given: of each question the best one, or none, which is empty.

        Args:
            predictions: for the questions of a file.
            threshold: for the odds of no answer; the task's if not given.
        """
        limit = self.options.spans.threshold if threshold is None else threshold
        return ["" if self.no_answer and p.odds > limit else p.best for p in predictions]

    def tuned(self, part: Part[Questions], outputs: Outputs) -> Self:
        """With the threshold for which F1 is highest."""
        options = self.options.spans
        if not (self.no_answer and options.tune):
            return self
        found = self.decode(part, outputs)
        threshold = choose_threshold(
            np.array([answered.odds for answered in found]),
            self._scores(part, [answered.best for answered in found])[1],
            self._scores(part, ["" for _ in found])[1],
        )
        return type(self)(
            replace(self.options, spans=replace(options, threshold=round(threshold, 6)))
        )

    def _scores(self, part: Part[Questions], texts: list[str]) -> tuple[NDArray[Any], NDArray[Any]]:
        convention = self.options.spans.convention
        scores = score_answers(
            texts, part.rows.gold, convention=convention, no_answer=self.no_answer
        )
        return scores.exact, scores.f1

    def measure(self, part: Part[Questions], predictions: list[Answered]) -> Measurement:
        """F1 and exact match as the official scripts have them, as fractions."""
        found = self._measure(part, self.texts(predictions))
        if not self.no_answer or not self.options.spans.threshold:
            return found
        plain = self._measure(part, self.texts(predictions, 0.0)).scores
        shown = ", ".join(f"{name} {value:.4f}" for name, value in plain.items())
        note = f"threshold of no answer {self.options.spans.threshold:.3f}; at 0: {shown}"
        return replace(found, notes=(*found.notes, note))

    def _measure(self, part: Part[Questions], texts: list[str]) -> Measurement:
        exact, f1 = self._scores(part, texts)
        scores = {
            "f1": total(f1) / len(texts),
            "exact_match": total(exact) / len(texts),
            **no_answer_rates(texts, part.rows.gold),
        }
        collapsed = len(texts) > 1 and len(set(texts)) == 1
        notes = (f"collapsed: {texts[0]!r} for all {len(texts):,} questions",) if collapsed else ()
        return Measurement({name: scores[name] for name in self.metrics}, notes, collapsed)

    def baseline(self, train: Part[Questions], dev: Part[Questions]) -> Measurement:  # noqa: ARG002
        """Never an answer."""
        return self._measure(dev, [""] * len(dev.rows))

    def panels(self, part: Part[Questions], predictions: list[Answered]) -> list[Panel]:
        """Scores by the question's first word, and by how long the answer is; and how often none
        is given, where that is possible."""
        texts, gold = self.texts(predictions), part.rows.gold
        scores = self._scores(part, texts)
        panels = []
        if self.options.spans.convention == "squad":  # Korean questions do not begin with the word
            asked = [
                "".join(text.lower().split()[:1]).strip(punctuation) for text in part.rows.texts
            ]
            common = [word for word, _ in Counter(asked).most_common(_SHOWN_WORDS)]
            groups = [word if word in common else "others" for word in asked]
            panels.append(_by_group("first word", [*common, "others"], groups, scores))
        lengths = [min((len(text.split()) for text in texts), default=0) for texts in gold]
        groups = [next(name for name, most in _LENGTHS if length <= most) for length in lengths]
        names = [name for name, _ in _LENGTHS]
        panels.append(_by_group("words of the shortest answer", names, groups, scores))
        if self.no_answer:
            given, known = (np.array([int(not t) for t in own]) for own in (texts, gold))
            panels.append(confusion_panel(given, known, ("answer", "no answer")))
        return panels

    def errors(self, part: Part[Questions], predictions: list[Answered]) -> list[Mistake]:
        """Answers that are not exact; first those that are sure and share the least with one that
        is."""
        texts, rows = self.texts(predictions), part.rows
        exact, f1 = self._scores(part, texts)
        found = []
        for q in np.flatnonzero(exact < 1).tolist():
            answer = next((a for a in predictions[q].answers if a.text == texts[q]), None)
            sure = answer.probability if answer else 0.0
            passage = rows.passages[rows.passage_of[q]]
            assert rows.answers is not None, "the file was read without answers"
            spans = [(g.start, g.start + len(g.text)) for g in rows.answers[q][:1]]
            spans += [(answer.start, answer.end)] if answer and answer.text else []
            shown = (("question", rows.texts[q]), ("passage", _around(passage, spans)))
            gold = " | ".join(dict.fromkeys(rows.gold[q])) or "no answer"
            words = f"probability {sure:.3f}, F1 {f1[q]:.2f}"
            weight = sure * (1 - float(f1[q]))
            found.append(Mistake(q, shown, gold, texts[q] or "no answer", weight, words))
        return found

    def example_scores(self, part: Part[Questions], predictions: list[Answered]) -> ExampleScores:
        """F1."""
        return ExampleScores("f1", self._scores(part, self.texts(predictions))[1])

    def table(self, part: Part[Questions], predictions: list[Answered]) -> list[list[str]]:
        """id, answer, its probability, and the gold answers if known; white space made single."""
        known = part.rows.answers is not None
        rows = [["id", "prediction", *(["gold"] if known else []), "probability"]]
        for q, (answered, text) in enumerate(
            zip(predictions, self.texts(predictions), strict=True)
        ):
            gold = [" | ".join(map(_one_line, part.rows.gold[q]))] if known else []
            probability = next((a.probability for a in answered.answers if a.text == text), 0.0)
            rows.append([_one_line(part.rows.ids[q]), _one_line(text), *gold, f"{probability:.6f}"])
        return rows

    def write(self, path: Path, part: Part[Questions], predictions: list[Answered]) -> None:
        """SQuAD's official form, an object of question id to answer; beside it the n-best answers
        and, where a question may have no answer, the odds of that. All that beside a TSV if the
        name asks for one."""
        if path.suffix == ".tsv":
            super().write(path, part, predictions)
            path = path.with_suffix(".json")
        ids = part.rows.ids
        write_json(path, dict(zip(ids, self.texts(predictions), strict=True)))
        best = {id: [_record(a) for a in p.answers] for id, p in zip(ids, predictions, strict=True)}
        write_json(path.with_name(f"{path.stem}_nbest.json"), best)
        if self.no_answer:
            odds = {id: p.odds for id, p in zip(ids, predictions, strict=True)}
            write_json(path.with_name(f"{path.stem}_null_odds.json"), odds)


def _by_group(
    title: str, order: Sequence[str], groups: Sequence[str], scores: tuple[Scores, Scores]
) -> Panel:
    """Exact match and F1 of each group of questions that there is."""
    places = {name: [q for q, own in enumerate(groups) if own == name] for name in order}
    rows = tuple(
        (name, len(here), float(scores[1][here].mean()), float(scores[0][here].mean()))
        for name, here in places.items()
        if here
    )
    header = (title, "questions", "f1", "exact_match")
    return Panel(f"Scores by {title}", header, rows)


def _around(passage: str, spans: Sequence[tuple[int, int]]) -> str:
    """The part of a passage that holds some spans, or the last of them where they are far apart."""
    if not spans:
        return passage
    first, end = min(start for start, _ in spans), max(end for _, end in spans)
    if end - first > _SHOWN_PASSAGE:
        first, end = spans[-1]
    first, last = max(0, first - _SHOWN_AROUND), end + _SHOWN_AROUND
    return f"{'... ' * (first > 0)}{passage[first:last]}{' ...' * (last < len(passage))}"


def span_scores(
    outputs_P2: Outputs, best_P: NDArray[np.bool_], longest: int
) -> NDArray[np.float64]:
    """Scores of all answers in a window.

    Args:
        outputs_P2: of start and end, for the pieces of the passage.
        best_P: whether an answer may start there.
        longest: answer, in pieces.

    Returns:
        float64 [P, L]; element (i, l) is the answer of pieces i to i + l; -inf where there is none.
    """
    starts = np.where(best_P, outputs_P2[:, 0].astype(np.float64), -np.inf)
    beyond = np.full(longest - 1, -np.inf)
    ends = np.concatenate([outputs_P2[:, 1].astype(np.float64), beyond])
    if not len(starts):
        return np.zeros((0, longest))
    scores_PL: NDArray[np.float64] = starts[:, None] + sliding_window_view(ends, longest)
    return scores_PL


def best_places(
    scores_PL: NDArray[np.float64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of the highest finite scores, best first."""
    flat = scores_PL.ravel()
    count = min(count, len(flat))
    found = np.sort(np.argpartition(flat, len(flat) - count)[len(flat) - count :])
    found = found[np.isfinite(flat[found])]
    found = found[np.argsort(-flat[found], kind="stable")]
    rows, columns = np.divmod(found, scores_PL.shape[1])
    return rows, columns


def _with_probabilities(kept: dict[str, tuple[int, int, float]]) -> tuple[Answer, ...]:
    ordered = sorted(kept.items(), key=lambda item: -item[1][2])
    shares = softmax([score for _, (_, _, score) in ordered]).tolist()
    return tuple(
        Answer(text, start, end, score, share)
        for (text, (start, end, score)), share in zip(ordered, shares, strict=True)
    )


def _record(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "probability": answer.probability,
        "score": answer.score,
        "start": answer.start,
        "end": answer.end,
    }


def _one_line(text: str) -> str:
    return " ".join(text.split())
