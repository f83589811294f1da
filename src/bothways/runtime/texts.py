"""The texts of a file to embed: the lines of a text file, or a column of a labelled one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bothways.errors import ConfigError, InputError
from bothways.io.annotations.conll import ConllFormat
from bothways.io.annotations.squad import read_questions
from bothways.io.annotations.tagged import JSON_SUFFIXES, read_tagged
from bothways.io.annotations.word_rows import has_word_columns
from bothways.io.broken import Broken
from bothways.io.frames import FRAMES, is_dataset
from bothways.io.lines import MissingColumnError, did_you_mean, listed
from bothways.io.oddities.characters import odd_characters, odd_notes
from bothways.io.oddities.layout import look
from bothways.io.tables import read_table
from bothways.io.text import (
    COMPRESSED,
    beginning,
    beginning_lines,
    ending,
    read_texts,
    refuse_records,
)
from bothways.io.text_columns import ROWS_TOLD, TableLines, table_in
from bothways.runtime.folder import LoadedModel
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.options import TaggingOptions, TaskOptions
from bothways.tasks.readers import layout_of, row_windows, window_ends
from bothways.tasks.sentences import read_sentences
from bothways.tasks.task import EncodedFile, Task

_TABLES = (".tsv", ".csv", ".jsonl", ".ndjson", ".json", *FRAMES)
_TAGGED = (".conll", ".conllu", ".conllup", ".iob", ".iob2", ".bio", ".ann")
_QUESTION_COLUMNS = ("question", "context")
_WITHOUT_COLUMNS = ("tagging", "spans")  # kinds of tasks whose files have no named columns


@dataclass(frozen=True)
class FileTexts:
    """The texts of a file, in its order.

    Attributes:
        texts: one per line, row or object.
        column: the column they were taken from; None for lines.
        other: the column of the second texts of such a task, which are not among them.
        kept: the values of other columns, by name.
        notes: how the file was read, as sentences.
        last: the line of the last text, where texts are read in windows.
    """

    texts: tuple[str, ...]
    column: str | None = None
    other: str | None = None
    kept: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    last: int = 0


def file_texts(
    path: Path,
    loaded: LoadedModel,
    *,
    text_a: str | None = None,
    task: str | None = None,
    keep: Sequence[str] = (),
) -> FileTexts:
    """Read the texts of a file as `predict --file` reads them, or the lines of a text file.

    Of tagged words, a text is a sentence; of questions on passages, a question (``text_a``
    ``context``: its passage).

    Args:
        path: ``.tsv``, ``.csv``, ``.jsonl``, ``.json`` and ``.parquet`` have columns, and so has a
            ``.txt`` whose lines all have equally many tabs, or for which a column is named; other
            files hold a text per line.
        loaded: a model that was fine-tuned here knows the column of its texts.
        text_a: the column of the texts.
        task: a declared task, or the file of one, that says which column it is.
        keep: further columns whose values are wanted.

    Raises:
        InputError: the file cannot be read as requested, or which column holds the texts cannot be
            told.
        ConfigError: ``task`` is not a task, or one whose files have no columns.
    """
    (found,) = text_windows(path, loaded, text_a=text_a, task=task, keep=keep, whole=True)
    return found


def text_windows(
    path: Path,
    loaded: LoadedModel,
    *,
    text_a: str | None = None,
    task: str | None = None,
    keep: Sequence[str] = (),
    skip: bool = False,
    whole: bool = False,
) -> Iterator[FileTexts]:
    """:func:`file_texts` in windows, as :func:`bothways.tasks.readers.row_windows`; files of tagged
    words or questions are one window. What is noted of the file is complete with the last one."""
    kind = task_recipe(task).task.kind if task is not None else loaded.about.get("kind")
    if _is_tagged(path, kind, text_a):
        yield _sentences(path, keep)
        return
    if _has_questions(path, kind, text_a):
        yield _questions(path, text_a or _QUESTION_COLUMNS[0], keep)
        return
    if not (text_a or task or keep or _is_table(path)):
        refuse_records(path, "write their texts to a .txt file, one per line")
        yield from _line_windows(path, skip=skip, whole=whole)
        return
    options = _layout(loaded, task)
    column = text_a or options.text_a
    layout = TaskOptions(text_a=column, label="", header=options.header, columns=options.columns)
    other = options.text_b if column == options.text_a else None
    windows = row_windows(
        *(path, layout),
        labelled=False,
        keep=keep,
        skip=skip,
        whole=whole,
    )
    try:
        for window in windows:
            by_name = dict(zip(keep, zip(*window.kept, strict=True), strict=True)) if keep else {}
            notes = tuple(window.broken.notes(path.name))
            last = window.lines[-1] if window.lines else 0
            yield FileTexts(tuple(window.a), window.text, other, by_name, notes, last)
    except MissingColumnError as error:
        if error.missing != column or column in error.columns:  # another, or twice
            raise
        raise _unknown_column(error, column, path) from None


def _line_windows(path: Path, *, skip: bool, whole: bool) -> Iterator[FileTexts]:
    """The lines of a text file."""
    broken = Broken("skip" if skip else "stop")
    layout = look(beginning_lines(path), "--text_a")
    layout.forms.refuse(path, "give its lines on standard input")
    for note in layout.of_lines().values():
        broken.remark(note)
    odd: Counter[str] = Counter()
    texts: list[str] = []
    size = last = 0
    for number, text in read_texts(path, broken):
        if not whole and window_ends(len(texts), size):
            yield FileTexts(tuple(texts), notes=tuple(broken.notes(path.name)), last=last)
            texts, size = [], 0
        texts.append(text)
        odd.update(odd_characters((text,)))
        size, last = size + len(text), number
    for note in odd_notes(odd).values():
        broken.remark(note)
    yield FileTexts(tuple(texts), notes=tuple(broken.notes(path.name)), last=last)


def kept_columns(
    path: Path, names: Sequence[str], task: Task[Any, Any], file: EncodedFile[Any]
) -> list[list[Any]]:
    """The values of further columns of a file that was predicted, for each example.

    Raises:
        ConfigError: the kind of task has no files with columns.
        InputError: there is no such column.
    """
    if not names:
        return [[] for _ in range(len(file.rows))]
    if task.options.kind in _WITHOUT_COLUMNS:
        raise ConfigError(
            f"keep is for files with a text in each row; the predictions of kind "
            f"{task.options.kind} name their texts by themselves. Leave out --keep."
        )
    layout = replace(layout_of(task.options), kept=frozenset(names))
    rows = dict(read_table(path, list(names), layout, Broken()))
    return [rows[line] for line in file.rows.lines]


def check_kept(names: Sequence[str], labels: Sequence[str]) -> None:
    """Refuse further columns that the predictions of a file have themselves.

    Args:
        names: of the columns.
        labels: of the task.

    Raises:
        ConfigError: naming the column.
    """
    own = {"index", "prediction"}
    own |= {f"{kind}({label})" for kind in ("p", "prediction") for label in labels}
    if taken := [name for name in names if name in own]:
        raise ConfigError(
            f"keep: {', '.join(taken)} is a column of the output; rename yours in the file."
        )


def _is_tagged(path: Path, kind: str | None, text_a: str | None) -> bool:
    """Whether a file has tagged words."""
    name = path.name.lower()
    if name.endswith(_TAGGED):
        return True
    if kind != "tagging" or text_a is not None:
        return False
    if path.suffix.lower() in JSON_SUFFIXES:
        try:
            return bool(read_tagged(path, ConllFormat(), labelled=True))
        except InputError:
            return False
    return path.suffix.lower() in (".csv", ".tsv") and has_word_columns(path)


def _sentences(path: Path, keep: Sequence[str]) -> FileTexts:
    if keep:
        raise ConfigError(
            f"keep: {path.name} has tagged words, not columns with an id of each text."
        )
    options = TaggingOptions()
    found = read_sentences(path, options, labelled=False)
    if found.texts is not None:
        texts = tuple(text.text for text in found.texts)
    else:
        texts = tuple(" ".join(words) for words in found.words)
    note = f"{path.name}: a text is a sentence of tagged words"
    return FileTexts(texts, notes=(*found.notes, note))


def _has_questions(path: Path, kind: str | None, text_a: str | None) -> bool:
    """Whether a file has questions on passages, of which a column is embedded."""
    if text_a is not None and text_a not in _QUESTION_COLUMNS:
        return False
    if kind == "spans" and path.suffix.lower() in _TABLES:
        return True
    return path.suffix.lower() == ".json" and '"paragraphs"' in beginning(path)


def _questions(path: Path, column: str, keep: Sequence[str]) -> FileTexts:
    if set(keep) - {"id"}:
        raise ConfigError(f"keep: of the questions of {path.name} only the id can be kept.")
    rows = read_questions(path, labelled=False)
    passages = tuple(rows.passages[n] for n in rows.passage_of)
    texts = tuple(rows.texts) if column == _QUESTION_COLUMNS[0] else passages
    kept = {"id": tuple(rows.ids)} if keep else {}
    return FileTexts(texts, column, kept=kept, notes=rows.notes)


def _is_table(path: Path) -> bool:
    """Whether a file has columns, by its name, or by its tabs if that says nothing."""
    suffixes = [suffix.lower() for suffix in path.suffixes] or [ending(path)]
    if suffixes[-1] in COMPRESSED:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix != ".txt":
        return suffix in _TABLES or is_dataset(path)
    if _table_at(path) is not None:
        return True
    found, lines = 0, 0
    for _, line in read_texts(path, Broken("skip")):  # whether to stop is for the reader
        if line:
            tabs = line.count("\t")
            if not tabs or (lines and tabs != found):
                return False
            found, lines = tabs, lines + 1
    return lines > 1


def _table_at(path: Path) -> TableLines | None:
    """The table that the first lines of a file are, by the names in the first one."""
    lines = read_texts(path, Broken("skip"))
    return table_in(line for _, line in islice(lines, ROWS_TOLD))


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
    return loaded.task.options if known and loaded.task_outputs else TaskOptions()


def _unknown_column(error: MissingColumnError, column: str, path: Path) -> InputError:
    remedy = "name the one with the texts: --text_a COLUMN"
    if not path.suffix.lower().startswith(".json"):
        remedy += ". If line 1 is already a text or an example, give the texts on standard input"
        remedy += ", one per line, or a --task FILE.yaml with header: false"
    return InputError(
        f"has no column {column!r}; its columns are {listed(error.columns)}."
        f"{did_you_mean(column, error.columns)} To embed a column, {remedy}.",
        place=error.place,
    )
