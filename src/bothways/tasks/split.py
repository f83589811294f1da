"""Splits one labelled file in two: to train on and to measure on.

A hash of the line, or of one of its columns, decides, so the same example goes to the same split in
every file, copies stay together, and neither the order of lines nor the rest of the file matters.
Files in SQuAD's format are split by article, so that nobody is asked about a passage trained on.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bothways.errors import ConfigError, InputError, Place
from bothways.io.annotations.squad import read_questions
from bothways.io.broken import Broken
from bothways.io.delimited import (
    delimited_records,
    ragged_row,
    remove_above,
    title_above,
    without_values,
)
from bothways.io.files import as_json, write_bytes
from bothways.io.json_files import (
    in_json_lines,
    json_object,
    json_objects,
    json_value,
    read_json_file,
    without_comma,
)
from bothways.io.lines import Layout, did_you_mean, listed, text_lines
from bothways.io.text import beginning
from bothways.tasks.options import SplitConfig

_TABLES = (".tsv", ".txt", ".csv")
_JSON = (".jsonl", ".json")
_SPLITS = ("train", "dev")
_LOOKED_AT = 20  # rows


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
            place=Place(path),
        )
    content = _squad_content(path) if ending == ".json" else None
    kept = ".json" if content else ".jsonl" if ending in _JSON else ending
    targets = {name: out / f"{name}{kept}" for name in _SPLITS}
    for target in targets.values():
        if target.exists():
            raise ConfigError(f"{target} exists already; choose a new folder for --out.")
    if content:
        return _split_articles(path, content, options, targets)
    header, names = "", []
    splits: dict[str, list[str]] = {name: [] for name in _SPLITS}
    broken = Broken()
    examples = _table(path, options, broken) if ending in _TABLES else _objects(path, options)
    for key, line in examples:
        if isinstance(key, str):
            splits["train" if _in_train(key, options.share) else "dev"].append(line)
        else:
            header, names = line + "\n", key
    if not any(splits.values()):
        raise InputError("has no examples.", place=Place(path))
    for name, lines in splits.items():
        if not lines:
            raise InputError(f"no example would go to {name}; change --share.", place=Place(path))
    _write({targets[n]: (header + "\n".join(lines) + "\n").encode() for n, lines in splits.items()})
    told = [f"{len(lines):,} examples: {targets[name]}" for name, lines in splits.items()]
    if names:
        told.append(f"columns: {listed(names)} (if line 1 is an example instead: --header false)")
    return told + broken.notes(path.name)


def _in_train(key: str, share: float) -> bool:
    """Whether the hash of a key is among the first ``share`` of all hashes."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, person=b"bothways split")
    return int.from_bytes(digest.digest(), "little") < share * 2**64


def _squad_content(path: Path) -> dict[str, Any] | None:
    """The content of a file in SQuAD's format; None if it is for :func:`json_objects` to read,
    or to refuse: a list, several objects, another object."""
    try:
        content = read_json_file(path)
    except InputError as error:
        is_object = beginning(path).lstrip().startswith("{")
        if is_object and "Extra data" not in str(error):
            raise
        return None
    if not isinstance(content, dict) or "data" not in content:
        return None
    data = content["data"]
    rows = isinstance(data, list) and data and all(isinstance(item, dict) for item in data)
    return None if rows and not any("paragraphs" in item for item in data) else content


def _split_articles(
    path: Path, content: dict[str, Any], options: SplitConfig, targets: dict[str, Path]
) -> list[str]:
    """Split a file in SQuAD's format: articles with one title and equal passages stay together. If
    all are one article, by passage."""
    if options.by is not None:
        raise ConfigError(
            f"--by {options.by}: {path} has questions on passages, which are split by article; "
            "leave out --by."
        )
    read_questions(path, labelled=False)  # refuses, with the place, what no verb could read
    articles = content["data"]
    keys = _article_keys(articles)
    splits, counts = {}, {}
    for name in _SPLITS:
        splits[name] = [
            {**article, "paragraphs": own}
            for article, its in zip(articles, keys, strict=True)
            if (own := _paragraphs_of(name, article, its, options.share))
        ]
        counts[name] = sum(len(p["qas"]) for article in splits[name] for p in article["paragraphs"])
        if not counts[name]:
            raise InputError(f"no question would go to {name}; change --share.", place=Place(path))
    _write({targets[name]: as_json({**content, "data": some}) for name, some in splits.items()})
    return [
        f"{counts[name]:,} questions of {len(some):,} articles: {targets[name]}"
        for name, some in splits.items()
    ]


def _write(files: dict[Path, bytes]) -> None:
    """Write all files or none: with one alone, the same command would refuse to go on.

    Raises:
        DiskError: one of them cannot be written.
    """
    try:
        for path, data in files.items():
            write_bytes(path, data)
    except BaseException:
        for path in files:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise


def _paragraphs_of(name: str, article: dict[str, Any], keys: list[str], share: float) -> list[Any]:
    """The paragraphs of an article that go to a split."""
    return [
        paragraph
        for paragraph, key in zip(article["paragraphs"], keys, strict=True)
        if _in_train(key, share) == (name == "train")
    ]


def _article_keys(articles: list[dict[str, Any]]) -> list[list[str]]:
    """The key to hash of each paragraph of each article.

    Paragraphs of one article, of one title (if there are several titles) and of one text share it:
    the first title of such a group, or the first text, in the order of the alphabet.
    """
    titles = {str(article.get("title") or "") for article in articles}
    groups: dict[tuple[int, str], set[tuple[int, str]]] = {}  # of each name, those joined with it
    names = []
    for number, article in enumerate(articles):
        title = str(article.get("title") or "")
        of_article = [(0, title)] if title and len(titles) > 1 else []
        if len(articles) > 1:
            of_article.append((2, f"{number:09}"))
        names.append([[(1, p["context"]), *of_article] for p in article["paragraphs"]])
        for paragraph in names[-1]:
            for name in paragraph:
                own = groups.setdefault(paragraph[0], {paragraph[0]})
                other = groups.setdefault(name, {name})
                if own is not other:
                    small, large = sorted((own, other), key=len)
                    large |= small
                    groups |= dict.fromkeys(small, large)
    first = {name: min(group)[1] for name, group in groups.items()}
    return [[first[paragraph[0]] for paragraph in article] for article in names]


def _table(
    path: Path, options: SplitConfig, broken: Broken
) -> Iterator[tuple[str | list[str], str]]:
    """Each example as (key to hash, line), after (columns, line) of the header, if there is one."""
    wanted = [] if options.by is None else [options.by]
    dialect, records = delimited_records(path, wanted, Layout(options.header), broken)
    number, names, line = next(records)
    if options.header:
        begun = [*islice(records, _LOOKED_AT)]
        records = chain(begun, records)
        title = title_above([(number, line), *((n, raw) for n, _, raw in begun)])
        if title is not None:
            raise InputError(remove_above(title), place=Place(path, number))
    column, empty = None, 0
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
    for at, values, line in records:
        if path.suffix.lower() == ".csv" and len(values) > 1 and not any(map(str.strip, values)):
            empty += 1  # with --by, they are left out already
            continue
        if len(values) != len(names):
            problem = ragged_row(values, len(names), number, dialect, at)
            raise InputError(problem, place=Place(path, at))
        yield (line if column is None else values[column]), line
    if empty:
        broken.remark(without_values(empty))


def _objects(path: Path, options: SplitConfig) -> Iterator[tuple[str, str]]:
    """Each example as (key to hash, JSON object on one line)."""
    if in_json_lines(path):  # as they are: their hash decides
        lines = ((n, without_comma(line)) for n, line in text_lines(path) if line.strip())
        items = ((n, json_object(line, path, n), line) for n, line in lines)
    else:
        objects = json_objects(path, Broken())
        items = ((n, item, json.dumps(item, ensure_ascii=False)) for n, item in objects)
    for number, item, line in items:
        try:
            key = line if options.by is None else json_value(item, options.by)
        except InputError as error:
            error.place = error.place or Place(path, number)
            raise
        yield str(key), line.encode("utf-8", "backslashreplace").decode()
