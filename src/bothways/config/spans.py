"""Options of extractive question answering (task.kind spans)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.config.fields import Options, require


@dataclass(frozen=True)
class SpanOptions(Options):
    """Extractive question answering: the answer is a span of the passage (SQuAD 1.1 and 2.0)."""

    stride: int = 128
    """Window stride, in passage tokens."""
    query_length: int = 64
    """Maximum question length in tokens; longer questions are truncated, and their number is
    reported."""
    answer_length: int = 30
    """Maximum answer length in tokens."""
    n_best: int = 20
    """Candidate answers kept per question, with probabilities."""
    no_answer: bool | None = None
    """Whether questions may be unanswerable (SQuAD 2.0). Default: whether the training file has
    such questions."""
    tune: bool = True
    """Tune the no-answer threshold on dev for the highest F1."""
    threshold: float = 0.0
    """Predict no answer if its score exceeds the best answer's by more than this. Replaced by the
    tuned value with tune."""
    misaligned: Literal["skip", "search", "error"] = "skip"
    """Training answers that are not at their answer_start: skip them, search for the nearest
    occurrence, or stop with an error. The number skipped or moved is reported."""
    convention: Literal["squad", "korean"] = "squad"
    """How answers are compared. squad: by word, ignoring English articles. korean: by character, as
    KorQuAD does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("stride", "query_length", "answer_length", "n_best"):
            require(f"task.spans.{name}", getattr(self, name), 1)
