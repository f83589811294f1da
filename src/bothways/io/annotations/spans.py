"""Labelled stretches of texts, checked against these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from bothways.errors import InputError, Place
from bothways.io.terminal import counted


@dataclass(frozen=True)
class CharacterSpan:
    """A labelled stretch of a text.

    Attributes:
        start, end: its first character, and the one after its last.
        label: such as PER.
        text: what the file says stands there; None if it does not.
        pieces: how many stretches it has in the file; a discontinuous one is taken from its first
            to its last character.
    """

    start: int
    end: int
    label: str
    text: str | None = None
    pieces: int = 1


@dataclass(frozen=True)
class SpanText:
    """A text with its spans.

    Attributes:
        text: as in the file.
        spans: in the order of the file; None if the file was read without them.
        line: of the file, from 1.
        id: as in the file; None if it has none.
        path: the file, where each text has its own.
    """

    text: str
    spans: list[CharacterSpan] | None
    line: int
    id: str | int | None = None
    path: Path | None = None


@dataclass
class SpanChecks:
    """What was found in the spans of a file.

    Attributes:
        counted: how many texts count characters otherwise, by how they do.
        trimmed: spans with white space at an end, which is taken off.
        discontinuous: spans of several pieces.
    """

    counted: Counter[str] = field(default_factory=Counter)
    trimmed: int = 0
    discontinuous: int = 0

    @property
    def remarks(self) -> list[str]:
        """What is to be said of these, as sentences."""
        told = [
            f"the spans of {counted(n, 'text')} count {what}, and are read so"
            for what, n in self.counted.items()
        ]
        if n := self.trimmed:
            told.append(f"white space at the ends of {counted(n, 'labelled span')} is taken off")
        if n := self.discontinuous:
            what = counted(n, "discontinuous span")
            told.append(f"{what} taken from the first to the last character")
        return told


def checked_spans(record: SpanText, path: Path, checks: SpanChecks) -> list[CharacterSpan]:
    """The spans of a text, within it and without white space at their ends.

    Raises:
        InputError: a span is empty or not within the text, or the file says that another text
            stands there.
    """
    text, spans, path = record.text, record.spans or [], record.path or path
    if (moved := _counted_otherwise(text, spans)) is not None:
        how, spans = moved
        checks.counted[how] += 1
    found = []
    for span in spans:
        if problem := _problem_of(span, text):
            raise InputError(
                f"the span {span.start} to {span.end} ({span.label}) {problem}",
                place=Place(path, record.line),
            )
        own = text[span.start : span.end]
        start = span.start + len(own) - len(own.lstrip())
        end = span.end - (len(own) - len(own.rstrip()))
        checks.trimmed += (start, end) != (span.start, span.end)
        checks.discontinuous += span.pieces > 1
        found.append(CharacterSpan(start, end, span.label))
    return found


def _problem_of(span: CharacterSpan, text: str) -> str:
    """What is wrong with a span, and what to do; empty if nothing is."""
    if span.start == span.end:
        return "is empty; an end is the character after the last. Correct it, or remove it."
    if not 0 <= span.start < span.end <= len(text):
        return (
            f"is not within the text, which has {len(text)} characters. Starts count from 0, ends "
            "are the character after the last; correct it, or remove it."
        )
    own = text[span.start : span.end]
    if differs(text, span):
        return (
            f"is {span.text!r} by the file, but {own!r} stands there. Was the text changed after "
            "it was annotated, or its line ends? Export both again."
        )
    return "" if own.strip() else "is white space; remove it."


_COUNTS: tuple[tuple[str, Callable[[str, str], int], bool], ...] = (
    ("characters as browsers do (UTF-16)", lambda c, _: 1 + (ord(c) > 0xFFFF), False),
    ("a line end of two characters as one", lambda c, before: (before, c) != ("\r", "\n"), True),
    ("a line end as two characters", lambda c, _: 1 + (c == "\n"), True),
)
"""Ways of counting a text's characters: what each, after the one before it, counts for; and whether
the way is tried only where a span is certainly wrong. Most texts have line ends, and some spans
are parts of words."""


def _counted_otherwise(
    text: str, spans: list[CharacterSpan]
) -> tuple[str, list[CharacterSpan]] | None:
    """How a text's characters are counted by its spans, and these by characters, if one of
    ``_COUNTS`` agrees with what the file says stands there, or with the ends of words, and
    characters do not; else None."""
    certain = any(_is_wrong(text, span) for span in spans)
    if not certain and not any(_cuts_words(text, span) for span in spans):
        return None
    for how, counts, if_certain in _COUNTS:
        if if_certain and not certain:
            continue
        starts, ends, units = {0: 0}, {0: 0}, 0
        for n, (before, character) in enumerate(zip("\0" + text, text, strict=False), start=1):
            units += counts(character, before)
            starts[units] = n
            ends.setdefault(units, n)
        moved = [
            replace(span, start=starts.get(span.start, -1), end=ends.get(span.end, -1))
            for span in spans
        ]
        if moved != spans and all(_is_of_words(text, span) for span in moved):
            return how, moved
    return None


def _is_wrong(text: str, span: CharacterSpan) -> bool:
    """Whether a span is not within the text, or another text is said to stand there."""
    return not 0 <= span.start < span.end <= len(text) or differs(text, span)


def _cuts_words(text: str, span: CharacterSpan) -> bool:
    """Whether a span of which no text is said begins or ends between two letters of a script with
    capitals, as no word does."""
    if span.text is not None:
        return False
    ends = (text[max(at - 1, 0) : at + 1] for at in (span.start, span.end))
    return any(len(two) == 2 and all(c.lower() != c.upper() for c in two) for two in ends)


def _is_of_words(text: str, span: CharacterSpan) -> bool:
    """Whether a span has the text that is said, or, if none is, words from end to end."""
    if _is_wrong(text, span) or _cuts_words(text, span):
        return False
    own = text[span.start : span.end]
    return span.text is not None or own == own.strip()


def differs(text: str, span: CharacterSpan) -> bool:
    """Whether a file says that something else stands there; white space may be other."""
    if span.text is None or span.pieces > 1:
        return False
    return "".join(text[max(span.start, 0) : max(span.end, 0)].split()) != "".join(
        span.text.replace("\\n", "\n").split()
    )
