"""Reading options: a YAML recipe, the command line or the keywords of a call, into one frozen
dataclass.

An option has one name: with hyphens on the command line (``--batch-size 8``), with underscores as
the key of a recipe and the keyword of a call. Whatever is given becomes YAML nodes as a recipe has
them, so that one reader knows the types: it reads a value by the type of its field and never by
what it looks like (``1e-3`` is a number and a label ``no`` is text, both of which YAML 1.1 gets
wrong). The command line wins over the recipe. Nothing is ignored: an unknown key or option is an
error that names its place and the closest existing one.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from bothways.config.fields import (
    FieldType,
    Option,
    Options,
    alternatives,
    build,
    is_given,
    option_types,
    options_of,
    required_fields,
    suggestion,
    values_of,
)
from bothways.config.recipes import SUFFIXES, compose, compose_text, find_recipe, shipped_recipes
from bothways.errors import ConfigError

T = TypeVar("T")

_NULL, _STR, _MAP, _SEQ = (f"tag:yaml.org,2002:{name}" for name in ("null", "str", "map", "seq"))


class UsageError(ConfigError):
    """A command line that cannot be parsed (exit status 2)."""


@dataclass(frozen=True)
class CommandLine:
    """How the words after a verb are read."""

    cls: type[Any]
    """The dataclass of the options."""
    prog: str
    """Program and verb."""
    positional: Sequence[str] = ()
    """Options that are given by place, in order. The last may be a list and then takes all
    remaining words. Without any, the first word names a recipe."""
    recipes: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    """Recipes that can be named without their path."""
    recipe_part: str = ""
    """The group of options that is read of these, if they are recipes of another verb."""
    chosen_recipe: Callable[[Mapping[str, Any]], str | None] | None = None
    """Gives the recipe where none is named, by the options that are given."""
    examples: Sequence[str] = ()
    """For the help, and for what is said where something is missing."""
    epilog: Callable[[], str] = str
    """Gives lines below the options, for the help."""

    def parse(self, argv: Sequence[str]) -> Any:
        """The options. ``--help [OPTION]`` and ``--print-config`` print, and raise
        ``SystemExit(0)`` instead.

        Raises:
            UsageError: an unknown option, an unexpected word, a value of the wrong type, a value
                that is missing.
            ConfigError: a recipe that cannot be read, or values that contradict each other.
        """
        given, recipe, action = self._read(argv)
        if (
            recipe is None
            and self.chosen_recipe is not None
            and (name := self.chosen_recipe(given))
        ):
            recipe = self.recipes[name]
        values: dict[str, Any] = {}
        if recipe is not None:
            part = self.recipe_part if recipe in self.recipes.values() else ""
            values = read_recipe(self.cls, recipe, part)
        values = _merged(self.cls, values, given)
        missing = [name for name in required_fields(self.cls) if name not in values]
        missing = missing or [n for n in getattr(self.cls, "needed", ()) if not argv]
        if missing:
            listed = ", ".join(n.upper() if n in self.positional else shown(n) for n in missing)
            example = f"; for example\n  {self.examples[0]}\nSee" if self.examples else "; see"
            raise UsageError(f"{self.prog} needs {listed}{example} '{self.prog} --help'.")
        config = build(self.cls, values)
        if action:
            print(yaml.safe_dump(values_of(config), sort_keys=False, allow_unicode=True), end="")
            raise SystemExit(0)
        return config

    def _read(self, argv: Sequence[str]) -> tuple[dict[str, Any], Path | None, bool]:
        """The values that are given, the recipe, and whether the options are only printed."""
        words, operands, found = deque(argv), list[str](), dict[str, list[str]]()
        types, only_print = option_types(self.cls), False
        named = {"set", *(option.name for option in self.listed())} - {*self.positional}
        while words:
            word = words.popleft()
            if word in ("-h", "--help"):
                print(self.help(*[*words][:1]))
                raise SystemExit(0)
            if word == "--":
                operands += words
                break
            if word == "--print-config":
                only_print = True
            elif not word.startswith("--"):
                if re.match(r"-[A-Za-z]\w*$", word):
                    self._refuse_unknown(word)
                operands.append(word)
            else:
                self._take(word, words, named, found)
        read = _Reader(error=UsageError)
        sets = found.pop("set", [])
        found |= self._by_place(operands)
        given = {name: read.words(texts, types[name], name) for name, texts in found.items()}
        for text in sets:
            name, equals, value = text.partition("=")
            if not equals:
                raise UsageError(f"--set {text}: write it as KEY=VALUE.")
            if name not in types:
                raise UsageError(f"--set: there is no option {name!r}{suggestion(name, types)}")
            if name in given:
                raise UsageError(f"{name} is given twice; leave one out.")
            is_null = value == "null" and types[name].optional
            given[name] = None if is_null else read.value(_composed(value), types[name], name)
        recipe = self._recipe(operands) if operands and not self.positional else None
        return given, recipe, only_print

    def _take(
        self, word: str, words: deque[str], named: set[str], found: dict[str, list[str]]
    ) -> None:
        """Put the words that belong to an option among those that were found."""
        name, equals, value = word.removeprefix("--").partition("=")
        key = name.replace("-", "_")
        if key not in named or "_" in name:
            self._refuse_unknown(f"--{name}")
        several = key == "set"
        kind = FieldType(str, is_list=True) if several else option_types(self.cls)[key]
        if key in found and kind.is_list and not (several or kind.is_group):
            raise UsageError(f"--{name} is given twice; write all its values after one --{name}.")
        values = [value] if equals else _values(words, kind)
        if not values:
            raise UsageError(f"--{name} needs a value; see '{self.prog} --help'.")
        found[key] = [*found.get(key, ()), *values] if several else values

    def listed(self) -> list[Option]:
        """The options of the command line, those that are given by place too, in their order."""
        listed = [name for names in self.cls.listed.values() for name in names]
        options = {option.name: option for option in options_of(self.cls)}
        first = [name for name in self.positional if listed and name not in listed]
        return [options[name] for name in [*first, *(listed or options)]]

    def _by_place(self, words: list[str]) -> dict[str, list[str]]:
        """Words by the options whose places they are in."""
        found: dict[str, list[str]] = {}
        types, rest = option_types(self.cls), [*words]
        for name in self.positional:
            count = len(rest) if types[name].is_list else 1
            if taken := rest[:count]:
                found[name], rest = taken, rest[count:]
        if rest and self.positional:
            raise UsageError(f"unexpected {rest[0]!r}; see '{self.prog} --help'.")
        return found

    def _recipe(self, words: Sequence[str]) -> Path:
        word = words[0]
        if len(words) > 1:
            raise UsageError(f"unexpected {words[1]!r}: the recipe is {word} already.")
        known = word in self.recipes or word.endswith(SUFFIXES)
        if not known and (not self.recipes or Path(word).exists()):
            raise UsageError(
                f"unexpected {word!r}: the one word without a name is the recipe, a .yaml file."
            )
        try:
            return find_recipe(word, self.recipes)
        except ConfigError as error:
            raise UsageError(str(error)) from None

    def _refuse_unknown(self, word: str) -> NoReturn:
        name = word.lstrip("-").replace("-", "_")
        if name in self.positional:
            places = " ".join(place.upper() for place in self.positional)
            raise UsageError(f"{word}: it is given by its place: {self.prog} {places}.")
        listed = [option.name for option in self.listed()]
        if name in option_types(self.cls) and name not in listed:
            raise UsageError(f"{word}: write --set {name}=VALUE.")
        known = [shown(name) for name in listed if name not in self.positional]
        hint = suggestion(word, known).removesuffix(".") or f"; see '{self.prog} --help'."
        raise UsageError(f"unknown option {word!r}{hint}")

    # ------------------------------------------------------------------------------------- help

    def help(self, option: str = "") -> str:
        """The page of the verb, or of one of its options."""
        if option:
            return self._about(option.lstrip("-").replace("-", "_"))
        places = [self._place(name) for name in self.positional]
        recipe = "[NAME | RECIPE.yaml]" if self.recipes else "[RECIPE.yaml]"
        usage = " ".join([self.prog, *(places or [recipe]), "[--OPTION VALUE ...]"])
        about = " ".join((self.cls.__doc__ or "").split())
        lines = [f"usage: {usage}", "", *textwrap.wrap(about, 100)]
        options = {option.name: option for option in self.listed()}
        named = {
            title: [name for name in names if name not in self.positional]
            for title, names in (self.cls.listed or {"options": tuple(options)}).items()
        }
        for title, names in {"": [*self.positional], **named}.items():
            lines += [""] * bool(names) + [f"{title}:"] * bool(title and names)
            for name in names:
                lines += _entry(self._head(options[name]), self._short(options[name]))
        lines.append("")
        if others := len(option_types(self.cls)) - len(options):
            lines.append(
                f"  {others} more by --set KEY=VALUE ...; --print-config shows all of them"
            )
        lines.append(f"  {self.prog} --help OPTION says more of an option")
        lines += ["", "examples:", *(f"  {line}" for line in self.examples)] * bool(self.examples)
        below = self.epilog()
        return "\n".join([*lines, *["", below] * bool(below)])

    def _place(self, name: str) -> str:
        options = {option.name: option for option in options_of(self.cls)}
        word = name.upper() + " ..." * options[name].kind.is_list
        return word if options[name].default is dataclasses.MISSING else f"[{word}]"

    def _head(self, option: Option) -> str:
        if option.name in self.positional:
            return option.name.upper()
        look = option.kind.metavar
        if look.startswith(("[", "{")):  # a switch may stand alone; its text has the choices
            look = "" if option.kind.inner is bool else option.field.upper()
        return f"{shown(option.name)} {look}".rstrip()

    def _short(self, option: Option) -> str:
        """The first sentences of an option's text, its choices and default."""
        whole = self._text(option)
        facts = [", ".join(option.kind.choices)] if option.kind.choices else []
        if option.default is dataclasses.MISSING:
            facts += [] if option.name in self.positional else ["required"]
        elif option.shown_default and option.kind.inner is not bool and "Default" not in whole:
            facts.append(f"default: {option.shown_default}")
        behind = f" ({'; '.join(facts)})" if facts else ""
        text, *others = re.split(r"(?<=[^.]{3}[.;]) (?=[A-Za-z])", whole)
        while others and len(text) + len(others[0]) + len(behind) < _SHORT:
            text = f"{text} {others.pop(0)}"
        return text.rstrip(".;") + behind

    def _text(self, option: Option) -> str:
        return str(getattr(self.cls, "own_texts", {}).get(option.name, option.text))

    def _about(self, name: str) -> str:
        options = {option.name: option for option in options_of(self.cls)}
        if name not in options:
            raise UsageError(f"there is no option {name!r}{suggestion(name, options)}")
        option = options[name]
        choices = f"; one of {', '.join(option.kind.choices)}" if option.kind.choices else ""
        default = f"; default: {option.shown_default}" if option.shown_default else ""
        listed = name in {option.name for option in self.listed()}
        head = shown(name) if listed else f"--set {name}=VALUE"
        kind = option.kind.describe() if not choices else "text"
        return "\n".join(
            [f"{head}: {kind}{choices}{default}", *textwrap.wrap(self._text(option), 100)]
        )


_SHORT = 130
"""Characters of an option's text in the help, at most, but for the first clause."""


def shown(name: str) -> str:
    """An option as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def _entry(head: str, text: str) -> list[str]:
    """An option and its text, in two columns."""
    column = 28
    body = textwrap.wrap(text, 100 - column, break_on_hyphens=False)
    if len(head) + 4 > column:
        return [f"  {head}", *(f"{'':{column}}{line}" for line in body)]
    return [f"  {head:<{column - 2}}{body[0]}", *(f"{'':{column}}{line}" for line in body[1:])]


def load_recipe(cls: type[T], recipe: str | Path, overrides: Mapping[str, Any] | None = None) -> T:
    """Read a YAML recipe from Python.

    Args:
        cls: dataclass of the options.
        recipe: the YAML file, or for pre-training the name of a recipe that comes with
            the package (:func:`bothways.config.recipes.find_recipe`).
        overrides: options that win over the file's, by name. Of options that exclude each other,
            such as the steps and the minutes of a run, one given here replaces the file's.

    Raises:
        ConfigError: no such recipe, an unknown key (the message names the nearest), a wrong type, a
            missing value.
    """
    return options_from(cls, overrides or {}, recipe)


def options_from(cls: type[T], given: Mapping[str, Any], recipe: str | Path | None = None) -> T:
    """Options from the keywords of a call.

    Args:
        cls: dataclass of the options.
        given: values by the names of the options.
        recipe: as for :func:`load_recipe`; the keywords win.

    Raises:
        ConfigError: an unknown name (the message gives the nearest), a value of the wrong type, a
            missing one; or what :func:`load_recipe` refuses.
    """
    types = option_types(cls)
    for name in given:
        if name not in types:
            raise ConfigError(f"there is no option {name!r}{suggestion(name, types)}")
    values = _merged(cls, {} if recipe is None else read_recipe(cls, recipe), given)
    if missing := [name for name in required_fields(cls) if name not in values]:
        raise ConfigError(f"{', '.join(missing)} not given.")
    return build(cls, values)


def read_recipe(cls: type[Any], recipe: str | Path, part: str = "") -> dict[str, Any]:
    """The values in a recipe by name, checked against the options of ``cls``.

    Args:
        cls: dataclass of the options.
        recipe: as for :func:`load_recipe`.
        part: the one group of options to read; empty: all.

    Raises:
        ConfigError: no such recipe, or one that cannot be read, with file and line.
    """
    named = issubclass(cls, Options) and cls.recipes_by_name
    path = find_recipe(recipe, shipped_recipes() if named else {})
    node = compose(path)
    if part and isinstance(node, yaml.MappingNode):
        own = {option.name for option in options_of(cls) if option.place[0] == part}
        node.value = [(key, item) for key, item in node.value if key.value in own]
    return _Reader(str(path)).mapping(node, cls)


def _merged(cls: type[Any], recipe: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe, and those given beside it, which win."""
    owners = {option.name: option.owner for option in options_of(cls) if option.kind.alternative}
    chosen = {owners[n] for n, value in given.items() if n in owners and is_given(value)}
    return {n: v for n, v in recipe.items() if owners.get(n) not in chosen} | dict(given)


# ------------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class _Reader:
    """Reads YAML nodes as values, by the types of their fields."""

    source: str | None = None
    """Name of the file, for messages."""
    error: type[ConfigError] = ConfigError

    def mapping(self, node: yaml.Node, cls: type[Any]) -> dict[str, Any]:
        """The values of a mapping for the options of ``cls``, by name."""
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, f"this is {_shown(node)}; it must be 'name: value' lines")
        types = option_types(cls)
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, item in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None:
                self._fail(key, "a key must be a plain name")
            if name not in types:
                self._fail(key, f"unknown key {name!r}{suggestion(name, types)}")
            if name in lines:
                self._fail(key, f"{name} is given twice (first on line {lines[name]})")
            lines[name] = key.start_mark.line + 1 if self.source else 0
            values[name] = self.value(item, types[name], name)
        for group in {option.owner for option in options_of(cls) if option.kind.alternative}:
            several = [n for n in alternatives(group) if is_given(values.get(n))]
            if len(several) > 1:
                known = ", ".join(alternatives(group))
                self._fail(node, f"give one of {known}; got {' and '.join(several)}")
        return values

    def words(self, texts: Sequence[str], kind: FieldType, name: str) -> Any:
        """The value of an option from the words that were given for it."""
        if kind.is_group:
            return self.value(_composed(texts[-1]), kind, name)
        if kind.optional and texts == ["null"]:
            return None
        nodes = [yaml.ScalarNode(_STR, text) for text in texts]
        node = yaml.SequenceNode(_SEQ, nodes) if kind.is_list else nodes[-1]
        return self.value(node, kind, name)

    def value(self, node: yaml.Node, kind: FieldType, name: str) -> Any:
        """The value of one option."""
        is_null = node.tag == _NULL
        if is_null and kind.optional:
            return None
        if kind.is_list and isinstance(node, yaml.ScalarNode) and not is_null and not kind.is_group:
            return (self.value(node, FieldType(kind.inner), name),)
        if kind.is_list and isinstance(node, yaml.SequenceNode):
            item = FieldType(kind.inner)
            return tuple(self.value(v, item, f"{name}[{i}]") for i, v in enumerate(node.value))
        if kind.is_group and not kind.is_list:
            return build(kind.inner, self.mapping(node, kind.inner))
        try:
            if kind.is_list or is_null or not isinstance(node, yaml.ScalarNode):
                raise ValueError
            found = kind.parse(node.value)
        except ValueError:
            self._fail(node, f"{name} is {_shown(node)}; it must be {kind.describe()}")
        if self.error is UsageError and found == "" and name.partition("[")[0] in _PLACES:
            self._fail(
                node,
                f"{name} is empty; it names a file or folder (is a variable of the shell not "
                "set?). Leave it out, or write . for this folder",
            )
        return found

    def _fail(self, node: yaml.Node, problem: str) -> NoReturn:
        where = "" if self.source is None else f"{self.source}:{node.start_mark.line + 1}: "
        raise self.error(where + problem + ("" if problem.endswith(("?", ".")) else "."))


_PLACES = frozenset(
    "out run model tokenizer corpus vocabulary folder file files train dev test data start".split()
)
"""Options that name a file or folder."""


def _values(words: deque[str], kind: FieldType) -> list[str]:
    """The words that belong to an option, taken from those that follow it."""
    if kind.is_list and not kind.is_group:
        found = []
        while words and not words[0].startswith("--"):
            found.append(words.popleft())
        return found
    if kind.inner is bool:
        takes = words and words[0].lower() in ("true", "false", *["null"] * kind.optional)
        return [words.popleft()] if takes else ["true"]
    return [words.popleft()] if words and not words[0].startswith("--") else []


def _composed(text: str) -> yaml.Node:
    """A value as a recipe would have it: a list or mapping in brackets, else the text itself."""
    if text.startswith(("[", "{")):
        node = compose_text(text, text)
        if node is not None:
            return node
    return yaml.ScalarNode(_STR, text)


def _shown(node: yaml.Node) -> str:
    """A node's value, for messages."""
    if isinstance(node, yaml.ScalarNode):
        return "empty" if node.tag == _NULL else repr(node.value)
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"
