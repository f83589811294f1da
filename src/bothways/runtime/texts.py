"""The texts of a file to embed: the lines of a text file, or a column of a labelled one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bothways.errors import ConfigError, InputError
from bothways.io.annotations.conll import ConllFormat, has_word_columns
from bothways.io.annotations.squad import read_questions
from bothways.io.annotations.tagged import read_tagged
from bothways.io.broken import Broken
from bothways.io.columns import read_columns
from bothways.io.diagnostics import (
    damage_notes,
    damaged_characters,
    format_of_lines,
    refuse_other_format,
)
from bothways.io.rows import JSON, TABLES, Format, table_suffix
from bothways.io.text import (
    beginning,
    beginning_lines,
    ending,
    read_texts,
    refuse_records,
)
from bothways.runtime.folder import LoadedModel
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.options import TaggingOptions, TaskOptions, traits_of
from bothways.tasks.readers import columns_of, row_windows, window_ends
from bothways.tasks.sentences import read_sentences
from bothways.tasks.task import EncodedFile, Task

_TAGGED = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".ann")
_QUESTION_COLUMNS = ("question", "context")


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
    text: str | None = None,
    task: str | None = None,
    keep: Sequence[str] = (),
    form: Format | None = None,
) -> FileTexts:
    """Read the texts of a file as `predict --file` reads them, or the lines of a text file.

    Of tagged words, a text is a sentence; of questions on passages, a question (``text``
    ``context``: its passage).

    Args:
        path: tables have columns, but a ``.txt`` only if it has a line of column names, or one is
            named; other files hold a text per line.
        loaded: a model that was fine-tuned here knows the column of its texts.
        text: the column of the texts.
        task: a declared task, or the file of one, that says which column it is.
        keep: further columns whose values are wanted.
        form: how the file is written.

    Raises:
        InputError: the file cannot be read as requested, or which column holds the texts cannot be
            told.
        ConfigError: ``task`` is not a task, or one whose files have no columns.
    """
    (found,) = text_windows(path, loaded, text=text, task=task, keep=keep, form=form, whole=True)
    return found


def text_windows(
    path: Path,
    loaded: LoadedModel,
    *,
    text: str | None = None,
    task: str | None = None,
    keep: Sequence[str] = (),
    form: Format | None = None,
    skip: bool = False,
    whole: bool = False,
) -> Iterator[FileTexts]:
    """:func:`file_texts` in windows, as :func:`bothways.tasks.readers.row_windows`; files of tagged
    words or questions are one window. What is noted of the file is complete with the last one."""
    form = form or Format()
    kind = task_recipe(task).task.kind if task is not None else loaded.about.get("kind")
    if _is_tagged(path, kind, text, form):
        yield _sentences(path, keep, form)
        return
    if _has_questions(path, kind, text):
        yield _questions(path, text or _QUESTION_COLUMNS[0], keep, form)
        return
    if not (text or task or keep or form.delimiter or _is_table(path, form)):
        refuse_records(path, "write their texts to a .txt file, one per line")
        yield from _line_windows(path, form.encoding, skip=skip, whole=whole)
        return
    options = _layout(loaded, task)
    column = text or options.text
    layout = TaskOptions(
        text=column,
        label="",
        header=options.header,
        columns=options.columns,
        encoding=form.encoding,
        delimiter=form.delimiter,
        sheet=form.sheet,
        quoting=form.quoting,
    )
    other = options.text_b if column == options.text else None
    windows = row_windows(
        *(path, layout),
        labelled=False,
        keep=keep,
        skip=skip,
        whole=whole,
    )
    for window in windows:
        by_name = dict(zip(keep, zip(*window.kept, strict=True), strict=True)) if keep else {}
        notes = tuple(window.broken.notes(path.name))
        last = window.lines[-1] if window.lines else 0
        yield FileTexts(tuple(window.a), window.text, other, by_name, notes, last)


def _line_windows(path: Path, encoding: str, *, skip: bool, whole: bool) -> Iterator[FileTexts]:
    """The lines of a text file."""
    broken = Broken("skip" if skip else "stop")
    refuse_other_format(
        beginning_lines(path, encoding), path, "name the column of its texts, or give it as .csv"
    )
    damaged: Counter[str] = Counter()
    texts: list[str] = []
    size = last = 0
    for number, text in read_texts(path, broken, encoding):
        if not whole and window_ends(len(texts), size):
            yield FileTexts(tuple(texts), notes=tuple(broken.notes(path.name)), last=last)
            texts, size = [], 0
        texts.append(text)
        damaged.update(damaged_characters((text,)))
        size, last = size + len(text), number
    for note in damage_notes(damaged).values():
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
    if not task.traits.has_columns:
        raise ConfigError(
            f"keep is for files with a text in each row; the predictions of kind "
            f"{task.options.kind} name their texts by themselves. Leave out --keep."
        )
    columns = replace(columns_of(task.options, names), kept=names)
    rows = dict(read_columns(path, columns, Broken()))
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


def _is_tagged(path: Path, kind: str | None, text: str | None, form: Format) -> bool:
    """Whether a file has tagged words."""
    name = path.name.lower()
    if name.endswith(_TAGGED):
        return True
    if not traits_of(kind).per_word or text is not None:
        return False
    if path.suffix.lower() in JSON:
        try:
            return bool(read_tagged(path, ConllFormat(), labelled=True, form=form))
        except InputError:
            return False
    return path.suffix.lower() in (".csv", ".tsv") and has_word_columns(path, form.encoding)


def _sentences(path: Path, keep: Sequence[str], form: Format) -> FileTexts:
    if keep:
        raise ConfigError(
            f"keep: {path.name} has tagged words, not columns with an id of each text."
        )
    options = TaggingOptions()
    found = read_sentences(path, options, labelled=False, form=form)
    if found.texts is not None:
        texts = tuple(text.text for text in found.texts)
    else:
        texts = tuple(" ".join(words) for words in found.words)
    note = f"{path.name}: a text is a sentence of tagged words"
    return FileTexts(texts, notes=(*found.notes, note))


def _has_questions(path: Path, kind: str | None, text: str | None) -> bool:
    """Whether a file has questions on passages, of which a column is embedded."""
    if text is not None and text not in _QUESTION_COLUMNS:
        return False
    traits = traits_of(kind)
    if not (traits.has_columns or traits.per_word) and table_suffix(path) in TABLES:
        return True
    return path.suffix.lower() == ".json" and '"paragraphs"' in beginning(path)


def _questions(path: Path, column: str, keep: Sequence[str], form: Format) -> FileTexts:
    if set(keep) - {"id"}:
        raise ConfigError(f"keep: of the questions of {path.name} only the id can be kept.")
    rows = read_questions(path, labelled=False, form=form)
    passages = tuple(rows.passages[n] for n in rows.passage_of)
    texts = tuple(rows.texts) if column == _QUESTION_COLUMNS[0] else passages
    kept = {"id": tuple(rows.ids)} if keep else {}
    return FileTexts(texts, column, kept=kept, notes=rows.notes)


def _is_table(path: Path, form: Format) -> bool:
    """Whether a file has columns, by its name, or by its first lines if that says nothing."""
    if (suffix := table_suffix(path) or ending(path)) != ".txt":
        return suffix in TABLES
    lines = [line for line in beginning_lines(path, form.encoding) if line]
    tabs = {line.count("\t") for line in lines}
    return format_of_lines(lines) == "a table" or (
        len(tabs) == 1 and tabs != {0} and len(lines) > 1
    )


def _layout(loaded: LoadedModel, task: str | None) -> TaskOptions:
    """How the file is laid out: as the task says, or as the files the model was fine-tuned on."""
    if task is not None:
        options = task_recipe(task).task
        if not options.traits.has_columns:
            raise ConfigError(
                f"task {task} is of kind {options.kind}, whose files have no column of texts; name "
                "the column of this file with --text."
            )
        return options
    about = loaded.about
    known = about.get("options") and traits_of(about.get("kind")).has_columns
    return loaded.task.options if known and loaded.task_outputs else TaskOptions()
