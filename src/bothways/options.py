"""Reading options: a YAML recipe and the command line, into one frozen dataclass.

Options are named by their dotted path (``optimizer.lr``). A recipe and a command line are both
turned into a flat ``{dotted name: value}``; the command line wins. jsonargparse then fills in the
defaults, checks the types once more, builds the dataclasses and writes the help. Values are read
here, by the type of their field and never by how they look: ``1e-3`` is a number and a label ``no``
is a text, which a YAML 1.1 reader alone gets wrong. Nothing is ignored: a key or an option that no
field has is an error naming its place and the nearest one that exists.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union

import yaml
from jsonargparse import ArgumentParser, set_parsing_settings

from bothways.config import to_dict
from bothways.errors import ConfigError

T = TypeVar("T")

_NULL = "tag:yaml.org,2002:null"
_STR = "tag:yaml.org,2002:str"


class UsageError(ConfigError):
    """A command line that cannot be understood (exit status 2)."""


def parse(
    cls: type[T],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    positional: Sequence[str] = (),
    recipes: Mapping[str, Path] | None = None,
) -> T:
    """Read a command line.

    Args:
        cls: dataclass of the options.
        argv: the words after the verb.
        prog: program and verb, for the help.
        description: one paragraph, for the help.
        positional: fields given by place instead of by name, in order. The last may be a tuple and
            then takes all remaining words. Without any, the first word names a YAML recipe.
        recipes: recipes that can be named without their path.

    Returns:
        A ``cls``. ``--help`` and ``--print_config`` print and raise ``SystemExit(0)`` instead.

    Raises:
        UsageError: an unknown option, a word too many, a value of the wrong type.
        ConfigError: a recipe that cannot be read, or values that do not go together.
    """
    line = _CommandLine(cls, argv, tuple(positional), prog, recipes or {})
    if line.help is not None:
        parser = _parser(cls, prog, description, positional, named=bool(recipes))
        parser.parse_args([line.help])  # prints and exits
    values = {} if line.recipe is None else read_recipe(cls, line.recipe)
    values |= line.values
    missing = [name for name in _required(cls) if name not in values]
    if missing:
        given_as = ", ".join(n.upper() if n in positional else f"--{n}" for n in missing)
        raise UsageError(f"{prog} needs {given_as}; {_see_help(prog)}.")
    config = _build(cls, values)
    if line.print_config:
        print(yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True), end="")
        raise SystemExit(0)
    return config


def load_recipe(cls: type[T], path: str | Path, overrides: Mapping[str, Any] | None = None) -> T:
    """Read a YAML recipe from Python.

    Args:
        cls: dataclass of the options.
        path: the YAML file.
        overrides: values that win over the file's, by dotted name or nested.

    Raises:
        ConfigError: an unknown key (the message names the nearest), a wrong type, a missing value.
    """
    values = read_recipe(cls, path)
    for name, value in _flat(overrides or {}):
        if name not in leaves(cls):
            raise ConfigError(f"unknown option {name!r}{_suggest(name, cls)}")
        values[name] = value
    missing = [name for name in _required(cls) if name not in values]
    if missing:
        raise ConfigError(f"{path}: {', '.join(missing)} not given.")
    return _build(cls, values)


def read_recipe(cls: type[Any], path: str | Path) -> dict[str, Any]:
    """The values a YAML file gives, by dotted name, checked against the fields of ``cls``.

    Raises:
        ConfigError: with file and line.
    """
    return _Reader(str(path)).mapping(_compose(Path(path)), cls, "")


def leaves(cls: type[Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names of all options of a dataclass, with their types."""
    found: dict[str, Any] = {}
    for name, kind in _fields(cls).items():
        if dataclasses.is_dataclass(kind):
            found |= leaves(typing.cast("type[Any]", kind), f"{prefix}{name}.")
        else:
            found[prefix + name] = kind
    return found


# ----------------------------------------------------------------------------------------- recipes


class _Reader:
    """Turns YAML nodes into values, by the types of the fields they are for.

    Args:
        source: name of the file, for messages; None when the nodes are words of a command line.
    """

    def __init__(self, source: str | None) -> None:
        self.source = source

    def mapping(self, node: yaml.Node, cls: type[Any], prefix: str) -> dict[str, Any]:
        """A mapping's values by dotted name."""
        if not isinstance(node, yaml.MappingNode):
            where = f"{prefix.rstrip('.')} is" if prefix else "this is"
            self._fail(node, f"{where} {_shown(node)}; it must be 'name: value' lines")
        fields = _fields(cls)
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, item in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name not in fields:
                self._unknown(key, prefix, cls)
            if name in lines:
                self._fail(key, f"{prefix}{name} is given twice (first on line {lines[name]})")
            lines[name] = key.start_mark.line + 1
            kind = fields[name]
            if dataclasses.is_dataclass(kind):
                nested = typing.cast("type[Any]", kind)
                values |= self.mapping(item, nested, f"{prefix}{name}.")
            else:
                values[prefix + name] = self.value(item, kind, prefix + name)
        return values

    def value(self, node: yaml.Node, kind: Any, name: str) -> Any:
        """One option's value."""
        wanted, optional = _unwrap(kind)
        is_null = node.tag == _NULL
        if is_null and optional:
            return None
        if dataclasses.is_dataclass(wanted):
            item = self.mapping(node, typing.cast("type[Any]", wanted), f"{name}.")
            return _build(
                typing.cast("type[Any]", wanted),
                {key.removeprefix(f"{name}."): value for key, value in item.items()},
            )
        if typing.get_origin(wanted) is tuple:
            if not isinstance(node, yaml.SequenceNode):
                self._fail(node, f"{name} is {_shown(node)}; it must be {_describe(kind)}")
            inner = typing.get_args(wanted)[0]
            return [self.value(v, inner, f"{name}[{i}]") for i, v in enumerate(node.value)]
        if not isinstance(node, yaml.ScalarNode) or is_null:
            self._fail(node, f"{name} is {_shown(node)}; it must be {_describe(kind)}")
        try:
            return _scalar(node.value, wanted)
        except ValueError:
            self._fail(node, f"{name} is {node.value!r}; it must be {_describe(kind)}")

    def _unknown(self, key: yaml.Node, prefix: str, cls: type[Any]) -> NoReturn:
        if not isinstance(key, yaml.ScalarNode):
            self._fail(key, "a key must be a plain name")
        group, _, rest = key.value.partition(".")
        if key.value in leaves(cls):
            self._fail(key, f"write {key.value!r} nested: '{prefix}{group}: {{{rest}: ...}}'")
        hint = _suggest(key.value, cls, prefix) or f"; known here: {', '.join(_fields(cls))}"
        self._fail(key, f"unknown key {prefix + key.value!r}{hint}")

    def _fail(self, node: yaml.Node, problem: str) -> NoReturn:
        ending = "" if problem.endswith("?") else "."
        if self.source is None:
            raise UsageError(problem + ending)
        raise ConfigError(f"{self.source}:{node.start_mark.line + 1}: {problem}{ending}")


def _compose(path: Path) -> yaml.Node:
    """The node tree of a YAML file."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8; save the recipe as UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path}: the recipe cannot be read: {error.strerror}.") from None
    node = _compose_text(text, str(path))
    if node is None:
        raise ConfigError(
            f"{path}: the recipe is empty; give 'name: value' lines, or leave it out."
        )
    return node


def _compose_text(text: str, source: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = source if mark is None else f"{source}:{mark.line + 1}"
        problem = error.problem or error.context or "not YAML"
        if "'\\t'" in problem:
            problem = "a tab; YAML is indented with spaces"
        raise ConfigError(f"{where}: {problem}.") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise ConfigError(f"{source}:{line}: not text: {error.reason}.") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply to be a recipe.") from None
    return node


def _sequence(text: str, source: str) -> yaml.Node | None:
    """A list in brackets; None for what only begins like one, such as the glob ``[ab]*.txt``."""
    try:
        node = _compose_text(text, source)
    except ConfigError:
        return None
    return node if isinstance(node, yaml.SequenceNode) else None


# ------------------------------------------------------------------------------------ command line


class _CommandLine:
    """Words sorted into a recipe, named values and values given by place.

    A switch may stand alone (``--from_scratch``), a list option takes all words up to the next
    option (``--seeds 1 2 3``), ``-`` and ``_`` in names are the same, ``--`` ends the options.
    """

    def __init__(
        self,
        cls: type[Any],
        argv: Sequence[str],
        positional: tuple[str, ...],
        prog: str,
        recipes: Mapping[str, Path],
    ) -> None:
        self.help: str | None = None
        self.print_config = False
        self.recipe: Path | None = None
        self.values: dict[str, Any] = {}
        self._cls, self._positional, self._prog = cls, positional, prog
        self._recipes = recipes
        self._kinds = leaves(cls)
        self._helped = {
            f"{name}.help" for name, kind in self._kinds.items() if _is_list_of_groups(kind)
        }
        self._words = list(argv)
        placed: list[str] = []
        while self._words:
            word = self._words.pop(0)
            if word == "--":
                placed += self._words
                break
            if word.startswith("--") or re.fullmatch(r"-[A-Za-z]\w*", word):
                self._option(word)
            else:
                placed.append(word)
        if self.help is None:
            self._place(placed)

    def _option(self, word: str) -> None:
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if word in ("-h", "--help") or name in self._helped:
            self.help = word
        elif name == "print_config":
            self.print_config = True
        elif name == "config" and not self._positional:
            self._set_recipe(value if equals else self._next(word))
        elif not word.startswith("--") or name not in self._kinds or name in self._positional:
            found = nearest(name, [kind for kind in self._kinds if kind not in self._positional])
            hint = f"did you mean '--{found}'?" if found else f"{_see_help(self._prog)}."
            if name in self._positional:
                places = " ".join(place.upper() for place in self._positional)
                hint = f"it is given by its place: {self._prog} {places}."
            raise UsageError(f"unknown option {word.partition('=')[0]!r}; {hint}")
        else:
            node = self._node(name, [value] if equals else self._values(word, self._kinds[name]))
            self.values[name] = _Reader(None).value(node, self._kinds[name], name)

    def _values(self, word: str, kind: Any) -> list[str]:
        """The words that belong to an option."""
        wanted, _ = _unwrap(kind)
        if wanted is bool and not (self._words and self._words[0].lower() in ("true", "false")):
            return ["true"]
        taken = [self._next(word)]
        listed = taken[0].startswith("[") and _sequence(taken[0], word) is not None
        if typing.get_origin(wanted) is tuple and not listed:
            while self._words and not self._words[0].startswith("--"):
                taken.append(self._words.pop(0))
        return taken

    def _next(self, word: str) -> str:
        if not self._words or self._words[0].startswith("--"):
            raise UsageError(f"{word} needs a value; {_see_help(self._prog)}.")
        return self._words.pop(0)

    def _node(self, name: str, words: list[str]) -> yaml.Node:
        wanted, _ = _unwrap(self._kinds[name])
        listed = typing.get_origin(wanted) is tuple
        if listed and words[0].startswith("["):
            node = _sequence(words[0], f"--{name}")
            if node is not None:
                return node
        scalars = [yaml.ScalarNode(_NULL if word == "null" else _STR, word) for word in words]
        return yaml.SequenceNode("", scalars) if listed else scalars[0]

    def _place(self, words: list[str]) -> None:
        if not self._positional:
            for word in words:
                self._set_recipe(word)
            return
        for number, name in enumerate(self._positional):
            if typing.get_origin(self._kinds[name]) is tuple:
                self.values[name] = words[number:]
                return
            if number < len(words):
                self.values[name] = words[number]
        if len(words) > len(self._positional):
            extra = words[len(self._positional)]
            raise UsageError(f"unexpected {extra!r}; {_see_help(self._prog)}.")

    def _set_recipe(self, word: str) -> None:
        if self.recipe is not None:
            raise UsageError(f"unexpected {word!r}: the recipe is {self.recipe} already.")
        if not word.endswith((".yaml", ".yml")):
            if word in self._recipes:
                self.recipe = self._recipes[word]
                return
            if self._recipes:
                found = nearest(word, list(self._recipes))
                hint = (
                    f"did you mean {found!r}?" if found else f"known: {', '.join(self._recipes)}."
                )
                raise UsageError(f"{word!r} is neither a .yaml file nor a declared name; {hint}")
            raise UsageError(
                f"unexpected {word!r}: the one word without a name is the recipe, a .yaml file; "
                f"{_see_help(self._prog)}."
            )
        self.recipe = Path(word)


# ------------------------------------------------------------------------------------ jsonargparse


def _parser(
    cls: type[Any],
    prog: str,
    description: str,
    positional: Sequence[str] = (),
    *,
    named: bool = False,
) -> ArgumentParser:
    """The parser that knows the fields, their help and their defaults."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    # In JSON mode a text such as "#1" for an optional field stays a text.
    parser = ArgumentParser(
        prog=prog,
        description=description,
        exit_on_error=False,
        parser_mode="json",
    )
    parser.add_class_arguments(cls, as_group=False)
    places = ["[RECIPE.yaml | NAME]" if named else "[RECIPE.yaml]"] * (not positional)
    for action in parser._actions:
        kind = _fields(cls).get(action.dest)
        if dataclasses.is_dataclass(kind):
            action.help = argparse.SUPPRESS  # a file for one group: recipes are whole here
        elif action.dest in positional:
            listed = typing.get_origin(kind) is tuple
            action.option_strings, action.metavar = [], action.dest.upper()
            places.append(f"[{action.metavar} ...]" if listed else action.metavar)
    parser.usage = " ".join(["%(prog)s", *places, "[--OPTION VALUE ...]"])
    if not positional:
        parser.add_argument("--config", metavar="RECIPE.yaml", help="The recipe, by name.")
    parser.add_argument("--print_config", action="store_true", help="Print all options and stop.")
    return parser


@functools.cache
def _builder(cls: type[Any]) -> ArgumentParser:
    return _parser(cls, "bothways", "")


def _build(cls: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass, with defaults where ``values`` gives nothing."""
    parser = _builder(typing.cast(Any, cls))
    try:
        built = parser.instantiate(parser.parse_object(_nested(values)))
    except argparse.ArgumentError as error:
        problem = re.sub(r'Parser key "([^"]+)":\s*', r"\1: ", str(error))
        raise ConfigError(" ".join(problem.split()) + ".") from None
    return cls(**{field.name: built[field.name] for field in _dataclass_fields(cls)})


# -------------------------------------------------------------------------- fields and their types


def _dataclass_fields(cls: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)


def _fields(cls: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in _dataclass_fields(cls)}


def _required(cls: type[Any]) -> list[str]:
    none = dataclasses.MISSING
    return [
        field.name
        for field in _dataclass_fields(cls)
        if field.default is none and field.default_factory is none
    ]


def _unwrap(kind: Any) -> tuple[Any, bool]:
    """A type without its ``| None``, and whether it had one."""
    if typing.get_origin(kind) in (Union, types.UnionType):
        inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        return inner[0], True
    return kind, False


def _is_list_of_groups(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple and dataclasses.is_dataclass(typing.get_args(kind)[0])


def _scalar(text: str, kind: Any) -> Any:
    """A scalar by its type. Raises ValueError when the text is not of that type."""
    if kind is str:
        return text
    if kind is int:
        return int(text)
    if kind is float:
        number = float(text)
        if math.isfinite(number):
            return number
    elif kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    elif text in typing.get_args(kind):
        return text
    raise ValueError(text)


def _describe(kind: Any) -> str:
    wanted, optional = _unwrap(kind)
    if typing.get_origin(wanted) is Literal:
        text = "one of " + ", ".join(typing.get_args(wanted))
    elif typing.get_origin(wanted) is tuple:
        text = "a list"
    elif dataclasses.is_dataclass(wanted):
        text = "'name: value' lines"
    else:
        text = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}[
            wanted
        ]
    return f"{text}, or null" if optional else text


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "empty" if node.tag == _NULL else repr(node.value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, list(value) if isinstance(value, tuple) else value


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *groups, last = name.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[last] = value
    return tree


# ----------------------------------------------------------------------------------------- messages


def nearest(name: str, candidates: Sequence[str]) -> str | None:
    """The candidate most like a misspelt name; by the last part of a dotted name if need be."""
    close = difflib.get_close_matches(name, candidates, n=1)
    if close:
        return close[0]
    last = {candidate.rpartition(".")[2]: candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(name.rpartition(".")[2], last, n=1)
    return last[close[0]] if close else None


def _suggest(name: str, cls: type[Any], prefix: str = "") -> str:
    found = nearest(name, [*leaves(cls), *_fields(cls)])
    return f"; did you mean {prefix + found!r}?" if found else ""


def _see_help(prog: str) -> str:
    return f"see '{prog} --help'"
