"""The types of option fields: parsing a value's text, describing it in messages and in the help."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Union

from bothways.config.fields import alternatives


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
