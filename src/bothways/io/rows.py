"""Rows of tables, whatever the format of their file: TSV, CSV, JSON, Parquet, sheets.

All are streamed. What is decided about a file (its delimiter, whether quotation marks enclose
fields, the form of JSON) is decided on 64 KB; a later row that contradicts it is an error that
names the option.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bothways.errors import InputError, Place
from bothways.io.broken import Broken

Quoting = Literal["auto", "csv", "none"]


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        place: file and line; the number of the row where a format has no lines.
        values: by column.
    """

    place: Place
    values: dict[str, Any]


Item = tuple[Place, Any]
"""A place and a value of JSON."""


@dataclass(frozen=True)
class Format:
    r"""How a file is written, as far as the user says it.

    Attributes:
        encoding: of text files. Default: that of the byte order mark, else UTF-8.
        delimiter: between the fields of TSV and CSV; ``\t`` is a tab. Default: found out.
        sheet: of a workbook. Default: the only one with cells.
        quoting: whether quotation marks enclose fields (``csv``) or are text (``none``); ``auto``:
            found out.
        header: whether TSV and CSV files begin with a line of column names; columns are numbered
            from 0 if not.
        columns: the names, for files without such a line. A file that has it all the same is read
            by it.
    """

    encoding: str = ""
    delimiter: str = ""
    sheet: str = ""
    quoting: Quoting = "auto"
    header: bool = True
    columns: tuple[str, ...] = ()


_COMPRESSED = (".gz", ".xz", ".zst")
DELIMITED = {".tsv": "\t", ".txt": "\t", ".csv": ",", "": "\t"}
"""Endings of delimited files, and their usual delimiter."""
JSON = (".json", ".jsonl", ".ndjson")
PARQUET = ".parquet"
SHEETS = (".xlsx", ".xlsm", ".xls", ".xlsb", ".ods")
TABLES = (*filter(None, DELIMITED), *JSON, PARQUET, *SHEETS)
"""Endings of the files that are tables."""


def table_suffix(path: Path) -> str:
    """The ending that names a file's format, in small letters: ``.csv`` of ``reviews.CSV.gz``."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix not in _COMPRESSED), "")


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
    if table_suffix(path) in DELIMITED and not _is_json_pipe(path, form):
        from bothways.io.csv_files import delimited_rows

        yield from delimited_rows(path, DELIMITED[table_suffix(path)], form, broken)
        return
    for place, item in read_items(path, form, broken):
        if isinstance(item, dict):
            yield Row(place, item)
        else:
            broken.leave_out(InputError(f"expected an object, found {shown(item)}.", place=place))


def _is_json_pipe(path: Path, form: Format) -> bool:
    """Whether a pipe, whose name says nothing, has JSON."""
    if path.suffix or not path.is_fifo():
        return False
    from bothways.io.text import beginning

    return beginning(path, form.encoding).lstrip().startswith(("{", "[{"))


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
        from bothways.io.json_items import json_items

        return json_items(path, form.encoding, broken)
    if suffix == PARQUET:
        from bothways.io.parquet import parquet_items

        return parquet_items(path)
    if suffix in SHEETS:
        from bothways.io.sheets import sheet_items

        return sheet_items(path, form.sheet)
    raise InputError(
        f"tables are read from {', '.join(TABLES)}, not from {suffix or 'this'!r}.",
        place=Place(path),
    )


def shown(value: object, limit: int = 40) -> str:
    """The beginning of a value for a message, as JSON has it; what JSON lacks as Python has it."""
    import json

    return json.dumps(value, default=repr, ensure_ascii=False)[:limit]
