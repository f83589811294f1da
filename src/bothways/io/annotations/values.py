"""Values of JSON objects and of table rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bothways.errors import InputError
from bothways.io.lines import as_json, listed

_SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE = re.compile(r"-?[0-9]+(?:\.0+)?")


def first_value(item: Any, names: Sequence[str]) -> Any:
    """The value of the first of these keys that an object has; None if it has none of them, or is
    no object."""
    if not isinstance(item, Mapping):
        return None
    return next((item[name] for name in names if item.get(name) is not None), None)


def text_value(value: Any, name: str) -> str:
    """A value that must be a text.

    Raises:
        InputError: it is not, or holds a NUL or half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise InputError(f"expected a text under {name!r}, found {as_json(value)}.")
    if "\0" in value or not (value.isascii() or _SURROGATE.search(value) is None):
        raise InputError(f"{name!r} holds a NUL or half of a surrogate pair.")
    return value


def whole_number(value: Any) -> int | None:
    """A whole number, also as tables hold it (``12.0``, ``"12"``); None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    return int(float(value)) if _WHOLE.fullmatch(str(value).strip()) else None


def list_value(item: Any, name: str) -> list[Any]:
    """The list under a key of an object.

    Raises:
        InputError: there is none.
    """
    value = item.get(name) if isinstance(item, Mapping) else None
    if not isinstance(value, list):
        found = f"the keys {listed(list(item))}" if isinstance(item, dict) else as_json(item)
        raise InputError(f"expected an object with a list {name!r}, found {found}.")
    return value
