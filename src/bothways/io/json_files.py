"""Objects of JSONL files, one per line, and of JSON files, which are one list of objects.

Files that are the one by name and the other by content are read as what they are, and so are those
that wrap their list in an object, or hold columns; it is remarked. A key of a nested object is
written with dots (``labels.label``).
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

from bothways.errors import InputError, Place
from bothways.io.annotations.choices import chosen_row
from bothways.io.broken import LIST, TEXT, Broken
from bothways.io.frames import NoValue, frame_objects, is_frame
from bothways.io.lines import (
    Layout,
    MissingColumnError,
    Values,
    as_json,
    did_you_mean,
    listed,
    python_spelling,
    stream_lines,
)
from bothways.io.terminal import counted
from bothways.io.text import beginning, read_lines, read_whole

_NUL = "holds a NUL character; the file is damaged or not text (UTF-16?). Convert it to UTF-8."


def read_json_file(path: Path) -> Any:
    """The content of a JSON file, with or without a byte order mark.

    Raises:
        InputError: no such file, not UTF-8, or not JSON, with the line.
    """
    text = read_whole(path)
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        hint = python_spelling(text, whole=True)
        raise InputError(
            f"is not JSON ({error.msg}).{hint}", place=Place(path, error.lineno)
        ) from None
    except _KeyTwiceError as error:
        raise InputError(f"{error}.", place=Place(path)) from None
    except ValueError as error:
        raise InputError(f"holds {_why(error)}.", place=Place(path)) from None
    except RecursionError:
        raise InputError("is nested too deeply.", place=Place(path)) from None


def _why(error: Exception) -> str:
    """Why a text cannot be read as JSON, without the words of Python's own."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError | _KeyTwiceError):
        return str(error)
    return f"a number of more than {sys.get_int_max_str_digits():,} digits"  # Python reads none


def json_rows(path: Path, names: list[str], layout: Layout, broken: Broken) -> Values:
    """:func:`bothways.io.tables.read_table` for a JSON or JSONL file."""
    rejected = 0
    any_row = False
    first: tuple[int, list[str]] | None = None
    for number, item in json_objects(path, broken):
        try:
            if not isinstance(item, dict):
                raise _not_an_object(item, path, labelled=layout.labelled)
            row = chosen_row(item, labelled=layout.labelled)
            if row is None:
                rejected += 1
                continue
            values = _json_values(row, names, layout)
        except InputError as error:
            if isinstance(error, MissingColumnError):
                if first is not None:
                    error.problem += (
                        f" Line {first[0]} has it, with {listed(first[1])}; give all examples the "
                        "same keys."
                    )
                elif error.missing == names[0] or error.missing in layout.labels:
                    error.problem += f" {_which_keys(item, path)}"
            broken.leave_out(error, Place(path, number))
            continue
        any_row = True
        first = first or (number, list(row))
        yield number, values
    if rejected and not any_row:
        raise InputError(
            "has no examples that were annotated; predictions of a tool, and what the annotator "
            "rejected or skipped, have no labels.",
            place=Place(path),
        )
    if rejected:
        broken.remark(
            f"{counted(rejected, 'example')} that the annotator rejected or skipped: left out"
        )


def _which_keys(item: dict[str, Any], path: Path) -> str:
    """What to do where an object lacks a key of text or label."""
    chat = item.get("messages", item.get("conversations"))
    if isinstance(chat, list) and chat and all(isinstance(one, dict) for one in chat):
        name = "messages" if "messages" in item else "conversations"
        of_text = next((n for n in ("content", "value") if n in chat[0]), "content")
        return (
            "It is a dialogue; to have its last question as the text and its answer as the label: "
            f"python3 -c \"import json, sys; [print(json.dumps({{'text': m[-2]['{of_text}'], "
            f"'label': m[-1]['{of_text}']}})) for m in (row['{name}'] for row in {_all_of(path)})]"
            '" < OLD > NEW.jsonl.'
        )
    values = [*item.values()]
    values += [one for value in values if isinstance(value, dict) for one in value.values()]
    if any(isinstance(value, str) for value in values):
        return (
            "Name yours: --text KEY and --label KEY, in Python text= and label= "
            "(`finetune`, `evaluate` and `export`; `predict` and `embed` read no labels)."
        )
    return 'No key has a text; write an object for each: {"text": ..., "label": ...}.'


def json_objects(path: Path, broken: Broken) -> Iterator[tuple[int, Any]]:
    """What a JSON or JSONL file has for each example, whatever its form; and the rows of a
    spreadsheet, a Parquet file or a data set's folder (:mod:`bothways.io.frames`).

    A file is one object per line, one list, or one object that holds such a list (``data``,
    ``rows`` ...) or columns; its name says which of the first two is expected, and it is remarked
    if the other is found.

    Args:
        path: the file.
        broken: what to do with lines that are no JSON.

    Yields:
        The line that it begins on (its number from 1, of a list on one line, of columns and of rows
        without lines), and an object, or whatever a list holds.

    Raises:
        InputError: the file is none of these; the line is named.
    """
    if is_frame(path):
        yield from frame_objects(path, broken)
        return
    form = _form(path)
    by_name = "lines" if path.suffix.lower() != ".json" else "list"
    if form == "lines":
        if by_name == "list":
            broken.remark("it is JSON lines, one object per line, though its name ends in .json")
        yield from _line_objects(path, broken)
    elif form == "list":
        if by_name == "lines":
            broken.remark("it is one JSON list, though its name is that of JSON lines")
        yield from json_items(path)
    else:
        yield from _wrapped(path, broken)


def in_json_lines(path: Path) -> bool:
    """Whether a file has one object per line, whatever its name says."""
    return _form(path) == "lines"


def _form(path: Path) -> Literal["lines", "list", "object"]:
    """Which form the beginning of a file has; that of its name if it cannot be told."""
    lines_expected = path.suffix.lower() != ".json"
    lines = [line for line in beginning(path).split("\n") if line.strip()]
    first = lines[0].strip() if lines else ""
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict | list):
        if first.startswith("[") and (not lines_expected or not first.endswith("]")):
            return "list"
        if first.startswith("{") and (first == "{" or not lines_expected):
            return "object"
        return "lines" if lines_expected else "list"
    if len(lines) > 1:
        # A list after a list on a line of its own is what joined files have, but for pairs.
        pairs = isinstance(value, dict) or (len(value) == 2 and isinstance(value[0], str))
        return "lines" if pairs or lines_expected else "list"
    if isinstance(value, list):
        pair = len(value) == 2 and isinstance(value[0], str)
        return "lines" if lines_expected and (pair or not value) else "list"
    return "lines" if lines_expected and not _holds_records(value) else "object"


def _holds_records(value: dict[str, Any]) -> bool:
    return _list_of_records(value) is not None and len(value) < 4


def _is_example(value: dict[str, Any]) -> bool:
    """Whether an object is a task of Label Studio, or a text with its annotations."""
    return isinstance(value.get("data"), dict) or isinstance(value.get("text"), str)


def _take_list(item: dict[str, Any]) -> str:
    """How to have the examples of an object as a list."""
    name = next((name for name, value in item.items() if isinstance(value, list) and value), None)
    if name is None:
        return "Write a list [...], or one object per line in a .jsonl file."
    return (
        f'If {name!r} holds the examples, take it out: python3 -c "import json, sys; '
        f'print(json.dumps(json.load(sys.stdin)[{name!r}]))" < OLD > NEW.json.'
    )


def _list_of_records(value: dict[str, Any]) -> str | None:
    """The key of an object's list of examples; None if it has none, or is an example."""
    if _is_example(value):
        return None
    return next((n for n in _RECORDS if isinstance(value.get(n), list) and value[n]), None)


_RECORDS = ("data", "rows", "records", "examples", "items", "instances", "annotations", "results")
"""Names under which files keep their list of objects."""


_DEPTH = 3  # objects within objects


def _nested_records(item: dict[str, Any], path: Path) -> tuple[str, list[Any]] | None:
    """The name, with dots, and the content of the only list of examples in an object, wherever it
    stands; None if there is none.

    Raises:
        InputError: there are several.
    """
    if _is_example(item):
        return None
    found = [*_lists_of_records(item, "", _DEPTH)]
    if len(found) > 1:
        first = found[0][0]
        place = "".join(f"[{name!r}]" for name in first.split("."))
        raise InputError(
            f"holds {len(found)} lists of examples, {listed([name for name, _ in found])}; write "
            'each to a file: python3 -c "import json, sys; print(json.dumps(json.load(sys.stdin)'
            f'{place}))" < OLD > NEW.json (for {first!r}).',
            place=Place(path),
        )
    return found[0] if found and not (len(item) > 1 and _has_columns(item)) else None


def _lists_of_records(
    item: dict[str, Any], before: str, depth: int
) -> Iterator[tuple[str, list[Any]]]:
    for name, value in item.items():
        if isinstance(value, dict) and depth > 1:
            yield from _lists_of_records(value, f"{before}{name}.", depth - 1)
        elif (
            isinstance(value, list)
            and value
            and all(isinstance(one, dict) and _USUAL & one.keys() for one in value)
        ):
            yield f"{before}{name}", value


def _line_objects(path: Path, broken: Broken) -> Iterator[tuple[int, Any]]:
    commas = 0
    for number, line in stream_lines(path, broken=broken):
        if not line.strip():
            continue
        try:
            whole = without_comma(line)
            commas += whole != line
            item = _parsed_line(whole)
            if not isinstance(item, dict | list):
                raise _not_an_object(line, path)
        except InputError as error:
            broken.leave_out(error, Place(path, number))
            continue
        yield number, item
    if commas:
        broken.remark(f"{commas:,} lines end in a comma, which is left out")


def _if_several(line: str) -> str:
    """What to do with a line that holds several objects; empty if it does not."""
    try:
        _, end = json.JSONDecoder().raw_decode(line.lstrip())
    except (ValueError, RecursionError):
        return ""
    rest = line.lstrip()[end:].lstrip(", ")
    if not rest.startswith("{"):
        return ""
    return (
        " It holds several objects; write one on each line: sed 's/} *,* *{\"/}\\n{\"/g' "
        "OLD > NEW.jsonl."
    )


def without_comma(line: str) -> str:
    """A line of JSON lines without the comma behind its object, which some programs write."""
    text = line.rstrip()
    return text[:-1] if text.endswith("},") else line


def _parsed_line(line: str) -> Any:
    try:
        return parse_json(line)
    except (ValueError, RecursionError) as error:
        hint = python_spelling(line, whole=False) or _if_several(line)
        raise InputError(f"is not JSON ({_why(error)}).{hint}") from None


def _wrapped(path: Path, broken: Broken) -> Iterator[tuple[int, Any]]:
    """The examples of a file that is one object, or several that are not on lines of their own."""
    text = "\n".join(line for _, line in read_lines(path, limit=LIST))
    objects = _one_after_another(text, path)
    if len(objects) > 1:
        broken.remark(f"it is {len(objects):,} objects one after another")
        yield from objects
        return
    ((line, item),) = objects
    if (name := _list_of_records(item)) is not None:
        broken.remark(f"its {len(item[name]):,} examples are the list {name!r} of one object")
        yield from _records(item, name, text, line, path, broken)
    elif (found := _nested_records(item, path)) is not None:
        name, rows = found
        broken.remark(f"its {len(rows):,} examples are the list {name!r} of one object")
        yield from enumerate(rows, start=1)
    elif _are_rows(item):
        broken.remark(f"it is one object, whose {len(item):,} keys have an example each")
        yield from enumerate(({"id": key, **row} for key, row in item.items()), start=1)
    elif _has_columns(item):
        broken.remark(f"it has columns, not rows: {listed(list(item))}")
        yield from enumerate(_rows_of_columns(item), start=1)
    elif path.suffix.lower() != ".json" or _is_example(item):
        yield line, item
    elif all(isinstance(value, str | int | float) for value in item.values()) and len(item) > 1:
        longest = max(item.items(), key=lambda pair: len(pair[0]) + len(str(pair[1])))
        raise InputError(
            f"is one object with a value under each of its {len(item):,} keys; if they are texts "
            f"and labels, {_to_objects(longest, 'json.load(sys.stdin).items()')}.",
            place=Place(path, line),
        )
    else:
        raise InputError(
            "is not a JSON list, nor an object with one "
            f"({', '.join(_RECORDS[:4])}) or with columns; its keys are {listed(list(item))}. "
            f"{_take_list(item)}",
            place=Place(path, line),
        )


def _one_after_another(text: str, path: Path) -> list[tuple[int, Any]]:
    """The values of a text with the lines they begin on; a comma may stand between two."""
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    found = []
    position = _skip_space(text, 0)
    line = 1 + text.count("\n", 0, position)
    while position < len(text):
        try:
            item, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            hint = python_spelling(text, whole=True)
            raise InputError(
                f"is not JSON ({_why(error)}).{hint}", place=Place(path, line)
            ) from None
        found.append((line, item))
        end = _skip_space(text, end)
        end = _skip_space(text, end + 1) if text.startswith(",", end) else end
        line += text.count("\n", position, end)
        position = end
    return found


def _records(
    item: dict[str, Any], name: str, text: str, line: int, path: Path, broken: Broken
) -> Iterator[tuple[int, Any]]:
    """The list of examples that an object has under a name, each with its line (its number, if all
    is on one line); lists of values with the names that the object has for them (``columns``)."""
    values, names = item[name], item.get("columns")
    lines = _lines_of_list(text, name, len(values)) or [line] * len(values)
    if "\n" not in text.strip():
        lines = [*range(1, len(values) + 1)]
    if not (isinstance(names, list) and all(isinstance(value, list) for value in values)):
        yield from zip(lines, values, strict=True)
        return
    names = [str(one) for one in names]
    for number, value in zip(lines, values, strict=True):
        if len(value) == len(names):
            yield number, dict(zip(names, value, strict=True))
        else:
            problem = f"has {len(value)} values for {len(names)} columns ({listed(names)})."
            broken.leave_out(InputError(problem, place=Place(path, number)))


def _all_of(path: Path) -> str:
    """What has the objects of a file that stands in standard input, in Python."""
    return "map(json.loads, sys.stdin)" if in_json_lines(path) else "json.load(sys.stdin)"


def _to_objects(pair: Sequence[Any], rows: str) -> str:
    """The command that writes pairs of a text and a label as objects."""
    names = ["text", "label"] if len(str(pair[0])) >= len(str(pair[1])) else ["label", "text"]
    return (
        f'write one on each line: python3 -c "import json, sys; [print(json.dumps(dict(zip({names},'
        f' row)))) for row in {rows}]" < OLD > NEW.jsonl'
    )


def _lines_of_list(text: str, name: str, size: int) -> list[int] | None:
    """The line of each value of the list of this size that stands under a name; None if it cannot
    be found."""
    places = (found.end() - 1 for found in re.finditer(f'"{name}"\\s*:\\s*\\[', text))
    lists = (_lines_of_items(text, place) for place in places)
    return next((lines for lines in lists if lines is not None and len(lines) == size), None)


def _are_rows(item: dict[str, Any]) -> bool:
    """Whether an object has an example under each key, not a column as pandas may write it."""
    rows = [*item.values()]
    if not (rows and all(isinstance(row, dict) and row for row in rows)):
        return False
    shared = set.intersection(*map(set, rows))
    if not shared or all(map(str.isdecimal, shared)):
        return False
    if _USUAL & item.keys() and not _USUAL & shared:
        return False
    alike = all(row.keys() == rows[0].keys() for row in rows)
    known = bool(shared & _USUAL) or all(map(str.isdecimal, item))
    return not alike or known or len(item) > len(shared)


_USUAL = {"text", "sentence", "content", "question", "context", "label", "labels", "tokens"}
"""Keys that examples have, and no index of a data frame."""


def _lines_of_items(text: str, position: int) -> list[int] | None:
    """The line of each value of the list that begins at a place; None if it is none."""
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    lines: list[int] = []
    line = 1 + text.count("\n", 0, position)
    while not text.startswith("]", position):
        start = _skip_space(text, position + 1)
        line += text.count("\n", position, start)
        try:
            _, end = decoder.raw_decode(text, start)
        except ValueError:
            return None
        lines.append(line)
        position = _skip_space(text, end)
        line += text.count("\n", start, position)
    return lines


def _has_columns(item: dict[str, Any]) -> bool:
    """Whether an object holds columns: lists, or objects by number, that are all as long."""
    columns = list(item.values())
    alike = {type(column) for column in columns} in ({list}, {dict})
    return alike and len(columns[0]) > 0 and len({len(column) for column in columns}) == 1


def _rows_of_columns(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    first = next(iter(item.values()))
    for place in range(len(first)) if isinstance(first, list) else first:
        yield {name: _at(column, place) for name, column in item.items()}


def _at(column: Any, place: Any) -> Any:
    try:
        return column[place]
    except (KeyError, IndexError):
        return None


def _not_an_object(item: Any, path: Path, *, labelled: bool = False) -> InputError:
    shown = item if isinstance(item, str) else json.dumps(item)
    remedy = "write one {...} per line"
    if labelled and isinstance(item, list) and len(item) == 2 and isinstance(item[0], str):
        remedy = _to_objects(item, _all_of(path))
    return InputError(f"is JSON but not an object, {shown[:40]!r}; {remedy}.")


def json_items(path: Path) -> Iterator[tuple[int, Any]]:
    """The objects (or lists) of a file that is one JSON list, each with the line it begins on; of
    a list on one line, with its number from 1.

    Raises:
        InputError: the file is not such a list; the line is named.
    """
    text = "\n".join(line for _, line in read_lines(path, limit=LIST))
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    position = _skip_space(text, 0)
    line = 1 + text.count("\n", 0, position)
    if not text.startswith("[", position):
        if not text.strip():
            raise InputError("is empty; it needs one example per line.", place=Place(path))
        problem = (
            "is not a JSON list; it must begin with '[' (name a file with one object per line "
            ".jsonl)."
        )
        hint = python_spelling(text, whole=True)
        raise InputError(problem + hint, place=Place(path, line))
    end = _skip_space(text, position + 1)
    if text.startswith("]", end):
        _refuse_more(text, end + 1, path)
        return
    on_one_line = "\n" not in text.strip()
    for item_number in count(1):  # position is that of '[' or of a comma
        start = _skip_space(text, position + 1)
        line += text.count("\n", position, start)
        try:
            item, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            hint = python_spelling(text, whole=True)
            raise InputError(
                f"is not JSON ({_why(error)}).{hint}", place=Place(path, line)
            ) from None
        if not isinstance(item, dict | list):
            problem = f"the list holds {text[start : start + 40]!r}; it must hold objects {{...}}."
            raise InputError(problem, place=Place(path, line))
        yield item_number if on_one_line else line, item
        position = _skip_space(text, end)
        line += text.count("\n", start, position)
        if text.startswith("]", position):
            _refuse_more(text, position + 1, path)
            return
        if not text.startswith(",", position):
            problem = "the list breaks off here; ',' or ']' must follow an object."
            raise InputError(problem, place=Place(path, line))


def _refuse_more(text: str, end: int, path: Path) -> None:
    """Refuse anything but white space after the list, which ends before ``end``."""
    more = _skip_space(text, end)
    if more < len(text):
        raise InputError(
            f"{text[more : more + 40]!r} follows the end of the list; a file holds one list (were "
            "two files joined? Join their lists into one).",
            place=Place(path, 1 + text.count("\n", 0, more)),
        )


_SPACE = re.compile(r"\s*")


def _skip_space(text: str, position: int) -> int:
    """The next position that holds no white space."""
    found = _SPACE.match(text, position)
    return found.end() if found else position


class _KeyTwiceError(ValueError):
    """An object has a key twice, of which JSON's readers take the last in silence."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _KeyTwiceError(f"an object has the key {twice!r} twice; remove one")
    return found


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, or an object has a key twice.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_object)


def json_object(line: str, path: Path, number: int) -> dict[str, Any]:
    """The object on a line of a JSONL file.

    Raises:
        InputError: the line is not a JSON object.
    """
    try:
        item = _parsed_line(line)
        if not isinstance(item, dict):
            raise _not_an_object(line, path)
    except InputError as error:
        error.place = error.place or Place(path, number)
        raise
    return item


def _json_values(item: dict[str, Any], names: list[str], layout: Layout) -> list[Any]:
    values = []
    for name in names:
        value = json_value(item, name, may_be_null=name in layout.kept | layout.labels)
        if name in layout.kept:
            values.append(_kept_value(value, name))
            continue
        if value is None:
            none = "; of one without labels it is an empty list, []" * (name in layout.lists)
            raise InputError(
                f"key {name!r} is null; fill the label in, or leave the example out{none}."
            )
        as_text = _json_label if name in layout.labels else json_text
        if isinstance(value, list) and name in layout.lists:
            value = json.dumps(value)
        values.append(as_text(value, name))
    return values


def _kept_value(value: Any, name: str) -> Any:
    """A value that is only written again; what is not a number, as pandas writes for nothing, is
    None.

    Raises:
        InputError: it cannot be written as JSON.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    try:
        as_text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        json_text(value if isinstance(value, str) else as_text, name)
    except (TypeError, ValueError):  # bytes; infinity
        raise InputError(
            f"key {name!r} holds {as_json(value)}, which JSON has no form for; leave it out of "
            "keep."
        ) from None
    return value


def json_value(item: dict[str, Any], name: str, *, may_be_null: bool = False) -> Any:
    """The value of a key, or of a dotted key of nested objects.

    Raises:
        InputError: there is none; or it is null, and may not be.
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
            missing=name,
        )
    value = holder[key]
    if value is None and not may_be_null:
        raise InputError(f"key {name!r} is null; the keys are {listed(list(holder))}.")
    if isinstance(value, NoValue):
        raise InputError(f"column {name!r} {value.problem}.")
    return value


def json_text(value: Any, name: str) -> str:
    """The text in a JSON value.

    Raises:
        InputError: it is not a string, or has a NUL or half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise InputError(f"key {name!r} holds {as_json(value)}; a text is a string.")
    if "\0" in value:
        raise InputError(_NUL)
    if len(value) > TEXT.bytes:
        raise InputError(f"key {name!r} holds a text longer than {TEXT.mib:g} MiB{TEXT.remedy}")
    if problem := surrogate_problem(value):
        raise InputError(f"key {name!r} {problem}")
    return value


_NO_COMMA = re.compile(r"""['"]\s+['"]""")
"""Between two strings, as NumPy writes its arrays."""


def cell_value(text: str) -> Any:
    """The list or object that a cell holds, as JSON or as Python writes it; the text, if it is
    neither."""
    if text.strip() == "set()":  # an empty one of Python
        return []
    if not text.lstrip().startswith(("[", "{", "(")):
        return text
    if _NO_COMMA.search(text):
        return text  # which Python would read as one string
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = read(text.strip())
            value = sorted(value, key=str) if isinstance(value, set) else value
            value = [*value] if isinstance(value, tuple) else value
            return value if isinstance(value, list | dict) else text
    return text


def json_list(text: str) -> list[Any] | None:
    """The values of a list in a column, as JSON or as Python writes it, or as Label Studio writes
    several choices; None if it is none."""
    values = cell_value(text)
    if isinstance(values, dict) and [*values] == ["choices"]:
        values = values["choices"]
    return values if isinstance(values, list) else None


def json_texts(text: str, name: str) -> list[str]:
    """The texts of a JSON list in a column.

    Raises:
        InputError: it is not a list of texts.
    """
    values = json_list(text)
    if values is not None and all(isinstance(value, str) for value in values):
        return [json_text(value, name) for value in values]
    raise InputError(
        f"column {name!r} holds {text[:40]!r}; as the only column of choices it must hold them as "
        'a JSON list of texts, ["one", "two"].'
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


def _of_object(name: str, value: Any) -> str:
    """How to read what an object holds for each label."""
    if not isinstance(value, dict) or not value:
        return ""
    if all(isinstance(mark, bool | int | float) for mark in value.values()):
        if len(value) == 1:
            return f" For its value: --label {name}.{next(iter(value))}."
        columns = ", ".join(f"{name}.{key}" for key in value)
        return (
            " For marks of labels: `finetune` takes --kind multilabel --task.label_columns "
            f"'[{columns}]'."
        )
    key = next((key for key, one in value.items() if isinstance(one, str)), None)
    return "" if key is None else f" For a key of it: --label {name}.{key}."


def _json_label(value: Any, name: str) -> str:
    given = value
    if isinstance(value, list) and len(value) == 1:  # as annotators export the only label
        value = value[0]
    if isinstance(value, list) and len(value) != 1:
        raise InputError(
            f"key {name!r} holds {f'{len(value)} labels, ' if value else ''}{as_json(value)}; a "
            "text has one label. For any number of labels set task.kind to multilabel."
        )
    if isinstance(value, str):
        return json_text(value, name)
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(
            f"key {name!r} holds {json.dumps(value)}; a missing label must be filled in, or "
            "its line left out."
        )
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    raise InputError(
        f"key {name!r} holds {as_json(value)}; a label is a string, a number, true or false."
        f"{_of_object(name, value) if given is value else ''}"
    )
