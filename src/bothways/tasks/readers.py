"""Labelled and unlabelled examples from TSV, CSV, JSONL and JSON files.

All are UTF-8, with or without a byte order mark, with LF or CRLF. Blank lines at the end are
ignored, but a line of tabs is a row of a TSV file whose columns are empty. An empty text is an
example like any other (files to predict need one answer per line); how many there are is reported,
and a column in which every text is empty is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bothways.errors import InputError
from bothways.io.broken import Broken
from bothways.io.lines import Layout
from bothways.io.tables import read_table
from bothways.tasks.labels import check_spellings
from bothways.tasks.options import TaskOptions


@dataclass(frozen=True)
class Rows:
    """The examples of one file, in its order.

    Attributes:
        path: the file.
        lines: the line of each example, from 1.
        a: the (first) text of each.
        b: the second text of each; None if the task has single texts.
        labels: the label or score of each, as written; None if the file was read without labels.
        broken: lines left out because they cannot be read (``broken: skip``).
    """

    path: Path
    lines: list[int] = field(default_factory=list)
    a: list[str] = field(default_factory=list)
    b: list[str] | None = None
    labels: list[str] | None = None
    broken: Broken = field(default_factory=Broken)

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
        path: a ``.tsv`` (or ``.txt`` of the same form), ``.csv``, ``.jsonl`` or ``.json`` file.
        options: which columns hold texts and label, whether a TSV file has a header, and what to do
            with broken lines.
        labelled: read the label too. If not, the file needs no label column.

    Raises:
        InputError: the file or a line of it cannot be read as requested; file and line are named.
        ConfigError: a column that should be a number but is not.
    """
    path = Path(path)
    names = [options.text_a]
    if options.text_b is not None:
        names.append(options.text_b)
    if labelled:
        names.append(options.label)
    rows = Rows(
        path,
        b=None if options.text_b is None else [],
        labels=[] if labelled else None,
        broken=broken_lines(options, labelled=labelled),
    )
    for number, values in read_table(path, names, layout_of(options), rows.broken):
        if rows.labels is not None:
            try:
                rows.labels.append(clean_label(values[-1], path, number))
            except InputError as error:
                rows.broken.leave_out(error)
                continue
        rows.lines.append(number)
        rows.a.append(values[0])
        if rows.b is not None:
            rows.b.append(values[1])
    if rows.labels is not None and options.kind == "classification" and not options.labels:
        check_spellings(path, zip(rows.lines, rows.labels, strict=True))
    texts = {options.text_a: rows.a}
    if options.text_b is not None and rows.b is not None:
        texts[options.text_b] = rows.b
    check_not_empty(path, texts)
    return rows


def layout_of(options: TaskOptions) -> Layout:
    """How the files of a task are laid out."""
    return Layout(
        options.header,
        options.columns,
        labels=frozenset([options.label]),
        lists=frozenset(options.choices),
    )


def broken_lines(options: TaskOptions, *, labelled: bool) -> Broken:
    """The policy for lines that cannot be read. In a file to predict they are never left out,
    because every line needs its answer."""
    if not labelled:
        return Broken()
    return Broken(
        "skip" if options.broken == "skip" else "stop",
        "(task.broken skip leaves out such lines of labelled files.)",
    )


def clean_label(text: str, path: Path, number: int) -> str:
    """A label without surrounding white space.

    Raises:
        InputError: it is empty, or holds a tab or line break, which a TSV file cannot.
    """
    label = text.strip()
    if not label:
        raise InputError("the label is empty.", path=path, line=number)
    if "\t" in label or "\n" in label or "\r" in label:
        raise InputError(
            f"the label {label!r} holds a tab or line break, which predictions (.tsv) cannot.",
            path=path,
            line=number,
        )
    return label


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
            raise InputError("has no examples.", path=path)
        if len(texts) > 1 and not any(text.strip() for text in texts):
            raise InputError(
                f"every text in column {name!r} is empty; most likely this is the wrong column.",
                path=path,
            )
