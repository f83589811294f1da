"""Files with tags for words, or labelled spans of texts, in whatever format."""

from __future__ import annotations

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
    format_of_item,
    read_brat,
    text_with_spans,
)
from bothways.io.annotations.written_spans import WRITERS
from bothways.io.columns import checked_text
from bothways.io.lines import listed
from bothways.io.options import Format
from bothways.io.rows import JSON, PARQUET, SHEETS, first_value, shown, table_suffix, whole_number
from bothways.io.tables import read_items, read_table
from bothways.io.text import read_lines, read_whole

BRAT, WORDS = "brat", "words"
NAMES = (COLUMNS, TABLE, BRAT, WORDS, *WRITERS)
"""The formats of files with tags."""
_WORD_KEYS = ("tokens", "words")
_TAG_KEYS = ("ner_tags", "tags", "labels", "ner", "pos_tags", "upos")


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
    if found.texts and labelled:
        _refuse_tags(found, path)
    elif not found.texts:
        _name_tags(found, names, path, labelled=labelled)
    return found


def _read_brat(path: Path, encoding: str) -> TaggedFile:
    files = brat_files(path)
    if not files:
        raise InputError("is a folder without .ann files; name a file.", place=Place(path))
    note = f"it is brat's, {len(files):,} documents" if path.is_dir() else "it is brat's"
    found = TaggedFile(BRAT, tags=None, remarks=[note])
    for one in files:
        text = one.with_suffix(".txt")
        if not text.is_file():
            raise InputError(f"{text.name}, the text of it, is missing.", place=Place(one))
        content = read_whole(text, as_it_is=True, encoding=encoding)
        found.texts.append(read_brat(one, content, read_lines(one, encoding=encoding)))
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
    kept = [text for text in found.texts if text.spans is not None or not labelled]
    notes = {
        "examples have several annotations: the first is read, or the one that is marked as the "
        "truth": sum(len(finished_annotations(item)) > 1 for item in tasks),
        "answers are about one span each (_is_binary), so other entities of their texts are read "
        "as O": sum(item.get("_is_binary") is True for item in tasks),
        "examples without annotations, or rejected, left out": len(items) - len(kept),
    }
    found.remarks = [f"it is read as an export of {tool}"]
    found.remarks += [f"{count:,} {note}" for note, count in notes.items() if count]
    if not kept:
        raise InputError("no example was annotated.", place=Place(path))
    found.texts = kept
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
    if not all(checked_text(word, "tokens") for word in words):
        raise InputError("a word is empty.")
    if none := [tag for tag in tags or () if tag is None or isinstance(tag, bool | list | dict)]:
        raise InputError(f"expected a tag, found {shown(none[0])}.")
    as_texts = None if tags is None else [str(tag).strip() for tag in tags]
    found.add(words, [number] * len(words), as_texts, 0)


def _name_tags(found: TaggedFile, names: Sequence[str], path: Path, *, labelled: bool) -> None:
    """Replace tags that are written as numbers by their names.

    Raises:
        InputError: a number that has no name, if tags are needed.
    """
    numbers = {tag: whole_number(tag) for tag in found.all_tags()}
    if not found.words:
        raise InputError("no example has a word.", place=Place(path))
    named_by_numbers = any(whole_number(name) is not None for name in names)
    if not names or named_by_numbers or not numbers or None in numbers.values():
        return
    known = {tag: names[n] for tag, n in numbers.items() if n is not None and 0 <= n < len(names)}
    if labelled and (unknown := numbers.keys() - known.keys()):
        tag = min(unknown)
        raise InputError(
            f"the tag is the number {tag}, and there are names for 0 to {len(names) - 1}.",
            place=found.place_of_tag(path, tag),
            option="labels",
        )
    found.tags = [[known.get(tag, tag) for tag in own] for own in found.tags or ()]
    note = "its tags are numbers, read as those of the task's labels"
    found.remarks += [f"{note}: {one} is {known[one]}" for one in sorted(known)[:1]]


def _refuse_tags(found: TaggedFile, path: Path) -> None:
    """Refuse labels of spans that are tags of words.

    Raises:
        InputError: naming the first span.
    """
    first = {span.label: text for text in reversed(found.texts) for span in text.spans or ()}
    if first and ("O" in first or all(map(TAG.fullmatch, first))):
        label = "O" if "O" in first else min(first)
        raise InputError(
            f"the label of a span is {label!r}, a tag of a word; give a span its type alone.",
            place=Place(first[label].path or path, first[label].line),
        )
