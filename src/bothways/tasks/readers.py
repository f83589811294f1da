"""Texts with their labels from tables: TSV, CSV, JSON, sheets, Parquet.

An empty text is an example like any other (a file to predict needs an answer for each row); how
many there are is reported, and a column in which every text is empty is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.broken import Broken
from bothways.io.columns import (
    TEXT_NAMES,
    Columns,
    Values,
    cell_value,
    checked_text,
    read_columns,
    texts_of,
)
from bothways.io.lines import FALSE, TRUE, MissingColumnError
from bothways.io.rows import shown
from bothways.tasks.labels import check_spellings
from bothways.tasks.options import TaskOptions


@dataclass(frozen=True)
class Texts:
    """The examples of a table, in its order: texts, pairs of texts, or texts with choices.

    Attributes:
        path: the file.
        lines: the line of each example, from 1.
        a: the (first) text of each; of choices the context.
        b: the second text of each; None if the task has single texts.
        labels: the labels or scores of each, as written; None if the file was read without labels.
        broken: lines left out because they cannot be read (``broken: skip``).
        groups: of each, the value of the column that keeps examples together, if there is one.
        kept: of each, the values of further columns that were asked for, as the file has them.
        numbers: of each among all rows of the file, from 0, those that are left out counted.
        choices: of each two or more, with the beginning that they share; None if there are none.
        text: the column of the (first) texts.
    """

    path: Path
    lines: list[int] = field(default_factory=list)
    a: list[str] = field(default_factory=list)
    b: list[str] | None = None
    labels: list[tuple[str, ...]] | None = None
    broken: Broken = field(default_factory=Broken)
    groups: list[str] | None = None
    kept: list[list[Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    choices: list[list[str]] | None = None
    text: str = TEXT_NAMES[0]

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def empty(self) -> int:
        """How many examples have an empty text."""
        seconds = self.a if self.b is None else self.b
        return sum(not (a.strip() and b.strip()) for a, b in zip(self.a, seconds, strict=True))


def read_rows(path: str | Path, options: TaskOptions, *, labelled: bool) -> Texts:
    """Read the columns that the task names.

    Args:
        path: a table (:func:`bothways.io.tables.read_table`).
        options: which columns hold texts and labels, how the file is written, and what to do with
            broken lines.
        labelled: read the labels too. If not, the file needs no column of them.

    Raises:
        InputError: the file or a row of it cannot be read as requested; its place is named.
    """
    (rows,) = row_windows(Path(path), options, labelled=labelled, whole=True)
    return rows


WINDOW_ROWS, WINDOW_CHARACTERS = 16_384, 2**24
"""Of the rows of a file that are predicted together, and their texts. Files with fewer are read as
a whole."""


def window_ends(rows: int, characters: int) -> bool:
    """Whether a window is full."""
    return rows >= WINDOW_ROWS or characters >= WINDOW_CHARACTERS


def row_windows(
    path: Path,
    options: TaskOptions,
    *,
    labelled: bool,
    keep: Sequence[str] = (),
    skip: bool = False,
    whole: bool = False,
) -> Iterator[Texts]:
    """Read the columns that the task names, in windows of rows; at least one window.

    Args:
        path, options, labelled: as for :func:`read_rows`.
        keep: further columns, whose values may be numbers.
        skip: leave out rows that cannot be read, in a file without labels.
        whole: read the file as one window.

    Raises:
        InputError: as for :func:`read_rows`.
    """
    wanted = _Wanted(options, labelled, tuple(keep))
    broken = broken_lines(options, labelled=labelled, skip=skip)
    wanted, table = _opened(path, wanted, broken)
    found, size, done = wanted.no_rows(path, broken), 0, 0
    for number, values in table:
        if not whole and window_ends(len(found), size):
            wanted.check(found, first=not done)
            yield found
            found, size, done = wanted.no_rows(path, broken), 0, done + len(found)
        try:
            wanted.add(found, values, number, done + len(found) + broken.left_out)
        except InputError as error:
            broken.leave_out(error, Place(path, number))
            continue
        size += sum(map(len, values[: len(wanted.texts)]))
    wanted.check(found, first=not done)
    yield found


@dataclass(frozen=True)
class _Wanted:
    """What is read of a file.

    Attributes:
        options: of the task.
        labelled: with the labels.
        keep: further columns.
    """

    options: TaskOptions
    labelled: bool
    keep: tuple[str, ...]

    @cached_property
    def texts(self) -> list[str]:
        """The columns of texts."""
        options = self.options
        second = [] if options.text_b is None else [options.text_b]
        return [options.text, *second, *options.choices]

    @cached_property
    def labels(self) -> list[str]:
        """The columns of labels."""
        return [*(self.options.label_columns or [self.options.label])] if self.labelled else []

    @cached_property
    def columns(self) -> list[str]:
        """All, in this order, with the group behind the labels."""
        groups = [] if self.options.group is None else [self.options.group]
        used = [*self.texts, *self.labels, *groups]
        return [*used, *(name for name in dict.fromkeys(self.keep) if name not in used)]

    @cached_property
    def _names(self) -> dict[str, str]:
        return self.options.named

    def read(self, path: Path, broken: Broken) -> Values:
        """The values of the columns, row by row; further columns may hold anything."""
        used = {*self.texts, *self.labels, self.options.group}
        found = columns_of(self.options, self.columns)
        kept = [name for name in self.keep if name not in used]
        return read_columns(path, replace(found, kept=kept, labelled=self.labelled), broken)

    def no_rows(self, path: Path, broken: Broken) -> Texts:
        """The beginning of a window."""
        options = self.options
        return Texts(
            path,
            text=options.text,
            b=None if options.text_b is None or options.choices else [],
            labels=[] if self.labelled else None,
            broken=broken,
            groups=None if options.group is None else [],
            choices=[] if options.choices else None,
        )

    def add(self, rows: Texts, values: Sequence[Any], line: int, number: int) -> None:
        """Add a row.

        Args:
            rows: the window.
            values: of the columns.
            line: where the row is.
            number: of the row among all of the file, from 0.

        Raises:
            InputError: it has no label, or choices that are none.
        """
        before = len(self.texts)
        after = before + len(self.labels)
        if rows.choices is not None:
            rows.choices.append(_choices(values[1:before], self.options))
        if rows.labels is not None:
            try:
                given = _labels(values[before:after], self.options)
            except InputError:
                if rows.choices is not None:
                    rows.choices.pop()
                raise
            rows.labels.append(tuple(self._names.get(label, label) for label in given))
        rows.numbers.append(number)
        rows.lines.append(line)
        rows.a.append(values[0])
        if rows.b is not None:
            rows.b.append(values[1])
        if rows.groups is not None:
            rows.groups.append(values[after])
        if self.keep:
            by_name = dict(zip(self.columns, values, strict=True))
            rows.kept.append([by_name[name] for name in self.keep])

    def check(self, rows: Texts, *, first: bool) -> None:
        """Refuse labels that are not given or differ by an accident, and columns without texts."""
        labels = rows.labels or []
        found = {label for own in labels for label in own}
        if found and found <= {"-1", "-1.0"} - {*self.options.labels}:
            raise InputError(  # as in GLUE's test files on the Hub
                "labels are not given: each is -1. Give a file with labels, or use predict.",
                place=Place(rows.path),
            )
        if self.options.traits.has_labels and not self.options.labels:
            check_spellings(
                rows.path, ((n, x) for n, own in zip(rows.lines, labels, strict=False) for x in own)
            )
        if first:
            columns = zip(self.texts, (rows.a, rows.b), strict=False)
            _check_not_empty(rows.path, {n: texts for n, texts in columns if texts is not None})


def _opened(path: Path, wanted: _Wanted, broken: Broken) -> tuple[_Wanted, Values]:
    """What is read of a file, and its rows. If it lacks the usual column of the texts, they are in
    the other of :data:`TEXT_NAMES`."""
    rows = wanted.read(path, broken)
    try:
        first = next(rows, None)
    except MissingColumnError as error:
        options = wanted.options
        if error.missing == options.text in TEXT_NAMES:
            for name in TEXT_NAMES:
                if name in error.columns and name != options.text_b:
                    return _opened(
                        path, replace(wanted, options=replace(options, text=name)), broken
                    )
        if error.missing in (options.text, options.label):
            error.option = "text" if error.missing == options.text else "label"
        raise
    return wanted, rows if first is None else chain([first], rows)


def columns_of(options: TaskOptions, names: Sequence[str]) -> Columns:
    """How columns of the files of a task are read."""
    return Columns(
        names,
        labels={options.label, *options.label_columns},
        lists={*options.choices, *([options.label] if options.traits.several else [])},
        form=options.form,
    )


def broken_lines(options: TaskOptions, *, labelled: bool, skip: bool = False) -> Broken:
    """The policy for lines that cannot be read. In a file to predict they are left out only if that
    is asked for, because every line needs its answer."""
    if not labelled:
        return Broken("skip" if skip else "stop")
    return Broken("skip" if options.broken == "skip" else "stop", "broken")


def _clean_label(text: str) -> str:
    """A label without surrounding white space.

    Raises:
        InputError: it is empty, or holds a tab or line break, which a TSV file cannot.
    """
    label = text.strip()
    if not label:
        raise InputError("the label is empty.")
    if "\t" in label or "\n" in label or "\r" in label:
        raise InputError(
            f"the label {label!r} holds a tab or line break, which predictions (.tsv) cannot."
        )
    return label


_VECTOR = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def _labels(values: Sequence[str], options: TaskOptions) -> tuple[str, ...]:
    """The labels or scores of an example, in the order of the file, each label once.

    Args:
        values: of the task's ``label_columns``, or of its label column alone: a label; where an
            example may have several, labels with a separator between them or a JSON list. A cell
            without anything has no labels.
        options: the task.

    Raises:
        InputError: neither of these.
    """
    traits = options.traits
    if options.label_columns:
        if not traits.has_labels:
            return tuple(map(_clean_label, values))
        names = options.labels or options.label_columns
        columns = zip(names, options.label_columns, values, strict=True)
        return tuple(name for name, column, v in columns if _flag(v, column))
    cell, separator = values[0].strip(), options.label_separator
    if not traits.several and cell in (*options.labels, *options.named):
        return (cell,)
    items = _items(cell, options)
    if not traits.several and len(items) != 1:
        raise InputError(
            f"column {options.label!r} holds {len(items)} labels, {cell[:40]}; a text has one. For "
            "any number of labels set kind to multilabel."
        )
    if not traits.has_labels:
        return tuple(map(_clean_label, items))
    if traits.several and (marked := _of_vector(cell, items, options)) is not None:
        return marked
    labels = tuple(dict.fromkeys(map(_clean_label, items)))
    if held := next((label for label in labels if separator and separator in label), None):
        raise InputError(
            f"the label {held!r} holds label_separator, {separator!r}; choose another "
            "separator, or rename the label."
        )
    return labels


def _items(cell: str, options: TaskOptions) -> list[str]:
    """The parts of a cell: of a list its values, else as the task divides them."""
    several, separator, value = options.traits.several, options.label_separator, cell_value(cell)
    if isinstance(value, list):
        return [_scalar(one, options) for one in value]
    if isinstance(value, dict) or (several and cell.startswith(("[", "{"))):
        raise InputError(f"column {options.label!r} holds {cell[:40]!r}, not a list of labels.")
    if not several:
        return [cell]
    if not cell:
        return []
    if not separator:
        raise InputError(
            f"column {options.label!r} holds {cell[:40]!r}, which is not a list; write a JSON list "
            "of labels, or name their separator with label_separator."
        )
    items = cell.split(separator if separator.strip() else None)
    return items[:-1] if len(items) > 1 and not items[-1].strip() else items


def _of_vector(cell: str, items: Sequence[str], options: TaskOptions) -> tuple[str, ...] | None:
    """The labels that a vector of 0 and 1 marks, as scikit-learn and others have several labels;
    None if the items are labels themselves.

    Raises:
        InputError: a vector, and the task does not name as many labels.
    """
    values = [item.strip() for item in items]
    if len(items) < 2 or not {*values} <= _VECTOR.keys():
        return None
    names = options.labels
    if len(names) == len(items) and not {*names} & {*values}:
        return tuple(name for name, item in zip(names, values, strict=True) if _VECTOR[item])
    if len({*values}) == len(items):
        return None
    raise InputError(
        f"column {options.label!r} holds {cell[:40]}, a vector of 0 and 1; name its {len(items)} "
        "labels in their order with labels."
    )


def _flag(value: str, column: str) -> bool:
    found = value.strip().lower()
    if found in (*TRUE, *FALSE):
        return found in TRUE
    raise InputError(
        f"column {column!r} holds {value[:40]!r}; a column of label_columns holds 1, true or "
        "yes where an example has the label, and 0, false or no where not."
    )


def _scalar(value: Any, options: TaskOptions) -> str:
    """A label or score in a list, as text."""
    if isinstance(value, str):
        return checked_text(value, options.label)
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    raise InputError(f"the list in {options.label!r} holds {shown(value)}, not a label or score.")


def _choices(values: Sequence[str], options: TaskOptions) -> list[str]:
    """The full choices of a row, from its values after the context."""
    shared = ""
    if options.text_b is not None:
        shared, *values = values
    columns, choices = options.choices, [*values]
    if len(columns) == 1:
        choices = texts_of(values[0], columns[0])
    if len(choices) < 2:
        raise InputError(f"has fewer than two choices ({columns[0]}); two or more are needed.")
    if options.labels and len(choices) > len(options.labels):
        raise InputError(f"has {len(choices)} choices, but labels names {len(options.labels)}.")
    for i, text in enumerate(choices):
        if not text.strip():
            raise InputError(
                f"choice {i} is empty; different numbers of choices stand in one column, as a JSON "
                "list."
            )
    shared = shared.rstrip()
    return [f"{shared} {choice}" if shared else choice for choice in choices]


def _check_not_empty(path: Path, columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse a file without examples, or with several but no text in one of the columns."""
    for name, texts in columns.items():
        if not texts:
            raise InputError("has no examples.", place=Place(path))
        if len(texts) > 1 and not any(text.strip() for text in texts):
            raise InputError(
                f"every text in column {name!r} is empty; most likely this is the wrong column.",
                place=Place(path),
            )
