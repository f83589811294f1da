"""Examples that are in memory: data frames, lists of rows, data sets, as the files of a task.

A fine-tuning reads files, so that it can be continued and divided among processes. What comes from
memory is written for it, in the format that the kind of task reads, into the run's own folder.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bothways.errors import ConfigError, InputError, Place, type_of
from bothways.io.columns import TEXT_NAMES
from bothways.io.files import write_text
from bothways.io.parquet import readable

Columns = dict[str, list[Any]]
"""The values of each column, by its name; all columns are equally long."""

SPANS, TAGS = "spans", "tagging"
"""The kinds of tasks whose files have no columns with names."""
_FORMS = (
    "the path of a file, a data frame, a list of dictionaries, a dictionary of lists, a data set, "
    "or a tuple (texts, labels)"
)


def is_path(data: Any) -> bool:
    """Whether data are given by the name of a file."""
    return isinstance(data, str | os.PathLike)


def columns_of(data: Any, name: str, text: str = "text", label: str = "label") -> Columns:
    """The columns of examples in memory.

    Args:
        data: a data frame (pandas, polars), a table of pyarrow, a data set of Hugging Face, a
            dictionary of lists, a list of dictionaries, or a tuple of texts and labels.
        name: the argument, for messages.
        text, label: names for the columns of a tuple.

    Raises:
        ConfigError: it is none of these.
        InputError: rows have other keys than the first, or columns are of different lengths.
    """
    if isinstance(data, tuple) and len(data) == 2:
        columns = {text: listed(data[0], name), label: listed(data[1], name)}
    elif isinstance(data, Mapping):
        columns = {str(key): listed(values, f"{name}[{key!r}]") for key, values in data.items()}
    elif hasattr(data, "collect_schema") and hasattr(data, "collect"):  # polars' LazyFrame
        raise ConfigError(f"{name} is not computed yet; give {name}.collect().")
    elif (names := names_of(data)) is not None:
        if twice := next((key for key in names if names.count(key) > 1), None):
            raise InputError(f"{name} has the column {twice!r} twice; rename or drop one.")
        columns = {str(key): listed(data[key], f"{name}[{key!r}]") for key in names}
        for key, classes in _class_names(data, names).items():
            columns[key] = [_named(value, classes) for value in columns[key]]
    else:
        columns = _of_rows(data, name)
    sizes = {key: len(values) for key, values in columns.items()}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{key} {size}" for key, size in sizes.items())
        raise InputError(f"{name}: its columns are not equally long: {shown}.")
    if not sizes or not next(iter(sizes.values())):
        raise InputError(f"{name} has no rows.")
    return columns


def names_of(data: Any) -> list[Any] | None:
    """The names of the columns of a frame, a table or a data set; None if it is none."""
    for attribute in ("column_names", "columns"):
        names = getattr(data, attribute, None)
        if names is not None and not callable(names) and hasattr(data, "__getitem__"):
            if isinstance(names, Mapping):
                raise ConfigError(
                    f"these data have the splits {', '.join(map(str, names))}; give one of them, "
                    f"such as data[{next(iter(names))!r}]."
                )
            if not all(isinstance(column, str) for column in names):  # such as pyarrow's columns
                continue
            return [*names]
    return None


def _class_names(data: Any, names: Sequence[str]) -> dict[str, list[str]]:
    """The names of the classes that columns of a data set of Hugging Face give by number."""
    features: Any = getattr(data, "features", None)
    found: dict[str, list[str]] = {}
    for column in names if isinstance(features, Mapping) else ():
        feature = features.get(column)
        feature = getattr(feature, "feature", feature)  # of a list
        if classes := getattr(feature, "names", None):
            found[column] = [*classes]
    return found


def _named(value: Any, classes: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_named(item, classes) for item in value]
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else None


def _of_rows(data: Any, name: str) -> Columns:
    rows = [*data] if isinstance(data, Iterable) and not isinstance(data, str | bytes) else None
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        shown = type_of(data)
        names = [*getattr(data, "columns", ())]
        if names and not all(isinstance(one, str) for one in names) and hasattr(data, "iloc"):
            raise ConfigError(
                f"{name} has columns whose names are no texts, such as {names[0]!r}; name them: "
                f"{name}.columns = ['text', 'label']."
            )
        if rows:
            shown += f" of {type(rows[0]).__name__}"
        pairs = rows is not None and all(
            not isinstance(row, str | bytes) and hasattr(row, "__len__") and len(row) == 2
            for row in rows
        )
        hint = f" Of pairs of a text and a label: tuple(zip(*{name}))." if rows and pairs else ""
        raise ConfigError(f"{name} is {shown}; give {_FORMS}.{hint}")
    names = [*rows[0]] if rows else []
    for number, row in enumerate(rows):
        if missing := [key for key in names if key not in row]:
            raise InputError(f"{name}: row {number} has no {missing[0]!r}, which row 0 has.")
    return {str(key): [plain(row[key]) for row in rows] for key in names}


def listed(values: Any, name: str) -> list[Any]:
    """A column as a list of plain values; what is missing (NaN, NA) is None.

    Raises:
        ConfigError: it is a single text, a table or dictionary, or cannot be listed.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} is {type_of(values)}; give a list of values.")
    names = [*values] if isinstance(values, Mapping) else names_of(values)
    if names is not None:  # which would be listed themselves
        column = next((one for one in TEXT_NAMES if one in names), next(iter(names), "text"))
        shown = ", ".join(map(repr, names[:12])) or "nothing in it"
        raise ConfigError(
            f"{name} is {type_of(values)} with {shown}; give the values of one of these, "
            f"such as {name}[{column!r}]."
        )
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, method):
            values = getattr(values, method)()
            break
    found = [plain(value) for value in values]
    if None in found and all(v is None or (isinstance(v, float) and v.is_integer()) for v in found):
        return [v if v is None else int(v) for v in found]  # as they were, before one was missing
    return found


def plain(value: Any) -> Any:
    """A value as Python's own; None if it says that it is missing."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # of NumPy
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, datetime.date | datetime.time | decimal.Decimal | bytes):
        return readable(value)
    return value


def _shown(value: Any) -> str:
    return "missing (NaN or None)" if value is None else f"{value!r} ({type(value).__name__})"


def choose_text(columns: Columns, given: str | None, name: str, default: str) -> str:
    """The column of the texts.

    Raises:
        ConfigError: there is no such column; or none is named, and none looks like it.
    """
    if given is not None:
        require_column(columns, given, "text", name)
        return given
    for chosen in (default, *TEXT_NAMES):
        if chosen in columns:
            return chosen
    raise ConfigError(
        f"text: name the column of the texts; {name} has {', '.join(map(repr, columns))}, and no "
        f"{default!r}."
    )


def require_column(columns: Columns, column: str, argument: str, name: str) -> None:
    """Refuse a column that is not there.

    Raises:
        ConfigError: naming the argument and the columns.
    """
    if column not in columns:
        raise ConfigError(
            f"{argument} is {column!r}, but {name} has no such column; it has "
            f"{', '.join(map(repr, columns))}. {argument}= names one of them."
        )


def file_of(columns: Columns, kind: str, name: str, text: str, label: str) -> tuple[str, str]:
    """The examples as a file that the kind of task reads.

    Args:
        columns: the examples.
        kind: of the task.
        name: the argument, for messages.
        text, label: the columns of words and tags, for tagging.

    Returns:
        The ending of its name, and its content.

    Raises:
        ConfigError, InputError: they do not make examples of this kind.
    """
    if kind == TAGS:
        return ".jsonl", _tagged(columns, name, text, label)
    if kind == SPANS:
        return ".jsonl", _questions(columns, name)
    plain = {key: values for key, values in columns.items() if all(map(_is_plain, values))}
    return ".jsonl", as_lines(plain)


def as_lines(columns: Columns) -> str:
    """Columns as an object of JSON on each line."""
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def checked_lines(lines: Iterable[Any], name: str) -> Iterator[str]:
    """Texts without columns, each checked when it is asked for.

    Raises:
        InputError: one is no text, naming the argument, the place and what to do.
    """
    for place, value in enumerate(lines):
        if not isinstance(value, str):
            raise InputError(
                f"{name}[{place}] is {_shown(value)}; a text is a string. Leave it out (of a "
                f"column of pandas: {name}.dropna(), if all others are texts), or fill it in."
            )
        yield value


def check_values(columns: Columns, texts: Sequence[str], labels: Sequence[str], name: str) -> None:
    """Refuse texts that are not strings and labels that are missing, by their rows.

    Raises:
        InputError: naming the argument, row and column, and what to do.
    """
    for column in texts:
        for row, value in enumerate(columns[column]):
            if not isinstance(value, str):
                raise InputError(
                    f"{name}: row {row}, column {column!r} is {_shown(value)}; a text is a string. "
                    f"Drop such rows ({name}.dropna(subset=[{column!r}])), fill them in, or "
                    f"convert the column ({name}[{column!r}].astype(str), if nothing is missing)."
                )
    for column in labels:
        for row, value in enumerate(columns[column]):
            if value is None:
                raise InputError(
                    f"{name}: row {row}, column {column!r} has no label. Drop such rows "
                    f"({name}.dropna(subset=[{column!r}])), or give broken='skip'."
                )
            if not _is_plain(value):
                raise InputError(
                    f"{name}: row {row}, column {column!r} is {value!r} ({type(value).__name__}); "
                    "a label is a text, a number, true or false, or a list of them: "
                    f"{name}[{column!r}].astype(str)."
                )


@contextmanager
def named_rows(files: Mapping[str, str]) -> Iterator[None]:
    """Within the block, an error in a file that stands for data in memory names these and the row.

    Args:
        files: the name of the argument for each file's path.
    """
    try:
        yield
    except InputError as error:
        place = error.place
        if place is None or str(place.source) not in files:
            raise
        row = None if place.row is None else place.row - 1
        error.place = Place(files[str(place.source)], row, "row")
        error.problem = re.sub(
            r"\b(on )?line (\d+)",
            lambda one: f"{'in ' if one[1] else ''}row {int(one[2]) - 1}",
            error.problem,
        )
        raise


def _tagged(columns: Columns, name: str, text: str, label: str) -> str:
    words = columns[text]
    tags = columns.get(label)
    lines: list[str] = []
    for row, sentence in enumerate(words):
        if not isinstance(sentence, list) or not sentence:
            raise InputError(
                f"{name}: row {row}, column {text!r} is no list of words; of words with spaces "
                f"between, {name}[{text!r}].str.split() makes lists."
            )
        own = None if tags is None else tags[row]
        if tags is not None and (not isinstance(own, list) or len(own) != len(sentence)):
            raise InputError(
                f"{name}: row {row} has {len(sentence)} words in {text!r}, but not as many tags in "
                f"{label!r}."
            )
        sentence = [(w.strip("\ufeff ") or w) if isinstance(w, str) else w for w in sentence]
        for n, word in enumerate(sentence):
            tag = "O" if own is None else own[n]
            if not isinstance(word, str) or not word or len(word.splitlines()) > 1:
                raise InputError(
                    f"{name}: row {row}, word {n} is {word!r}; a word is a text in one line."
                )
            if not isinstance(tag, str):
                raise InputError(
                    f"{name}: row {row}, tag {n} is {tag!r}; tags are strings such as 'B-PER' "
                    "(numbers of a data set have names in its features)."
                )
        found = {"tokens": sentence} if own is None else {"tokens": sentence, "tags": own}
        lines.append(json.dumps(found, ensure_ascii=False))
    return "\n".join(lines) + "\n"


def _questions(columns: Columns, name: str) -> str:
    for column in ("question", "context"):
        if column not in columns:
            raise ConfigError(
                f"{name} has no column {column!r}, which questions need; it has "
                f"{', '.join(map(repr, columns))}. Rename the one that holds it."
            )
    count = len(columns["question"])
    columns = {"id": [str(n) for n in range(count)], **columns}
    return as_lines({key: own for key, own in columns.items() if all(map(_is_json, own))})


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(one) for key, one in value.items())
    return all(map(_is_json, value)) if isinstance(value, list) else _is_plain(value)


def digest(content: str) -> str:
    """A short name for a file's content."""
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:8]


def write_rows(folder: Path, name: str, ending: str, content: str) -> str:
    """Write a file of examples into a folder named after its content; its path."""
    path = folder / digest(content) / f"{name}{ending}"
    if not path.exists():
        write_text(path, content)
    return str(path)
