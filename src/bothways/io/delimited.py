"""Rows of TSV and CSV files.

TSV is read as GLUE writes it: only tabs and line feeds are special. Quotation marks are text (MRPC
has unbalanced ones), there is no escaping, and lines end only at line feeds, so that other Unicode
line separators stay inside a text. CSV is separated by commas, or by semicolons if line 1 has these
alone, with real quoting: a field in quotation marks may hold them, line breaks and doubled
quotation marks.
"""

from __future__ import annotations

import contextlib
import csv
import re
import threading
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from bothways.errors import ConfigError, InputError
from bothways.io.lines import (
    Layout,
    Line,
    MissingColumnError,
    OnBroken,
    Values,
    did_you_mean,
    listed,
    text_lines,
)
from bothways.io.text import LONGEST_TEXT_MIB


def tsv_rows(path: Path, names: list[str], layout: Layout, on_broken: OnBroken) -> Values:
    """:func:`bothways.io.tables.read_table` for a TSV file."""
    records = ((number, line.split("\t")) for number, line in text_lines(path, tabs=True))
    hint = (
        "tab-separated columns where line 1 has {}; a text may not hold tabs or line breaks, and "
        "quotation marks do not protect them."
    )
    return _table_rows(records, path, names, layout, on_broken, hint)


def csv_rows(path: Path, names: list[str], layout: Layout, on_broken: OnBroken) -> Values:
    """:func:`bothways.io.tables.read_table` for a CSV file."""
    lines = text_lines(path)
    numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
    width = len(layout.columns) or 1 + max(numbers, default=len(names) - 1)
    named = layout.header and not layout.columns
    delimiter = csv_delimiter(lines, header=named, width=width)
    kind = "comma" if delimiter == "," else "semicolon"
    hint = (
        f"{kind}-separated columns where line 1 has {{}}; a text with {kind}s or line breaks must "
        "be in quotation marks."
    )
    records = csv_records(lines, path, delimiter)
    return _table_rows(records, path, names, layout, on_broken, hint)


def csv_delimiter(lines: Sequence[Line], *, header: bool, width: int) -> str:
    """A comma, or a semicolon, which spreadsheets write where numbers have decimal commas.

    With a header, a semicolon if line 1 has some and no comma, quoted names aside. Without one, if
    it divides the first records into equally many columns, at least ``width``, and a comma does
    not.
    """
    if header:
        first = re.sub('"[^"]*"', "", lines[0][1])
        return ";" if ";" in first and "," not in first else ","
    return ";" if _divides(lines, ";", width) and not _divides(lines, ",", width) else ","


def _divides(lines: Sequence[Line], delimiter: str, width: int) -> bool:
    reader = csv.reader((line + "\n" for _, line in lines), delimiter=delimiter)
    with contextlib.suppress(csv.Error):
        widths = {len(row) for row in islice(reader, 20)}
        return len(widths) == 1 and min(widths) >= width
    return False


def csv_records(lines: Sequence[Line], path: Path, delimiter: str) -> Values:
    """The line on which each record starts, and its fields."""
    reader = csv.reader((line + "\n" for _, line in lines), delimiter=delimiter, strict=True)
    try:
        while True:
            start = reader.line_num + 1
            with _long_fields():
                values = next(reader, None)
            if values is None:
                return
            yield start, values
    except csv.Error as error:
        if "field limit" in str(error):
            raise InputError(
                f"holds a field longer than {LONGEST_TEXT_MIB:g} MiB, the limit for a text that a "
                "model reads. Break it up, or close the quotation mark that opens it.",
                path=path,
                line=start,
            ) from None
        if "new-line character" in str(error):
            raise InputError(
                "a line break within a field (a carriage return) is not in quotation marks; put "
                "the field into quotation marks, or remove it.",
                path=path,
                line=start,
            ) from None
        raise InputError(
            f"a quotation mark opens or closes a field where none should ({error}). A field that "
            "holds one must be in quotation marks, with each quotation mark inside written twice.",
            path=path,
            line=start,
        ) from None


_FIELD_LIMIT = threading.Lock()


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    """Allow fields as long as a text may be; the limit is the process's, so it is put back after
    each record, and one thread changes it at a time."""
    with _FIELD_LIMIT:
        limit = csv.field_size_limit(int(LONGEST_TEXT_MIB * 2**20))
        try:
            yield
        finally:
            csv.field_size_limit(limit)


def _table_rows(
    records: Values,
    path: Path,
    names: list[str],
    layout: Layout,
    on_broken: OnBroken,
    hint: str,
) -> Values:
    """The named columns of all rows that have as many columns as line 1."""
    start, first = next(records)
    if layout.columns and not has_header(first, names):
        columns = _columns_declared(path, names, layout.columns, len(first))
        records = chain([(start, first)], records)
    elif layout.header or layout.columns:
        columns = _columns_by_name(path, names, [name.strip() for name in first])
    else:
        columns = _columns_by_number(path, names, len(first))
        records = chain([(start, first)], records)
    for number, values in records:
        if len(values) != len(first):
            problem = (
                f"has {len(values)} {hint.format(len(first))} (task.broken skip leaves out such "
                "lines of labelled files.)"
            )
            on_broken(InputError(problem, path=path, line=number))
            continue
        yield number, [values[i] for i in columns]


def has_header(first: Sequence[str], names: Sequence[str]) -> bool:
    """Whether the first line of a file holds all the column names needed."""
    return set(names) <= {cell.strip() for cell in first}


def _columns_declared(
    path: Path, names: list[str], columns: Sequence[str], width: int
) -> list[int]:
    for name in names:
        if columns.count(name) != 1:
            raise ConfigError(
                f"task.columns is {listed(columns)}; it must name column {name!r} once."
                f"{did_you_mean(name, columns)}"
            )
    if len(columns) != width:
        raise InputError(
            f"has {width} columns, but task.columns names {len(columns)}: {listed(columns)}.",
            path=path,
            line=1,
        )
    return [columns.index(name) for name in names]


def _columns_by_name(path: Path, names: list[str], header: list[str]) -> list[int]:
    for name in names:
        if header.count(name) == 1:
            continue
        problem = "names twice" if name in header else "lacks"
        raise MissingColumnError(
            f"the header {problem} the column {name!r}; the columns are {listed(header)}."
            f"{did_you_mean(name, header) if name not in header else ''} (If line 1 is already "
            "an example, set task.header to false and name columns by number, from 0; `predict` "
            "and `evaluate` take such settings from --task FILE.yaml, and `predict` plain texts, "
            "one per line, from standard input.)",
            header,
            path=path,
            line=1,
        )
    return [header.index(name) for name in names]


def _columns_by_number(path: Path, names: list[str], width: int) -> list[int]:
    for name in names:
        if not (name.isascii() and name.isdigit()):
            raise ConfigError(
                f"column {name!r}: with task.header false, columns are numbers from 0 (text_a, "
                f"text_b and label of the task); {path} has {width} columns."
            )
        if int(name) >= width:
            raise InputError(
                f"has {width} columns, 0 to {width - 1}; there is no column {name}.",
                path=path,
                line=1,
            )
    return [int(name) for name in names]
