"""What columns of texts are called, and lines of text that are the rows of a table."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from bothways.io.broken import TEXT
from bothways.io.lines import column_name, listed

TEXT_NAMES = (
    *("sentence", "text", "review", "content", "document", "title", "body", "comment", "message"),
    *("tweet", "utterance", "headline", "description", "abstract"),
)
"""Columns that are taken for the text if none is named: the first of them that a file has."""
_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars"}
OF_R = re.compile(r'"[^"\\]*"(?: "[^"\\]*")+ *')
"""Names of columns in quotation marks with spaces between them, as R's write.table has them."""
ROWS_TOLD = 20
"""Lines by which a table is told."""
_LONGEST_NAME, _MOST_WORDS = 40, 4  # characters, words


def text_columns(columns: Iterable[str]) -> list[str]:
    """The columns that may hold the texts, by their names in any case (``review_text`` and
    ``reviewText`` are a ``review``), in the order of :data:`TEXT_NAMES`."""
    columns = [*columns]
    exact = {name.casefold(): name for name in reversed(columns)}
    spelt = {_plain(name): name for name in reversed(columns)}
    found = [exact[name] for name in TEXT_NAMES if name in exact]
    found += [spelt[name] for name in TEXT_NAMES if name in spelt]
    return [*dict.fromkeys(found)]


def text_column(columns: Iterable[str]) -> str | None:
    """The first of :func:`text_columns`; None if there is none."""
    return next(iter(text_columns(columns)), None)


def _plain(name: str) -> str:
    """A column's name in small letters alone, without ``text`` behind another one."""
    plain = re.sub("[^a-z]", "", name.casefold())
    return plain.removesuffix("text") or plain


@dataclass(frozen=True)
class TableLines:
    """Lines that are the rows of a table.

    Attributes:
        separator: between the columns.
        columns: the names of these, in the first line.
        text: the one that holds the texts.
    """

    separator: str
    columns: tuple[str, ...]
    text: str

    @property
    def shown(self) -> str:
        """In words."""
        return (
            f"its first line names columns ({listed(self.columns)}), and all lines have as many, "
            f"with {_SEPARATORS[self.separator]} between them"
        )


def table_in(lines: Iterable[str]) -> TableLines | None:
    """The table that lines of text are: the first names columns, one of them usual for texts, and
    the others have as many. None if they are none, or if there is one column alone.

    Args:
        lines: the first ones of a file, whole ones.
    """
    begun = [*islice((line for line in lines if line.strip()), ROWS_TOLD)]
    if len(begun) < 2:
        return None
    for separator in _SEPARATORS:
        if separator not in begun[0]:
            continue
        rows = _rows(begun, separator)
        names = [column_name(cell) for cell in rows[0]] if rows else []
        if len(rows) < 2 or not _are_names(names) or {len(row) for row in rows} != {len(names)}:
            continue
        if (text := text_column(names)) is not None:
            return TableLines(separator, tuple(names), text)
    return None


def _rows(lines: Sequence[str], separator: str) -> list[list[str]]:
    """The rows of lines, without a last one that may go on; none if they are no CSV."""
    if max(map(len, lines)) > min(TEXT.bytes, csv.field_size_limit()):
        return []
    with suppress(csv.Error):
        rows = [*csv.reader((line + "\n" for line in lines), delimiter=separator)]
        return rows[:-1] if rows[-1][-1].endswith("\n") else rows
    return []


def _are_names(cells: Sequence[str]) -> bool:
    """Whether these may be names of columns: short, different ones; one may be empty, as that of
    an index is."""
    named = [cell for cell in cells if cell]
    return (
        len(cells) > 1
        and len(named) + 1 >= len(cells)
        and len({*named}) == len(named)
        and all(len(n) <= _LONGEST_NAME and len(n.split()) <= _MOST_WORDS for n in named)
        and not any(name[-1] in ".!?" for name in named)
    )
