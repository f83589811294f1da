"""Examples in memory (data frames, lists of rows, data sets) as the files of a task.

Fine-tuning reads files, so that it can be continued and divided among processes. Data in memory are
kept for it as Parquet in the run folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.config.fields import changed
from bothways.errors import ConfigError, InputError, Place, explain_missing, type_of
from bothways.io.columns import TEXT_NAMES
from bothways.io.files import write_bytes
from bothways.io.lines import listed as listed_names
from bothways.io.terminal import print_note
from bothways.tasks.options import TaskOptions

if TYPE_CHECKING:
    import pyarrow as pa

_FORMS = (
    "the path of a file, a data frame, a list of dictionaries, a dictionary of lists, a data set, "
    "or a tuple (texts, labels)"
)


def is_path(data: Any) -> bool:
    """Whether data are given by the name of a file."""
    return isinstance(data, str | os.PathLike)


def examples(
    task: TaskOptions,
    data: Any,
    name: str,
    *,
    text: str | None = None,
    label: str | None = None,
    labelled: bool = True,
) -> tuple[TaskOptions, bytes]:
    """The task with the columns of some data, and the data as the content of a Parquet file.

    Args:
        task: its columns hold where no others are named.
        data: as for :func:`table_of`.
        name: the argument, for messages.
        text, label: columns.
        labelled: the data need labels.

    Raises:
        ConfigError: they lack a column that the kind of task needs.
        InputError: they are no table.
    """
    if task.traits.per_word and not task.traits.has_columns:
        names = {"tokens": text or "tokens", "tags": label or "tags"}
        table = table_of(data, name, *names.values())
        _require(table, names["tokens"], "text", name)
        if labelled:
            _require(table, names["tags"], "label", name)
        found = {key: column for key, column in names.items() if column in table.column_names}
        return task, as_parquet(table.select([*found.values()]).rename_columns([*found]))
    label = label or task.label
    table = table_of(data, name, text or task.text, label)
    if not task.traits.has_columns:
        if "id" not in table.column_names:
            table = table.append_column("id", [[str(n) for n in range(table.num_rows)]])
        return task, as_parquet(table)
    task = changed(task, {"label": label, "header": True, "columns": ()})
    task = changed(task, {"text": _text_column(table, text, name, task.text)})
    needed = {"text": [task.text], "text_b": [task.text_b] if task.text_b else []}
    needed |= {"choices": [*task.choices], "group": [task.group] if task.group else []}
    if labelled:
        needed["label"] = [*task.label_columns] or [label]
    for argument, columns in needed.items():
        for column in columns:
            _require(table, column, argument, name)
    return task, as_parquet(table.select([*dict.fromkeys(chain(*needed.values()))]))


def table_of(data: Any, name: str, text: str = "text", label: str = "label") -> pa.Table:
    """Examples in memory as a table.

    Args:
        data: a data frame (pandas, polars), a table of pyarrow, a data set of Hugging Face, a
            dictionary of lists, a list of dictionaries, or a tuple of texts and labels.
        name: the argument, for messages.
        text, label: names for the columns of a tuple.

    Raises:
        ConfigError: it is none of these, or pyarrow is not installed.
        InputError: it has no rows, a column twice, or columns of different lengths.
    """
    with explain_missing("data from memory"):
        import pyarrow as pa
    if isinstance(data, tuple) and len(data) == 2:
        columns = {text: data[0], label: data[1]}
    elif isinstance(data, Mapping):
        columns = {str(key): values for key, values in data.items()}
    elif hasattr(data, "collect_schema") and hasattr(data, "collect"):  # polars' LazyFrame
        raise ConfigError(f"{name} is not computed yet; give {name}.collect().")
    elif (names := names_of(data)) is not None:
        if twice := next((key for key in names if names.count(key) > 1), None):
            raise InputError(f"{name} has the column {twice!r} twice; rename or drop one.")
        columns = {str(key): data[key] for key in names}
        for key, classes in _class_names(getattr(data, "features", None)).items():
            columns[key] = [_named(value, classes) for value in listed(data[key], name)]
    else:
        columns = _of_rows(data, name)
    arrays = {key: _array(values, f"{name}[{key!r}]") for key, values in columns.items()}
    if len({len(array) for array in arrays.values()}) > 1:
        sizes = ", ".join(f"{key} {len(array)}" for key, array in arrays.items())
        raise InputError(f"{name}: its columns are not equally long: {sizes}.")
    table = pa.table(arrays)
    if not table.num_rows:
        raise InputError(f"{name} has no rows.")
    return table.replace_schema_metadata(None)


def _array(values: Any, name: str) -> Any:
    """A column; of whole numbers beside missing values, whole numbers again. Values of several
    types are texts, as in a file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if hasattr(values, "to_arrow"):
        return values.to_arrow()
    try:
        if isinstance(values, str | bytes):
            raise TypeError
        array = (
            values if isinstance(values, pa.ChunkedArray) else pa.array(values, from_pandas=True)
        )
    except (pa.ArrowException, TypeError, ValueError):
        array = pa.array([_as_text(value) for value in listed(values, name)])
    if pa.types.is_floating(array.type) and 0 < array.null_count < len(array):
        whole = pc.all(pc.equal(pc.floor(array), array)).as_py()
        return array.cast(pa.int64()) if whole else array
    return array


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, bool | int | float) else str(value)


def as_parquet(table: pa.Table) -> bytes:
    """The content of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


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


def _class_names(features: Any) -> dict[str, list[str]]:
    """The names of the classes that columns of a data set of Hugging Face give by number."""
    found: dict[str, list[str]] = {}
    for column, feature in features.items() if isinstance(features, Mapping) else ():
        feature = getattr(feature, "feature", feature)  # of a list
        if classes := getattr(feature, "names", None):
            found[column] = [*classes]
    return found


def _named(value: Any, classes: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_named(item, classes) for item in value]
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else None


def _of_rows(data: Any, name: str) -> dict[str, list[Any]]:
    rows = [*data] if isinstance(data, Iterable) and not isinstance(data, str | bytes) else None
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        shown = type_of(data) + (f" of {type(rows[0]).__name__}" if rows else "")
        raise ConfigError(f"{name} is {shown}; give {_FORMS}.")
    names = dict.fromkeys(str(key) for row in rows for key in row)
    return {key: [row.get(key) for row in rows] for key in names}


def listed(values: Any, name: str) -> list[Any]:
    """A column as a list of Python's own values; what is missing (NaN, NA) is None.

    Raises:
        ConfigError: it is a single text, a table or dictionary, or cannot be listed.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} is {type_of(values)}; give a list of values.")
    names = [*values] if isinstance(values, Mapping) else names_of(values)
    if names is not None:  # which would be listed themselves
        raise ConfigError(
            f"{name} is {type_of(values)} with the columns {listed_names(names)}; give one of them."
        )
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, method):
            values = getattr(values, method)()
            break
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    """A value as Python's own; None if it says that it is missing."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # of NumPy
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    missing = type(value).__name__ in ("NAType", "NaTType")
    return None if missing or (isinstance(value, float) and math.isnan(value)) else value


def _text_column(table: pa.Table, given: str | None, name: str, default: str) -> str:
    """The column of the texts.

    Raises:
        ConfigError: none is named, and none looks like it.
    """
    if given is not None:
        return given
    chosen = next((key for key in (default, *TEXT_NAMES) if key in table.column_names), None)
    if chosen is None:
        raise ConfigError(
            f"text: name the column of the texts; {name} has "
            f"{', '.join(map(repr, table.column_names))}, and no {default!r}."
        )
    if chosen != default:
        print_note(f"{name}: using column {chosen!r}")
    return chosen


def _require(table: pa.Table, column: str, argument: str, name: str) -> None:
    """Refuse a column that is not there.

    Raises:
        ConfigError: naming the argument and the columns.
    """
    if column not in table.column_names:
        raise ConfigError(
            f"{argument} is {column!r}, but {name} has no such column; it has "
            f"{', '.join(map(repr, table.column_names))}. {argument}= names one of them."
        )


def checked_lines(lines: Iterable[Any], name: str) -> Iterator[str]:
    """Texts without columns, each checked when it is asked for.

    Raises:
        InputError: one is no text, with its place.
    """
    for place, value in enumerate(lines):
        if not isinstance(value, str):
            shown = "missing (NaN or None)" if value is None else f"{value!r}, not a text"
            raise InputError(f"is {shown}.", place=Place(name, place, "row"))
        yield value


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
        if place is not None and (name := files.get(str(place.source))) is not None:
            error.place = Place(name, None if place.row is None else place.row - 1, "row")
        raise


def digest(content: bytes) -> str:
    """A short name for a file's content."""
    return hashlib.sha256(content).hexdigest()[:8]


def write_content(folder: Path, name: str, content: bytes) -> str:
    """Write a file into a folder named after its content; its path."""
    path = folder / digest(content) / name
    if not path.exists():
        write_bytes(path, content)
    return str(path)
