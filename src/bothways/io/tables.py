"""Rows of tables, whatever the format of their file: TSV, CSV, JSON, Parquet, sheets.

All are streamed. What is decided about a file (its delimiter, whether quotation marks enclose
fields, the form of JSON) is decided on 64 KB; a later row that contradicts it is an error that
names the option.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bothways.errors import InputError, Place
from bothways.io.broken import Broken
from bothways.io.csv_files import Record, delimited_table
from bothways.io.json_files import json_items
from bothways.io.parquet import parquet_items
from bothways.io.rows import (
    DELIMITED,
    JSON,
    PARQUET,
    SHEETS,
    TABLES,
    Format,
    Item,
    Row,
    shown,
    table_suffix,
)
from bothways.io.sheets import sheet_items
from bothways.io.text import beginning


def read_table(
    path: Path, form: Format | None = None, broken: Broken | None = None
) -> Iterator[Row]:
    """Stream the rows of a table.

    Args:
        path: one of :data:`TABLES`; text files also compressed (``.csv.gz``).
        form: how it is written.
        broken: what to do with rows that cannot be read; stop, if not given.

    Raises:
        InputError: the file or a row cannot be read; its place is named.
    """
    form, broken = form or Format(), broken or Broken()
    if (table := text_table(path, form, broken)) is not None:
        names, records = table
        for number, values in records:
            yield Row(Place(path, number), dict(zip(names, values, strict=True)))
        return
    for place, item in read_items(path, form, broken):
        if isinstance(item, dict):
            yield Row(place, item)
        else:
            broken.leave_out(InputError(f"expected an object, found {shown(item)}.", place=place))


def text_table(
    path: Path, form: Format, broken: Broken
) -> tuple[list[str], Iterator[Record]] | None:
    """The column names and the records of a TSV or CSV file; None of a file of another format.

    Args:
        path, form, broken: as for :func:`read_table`.

    Raises:
        InputError: as :func:`bothways.io.csv_files.delimited_table`.
    """
    suffix = table_suffix(path)
    if suffix not in DELIMITED:
        return None
    is_pipe = not path.suffix and path.is_fifo()  # whose name says nothing
    if is_pipe and beginning(path, form.encoding).lstrip().startswith(("{", "[{")):
        return None
    return delimited_table(path, DELIMITED[suffix], form, broken)


def read_items(
    path: Path, form: Format | None = None, broken: Broken | None = None
) -> Iterator[Item]:
    """Stream the items of a file of JSON, JSON lines or Parquet, or of a sheet.

    Args:
        path, form, broken: as for :func:`read_table`.

    Yields:
        The place of each (the line that it begins on), and its value: an object, or whatever JSON
        has there.

    Raises:
        InputError: the file or an item cannot be read; its place is named.
    """
    form, broken = form or Format(), broken or Broken()
    suffix = table_suffix(path)
    if suffix in JSON or (not suffix and path.is_fifo()):
        return json_items(path, form.encoding, broken)
    if suffix == PARQUET:
        return parquet_items(path)
    if suffix in SHEETS:
        return sheet_items(path, form.sheet)
    raise InputError(
        f"tables are read from {', '.join(TABLES)}, not from {suffix or 'this'!r}.",
        place=Place(path),
    )
