"""Questions on passages as the encoder reads them: [CLS] question [SEP] window [SEP].

Q questions, N windows of all of them, R their tokens (every token is read).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.config import SpanOptions
from bothways.errors import InputError, LengthError
from bothways.model.batch import IGNORE
from bothways.tasks.examples import Examples
from bothways.tasks.questions import Gold, Questions
from bothways.tasks.task import Part
from bothways.tasks.windows import best_window, cut_windows
from bothways.tokenization.tokenizer import Tokenizer

# Texts encoded at once: an encoding holds words and offsets as Python lists.
_CHUNK = 1024


@dataclass(frozen=True)
class Pieces:
    """A text's pieces, without [CLS] and [SEP].

    Attributes:
        ids, starts, ends: int32; a piece stands for the characters from start to end.
    """

    ids: NDArray[np.int32]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class PassagePart(Part[Questions]):
    """A file of questions, encoded.

    Attributes:
        texts: int64 [N, 2]; the first token of the window's passage among the window's tokens, and
            the one after its last.
        starts, ends: int32 [R]; the characters of the passage that a token stands for; 0 where it
            is none of the passage's.
        best: bool [R]; no other window shows more of the passage around this token.
    """

    texts: NDArray[np.int64]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    best: NDArray[np.bool_]


def encode_questions(
    tokenizer: Tokenizer, rows: Questions, options: SpanOptions, *, length: int
) -> PassagePart:
    """Questions with their passages, cut into windows; with targets if they have answers.

    The target of a window is the place of the first answer's first and last token among its tokens;
    that of [CLS], which is 0, where the window does not hold all of it or there is none.

    Raises:
        LengthError: no room for the passage.
        InputError: an answer that is not in its place, if that is to be refused.
    """
    queries = _encode(tokenizer, rows.texts)
    passages = _encode(tokenizer, rows.passages)
    cut = sum(len(query) > options.query_length for query in queries)
    found = None
    if rows.answers is not None:
        found = _Located(rows, passages, options)
    laid = _Layout(tokenizer)
    for q, passage in enumerate(rows.passage_of):
        query = queries[q].ids[: options.query_length]
        room = length - len(query) - 3
        if room < 1:
            raise LengthError(
                f"{rows.path}: question {rows.ids[q]!r} has {len(query)} tokens, which leave no "
                f"room for the passage in a length of {length}. Raise length, or lower "
                "task.spans.query_length."
            )
        laid.add(
            q, query, passages[passage], room, options.stride, found.places[q] if found else None
        )
    examples = laid.examples(cut)
    if found is not None:
        examples = examples.with_targets(np.array(laid.targets, np.int64))
    notes = [*_notes(rows, examples, cut), *(found.notes() if found else ())]
    return PassagePart(
        rows,
        examples,
        tuple(notes),
        texts=np.array(laid.texts, np.int64),
        starts=np.concatenate(laid.starts),
        ends=np.concatenate(laid.ends),
        best=np.concatenate(laid.best),
    )


def place_answer(
    pieces: Pieces, passage: str, answer: Gold, *, search: bool = False
) -> tuple[int, int] | None:
    """The first and the last piece that hold a character of an answer.

    White space around the answer does not count.

    Args:
        pieces: of the passage.
        passage: its text.
        answer: as the file has it.
        search: take the nearest place that has these words, if ``start`` has not.

    Returns:
        None if the passage does not have the answer there, or the tokenizer none of its characters.
    """
    words = answer.text.strip()
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    if not words or start < 0 or not passage.startswith(words, start):
        places = _all_places(passage, words) if words and search else []
        if not places:
            return None
        start = min(places, key=lambda place: abs(place - start))
    first = int(np.searchsorted(pieces.ends, start, side="right"))
    last = int(np.searchsorted(pieces.starts, start + len(words), side="left")) - 1
    return (first, last) if first <= last else None


def _all_places(text: str, words: str) -> list[int]:
    places, at = [], text.find(words)
    while at >= 0:
        places.append(at)
        at = text.find(words, at + 1)
    return places


class _Located:
    """Where the first answer of each question is.

    Attributes:
        places: for each question first and last piece; [CLS] (None) if it has no answer, or
            :data:`IGNORE` if it has one that is not found.
    """

    def __init__(self, rows: Questions, passages: list[Pieces], options: SpanOptions):
        assert rows.answers is not None
        self.rows = rows
        self.places: list[tuple[int, int] | int | None] = []
        self.astray: list[str] = []
        self.mended = 0
        for q, answers in enumerate(rows.answers):
            if not answers:
                self.places.append(None)
                continue
            at = rows.passage_of[q]
            place = place_answer(passages[at], rows.passages[at], answers[0])
            if place is None and options.misaligned == "error":
                raise InputError(_astray(rows, q, answers[0]), path=rows.path)
            if place is None and options.misaligned == "search":
                place = place_answer(passages[at], rows.passages[at], answers[0], search=True)
                self.mended += place is not None
            if place is None:
                self.astray.append(rows.ids[q])
            self.places.append(IGNORE if place is None else place)

    def notes(self) -> list[str]:
        """What was found elsewhere, and what was not found."""
        name, notes = self.rows.path.name, []
        if self.mended:
            notes.append(
                f"{name}: {self.mended:,} of {len(self.rows):,} answers were not where "
                "answer_start says; the nearest place that has their words was taken"
            )
        if self.astray:
            shown = ", ".join(self.astray[:3]) + (", ..." if len(self.astray) > 3 else "")
            notes.append(
                f"{name}: {len(self.astray):,} of {len(self.rows):,} answers are not where "
                f"answer_start says ({shown}); such a question is not trained on"
            )
        return notes


def _astray(rows: Questions, q: int, answer: Gold) -> str:
    passage = rows.passages[rows.passage_of[q]]
    there = passage[max(0, answer.start) :][: len(answer.text)]
    what = f"the passage has {there[:60]!r}" if there else f"it has {len(passage)} characters"
    return (
        f"question {rows.ids[q]!r}: the answer {answer.text[:60]!r} is not at character "
        f"{answer.start} of the passage, {what} there. Mend answer_start (characters, from 0), or "
        "set task.spans.misaligned to search or skip."
    )


class _Layout:
    """Windows laid end to end."""

    def __init__(self, tokenizer: Tokenizer):
        self._cls = np.array([tokenizer.cls_id], np.int32)
        self._sep = np.array([tokenizer.sep_id], np.int32)
        self._tokens: list[NDArray[np.int32]] = []
        self._segments: list[tuple[int, int]] = []
        self._owners: list[int] = []
        self.texts: list[tuple[int, int]] = []
        self.targets: list[tuple[int, int]] = []
        self.starts: list[NDArray[np.int32]] = []
        self.ends: list[NDArray[np.int32]] = []
        self.best: list[NDArray[np.bool_]] = []

    def add(
        self,
        question: int,
        query: NDArray[np.int32],
        passage: Pieces,
        room: int,
        stride: int,
        answer: tuple[int, int] | int | None,
    ) -> None:
        """The windows of a question."""
        windows = cut_windows(len(passage), room, stride)
        best = best_window(windows, len(passage))
        before, after = np.zeros(len(query) + 2, np.int32), np.zeros(1, np.int32)
        first = len(before)
        for number, (start, end) in enumerate(windows):
            window = slice(start, end)
            self._tokens += [self._cls, query, self._sep, passage.ids[window], self._sep]
            self._segments.append((first, end - start + 1))
            self._owners.append(question)
            self.texts.append((first, first + end - start))
            self.starts += [before, passage.starts[window], after]
            self.ends += [before, passage.ends[window], after]
            self.best += [before.astype(bool), best[window] == number, after.astype(bool)]
            if isinstance(answer, int):
                self.targets.append((answer, answer))
            elif answer is not None and start <= answer[0] and answer[1] < end:
                self.targets.append((first + answer[0] - start, first + answer[1] - start))
            else:
                self.targets.append((0, 0))

    def examples(self, cut: int) -> Examples:
        """All windows, every token read."""
        tokens = np.concatenate(self._tokens)
        sizes = np.array(self._segments)
        segments = np.repeat(np.tile([0, 1], len(sizes)).astype(np.int8), sizes.ravel())
        return Examples.of_sequences(
            tokens,
            segments,
            np.concatenate([[0], np.cumsum(sizes.sum(1))]).astype(np.int64),
            places=np.arange(len(tokens)),
            owners=np.array(self._owners),
            cut=cut,
        )


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Pieces]:
    found: list[Pieces] = []
    for start in range(0, len(texts), _CHUNK):
        for encoding in tokenizer.encode_batch(texts[start : start + _CHUNK]):
            offsets = np.array(encoding.offsets[1:-1], np.int32).reshape(-1, 2)
            starts, ends = offsets[:, 0].copy(), offsets[:, 1].copy()
            take_in_marks(texts[len(found)], starts, ends)
            found.append(Pieces(np.array(encoding.tokens[1:-1], np.int32), starts, ends))
    return found


def take_in_marks(text: str, starts: NDArray[np.int32], ends: NDArray[np.int32]) -> None:
    """Move the end of a piece behind the marks of its last character, where normalisation has
    stripped them, so that a decomposed letter is given back whole."""
    if text.isascii():
        return
    for at in (i for i, c in enumerate(text) if unicodedata.category(c)[0] == "M"):
        piece = int(np.searchsorted(ends, at, side="left"))
        alone = piece + 1 == len(starts) or starts[piece + 1] > at
        if piece < len(ends) and ends[piece] == at and alone:
            ends[piece] = at + 1


def _notes(rows: Questions, examples: Examples, cut: int) -> list[str]:
    name, count = rows.path.name, f"{len(rows):,} questions"
    notes = []
    several = examples.several
    if several:
        notes.append(
            f"{name}: {several:,} of {count} have a passage that is read in several windows, "
            f"{len(examples):,} in all"
        )
    if cut:
        notes.append(f"{name}: {cut:,} of {count} were cut to the length of a question")
    empty = sum(not text.strip() for text in rows.texts)
    if empty:
        notes.append(f"{name}: {empty:,} of {count} are empty")
    blank = sum(not rows.passages[at].strip() for at in rows.passage_of)
    if blank:
        notes.append(f"{name}: {blank:,} of {count} have an empty passage, and so no answer")
    return notes
