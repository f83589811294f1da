"""How many lines of a text look alike, and how it is said."""

from __future__ import annotations

import re
from collections.abc import Sequence

NEARLY_ALL, MOST, MANY, SOME = 0.95, 0.8, 0.6, 0.05
"""Shares of the lines."""
ALIKE = 0.98
"""Share of the rows of a table that have equally many columns."""
FEW = 5
"""At least so many lines that look alike."""
_EXAMPLE = 24  # characters


def share_of(pattern: re.Pattern[str], lines: Sequence[str]) -> float:
    """The share of the lines that have a pattern."""
    return sum(pattern.search(line) is not None for line in lines) / len(lines)


def shown(text: str) -> str:
    """The beginning of an example, as Python writes it."""
    return repr(text[:_EXAMPLE])


def of_first(count: int, lines: Sequence[str]) -> str:
    """How many of the lines that were looked at, in words."""
    return f"{count:,} of its first {len(lines):,} lines with text"
