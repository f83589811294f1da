"""Options of tagging (task.kind tagging): the format of CoNLL files, and tag schemes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.config.fields import Options

Scheme = Literal["iob1", "iob2", "bioes", "none"]


@dataclass(frozen=True)
class TaggingOptions(Options):
    """CoNLL files: one word per line, a blank line after each sentence."""

    word: int = 0
    """Column of the words, counted from 0; negative: from the last column."""
    tag: int = -1
    """Column of the tags, counted as for word."""
    scheme: Literal["auto", "iob1", "iob2", "bioes", "none"] = "auto"
    """Tag scheme of the files; auto: detected per file and reported. none: tags are independent
    labels, as for part-of-speech tagging."""
    learn: Literal["iob2", "bioes"] = "iob2"
    """Tag scheme the model is trained on."""
    write: Literal["iob1", "iob2", "bioes", "none", "train"] = "train"
    """Tag scheme of predictions for files without tags; train: that of the training file."""
    broken: Literal["refuse", "repair"] = "refuse"
    """Tags that violate the scheme: refuse with an error that names the line, or repair them as
    conlleval does and report how many."""
    context: Literal["document", "sentence"] = "document"
    """Context of a sentence: as much of its document (between -DOCSTART- lines) on both sides as
    fits into the length, or the sentence alone."""
    spaces: bool = True
    """Whether words are separated by spaces in running text; false for files with one character per
    line."""
    comment: str = ""
    """Prefix of comment lines, which are skipped. Default: no comments."""
