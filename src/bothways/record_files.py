"""Texts in files of records: a field of JSON lines, or a column of Parquet."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from bothways.errors import InputError
from bothways.text_files import (
    COMPRESSED,
    SUFFIXES,
    bytes_read,
    explain_read_errors,
    read_lines,
    refuse_records,
)

_JSON_SUFFIXES = tuple(
    name + ending for name in (".jsonl", ".ndjson") for ending in ("", *COMPRESSED)
)
INPUT_SUFFIXES = (*SUFFIXES, *_JSON_SUFFIXES, ".parquet")
"""Endings of the files that :func:`read_paragraphs` and `bothways corpus` look for in folders."""

Kind = Literal["text", "json", "parquet"]
ROWS = 256
"""Rows of a Parquet file read at once. Most are short, but each may be a whole document."""
SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs, which JSON may hold and no text may."""


def kind_of(path: Path) -> Kind:
    """The kind of a file by its name.

    Raises:
        InputError: it holds records of another format.
    """
    if path.name.lower().endswith(_JSON_SUFFIXES):
        return "json"
    if path.suffix.lower() == ".parquet":
        return "parquet"
    refuse_records(path, "write one object per line to a .jsonl file, or the texts to a .txt file")
    return "text"


def json_field(line: str, name: str) -> str:
    """The text in a field of a JSON object.

    Raises:
        ValueError: there is none; its message is the reason.
    """
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"a JSON {type(record).__name__}, not an object")
    if name not in record:
        known = ", ".join(map(repr, list(record)[:8])) or "nothing"
        raise ValueError(f"no field {name!r}, only {known} (--text_field names the text's)")
    text = record[name]
    if not isinstance(text, str):
        raise ValueError(f"field {name!r} is {_type_name(text)}, not a string")
    return text


def _type_name(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"a {type(value).__name__}"


def parquet_batches(disk: BinaryIO, path: Path, column: str) -> Iterator[tuple[pa.Array, int]]:
    """A column of a Parquet file in batches, as bytes, valid UTF-8 or not; and all rows there are.

    Raises:
        InputError: the file is damaged, or has no such column of text.
    """
    try:
        table = pq.ParquetFile(disk)
        _check_column(table.schema_arrow, path, column)
        for batch in table.iter_batches(batch_size=ROWS, columns=[column]):
            texts = batch.column(0)
            if pa.types.is_dictionary(texts.type):
                texts = texts.dictionary_decode()
            yield texts.cast(pa.large_binary()), table.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"cannot be read as Parquet ({error}). Copy or write the file again.", path=path
        ) from error


def _check_column(schema: pa.Schema, path: Path, column: str) -> None:
    if column not in schema.names:
        raise InputError(
            f"there is no column {column!r}; the file has {', '.join(schema.names)}. Name the "
            "column that holds the text: --text_field NAME.",
            path=path,
        )
    kind = schema.field(column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text_types: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
    )
    if not any(is_type(kind) for is_type in text_types):
        raise InputError(
            f"column {column!r} holds {kind}, not text. Name a column of strings: "
            "--text_field NAME.",
            path=path,
        )


def read_paragraphs(path: Path, field: str, on_read: Callable[[int], None]) -> Iterator[str]:
    """The lines of a text file, or those of the texts of a file of records.

    Args:
        path: text, JSON lines or Parquet, by its name.
        field: of JSON objects, or column of Parquet, that holds the text.
        on_read: called from time to time with the number of bytes on disk read so far.

    Raises:
        InputError: with file and line: what :func:`bothways.text_files.read_lines` refuses, and
            records without a text.
    """
    kind = kind_of(path)
    if kind == "parquet":
        yield from _read_column(path, field, on_read)
        return
    for number, line in read_lines(path, on_read=on_read):
        if kind == "text":
            yield line
        elif line.strip():
            try:
                yield from _lines(json_field(line, field))
            except ValueError as error:
                raise InputError(f"{error}.", path=path, line=number) from None


def _read_column(path: Path, column: str, on_read: Callable[[int], None]) -> Iterator[str]:
    row = 0
    with explain_read_errors(path, lambda: row), path.open("rb") as disk:
        for texts, _ in parquet_batches(disk, path, column):
            for text in texts.to_pylist():
                row += 1
                try:
                    if text is None:
                        raise ValueError(f"column {column!r} is null")
                    yield from _lines(text.decode())
                except ValueError as error:
                    raise InputError(f"{error}.", path=path, line=row) from None
            on_read(bytes_read(disk))


def _lines(text: str) -> list[str]:
    if "\0" in text or SURROGATES.search(text):
        raise ValueError("the text has a NUL character or half a surrogate pair")
    return text.split("\n")
