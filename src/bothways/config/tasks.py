"""Options of `bothways tasks` and `bothways split`."""

from __future__ import annotations

from dataclasses import dataclass

from bothways.errors import ConfigError


@dataclass(frozen=True)
class TasksConfig:
    """List the declared tasks, or print one as a starting point for your own."""

    name: str | None = None
    """Declared task to print."""


@dataclass(frozen=True)
class SplitConfig:
    """Split a labelled file into a training and a development file.

    A hash of the line decides, or of one of its columns (by), so that copies fall on the same side
    and neither the order of the lines nor other lines change where one goes.
    """

    file: str
    """File to split (.tsv, .txt or .csv with columns, .jsonl, .json; .json in SQuAD's format too,
    which is split by article)."""
    out: str
    """Folder to write train and dev to, with the ending of the file (.jsonl for a .json list)."""
    share: float = 0.8
    """Approximate fraction of the examples for training."""
    by: str | None = None
    """Column (or key) to hash instead of the whole line, so that examples that share its value stay
    together, such as equal texts whose lines have different ids. In a file without a header:
    the column's number, from 0."""
    header: bool = True
    """Whether TSV and CSV files start with a line of column names."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(f"share is {self.share:g}; it must be in (0, 1).")
