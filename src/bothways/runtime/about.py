"""The values of bothways.json: of which type each is that anything reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bothways.errors import ModelError
from bothways.families.config import shortened


def _text(value: object) -> bool:
    return isinstance(value, str)


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _object(value: object) -> bool:
    return isinstance(value, dict)


def _names(value: object) -> bool:
    kinds = str | int | float
    return isinstance(value, list) and all(isinstance(item, kinds) for item in value)


def _texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _scores(value: object) -> bool:
    kinds = int | float | None
    return isinstance(value, dict) and all(isinstance(item, kinds) for item in value.values())


def _length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_TYPES: tuple[tuple[str, Callable[[object], bool], tuple[str, ...]], ...] = (
    (
        "text",
        _text,
        ("kind", "task", "pooling", "pooled", "prompt", "pairs", "masking", "precision"),
    ),
    ("text", _text, ("measured_in", "made_by")),
    ("true or false", _flag, ("pair", "normalize", "include_prompt")),
    ("a whole number from 1", _length, ("length", "cut_at")),
    ("a list of names", _names, ("labels", "modules_left_out", "settings_left_out")),
    ("an object", _object, ("options", "export", "reranker")),
    ("an object of texts", _texts, ("prompts",)),
    ("an object of numbers", _scores, ("dev",)),
)


def check_about(about: Mapping[str, Any], source: Path) -> None:
    """Refuse values of another type than what reads them expects; null is as good as no value.

    Args:
        about: the content, with what it says of a task beside the rest.
        source: the file.

    Raises:
        ModelError: the first that is.
    """
    for wanted, fits, names in _TYPES:
        for name in names:
            value = about.get(name)
            if value is not None and not fits(value):
                raise ModelError(
                    f"{source}: {name} is {shortened(value)}; it must be {wanted}. Correct it or "
                    "take it out, or copy the folder again."
                )
