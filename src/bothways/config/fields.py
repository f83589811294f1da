"""Fields of the option classes: the three kinds, fields that exclude each other, range checks, JSON
and fingerprints."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bothways.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Base of the option classes: a value that is not among the choices of its field is refused,
    from Python as on the command line.

    Raises:
        ConfigError: naming the option, its value and the choices.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, choices in _choices(kind).items():
            value = getattr(self, name)
            for item in value if isinstance(value, tuple) else (value,):
                require_choice(name, item, choices)


@functools.cache
def _choices(options: Any) -> dict[str, tuple[Any, ...]]:
    """The values that each field with a limited choice may have."""
    kinds = typing.get_type_hints(options)
    found = {item.name: _literals(kinds[item.name]) for item in dataclasses.fields(options)}
    return {name: values for name, values in found.items() if values}


def _literals(kind: Any) -> tuple[Any, ...]:
    """The values of a Literal, also within a tuple, or with None; empty for other types."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return inner
    if origin is tuple:
        return _literals(inner[0])
    if origin in (types.UnionType, typing.Union) and (values := _literals(inner[0])):
        return (*values, None)
    return ()


def require_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Refuse a value that is not among the choices.

    Raises:
        ConfigError: naming the option, its value and the choices.
    """
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices if choice is not None)
        raise ConfigError(f"{name} is {value!r}; choose from {known}.")


def require(name: str, value: float, minimum: float, maximum: float = math.inf) -> None:
    """Refuse an option's value outside [minimum, maximum], or NaN.

    Raises:
        ConfigError: naming the option, its value and the limits.
    """
    if not minimum <= value <= maximum:
        limits = (
            f"at least {minimum:g}" if maximum == math.inf else f"in [{minimum:g}, {maximum:g}]"
        )
        raise ConfigError(f"{name} is {value:g}; it must be {limits}.")


def numerics(default: T) -> T:
    """A field that may change the rounding of results but not their meaning."""
    value: T = field(default=default, metadata={"kind": "numerics"})
    return value


def free(default: T) -> T:
    """A field that affects neither the meaning of results nor their rounding."""
    value: T = field(default=default, metadata={"kind": "free"})
    return value


def alternative(default: T) -> T:
    """A field that excludes the other such fields of its class: at most one of them is given."""
    value: T = field(default=default, metadata={"alternative": True})
    return value


def alternatives(options: Any) -> dict[str, Any]:
    """The fields of a class, or of its instance, that exclude each other, with their defaults."""
    fields = dataclasses.fields(options)
    return {item.name: item.default for item in fields if item.metadata.get("alternative")}


def is_given(value: Any) -> bool:
    """Whether an alternative is chosen: a switch that is on, or any other value."""
    return value is not None and value is not False


def refuse_several(options: Any, group: str) -> None:
    """Refuse options of which more than one that exclude each other are given.

    Args:
        options: an instance of a class of options.
        group: the group of options that it is, for the message.

    Raises:
        ConfigError: naming the options.
    """
    given = [name for name in alternatives(options) if is_given(getattr(options, name))]
    if len(given) > 1:
        raise ConfigError(several_given(options, given, group))


def several_given(options: Any, given: Sequence[str], group: str) -> str:
    """What is wrong where several options that exclude each other are given."""
    known = ", ".join(alternatives(options))
    return f"{group}: give one of {known}; got {' and '.join(given)}."


def to_dict(config: Any) -> dict[str, Any]:
    """A config dataclass as plain JSON-able dictionaries and lists."""
    value: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=os.fspath))
    return value


def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
    """The inverse of :func:`to_dict`; fields that are missing get their defaults.

    Raises:
        ConfigError: a key that is not a field, or an invalid value.
    """
    kinds = typing.get_type_hints(cls)
    if unknown := sorted(values.keys() - kinds.keys()):
        raise ConfigError(f"unknown options: {', '.join(unknown)}.")
    return cls(**{name: _from_value(kinds[name], value) for name, value in values.items()})


def _from_value(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return from_dict(typing.cast("type[Any]", kind), value)
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        return tuple(_from_value(inner, item) for item in value)
    return value


def recipe_fields(config: Any, prefix: str = "") -> dict[str, Any]:
    """The fields that must match to continue a run, flattened to dotted names."""
    flat: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        if item.metadata.get("kind", "recipe") != "recipe":
            continue
        name, value = prefix + item.name, getattr(config, item.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            flat.update(recipe_fields(value, f"{name}."))
        else:
            flat[name] = to_dict_value(value)
    return flat


def to_dict_value(value: Any) -> Any:
    """A field's value as plain JSON-able data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, (tuple, list)):
        return [to_dict_value(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def fingerprint(config: Any) -> str:
    """A short digest of a config's recipe fields."""
    return digest(recipe_fields(config))


def digest(value: Any) -> str:
    """A short digest of JSON-able data."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
