"""Tables that are written in the format that the name of their file asks for."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from bothways.io.files import write_text

FORMATS = (".tsv", ".csv", ".jsonl", ".json")


def write_rows(path: Path, rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> None:
    """Write a table: tabs between columns, or commas in a .csv, or an object for each row in a
    .jsonl or (as one list) a .json file.

    Args:
        path: to write or replace; with any other suffix it gets tabs.
        rows: under a line of column names; without tabs and line breaks in their cells, but for
            .csv and JSON.
        numbers: columns whose values are numbers in JSON.

    Raises:
        DiskError: it could not be written.
    """
    write_text(path, table_text(path.suffix.lower(), rows, numbers))


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
