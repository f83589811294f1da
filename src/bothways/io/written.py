"""Tables that are written in the format that the name of their file asks for.

A cell is a text, or whatever a column had that is carried over from a file of JSON or Parquet: a
number, true or false, None, a list, an object. JSON and Parquet have these as they are.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bothways.errors import ConfigError, RunError
from bothways.io.files import new_file, write_text

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = (".tsv", ".csv", ".jsonl", ".json", ".parquet")
ARROW = (".arrow", ".parquet")
"""Endings of files that are written from tables of Arrow; others are written from bytes."""

_OF_OTHERS = (
    *(".xlsx", ".xls", ".ods", ".docx", ".arrow", ".feather"),
    *(".gz", ".xz", ".zst", ".bz2", ".zip"),
)


def check_ending(path: Path) -> None:
    """Refuse a name that other programs would take for a format that is not written.

    Raises:
        ConfigError: naming those that are.
    """
    if (suffix := path.suffix.lower()) in _OF_OTHERS:
        raise ConfigError(
            f"{path}: tables are not written as {suffix}; give {', '.join(FORMATS)} (spreadsheets "
            "open .csv)."
        )


def is_known(path: Path) -> bool:
    """Whether a name asks for a format, or for none in particular."""
    return path.suffix.lower() in (*FORMATS, ".txt", "")


def write_rows(path: Path, rows: Sequence[Sequence[Any]], numbers: Collection[str] = ()) -> None:
    """Write a table: tabs between columns, or commas in a .csv, or an object for each row in a
    .jsonl or (as one list) a .json file, or the columns of a .parquet file.

    Args:
        path: to write or replace; with any other suffix it gets tabs.
        rows: under a line of column names.
        numbers: columns whose texts are numbers in JSON and Parquet.

    Raises:
        DiskError: it could not be written.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        table = arrow_table(rows, numbers)
        with new_file(path) as file:
            write_tables(file, suffix, [table])
    else:
        write_text(path, table_text(suffix, rows, numbers))


def arrow_table(rows: Sequence[Sequence[Any]], numbers: Collection[str]) -> pa.Table:
    """A table for :func:`write_tables`; the column ``index`` has whole numbers, other ``numbers``
    are float64, null where a cell is empty; others are of the type that fits their values."""
    import pyarrow as pa  # of the extra data

    columns = {}
    cells = zip(*rows[1:], strict=True) if len(rows) > 1 else [() for _ in rows[0]]
    for name, values in zip(rows[0], cells, strict=True):
        if name in numbers:
            kind = pa.int64() if name == "index" else pa.float64()
            own = int if name == "index" else float
            columns[name] = pa.array([own(v) if v else None for v in values], kind)
        else:
            columns[name] = arrow_column(values)
    return pa.table(columns)


def arrow_column(values: Sequence[Any]) -> pa.Array:
    """Cells as a column of Arrow: of the type that fits all, or else as texts."""
    import pyarrow as pa

    if all(isinstance(value, str) for value in values):
        return pa.array(values, pa.string())
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else cell_text(value) for value in values])


def cell_text(value: Any) -> str:
    """A cell as text: as JSON has it if it is none, and an empty one for None."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


_BREAKS = re.compile(r"[\t\r\n]+")


def one_line(value: Any) -> str:
    """A cell as text in which a tab or a line break is a space, as tab-separated lines need it."""
    return _BREAKS.sub(" ", cell_text(value))


def breaks_in(suffix: str, cells: Iterable[Any]) -> int:
    """In how many cells :func:`write_rows` puts spaces for tabs and line breaks."""
    if suffix in FORMATS[1:]:
        return 0
    return sum(isinstance(cell, str) and _BREAKS.search(cell) is not None for cell in cells)


def write_tables(
    file: BinaryIO, suffix: str, tables: Iterable[pa.Table], schema: pa.Schema | None = None
) -> None:
    """Write tables one after the other as an Arrow or a Parquet file.

    Args:
        file: to write.
        suffix: of its name.
        tables: with the same columns.
        schema: that all are given, from :func:`shared_schema`; that of the first if not given.

    Raises:
        RunError: values do not fit the schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rest: Iterator[pa.Table] = iter(tables)
    first = next(rest)
    schema = schema or first.schema
    every = (_cast(table, schema) for table in chain([first], rest))
    if suffix == ".parquet":
        with pq.ParquetWriter(file, schema) as writer:
            for table in every:
                writer.write_table(table, row_group_size=max(1, len(table)))
    else:
        with pa.ipc.new_file(file, schema) as stream:
            for table in every:
                stream.write_table(table)


def shared_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The schema of a file whose parts have these: a column has the type that fits all of them, or
    texts."""
    import pyarrow as pa

    every = [*dict.fromkeys(schemas)]
    fields = []
    for name in every[0].names:
        kinds = [pa.schema([schema.field(name)]) for schema in every]
        try:
            fields += pa.unify_schemas(kinds, promote_options="permissive")
        except pa.ArrowException:
            fields.append(pa.field(name, pa.string()))
    return pa.schema(fields)


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema.equals(schema):
        return table
    import pyarrow as pa

    columns = []
    for field in schema:
        column = table.column(field.name)
        if pa.types.is_string(field.type) and not pa.types.is_string(column.type):
            values = column.to_pylist()
            column = pa.array([None if v is None else cell_text(v) for v in values], pa.string())
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise RunError(
                f"keep: no type of a column fits all values of {field.name!r} ({error}). Write a "
                ".jsonl file."
            ) from None
    return pa.table(columns, schema=schema)


def table_text(suffix: str, rows: Sequence[Sequence[Any]], numbers: Collection[str] = ()) -> str:
    """The content of :func:`write_rows`."""
    if suffix == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(cell_text, row) for row in rows)
        return text.getvalue()
    if suffix in (".jsonl", ".json"):
        header = rows[0]
        objects = [
            {
                name: _number(value) if name in numbers else value
                for name, value in zip(header, row, strict=True)
            }
            for row in rows[1:]
        ]
        if suffix == ".json":
            return json.dumps(objects, ensure_ascii=False, indent=1) + "\n"
        return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in objects)
    return "".join("\t".join(map(one_line, row)) + "\n" for row in rows)


def _number(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
