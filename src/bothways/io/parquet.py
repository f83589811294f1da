"""Rows of Parquet files."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place, explain_missing
from bothways.io.pipes import open_in_any_order
from bothways.io.rows import Item
from bothways.io.text import explain_read_errors

_ROWS = 1024  # read at once
_INDEX = "__index_level_"  # columns that pandas adds


def parquet_items(path: Path) -> Iterator[Item]:
    """The rows of a Parquet file as objects, numbered from 1; classes that Hugging Face's data sets
    number have their names.

    Raises:
        InputError: the file cannot be read as Parquet, or has a column twice.
        ConfigError: pyarrow is not installed.
    """
    with explain_missing("reading Parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    number = 0
    try:
        with (
            explain_read_errors(path),
            open_in_any_order(path) as disk,
            pq.ParquetFile(disk) as file,
        ):
            names = [name for name in file.schema_arrow.names if not name.startswith(_INDEX)]
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise InputError(f"two columns are named {twice!r}.", place=Place(path))
            classes = _class_names(file.schema_arrow)
            for batch in file.iter_batches(batch_size=_ROWS, columns=names):
                for row in zip(*[column.to_pylist() for column in batch.columns], strict=True):
                    number += 1
                    values = dict(zip(batch.schema.names, row, strict=True))
                    for name in classes.keys() & values.keys():
                        values[name] = _named(values[name], classes[name])
                    yield Place(path, number), values
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read as Parquet after row {number}: {error}.", place=Place(path)
        ) from error


def _class_names(schema: Any) -> dict[str, list[str]]:
    """The names of the classes that columns give by number, as Hugging Face's data sets keep them
    in the schema."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        inner = {name: one.get("feature", one) for name, one in features.items()}
        return {name: one["names"] for name, one in inner.items() if one.get("names")}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _named(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


def readable(value: Any) -> Any:
    """A value as JSON would have it: dates, decimal numbers and bytes as text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [readable(one) for one in value]
    if isinstance(value, dict):
        return {name: readable(one) for name, one in value.items()}
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()  # a date of pandas
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
        return value  # a picture; refused where it should be a text
    return str(value)
