"""Changing configs by dotted name, and the difference between two."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from bothways.config import recipe_fields
from bothways.config.fields import alternatives, is_given

T = TypeVar("T")


def changed(config: T, changes: Mapping[str, Any]) -> T:
    """The config with some values replaced, by dotted name. Of options that exclude each other, one
    that is given replaces another."""
    direct: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        if rest:
            groups.setdefault(head, {})[rest] = value
        else:
            direct[head] = tuple(value) if isinstance(value, list) else value
    if any(is_given(direct.get(name)) for name in alternatives(config)):
        direct = alternatives(config) | direct
    for head, inner in groups.items():
        direct[head] = changed(getattr(config, head), inner)
    return dataclasses.replace(config, **direct)  # type: ignore[type-var]


def difference(base: Any, config: Any) -> str:
    """How ``config`` differs from ``base``, for names of folders; empty if they are equal."""
    before, after = recipe_fields(base), recipe_fields(config)
    parts = []
    for name, value in after.items():
        if value != before[name]:
            short = name.removesuffix(".kind").rpartition(".")[2]
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            parts += [short, shown]
    return "-".join(parts)
