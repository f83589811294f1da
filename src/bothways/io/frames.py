"""Rows of spreadsheets, Parquet files and data sets that were saved to a folder, as objects.

A row becomes what a line of JSON lines is, so every reader of JSON reads these: labels, tags in
lists, questions with their answers. The number of a row is the spreadsheet's, or counts from 1.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bothways.errors import InputError, explain_missing
from bothways.io.broken import TEXT, Broken
from bothways.io.folder_files import refuse_no_file
from bothways.io.pipes import open_in_any_order

SPREADSHEET, PARQUET = ".xlsx", ".parquet"
FRAMES = (SPREADSHEET, PARQUET)
"""Ends of the names of files; a data set is a folder."""
_INFO, _STATE, _SPLITS = "dataset_info.json", "state.json", "dataset_dict.json"
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
        for name, value in row.items():
            if isinstance(value, str) and len(value) > TEXT.bytes:
                raise InputError(
                    f"column {name!r} holds a text longer than {TEXT.mib:g} MiB{TEXT.remedy}",
                    path=path,
                    line=number,
                )
        empty = False
        yield number, row
    if empty:
        raise InputError("has no rows; it needs one example per row.", path=path)


def content_of(path: Path) -> list[Path]:
    """The files that a data set's folder consists of, in order; or the file itself.

    Raises:
        InputError: the folder is damaged, or has several splits.
    """
    return _arrow_files(path) if is_dataset(path) else [path]


# ------------------------------------------------------------------------------------- spreadsheets


def _of_spreadsheet(path: Path, broken: Broken) -> Objects:
    with explain_missing("reading a spreadsheet (.xlsx)"):
        from openpyxl import load_workbook
    try:
        file = open_in_any_order(path)
        book = load_workbook(file, read_only=True, data_only=True)
    except FileNotFoundError:
        raise InputError("no such file.", path=path) from None
    except InputError:
        raise
    except Exception as error:  # of zip, of XML and its own
        raise InputError(
            f"cannot be read as a spreadsheet ({error}). Save it again as .xlsx, or as CSV.",
            path=path,
        ) from error
    try:
        sheets = [sheet for sheet in book.worksheets if any(_cells(sheet))]
        if not sheets:
            return
        if len(sheets) > 1:
            broken.remark(
                f"its first sheet, {sheets[0].title!r}, is read, and not the other "
                f"{len(sheets) - 1}"
            )
        yield from _of_cells(_cells(sheets[0]), path)
    finally:
        book.close()
        file.close()


def _cells(sheet: Any) -> Iterator[tuple[int, list[Any]]]:
    """The rows of a sheet that have a value, with their numbers."""
    for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
        if any(value is not None for value in row):
            yield number, [*row]


def _of_cells(rows: Iterator[tuple[int, list[Any]]], path: Path) -> Objects:
    first, header = next(rows)
    while header and header[-1] is None:
        header.pop()
    names = ["" if name is None else str(name).strip() for name in header]
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"has the column {twice!r} twice.", path=path, line=first)
    for number, values in rows:
        beyond = [value for value in values[len(names) :] if value is not None]
        unnamed = [v for n, v in zip(names, values, strict=False) if not n and v is not None]
        if beyond or unnamed:
            raise InputError(
                f"holds {str([*beyond, *unnamed][0])[:40]!r} in a column without a name; row "
                f"{first} has the names of the columns. Name it, or clear it.",
                path=path,
                line=number,
            )
        padded = [*values, *[None] * (len(names) - len(values))]
        yield number, {n: _plain(v) for n, v in zip(names, padded, strict=False) if n}


def _plain(value: Any) -> Any:
    """A cell as text or number; an empty one is an empty text, as in CSV."""
    if value is None:
        return ""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value if isinstance(value, str | bool | int | float) else str(value)


# --------------------------------------------------------------------------- Parquet, and data sets


def _of_parquet(path: Path, broken: Broken) -> Objects:
    with explain_missing("reading Parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    number = 0
    try:
        with open_in_any_order(path) as disk, pq.ParquetFile(disk) as file:
            for batch in file.iter_batches(batch_size=_ROWS):
                # Text as bytes: one that is not UTF-8 is its row's fault, not the file's.
                own = dict(zip(batch.schema.names, batch.columns, strict=True))
                raw = {name: _as_bytes(column) for name, column in own.items()}
                texts = {name for name, column in own.items() if raw[name].type != column.type}
                for row in zip(*[column.to_pylist() for column in raw.values()], strict=True):
                    number += 1
                    try:
                        values = {
                            name: _decoded(value, name, path, number) if name in texts else value
                            for name, value in zip(raw, row, strict=True)
                        }
                    except InputError as error:
                        broken.leave_out(error)
                        continue
                    yield number, values
    except FileNotFoundError:
        raise InputError("no such file.", path=path) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read as Parquet ({error}). Copy or write the file again.", path=path
        ) from error


def _as_bytes(column: Any) -> Any:
    """A column of texts as one of bytes; another one as it is."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        plain = column.dictionary_decode()
        return _as_bytes(plain) if pa.types.is_string(plain.type) else column
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return column.cast(pa.large_binary()) if text else column


def _decoded(value: bytes | None, name: str, path: Path, number: int) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        raise InputError(
            f"column {name!r} holds bytes that are not UTF-8.", path=path, line=number
        ) from None


def _of_dataset(path: Path) -> Objects:
    with explain_missing("reading a data set's folder"):
        import pyarrow as pa
    classes = _class_names(path)
    number = 0
    for file in _arrow_files(path):
        refuse_no_file(file)
        try:
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    for row in batch.to_pylist():
                        number += 1
                        named = {n: _named(row[n], own) for n, own in classes.items() if n in row}
                        yield number, {**row, **named}
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot be read ({error}). Save the data set again (save_to_disk).", path=file
            ) from error


def _arrow_files(path: Path) -> list[Path]:
    if not (path / _STATE).is_file():
        splits = _json(path / _SPLITS).get("splits", [])
        raise InputError(
            f"is a data set with the splits {', '.join(map(str, splits))}; name the folder of one, "
            f"such as {path / str(next(iter(splits), 'train'))}.",
            path=path,
        )
    listed = _json(path / _STATE).get("_data_files")
    try:
        return [path / Path(str(one["filename"])).name for one in listed or ()]
    except (KeyError, TypeError):
        raise InputError("does not list its files; save the data set again.", path=path) from None


def _class_names(path: Path) -> dict[str, list[str]]:
    """The names of the classes that columns, or the lists in them, give by number."""
    found: dict[str, list[str]] = {}
    features = _json(path / _INFO).get("features") if (path / _INFO).is_file() else {}
    for name, feature in (features or {}).items():
        while not (isinstance(feature, dict) and "names" in feature):
            inner = feature[0] if isinstance(feature, list) and feature else feature
            feature = (
                inner.get("feature") if isinstance(inner, dict) and inner is feature else inner
            )
            if not isinstance(feature, dict | list):
                break
        else:
            found[name] = [str(one) for one in feature["names"]]
    return found


def _named(value: Any, classes: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(item, classes) for item in value]
    known = isinstance(value, int) and 0 <= value < len(classes)
    return classes[value] if known else value  # -1: a test set without labels


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error}).", path=path) from None
    return value if isinstance(value, dict) else {}
