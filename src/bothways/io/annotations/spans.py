"""Labelled stretches of texts, checked against these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bothways.errors import InputError


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
        utf16: texts whose offsets count UTF-16 code units.
        trimmed: spans with white space at an end, which is taken off.
        discontinuous: spans of several pieces.
    """

    utf16: int = 0
    trimmed: int = 0
    discontinuous: int = 0

    @property
    def remarks(self) -> list[str]:
        """What is to be said of these, as sentences."""
        told = (
            (self.utf16, "texts count characters as browsers do (UTF-16); their spans are read so"),
            (self.trimmed, "spans begin or end with white space, which is taken off"),
            (self.discontinuous, "discontinuous spans are taken from first to last character"),
        )
        return [f"{count:,} {what}" for count, what in told if count]


def checked_spans(record: SpanText, path: Path, checks: SpanChecks) -> list[CharacterSpan]:
    """The spans of a text, within it and without white space at their ends.

    Raises:
        InputError: a span is empty or not within the text, or the file says that another text
            stands there.
    """
    text, spans, path = record.text, record.spans or [], record.path or path
    if (moved := _from_utf16(text, spans)) is not None:
        spans, checks.utf16 = moved, checks.utf16 + 1
    found = []
    for span in spans:
        if problem := _problem_of(span, text):
            raise InputError(
                f"the span {span.start} to {span.end} ({span.label}) {problem}",
                path=path,
                line=record.line,
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


def _from_utf16(text: str, spans: list[CharacterSpan]) -> list[CharacterSpan] | None:
    """The spans by characters, if only that they count UTF-16 code units agrees with what the file
    says stands there; else None."""
    if not any(differs(text, span) for span in spans) or all(ord(c) <= 0xFFFF for c in text):
        return None
    place, units = {0: 0}, 0
    for n, character in enumerate(text, start=1):
        units += 1 + (ord(character) > 0xFFFF)
        place[units] = n
    moved = [
        replace(span, start=place.get(span.start, -1), end=place.get(span.end, -1))
        for span in spans
    ]
    return None if any(differs(text, span) for span in moved) else moved


def differs(text: str, span: CharacterSpan) -> bool:
    """Whether a file says that something else stands there; white space may be other."""
    if span.text is None or span.pieces > 1:
        return False
    return "".join(text[max(span.start, 0) : max(span.end, 0)].split()) != "".join(
        span.text.replace("\\n", "\n").split()
    )
