"""Splits one labelled file in two: to train on and to measure on.

A hash of the line, or of one of its columns, decides, so the same example goes to the same split in
every file, copies stay together, and neither the order of lines nor the rest of the file matters.
Files in SQuAD's format are split by article, so that nobody is asked about a passage trained on.
"""

from __future__ import annotations

import contextlib
import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from bothways.errors import ConfigError, InputError, Place
from bothways.io.annotations.squad import read_questions
from bothways.io.columns import nested_value
from bothways.io.files import as_json, write_bytes
from bothways.io.json_files import read_json_file
from bothways.io.lines import listed
from bothways.io.rows import DELIMITED, JSON, Format
from bothways.io.tables import read_table
from bothways.io.written import cell_text, table_text
from bothways.tasks.options import SplitConfig

_TABLES = tuple(filter(None, DELIMITED))
_JSON = JSON
_SPLITS = ("train", "dev")


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
    splits: dict[str, list[dict[str, Any]]] = {name: [] for name in _SPLITS}
    for row in read_table(path, Format(header=options.header)):
        key = _key(row.values, options.by, ending)
        splits["train" if _in_train(key, options.share) else "dev"].append(row.values)
    if not any(splits.values()):
        raise InputError("has no examples.", place=Place(path))
    names = list(dict.fromkeys(name for rows in splits.values() for row in rows for name in row))
    for name, rows in splits.items():
        if not rows:
            raise InputError(f"no example would go to {name}; change --share.", place=Place(path))
    header = [names] if options.header else []
    if ending in _JSON:
        texts = {n: "".join(map(_json_line, rows)) for n, rows in splits.items()}
    else:
        tables = {n: [*header, *([*row.values()] for row in rows)] for n, rows in splits.items()}
        texts = {n: table_text(kept, rows) for n, rows in tables.items()}
    _write({targets[name]: text.encode() for name, text in texts.items()})
    told = [f"{len(rows):,} examples: {targets[name]}" for name, rows in splits.items()]
    if options.header and ending in _TABLES:
        told.append(f"columns: {listed(names)} (if line 1 is an example instead: --header false)")
    return told


def _json_line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace").decode() + "\n"


def _key(row: dict[str, Any], by: str | None, ending: str) -> str:
    """What is hashed of a row: a column, or all of it."""
    if by is None:
        return "\t".join(row.values()) if ending in _TABLES else json.dumps(row, ensure_ascii=False)
    return cell_text(row[by] if by in row else nested_value(row, by))


def _in_train(key: str, share: float) -> bool:
    """Whether the hash of a key is among the first ``share`` of all hashes."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, person=b"bothways split")
    return int.from_bytes(digest.digest(), "little") < share * 2**64


def _squad_content(path: Path) -> dict[str, Any] | None:
    """The content of a file in SQuAD's format; None if it is for :func:`json_objects` to read,
    or to refuse: a list, several objects, another object."""
    content = None
    with contextlib.suppress(InputError):
        content = read_json_file(path)
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
