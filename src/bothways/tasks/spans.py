"""Extractive question answering: SQuAD 1.1 and 2.0 (Devlin et al. 2019, 4.2 and 4.3).

The score of an answer from token i to token j is S·T_i + E·T_j, that of no answer S·C + E·C at
[CLS].

Q questions, N windows of all questions, R tokens of all windows, P pieces of a window's passage,
L length of the longest answer in tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import punctuation
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bothways.arrays import softmax
from bothways.errors import ConfigError, InputError, Place
from bothways.families.heads import SPAN
from bothways.io.annotations.squad import Questions, read_questions
from bothways.io.files import write_json
from bothways.tasks.answers import (
    AnswerScores,
    choose_threshold,
    mostly_korean,
    no_answer_rates,
    score_answers,
    sum_in_order,
)
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import SpanOptions, TaskOptions
from bothways.tasks.passages import PassageFile, encode_questions
from bothways.tasks.report_panels import (
    ExampleScores,
    Mistake,
    Panel,
    confusion_panel,
    marked_text,
)
from bothways.tasks.task import EncodedFile, Outputs, Task
from bothways.tokenization.tokenizer import Tokenizer

_TABLES = (".tsv", ".csv", ".jsonl")
METRICS = ("f1", "exact_match")
NO_ANSWER_METRICS = ("no_answer_precision", "no_answer_recall")
# Candidates considered per answer kept: the same text often occurs in several places.
_CANDIDATES_PER_ANSWER = 10
# In the report: question words, characters between answers, and characters on both sides of them.
_SHOWN_WORDS, _SHOWN_PASSAGE, _SHOWN_AROUND = 12, 300, 120
# Names and upper bounds of the groups of answer lengths in the report.
_LENGTHS = (("none", 0), ("1", 1), ("2", 2), ("3 to 4", 4), ("5 to 8", 8), ("9 or more", 10**9))


@dataclass(frozen=True)
class Answer:
    """An answer to a question.

    Attributes:
        text: ``passage[start:end]``; empty for "no answer".
        start, end: first character in the passage, and the one after the last.
        score: S·T_i + E·T_j.
        probability: among the n best answers.
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class RankedAnswers:
    """The answers found for a question.

    Attributes:
        answers: different texts, best first, with "no answer" among them if that is possible.
        best: the text of the best actual answer; empty if the passage is empty.
        null_odds: the score of no answer (the lowest over the windows) minus that of the best
            answer; 0 if every question has an answer.
    """

    answers: tuple[Answer, ...]
    best: str
    null_odds: float


class SpanTask(Task[Questions, list[RankedAnswers]]):
    """An answer, or none, to each question from a passage."""

    loss = "place"
    head = SPAN

    @property
    def outputs(self) -> int:
        """Scores of a token as the answer's start and end."""
        return 2

    @property
    def pair(self) -> bool:
        """Sequences are pairs of question and passage."""
        return True

    @property
    def no_answer(self) -> bool:
        """Whether questions may have no answer."""
        return bool(self.options.spans.no_answer)

    @classmethod
    def read(cls, path: Path, options: TaskOptions, *, labelled: bool) -> Questions:
        """SQuAD's JSON."""
        return read_questions(path, labelled=labelled, form=options.form)

    @classmethod
    def define(cls, options: TaskOptions, train: Questions) -> Self:
        """If not given, the training file decides whether questions may have no answer; for the
        model of another library, the file that is read. If that does not say, it stays open."""
        if options.labels:
            raise ConfigError("labels is given, but spans have answers, not labels.")
        if train.answers is not None and not any(train.answers):
            raise InputError(
                "no question has an answer, as where they are withheld from a test file; give the "
                "file that has them (answers, with text and answer_start).",
                place=Place(train.path),
            )
        spans = options.spans
        if spans.no_answer is None:
            no_answer = train.no_answer if train.answers is None else train.some_unanswerable
            spans = replace(spans, no_answer=no_answer)
        known = METRICS + (NO_ANSWER_METRICS if spans.no_answer else ())
        metrics = options.metrics or known
        unknown = [name for name in metrics if name not in known]
        if unknown or len(set(metrics)) < len(metrics):
            raise ConfigError(
                f"metrics is {', '.join(metrics)}; for spans choose from {', '.join(known)}, "
                "each once."
            )
        return cls(replace(options, metrics=metrics, spans=spans))

    def strata(self, rows: Questions) -> list[tuple[str, ...]]:
        """Whether each has an answer."""
        return [("answer" if found else "no answer",) for found in rows.answers or []]

    def groups(self, rows: Questions) -> list[Hashable]:
        """By passage, so that no passage is trained and measured on."""
        return [rows.passages[number] for number in rows.passage_of]

    def contents(self, rows: Questions) -> list[Hashable]:
        """The question with its passage."""
        return [*zip(self.groups(rows), rows.texts, strict=True)]

    def places(self, rows: Questions) -> list[str]:
        """The ids."""
        return rows.ids

    def encode(self, tokenizer: Tokenizer, rows: Questions, *, length: int) -> PassageFile:
        """In overlapping windows of the passage."""
        if rows.some_unanswerable and not self.no_answer:
            assert rows.answers is not None
            answers_of = zip(rows.ids, rows.answers, strict=True)
            first = next(id for id, answers in answers_of if not answers)
            raise InputError(
                f"question {first!r} has no answer, but all questions of this task have one "
                "(spans_no_answer, or what the training file has).",
                place=Place(rows.path),
            )
        part = encode_questions(tokenizer, rows, self.options.spans, length=length)
        part = replace(part, notes=(*rows.notes, *part.notes))
        if self.options.spans.no_answer is None:
            note = (
                f"{rows.path.name}: neither the model folder nor the file says whether questions "
                "may have no answer, so every question is answered; --task with a file that has "
                "kind: spans and spans: {no_answer: true} changes that"
            )
            part = replace(part, notes=(*part.notes, note))
        if rows.answers and self.options.spans.convention == "squad" and mostly_korean(rows.gold):
            note = (
                f"{rows.path.name}: most answers are Korean, but are compared by English rules; "
                "fine-tuning with spans_convention korean compares by character, as KorQuAD"
            )
            part = replace(part, notes=(*part.notes, note))
        return part

    def for_measuring(self) -> Self:
        """Without ``error``: where an answer stands counts in training, its text in measuring."""
        if self.options.spans.misaligned != "error":
            return self
        spans = replace(self.options.spans, misaligned="skip")
        return type(self)(replace(self.options, spans=spans))

    def decode(self, file: EncodedFile[Questions], outputs: Outputs) -> list[RankedAnswers]:
        """The best answers to each question."""
        assert isinstance(file, PassageFile)
        bounds = np.searchsorted(file.examples.owners, np.arange(len(file.rows) + 1))
        return [
            self._answer(file, outputs, q, range(bounds[q], bounds[q + 1]))
            for q in range(len(file.rows))
        ]

    def _answer(
        self, file: PassageFile, outputs: Outputs, question: int, windows: range
    ) -> RankedAnswers:
        """The best answers over the windows of a question."""
        options = self.options.spans
        count = options.n_best * _CANDIDATES_PER_ANSWER
        tokens, scores, null_scores = [], [], []
        for n in windows:
            cls = int(file.examples.output_bounds[n])
            first, end = cls + file.passage_bounds[n]
            scores_PL = span_scores(outputs[first:end], file.best[first:end], options.answer_length)
            piece, length = best_spans(scores_PL, count)
            tokens.append((first + piece, first + piece + length))
            scores.append(scores_PL[piece, length])
            null_scores.append(float(outputs[cls].astype(np.float64).sum()))
        score = np.concatenate(scores)
        order = np.argsort(-score, kind="stable")[:count]
        first_token, last_token = (np.concatenate(t)[order] for t in zip(*tokens, strict=True))
        candidates = zip(
            file.starts[first_token].tolist(),
            file.ends[last_token].tolist(),
            score[order].tolist(),
            strict=True,
        )
        passage = file.rows.passages[file.rows.passage_of[question]]
        kept: dict[str, tuple[int, int, float]] = {}
        for start, end, score in candidates:
            if len(kept) < options.n_best:
                kept.setdefault(passage[start:end], (start, end, score))
        best = next(iter(kept), "")
        null_odds = 0.0
        if self.no_answer or not kept:
            null_score = min(null_scores)
            null_odds = null_score - kept[best][2] if kept else 0.0
            kept[""] = (0, 0, null_score)
        return RankedAnswers(_with_probabilities(kept), best, null_odds)

    def final_answers(
        self, predictions: list[RankedAnswers], threshold: float | None = None
    ) -> list[str]:
        """The final answer to each question: the best one, or an empty text for no answer.

        Args:
            predictions: for the questions of a file.
            threshold: no answer is given if its odds are higher; the task's if None.
        """
        threshold = self.options.spans.threshold if threshold is None else threshold
        return ["" if self.no_answer and p.null_odds > threshold else p.best for p in predictions]

    def _with_learned(self, options: TaskOptions) -> tuple[TaskOptions, tuple[str, ...]]:
        own, notes = self.options.spans, tuple[str, ...]()
        if options.spans.convention == "korean" != own.convention:
            notes = (
                "answers are compared as in fine-tuning (convention squad); `bothways evaluate "
                "--predictions` with --set convention=korean compares saved ones by character",
            )
        unset = SpanOptions()
        for name in ("stride", "query_length", "answer_length", "n_best", "threshold"):
            given, learned = getattr(options.spans, name), getattr(own, name)
            if given not in (learned, getattr(unset, name)):
                notes += (f"{name} is {learned:g} as in fine-tuning, not {given:g}",)
        if options.spans.no_answer not in (None, own.no_answer):
            notes += (f"no_answer is {str(own.no_answer).lower()} as in fine-tuning",)
        return replace(options, spans=own), notes

    def tuned(self, file: EncodedFile[Questions], predictions: list[RankedAnswers]) -> Self:
        """The same task with the threshold for which F1 is highest."""
        options = self.options.spans
        if not (self.no_answer and options.tune):
            return self
        threshold = self._best_threshold(file, predictions)
        return type(self)(replace(self.options, spans=replace(options, threshold=threshold)))

    def _best_threshold(
        self, file: EncodedFile[Questions], predictions: list[RankedAnswers]
    ) -> float:
        threshold = choose_threshold(
            np.array([answered.null_odds for answered in predictions]),
            self._scores(file, [answered.best for answered in predictions]).f1,
            self._scores(file, ["" for _ in predictions]).f1,
        )
        return round(threshold, 6)

    def _scores(self, file: EncodedFile[Questions], texts: list[str]) -> AnswerScores:
        convention = self.options.spans.convention
        return score_answers(texts, file.rows.gold, convention=convention, no_answer=self.no_answer)

    def measure(
        self, file: EncodedFile[Questions], predictions: list[RankedAnswers]
    ) -> Measurement:
        """F1 and exact match as in the official scripts, as fractions."""
        measured = self._measure(file, self.final_answers(predictions))
        if not self.no_answer:
            return measured
        threshold = self.options.spans.threshold
        if threshold:
            other, name = 0.0, "0"
        else:  # never tuned, as in folders of other libraries
            other = self._best_threshold(file, predictions)
            name = f"{other:.3f}, the best for this file"
        scores = self._measure(file, self.final_answers(predictions, other)).scores
        shown = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items())
        note = f"no-answer threshold {threshold:.3f}; at {name}: {shown}"
        return replace(measured, notes=(*measured.notes, note))

    def _measure(self, file: EncodedFile[Questions], texts: list[str]) -> Measurement:
        by_question = self._scores(file, texts)
        scores = {
            "f1": sum_in_order(by_question.f1) / len(texts),
            "exact_match": sum_in_order(by_question.exact) / len(texts),
            **no_answer_rates(texts, file.rows.gold),
        }
        collapsed = len(texts) > 1 and len(set(texts)) == 1
        notes = (f"collapsed: {texts[0]!r} for all {len(texts):,} questions",) if collapsed else ()
        return Measurement({name: scores[name] for name in self.metrics}, notes, collapsed)

    def baseline(self, train: EncodedFile[Questions], dev: EncodedFile[Questions]) -> Measurement:  # noqa: ARG002
        """No answer to any question."""
        return self._measure(dev, [""] * len(dev.rows))

    def panels(self, file: EncodedFile[Questions], predictions: list[RankedAnswers]) -> list[Panel]:
        """Scores by the question's first word and by the length of the answer; and confusions of
        answer with no answer, if questions may have none."""
        texts, gold = self.final_answers(predictions), file.rows.gold
        scores = self._scores(file, texts)
        panels = []
        if self.options.spans.convention == "squad":  # Korean question words seldom come first
            first_words = [
                "".join(text.lower().split()[:1]).strip(punctuation) for text in file.rows.texts
            ]
            common = [word for word, _ in Counter(first_words).most_common(_SHOWN_WORDS)]
            groups = [word if word in common else "others" for word in first_words]
            panels.append(_by_group("first word", [*common, "others"], groups, scores))
        lengths = [min((len(answer.split()) for answer in answers), default=0) for answers in gold]
        groups = [next(name for name, limit in _LENGTHS if length <= limit) for length in lengths]
        names = [name for name, _ in _LENGTHS]
        panels.append(_by_group("number of words in the shortest answer", names, groups, scores))
        if self.no_answer:
            predicted_none = np.array([int(not text) for text in texts])
            gold_none = np.array([int(not answers) for answers in gold])
            panels.append(confusion_panel(predicted_none, gold_none, ("answer", "no answer")))
        return panels

    def errors(
        self, file: EncodedFile[Questions], predictions: list[RankedAnswers]
    ) -> list[Mistake]:
        """Answers without an exact match; first those with a high probability and a low F1."""
        texts, rows = self.final_answers(predictions), file.rows
        scores = self._scores(file, texts)
        mistakes = []
        for q in np.flatnonzero(scores.exact < 1).tolist():
            answer = next((a for a in predictions[q].answers if a.text == texts[q]), None)
            probability, f1 = answer.probability if answer else 0.0, float(scores.f1[q])
            passage = rows.passages[rows.passage_of[q]]
            assert rows.answers is not None, "the file was read without answers"
            spans = [(g.start, g.start + len(g.text)) for g in rows.answers[q][:1]]
            given = [(answer.start, answer.end)] if answer and answer.text else []
            first, last = _excerpt(passage, [*spans, *given])
            before, after = "... " * (first > 0), " ..." * (last < len(passage))
            context = (
                ("question", rows.texts[q]),
                ("passage", f"{before}{passage[first:last]}{after}"),
            )
            gold_places, given_places = (
                [
                    (start - first + len(before), end - first + len(before), "answer")
                    for start, end in places
                    if first <= start and end <= last
                ]
                for places in (spans, given)
            )
            marked = marked_text(context[1][1], gold_places, given_places)
            gold = " | ".join(dict.fromkeys(rows.gold[q])) or "no answer"
            note = f"probability {probability:.3f}, F1 {f1:.2f}"
            weight = probability * (1 - f1)
            predicted = texts[q] or "no answer"
            mistakes.append(Mistake(q, context, gold, predicted, weight, note, marked))
        return mistakes

    def example_scores(
        self, file: EncodedFile[Questions], predictions: list[RankedAnswers]
    ) -> ExampleScores:
        """The F1 of each question."""
        return ExampleScores("f1", self._scores(file, self.final_answers(predictions)).f1)

    def table(
        self, file: EncodedFile[Questions], predictions: list[RankedAnswers]
    ) -> list[list[str]]:
        """id, prediction, gold answers if known, probability; runs of white space become one
        space."""
        has_gold = file.rows.answers is not None
        rows = [["id", "prediction", *(["gold"] if has_gold else []), "probability"]]
        for q, (answered, text) in enumerate(
            zip(predictions, self.final_answers(predictions), strict=True)
        ):
            gold = [" | ".join(map(_one_line, file.rows.gold[q]))] if has_gold else []
            probability = next((a.probability for a in answered.answers if a.text == text), 0.0)
            rows.append([_one_line(file.rows.ids[q]), _one_line(text), *gold, f"{probability:.6f}"])
        return rows

    def write(
        self, path: Path, file: EncodedFile[Questions], predictions: list[RankedAnswers]
    ) -> None:
        """SQuAD's official format, an object of question id to answer, and next to it files with
        the n best answers and, if questions may have none, the odds of no answer. If ``path`` is a
        .tsv, .csv or .jsonl file, the table is written to it and these files next to it, under
        names that end in ``_predictions``."""
        answers, n_best, null_odds = _answer_files(path)
        if path.suffix.lower() in _TABLES:
            super().write(path, file, predictions)
        ids = file.rows.ids
        write_json(answers, dict(zip(ids, self.final_answers(predictions), strict=True)))
        best = {id: [_record(a) for a in p.answers] for id, p in zip(ids, predictions, strict=True)}
        write_json(n_best, best)
        if self.no_answer:
            odds = {id: p.null_odds for id, p in zip(ids, predictions, strict=True)}
            write_json(null_odds, odds)

    def output_files(self, path: Path) -> tuple[Path, ...]:
        """With those next to it."""
        return (path, *_answer_files(path))


def _answer_files(path: Path) -> tuple[Path, Path, Path]:
    """The files of answers, n best answers and odds of no answer, for the path of the output."""
    if path.suffix.lower() in _TABLES:
        # Not X.json for X.tsv: that is often the name of the questions themselves.
        path = path.with_name(f"{path.stem.removesuffix('_predictions')}_predictions.json")
    return (
        path,
        path.with_name(f"{path.stem}_nbest.json"),
        path.with_name(f"{path.stem}_null_odds.json"),
    )


def _by_group(
    title: str, order: Sequence[str], groups: Sequence[str], scores: AnswerScores
) -> Panel:
    """F1 and exact match of each group that has questions."""
    members = {name: [q for q, group in enumerate(groups) if group == name] for name in order}
    rows = tuple(
        (name, len(group), float(scores.f1[group].mean()), float(scores.exact[group].mean()))
        for name, group in members.items()
        if group
    )
    header = (title, "questions", "f1", "exact_match")
    return Panel(f"Scores by {title}", header, rows)


def _excerpt(passage: str, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Start and end of the part of a passage that holds all spans, or only the last if they are far
    apart; of all of it without any."""
    if not spans:
        return 0, len(passage)
    first, end = min(start for start, _ in spans), max(end for _, end in spans)
    if end - first > _SHOWN_PASSAGE:
        first, end = spans[-1]
    begin, stop = max(0, first - _SHOWN_AROUND), min(len(passage), end + _SHOWN_AROUND)
    if begin and (space := passage.find(" ", begin - 1, first)) >= 0:
        begin = space + 1  # with a whole word
    if stop < len(passage) and (space := passage.rfind(" ", end, stop + 1)) >= 0:
        stop = space
    return begin, stop


def span_scores(
    outputs_P2: Outputs, best_P: NDArray[np.bool_], longest: int
) -> NDArray[np.float64]:
    """Scores of all possible answers in a window.

    Args:
        outputs_P2: start and end scores of the passage's pieces.
        best_P: whether an answer may start at a piece.
        longest: length limit of an answer, in pieces.

    Returns:
        float64 [P, L], where L is at most P; element (i, l) is the score of the answer from piece i
        to piece i + l, -inf if it may not start there or reaches beyond the window.
    """
    longest = min(longest, max(1, len(outputs_P2)))
    starts = np.where(best_P, outputs_P2[:, 0].astype(np.float64), -np.inf)
    padding = np.full(longest - 1, -np.inf)
    ends = np.concatenate([outputs_P2[:, 1].astype(np.float64), padding])
    if not len(starts):
        return np.zeros((0, longest))
    scores_PL: NDArray[np.float64] = starts[:, None] + sliding_window_view(ends, longest)
    return scores_PL


def best_spans(
    scores_PL: NDArray[np.float64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the highest finite scores, best first; of equal scores the first."""
    flat = scores_PL.ravel()
    finite = np.flatnonzero(np.isfinite(flat))
    if count < len(finite):
        lowest = np.partition(flat[finite], -count)[-count]
        above, equal = np.flatnonzero(flat > lowest), np.flatnonzero(flat == lowest)
        best = np.sort(np.concatenate([above, equal[: count - len(above)]]))
    else:
        best = finite
    best = best[np.argsort(-flat[best], kind="stable")]
    rows, columns = np.divmod(best, scores_PL.shape[1])
    return rows, columns


def _with_probabilities(kept: dict[str, tuple[int, int, float]]) -> tuple[Answer, ...]:
    ordered = sorted(kept.items(), key=lambda item: -item[1][2])
    probabilities = softmax([score for _, (_, _, score) in ordered]).tolist()
    return tuple(
        Answer(text, start, end, score, probability)
        for (text, (start, end, score)), probability in zip(ordered, probabilities, strict=True)
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
