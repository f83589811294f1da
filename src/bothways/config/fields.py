"""Classes of options: the kinds of their fields, range checks, JSON and digests, and what their
types mean."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
import math
import operator
import os
import shlex
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, Self, TypeVar, Union, cast

from bothways.errors import ConfigError, nearest, type_of

# --------------------------------------------------------------------------------
# Fields of the option classes: the three kinds, fields that exclude each other, range checks, JSON
# and fingerprints.

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _cached(function: F) -> F:
    """Like ``functools.cache``, with the types kept."""
    return cast("F", functools.cache(function))


@dataclass(frozen=True)
class Options:
    """Base of the option classes: a value that is not of its field's type, or not among its
    choices, is refused, from Python as on the command line.

    What people write in Python is taken where it can only mean one thing: a path for a name, a
    single name or a list for a tuple, a dictionary for a group of options, numbers of NumPy.

    Raises:
        ConfigError: naming the option, its value, and what it must be.

    Attributes:
        recipes_by_name: whether the recipes that come with the package are of this class.
        listed: the options that the command line and its help have, under the titles of their
            groups; ``--set`` reaches the others. Empty: it has all.
        own_texts: what options of groups are in this class, where their docstrings are of others.
        needed: options without which a command line without any others is of no use.
    """

    recipes_by_name: ClassVar[bool] = False
    listed: ClassVar[Mapping[str, tuple[str, ...]]] = types.MappingProxyType({})
    own_texts: ClassVar[Mapping[str, str]] = types.MappingProxyType({})
    needed: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, expected in field_types(kind).items():
            value = getattr(self, name)
            if (taken := as_field(name, value, expected)) is not value:
                object.__setattr__(self, name, taken)
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


def _choices(options: Any) -> dict[str, tuple[Any, ...]]:
    """The values that each field with a limited choice may have."""
    types = field_types(options)
    return {n: (*t.choices, *(None,) * t.optional) for n, t in types.items() if t.choices}


def as_field(name: str, value: Any, kind: FieldType) -> Any:
    """A value from Python as its field holds it; the same object if it is that already.

    Raises:
        ConfigError: it is of another type.
    """
    if value is None and kind.optional:
        return value
    if kind.is_list:
        if isinstance(value, str | os.PathLike) and (kind.inner is str or kind.choices):
            value = (value,)
        elif not isinstance(value, tuple):
            value = _listed(name, value, kind)
        taken = tuple(as_field(f"{name}[{i}]", v, kind.item) for i, v in enumerate(value))
        return value if all(map(operator.is_, taken, value)) else taken
    if kind.is_group:
        if isinstance(value, Mapping):
            return build(kind.inner, value)
        right = isinstance(value, kind.inner)
    elif kind.choices:
        right = True  # the choices are checked
    else:
        right, value = _as_scalar(value, kind.inner)
    if not right:
        raise ConfigError(f"{name} is {_short(value)}; it must be {kind.describe_python()}.")
    return value


def _listed(name: str, value: Any, kind: FieldType) -> tuple[Any, ...]:
    if isinstance(value, list | range | set) or hasattr(value, "tolist"):
        plain = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(plain, list | range | set):
            return tuple(plain)
    raise ConfigError(f"{name} is {_short(value)}; it must be {kind.describe_python()}.")


def _as_scalar(value: Any, kind: Any) -> tuple[bool, Any]:
    """Whether a value is of a plain type, and the value as such."""
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif kind is not str and hasattr(value, "item") and hasattr(value, "dtype"):
        value = value.item() if getattr(value, "ndim", 1) == 0 else value
    if kind is bool:
        return isinstance(value, bool), value
    if kind in (int, float):
        number = isinstance(value, int if kind is int else (int, float))
        return number and not isinstance(value, bool), value
    return isinstance(value, kind), value


def _short(value: Any) -> str:
    """A value as messages show it: long ones by their type."""
    if isinstance(value, str | int | float | list | tuple | dict | type(None)):
        shown = repr(value)
        return shown if len(shown) <= 60 else f"{shown[:57]}..."
    return type_of(value)


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


def require_count(name: str, value: Any) -> None:
    """Refuse what is not a whole number of at least 1, given from Python.

    Raises:
        ConfigError: naming the argument and its value.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1.")


def numerics(default: T) -> T:
    """A field that may change the rounding of results but not their meaning."""
    value: T = field(default=default, metadata={"kind": "numerics"})
    return value


def free(default: T) -> T:
    """A field that affects neither the meaning of results nor their rounding."""
    value: T = field(default=default, metadata={"kind": "free"})
    return value


def flat(kind: Callable[[], T]) -> T:
    """A group of options whose names are those of its fields alone. In every other group, options
    have the name of the group before theirs, as in ``masking_rate``."""
    value: T = field(default_factory=kind, metadata={"flat": True})
    return value


def mapping(kind: Callable[[], T]) -> T:
    """A group of options that are given together, as a mapping, and may be changed later."""
    value: T = field(default_factory=kind, metadata={"mapping": True, "kind": "free"})
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


def refuse_several(options: Any, prefix: str = "") -> None:
    """Refuse options of which more than one that exclude each other are given.

    Args:
        options: an instance of a class of options.
        prefix: what their names begin with.

    Raises:
        ConfigError: naming the options.
    """
    given = [name for name in alternatives(options) if is_given(getattr(options, name))]
    if len(given) > 1:
        known = ", ".join(prefix + name for name in alternatives(options))
        got = " and ".join(prefix + name for name in given)
        raise ConfigError(f"give one of {known}; got {got}.")


def changed(config: T, changes: Mapping[str, Any]) -> T:
    """The config with some options replaced, by name. Of options that exclude each other, one that
    is given replaces another."""
    own, groups = _by_group(type(config), changes)
    if any(is_given(own.get(name)) for name in alternatives(config)):
        own = alternatives(config) | own
    own |= {name: changed(getattr(config, name), inner) for name, inner in groups.items()}
    return dataclasses.replace(config, **own)  # type: ignore[type-var]


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass with these options, by name, and defaults for the others."""
    own, groups = _by_group(cls, values)
    defaults = {item.name: default_of(item) for item in dataclasses.fields(cast("Any", cls))}
    return cls(**own, **{name: changed(defaults[name], inner) for name, inner in groups.items()})


def default_of(item: dataclasses.Field[Any]) -> Any:
    """The default of a dataclass's field; MISSING if it has none."""
    made = item.default_factory
    return item.default if made is dataclasses.MISSING else made()


def _by_group(
    cls: type[Any], values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Values of options: those of the class itself, and those of each group by their names in it.

    Raises:
        ConfigError: there is no such option; the message has the nearest.
    """
    own: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    places = {option.name: option.place for option in options_of(cls)}
    for name, value in values.items():
        if name not in places:
            raise ConfigError(f"there is no option {name!r}{suggestion(name, places)}")
        group, inner = places[name]
        if group:
            groups.setdefault(group, {})[inner] = value
        else:
            own[name] = tuple(value) if isinstance(value, list) else value
    return own, groups


def suggestion(name: str, known: Iterable[str]) -> str:
    """The option with the nearest name, as a question behind a semicolon; else a full stop."""
    close = nearest(name, [*known])
    return f"; did you mean {close!r}?" if close else "."


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain JSON-able dictionaries and lists."""
    value: dict[str, Any] = _plain(config)
    return value


def _plain(value: Any) -> Any:
    """A config, or the value of a field, as plain JSON-able data."""

    def convert(item: Any) -> Any:
        is_config = dataclasses.is_dataclass(item)
        return dataclasses.asdict(cast("Any", item)) if is_config else os.fspath(item)

    return json.loads(json.dumps(value, default=convert))


def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
    """The inverse of :func:`to_dict`; fields that are missing get their defaults.

    Raises:
        ConfigError: a key that is not a field, or an invalid value.
    """
    types = field_types(cls)
    if unknown := sorted(values.keys() - types.keys()):
        raise ConfigError(f"unknown options: {', '.join(unknown)}.")
    return cls(**{name: _from_plain(types[name], value) for name, value in values.items()})


def _from_plain(kind: FieldType, value: Any) -> Any:
    if kind.is_list and value is not None:
        return tuple(_from_plain(kind.item, item) for item in value)
    return from_dict(kind.inner, value) if kind.is_group and isinstance(value, dict) else value


def values_of(config: Any) -> dict[str, Any]:
    """The options of a config by name, as plain JSON-able values."""
    found: dict[str, Any] = {}
    for option in options_of(type(config), config):
        found[option.name] = _plain(option.default)
    return found


def recipe_fields(config: Any) -> dict[str, Any]:
    """The options that must match to continue a run, resolved, as plain values by name."""
    if isinstance(config, Options):
        config = config.resolved()
    kept = {option.name for option in options_of(type(config)) if option.effect == "recipe"}
    return {name: value for name, value in values_of(config).items() if name in kept}


def fingerprint(config: Any) -> str:
    """A short digest of a config's recipe fields."""
    return digest(recipe_fields(config))


def digest(value: Any) -> str:
    """A short digest of JSON-able data."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


# --------------------------------------------------------------------------------
# Types of fields: reading a value's text, and describing it in messages and in the help.

_NAMES = {
    str: ("text", "TEXT"),
    int: ("a whole number", "INT"),
    float: ("a number", "FLOAT"),
    bool: ("true or false", "[true|false]"),  # a switch may stand alone
}


@dataclass(frozen=True)
class FieldType:
    """The type of a field, such as ``tuple[int, ...] | None``, taken apart."""

    inner: Any
    """The type of the value, or of each item of a list."""
    optional: bool = False
    """Whether the value may be None."""
    is_list: bool = False
    """Whether the value is a tuple of any length."""
    alternative: bool = False
    """Whether the field excludes the other such fields of its class."""

    @classmethod
    def of(cls, annotation: Any, *, alternative: bool = False) -> FieldType:
        """Take an annotation apart."""
        optional = typing.get_origin(annotation) in (Union, types.UnionType)
        if optional:
            (annotation,) = (a for a in typing.get_args(annotation) if a is not type(None))
        is_list = typing.get_origin(annotation) is tuple
        inner = typing.get_args(annotation)[0] if is_list else annotation
        return cls(inner, optional, is_list, alternative)

    @functools.cached_property
    def item(self) -> FieldType:
        """The type of each item of a list."""
        return FieldType.of(self.inner)

    @functools.cached_property
    def is_group(self) -> bool:
        """Whether the value, or each item of the list, is a dataclass of options."""
        return dataclasses.is_dataclass(self.inner)

    @functools.cached_property
    def choices(self) -> tuple[str, ...]:
        """The values of a Literal; empty for other types."""
        return typing.get_args(self.inner)

    def parse(self, text: str) -> Any:
        """The value of a scalar. Raises ValueError if the text is not of this type."""
        if self.inner in (str, int):
            return self.inner(text)
        if self.inner is float and math.isfinite(number := float(text)):
            return number
        if self.inner is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if text in self.choices:
            return text
        raise ValueError(text)

    def describe(self) -> str:
        """What a value must be, for messages."""
        if self.is_list:
            text = "a list"
        elif self.is_group:
            text = "'name: value' lines"
        else:
            text = "one of " + ", ".join(self.choices) if self.choices else _NAMES[self.inner][0]
        return f"{text}, or null" if self.optional else text

    def describe_python(self) -> str:
        """What a value must be in Python, for messages."""
        text = self.describe()
        if self.is_list and not self.is_group:
            items = {str: "texts", int: "whole numbers", float: "numbers", bool: "True and False"}
            text = f"a list of {items.get(self.inner, 'names')}"
        elif self.is_group:
            group = f"{self.inner.__name__}(...)"
            text = f"a list of {group}" if self.is_list else f"{group} or a dictionary"
        return text.replace(", or null", ", or None").replace("true or false", "True or False")

    @property
    def metavar(self) -> str:
        """What a value looks like, for the help."""
        if self.is_group:
            return "[{...}, ...]"
        text = "{" + ",".join(self.choices) + "}" if self.choices else _NAMES[self.inner][1]
        return f"{text} ..." if self.is_list else text


@_cached
def field_types(cls: type[Any]) -> dict[str, FieldType]:
    """The types of the fields of a dataclass; a group of options is one field."""
    hints = typing.get_type_hints(cls)
    marked = alternatives(cls)
    return {
        item.name: FieldType.of(hints[item.name], alternative=item.name in marked)
        for item in dataclasses.fields(cls)
    }


@dataclass(frozen=True)
class Option:
    """An option of a dataclass, or of a group of options within it."""

    name: str
    """Its name: that of its field, behind that of its group unless the group is flat."""
    kind: FieldType
    owner: type[Any]
    """The dataclass whose field it is."""
    field: str
    """The name of that field."""
    default: Any
    """Its value if it is not given; MISSING if it has to be."""
    place: tuple[str, str]
    """The group that it is in, empty if none, and its name within the group."""
    effect: str = "recipe"
    """What it changes: ``recipe``, what is computed; ``numerics``, its rounding; ``free``,
    neither."""

    @property
    def text(self) -> str:
        """The docstring of the field, in one line."""
        return field_texts(self.owner)[self.field]

    @property
    def shown_default(self) -> str:
        """The default as it would be written on the command line; empty for none."""
        value = self.default
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return "" if self.kind.is_group else shlex.join(map(str, value))
        return "" if value in (None, dataclasses.MISSING) or self.kind.is_group else str(value)


def options_of(cls: type[Any], config: Any = None) -> list[Option]:
    """The options of a dataclass, those of groups within it too: first its own, in their order,
    then those that it has in common with others.

    Args:
        cls: the dataclass.
        config: an instance of it that holds the defaults; None: they are those of its fields.
    """
    found: list[Option] = []
    for item in sorted(dataclasses.fields(cls), key=lambda item: item.kw_only is True):
        kind, effect = field_types(cls)[item.name], item.metadata.get("kind", "recipe")
        value = default_of(item) if config is None else getattr(config, item.name)
        if not kind.is_group or kind.is_list or item.metadata.get("mapping"):
            place = ("", item.name)
            found.append(Option(item.name, kind, cls, item.name, value, place, effect))
            continue
        prefix = "" if item.metadata.get("flat") else f"{item.name}_"
        for inner in options_of(kind.inner, value):
            effect = inner.effect if effect == "recipe" else effect
            name, place = prefix + inner.name, (item.name, inner.name)
            found.append(dataclasses.replace(inner, name=name, place=place, effect=effect))
    return found


@_cached
def option_types(cls: type[Any]) -> dict[str, FieldType]:
    """The types of all options of a dataclass, by name."""
    return {option.name: option.kind for option in options_of(cls)}


@_cached
def field_texts(cls: type[Any]) -> dict[str, str]:
    """The docstring of each field of a dataclass, in one line."""
    found: dict[str, str] = {}
    for owner in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        found |= _texts_of_module(owner.__module__)[owner.__qualname__]
    return found


@_cached
def _texts_of_module(name: str) -> dict[str, dict[str, str]]:
    """The docstrings of fields of a module's classes, by the qualified name of the class."""
    found: dict[str, dict[str, str]] = {}

    def visit(node: ast.AST, place: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                found[place + child.name] = _texts_of_class(child)
                visit(child, f"{place}{child.name}.")
            elif isinstance(child, ast.FunctionDef):
                visit(child, f"{place}{child.name}.<locals>.")

    visit(ast.parse(inspect.getsource(sys.modules[name])), "")
    return found


def _texts_of_class(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for item, text in itertools.pairwise(node.body):
        match item, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(words))):
                found[name] = " ".join(words.split())
    return found


def required_fields(cls: type[Any]) -> list[str]:
    """The names of the fields without a default."""
    fields = dataclasses.fields(cls)
    return [item.name for item in fields if default_of(item) is dataclasses.MISSING]
