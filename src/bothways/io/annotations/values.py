"""Values of JSON objects and of table rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bothways.errors import InputError
from bothways.io.lines import listed
from bothways.io.rows import shown

_WHOLE = re.compile(r"-?[0-9]+(?:\.0+)?")


def first_value(item: Any, names: Sequence[str]) -> Any:
    """The value of the first of these keys that an object has; None if it has none of them, or is
    no object."""
    if isinstance(item, dict):
        for name in names:
            if (value := item.get(name)) is not None:
                return value
    return None


def whole_number(value: Any) -> int | None:
    """A whole number, also as tables hold it (``12.0``, ``"12"``); None if it is none."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, float | str):
        return None
    return int(float(value)) if _WHOLE.fullmatch(str(value).strip()) else None


def list_value(item: Any, name: str) -> list[Any]:
    """The list under a key of an object.

    Raises:
        InputError: there is none.
    """
    value = item.get(name) if isinstance(item, dict) else None
    if not isinstance(value, list):
        found = f"the keys {listed(list(item))}" if isinstance(item, dict) else shown(item)
        raise InputError(f"expected an object with a list {name!r}, found {found}.")
    return value
