"""Labelled and unlabelled examples from TSV, CSV, JSONL and JSON files.

TSV is read as GLUE writes it: only tabs and line feeds are special. Quotation marks are text (MRPC
has unbalanced ones), there is no escaping, and lines end only at line feeds, so that other Unicode
line separators stay inside a text. CSV is comma-separated with real quoting: a field in quotation
marks may hold commas, line breaks and doubled quotation marks. JSONL has one object per line, JSON
a list of objects; a key of a nested object is written with dots (``labels.label``).

All are UTF-8, with or without a byte order mark, with LF or CRLF. Blank lines at the end are
ignored, but a line of tabs is a row of a TSV file whose columns are empty. An empty text is an
example like any other (files to predict need one answer per line); how many there are is reported,
and a column in which every text is empty is refused.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from bothways.config import TaskOptions
from bothways.errors import ConfigError, InputError
from bothways.text_files import LONGEST_TEXT_MIB, read_lines, read_texts

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
        b: the second text of each; None if the task has single texts.
        labels: the label or score of each, as written; None if the file was read without labels.
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
        path: a ``.tsv`` (or ``.txt`` of the same form), ``.csv``, ``.jsonl`` or ``.json`` file.
        options: which columns hold texts and label, whether a TSV file has a header, and what to do
            with broken lines.
        labelled: read the label too. If not, the file needs no label column.

    Raises:
        InputError: the file or a line of it cannot be read as requested; file and line are named.
        ConfigError: a column that should be a number but is not.
    """
    path = Path(path)
    names = [options.text_a]
    if options.text_b is not None:
        names.append(options.text_b)
    if labelled:
        names.append(options.label)
    rows = Rows(path, b=None if options.text_b is None else [], labels=[] if labelled else None)
    on_broken = broken_line_handler(options, rows.broken, labelled=labelled)
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
    texts = {options.text_a: rows.a}
    if options.text_b is not None and rows.b is not None:
        texts[options.text_b] = rows.b
    check_not_empty(path, texts)
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
        InputError: the file cannot be read as requested.
        ConfigError: a column that should be a number but is not.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"examples are read from {', '.join(_READERS)} files, not from "
            f"{path.suffix or 'this'!r}; rename it if it has one of these formats.",
            path=path,
        )
    yield from reader(path, names, options, on_broken)


def broken_line_handler(options: TaskOptions, skipped: list[int], *, labelled: bool) -> OnBroken:
    """What to do with a line that cannot be read.

    Args:
        options: whether to skip such lines or to stop.
        skipped: the numbers of skipped lines are added to it.
        labelled: the file has labels. In a file to predict a broken line is always an error,
            because every line needs its answer.
    """

    def skip(error: InputError) -> None:
        skipped.append(error.line or 0)

    def stop(error: InputError) -> NoReturn:
        raise error

    return skip if labelled and options.broken == "skip" else stop


def broken_note(path: Path, lines: Sequence[int]) -> list[str]:
    """A sentence about lines that were left out, if there are any."""
    if not lines:
        return []
    numbers = ", ".join(map(str, lines[:8])) + (" ..." if len(lines) > 8 else "")
    return [f"{path.name}: {len(lines):,} broken lines were left out: {numbers}"]


def text_lines(path: Path, *, tabs: bool = False) -> list[Line]:
    """The lines of a UTF-8 file with their numbers from 1, without blank lines at the end.

    Args:
        path: the file.
        tabs: tabs separate columns, so a line of tabs is not blank.

    Raises:
        InputError: no such file, no text in it, broken UTF-8, a NUL, or an enormous line.
    """
    lines = list(read_texts(path))
    while lines and not lines[-1][1].strip() and not (tabs and "\t" in lines[-1][1]):
        lines.pop()
    if not lines:
        raise InputError("is empty; it needs one example per line.", path=path)
    return lines


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint " Did you mean 'x'?" with the known name most like this one; empty if none is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Names for a message: quoted, with long names and long lists shortened."""
    quoted = [repr(n if len(n) <= 30 else n[:27] + "...") for n in names[:limit]]
    return ", ".join(quoted) + (f" and {len(names) - limit} more" if len(names) > limit else "")


# A JSON list may be a single line, and is read into memory whole.
_LONGEST_LIST_MIB = 1024.0
_NO_LIST = ", too long a list to be read at once. Write one object per line, in a .jsonl file."
_NUL = "holds a NUL character; the file is damaged or not text (UTF-16?). Convert it to UTF-8."


# ----------------------------------------------------------------------------------- TSV and CSV


def _tsv_rows(path: Path, names: list[str], options: TaskOptions, on_broken: OnBroken) -> Values:
    records = ((number, line.split("\t")) for number, line in text_lines(path, tabs=True))
    hint = (
        "tab-separated columns where line 1 has {}; a text may not hold tabs or line breaks, and "
        "quotation marks do not protect them."
    )
    return _table_rows(records, path, names, options, on_broken, hint)


def _csv_rows(path: Path, names: list[str], options: TaskOptions, on_broken: OnBroken) -> Values:
    hint = (
        "comma-separated columns where line 1 has {}; a text with commas or line breaks must be in "
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
    finally:
        csv.field_size_limit(limit)  # the limit is global to the process


def _table_rows(
    records: Values,
    path: Path,
    names: list[str],
    options: TaskOptions,
    on_broken: OnBroken,
    hint: str,
) -> Values:
    """The named columns of all rows that have as many columns as line 1."""
    start, first = next(records)
    if options.columns and not has_header(first, names):
        columns = _columns_declared(path, names, options.columns, len(first))
        records = chain([(start, first)], records)
    elif options.header or options.columns:
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
        raise InputError(
            f"the header {problem} the column {name!r}; the columns are {listed(header)}."
            f"{did_you_mean(name, header) if name not in header else ''} (If line 1 is already "
            "an example, set task.header to false and name columns by number, from 0.)",
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
        InputError: the file is not such a list; the line is named.
    """
    lines = read_lines(path, max_line_mib=_LONGEST_LIST_MIB, too_long=_NO_LIST)
    text = "\n".join(line for _, line in lines)
    decoder = json.JSONDecoder()
    position = _skip_space(text, 0)
    line = 1 + text.count("\n", 0, position)
    if not text.startswith("[", position):
        problem = (
            "is not a JSON list; it must begin with '[' (name a file with one object per line "
            ".jsonl)."
        )
        raise InputError(problem, path=path, line=line)
    end = _skip_space(text, position + 1)
    if text.startswith("]", end):
        _refuse_more(text, end + 1, path)
        return
    while True:  # position is that of '[' or of a comma
        start = _skip_space(text, position + 1)
        line += text.count("\n", position, start)
        try:
            item, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise InputError(f"is not JSON ({error}).", path=path, line=line) from None
        if not isinstance(item, dict):
            problem = f"the list holds {text[start : start + 40]!r}; it must hold objects {{...}}."
            raise InputError(problem, path=path, line=line)
        yield line, item
        position = _skip_space(text, end)
        line += text.count("\n", start, position)
        if text.startswith("]", position):
            _refuse_more(text, position + 1, path)
            return
        if not text.startswith(",", position):
            problem = "the list breaks off here; ',' or ']' must follow an object."
            raise InputError(problem, path=path, line=line)


def _refuse_more(text: str, end: int, path: Path) -> None:
    """Refuse anything but white space after the list, which ends before ``end``."""
    more = _skip_space(text, end)
    if more < len(text):
        raise InputError(
            f"{text[more : more + 40]!r} follows the end of the list; a file holds one list (were "
            "two files joined? Join their lists into one).",
            path=path,
            line=1 + text.count("\n", 0, more),
        )


def _skip_space(text: str, position: int) -> int:
    """The next position that holds no white space."""
    while text[position : position + 1].isspace():
        position += 1
    return position


def json_object(line: str, path: Path, number: int) -> dict[str, Any]:
    """The object on a line of a JSONL file.

    Raises:
        InputError: the line is not a JSON object.
    """
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON ({error}).", path=path, line=number) from None
    if not isinstance(item, dict):
        raise InputError(
            f"is JSON but not an object; write one {{...}} per line, got {line[:40]!r}.",
            path=path,
            line=number,
        )
    return item


def _json_values(
    item: dict[str, Any], names: list[str], options: TaskOptions, path: Path, number: int
) -> list[str]:
    values = []
    for name in names:
        value = json_value(item, name, path, number)
        as_text = _json_label if name == options.label else json_text
        if isinstance(value, list) and name in options.choices:
            value = json.dumps(value)
        values.append(as_text(value, name, path, number))
    return values


def json_value(item: dict[str, Any], name: str, path: Path, number: int) -> Any:
    """The value of a key, or of a dotted key of nested objects.

    Raises:
        InputError: there is none, or it is null.
    """
    holder, key = item, name
    while key not in holder and "." in key and isinstance(holder.get(key.split(".")[0]), dict):
        group, _, key = key.partition(".")
        holder = holder[group]
    if holder.get(key) is None:
        problem = "is null" if key in holder else "is missing"
        raise InputError(
            f"key {name!r} {problem}; the keys are {listed(list(holder))}."
            f"{did_you_mean(key, holder) if key not in holder else ''}",
            path=path,
            line=number,
        )
    return holder[key]


def json_text(value: Any, name: str, path: Path, number: int) -> str:
    """The text in a JSON value.

    Raises:
        InputError: it is not a string, or has a NUL or half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise InputError(
            f"key {name!r} holds {json.dumps(value)[:40]}; a text is a string.",
            path=path,
            line=number,
        )
    if "\0" in value:
        raise InputError(_NUL, path=path, line=number)
    if problem := surrogate_problem(value):
        raise InputError(f"key {name!r} {problem}", path=path, line=number)
    return value


def surrogate_problem(text: str) -> str:
    """What is wrong with a text out of JSON that cannot be encoded as UTF-8; empty if it can."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return (
            f"holds half of a surrogate pair (\\u{ord(text[error.start]):04x}); write the whole "
            "pair or the character itself."
        )
    return ""


def _json_label(value: Any, name: str, path: Path, number: int) -> str:
    if isinstance(value, str):
        return json_text(value, name, path, number)
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(
            f"key {name!r} holds {json.dumps(value)}; a missing label must be filled in, or "
            "its line left out.",
            path=path,
            line=number,
        )
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
    """A label without surrounding white space.

    Raises:
        InputError: it is empty, or holds a tab or line break, which a TSV file cannot.
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


def check_not_empty(path: Path, columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse a file without examples, or with several but no text in one of the columns.

    Args:
        path: the file.
        columns: the texts of all examples, by column.

    Raises:
        InputError: there are none, with the column.
    """
    for name, texts in columns.items():
        if not texts:
            raise InputError("has no examples.", path=path)
        if len(texts) > 1 and not any(text.strip() for text in texts):
            raise InputError(
                f"every text in column {name!r} is empty; most likely this is the wrong column.",
                path=path,
            )
