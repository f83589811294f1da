"""What a row of a table is, and how files of tables are written."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bothways.errors import Place
from bothways.io.options import Format as Format


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


def shown(value: object, limit: int = 40) -> str:
    """The beginning of a value for a message, as JSON has it; what JSON lacks as Python has it."""
    return json.dumps(value, default=repr, ensure_ascii=False)[:limit]


def first_value(item: Any, names: Sequence[str]) -> Any:
    """The value of the first of these keys that an object has; None if it has none of them."""
    for name in names if isinstance(item, dict) else ():
        if (value := item.get(name)) is not None:
            return value
    return None


_WHOLE = re.compile(r"-?[0-9]+(?:\.0+)?")


def whole_number(value: Any) -> int | None:
    """A whole number, also as tables hold it (``12.0``, ``"12"``); None if it is none."""
    if type(value) is int:
        return value
    is_number = not isinstance(value, bool) and _WHOLE.fullmatch(str(value).strip())
    return int(float(value)) if is_number else None
