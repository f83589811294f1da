"""Tables that are written in the format that the name of their file asks for."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bothways.errors import ConfigError
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


def write_rows(path: Path, rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> None:
    """Write a table: tabs between columns, or commas in a .csv, or an object for each row in a
    .jsonl or (as one list) a .json file, or the columns of a .parquet file.

    Args:
        path: to write or replace; with any other suffix it gets tabs.
        rows: under a line of column names; without tabs and line breaks in their cells, but for
            .csv and JSON.
        numbers: columns whose values are numbers in JSON and Parquet.

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


def arrow_table(rows: Sequence[Sequence[str]], numbers: Collection[str]) -> pa.Table:
    """A table for :func:`write_tables`; the column ``index`` has whole numbers, other ``numbers``
    are float64, null where a cell is empty."""
    import pyarrow as pa  # of the extra data

    columns = {}
    cells = zip(*rows[1:], strict=True) if len(rows) > 1 else [() for _ in rows[0]]
    for name, values in zip(rows[0], cells, strict=True):
        if name in numbers:
            kind = pa.int64() if name == "index" else pa.float64()
            own = int if name == "index" else float
            columns[name] = pa.array([own(v) if v else None for v in values], kind)
        else:
            columns[name] = pa.array(values, pa.string())
    return pa.table(columns)


def write_tables(file: BinaryIO, suffix: str, tables: Iterable[pa.Table]) -> None:
    """Write tables of one schema, one after the other, as an Arrow or a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rest: Iterator[pa.Table] = iter(tables)
    first = next(rest)
    if suffix == ".parquet":
        with pq.ParquetWriter(file, first.schema) as writer:
            for table in chain([first], rest):
                writer.write_table(table, row_group_size=max(1, len(table)))
    else:
        with pa.ipc.new_file(file, first.schema) as stream:
            for table in chain([first], rest):
                stream.write_table(table)


def table_text(suffix: str, rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> str:
    """The content of :func:`write_rows`."""
    if suffix == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
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
    return "\n".join("\t".join(row) for row in rows) + "\n"


def _number(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
