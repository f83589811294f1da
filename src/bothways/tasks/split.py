"""Splits one labelled file in two: to train on and to measure on.

A hash of the line, or of one of its columns, decides, so the same example goes to the same split in
every file, copies stay together, and neither the order of lines nor the rest of the file matters.
Files in SQuAD's format are split by article, so that nobody is asked about a passage trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

from bothways.config import SplitConfig
from bothways.errors import ConfigError, InputError
from bothways.files import write_json, write_text
from bothways.tasks.delimited import csv_delimiter, csv_records
from bothways.tasks.json_files import json_items, json_object, json_value
from bothways.tasks.lines import did_you_mean, listed, text_lines
from bothways.tasks.questions import read_articles, read_questions

_TABLES = (".tsv", ".txt", ".csv")
_JSON = (".jsonl", ".json")
_SPLITS = ("train", "dev")
_Record = tuple[int, list[str], str]  # line number, columns, the line or lines themselves


def split(options: SplitConfig) -> list[str]:
    """Write ``train`` and ``dev`` for `bothways split`.

    Returns:
        Lines with the number of examples in each file, and the columns of a header.

    Raises:
        InputError: the file cannot be read as requested, or one split would be empty.
        ConfigError: the files exist already, or the column does not.
    """
    path, out = Path(options.file), Path(options.out)
    ending = path.suffix.lower()
    if ending not in (*_TABLES, *_JSON):
        raise InputError(
            f"only files with the suffixes {', '.join((*_TABLES, *_JSON))} can be split, not "
            f"{ending or 'this'!r}.",
            path=path,
        )
    of_questions = ending == ".json" and _begins_as_object(path)
    kept = ".json" if of_questions else ".jsonl" if ending in _JSON else ending
    targets = {name: out / f"{name}{kept}" for name in _SPLITS}
    for target in targets.values():
        if target.exists():
            raise ConfigError(f"{target} exists already; choose a new folder for --out.")
    if of_questions:
        return _split_articles(path, options, targets)
    header, names = "", []
    splits: dict[str, list[str]] = {name: [] for name in _SPLITS}
    examples = _table(path, options) if ending in _TABLES else _objects(path, options)
    for key, line in examples:
        if isinstance(key, str):
            splits["train" if _in_train(key, options.share) else "dev"].append(line)
        else:
            header, names = line + "\n", key
    if not any(splits.values()):
        raise InputError("has no examples.", path=path)
    for name, lines in splits.items():
        if not lines:
            raise InputError(f"no example would go to {name}; change --share.", path=path)
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in splits.items():
        write_text(targets[name], header + "\n".join(lines) + "\n")
    told = [f"{len(lines):,} examples: {targets[name]}" for name, lines in splits.items()]
    if names:
        told.append(f"columns: {listed(names)} (if line 1 is an example instead: --header false)")
    return told


def _in_train(key: str, share: float) -> bool:
    """Whether the hash of a key is among the first ``share`` of all hashes."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, person=b"bothways split")
    return int.from_bytes(digest.digest(), "little") < share * 2**64


def _begins_as_object(path: Path) -> bool:
    """Whether a JSON file is one object, as in SQuAD's format, rather than a list."""
    try:
        with path.open("rb") as file:
            beginning = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", path=path) from None
    return beginning.startswith(b"{")


def _split_articles(path: Path, options: SplitConfig, targets: dict[str, Path]) -> list[str]:
    """Split a file in SQuAD's format by the titles of its articles; without one, by the article."""
    if options.by is not None:
        raise ConfigError(
            f"--by {options.by}: {path} has questions on passages, which are split by article; "
            "leave out --by."
        )
    read_questions(path, labelled=False)  # refuses, with the place, what no verb could read
    content, articles = read_articles(path)
    splits: dict[str, list[Any]] = {name: [] for name in _SPLITS}
    for article in articles:
        key = article.get("title") or json.dumps(article, ensure_ascii=False, sort_keys=True)
        splits["train" if _in_train(str(key), options.share) else "dev"].append(article)
    for name, some in splits.items():
        if not any(paragraph["qas"] for article in some for paragraph in article["paragraphs"]):
            raise InputError(f"no question would go to {name}; change --share.", path=path)
    targets["train"].parent.mkdir(parents=True, exist_ok=True)
    told = []
    for name, some in splits.items():
        write_json(targets[name], {**content, "data": some})
        count = len(read_questions(targets[name], labelled=False))
        told.append(f"{count:,} questions of {len(some):,} articles: {targets[name]}")
    return told


def _table(path: Path, options: SplitConfig) -> Iterator[tuple[str | list[str], str]]:
    """Each example as (key to hash, line), after (columns, line) of the header, if there is one."""
    is_csv = path.suffix.lower() == ".csv"
    records = _csv_rows(path, header=options.header) if is_csv else _tsv_rows(path)
    number, names, line = next(records)
    column = None
    if options.by is not None and options.header:
        columns = [name.strip() for name in names]
        if columns.count(options.by) != 1:
            raise ConfigError(
                f"{path} must have the column {options.by!r} once; its columns are "
                f"{listed(columns)}.{did_you_mean(options.by, columns)}"
            )
        column = columns.index(options.by)
    elif options.by is not None:
        if not (options.by.isascii() and options.by.isdigit() and int(options.by) < len(names)):
            raise ConfigError(
                f"--by {options.by}: without a header, columns are numbers, 0 to {len(names) - 1}."
            )
        column = int(options.by)
    if options.header:
        yield [name.strip() for name in names], line
    else:
        records = chain([(number, names, line)], records)
    for number, values, line in records:
        if len(values) != len(names):
            raise InputError(
                f"has {len(values)} columns where line 1 has {len(names)}.", path=path, line=number
            )
        yield (line if column is None else values[column]), line


def _tsv_rows(path: Path) -> Iterator[_Record]:
    for number, line in text_lines(path, tabs=True):
        yield number, line.split("\t"), line


def _csv_rows(path: Path, *, header: bool) -> Iterator[_Record]:
    """Records as they stand in the file; one may have several lines."""
    lines = text_lines(path)
    records = list(csv_records(lines, path, csv_delimiter(lines, header=header, width=2)))
    stops = [start for start, _ in records[1:]] + [len(lines) + 1]
    for (start, values), stop in zip(records, stops, strict=True):
        yield start, values, "\n".join(line for _, line in lines[start - 1 : stop - 1])


def _objects(path: Path, options: SplitConfig) -> Iterator[tuple[str, str]]:
    """Each example as (key to hash, JSON object on one line)."""
    if path.suffix.lower() == ".jsonl":
        items = ((n, json_object(line, path, n), line) for n, line in text_lines(path))
    else:
        items = ((n, i, json.dumps(i, ensure_ascii=False)) for n, i in json_items(path))
    for number, item, line in items:
        key = line if options.by is None else json_value(item, options.by, path, number)
        yield str(key), line.encode("utf-8", "backslashreplace").decode()
