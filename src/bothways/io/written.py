"""Tables that are written in the format that the name of their file asks for.

A cell is a text, or whatever a column had that is carried over from a file of JSON or Parquet: a
number, true or false, None, a list, an object. JSON has these as they are, and so has Parquet where
all of a column are of one type that is no list or object; they are JSON elsewhere.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bothways.errors import ConfigError, check_installed
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
        ConfigError: naming those that are; or what writes it is not installed.
    """
    if (suffix := path.suffix.lower()) in _OF_OTHERS:
        raise ConfigError(
            f"{path}: tables are not written as {suffix}; give {', '.join(FORMATS)} (spreadsheets "
            "open .csv)."
        )
    if suffix in ARROW:
        check_installed(f"writing {suffix}", "pyarrow")


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
            write_tables(file, suffix, lambda: [table])
    else:
        write_text(path, table_text(suffix, rows, numbers))


def arrow_table(rows: Sequence[Sequence[Any]], numbers: Collection[str]) -> pa.Table:
    """A table for :func:`write_tables`; the column ``index`` has whole numbers, other ``numbers``
    are float64, null where a cell is empty; others are of :func:`cells_column`."""
    import pyarrow as pa  # of the extra data

    columns, fields = dict[str, pa.Array](), dict[str, pa.Field]()
    cells = zip(*rows[1:], strict=True) if len(rows) > 1 else [() for _ in rows[0]]
    for name, values in zip(rows[0], cells, strict=True):
        if name in numbers:
            kind = pa.int64() if name == "index" else pa.float64()
            own = int if name == "index" else float
            columns[name] = pa.array([own(v) if v else None for v in values], kind)
        else:
            fields[name], columns[name] = cells_column(name, values)
    fields = {name: fields.get(name) or pa.field(name, columns[name].type) for name in columns}
    return pa.table(columns, schema=pa.schema(list(fields.values())))


def cells_column(name: str, values: Sequence[Any]) -> tuple[pa.Field, pa.Array]:
    """Cells as a column of the type that holds each as it is, or of texts."""
    import pyarrow as pa

    try:
        found = pa.array(values)
        mixed = {bool, float} <= {*map(type, values)} or pa.types.is_nested(found.type)
    except (pa.ArrowException, OverflowError):
        mixed = True
    column = _as_texts(values) if mixed else found
    return pa.field(name, column.type), column


def _as_texts(values: Iterable[Any]) -> pa.Array:
    import pyarrow as pa

    return pa.array([None if v is None else cell_text(v) for v in values], pa.string())


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


def write_tables(file: BinaryIO, suffix: str, tables: Callable[[], Iterable[pa.Table]]) -> None:
    """Write tables one after the other as an Arrow or a Parquet file.

    Args:
        file: to write.
        suffix: of its name.
        tables: gives them, each time that it is called; all have the same columns. A column whose
            types differ has the one that holds all values as they are, or else texts.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds: dict[str, pa.DataType] = {}
    exact: set[str] = set()  # columns with whole numbers that no float holds
    for table in tables():
        for field, column in zip(table.schema, table.columns, strict=True):
            kind = kinds.get(field.name, field.type)
            both = [pa.schema([("", one)]) for one in (kind, field.type)]
            if pa.types.is_integer(field.type):
                largest = max((abs(value) for value in column.to_pylist() if value), default=0)
                exact |= {field.name} if largest > 2**53 else set()
            try:
                kind = pa.unify_schemas(both, promote_options="permissive").field(0).type
            except pa.ArrowTypeError:
                kind = pa.string()
            is_lossy = field.name in exact and pa.types.is_floating(kind)
            kinds[field.name] = pa.string() if is_lossy else kind
    schema = pa.schema(kinds)
    parquet = suffix == ".parquet"
    with pq.ParquetWriter(file, schema) if parquet else pa.ipc.new_file(file, schema) as writer:
        for table in tables():
            columns = [
                column.cast(kind)
                if kind != pa.string() or column.type == kind
                else _as_texts(column.to_pylist())
                for column, kind in zip(table.columns, kinds.values(), strict=True)
            ]
            size = {"row_group_size": max(1, len(table))} if parquet else {}
            writer.write_table(pa.table(columns, schema=schema), **size)


def table_text(suffix: str, rows: Sequence[Sequence[Any]], numbers: Collection[str] = ()) -> str:
    """The content of :func:`write_rows`."""
    if suffix == ".csv":
        lines = _Lines()
        # A lone carriage return gets quotation marks only where lines end with one.
        csv.writer(lines, lineterminator="\r\n").writerows(map(cell_text, row) for row in rows)
        return "".join(lines)
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


class _Lines(list[str]):
    """Lines of CSV, which end in a line feed here."""

    def write(self, line: str) -> None:
        """Take one, with the end that Python's writer gives it."""
        self.append(line.removesuffix("\r\n") + "\n")


def _number(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
