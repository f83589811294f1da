"""What the readers of all formats share: names of columns, and hints on them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from bothways.errors import InputError, Place

Line = tuple[int, str]
"""The number of a line, from 1, and its text."""


class MissingColumnError(InputError):
    """A file has no column, or an object no key, of the name that is needed.

    Attributes:
        columns: the names that it has.
        missing: the one that is needed; empty if several would do.
    """

    def __init__(
        self,
        problem: str,
        columns: Sequence[str],
        *,
        place: Place | None = None,
        missing: str = "",
    ):
        super().__init__(problem, place=place)
        self.columns, self.missing = tuple(columns), missing


TRUE, FALSE = ("true", "yes", "1", "1.0"), ("false", "no", "0", "0.0")
"""How files write truth values, in small letters."""
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
"""Characters that show nothing and are no white space."""


def column_name(cell: str) -> str:
    """A name of a column without white space and invisible characters around it."""
    return cell.strip().strip(INVISIBLE).strip()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint " Did you mean 'x'?" with the known name most like this one; empty if none is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Names for a message: quoted, with long names and long lists shortened."""
    quoted = [repr(n if len(n) <= 30 else n[:27] + "...") for n in names[:limit]]
    return ", ".join(quoted) + (f" and {len(names) - limit} more" if len(names) > limit else "")
