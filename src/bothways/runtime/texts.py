"""The texts of a file to embed: the lines of a text file, or a column of a labelled one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bothways.errors import ConfigError, InputError
from bothways.io.lines import MissingColumnError, did_you_mean, listed
from bothways.io.text import COMPRESSED, read_texts, refuse_records
from bothways.runtime.folder import LoadedModel
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.kinds import task_of
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import read_rows

_TABLES = (".tsv", ".csv", ".jsonl", ".json")
_TAGGED = (".conll", ".iob", ".bio")
_WITHOUT_COLUMNS = ("tagging", "spans")  # kinds of tasks whose files have no named columns


@dataclass(frozen=True)
class FileTexts:
    """The texts of a file, in its order.

    Attributes:
        texts: one per line, row or object.
        column: the column they were taken from; None for lines.
        other: the column of the second texts of such a task, which are not among them.
    """

    texts: tuple[str, ...]
    column: str | None = None
    other: str | None = None


def file_texts(
    path: Path, loaded: LoadedModel, *, text_a: str | None = None, task: str | None = None
) -> FileTexts:
    """Read the texts of a file as `predict --file` reads them, or the lines of a text file.

    Args:
        path: ``.tsv``, ``.csv``, ``.jsonl`` and ``.json`` have columns, and so has a ``.txt`` whose
            lines all have equally many tabs, or for which a column is named; other files hold a
            text per line.
        loaded: a model that was fine-tuned here knows the column of its texts.
        text_a: the column of the texts.
        task: a declared task, or the file of one, that says which column it is.

    Raises:
        InputError: the file cannot be read as requested, or which column holds the texts cannot be
            told.
        ConfigError: ``task`` is not a task, or one whose files have no columns.
    """
    if path.name.lower().endswith(_TAGGED):
        raise InputError(
            "this holds words with tags, one per line; write the texts to a .txt file, one per "
            "line.",
            path=path,
        )
    if not (text_a or task or _is_table(path)):
        refuse_records(path, "write their texts to a .txt file, one per line")
        return FileTexts(tuple(text for _, text in read_texts(path)))
    options = _layout(loaded, task)
    column = text_a or options.text_a
    layout = TaskOptions(text_a=column, label="", header=options.header, columns=options.columns)
    try:
        rows = read_rows(path, layout, labelled=False)
    except MissingColumnError as error:
        if column in error.columns:  # twice
            raise
        raise _unknown_column(error, column, path) from None
    other = options.text_b if column == options.text_a else None
    return FileTexts(tuple(rows.a), column, other)


def _is_table(path: Path) -> bool:
    """Whether a file has columns, by its name, or by its tabs if that says nothing."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix != ".txt":
        return suffix in _TABLES
    tabs = [line.count("\t") for _, line in read_texts(path) if line]
    return len(tabs) > 1 and min(tabs) > 0 and min(tabs) == max(tabs)


def _layout(loaded: LoadedModel, task: str | None) -> TaskOptions:
    """How the file is laid out: as the task says, or as the files the model was fine-tuned on."""
    if task is not None:
        options = task_recipe(task).task
        if options.kind in _WITHOUT_COLUMNS:
            raise ConfigError(
                f"task {task} is of kind {options.kind}, whose files have no column of texts; name "
                "the column of this file with --text_a."
            )
        return options
    known = loaded.about.get("options") and loaded.about.get("kind") not in _WITHOUT_COLUMNS
    return task_of(loaded).options if known and loaded.task_outputs else TaskOptions()


def _unknown_column(error: MissingColumnError, column: str, path: Path) -> InputError:
    remedy = "name the one with the texts: --text_a COLUMN"
    if not path.suffix.lower().startswith(".json"):
        remedy += ". If line 1 is already a text or an example, give the texts on standard input"
        remedy += ", one per line, or a --task FILE.yaml with header: false"
    return InputError(
        f"has no column {column!r}; its columns are {listed(error.columns)}."
        f"{did_you_mean(column, error.columns)} To embed a column, {remedy}.",
        path=path,
        line=error.line,
    )
