"""Measuring a model from Python: its scores as an object, and data from memory as a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bothways.api import rows
from bothways.config.fields import changed
from bothways.io import html
from bothways.io.annotations.tagged import holds_examples
from bothways.io.terminal import table_text
from bothways.runtime.folder import LoadedModel
from bothways.tasks.options import TaskOptions


@dataclass(frozen=True, repr=False)
class Evaluation(Mapping[str, float]):
    """Scores by name, as a mapping; printed or shown in a notebook they are tables.

    Attributes:
        scores: by metric, the main one first; fractions of 1.
        notes: what to know about them, as sentences.
        collapsed: the model predicts the same for every example.
        parts: the same for each label or score, where the task has them.
    """

    scores: dict[str, float]
    notes: tuple[str, ...] = ()
    collapsed: bool = False
    parts: dict[str, dict[str, float]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return self.scores[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.scores)

    def __len__(self) -> int:
        return len(self.scores)

    def lines(self) -> list[str]:
        """What `bothways evaluate` prints: the scores, and a table of the parts."""
        table = table_of_parts(self.parts) if self.parts else []
        return [*(f"{n}: {v:.4f}" for n, v in self.scores.items()), *map("\t".join, table)]

    def _tables(self) -> list[list[list[str]]]:
        tables = [[["metric", "score"], *([n, f"{v:.4f}"] for n, v in self.scores.items())]]
        return [*tables, table_of_parts(self.parts)] if self.parts else tables

    def __repr__(self) -> str:
        return "\n".join([*map(table_text, self._tables()), *self.notes])

    def _repr_html_(self) -> str:
        tables = [html.table(header, cells) for header, *cells in self._tables()]
        return html.fragment("", *tables, html.listing(self.notes))


def table_of_parts(parts: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """The measures of each label or score: counts whole, others with four digits."""
    cells = [
        [part, *(f"{v:.0f}" if m in _COUNTS else f"{v:.4f}" for m, v in found.items())]
        for part, found in parts.items()
    ]
    return [["", *next(iter(parts.values()))], *cells]


_COUNTS = ("predicted", "support")


def corpus_folder(data: Any) -> Path | None:
    """The folder of a corpus that is given by path or as an object; None for other data."""
    folder = data if rows.is_path(data) else getattr(data, "folder", None)
    if folder is None or not Path(folder).is_dir() or holds_examples(Path(folder)):
        return None
    return Path(folder)


@contextmanager
def data_file(
    loaded: LoadedModel, data: Any, text: str | None, label: str | None
) -> Iterator[tuple[str, TaskOptions | None]]:
    """Labelled examples as a file, and how it is laid out if that is another way than the task's.

    Raises:
        ConfigError, InputError: data in memory that do not make examples.
    """
    task = loaded.task.options
    if rows.is_path(data):
        named = {"text": text or task.text, "label": label or task.label}
        yield str(data), None if text is None and label is None else changed(task, named)
        return
    task, content = rows.examples(task, data, "data", text=text, label=label)
    with tempfile.TemporaryDirectory() as folder:
        path = rows.write_content(Path(folder), "data.parquet", content)
        with rows.named_rows({path: "data"}):
            yield path, task if task.traits.has_columns else None
