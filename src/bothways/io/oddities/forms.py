"""What the lines of a text file hold that is not its text: other formats, marks, names, times.

A file of which nearly all is the syntax of another format
(:mod:`bothways.io.oddities.syntaxes`) is not read as text unless that is asked for. What stands
beside the text of its lines (:mod:`bothways.io.oddities.beside_text`) is said, with the command
that takes it out. Everything is decided by the beginning of a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bothways.errors import InputError, Place
from bothways.io.oddities.beside_text import beside_text
from bothways.io.oddities.syntaxes import OPTION, Syntax, other_syntax

_LOOKED_AT = 1000  # lines with text, at most
_LONGEST = 2048  # characters at each end of a line: some searches take the square of its length


@dataclass(frozen=True)
class Forms:
    """What the lines of a file hold besides text.

    Attributes:
        syntax: of the format that the file has in place of text; None if it is text.
        notes: sentences on what stands beside the text, by what they are about.
    """

    syntax: Syntax | None = None
    notes: dict[str, str] = field(default_factory=dict)

    def refuse(self, source: str | Path, meant: str) -> None:
        """Refuse another format.

        Args:
            source: names the file.
            meant: what to do if the format is meant as text.

        Raises:
            InputError: it is one.
        """
        if self.syntax is not None:
            raise InputError(
                f"{self.syntax.problem} If this is the text that is meant, such as program code "
                f"or logs, {meant}.",
                place=Place(source),
            )


KEEP = "give --lines keep"
"""What to do if another format is meant as text, where there is this option."""


_ALONE = "write the text alone to a .txt file"


def look_at_forms(lines: Sequence[str], option: str = OPTION) -> Forms:
    """What the first lines of a file hold besides text.

    Args:
        lines: without line ends.
        option: that which names the text of JSON lines, for the message; empty if there is none, as
            where one text is read.
    """
    full = [text for line in lines if (text := line.strip("\ufeff\r\n\x1a ")).strip()][:_LOOKED_AT]
    if not full:
        return Forms()
    if (syntax := other_syntax(full, option)) is not None:
        return Forms(syntax if option else replace(syntax, remedy=_ALONE))
    ends = [
        line if len(line) <= 2 * _LONGEST else line[:_LONGEST] + line[-_LONGEST:] for line in full
    ]
    return Forms(notes=beside_text(ends))
