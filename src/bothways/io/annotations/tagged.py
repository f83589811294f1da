"""Files with tags for words, or labelled spans of texts, in whatever format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.annotations.choices import finished_annotations
from bothways.io.annotations.conll import (
    COLUMNS,
    TABLE,
    TAG,
    ConllFormat,
    TaggedFile,
    are_word_rows,
    has_word_columns,
    read_conll,
    read_word_rows,
)
from bothways.io.annotations.spans import (
    CharacterSpan,
    format_of_item,
    read_brat,
    text_with_spans,
)
from bothways.io.annotations.values import first_value
from bothways.io.annotations.written_spans import WRITERS
from bothways.io.columns import checked_text
from bothways.io.lines import listed
from bothways.io.options import Format
from bothways.io.rows import JSON, PARQUET, SHEETS, shown, table_suffix
from bothways.io.tables import read_items, read_table
from bothways.io.terminal import counted
from bothways.io.text import read_lines, read_whole

BRAT, WORDS = "brat", "words"
NAMES = (COLUMNS, TABLE, BRAT, WORDS, *WRITERS)
"""The formats of files with tags."""
_WORD_KEYS = ("tokens", "words")
_TAG_KEYS = ("ner_tags", "tags", "labels", "ner", "pos_tags", "upos")
_WHOLE = re.compile(r"-?[0-9]+(?:\.0+)?")


def brat_files(path: Path) -> list[Path]:
    """The ``.ann`` files of a folder, by their names, or the one that is named."""
    if path.is_dir():
        return sorted(one for one in path.glob("*.ann") if not one.name.startswith("._"))
    return [path] if path.suffix.lower() == ".ann" else []


def holds_examples(folder: Path) -> bool:
    """Whether a folder holds documents of brat."""
    return bool(brat_files(folder))


def read_tagged(
    path: Path,
    layout: ConllFormat,
    *,
    labelled: bool,
    names: tuple[str, ...] = (),
    form: Format | None = None,
) -> TaggedFile:
    """Read a file; its format is found by its suffix, its keys and its first line.

    Args:
        path: CoNLL columns, CoNLL-U, a table with a word per row, brat's ``.ann`` with its
            ``.txt`` beside it or a folder of them, or JSON of words with tags or of texts with
            spans.
        layout: of columns.
        labelled: tags or spans are needed.
        names: of tags, for files that have their numbers.
        form: how the file is written.

    Raises:
        InputError: it cannot be read, is of none of these formats, or lacks tags that are needed;
            with file and line.
    """
    suffix, form = table_suffix(path), form or Format()
    if suffix in (*JSON, PARQUET, *SHEETS):
        found = _read_items(path, layout, form, labelled=labelled)
    elif path.is_dir() or suffix == ".ann":
        found = _read_brat(path, form.encoding)
    elif suffix == ".csv" or has_word_columns(path, form.encoding):
        found = read_word_rows(path, read_table(path, form), layout, labelled=labelled)
    else:
        found = read_conll(path, layout, labelled=labelled, encoding=form.encoding)
    if found.texts:
        _check_texts(found, path, labelled=labelled)
    else:
        _name_tags(found, names, path, labelled=labelled)
    return found


def _read_brat(path: Path, encoding: str) -> TaggedFile:
    files = brat_files(path)
    if not files:
        raise InputError("is a folder without .ann files; name a file.", place=Place(path))
    found = TaggedFile(BRAT, tags=None, remarks=["it is brat's"])
    for one in files:
        text = one.with_suffix(".txt")
        if not text.is_file():
            raise InputError(f"{text.name}, the text of it, is missing.", place=Place(one))
        content = read_whole(text, as_it_is=True, encoding=encoding)
        found.texts.append(read_brat(one, content, read_lines(one, encoding=encoding)))
    if path.is_dir():
        found.remarks = [f"it is brat's, {len(files):,} documents"]
        if alone := sum(not t.with_suffix(".ann").is_file() for t in path.glob("*.txt")):
            found.remarks.append(f"{alone:,} texts without an .ann file are left out")
    return found


def _read_items(path: Path, layout: ConllFormat, form: Format, *, labelled: bool) -> TaggedFile:
    """Read JSON, Parquet or a sheet."""
    items = [one for one in read_items(path, form) if one[1] is not None]
    if not items:
        raise InputError("has no examples.", place=Place(path))
    first = items[0][1]
    if are_word_rows(first):
        return read_word_rows(path, items, layout, labelled=labelled)
    tool = WORDS if _words_of(first) is not None else format_of_item(first)
    found = TaggedFile(tool)
    for place, item in items:
        try:
            if tool == WORDS:
                _add_words(found, item, place.row or 0, labelled=labelled)
            else:
                found.texts.append(text_with_spans(item, place.row or 0))
        except InputError as error:
            error.place = error.place or place
            raise
    if tool == WORDS:
        return found
    tasks = [item for _, item in items if isinstance(item, dict)]
    several = sum(len(finished_annotations(item)) > 1 for item in tasks)
    single = sum(item.get("_is_binary") is True for item in tasks)
    kept = [text for text in found.texts if text.spans is not None]
    left_out = len(items) - len(kept) if labelled else 0
    notes = {
        f"it is read as an export of {tool}": 1,
        f"{several:,} examples have several annotations: the first is read, or the one that is "
        "marked as the truth": several,
        f"{single:,} answers are about one span each (_is_binary), so other entities of their "
        "texts are read as O": single,
        f"{counted(left_out, 'example')} without annotations, or rejected, left out": left_out,
    }
    found.remarks += [note for note, count in notes.items() if count]
    if labelled and not kept:
        raise InputError("no example was annotated.", place=Place(path))
    found.texts = kept if labelled else found.texts
    return found


def _words_of(item: Any) -> list[str] | None:
    """The words of an object such as ``{"tokens": [...], "tags": [...]}``; None if it has none."""
    value = first_value(item, _WORD_KEYS)
    words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    return value if words else None


def _add_words(found: TaggedFile, item: Any, number: int, *, labelled: bool) -> None:
    words = _words_of(item)
    if words is None:
        raise InputError(f"expected a list of words under 'tokens', found {shown(item, 60)}.")
    tags = next((item[name] for name in _TAG_KEYS if isinstance(item.get(name), list)), None)
    if labelled and tags is None:
        raise InputError(f"expected a list under 'tags', found {listed(list(item))}.")
    if tags is not None and len(tags) != len(words):
        raise InputError(f"has {len(words)} words and {len(tags)} tags.")
    for value in words:
        if not checked_text(value, "tokens"):
            raise InputError("a word is empty.")
    for value in tags or ():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InputError(f"expected a tag, found {shown(value)}.")
    as_texts = None if tags is None else [str(tag).strip() for tag in tags]
    found.add(words, [number] * len(words), as_texts, 0)


def _name_tags(found: TaggedFile, names: Sequence[str], path: Path, *, labelled: bool) -> None:
    """Replace tags that are written as numbers by their names.

    Raises:
        InputError: a number that has no name, if tags are needed.
    """
    tags = found.all_tags()
    if not found.words:
        raise InputError("no example has a word.", place=Place(path))
    numbers = bool(tags) and all(map(_WHOLE.fullmatch, tags))
    if found.tags is None or not names or not numbers or any(map(_WHOLE.fullmatch, names)):
        return
    number = {tag: int(float(tag)) for tag in tags}
    known = {tag: names[n] for tag, n in number.items() if 0 <= n < len(names)}
    if labelled and (unknown := tags - known.keys()):
        tag = min(unknown)
        raise InputError(
            f"the tag is the number {tag}, and there are names for 0 to {len(names) - 1}.",
            place=found.place_of_tag(path, tag),
            option="task.labels",
        )
    found.tags = [[known.get(tag, tag) for tag in own] for own in found.tags]
    if known:
        one = min(known)
        note = f"its tags are numbers, read as those of the task's labels: {one} is {known[one]}"
        found.remarks.append(note)


def _check_texts(found: TaggedFile, path: Path, *, labelled: bool) -> None:
    """Refuse labels of spans that are tags of words; note texts that are annotated in two ways."""
    of_text: dict[str, set[frozenset[CharacterSpan]]] = {}
    first: dict[str, Place] = {}
    for text in found.texts:
        of_text.setdefault(text.text, set()).add(frozenset(text.spans or ()))
        for span in text.spans or ():
            first.setdefault(span.label, Place(text.path or path, text.line))
    if labelled and first and ("O" in first or all(map(TAG.fullmatch, first))):
        label = "O" if "O" in first else next(iter(first))
        raise InputError(
            f"the label of a span is {label!r}, a tag of a word; give a span its type alone.",
            place=first[label],
        )
    if labelled and (differing := sum(len(spans) > 1 for spans in of_text.values())):
        found.remarks.append(
            f"{differing:,} texts occur again with other spans; each is an example of its own"
        )
