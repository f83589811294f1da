"""Objects of JSONL files, one per line, and of JSON files, which are one list of objects.

A key of a nested object is written with dots (``labels.label``).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bothways.errors import InputError
from bothways.io.broken import LIST, Broken
from bothways.io.lines import (
    Layout,
    MissingColumnError,
    Values,
    did_you_mean,
    listed,
    text_lines,
)
from bothways.io.text import read_lines, read_whole

_NUL = "holds a NUL character; the file is damaged or not text (UTF-16?). Convert it to UTF-8."


def read_json_file(path: Path) -> Any:
    """The content of a JSON file, with or without a byte order mark.

    Raises:
        InputError: no such file, not UTF-8, or not JSON, with the line.
    """
    try:
        return json.loads(read_whole(path))
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON ({error.msg}).", path=path, line=error.lineno) from None
    except ValueError:  # Python reads no whole number that is longer
        limit = sys.get_int_max_str_digits()
        raise InputError(f"holds a number of more than {limit:,} digits.", path=path) from None
    except RecursionError:
        raise InputError("is nested too deeply.", path=path) from None


def jsonl_rows(path: Path, names: list[str], layout: Layout, broken: Broken) -> Values:
    """:func:`bothways.io.tables.read_table` for a JSONL file."""
    for number, line in text_lines(path):
        if not line.strip():
            continue
        try:
            item = json_object(line, path, number)
            values = _json_values(item, names, layout, path, number)
        except InputError as error:
            broken.leave_out(error)
            continue
        yield number, values


def json_rows(path: Path, names: list[str], layout: Layout, broken: Broken) -> Values:
    """:func:`bothways.io.tables.read_table` for a JSON file."""
    for number, item in json_items(path):
        try:
            values = _json_values(item, names, layout, path, number)
        except InputError as error:
            broken.leave_out(error)
            continue
        yield number, values


def json_items(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file that is one JSON list, each with the line it begins on.

    Raises:
        InputError: the file is not such a list; the line is named.
    """
    text = "\n".join(line for _, line in read_lines(path, limit=LIST))
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
    item: dict[str, Any], names: list[str], layout: Layout, path: Path, number: int
) -> list[str]:
    values = []
    for name in names:
        value = json_value(item, name, path, number)
        as_text = _json_label if name in layout.labels else json_text
        if isinstance(value, list) and name in layout.lists:
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
    if key not in holder:
        raise MissingColumnError(
            f"key {name!r} is missing; the keys are {listed(list(holder))}."
            f"{did_you_mean(key, holder)}",
            list(holder),
            path=path,
            line=number,
        )
    if holder[key] is None:
        raise InputError(
            f"key {name!r} is null; the keys are {listed(list(holder))}.", path=path, line=number
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


def json_list(text: str) -> list[Any] | None:
    """The values of a JSON list in a column; None if it is none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, list) else None


def json_texts(text: str, name: str, path: Path, line: int) -> list[str]:
    """The texts of a JSON list in a column.

    Raises:
        InputError: it is not a list of texts.
    """
    values = json_list(text)
    if values is not None and all(isinstance(value, str) for value in values):
        return [json_text(value, name, path, line) for value in values]
    raise InputError(
        f"column {name!r} holds {text[:40]!r}; as the only column of choices it must hold them as "
        'a JSON list of texts, ["one", "two"].',
        path=path,
        line=line,
    )


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
