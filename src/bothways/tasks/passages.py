"""Questions on passages as the encoder reads them: for BERT [CLS] question [SEP] window [SEP].

Q questions, N windows of all questions, R tokens of all windows (every token is read).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.batch import IGNORE
from bothways.errors import InputError, Place
from bothways.io.annotations.squad import GoldAnswer, Questions
from bothways.tasks.examples import Examples, SequenceBuilder, check_room
from bothways.tasks.options import SpanOptions
from bothways.tasks.task import EncodedFile
from bothways.tasks.windows import best_window, cut_windows
from bothways.tokenization.offsets import fit_to_characters
from bothways.tokenization.tokenizer import Tokenizer

# Texts tokenized at once: an encoding holds words and offsets as Python lists.
_CHUNK = 1024

AnswerPlace = tuple[int, int] | int | None
"""The first and last piece of an answer in its passage; None if the question has no answer;
:data:`IGNORE` if the answer was not found."""


@dataclass(frozen=True)
class TokenizedText:
    """A text's pieces, without special tokens around them.

    Attributes:
        ids: int32.
        starts, ends: int32; a piece covers the characters from start to end - 1.
    """

    ids: NDArray[np.int32]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class PassageFile(EncodedFile[Questions]):
    """A file of questions, encoded.

    Attributes:
        passage_bounds: int64 [N, 2]; among the window's tokens, the first one of the passage and
            the one after its last.
        starts, ends: int32 [R]; the characters of the passage that a token covers; 0 for tokens
            outside the passage.
        best: bool [R]; whether this window is the one with the most context around this token.
    """

    passage_bounds: NDArray[np.int64]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    best: NDArray[np.bool_]


def encode_questions(
    tokenizer: Tokenizer, rows: Questions, options: SpanOptions, *, length: int
) -> PassageFile:
    """Encode questions with their passages, cut into windows; with targets if they have answers.

    The target of a window is the first answer's first and last token among the window's tokens, or
    twice 0, which is [CLS], if the window does not hold all of it or there is no answer.

    Raises:
        LengthError: no room for a token of a question and one of its passage.
        InputError: an answer that is not where ``answer_start`` says, if the options refuse that.
    """
    queries = _tokenize(tokenizer, rows.texts)
    passages = _tokenize(tokenizer, rows.passages)
    limit = query_limit(tokenizer, options, length=length)
    cut = sum(len(query) > limit for query in queries)
    located = None if rows.answers is None else _LocatedAnswers(rows, passages, options)
    windows = _WindowBuilder(tokenizer)
    whole = []
    for q, passage in enumerate(rows.passage_of):
        query = queries[q].ids[:limit]
        room = tokenizer.template.room(length, 2) - len(query)
        answer = located.places[q] if located else None
        windows.add(q, query, passages[passage], room, options.stride, answer)
        whole.append(len(query) + len(passages[passage]) + tokenizer.template.cost(2))
    examples = windows.examples(cut).with_whole_lengths(whole)
    if located is not None:
        examples = examples.with_targets(np.array(windows.targets, np.int64))
    notes = [*_notes(rows, examples, cut, limit), *(located.notes() if located else ())]
    return PassageFile(
        rows,
        examples,
        tuple(notes),
        passage_bounds=np.array(windows.passage_bounds, np.int64),
        starts=np.concatenate(windows.starts),
        ends=np.concatenate(windows.ends),
        best=np.concatenate(windows.best),
    )


def query_limit(tokenizer: Tokenizer, options: SpanOptions, *, length: int) -> int:
    """To how many tokens questions are cut: ``query_length``, but at most half of a sequence, so
    that the passage always has room.

    Raises:
        LengthError: no room for a token of a question and one of its passage.
    """
    check_room(tokenizer, length, pair=True)
    return min(options.query_length, tokenizer.template.room(length, 2) // 2)


def locate_answer(
    tokenized: TokenizedText, passage: str, answer: GoldAnswer, *, search: bool = False
) -> tuple[int, int] | None:
    """The first and the last piece that hold a character of an answer.

    White space around the answer is ignored.

    Args:
        tokenized: the passage.
        passage: its text.
        answer: as written in the file.
        search: if the answer is not at its ``start``, take the nearest occurrence of its text.

    Returns:
        None if the passage does not have the answer there, or no piece covers any of it.
    """
    text = answer.text.strip()
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    if not text or start < 0 or not passage.startswith(text, start):
        occurrences = _occurrences(passage, text) if text and search else []
        if not occurrences:
            return None
        start = min(occurrences, key=lambda occurrence: abs(occurrence - start))
    first = int(np.searchsorted(tokenized.ends, start, side="right"))
    last = int(np.searchsorted(tokenized.starts, start + len(text), side="left")) - 1
    return (first, last) if first <= last else None


def _occurrences(text: str, part: str) -> list[int]:
    """All positions at which a text contains another, overlapping ones included."""
    occurrences, position = [], text.find(part)
    while position >= 0:
        occurrences.append(position)
        position = text.find(part, position + 1)
    return occurrences


class _LocatedAnswers:
    """Where the first answer of each question is in its passage.

    Attributes:
        places: one per question.
    """

    def __init__(self, rows: Questions, passages: list[TokenizedText], options: SpanOptions):
        assert rows.answers is not None
        self.places: list[AnswerPlace] = []
        self._rows = rows
        self._missing_ids: list[str] = []
        self._moved = 0
        for q, answers in enumerate(rows.answers):
            if not answers:
                self.places.append(None)
                continue
            answer, text = answers[0], rows.passages[rows.passage_of[q]]
            tokenized = passages[rows.passage_of[q]]
            place = locate_answer(tokenized, text, answer)
            if place is None and options.misaligned == "error":
                raise InputError(
                    _misaligned_message(rows.ids[q], text, answer), place=Place(rows.path)
                )
            if place is None and options.misaligned == "search":
                place = locate_answer(tokenized, text, answer, search=True)
                self._moved += place is not None
            if place is None:
                self._missing_ids.append(rows.ids[q])
            self.places.append(IGNORE if place is None else place)

    def notes(self) -> list[str]:
        """Notes on answers that were found elsewhere or not at all."""
        name, notes = self._rows.path.name, []
        if self._moved:
            notes.append(
                f"{name}: {self._moved:,} of {len(self._rows):,} answers were not where "
                "answer_start says; the nearest occurrence of their text was taken"
            )
        if missing := self._missing_ids:
            ids = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            notes.append(
                f"{name}: {len(missing):,} of {len(self._rows):,} answers are not where "
                f"answer_start says ({ids}): training leaves these questions out, scores do not"
            )
        return notes


def _misaligned_message(id: str, passage: str, answer: GoldAnswer) -> str:
    if answer.text.strip() not in passage:
        return (
            f"question {id!r}: the answer {answer.text[:60]!r} is nowhere in the passage, "
            "letter by letter (other capitals, spaces or accents?). Correct one of them, or set "
            "spans_misaligned to skip."
        )
    actual = passage[max(0, answer.start) :][: len(answer.text)]
    if actual:
        reason = f"which has {actual[:60]!r} there"
    else:
        reason = f"which has only {len(passage)} characters"
    return (
        f"question {id!r}: the answer {answer.text[:60]!r} is not at character {answer.start} of "
        f"the passage, {reason}. Correct answer_start (characters, from 0), or set "
        "spans_misaligned to search or skip."
    )


class _WindowBuilder:
    """Windows of all questions, laid end to end, with the arrays that go with them."""

    def __init__(self, tokenizer: Tokenizer):
        self._template = tokenizer.template
        self._sequences = SequenceBuilder(tokenizer)
        self._owners: list[int] = []
        self.passage_bounds: list[tuple[int, int]] = []
        self.targets: list[tuple[int, int]] = []
        self.starts: list[NDArray[np.int32]] = []
        self.ends: list[NDArray[np.int32]] = []
        self.best: list[NDArray[np.bool_]] = []

    def add(
        self,
        question: int,
        query: NDArray[np.int32],
        passage: TokenizedText,
        room: int,
        stride: int,
        answer: AnswerPlace,
    ) -> None:
        """Append the windows of a question."""
        windows = cut_windows(len(passage), room, stride)
        best = best_window(windows, len(passage))
        place = self._template.content(len(query), 0)[1]  # of the passage's window
        before = np.zeros(place.start, np.int32)
        after = np.zeros(self._template.closing(2), np.int32)
        for number, (start, end) in enumerate(windows):
            window = slice(start, end)
            self._sequences.add(query, passage.ids[window])
            self._owners.append(question)
            self.passage_bounds.append((len(before), len(before) + end - start))
            self.targets.append(_window_target(answer, start, end, len(before)))
            self.starts += [before, passage.starts[window], after]
            self.ends += [before, passage.ends[window], after]
            self.best += [before.astype(bool), best[window] == number, after.astype(bool)]

    def examples(self, cut: int) -> Examples:
        """All windows, with every token read."""
        read_positions = np.arange(sum(map(len, self.starts)))
        return self._sequences.examples(
            read_positions=read_positions, owners=np.array(self._owners), cut=cut
        )


def _window_target(answer: AnswerPlace, start: int, end: int, before: int) -> tuple[int, int]:
    """The answer's first and last token among a window's tokens; (0, 0), which is [CLS], if the
    window does not hold all of it; or twice :data:`IGNORE`."""
    if isinstance(answer, int):
        return answer, answer
    if answer is not None and start <= answer[0] and answer[1] < end:
        return before + answer[0] - start, before + answer[1] - start
    return 0, 0


def _tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> list[TokenizedText]:
    tokenized: list[TokenizedText] = []
    for chunk in range(0, len(texts), _CHUNK):
        for encoding in tokenizer.encode_batch(texts[chunk : chunk + _CHUNK]):
            (text,) = encoding.parts
            offsets = np.array(encoding.offsets[text], np.int32).reshape(-1, 2)
            starts, ends = offsets[:, 0].copy(), offsets[:, 1].copy()
            fit_to_characters(texts[len(tokenized)], starts, ends)
            ids = np.array(encoding.ids[text], np.int32)
            tokenized.append(TokenizedText(ids, starts, ends))
    return tokenized


def _notes(rows: Questions, examples: Examples, cut: int, limit: int) -> list[str]:
    name, count = rows.path.name, f"{len(rows):,} questions"
    notes = []
    several = examples.windowed
    if several:
        notes.append(
            f"{name}: {several:,} of {count} have a passage that is read in several windows "
            f"({len(examples):,} windows in all)"
        )
    if cut:
        notes.append(f"{name}: {cut:,} of {count} were cut to {limit} tokens")
    empty = sum(not text.strip() for text in rows.texts)
    if empty:
        notes.append(f"{name}: {empty:,} of {count} are empty")
    blank = sum(not rows.passages[at].strip() for at in rows.passage_of)
    if blank:
        notes.append(f"{name}: {blank:,} of {count} have an empty passage and thus no answer")
    return notes
