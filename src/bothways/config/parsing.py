"""Reading options: a YAML recipe and the command line, into one frozen dataclass.

Options are named by their dotted path (``optimizer.lr``). A recipe and a command line are each
turned into a flat ``{dotted name: value}``; the command line wins, and of options that exclude
each other one on the command line replaces another of the recipe. jsonargparse then fills in the
defaults, checks the types once more, builds the dataclasses and formats the help. Values are parsed
here, by the type of their field and never by what they look like: ``1e-3`` is a number and a label
``no`` is text, both of which YAML 1.1 gets wrong. Nothing is ignored: an unknown key or option is
an error that names its place and the closest existing one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import shlex
import typing
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings

from bothways.config.fields import (
    FieldType,
    Options,
    alternative_options,
    alternatives,
    field_types,
    is_given,
    option_types,
    required_fields,
    several_given,
    to_dict,
)
from bothways.config.recipes import SUFFIXES, compose, compose_text, find_recipe, shipped_recipes
from bothways.errors import ConfigError, nearest

T = TypeVar("T")

_NULL = "tag:yaml.org,2002:null"
_STR = "tag:yaml.org,2002:str"


class UsageError(ConfigError):
    """A command line that cannot be parsed (exit status 2)."""


def parse(
    cls: type[T],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    positional: Sequence[str] = (),
    recipes: Mapping[str, Path] | None = None,
    recipe_part: str = "",
    epilog: Callable[[], str] = str,
) -> T:
    """Parse a command line.

    Args:
        cls: dataclass of the options.
        argv: the words after the verb.
        prog: program and verb, for the help.
        description: one paragraph, for the help.
        positional: fields given by position instead of by name, in order. The last may be a tuple
            and then takes all remaining words. Without any, the first word names a YAML recipe.
        recipes: recipes that can be named without their path.
        recipe_part: the group of options that ``cls`` has in common with these recipes, if they are
            of another verb; the rest of them is not read.
        epilog: gives lines below the options, for the help.

    Returns:
        A ``cls``. ``--help`` and ``--print_config`` print and raise ``SystemExit(0)`` instead.

    Raises:
        UsageError: an unknown option, an unexpected word, a value of the wrong type.
        ConfigError: a recipe that cannot be read, or values that contradict each other.
    """
    syntax = _Syntax(prog, option_types(cls), tuple(positional), recipes or {})
    words = _parse_words(argv, syntax)
    if words.action == "help":
        _print_help(cls, syntax, description, words.help_topic)
        if words.help_topic is None and (below := epilog()):
            print(f"\n{below}")
        raise SystemExit(0)
    if words.recipe is None:
        values = {}
    elif recipe_part and words.recipe in syntax.recipes.values():
        values = _read_part(cls, words.recipe, recipe_part)
    else:
        values = read_recipe(cls, words.recipe)
    values = _merged(cls, values, words.values)
    missing = [name for name in required_fields(cls) if name not in values]
    if missing:
        listed = ", ".join(n.upper() if n in positional else f"--{n}" for n in missing)
        raise UsageError(f"{prog} needs {listed}; {syntax.see_help}.")
    config = _build(cls, values)
    if words.action == "print_config":
        print(yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True), end="")
        raise SystemExit(0)
    return config


def load_recipe(cls: type[T], recipe: str | Path, overrides: Mapping[str, Any] | None = None) -> T:
    """Read a YAML recipe from Python.

    Args:
        cls: dataclass of the options.
        recipe: the YAML file, or for pre-training the name of a recipe that comes with
            the package (:func:`bothways.config.recipes.find_recipe`).
        overrides: values that win over the file's, by dotted name or nested. Of options that
            exclude each other, such as those of a clock, one given here replaces the file's.

    Raises:
        ConfigError: no such recipe, an unknown key (the message names the nearest), a wrong type, a
            missing value.
    """
    values = read_recipe(cls, recipe)
    given = dict(_flat(overrides or {}))
    for name in given:
        if name not in option_types(cls):
            raise ConfigError(f"unknown option {name!r}{_suggest(name, cls)}")
    values = _merged(cls, values, given)
    missing = [name for name in required_fields(cls) if name not in values]
    if missing:
        raise ConfigError(f"{recipe}: {', '.join(missing)} not given.")
    return _build(cls, values)


def read_recipe(cls: type[Any], recipe: str | Path) -> dict[str, Any]:
    """The values in a recipe by dotted name, checked against the fields of ``cls``.

    Args:
        cls: dataclass of the options.
        recipe: as for :func:`load_recipe`.

    Raises:
        ConfigError: no such recipe, or one that cannot be read, with file and line.
    """
    path = find_recipe(recipe, shipped_recipes() if _by_name(cls) else {})
    return _NodeReader(str(path)).mapping(compose(path), cls, "")


def _by_name(cls: type[Any]) -> bool:
    return issubclass(cls, Options) and cls.recipes_by_name


def _merged(cls: type[Any], recipe: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe, and those given beside it, which win."""
    replaced = {
        name
        for names in alternative_options(cls)
        if any(is_given(given.get(name)) for name in names)
        for name in names
    }
    return {n: value for n, value in recipe.items() if n not in replaced} | dict(given)


def _read_part(cls: type[Any], path: Path, part: str) -> dict[str, Any]:
    """The values of one group of a recipe's options, by dotted name."""
    node = compose(path)
    assert isinstance(node, yaml.MappingNode), "a recipe of ours"
    inner = field_types(cls)[part].inner
    groups = [item for key, item in node.value if key.value == part]
    reader = _NodeReader(str(path))
    return {k: v for item in groups for k, v in reader.mapping(item, inner, f"{part}.").items()}


# ----------------------------------------------------------------------------------------- recipes


class _NodeReader:
    """Converts YAML nodes to values, by the types of their fields.

    Args:
        source: name of the file, for messages; None if the nodes are words of a command line.
    """

    def __init__(self, source: str | None) -> None:
        self.source = source

    def mapping(self, node: yaml.Node, cls: type[Any], prefix: str) -> dict[str, Any]:
        """The values of a mapping for the fields of ``cls``, by dotted name."""
        if not isinstance(node, yaml.MappingNode):
            where = f"{prefix.rstrip('.')} is" if prefix else "this is"
            self._fail(node, f"{where} {_shown(node)}; it must be 'name: value' lines")
        types = field_types(cls)
        values: dict[str, Any] = {}
        keys: dict[str, yaml.Node] = {}
        for key, item in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name not in types:
                self._unknown(key, prefix, cls)
            if name in keys:
                first = keys[name].start_mark.line + 1
                self._fail(key, f"{prefix}{name} is given twice (first on line {first})")
            keys[name] = key
            field_type = types[name]
            if field_type.is_group and not field_type.is_list:
                values |= self.mapping(item, field_type.inner, f"{prefix}{name}.")
            else:
                values[prefix + name] = self.value(item, field_type, prefix + name)
        several = [n for n in alternatives(cls) if is_given(values.get(prefix + n))]
        if len(several) > 1:
            problem = several_given(cls, several, prefix.rstrip("."))
            last = max((keys[n] for n in several), key=lambda key: key.start_mark.line)
            self._fail(last, problem.removesuffix("."))
        return values

    def value(self, node: yaml.Node, field_type: FieldType, name: str) -> Any:
        """The value of one option."""
        is_null = node.tag == _NULL
        if is_null and field_type.optional:
            return None
        if field_type.is_list:
            if not isinstance(node, yaml.SequenceNode):
                self._fail(node, f"{name} is {_shown(node)}; it must be {field_type.describe()}")
            item_type = FieldType(field_type.inner)
            return [self.value(v, item_type, f"{name}[{i}]") for i, v in enumerate(node.value)]
        if field_type.is_group:
            values = self.mapping(node, field_type.inner, f"{name}.")
            return _build(
                field_type.inner, {k.removeprefix(f"{name}."): v for k, v in values.items()}
            )
        if not isinstance(node, yaml.ScalarNode) or is_null:
            self._fail(node, f"{name} is {_shown(node)}; it must be {field_type.describe()}")
        try:
            return field_type.parse(node.value)
        except ValueError:
            self._fail(node, f"{name} is {node.value!r}; it must be {field_type.describe()}")

    def _unknown(self, key: yaml.Node, prefix: str, cls: type[Any]) -> NoReturn:
        if not isinstance(key, yaml.ScalarNode):
            self._fail(key, "a key must be a plain name")
        group, _, rest = key.value.partition(".")
        if key.value in option_types(cls):
            self._fail(key, f"write {key.value!r} nested: '{prefix}{group}: {{{rest}: ...}}'")
        hint = _suggest(key.value, cls, prefix) or f"; known here: {', '.join(field_types(cls))}"
        self._fail(key, f"unknown key {prefix + key.value!r}{hint}")

    def _fail(self, node: yaml.Node, problem: str) -> NoReturn:
        ending = "" if problem.endswith("?") else "."
        if self.source is None:
            raise UsageError(problem + ending)
        raise ConfigError(f"{self.source}:{node.start_mark.line + 1}: {problem}{ending}")


def _sequence(text: str, source: str) -> yaml.Node | None:
    """A list in brackets; None for text that only starts like one, such as a glob ``[ab]*.txt``."""
    try:
        node = compose_text(text, source)
    except ConfigError:
        return None
    return node if isinstance(node, yaml.SequenceNode) else None


# ------------------------------------------------------------------------------------ command line


@dataclass(frozen=True)
class _Syntax:
    """What a verb's command line may contain."""

    prog: str
    options: Mapping[str, FieldType]
    positional: tuple[str, ...]
    recipes: Mapping[str, Path]

    @property
    def see_help(self) -> str:
        return f"see '{self.prog} --help'"


@dataclass
class _ParsedWords:
    """The words of a command line, sorted."""

    action: Literal["run", "print_config", "help"] = "run"
    help_topic: str | None = None
    """Option whose items the help is about (``--phases.help``); None: all options."""
    recipe: Path | None = None
    values: dict[str, Any] = field(default_factory=dict)


def _parse_words(argv: Sequence[str], syntax: _Syntax) -> _ParsedWords:
    """Sort words into a recipe, options and positional values.

    A switch may stand alone (``--from_scratch``), a list option takes all words up to the next
    option (``--seeds 1 2 3``), ``-`` and ``_`` in names are the same, ``--`` ends the options.
    """
    parsed = _ParsedWords()
    words = deque(argv)
    operands: list[str] = []
    while words:
        word = words.popleft()
        if word == "--":
            operands += words
            break
        if word.startswith("--") or re.fullmatch(r"-[A-Za-z]\w*", word):
            _parse_option(word, words, syntax, parsed)
        else:
            operands.append(word)
    if parsed.action == "help":
        return parsed
    if syntax.positional:
        parsed.values |= _positional_values(operands, syntax)
    else:
        for word in operands:
            _set_recipe(word, syntax, parsed)
    return parsed


def _parse_option(word: str, words: deque[str], syntax: _Syntax, parsed: _ParsedWords) -> None:
    """Add one option to ``parsed``, taking its values from the ``words`` after it."""
    name, equals, value = word.lstrip("-").partition("=")
    name = name.replace("-", "_")
    topic = name.removesuffix(".help")
    if word in ("-h", "--help"):
        parsed.action, parsed.help_topic = "help", None
    elif topic != name and topic in syntax.options and syntax.options[topic].is_group:
        parsed.action, parsed.help_topic = "help", topic
    elif name == "print_config":
        if parsed.action == "run":
            parsed.action = "print_config"
    elif name == "config" and not syntax.positional:
        _set_recipe(value if equals else _next_value(word, words, syntax), syntax, parsed)
    elif not word.startswith("--") or name not in syntax.options or name in syntax.positional:
        raise _unknown_option(word, name, syntax)
    else:
        field_type = syntax.options[name]
        if name in parsed.values and field_type.is_list and not field_type.is_group:
            raise UsageError(f"{word} is given twice; write all its values after one --{name}.")
        texts = [value] if equals else _option_values(word, words, field_type, syntax)
        node = _option_node(name, texts, field_type)
        parsed.values[name] = _NodeReader(None).value(node, field_type, name)


def _option_values(
    word: str, words: deque[str], field_type: FieldType, syntax: _Syntax
) -> list[str]:
    """Take the words that are values of an option."""
    if field_type.inner is bool and not field_type.is_list:
        is_value = words and (
            words[0].lower() in ("true", "false") or (field_type.optional and words[0] == "null")
        )
        return [words.popleft() if is_value else "true"]
    values = [_next_value(word, words, syntax)]
    bracketed = values[0].startswith("[") and _sequence(values[0], word) is not None
    if field_type.is_list and not bracketed:
        while words and not words[0].startswith("--"):
            values.append(words.popleft())
    return values


def _next_value(word: str, words: deque[str], syntax: _Syntax) -> str:
    if not words or words[0].startswith("--"):
        raise UsageError(f"{word} needs a value; {syntax.see_help}.")
    return words.popleft()


def _option_node(name: str, texts: list[str], field_type: FieldType) -> yaml.Node:
    """The values of an option as the YAML node that a recipe would have."""
    if field_type.is_list and texts[0].startswith("["):
        node = _sequence(texts[0], f"--{name}")
        if node is not None:
            return node
    scalars = [yaml.ScalarNode(_NULL if text == "null" else _STR, text) for text in texts]
    return yaml.SequenceNode("", scalars) if field_type.is_list else scalars[0]


def _unknown_option(word: str, name: str, syntax: _Syntax) -> UsageError:
    if name in syntax.positional:
        places = " ".join(place.upper() for place in syntax.positional)
        hint = f"it is given by its place: {syntax.prog} {places}."
    else:
        close = nearest(name, [known for known in syntax.options if known not in syntax.positional])
        hint = f"did you mean '--{close}'?" if close else f"{syntax.see_help}."
    return UsageError(f"unknown option {word.partition('=')[0]!r}; {hint}")


def _positional_values(words: list[str], syntax: _Syntax) -> dict[str, Any]:
    """Values by position; a list takes all remaining words."""
    values: dict[str, Any] = {}
    for number, name in enumerate(syntax.positional):
        if syntax.options[name].is_list:
            return values | {name: words[number:]}
        if number < len(words):
            values[name] = words[number]
    if len(words) > len(syntax.positional):
        extra = words[len(syntax.positional)]
        raise UsageError(f"unexpected {extra!r}; {syntax.see_help}.")
    return values


def _set_recipe(word: str, syntax: _Syntax, parsed: _ParsedWords) -> None:
    """Take a word without an option as the recipe."""
    if parsed.recipe is not None:
        raise UsageError(f"unexpected {word!r}: the recipe is {parsed.recipe} already.")
    if not syntax.recipes and not word.endswith(SUFFIXES):
        raise UsageError(
            f"unexpected {word!r}: the one word without a name is the recipe, a .yaml file; "
            f"{syntax.see_help}."
        )
    try:
        parsed.recipe = find_recipe(word, syntax.recipes)
    except ConfigError as error:
        raise UsageError(str(error)) from None


# ------------------------------------------------------------------------------ jsonargparse, help


class _HelpFormatter(DefaultHelpFormatter):
    """Shows a default after the text of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        if action.dest == "help":
            return super()._get_help_string(action)
        text = action.help or ""
        if action.required:
            return f"{text} (required)"
        shown = _shown_default(action.default)
        return f"{text} (default: {shown})" if shown else text


def _shown_default(default: Any) -> str:
    """A default as it would be written on the command line; empty for none."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        is_group = any(dataclasses.is_dataclass(item) for item in default)
        return "" if is_group else shlex.join(map(str, default))
    return "" if default in (None, argparse.SUPPRESS) else str(default)


def _print_help(cls: type[Any], syntax: _Syntax, description: str, topic: str | None) -> None:
    """Print the help for all options, or for the items of a list option."""
    # A setting of the process; recipes, which Python code reads too, need no help.
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    if topic is None:
        _help_parser(cls, syntax, description).print_help()
        return
    group = syntax.options[topic].inner
    parser = _parser(group, syntax.prog, (group.__doc__ or "").strip())
    item = "{" + ", ".join(f"{name}: ..." for name in field_types(group)) + "}"
    parser.usage = f"%(prog)s --{topic} '[{item}, ...]'"
    for action in parser._actions:
        if action.dest in field_types(group):
            action.option_strings, action.metavar = [], action.dest
    parser.print_help()


def _help_parser(cls: type[Any], syntax: _Syntax, description: str) -> ArgumentParser:
    """A parser whose help shows positional options and recipes as :func:`parse` reads them."""
    parser = _parser(cls, syntax.prog, description)
    recipe = "[RECIPE.yaml | NAME]" if syntax.recipes else "[RECIPE.yaml]"
    places = [] if syntax.positional else [recipe]
    for action in parser._actions:
        if action.dest in syntax.positional:
            place = action.dest.upper()
            action.option_strings, action.metavar = [], place
            place += " ..." if syntax.options[action.dest].is_list else ""
            places.append(place if action.required else f"[{place}]")
    parser.usage = " ".join(["%(prog)s", *places, "[--OPTION VALUE ...]"])
    if not syntax.positional:
        parser.add_argument(
            "--config",
            metavar=recipe.strip("[]"),
            help="Recipe with values for these options; the same as naming it without --config. "
            "Options of the command line override it; null unsets a value.",
        )
    parser.add_argument(
        "--print_config",
        action="store_true",
        default=argparse.SUPPRESS,
        help="Print the values of all options as a recipe and exit.",
    )
    return parser


def _parser(cls: type[Any], prog: str, description: str) -> ArgumentParser:
    """A jsonargparse parser for the fields of a dataclass."""
    # In JSON mode a text such as "#1" for an optional field stays a text.
    parser = ArgumentParser(
        prog=prog,
        description=description,
        exit_on_error=False,
        parser_mode="json",
        formatter_class=_HelpFormatter,
    )
    parser.add_class_arguments(cls, as_group=False)
    options = option_types(cls)
    for action in parser._actions:
        if action.dest in options:
            action.metavar = options[action.dest].metavar
        elif action.dest.endswith(".help"):
            action.help = "Show the fields of an item and exit."
        elif action.dest != "help":
            action.help = argparse.SUPPRESS  # a file for one group: recipes are whole here
    return parser


@functools.cache
def _builder(cls: type[Any]) -> ArgumentParser:
    return _parser(cls, "bothways", "")


def _build(cls: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass, with defaults for what ``values`` does not set."""
    parser = _builder(typing.cast(Any, cls))
    try:
        built = parser.instantiate(parser.parse_object(_nested(values)))
    except argparse.ArgumentError as error:
        problem = re.sub(r'Parser key "([^"]+)":\s*', r"\1: ", str(error))
        raise ConfigError(" ".join(problem.split()) + ".") from None
    return cls(**{name: built[name] for name in field_types(cls)})


# ------------------------------------------------------------------------------- nodes and names


def _shown(node: yaml.Node) -> str:
    """A node's value, for messages."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "empty" if node.tag == _NULL else repr(node.value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted names with their values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, list(value) if isinstance(value, tuple) else value


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`_flat`."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *groups, last = name.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[last] = value
    return tree


# ----------------------------------------------------------------------------------------- messages


def _suggest(name: str, cls: type[Any], prefix: str = "") -> str:
    close = nearest(name, [*option_types(cls), *field_types(cls)])
    return f"; did you mean {prefix + close!r}?" if close else ""
