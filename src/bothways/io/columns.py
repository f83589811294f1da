"""The values of some columns of a table as texts, labels, or whatever is to be kept."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.annotations.choices import chosen_row
from bothways.io.broken import TEXT, Broken
from bothways.io.lines import MissingColumnError, did_you_mean, listed
from bothways.io.parquet import readable
from bothways.io.rows import Format, shown
from bothways.io.tables import read_table, text_table
from bothways.io.text import SURROGATES

TEXT_NAMES = ("text", "sentence")
"""Columns that are taken for the text if none is named: the first of them that a file has."""
_WITHOUT_COMMAS = re.compile(r"""(?<=['"])\s+(?=['"])""")
"""Between the texts of a list as NumPy prints it."""
Values = Iterator[tuple[int, list[Any]]]
"""The line (or number) of each row, and its values of some columns."""
_TOOLS = frozenset(
    ("annotations", "completions", "annotation_id", "annotation", "answer", "accept", "data")
)
"""Keys of the objects that annotation tools export."""


@dataclass(frozen=True)
class Columns:
    """What is read of a table.

    Attributes:
        names: of the columns, a dotted one for a key of a nested object.
        labels: those of them that may be numbers or truth values, which are given as JSON.
        lists: those that may be lists, which are given as JSON.
        kept: those that are given as they are.
        labelled: whether labels are read. If not, what nobody annotated is an example, too.
        form: how the file is written.
    """

    names: Sequence[str]
    labels: Collection[str] = ()
    lists: Collection[str] = ()
    kept: Collection[str] = ()
    labelled: bool = True
    form: Format = field(default_factory=Format)


def read_columns(path: Path, columns: Columns, broken: Broken) -> Values:
    """The values of some columns, row by row.

    Args:
        path: see :func:`bothways.io.rows.read_table`.
        columns: which.
        broken: what to do with a row that cannot be read.

    Yields:
        The line of the row, and its values in the order of ``columns.names``: texts, but for
        columns that are kept.

    Raises:
        MissingColumnError: the first row lacks a column.
        InputError: the file or a value cannot be read as requested.
    """
    names, form = columns.names, columns.form
    if (table := text_table(path, form, broken)) is not None:
        yield from _text_columns(path, *table, columns, broken)
        return
    first, left_out = True, 0
    for place, found in read_table(path, form, broken):
        row: dict[str, Any] | None = found
        if not _TOOLS.isdisjoint(found):
            row = chosen_row(found, labelled=columns.labelled)
        if row is None:  # the annotator rejected or skipped it
            left_out += 1
            continue
        try:
            values = [_value(row, name, columns) for name in names]
        except InputError as error:
            if first and isinstance(error, MissingColumnError):
                error.place = Place(path)
                raise
            broken.leave_out(error, place)
        else:
            yield place.row or 0, values
        first = False
    if left_out:
        broken.remark(f"{left_out:,} examples that the annotator rejected or skipped: left out")
    if first and not broken.left_out:
        raise InputError("has no examples.", place=Place(path))


def _text_columns(
    path: Path,
    known: Sequence[str],
    records: Iterator[tuple[int, list[str]]],
    columns: Columns,
    broken: Broken,
) -> Values:
    """The values of some columns of a TSV or CSV file, whose lines are valid text."""
    for name in columns.names:
        if name not in known:
            raise missing_column(name, known, Place(path))
    places = [known.index(name) for name in columns.names]
    empty, limit, escaped = True, TEXT.bytes, broken.action == "skip"
    for number, record in records:
        empty = False
        values = [record[place] for place in places]
        if escaped or sum(map(len, values)) > limit:
            try:
                for name, value in zip(columns.names, values, strict=True):
                    checked_text(value, name)
            except InputError as error:
                broken.leave_out(error, Place(path, number))
                continue
        yield number, values
    if empty and not broken.left_out:
        raise InputError("has no examples.", place=Place(path))


def missing_column(
    name: str, known: Sequence[str], place: Place | None = None
) -> MissingColumnError:
    """The error for a table without a column, or an object without a key."""
    return MissingColumnError(
        f"no column {name!r}; the columns are {listed(known)}.{did_you_mean(name, known)}",
        known,
        place=place,
        missing=name,
    )


def _value(row: dict[str, Any], name: str, columns: Columns) -> Any:
    value = row[name] if name in row else nested_value(row, name)
    if isinstance(value, str):
        return checked_text(value, name)
    if name in columns.kept:
        return _kept(value, name)
    if value is not None and name in columns.lists and isinstance(value, list | tuple):
        return json.dumps([readable(one) for one in value])
    if name in columns.labels:
        return _label(value, name)
    raise InputError(f"column {name!r} holds {shown(value)}, not a text.")


def nested_value(row: dict[str, Any], name: str) -> Any:
    """The value of a dotted name.

    Raises:
        MissingColumnError: there is none.
    """
    holder: Any = row
    for key in name.split("."):
        if not isinstance(holder, dict) or key not in holder:
            known = [*row] if holder is row or not isinstance(holder, dict) else [*holder]
            raise missing_column(name, known)
        holder = holder[key]
    return holder


def checked_text(value: Any, name: str) -> str:
    """A text of a column.

    Raises:
        InputError: it is none, too long, or has what no text may hold.
    """
    if not isinstance(value, str):
        raise InputError(f"column {name!r} holds {shown(value)}, not a text.")
    if "\0" in value:
        raise InputError(f"column {name!r} holds a NUL character.")
    if len(value) > TEXT.bytes:
        raise InputError(f"column {name!r} holds a text longer than {TEXT.mib:g} MiB{TEXT.remedy}")
    if not value.isascii() and SURROGATES.search(value):
        raise InputError(
            f"column {name!r} holds bytes that are not UTF-8, or half a surrogate pair."
        )
    return value


def _label(value: Any, name: str) -> str:
    if isinstance(value, list | tuple) and len(value) == 1:  # as annotators export the only label
        value = value[0]
    if type(value) is int:
        return str(value)
    if isinstance(value, str):
        return checked_text(value, name)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"column {name!r} has no label ({shown(value)}).")
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise InputError(f"column {name!r} holds {shown(value)}, not one label.")


def _kept(value: Any, name: str) -> Any:
    """A value that is only written again; what is not a number is None."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    value = readable(value)
    try:
        as_text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):  # bytes; infinity
        raise InputError(
            f"column {name!r} holds {shown(value)}, which JSON has no form for; leave it out of "
            "keep."
        ) from None
    checked_text(as_text, name)
    return value


def cell_value(text: str) -> Any:
    """The list or object that a cell holds, as JSON or as Python writes it; the text, if it is
    neither."""
    if not text.lstrip().startswith(("[", "{")):
        return text
    if _WITHOUT_COMMAS.search(text):  # Python would join these texts to one
        return text
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = read(text.strip())
            return value if isinstance(value, list | dict) else text
    return text


def texts_of(text: str, name: str) -> list[str]:
    """The texts of a JSON list in a column.

    Raises:
        InputError: it is not a list of texts.
    """
    values = cell_value(text)
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        return [checked_text(value, name) for value in values]
    raise InputError(f"column {name!r} holds {text[:40]!r}, not a JSON list of texts.")
