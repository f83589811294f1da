"""Labelled and unlabelled examples from tables: TSV, CSV, JSON, workbooks, Parquet.

Text is UTF-8, with or without a byte order mark, with LF or CRLF. Blank lines at the end are
ignored, but a line of tabs is a row of a TSV file whose columns are empty. An empty text is an
example like any other (files to predict need one answer per line); how many there are is reported,
and a column in which every text is empty is refused.
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
from bothways.io.annotations.tagged import likely_kind
from bothways.io.broken import Broken
from bothways.io.columns import (
    TEXT_NAMES,
    Columns,
    Values,
    cell_value,
    checked_text,
    read_columns,
)
from bothways.io.lines import FALSE, TRUE, MissingColumnError
from bothways.io.rows import shown
from bothways.tasks.labels import check_spellings
from bothways.tasks.options import SEVERAL, TaskOptions


@dataclass(frozen=True)
class Rows:
    """The examples of one file, in its order.

    Attributes:
        path: the file.
        lines: the line of each example, from 1.
        a: the (first) text of each.
        b: the second text of each; None if the task has single texts.
        labels: the label or score of each, as written; None if the file was read without labels,
            or an example may have several.
        several: the labels or scores of each, where an example may have several; None if not, or
            if the file was read without labels.
        broken: lines left out because they cannot be read (``broken: skip``).
        groups: of each, the value of the column that keeps examples together, if there is one.
        kept: of each, the values of further columns that were asked for, as the file has them.
        numbers: of each among all rows of the file, from 0, those that are left out counted.
        text: the column of the (first) texts.
    """

    path: Path
    lines: list[int] = field(default_factory=list)
    a: list[str] = field(default_factory=list)
    b: list[str] | None = None
    labels: list[str] | None = None
    broken: Broken = field(default_factory=Broken)
    several: list[tuple[str, ...]] | None = None
    groups: list[str] | None = None
    kept: list[list[Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    text: str = TEXT_NAMES[0]

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def empty(self) -> int:
        """How many examples have an empty text."""
        seconds = self.a if self.b is None else self.b
        return sum(not (a.strip() and b.strip()) for a, b in zip(self.a, seconds, strict=True))


def read_rows(path: str | Path, options: TaskOptions, *, labelled: bool) -> Rows:
    """Read the columns that the task names.

    Args:
        path: see :func:`bothways.io.rows.read_table`.
        options: which columns hold texts and label, whether a TSV file has a header, and what to do
            with broken lines.
        labelled: read the label too. If not, the file needs no label column.

    Raises:
        InputError: the file or a line of it cannot be read as requested; file and line are named.
        ConfigError: a column that should be a number but is not.
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
) -> Iterator[Rows]:
    """Read the columns that the task names, in windows of rows; at least one window.

    Args:
        path, options, labelled: as for :func:`read_rows`.
        keep: further columns, whose values may be numbers.
        skip: leave out rows that cannot be read, in a file without labels.
        whole: read the file as one window.

    Raises:
        InputError, ConfigError: as for :func:`read_rows`.
    """
    wanted = _Wanted(options, labelled, tuple(keep))
    broken = broken_lines(options, labelled=labelled, skip=skip)
    wanted, table = _opened(path, wanted, broken)
    found, size, done = wanted.no_rows(path, broken), 0, 0
    for number, values in table:
        if not whole and window_ends(len(found), size):
            _check_window(found, options, wanted.texts, first=not done)
            yield found
            found, size, done = wanted.no_rows(path, broken), 0, done + len(found)
        try:
            wanted.add(found, values, number, done + len(found) + broken.left_out)
        except InputError as error:
            broken.leave_out(error, Place(path, number))
            continue
        size += sum(map(len, values[: len(wanted.texts)]))
    _check_window(found, options, wanted.texts, first=not done)
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
        return [options.text_a] if options.text_b is None else [options.text_a, options.text_b]

    @cached_property
    def labels(self) -> list[str]:
        """Those of labels."""
        return [*(self.options.label_columns or [self.options.label])] if self.labelled else []

    @cached_property
    def further(self) -> list[str]:
        """Those that are read for nothing else than to be kept."""
        others = {*self.texts, *self.labels, self.options.group}
        return [name for name in dict.fromkeys(self.keep) if name not in others]

    @cached_property
    def columns(self) -> list[str]:
        """All, in this order, with the group behind the labels."""
        groups = [] if self.options.group is None else [self.options.group]
        return [*self.texts, *self.labels, *groups, *self.further]

    @property
    def wanted(self) -> Columns:
        """What is read of the file; further columns may hold anything."""
        found = columns_of(self.options, self.columns)
        return replace(found, kept=self.further, labelled=self.labelled)

    @cached_property
    def _names(self) -> dict[str, str]:
        return self.options.named

    def no_rows(self, path: Path, broken: Broken) -> Rows:
        """The beginning of a window."""
        several = self.options.kind in SEVERAL
        return Rows(
            path,
            text=self.options.text_a,
            b=None if self.options.text_b is None else [],
            labels=[] if self.labelled and not several else None,
            several=[] if self.labelled and several else None,
            broken=broken,
            groups=None if self.options.group is None else [],
        )

    def add(self, rows: Rows, values: Sequence[Any], line: int, number: int) -> None:
        """Add a row.

        Args:
            rows: the window.
            values: of the columns.
            line: where the row is.
            number: of the row among all of the file, from 0.

        Raises:
            InputError: its label is none, or not one.
        """
        before = len(self.texts)
        after = before + len(self.labels)
        if rows.labels is not None:
            label = _only_label(values[before], self.options)
            rows.labels.append(self._names.get(label, label))
        if rows.several is not None:
            given = _several(values[before:after], self.options)
            rows.several.append(tuple(self._names.get(label, label) for label in given))
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


def _opened(path: Path, wanted: _Wanted, broken: Broken) -> tuple[_Wanted, Values]:
    """What is read of a file, and its rows. If it lacks the usual column of the texts, it is the
    other of :data:`TEXT_NAMES`. An error before the first row says what else the file seems to
    be."""
    rows = read_columns(path, wanted.wanted, broken)
    try:
        first = next(rows, None)
    except InputError as error:
        options = wanted.options
        if isinstance(error, MissingColumnError) and error.missing == options.text_a in TEXT_NAMES:
            for name in TEXT_NAMES:
                if name in error.columns and name != options.text_b:
                    options = replace(options, text_a=name)
                    return _opened(path, replace(wanted, options=options), broken)
        if isinstance(error, MissingColumnError) and error.missing == options.text_a:
            error.option = "text"
        elif isinstance(error, MissingColumnError) and error.missing == options.label:
            error.option = "label"
        if wanted.labelled and (kind := likely_kind(path)):
            error.problem += f" The file looks like {_OTHER_KINDS[kind]}, not like {options.kind}."
        raise
    return wanted, rows if first is None else chain([first], rows)


_OTHER_KINDS = {
    "questions": "questions on passages (task.kind qa)",
    "tags": "words or texts with tags (task.kind ner)",
}


def _check_window(rows: Rows, options: TaskOptions, texts: Sequence[str], *, first: bool) -> None:
    if not options.labels:
        _refuse_vectors(rows, options)
        _check_spellings(rows, options)
    if first:
        columns = zip(texts, (rows.a, rows.b), strict=False)
        found = {name: column for name, column in columns if column is not None}
        check_not_empty(rows.path, found)


def _check_spellings(rows: Rows, options: TaskOptions) -> None:
    """Refuse labels that differ by an accident of their spelling."""
    if rows.labels is not None and options.kind == "classification":
        check_spellings(rows.path, zip(rows.lines, rows.labels, strict=True))
    elif rows.several is not None and options.kind == "multilabel":
        of_lines = zip(rows.lines, rows.several, strict=True)
        check_spellings(rows.path, ((line, label) for line, own in of_lines for label in own))


def columns_of(options: TaskOptions, names: Sequence[str]) -> Columns:
    """How columns of the files of a task are read."""
    return Columns(
        names,
        labels={options.label, *options.label_columns},
        lists={*options.choices, *([options.label] if options.kind in SEVERAL else [])},
        form=options.form,
    )


def broken_lines(options: TaskOptions, *, labelled: bool, skip: bool = False) -> Broken:
    """The policy for lines that cannot be read. In a file to predict they are left out only if that
    is asked for, because every line needs its answer."""
    if not labelled:
        return Broken("skip" if skip else "stop")
    return Broken(
        "skip" if options.broken == "skip" else "stop",
        "(task.broken skip leaves out such lines of labelled files.)",
    )


def clean_label(text: str) -> str:
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


def _only_label(text: str, options: TaskOptions) -> str:
    """The label of an example that has one: of a list, as some programs write it, its only value.

    Raises:
        InputError: the list has several, or what :func:`clean_label` refuses.
    """
    label = clean_label(text)
    if label in (*options.labels, *options.named):
        return label
    values = cell_value(label)
    if isinstance(values, dict):
        raise InputError(f"column {options.label!r} holds an object, {label[:40]}, not a label.")
    if not isinstance(values, list):
        return label
    if len(values) != 1:
        raise InputError(
            f"column {options.label!r} holds {len(values) or 'no'} labels, {label[:40]}; a text "
            "has one. For any number of labels set task.kind to multilabel."
        )
    return clean_label(_scalar(values[0], options))


_SEPARATORS = "|;,#"
_VECTOR = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def _several(values: Sequence[str], options: TaskOptions) -> tuple[str, ...]:
    """The labels or scores of one example, in the order of the file, each label once.

    Args:
        values: of the task's ``label_columns``, or of its label column alone: labels with a
            separator between them, or a JSON list. A cell without anything has no labels.
        options: the task.
        path: the file.
        number: the line.

    Raises:
        InputError: neither of these.
    """
    if options.label_columns:
        if options.kind == "multiregression":
            return tuple(value.strip() for value in values)
        names = options.labels or options.label_columns
        columns = zip(names, options.label_columns, values, strict=True)
        return tuple(name for name, column, v in columns if _flag(v, column))
    cell, separator = values[0].strip(), options.label_separator
    if not cell:
        return ()
    value = cell_value(cell)
    if isinstance(value, list):
        items = [_scalar(one, options) for one in value]
    elif cell.startswith(("[", "{")):
        raise InputError(f"column {options.label!r} holds {cell[:40]!r}, not a JSON list.")
    elif separator:
        items = cell.split(separator if separator.strip() else None)
        if len(items) > 1 and not items[-1].strip():
            items.pop()  # a separator at the end
    else:
        guess = next((c for c in _SEPARATORS if c in cell), "|")
        raise InputError(
            f"column {options.label!r} holds {cell[:40]!r}, which is not a list; write a JSON list "
            f'such as ["a", "b"], or say what separates labels: --task.label_separator {guess!r}.'
        )
    if options.kind == "multiregression":
        return tuple(item.strip() for item in items)
    if (marked := _of_vector(cell, items, options)) is not None:
        return marked
    labels = tuple(dict.fromkeys(clean_label(item) for item in items))
    for label in labels:
        if separator and separator in label:
            raise InputError(
                f"the label {label!r} holds task.label_separator, {separator!r}, so predictions "
                "could not be read back; choose another separator, or rename the label."
            )
    return labels


def _of_vector(cell: str, items: Sequence[str], options: TaskOptions) -> tuple[str, ...] | None:
    """The labels that a vector of 0 and 1 marks, as scikit-learn and others have several labels;
    None if the items are labels themselves.

    Raises:
        InputError: a vector, and the task does not name as many labels.
    """
    if len(items) < 2 or not all(item.strip() in _VECTOR for item in items):
        return None
    names = options.labels
    if len(names) == len(items) and not set(names) & {item.strip() for item in items}:
        pairs = zip(names, items, strict=True)
        return tuple(name for name, item in pairs if _VECTOR[item.strip()])
    if len({item.strip() for item in items}) == len(items):
        return None
    raise InputError(
        f"column {options.label!r} holds {cell[:40]}, a vector of 0 and 1, and no labels; name "
        f"them in its order: task.labels with {len(items)} names"
        f"{f', not {len(names)}' if names else ''}."
    )


def _refuse_vectors(rows: Rows, options: TaskOptions) -> None:
    """Refuse several labels that are 0 and 1 in one order or the other everywhere."""
    found = sorted(set(rows.several or ()))
    if options.kind == "multilabel" and len(found) == 2 and all(len(own) == 2 for own in found):
        one, two = found
        if one == two[::-1] and set(one) <= _VECTOR.keys():
            raise InputError(
                f"every example has the labels {one[0]} and {one[1]}, as vectors of 0 and 1 have; "
                "name the labels in their order: task.labels with 2 names.",
                place=Place(rows.path, rows.lines[0]),
            )


def _flag(value: str, column: str) -> bool:
    found = value.strip().lower()
    if found in (*TRUE, *FALSE):
        return found in TRUE
    raise InputError(
        f"column {column!r} holds {value[:40]!r}; a column of task.label_columns holds 1, true or "
        "yes where an example has the label, and 0, false or no where not."
    )


def _scalar(value: Any, options: TaskOptions) -> str:
    """A label or score in a list, as text."""
    if isinstance(value, str):
        return checked_text(value, options.label)
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    what = (
        "a score is a finite number"
        if options.kind == SEVERAL[1]
        else ("a label is a string, a number, true or false")
    )
    raise InputError(f"the list in {options.label!r} holds {shown(value)}; {what}.")


def check_not_empty(path: Path, columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse a file without examples, or with several but no text in one of the columns.

    Args:
        path: the file.
        columns: the texts of all examples, by column.

    Raises:
        InputError: there are none, with the column.
    """
    for name, texts in columns.items():
        if not texts:
            raise InputError("has no examples.", place=Place(path))
        if len(texts) > 1 and not any(text.strip() for text in texts):
            raise InputError(
                f"every text in column {name!r} is empty; most likely this is the wrong column.",
                place=Place(path),
            )
