"""Options of tagging: what a CoNLL file looks like, and how its sentences are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scheme = Literal["iob1", "iob2", "bioes", "none"]


@dataclass(frozen=True)
class TaggingOptions:
    """A word a line, a blank line after each sentence (task.kind tagging)."""

    word: int = 0
    """Column of the words, from 0; below 0: counted from the last."""
    tag: int = -1
    """Column of the tags, as for word."""
    scheme: Literal["auto", "iob1", "iob2", "bioes", "none"] = "auto"
    """How the files' tags mark entities; none: every tag stands for itself, as parts of speech do;
    auto: found in each file, and said."""
    learn: Literal["iob2", "bioes"] = "iob2"
    """Scheme that the head learns."""
    write: Literal["iob1", "iob2", "bioes", "none", "train"] = "train"
    """Scheme of predictions for files without tags; train: the training file's."""
    broken: Literal["refuse", "repair"] = "refuse"
    """A tag that breaks the scheme: an error with its line, or read as conlleval reads it, and
    counted."""
    context: Literal["document", "sentence"] = "document"
    """What stands around a sentence: as much of its document (between -DOCSTART- lines) on both
    sides as fits into the length, or nothing."""
    spaces: bool = True
    """Words have spaces between them in running text; false for files with a character a line."""
    comment: str = ""
    """Lines that begin with this are left out; none if empty."""
