"""Texts in files of records: a field of JSON lines, or a column of Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from bothways.errors import InputError, Place
from bothways.io.broken import Broken, Limit, corpus_line
from bothways.io.diagnostics import refuse_other_format
from bothways.io.lines import listed
from bothways.io.pipes import open_in_any_order
from bothways.io.rows import shown
from bothways.io.text import (
    COMPRESSED,
    SUFFIXES,
    SURROGATES,
    beginning_lines,
    bytes_read,
    decode_lines,
    explain_read_errors,
    read_lines,
    refuse_records,
    replace_broken,
)

if TYPE_CHECKING:
    import pyarrow as pa

_JSON_SUFFIXES = tuple(
    name + ending for name in (".jsonl", ".ndjson") for ending in ("", *COMPRESSED)
)
INPUT_SUFFIXES = (*SUFFIXES, *_JSON_SUFFIXES, ".parquet")
"""Endings of the files that :class:`ParagraphReader` and `bothways corpus` look for in folders."""

Kind = Literal["text", "json", "parquet"]
ROWS = 256
"""Rows of a Parquet file read at once. Most are short, but each may be a whole document."""


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
        raise ValueError(f"no field {name!r}, only {listed([*record])} (see the option text_field)")
    text = record[name]
    if not isinstance(text, str):
        raise ValueError(f"field {name!r} is {shown(text)}, not a string")
    return text


def parquet_batches(disk: BinaryIO, path: Path, column: str) -> Iterator[tuple[pa.Array, int]]:
    """A column of a Parquet file in batches, as bytes, valid UTF-8 or not; and all rows there are.

    Raises:
        InputError: the file is damaged, or has no such column of text.
    """
    import pyarrow as pa  # of the extra data
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(disk)
        if column not in (names := table.schema_arrow.names):
            raise InputError(
                f"no column {column!r}; the columns are {listed(names)}.",
                place=Place(path),
                option="text_field",
            )
        for batch in table.iter_batches(batch_size=ROWS, columns=[column]):
            texts = batch.column(0)
            if pa.types.is_dictionary(texts.type):
                texts = texts.dictionary_decode()
            yield texts.cast(pa.large_binary()), table.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"column {column!r} cannot be read as texts of Parquet: {error}.", place=Place(path)
        ) from error


def record_text(
    line: str, field: str, source: str | Path, number: int, broken: Broken
) -> str | None:
    """The text in a JSON object on a line; None if it was left out.

    Raises:
        InputError: there is none, and nothing is left out.
    """
    try:
        text = json_field(line, field)
    except ValueError as error:
        problem = str(error).rstrip(".")
        broken.leave_out(InputError(f"{problem}.", place=Place(source, number)))
        return None
    if broken.action != "replace" and ("\0" in text or SURROGATES.search(text)):
        problem = "the text has a NUL character or half a surrogate pair."
        raise broken.refusal(InputError(problem, place=Place(source, number)))
    return replace_broken(text, b"", source, number, broken)


def column_text(
    row: bytes | None, field: str, source: str | Path, number: int, limit: Limit, broken: Broken
) -> str | None:
    """The text in a row of a column; None if it was left out.

    Raises:
        InputError: it is null, too long or not text, and nothing is left out or replaced.
    """
    if row is None:
        broken.leave_out(InputError(f"column {field!r} is null.", place=Place(source, number)))
        return None
    return next(decode_lines([row], source, number, limit, broken))[1]


@dataclass
class ParagraphReader:
    """Reads the lines of text files, and those of the texts in files of records.

    Attributes:
        field: of JSON objects, or column of Parquet, that holds the text.
        broken: what to do with invalid input, and what was done.
        limit: longest line or text accepted.
        keep: whether text files that look like another format are read as text.
        encoding: of text files; that of the byte order mark, else UTF-8, if empty.
    """

    field: str = "text"
    broken: Broken = dataclass_field(default_factory=Broken)
    limit: Limit = dataclass_field(default_factory=lambda: corpus_line(10.0))
    keep: bool = False
    encoding: str = ""

    def read(self, path: Path, on_read: Callable[[int], None]) -> Iterator[str]:
        """The lines of a file: text, JSON lines or Parquet, by its name.

        Args:
            path: the file.
            on_read: called from time to time with the number of bytes on disk read so far.

        Raises:
            InputError: with file and line: what :func:`bothways.io.text.read_lines` refuses, and
                records without a text.
        """
        kind = kind_of(path)
        if kind == "parquet":
            yield from self._read_column(path, on_read)
            return
        if kind == "text" and not self.keep:
            lines_kept = "if it is meant as text, give --lines keep"
            refuse_other_format(beginning_lines(path, self.encoding), path, lines_kept)
        lines = read_lines(
            path, encoding=self.encoding, limit=self.limit, broken=self.broken, on_read=on_read
        )
        for number, line in lines:
            if kind == "text":
                yield line
            elif line.strip():
                text = record_text(line, self.field, path, number, self.broken)
                yield from [] if text is None else text.split("\n")

    def _read_column(self, path: Path, on_read: Callable[[int], None]) -> Iterator[str]:
        number = 0
        with explain_read_errors(path, lambda: number), open_in_any_order(path) as disk:
            for texts, _ in parquet_batches(disk, path, self.field):
                for row in texts.to_pylist():
                    number += 1
                    text = column_text(row, self.field, path, number, self.limit, self.broken)
                    yield from [] if text is None else text.split("\n")
                on_read(bytes_read(disk))
