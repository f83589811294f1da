"""Files with columns, whatever their format: the values of some columns, row by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bothways.errors import InputError, Place
from bothways.io.broken import Broken
from bothways.io.delimited import table_rows
from bothways.io.frames import FRAMES, is_dataset
from bothways.io.json_files import json_rows
from bothways.io.lines import Layout, Values
from bothways.io.text import COMPRESSED, ending

_READERS: dict[str, Callable[[Path, list[str], Layout, Broken], Values]] = {
    ".tsv": table_rows,
    ".csv": table_rows,
    ".txt": table_rows,
    ".jsonl": json_rows,
    ".ndjson": json_rows,
    ".json": json_rows,
    **dict.fromkeys(FRAMES, json_rows),
}


_OTHERS = {
    **dict.fromkeys((".xls", ".xlsb", ".ods", ".numbers"), "save it as .xlsx, or as CSV"),
    ".xlsm": "rename it to .xlsx",
    **dict.fromkeys((".feather", ".arrow", ".orc", ".avro"), "write it as Parquet"),
    **dict.fromkeys((".sav", ".dta", ".sas7bdat", ".rds", ".rdata", ".rda"), "write it as CSV"),
    **dict.fromkeys((".yaml", ".yml", ".xml", ".arff"), "write it as CSV or JSON"),
    **dict.fromkeys((".pkl", ".pickle", ".h5", ".sqlite", ".db", ".sql"), "write it as CSV"),
    **dict.fromkeys((".bz2", ".lz4", ".lzma", ".br", ".z"), "decompress it"),
    **dict.fromkeys((".zip", ".7z", ".rar", ".tar", ".tgz"), "unpack it"),
    **dict.fromkeys(
        (".conll", ".conllu", ".iob", ".bio", ".ann"), "words and tags: --kind tagging"
    ),
}
"""Formats that are not read -> what to do."""


def read_table(path: Path, names: list[str], layout: Layout, broken: Broken) -> Values:
    """The values of some columns, row by row.

    Args:
        path: a ``.tsv`` (or ``.txt`` of the same form), ``.csv``, ``.jsonl``, ``.json``,
            ``.xlsx`` or ``.parquet`` file, or the folder of a data set. Of all but ``.json``, the
            row is kept, and the beginning of the file.
        names: of the columns, or their numbers in a file without a header.
        layout: how the columns are told apart.
        broken: what to do with a row that cannot be read.

    Yields:
        The line of the row, and its values in the order of ``names``.

    Raises:
        InputError: the file cannot be read as requested.
        ConfigError: a column that should be a number but is not.
    """
    reader = json_rows if is_dataset(path) else _READERS.get(ending(path))
    if path.is_dir() and reader is None:
        raise InputError(
            "is a folder, and not that of a data set; name a file in it (of several: join them).",
            place=Place(path),
        )
    if reader is None:
        if path.suffix.lower() in COMPRESSED:
            raise InputError(
                "labelled files are not read compressed; decompress it.", place=Place(path)
            )
        other = _OTHERS.get(ending(path)) or "rename it if it has one of these formats"
        raise InputError(
            f"examples are read from {', '.join(_READERS)} files and folders of data sets, not "
            f"from {path.suffix or 'this'!r}; {other}.",
            place=Place(path),
        )
    yield from reader(path, names, layout, broken)
