"""Labelled and unlabelled examples from TSV, CSV, JSONL and JSON files.

TSV is read as GLUE writes it: tabs separate columns and nothing else has a meaning. Quotation marks
are text (MRPC has lone ones), there is no escaping, and lines end at line feeds alone, so that the
separators Unicode calls line breaks stay inside a text. CSV is comma-separated with real quoting: a
field in quotation marks may hold commas, line breaks and doubled quotation marks. JSONL has one
object a line, JSON a list of objects; a key of an object inside is written with dots
(``labels.label``).

All are UTF-8, with or without a byte order mark, with LF or CRLF. Blank lines at the end are
ignored. An empty text is an example like any other (files to predict need one answer a line); how
many there are is reported, and a column in which every text is empty is refused.
"""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from bothways.config import TaskOptions
from bothways.errors import ConfigError, InputError
from bothways.text_files import LONGEST_TEXT_MIB, read_lines

Line = tuple[int, str]
Values = Iterator[tuple[int, list[str]]]
OnBroken = Callable[[InputError], None]


@dataclass(frozen=True)
class Rows:
    """The examples of one file, in its order.

    Attributes:
        path: the file.
        lines: the line of each example, from 1.
        a: the (first) text of each.
        b: the second text of each; None where the task has single texts.
        labels: the label or score of each, as written; None where the file was read without.
        broken: lines left out because they cannot be read (``broken: skip``).
    """

    path: Path
    lines: list[int] = field(default_factory=list)
    a: list[str] = field(default_factory=list)
    b: list[str] | None = None
    labels: list[str] | None = None
    broken: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def empty(self) -> int:
        """How many examples have an empty text."""
        seconds = self.a if self.b is None else self.b
        return sum(not (a.strip() and b.strip()) for a, b in zip(self.a, seconds, strict=True))


def read_rows(path: str | Path, options: TaskOptions, *, labelled: bool) -> Rows:
    """Read the columns that the task names.

    Args:
        path: a ``.tsv`` (or ``.txt`` of the same form), ``.jsonl`` or ``.json`` file.
        options: which columns hold texts and label, whether a TSV file has a header, and what
            becomes of broken lines (those of files to predict are always an error, because every
            line must have its answer).
        labelled: read the label too. Without it the file needs no label column.

    Raises:
        InputError: the file or a line of it cannot be read as asked; file and line are named.
        ConfigError: a column number that is none.
    """
    path = Path(path)
    names = [options.text_a]
    if options.text_b is not None:
        names.append(options.text_b)
    if labelled:
        names.append(options.label)
    rows = Rows(path, b=None if options.text_b is None else [], labels=[] if labelled else None)

    def skip(error: InputError) -> None:
        rows.broken.append(error.line or 0)

    on_broken = skip if labelled and options.broken == "skip" else refuse
    for number, values in read_values(path, names, options, on_broken):
        if rows.labels is not None:
            try:
                rows.labels.append(clean_label(values[-1], path, number))
            except InputError as error:
                on_broken(error)
                continue
        rows.lines.append(number)
        rows.a.append(values[0])
        if rows.b is not None:
            rows.b.append(values[1])
    _check_filled(rows, options)
    return rows


def read_values(path: Path, names: list[str], options: TaskOptions, on_broken: OnBroken) -> Values:
    """The values of some columns, row by row.

    Args:
        path: as for :func:`read_rows`.
        names: of the columns, or their numbers in a file without a header.
        options: how the file is laid out.
        on_broken: called for a line that cannot be read, which is then left out.

    Yields:
        The line of the row, and its values in the order of ``names``.

    Raises:
        InputError: the file cannot be read as asked.
        ConfigError: a column number that is none.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"examples are read from {', '.join(_READERS)} files, not from "
            f"{path.suffix or 'this'!r}; rename it if it is one of these.",
            path=path,
        )
    yield from reader(path, names, options, on_broken)


def refuse(error: InputError) -> NoReturn:
    """What becomes of a broken line where none may be left out."""
    raise error


def broken_note(path: Path, lines: Sequence[int]) -> list[str]:
    """A sentence about lines that were left out, if there are any."""
    if not lines:
        return []
    shown = ", ".join(map(str, lines[:8])) + (" ..." if len(lines) > 8 else "")
    return [f"{path.name}: {len(lines):,} broken lines were left out: {shown}"]


def text_lines(path: Path) -> list[Line]:
    """The lines of a UTF-8 file with their numbers from 1; blank ones at the end left out.

    Raises:
        InputError: no such file, no text in it, broken UTF-8, a NUL, or an enormous line.
    """
    lines = list(read_lines(path, max_line_mib=LONGEST_TEXT_MIB))
    while lines and not lines[-1][1].strip():
        lines.pop()
    if not lines:
        raise InputError("is empty; it needs one example a line.", path=path)
    return lines


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?', or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Names for a message: quoted, long ones and long lists cut."""
    shown = [repr(n if len(n) <= 30 else n[:27] + "...") for n in names[:limit]]
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")


# A JSON list may stand on one line, and is held whole.
_LONGEST_LIST_MIB = 1024.0
_NUL = "holds a NUL character; the file is damaged or not text (UTF-16?). Convert it to UTF-8."


# ----------------------------------------------------------------------------------- TSV and CSV


def _tsv_rows(path: Path, names: list[str], options: TaskOptions, on_broken: OnBroken) -> Values:
    records = ((number, line.split("\t")) for number, line in text_lines(path))
    hint = (
        "tab-separated columns where line 1 has {}; a text may not hold tabs or line breaks, and "
        "quotation marks do not protect them."
    )
    return _table_rows(records, path, names, options, on_broken, hint)


def _csv_rows(path: Path, names: list[str], options: TaskOptions, on_broken: OnBroken) -> Values:
    hint = (
        "comma-separated columns where line 1 has {}; a text with commas or line breaks stands in "
        "quotation marks."
    )
    return _table_rows(_csv_records(path), path, names, options, on_broken, hint)


def _csv_records(path: Path) -> Values:
    """The line on which each record starts, and its fields."""
    limit = csv.field_size_limit(int(LONGEST_TEXT_MIB * 2**20))
    reader = csv.reader((line + "\n" for _, line in text_lines(path)), strict=True)
    try:
        while True:
            start = reader.line_num + 1
            values = next(reader, None)
            if values is None:
                return
            yield start, values
    except csv.Error as error:
        raise InputError(
            f"a quotation mark opens or closes a field where none should ({error}). A field that "
            "holds one stands in quotation marks, with each of its own written twice.",
            path=path,
            line=start,
        ) from None
    finally:
        csv.field_size_limit(limit)  # the library keeps one for the whole process


def _table_rows(
    records: Values,
    path: Path,
    names: list[str],
    options: TaskOptions,
    on_broken: OnBroken,
    hint: str,
) -> Values:
    """The columns named, of rows with as many columns as line 1."""
    start, first = next(records)
    if options.columns and not has_header(first, names):
        at = _columns_declared(path, names, options.columns, len(first))
        records = chain([(start, first)], records)
    elif options.header or options.columns:
        at = _columns_by_name(path, names, [name.strip() for name in first])
    else:
        at = _columns_by_number(path, names, len(first))
        records = chain([(start, first)], records)
    for number, values in records:
        if len(values) != len(first):
            problem = (
                f"has {len(values)} {hint.format(len(first))} (task.broken skip leaves such lines "
                "of labelled files out.)"
            )
            on_broken(InputError(problem, path=path, line=number))
            continue
        yield number, [values[i] for i in at]


def has_header(first: Sequence[str], names: Sequence[str]) -> bool:
    """The first line of a file that may have a header holds all the names needed."""
    return set(names) <= {cell.strip() for cell in first}


def _columns_declared(
    path: Path, names: list[str], columns: Sequence[str], width: int
) -> list[int]:
    for name in names:
        if columns.count(name) != 1:
            raise ConfigError(
                f"task.columns is {listed(columns)}; column {name!r} must be there once."
                f"{nearest(name, columns)}"
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
        raise InputError(
            f"the header {problem} the column {name!r}; the columns are {listed(header)}."
            f"{nearest(name, header) if name not in header else ''} (If line 1 is an example "
            "already, set task.header to false and name columns by number, from 0.)",
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


# ---------------------------------------------------------------------------------- JSONL and JSON


def _jsonl_rows(path: Path, names: list[str], options: TaskOptions, on_broken: OnBroken) -> Values:
    for number, line in text_lines(path):
        try:
            item = json_object(line, path, number)
            values = _json_values(item, names, options, path, number)
        except InputError as error:
            on_broken(error)
            continue
        yield number, values


def _json_rows(path: Path, names: list[str], options: TaskOptions, on_broken: OnBroken) -> Values:
    for number, item in json_items(path):
        try:
            values = _json_values(item, names, options, path, number)
        except InputError as error:
            on_broken(error)
            continue
        yield number, values


def json_items(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file that is one JSON list, each with the line it begins on.

    Raises:
        InputError: the file is no such list; the line is named.
    """
    text = "\n".join(line for _, line in read_lines(path, max_line_mib=_LONGEST_LIST_MIB))
    decoder = json.JSONDecoder()
    at = _after_space(text, 0)
    line = 1 + text.count("\n", 0, at)
    if text[at : at + 1] != "[":
        problem = "is no JSON list; it must begin with '[' (one object a line: name it .jsonl)."
        raise InputError(problem, path=path, line=line)
    first = True
    while not (first and text.startswith("]", _after_space(text, at + 1))):
        start = _after_space(text, at + 1)
        line += text.count("\n", at, start)
        try:
            item, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise InputError(f"is not JSON ({error}).", path=path, line=line) from None
        if not isinstance(item, dict):
            problem = f"the list holds {text[start : start + 40]!r}; it must hold objects {{...}}."
            raise InputError(problem, path=path, line=line)
        yield line, item
        at = _after_space(text, end)
        line += text.count("\n", start, at)
        if text[at : at + 1] == "]":
            return
        if text[at : at + 1] != ",":
            problem = "the list breaks off here; ',' or ']' must follow an object."
            raise InputError(problem, path=path, line=line)
        first = False


def _after_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def json_object(line: str, path: Path, number: int) -> dict[str, Any]:
    """The object on a line of a JSONL file.

    Raises:
        InputError: it is none.
    """
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON ({error}).", path=path, line=number) from None
    if not isinstance(item, dict):
        raise InputError(
            f"is JSON but not an object; write one {{...}} a line, got {line[:40]!r}.",
            path=path,
            line=number,
        )
    return item


def _json_values(
    item: dict[str, Any], names: list[str], options: TaskOptions, path: Path, number: int
) -> list[str]:
    values = []
    for name in names:
        holder, key = item, name
        while key not in holder and "." in key and isinstance(holder.get(key.split(".")[0]), dict):
            group, _, key = key.partition(".")
            holder = holder[group]
        if holder.get(key) is None:
            problem = "is null" if key in holder else "is missing"
            raise InputError(
                f"key {name!r} {problem}; the keys are {listed(list(holder))}."
                f"{nearest(key, holder) if key not in holder else ''}",
                path=path,
                line=number,
            )
        value, as_text = holder[key], _json_label if name == options.label else json_text
        if isinstance(value, list) and name in options.choices:
            value = json.dumps(value)
        values.append(as_text(value, name, path, number))
    return values


def json_text(value: Any, name: str, path: Path, number: int) -> str:
    """A text out of a JSON value: a string that can be written down, and has no NULs.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, str):
        raise InputError(
            f"key {name!r} holds {json.dumps(value)[:40]}; a text is a string.",
            path=path,
            line=number,
        )
    if "\0" in value:
        raise InputError(_NUL, path=path, line=number)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"key {name!r} holds half of a surrogate pair (\\u{ord(value[error.start]):04x}); "
            "write the whole pair or the character itself.",
            path=path,
            line=number,
        ) from None
    return value


def _json_label(value: Any, name: str, path: Path, number: int) -> str:
    if isinstance(value, str):
        return json_text(value, name, path, number)
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    raise InputError(
        f"key {name!r} holds {json.dumps(value)[:40]}; a label is a string, a number, true or "
        "false.",
        path=path,
        line=number,
    )


_READERS: dict[str, Callable[[Path, list[str], TaskOptions, OnBroken], Values]] = {
    ".tsv": _tsv_rows,
    ".csv": _csv_rows,
    ".txt": _tsv_rows,
    ".jsonl": _jsonl_rows,
    ".json": _json_rows,
}


# ---------------------------------------------------------------------------------------- checks


def clean_label(text: str, path: Path, number: int) -> str:
    """A label without the white space around it.

    Raises:
        InputError: it is empty, or holds what a TSV file cannot.
    """
    label = text.strip()
    if not label:
        raise InputError("the label is empty.", path=path, line=number)
    if "\t" in label or "\n" in label or "\r" in label:
        raise InputError(
            f"the label {label!r} holds a tab or line break, which predictions (.tsv) cannot.",
            path=path,
            line=number,
        )
    return label


def _check_filled(rows: Rows, options: TaskOptions) -> None:
    if not len(rows):
        raise InputError("holds a header and no example.", path=rows.path)
    columns = [(options.text_a, rows.a)]
    if options.text_b is not None and rows.b is not None:
        columns.append((options.text_b, rows.b))
    for name, texts in columns:
        if len(rows) > 1 and not any(text.strip() for text in texts):
            raise InputError(
                f"every text in column {name!r} is empty; most likely it is not the column meant.",
                path=rows.path,
            )
