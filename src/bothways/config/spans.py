"""Options of questions whose answers are a passage's own words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.config.fields import require


@dataclass(frozen=True)
class SpanOptions:
    """Questions whose answers are passages' own words (SQuAD 1.1 and 2.0)."""

    stride: int = 128
    """Pieces of the passage from the start of a window to that of the next."""
    query_length: int = 64
    """Longest question in tokens; the rest is cut and reported."""
    answer_length: int = 30
    """Longest answer in tokens."""
    n_best: int = 20
    """Answers kept for each question, with probabilities."""
    no_answer: bool | None = None
    """Questions may have no answer (SQuAD 2.0); by whether the training file has such questions, if
    not given."""
    tune: bool = True
    """Choose the threshold on dev, so that F1 there is highest."""
    threshold: float = 0.0
    """No answer is given where the score of none is more than this above the best answer's. With
    tune, what dev says takes its place."""
    misaligned: Literal["skip", "search", "error"] = "skip"
    """A training answer that is not where answer_start says: passed over in training, looked for
    nearest to that place, or refused. The first two are reported."""
    convention: Literal["squad", "korean"] = "squad"
    """How answers are compared: by words, without English articles, as SQuAD does; or by
    characters, as KorQuAD does."""

    def __post_init__(self) -> None:
        for name in ("stride", "query_length", "answer_length", "n_best"):
            require(f"task.spans.{name}", getattr(self, name), 1)
