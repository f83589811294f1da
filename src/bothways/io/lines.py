"""What the readers of all formats share: lines, what to do with broken ones, and hints."""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.broken import BLANK, Broken
from bothways.io.text import read_texts

Line = tuple[int, str]
Values = Iterator[tuple[int, list[Any]]]
"""Rows: the line of each, and the values of some columns: texts, but what JSON has in columns that
are kept."""


@dataclass(frozen=True)
class Layout:
    """How the columns of a file are told apart, and what their values may be.

    Attributes:
        header: TSV and CSV files begin with a line of column names.
        columns: the names in files without one.
        labels: columns of JSON whose values may be numbers, true or false.
        lists: columns of JSON whose values may be lists, which are given as JSON.
        kept: columns of JSON whose values are given as they are: numbers, lists, None.
        labelled: whether labels are read. If not, what nobody annotated is an example, too.
    """

    header: bool = True
    columns: tuple[str, ...] = ()
    labels: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    labelled: bool = True


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


def text_lines(path: Path) -> list[Line]:
    """:func:`stream_lines` as a list."""
    return list(stream_lines(path))


def stream_lines(path: Path, *, tabs: bool = False, broken: Broken | None = None) -> Iterator[Line]:
    """The lines of a UTF-8 file with their numbers from 1, without blank lines at the end.

    Args:
        path: the file.
        tabs: tabs separate columns, so a line of tabs is not blank.
        broken: what to do with a line that cannot be read; stop, if not given.

    Raises:
        InputError: no such file, no text in it, broken UTF-8, a NUL, an enormous line, or more
            than :data:`BLANK` blank lines in a row.
    """
    blank: list[Line] = []  # which are the last ones, perhaps
    any_text = False
    for number, text in read_texts(path, broken):
        if not text.strip() and not (tabs and "\t" in text):
            blank.append((number, text))
            if len(blank) > BLANK:
                raise InputError(
                    f"more than {BLANK:,} blank lines in a row; if this is a file of text, "
                    f"`cat -s {path}` writes it with one of them.",
                    place=Place(path, number),
                )
            continue
        any_text = True
        yield from blank
        blank.clear()
        yield number, text
    if not any_text:
        raise InputError("is empty; it needs one example per line.", place=Place(path))


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


_MOST_OF_PYTHON = 2**24  # characters


def python_spelling(text: str, *, whole: bool) -> str:
    """That a text which is not JSON is what Python prints, and how to write it as JSON; empty if it
    is neither.

    Args:
        text: of a file, or of a line of it.
        whole: it is that of a file.
    """
    text = text.strip().rstrip(",")
    if re.match(r"\w+\s*=\s*[\[{(]", text):
        return " It is code of Python; write the list with json.dump there."
    if not text.startswith(("[", "{", "(")) or len(text) > _MOST_OF_PYTHON:
        return ""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        begins = re.match(r"[\[{(][\s\[{(]*'", text)
        return (
            " Its quotation marks are those that Python prints; write it with json.dump there."
            if begins
            else ""
        )
    if not isinstance(value, dict | list | tuple):
        return ""
    each = (
        "print(json.dumps(ast.literal_eval(sys.stdin.read().strip(',\\n '))))"
        if whole
        else "[print(json.dumps(ast.literal_eval(s.strip(',\\n ')))) for s in sys.stdin "
        "if s.strip()]"
    )
    return (
        " It is written as Python prints it; write it as JSON: "
        f'python3 -c "import ast, json, sys; {each}" < OLD > NEW.json{"" if whole else "l"}.'
    )


def as_json(value: object, limit: int = 40) -> str:
    """The beginning of a value for a message, as JSON has it; what JSON lacks as Python has it."""
    return json.dumps(value, default=repr)[:limit]
