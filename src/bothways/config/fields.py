"""The types of option fields: parsing a value's text, describing it in messages and in the help."""

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
from typing import Any, ClassVar, Self, TypeVar, Union

from bothways.errors import ConfigError

# --------------------------------------------------------------------------------
# Fields of the option classes: the three kinds, fields that exclude each other, range checks, JSON
# and fingerprints.

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Base of the option classes: a value that is not among the choices of its field is refused,
    from Python as on the command line.

    Raises:
        ConfigError: naming the option, its value and the choices.

    Attributes:
        recipes_by_name: whether the recipes that come with the package are of this class.
    """

    recipes_by_name: ClassVar[bool] = False

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, choices in _choices(kind).items():
            value = getattr(self, name)
            for item in value if isinstance(value, tuple) else (value,):
                require_choice(name, item, choices)

    def resolved(self) -> Self:
        """The same options, with a value for those that are unset because it follows from others.

        They stay unset in a config, so that a recipe that is printed, or whose other options are
        changed later, does not keep what followed from the former ones. Runs are recorded and
        compared resolved.
        """
        return self


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
    """The fields that must match to continue a run, resolved, flattened to dotted names."""
    flat: dict[str, Any] = {}
    if isinstance(config, Options):
        config = config.resolved()
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


@dataclass(frozen=True)
class FieldType:
    """The type of a field, such as ``tuple[int, ...] | None``, taken apart."""

    inner: Any
    """The type of the value, or of each item of a list."""
    optional: bool = False
    """Whether the value may be None."""
    is_list: bool = False
    """Whether the value is a tuple of any length."""

    @classmethod
    def of(cls, annotation: Any) -> FieldType:
        """Take an annotation apart."""
        optional = typing.get_origin(annotation) in (Union, types.UnionType)
        if optional:
            (annotation,) = (a for a in typing.get_args(annotation) if a is not type(None))
        is_list = typing.get_origin(annotation) is tuple
        inner = typing.get_args(annotation)[0] if is_list else annotation
        return cls(inner, optional, is_list)

    @property
    def is_group(self) -> bool:
        """Whether the value, or each item of the list, is a dataclass of options."""
        return dataclasses.is_dataclass(self.inner)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a Literal; empty for other types."""
        return typing.get_args(self.inner)

    def parse(self, text: str) -> Any:
        """The value of a scalar. Raises ValueError if the text is not of this type."""
        if self.inner is str:
            return text
        if self.inner is int:
            return int(text)
        if self.inner is float:
            number = float(text)
            if math.isfinite(number):
                return number
        elif self.inner is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        elif text in self.choices:
            return text
        raise ValueError(text)

    def describe(self) -> str:
        """What a value must be, for messages."""
        names = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
        if self.is_list:
            text = "a list"
        elif self.is_group:
            text = "'name: value' lines"
        else:
            text = names.get(self.inner) or "one of " + ", ".join(self.choices)
        return f"{text}, or null" if self.optional else text

    @property
    def metavar(self) -> str:
        """What a value looks like, for the help."""
        names = {str: "TEXT", int: "INT", float: "FLOAT", bool: "true|false"}
        if self.is_group:
            return "[{...}, ...]"
        text = names.get(self.inner) or "{" + ",".join(self.choices) + "}"
        if self.is_list:
            return f"{text} ..."
        return f"[{text}]" if self.inner is bool else text  # a switch may stand alone


def field_types(cls: type[Any]) -> dict[str, FieldType]:
    """The types of the fields of a dataclass; a group of options is one field."""
    hints = typing.get_type_hints(cls)
    return {item.name: FieldType.of(hints[item.name]) for item in dataclasses.fields(cls)}


def option_types(cls: type[Any], prefix: str = "") -> dict[str, FieldType]:
    """The types of all options of a dataclass, by dotted name."""
    options: dict[str, FieldType] = {}
    for name, field_type in field_types(cls).items():
        if field_type.is_group and not field_type.is_list:
            options |= option_types(field_type.inner, f"{prefix}{name}.")
        else:
            options[prefix + name] = field_type
    return options


def alternative_options(cls: type[Any], prefix: str = "") -> list[list[str]]:
    """The options of a dataclass that exclude each other, by dotted name: a list for each group."""
    found = [[prefix + name for name in alternatives(cls)]]
    for name, field_type in field_types(cls).items():
        if field_type.is_group and not field_type.is_list:
            found += alternative_options(field_type.inner, f"{prefix}{name}.")
    return [names for names in found if names]


def required_fields(cls: type[Any]) -> list[str]:
    """The names of the fields without a default."""
    missing = dataclasses.MISSING
    return [
        item.name
        for item in dataclasses.fields(cls)
        if item.default is missing and item.default_factory is missing
    ]
