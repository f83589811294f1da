"""Items of JSON files: JSON lines, a list, or an object that holds a list or columns.

The content decides which of these a file is, not its name. A list is decoded item by item, so it
may be larger than memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from bothways.errors import InputError, Place
from bothways.io.broken import Broken, Limit
from bothways.io.rows import Item, table_suffix
from bothways.io.text import beginning, open_text, read_lines, read_whole

_SAMPLE = 2**16  # characters
_LONGEST = Limit(64.0, ", too long for an object of JSON lines.")
_BETWEEN = re.compile(r"\s*(,?)\s*")
_FAILURES = (ValueError, RecursionError)


class KeyTwiceError(ValueError):
    """An object has a key twice, of which JSON's readers take the last in silence."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise KeyTwiceError(f"an object has the key {twice!r} twice")
    return found


_decode = json.JSONDecoder().raw_decode
_decode_pairs = json.JSONDecoder(object_pairs_hook=_object).decode
_KEY = re.compile(r'"\s*:')


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, or an object has a key twice.
        RecursionError: it is nested too deeply.
    """
    if text.startswith("{"):
        value, end = _decode(text)
        # A flat object has as many colons behind quotation marks as keys, if it has none twice.
        if len(_KEY.findall(text)) == len(value) and not text[end:].strip():
            return value
    return _decode_pairs(text)


def _not_json(error: Exception, place: Place) -> InputError:
    why = getattr(error, "msg", "") or str(error)
    return InputError(f"is not JSON: {why}.", place=place)


def json_items(path: Path, encoding: str, broken: Broken) -> Iterator[Item]:
    """The items of a JSON file, each with the line it begins on; those of a list on one line, of
    columns, or of a list within an object, with their number from 1.

    Args:
        path: the file.
        encoding: of the file.
        broken: what to do with lines of JSON lines that cannot be read.

    Raises:
        InputError: it is not JSON, or has no items; the line is named.
    """
    empty = True
    for item in _items(path, encoding, broken):
        empty = False
        yield item
    if empty and not broken.left_out:
        raise InputError("has no examples.", place=Place(path))


def _items(path: Path, encoding: str, broken: Broken) -> Iterator[Item]:
    head = beginning(path, encoding).lstrip("\ufeff \t\r\n")
    form = _form(head, table_suffix(path) != ".json")
    if form == "list":
        with open_text(path, encoding=encoding) as (_, file):
            text = TextIOWrapper(cast(BinaryIO, file), "utf-8", newline="\n")
            try:
                yield from _list_items(text, Place(path), in_lines="\n" in head.strip())
            except UnicodeDecodeError:
                read_whole(path)  # names the line
                raise
    elif form == "object":
        yield from _document_items(read_json_file(path, encoding), Place(path))
    else:
        lines = read_lines(path, encoding=encoding, limit=_LONGEST, broken=broken)
        for number, line in lines:
            if line and not line.isspace():
                try:
                    yield Place(path, number), parse_json(line)
                except _FAILURES as error:
                    broken.leave_out(_not_json(error, Place(path, number)))


def _form(head: str, named_lines: bool) -> Literal["lines", "list", "object"]:
    """The form of a file, by its first value.

    Args:
        head: the beginning of its text.
        named_lines: whether its name is that of JSON lines.
    """
    if not head.startswith(("[", "{")):
        return "lines" if named_lines else "list"
    whole: Literal["list", "object"] = "list" if head.startswith("[") else "object"
    try:
        value, end = _decode(head)
    except _FAILURES:  # it goes on behind the sample, or is broken
        first = head.partition("\n")[0].strip()
        return "lines" if named_lines and first not in ("[", "{", "[{") else whole
    if isinstance(value, dict):
        return "lines" if named_lines or head[end:].strip() else "object"
    pair = len(value) == 2 and isinstance(value[0], str)
    return "lines" if head[end:].strip() or (named_lines and pair) else "list"


def read_json_file(path: Path, encoding: str = "") -> Any:
    """The value of a JSON file.

    Raises:
        InputError: it cannot be read, or is not JSON, with the line.
    """
    try:
        return _decode_pairs(read_whole(path, encoding=encoding))
    except json.JSONDecodeError as error:
        raise _not_json(error, Place(path, error.lineno)) from None
    except _FAILURES as error:
        raise _not_json(error, Place(path)) from None


def _list_items(file: TextIOWrapper, place: Place, *, in_lines: bool) -> Iterator[Item]:
    """The items of a list, decoded one at a time.

    Args:
        file: from its beginning.
        place: of the file.
        in_lines: whether items have lines; if not, they have numbers.
    """
    buffer, number, line = file.read(_SAMPLE), 0, 1
    at = buffer.find("[") + 1
    line += buffer.count("\n", 0, at)
    while True:
        between = cast(re.Match[str], _BETWEEN.match(buffer, at))
        start, here = between.end(), line + buffer.count("\n", at, between.end())
        if buffer.startswith("]", start) and not between[1]:
            if (buffer[start + 1 :] + file.read()).strip():
                raise InputError("text follows the end of the list.", place=_at(place, here))
            return
        if start < len(buffer) and bool(between[1]) != bool(number):
            raise InputError("is not JSON: expecting ',' or ']'.", place=_at(place, here))
        try:
            item, end = _decode(buffer, start)
            if end == len(buffer) and not isinstance(item, dict | list | str):
                raise ValueError  # a number that may go on
            if not isinstance(item, dict) or len(_KEY.findall(buffer, start, end)) != len(item):
                item = _decode_pairs(buffer[start:end])
        except KeyTwiceError as error:
            raise _not_json(error, _at(place, here)) from None
        except _FAILURES as error:
            if not (more := file.read(max(_SAMPLE, len(buffer) - at))):
                raise _not_json(error, _at(place, here)) from None
            buffer, at = buffer[at:] + more, 0
            continue
        number += 1
        yield _at(place, here if in_lines else number), item
        line = here + buffer.count("\n", start, end)
        at = end


def _at(place: Place, row: int) -> Place:
    return Place(place.source, row)


_DATA = "data"


def _document_items(value: Any, place: Place) -> Iterator[Item]:
    """The items of an object: of its list ``data`` or its only list of objects, its columns, or
    itself."""
    lists = [
        name
        for name, one in value.items()
        if isinstance(one, list) and one and isinstance(one[0], dict)
    ]
    sizes = {
        (type(one), len(one)) if isinstance(one, list | dict) else () for one in value.values()
    }
    if len(value) > 1 and len(sizes) == 1 and () not in sizes:
        yield from _column_items(value, place)
    elif (_DATA in lists or len(lists) == 1) and not isinstance(value.get("text"), str):
        name = _DATA if _DATA in lists else lists[0]
        for number, item in enumerate(value[name], 1):
            yield _at(place, number), item
    else:
        yield _at(place, 1), value


def _column_items(columns: Mapping[str, Any], place: Place) -> Iterator[Item]:
    """The rows of columns, which are lists, or objects with a key for each row, as pandas writes
    them."""
    first = next(iter(columns.values()))
    keys = [*first] if isinstance(first, dict) else range(len(first))
    for number, key in enumerate(keys, 1):
        row = {
            name: column.get(key) if isinstance(column, dict) else column[key]
            for name, column in columns.items()
        }
        yield _at(place, number), row
