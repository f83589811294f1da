"""The one policy for broken input: stop at it, leave it out, or replace its broken characters.

Every reader is given a :class:`Broken`. What a reader cannot take is an error, never a default;
what is left out or replaced on request is counted here, and said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bothways.errors import InputError, Place

Action = Literal["stop", "skip", "replace"]

LISTED = 20
"""How many broken lines are listed; all are counted."""


@dataclass(frozen=True)
class Limit:
    """The longest line or text that is accepted.

    Attributes:
        mib: in MiB of UTF-8.
        remedy: ends the message, after the limit.
    """

    mib: float
    remedy: str

    @property
    def bytes(self) -> int:
        """In bytes of UTF-8."""
        return int(self.mib * 2**20)

    def error(self, source: str | Path, line: int) -> InputError:
        """The error for a line that is longer."""
        return InputError(
            f"the line is longer than {self.mib:g} MiB{self.remedy}", place=Place(source, line)
        )


TEXT = Limit(1.0, ", the limit for a text that a model reads. Break it up, or remove it.")
"""For a line that a model is to label, embed or search for an answer: a novel. Encoding it takes a
hundred times its size."""


def corpus_line(mib: float) -> Limit:
    """For a line of a text to learn from."""
    return Limit(
        mib,
        ", so this is most likely not text. Remove the line or the file, or break the line up "
        "(`bothways vocab` and `corpus` accept longer ones with --set max_line_mib=N).",
    )


@dataclass
class Broken:
    """What to do with broken input, and what was done, in the order of the text.

    Attributes:
        action: ``stop`` with an error; ``skip`` the lines and records that cannot be read; or
            ``replace`` broken characters by U+FFFD, and skip records without a text.
        option: that says so, for messages.
        lines: how many lines, records or rows were repaired or left out.
        characters: how many characters were replaced by U+FFFD.
        left_out: how many lines, records or rows were left out.
        first: [source, line, what was done] of the first ``LISTED``.
        remarks: what was recognised or read otherwise than it is written, as sentences.
    """

    action: Action = "stop"
    option: str | None = None
    lines: int = 0
    characters: int = 0
    left_out: int = 0
    first: list[tuple[str, int, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def remark(self, remark: str) -> None:
        """Keep a sentence on how the file was read, once."""
        if remark not in self.remarks:
            self.remarks.append(remark)

    def leave_out(self, error: InputError, place: Place | None = None) -> None:
        """Raise the error, or count its line as left out.

        Args:
            error: about the line.
            place: of the line, if the error has none.
        """
        error.place = error.place or place
        if self.action == "stop":
            raise self.refusal(error)
        self.left_out += 1
        place = error.place or Place("input")
        self._note(place.source, place.row, f"left out: {error.problem}")

    def replaced(self, source: str | Path, line: int, characters: int) -> None:
        """Count a line in which characters were replaced."""
        self.characters += characters
        self._note(source, line, f"{characters} replaced by U+FFFD")

    def refusal(self, error: InputError) -> InputError:
        """The error, with the option by which to go on."""
        error.option = error.option or self.option
        return error

    def add(self, other: Broken) -> None:
        """Add the counts of the text that follows."""
        self.lines += other.lines
        self.characters += other.characters
        self.left_out += other.left_out
        self.first = (self.first + other.first)[:LISTED]

    def counts(self) -> dict[str, Any]:
        """What was done, as plain data."""
        names = ("lines", "characters", "left_out", "first")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_counts(cls, data: dict[str, Any]) -> Broken:
        """The inverse of :meth:`counts`."""
        first = [(source, line, what) for source, line, what in data["first"]]
        return cls(**{**data, "first": first})

    def notes(self, name: str) -> list[str]:
        """Sentences on how a file was read, and on lines that were left out, if there are any."""
        notes = [f"{name}: {remark}" for remark in self.remarks]
        if self.lines:
            lines = ", ".join(str(line) for _, line, _ in self.first[:8])
            _, line, why = self.first[0]
            what = f"{self.lines:,} broken lines were left out: {lines}"
            notes.append(f"{name}: {what}. Line {line}: {why.removeprefix('left out: ')}")
        return notes

    def _note(self, source: str | Path | None, line: int | None, what: str) -> None:
        self.lines += 1
        if len(self.first) < LISTED:
            self.first.append((shown_name(source), line or 0, what))


def shown_name(source: str | Path | None) -> str:
    """A file's name for a report; those that are not UTF-8 have surrogates, which none can hold."""
    return str(source).encode("utf-8", "backslashreplace").decode()


def of_corpus(action: Action) -> Broken:
    """The policy for text to learn from."""
    return Broken(action, "broken")
