"""One labelled file into two: to train on and to measure on.

A hash of the text decides, so the same example goes to the same side in every file, copies stay
together, and neither the order of lines nor what else is in the file matters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from bothways.errors import ConfigError, InputError
from bothways.files import write_text
from bothways.tasks.readers import did_you_mean, json_items, json_object, listed, text_lines
from bothways.use_options import SplitOptions

_TABLES = (".tsv", ".txt")
_JSON = (".jsonl", ".json")


def split(options: SplitOptions) -> list[str]:
    """Write ``train`` and ``dev`` for `bothways split`.

    Returns:
        Lines that say how many examples went where.

    Raises:
        InputError: the file cannot be read as asked, or one side would be empty.
        ConfigError: there are such files already, or the column is not there.
    """
    path, out = Path(options.file), Path(options.out)
    ending = path.suffix.lower()
    if ending not in (*_TABLES, *_JSON):
        raise InputError(
            f"files with the endings {', '.join((*_TABLES, *_JSON))} can be parted, not "
            f"{ending or 'this'!r}.",
            path=path,
        )
    targets = {name: out / f"{name}{'.jsonl' if ending in _JSON else ending}" for name in _PARTS}
    for target in targets.values():
        if target.exists():
            raise ConfigError(f"{target} exists already; choose a new folder for --out.")
    head = ""
    parts: dict[str, list[str]] = {name: [] for name in _PARTS}
    examples = _table(path, options) if ending in _TABLES else _objects(path, options)
    for key, line in examples:
        if key is None:
            head = line + "\n"
        else:
            parts["train" if _below(key, options.share) else "dev"].append(line)
    for name, lines in parts.items():
        if not lines:
            raise InputError(f"no example would go to {name}; change --share.", path=path)
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in parts.items():
        write_text(targets[name], head + "\n".join(lines) + "\n")
    return [f"{len(lines):,} examples: {targets[name]}" for name, lines in parts.items()]


_PARTS = ("train", "dev")


def _below(key: str, share: float) -> bool:
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, person=b"bothways split")
    return int.from_bytes(digest.digest(), "little") < share * 2**64


def _table(path: Path, options: SplitOptions) -> Iterator[tuple[str | None, str]]:
    """What decides, and the line, of each; the line of column names first, decided by nothing."""
    lines = [line for _, line in text_lines(path)]
    at = None
    names = lines[0].split("\t")
    if options.by is not None and options.header:
        columns = [name.strip() for name in names]
        if columns.count(options.by) != 1:
            raise ConfigError(
                f"{path} must have the column {options.by!r} once; its columns are "
                f"{listed(columns)}.{did_you_mean(options.by, columns)}"
            )
        at = columns.index(options.by)
    elif options.by is not None:
        if not (options.by.isascii() and options.by.isdigit() and int(options.by) < len(names)):
            raise ConfigError(
                f"--by {options.by}: without a header, columns are numbers, 0 to {len(names) - 1}."
            )
        at = int(options.by)
    if options.header:
        yield None, lines[0]
    for number, line in enumerate(lines[options.header :], 1 + options.header):
        values = line.split("\t")
        if len(values) != len(names):
            raise InputError(
                f"has {len(values)} tab-separated columns where line 1 has {len(names)}.",
                path=path,
                line=number,
            )
        yield (line if at is None else values[at]), line


def _objects(path: Path, options: SplitOptions) -> Iterator[tuple[str, str]]:
    """What decides, and the object on a line of its own, of each."""
    if path.suffix.lower() == ".jsonl":
        items = ((n, json_object(line, path, n), line) for n, line in text_lines(path))
    else:
        items = ((n, i, json.dumps(i, ensure_ascii=False)) for n, i in json_items(path))
    for number, item, line in items:
        key = line if options.by is None else item.get(options.by)
        if key is None:
            raise InputError(
                f"key {options.by!r} is missing; the keys are {listed(list(item))}."
                f"{did_you_mean(options.by or '', item)}",
                path=path,
                line=number,
            )
        yield str(key), line.encode("utf-8", "backslashreplace").decode()
