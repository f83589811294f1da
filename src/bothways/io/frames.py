"""Rows of spreadsheets, Parquet files and data sets that were saved to a folder, as objects.

A row becomes what a line of JSON lines is, so every reader of JSON reads these: labels, tags in
lists, questions with their answers. The number of a row is the spreadsheet's, or counts from 1.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError, InputError, Place, explain_missing
from bothways.io.broken import TEXT, Broken
from bothways.io.folder_files import refuse_no_file
from bothways.io.lines import column_name, listed
from bothways.io.pipes import open_in_any_order
from bothways.io.terminal import counted

SPREADSHEET, PARQUET = ".xlsx", ".parquet"
FRAMES = (SPREADSHEET, PARQUET)
"""Ends of the names of files; a data set is a folder."""
_INFO, _STATE, _SPLITS = "dataset_info.json", "state.json", "dataset_dict.json"
_SELECTIONS = ("_indices_files", "_indices_data_files")
_ROWS = 1024  # read at once

Objects = Iterator[tuple[int, dict[str, Any]]]


def is_frame(path: Path) -> bool:
    """Whether a path is that of a spreadsheet, a Parquet file or a data set's folder."""
    return path.suffix.lower() in FRAMES or is_dataset(path)


def is_dataset(path: Path) -> bool:
    """Whether a folder is one that ``save_to_disk`` of Hugging Face's data sets wrote."""
    return any((path / name).is_file() for name in (_STATE, _SPLITS))


def frame_objects(path: Path, broken: Broken) -> Objects:
    """The rows of a file or folder, each as an object with the columns' names.

    Args:
        path: of which :func:`is_frame` is true.
        broken: takes remarks.

    Yields:
        The number of the row, and its values: text, numbers, lists; None where there is none.

    Raises:
        InputError: it cannot be read, or has no rows; or a text is too long.
        ConfigError: the package that reads it is not installed.
    """
    if is_dataset(path):
        rows = _of_dataset(path)
    elif path.suffix.lower() == SPREADSHEET:
        rows = _of_spreadsheet(path, broken)
    else:
        rows = _of_parquet(path, broken)
    empty = True
    for number, row in rows:
        empty = False
        long = next((name for name, value in row.items() if _is_long(value)), None)
        if long is not None:
            problem = f"column {long!r} holds a text longer than {TEXT.mib:g} MiB{TEXT.remedy}"
            broken.leave_out(InputError(problem, place=Place(path, number)))
            continue
        yield number, row
    if empty:
        raise InputError("has no rows; it needs one example per row.", place=Place(path))


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > TEXT.bytes


def content_of(path: Path) -> list[Path]:
    """The files that a data set's folder consists of, in order; or the file itself.

    Raises:
        InputError: the folder is damaged, or has several splits.
    """
    return _arrow_files(path) if is_dataset(path) else [path]


# ------------------------------------------------------------------------------------- spreadsheets


class NoValue(str):
    """The empty text of a cell whose value the file does not hold.

    Attributes:
        problem: why, and what to do.
    """

    problem = ""


def _of_spreadsheet(path: Path, broken: Broken) -> Objects:
    with explain_missing("reading a spreadsheet (.xlsx)"):
        from openpyxl import load_workbook
    try:
        with open_in_any_order(path) as file:
            book = load_workbook(file, read_only=True, data_only=True)
            try:
                yield from _of_book(book, path, broken)
            finally:
                book.close()
    except FileNotFoundError:
        raise InputError("no such file.", place=Place(path)) from None
    except BothwaysError:
        raise
    except Exception as error:  # of zip, of XML and its own
        raise InputError(
            f"cannot be read as a spreadsheet ({error}). Save it again as .xlsx, or as CSV.",
            place=Place(path),
        ) from error


def _of_book(book: Any, path: Path, broken: Broken) -> Objects:
    """The rows of the first sheet that is shown and has any."""
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # some programs write wrong ones, which would cut the sheet off
    sheets = [sheet for sheet in book.worksheets if any(_cells(sheet))]
    sheets.sort(key=lambda sheet: sheet.sheet_state != "visible")
    if not sheets:
        return
    if len(sheets) > 1:
        others = listed([sheet.title for sheet in sheets[1:]])
        broken.remark(f"its first sheet, {sheets[0].title!r}, is read, and not {others}")
    unknown, hidden = _marks(book, sheets[0], path)
    if hidden:
        broken.remark(
            f"{counted(hidden, 'row')} that the spreadsheet hides or filters out: read too"
        )
    yield from _of_cells(_cells(sheets[0]), unknown, path)


def _cells(sheet: Any) -> Iterator[tuple[int, list[Any]]]:
    """The rows of a sheet that have a value, with their numbers."""
    for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
        if any(value is not None and str(value).strip() for value in row):
            yield number, [*row]


_MERGED = re.compile(rb'<(?:\w+:)?mergeCell\b[^>]*\bref="([A-Z]+[0-9]+:[A-Z]+[0-9]+)"')
_ROW = re.compile(rb'<(?:\w+:)?row\b[^>]*\br="([0-9]+)"[^>]*>')
_HIDDEN = re.compile(rb'\bhidden="(?:1|true)"')
_FORMULA = re.compile(
    rb'<(?:\w+:)?c\b[^>]*\br="([A-Z]+[0-9]+)"[^>]*>\s*<(?:\w+:)?f\b[^>]*(?:/>|>[^<]*</(?:\w+:)?f>)'
    rb"\s*(?:<(?:\w+:)?v\s*/>|<(?:\w+:)?v>\s*</(?:\w+:)?v>)?\s*</(?:\w+:)?c>"
)
_MOST_MERGED = 1_000_000
_CHUNK, _OVERLAP = 2**20, 2**14  # bytes; a formula has at most 8,192 characters


def _marks(book: Any, sheet: Any, path: Path) -> tuple[dict[tuple[int, int], str], int]:
    """What openpyxl does not tell of a sheet that it streams: the cells that have no value of their
    own (row and column from 1 -> why), and the number of hidden rows.

    Raises:
        InputError: so many cells are merged into one that there is hardly a table.
    """
    from openpyxl.utils.cell import coordinate_to_tuple, range_boundaries

    unknown: dict[tuple[int, int], str] = {}
    hidden: set[bytes] = set()
    with book._archive.open(sheet._worksheet_path) as file:
        text = b""
        while more := file.read(_CHUNK):
            text = text[-_OVERLAP:] + more
            hidden |= {row[1] for row in _ROW.finditer(text) if _HIDDEN.search(row[0])}
            for cell in _FORMULA.finditer(text):
                unknown[coordinate_to_tuple(cell[1].decode())] = (
                    "is a formula whose value the file does not hold; open it in a spreadsheet "
                    "program, which computes it, and save it"
                )
            for merged in _MERGED.finditer(text):
                name = merged[1].decode()
                left, top, right, bottom = range_boundaries(name)
                if (bottom - top + 1) * (right - left + 1) > _MOST_MERGED:
                    raise InputError(
                        f"has the merged cells {name}, more than {_MOST_MERGED:,}, of which only "
                        "the first has the value; unmerge them.",
                        place=Place(path),
                    )
                cells = product(range(top, bottom + 1), range(left, right + 1))
                why = (
                    f"is one of the merged cells {name}, of which only the first has the value; "
                    "unmerge them and fill in each"
                )
                unknown.update(dict.fromkeys(cells, why))
    return unknown, len(hidden)


def _of_cells(
    rows: Iterator[tuple[int, list[Any]]], unknown: dict[tuple[int, int], str], path: Path
) -> Objects:
    first, header = next(rows)
    while header and header[-1] is None:
        header.pop()
    names = ["" if name is None else column_name(str(name)) for name in header]
    _refuse_twice(names, path, first)
    index = next((n for n, name in enumerate(names) if name), 0)  # as pandas writes it, unnamed
    for number, values in rows:
        beyond = [value for value in values[len(names) :] if value is not None]
        own = [*zip(names, values, strict=False)][index:]
        unnamed = [v for n, v in own if not n and v is not None]
        if beyond or unnamed:
            raise InputError(
                f"holds {str([*beyond, *unnamed][0])[:40]!r} in a column without a name; row "
                f"{first} has the names of the columns. Name it, or clear it; if the names stand "
                "further down, remove the rows above them.",
                place=Place(path, number),
            )
        padded = [*values, *[None] * (len(names) - len(values))]
        row = {n: _cell_text(v) for n, v in zip(names, padded, strict=False) if n}
        for column, name in enumerate(names, start=1):
            if name and padded[column - 1] is None and (number, column) in unknown:
                row[name] = NoValue()
                row[name].problem = unknown[number, column]
        yield number, row


def _refuse_twice(names: Sequence[str], path: Path, line: int | None = None) -> None:
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise InputError(f"has the column {twice!r} twice; rename one.", place=Place(path, line))


def _cell_text(value: Any) -> Any:
    """A cell as text, as CSV has it: a spreadsheet makes a number of what looks like one."""
    from openpyxl.utils.escape import unescape

    if value is None:
        return ""
    value = readable(value)
    return unescape(value) if isinstance(value, str) else json.dumps(value)


def readable(value: Any) -> Any:
    """A value as JSON would have it: dates, decimal numbers and bytes as text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [readable(one) for one in value]
    if isinstance(value, dict):
        return {name: readable(one) for name, one in value.items()}
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()  # a date of a spreadsheet or of pandas
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
        return value  # a picture; refused where it should be a text
    return str(value)


# --------------------------------------------------------------------------- Parquet, and data sets


def _of_parquet(path: Path, broken: Broken) -> Objects:
    with explain_missing("reading Parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    number = 0
    try:
        with open_in_any_order(path) as disk, pq.ParquetFile(disk) as file:
            _refuse_twice(file.schema_arrow.names, path)
            for name, kind in _extensions(file.schema_arrow):
                broken.remark(f"the values of {name!r} are those that {kind} is stored as")
            odd, classes = _odd(file.schema_arrow), _classes_of_schema(file.schema_arrow)
            for batch in file.iter_batches(batch_size=_ROWS):
                # Text as bytes: one that is not UTF-8 is its row's fault, not the file's.
                own = dict(zip(batch.schema.names, batch.columns, strict=True))
                raw = {name: _as_bytes(column) for name, column in own.items()}
                texts = {name for name, column in own.items() if raw[name].type != column.type}
                for row in zip(*[column.to_pylist() for column in raw.values()], strict=True):
                    number += 1
                    try:
                        values = {
                            name: _decoded(value, name) if name in texts else value
                            for name, value in zip(raw, row, strict=True)
                        }
                    except InputError as error:
                        broken.leave_out(error, Place(path, number))
                        continue
                    yield number, _as_object(values, odd - texts, classes)
    except FileNotFoundError:
        raise InputError("no such file.", place=Place(path)) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read as Parquet ({error}). Copy or write the file again.", place=Place(path)
        ) from error


def _extensions(schema: Any) -> list[tuple[str, str]]:
    """The columns that a library stores as numbers of its own, and what it calls their type."""
    found = []
    for field in schema:
        stored = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
        kind = getattr(field.type, "extension_name", stored)
        found += [(field.name, kind)] if kind and not kind.startswith("arrow.") else []
    return found


def _as_bytes(column: Any) -> Any:
    """A column of texts as one of bytes; another one as it is."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        plain = column.dictionary_decode()
        return _as_bytes(plain) if pa.types.is_string(plain.type) else column
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return column.cast(pa.large_binary()) if text else column


def _decoded(value: bytes | None, name: str) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        raise InputError(f"column {name!r} holds bytes that are not UTF-8.") from None


def _odd(schema: Any) -> set[str]:
    """The columns that may hold what JSON has not."""
    import pyarrow as pa

    def is_odd(kind: Any) -> bool:
        if pa.types.is_nested(kind):
            parts = [kind.field(n).type for n in range(kind.num_fields)]
            return pa.types.is_map(kind) or any(map(is_odd, parts))
        if pa.types.is_dictionary(kind):
            return is_odd(kind.value_type)
        plain = ("string", "large_string", "string_view", "boolean", "integer", "floating", "null")
        return not any(getattr(pa.types, f"is_{name}")(kind) for name in plain)

    return {field.name for field in schema if is_odd(field.type)}


def _as_object(row: dict[str, Any], odd: set[str], classes: dict[str, Any]) -> dict[str, Any]:
    """A row as a line of JSON lines has it, with the names of classes."""
    plain = {name: readable(row[name]) for name in odd}
    named = {name: _named(row[name], own) for name, own in classes.items() if name in row}
    return {**row, **plain, **named}


def _of_dataset(path: Path) -> Objects:
    with explain_missing("reading a data set's folder"):
        import pyarrow as pa
    features = _json(path / _INFO).get("features") if (path / _INFO).is_file() else {}
    classes = _classes_of_features(features)
    number = 0
    for file in _arrow_files(path):
        refuse_no_file(file)
        try:
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
                _refuse_twice(reader.schema.names, file)
                odd = _odd(reader.schema)
                for batch in reader:
                    for row in batch.to_pylist():
                        number += 1
                        yield number, _as_object(row, odd, classes)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot be read ({error}). Save the data set again (save_to_disk).",
                place=Place(file),
            ) from error


def _arrow_files(path: Path) -> list[Path]:
    if not (path / _STATE).is_file():
        splits = _json(path / _SPLITS).get("splits", [])
        raise InputError(
            f"is a data set with the splits {', '.join(map(str, splits))}; name the folder of one, "
            f"such as {path / str(next(iter(splits), 'train'))}.",
            place=Place(path),
        )
    state = _json(path / _STATE)
    if any(state.get(name) for name in _SELECTIONS):
        raise InputError(
            "is a selection of the rows of another data set, as old versions of its library save "
            "it; save it again after flatten_indices().",
            place=Place(path),
        )
    try:
        return [path / Path(str(one["filename"])).name for one in state.get("_data_files") or ()]
    except (KeyError, TypeError):
        raise InputError(
            "does not list its files; save the data set again.", place=Place(path)
        ) from None


def _classes_of_schema(schema: Any) -> dict[str, Any]:
    """Those that the data sets of Hugging Face write into Parquet files."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return _classes_of_features(features)


def _classes_of_features(features: Any) -> dict[str, Any]:
    """For each column with classes by number, where they are in its values, and their names."""
    each = features.items() if isinstance(features, dict) else ()
    return {name: found for name, feature in each if (found := _classes(feature))}


def _classes(feature: Any) -> Any:
    """Of a class its names; of a list, a list of what each value is; of an object, by key; None if
    there is none within."""
    if isinstance(feature, list):
        return [inner] if feature and (inner := _classes(feature[0])) else None
    if not isinstance(feature, dict):
        return None
    names, kind = feature.get("names"), feature.get("_type")
    if isinstance(names, list) and kind in (None, "ClassLabel") and names:
        return tuple(map(str, names)) if isinstance(names[0], str | int) else None
    if "feature" in feature and kind in (None, "Sequence", "List", "LargeList"):
        inner = _classes(feature["feature"])
        if isinstance(inner, dict) and kind != "List":  # stored as an object of lists
            return {name: [own] for name, own in inner.items()}
        return [inner] if inner else None
    return {name: own for name, one in feature.items() if (own := _classes(one))} or None


def _named(value: Any, classes: Any) -> Any:
    if isinstance(classes, list) and isinstance(value, list):
        own = [_named(one, classes[0]) for one in value]
        return [old if new is None else new for old, new in zip(value, own, strict=True)]
    if isinstance(classes, dict) and isinstance(value, dict):
        return {n: _named(v, classes[n]) if n in classes else v for n, v in value.items()}
    if isinstance(classes, tuple) and isinstance(value, int):
        return classes[value] if 0 <= value < len(classes) else None  # -1: there is no label
    return value


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error}).", place=Place(path)) from None
    return value if isinstance(value, dict) else {}
