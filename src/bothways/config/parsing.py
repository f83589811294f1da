"""Reading options: a YAML recipe and the command line, into one frozen dataclass.

Options are named by their dotted path (``optimizer.lr``). A recipe and a command line are each
turned into a flat ``{dotted name: value}``; the command line wins, and of options that exclude
each other one on the command line replaces another of the recipe. Words of the command line and
values from Python become YAML nodes as a recipe has them, so that one reader knows the types: it
reads a value by the type of its field and never by what it looks like (``1e-3`` is a number and a
label ``no`` is text, both of which YAML 1.1 gets wrong). Nothing is ignored: an unknown key or
option is an error that names its place and the closest existing one.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import textwrap
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import yaml

from bothways.config.fields import (
    FieldType,
    Option,
    Options,
    build,
    field_texts,
    field_types,
    is_given,
    option_types,
    options_of,
    required_fields,
    several_given,
    to_dict,
)
from bothways.config.recipes import SUFFIXES, compose, compose_text, find_recipe, shipped_recipes
from bothways.config.spelling import on_command_line, respelt
from bothways.errors import ConfigError, nearest

_DATA = (".tsv", ".csv", ".jsonl", ".txt", ".parquet", ".xlsx", ".conll")
T = TypeVar("T")

_NULL, _STR, _MAP, _SEQ = (f"tag:yaml.org,2002:{name}" for name in ("null", "str", "map", "seq"))


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
    chosen_recipe: Callable[[Mapping[str, Any]], str | None] | None = None,
    examples: Sequence[str] = (),
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
        chosen_recipe: gives the recipe where none is named, by the values that are given.
        examples: command lines, for the help and for what is said where something is missing.
        epilog: gives lines below the options, for the help.

    Returns:
        A ``cls``. ``--help`` (the first options; with ``all`` behind it, all) and
        ``--print_config`` print and raise ``SystemExit(0)`` instead.

    Raises:
        UsageError: an unknown option, an unexpected word, a value of the wrong type, a value that
            is missing.
        ConfigError: a recipe that cannot be read, or values that contradict each other.
    """
    recipes = recipes or {}
    parser = _Parser(cls, prog, positional, recipes)
    given, recipe, action = parser.read(argv)
    if action in ("help", "help all"):
        parser = _Parser(cls, prog, positional, recipes, explain=action)
        parser.description = description
        print(parser.format_help().rstrip())
        for below in (parser.left_out(), _examples(examples), epilog()):
            print(f"\n{below}" * bool(below), end="\n" * bool(below))
        raise SystemExit(0)
    if recipe is None and chosen_recipe is not None and (name := chosen_recipe(given)):
        recipe = recipes[name]
    values: dict[str, Any] = {}
    if recipe is not None:
        values = read_recipe(cls, recipe, recipe_part if recipe in recipes.values() else "")
    values = _merged(cls, values, given)
    missing = [name for name in required_fields(cls) if name not in values]
    if missing := missing or [name for name in getattr(cls, "needed", ()) if not argv]:
        listed = ", ".join(n.upper() if n in positional else parser.shown(n) for n in missing)
        example = f"; for example\n  {examples[0]}\nSee" if examples else "; see"
        raise UsageError(f"{prog} needs {listed}{example} '{prog} --help'.")
    config = build(cls, values)
    if action:
        printed = to_dict(config)
        order = dict.fromkeys(name.partition(".")[0] for name in parser.types)
        printed = {name: printed[name] for name in order}
        print(yaml.safe_dump(printed, sort_keys=False, allow_unicode=True), end="")
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
    types, given = option_types(cls), dict(_flat(overrides or {}))
    for name in given:
        if name not in types:
            raise ConfigError(f"unknown option {name!r}{_suggest(name, cls)}")
    given = {name: _Reader().value(_node(v), types[name], name) for name, v in given.items()}
    values = _merged(cls, read_recipe(cls, recipe), given)
    if missing := [name for name in required_fields(cls) if name not in values]:
        raise ConfigError(f"{recipe}: {', '.join(missing)} not given.")
    return build(cls, values)


def options_from(
    cls: type[T],
    given: Mapping[str, Any],
    recipe: str | Path | None = None,
    short: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Options from the keywords of a call.

    Args:
        cls: dataclass of the options.
        given: values by name: of an option, of a group (as a dictionary, or an instance of its
            class), by dotted name, or by the last part of one (``lr`` of ``optimizer.lr``) if only
            one option is called so.
        recipe: as for :func:`load_recipe`; the keywords win.
        short: names of which several options could be meant, and which it is.

    Raises:
        ConfigError: an unknown name (the message gives the nearest), a value of the wrong type, a
            missing one; or what :func:`load_recipe` refuses.
    """
    types = option_types(cls)
    values: dict[str, Any] = {}
    for keyword, value in given.items():
        for name, part in _spread(_full_name(keyword, cls, short), value, types):
            if name in values:
                raise ConfigError(f"{keyword}: {name} is given twice; leave one out.")
            values[name] = part
    values = _merged(cls, {} if recipe is None else read_recipe(cls, recipe), values)
    if missing := [name for name in required_fields(cls) if name not in values]:
        raise ConfigError(f"{', '.join(missing)} not given.")
    return build(cls, values)


def _full_name(keyword: str, cls: type[Any], short: Mapping[str, str]) -> str:
    """The dotted name of the option, or the name of the group, that a keyword means."""
    types = option_types(cls)
    if keyword in types or keyword in field_types(cls):
        return keyword
    found = [short[keyword]] if keyword in short else []
    found = found or [name for name in types if name.rpartition(".")[2] == keyword]
    if len(found) > 1:
        names = " or ".join(f"{n.rpartition('.')[0]}={{{keyword!r}: ...}}" for n in found)
        raise ConfigError(f"{keyword} may mean several options; write {names}.")
    if not found:
        hint = hint_for(keyword, [*short, *field_types(cls), *types])
        raise ConfigError(f"there is no option {keyword!r}{f'; {hint}' if hint else '.'}")
    return found[0]


def _spread(name: str, value: Any, types: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A value by its dotted name; those of a group by theirs."""
    if name in types:
        yield name, value
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r}; it is a group of options: give a dictionary.")
    for key, inner in value.items():
        full = f"{name}.{key}"
        if full not in types and not any(known.startswith(f"{full}.") for known in types):
            known = [n.removeprefix(f"{name}.") for n in types if n.startswith(f"{name}.")]
            hint = hint_for(str(key), known) or f"it has {', '.join(known)}."
            raise ConfigError(f"{name} has no option {key!r}; {hint}")
        yield from _spread(full, inner, types)


def read_recipe(cls: type[Any], recipe: str | Path, part: str = "") -> dict[str, Any]:
    """The values in a recipe by dotted name, checked against the fields of ``cls``.

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
        node.value = [(key, item) for key, item in node.value if key.value == part]
    return _Reader(str(path)).mapping(node, cls)


def _merged(cls: type[Any], recipe: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe, and those given beside it, which win."""
    types = option_types(cls)
    chosen = {_group(n) for n, value in given.items() if types[n].alternative and is_given(value)}
    kept = {n: v for n, v in recipe.items() if not (types[n].alternative and _group(n) in chosen)}
    return kept | dict(given)


def _group(name: str) -> str:
    return name.rpartition(".")[0]


# ------------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class _Reader:
    """Reads YAML nodes as values, by the types of their fields."""

    source: str | None = None
    """Name of the file, for messages."""
    error: type[ConfigError] = ConfigError

    def mapping(self, node: yaml.Node, cls: type[Any], prefix: str = "") -> dict[str, Any]:
        """The values of a mapping for the fields of ``cls``, by dotted name."""
        if not isinstance(node, yaml.MappingNode):
            where = f"{prefix.rstrip('.')} is" if prefix else "this is"
            self._fail(node, f"{where} {_shown(node)}; it must be 'name: value' lines")
        types = field_types(cls)
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, item in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name not in types:
                self._unknown(key, cls, prefix)
            if name in lines:
                self._fail(key, f"{prefix}{name} is given twice (first on line {lines[name]})")
            lines[name] = key.start_mark.line + 1 if self.source else 0
            if types[name].is_group and not types[name].is_list:
                values |= self.mapping(item, types[name].inner, f"{prefix}{name}.")
                continue
            values[prefix + name] = self.value(item, types[name], prefix + name)
            several = [n for n in lines if types[n].alternative and is_given(values[prefix + n])]
            if len(several) > 1:
                self._fail(key, several_given(cls, several, prefix.rstrip(".")))
        return values

    def value(self, node: yaml.Node, kind: FieldType, name: str) -> Any:
        """The value of one option."""
        is_null = node.tag == _NULL
        if is_null and kind.optional:
            return None
        if kind.is_list and kind.inner is str and isinstance(node, yaml.ScalarNode) and not is_null:
            return (self.value(node, FieldType(str), f"{name}[0]"),)
        if kind.is_list and isinstance(node, yaml.SequenceNode):
            item = FieldType(kind.inner)
            return tuple(self.value(v, item, f"{name}[{i}]") for i, v in enumerate(node.value))
        if kind.is_group and not kind.is_list:
            inner = self.mapping(node, kind.inner, f"{name}.")
            return build(kind.inner, {n.removeprefix(f"{name}."): v for n, v in inner.items()})
        try:
            if kind.is_list or is_null or not isinstance(node, yaml.ScalarNode):
                raise ValueError
            found = kind.parse(node.value)
            place = re.sub(r"\[\d+\]$", "", name).rpartition(".")[2]
            typed = self.error is UsageError  # a recipe that was printed has empty defaults
            if typed and found == "" and place in _PLACES:
                self._fail(
                    node,
                    f"{name} is empty; it names a file or folder (is a variable of the shell "
                    "not set?). Leave it out, or write . for this folder",
                )
            return found
        except ValueError:
            listed = isinstance(node, yaml.ScalarNode) and name.endswith("]")
            spaces = listed and kind.inner is float and "," in node.value
            hint = ", and between the numbers of a list stand spaces" * spaces
            self._fail(node, f"{name} is {_shown(node)}; it must be {kind.describe()}{hint}")

    def _unknown(self, key: yaml.Node, cls: type[Any], prefix: str) -> NoReturn:
        if not isinstance(key, yaml.ScalarNode):
            self._fail(key, "a key must be a plain name")
        group, _, rest = key.value.partition(".")
        if key.value in option_types(cls):
            self._fail(key, f"write {key.value!r} nested: '{prefix}{group}: {{{rest}: ...}}'")
        hint = _suggest(key.value, cls, prefix) or f"; known here: {', '.join(field_types(cls))}"
        self._fail(key, f"unknown key {prefix + key.value!r}{hint}")

    def _fail(self, node: yaml.Node, problem: str) -> NoReturn:
        where = "" if self.source is None else f"{self.source}:{node.start_mark.line + 1}: "
        raise self.error(where + problem + ("" if problem.endswith(("?", ".")) else "."))


_PLACES = frozenset(
    "out run model tokenizer corpus vocabulary folder file files train dev test data start".split()
)
"""Options that name a file or folder."""


def _node(value: Any) -> yaml.Node:
    """A value from Python as the YAML node that a recipe would have."""
    if isinstance(value, Mapping):
        return yaml.MappingNode(_MAP, [(_node(key), _node(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return yaml.SequenceNode(_SEQ, [_node(item) for item in value])
    return yaml.ScalarNode(_NULL if value is None else _STR, str(value))


def _separated(words: Sequence[str], kind: FieldType) -> Sequence[str]:
    """The values of a list: words, of whole numbers and names also with commas between them. A
    comma in a number may be a decimal one."""
    if kind.inner is not int and not kind.choices:
        return words
    return [part for word in words for part in word.split(",") if part] or words


def _sequence(text: str) -> yaml.Node | None:
    """A list in brackets; None for text that only starts like one, such as a glob ``[ab]*.txt``."""
    try:
        node = compose_text(text, "") if text.startswith("[") else None
    except ConfigError:
        return None
    return node if isinstance(node, yaml.SequenceNode) else None


def _shown(node: yaml.Node) -> str:
    """A node's value, for messages."""
    if isinstance(node, yaml.ScalarNode):
        return "empty" if node.tag == _NULL else repr(node.value)
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted names with their values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def hint_for(name: str, known: Sequence[str], shown: Callable[[str], str] = repr) -> str:
    """The option with the nearest name, as a question; empty if there is none."""
    close = nearest(name, known)
    return f"did you mean {shown(close)}?" if close else ""


def _suggest(name: str, cls: type[Any], prefix: str = "") -> str:
    hint = hint_for(name, [*option_types(cls), *field_types(cls)], lambda n: repr(prefix + n))
    return f"; {hint}" * bool(hint)


# ------------------------------------------------------------------------------------ command line


def _examples(lines: Sequence[str]) -> str:
    """The examples of a verb, for its help."""
    return "\n".join(["examples:", *(f"  {line}" for line in lines)]) if lines else ""


_WIDEST = 100
_ON_HELP = "Show the first options and examples and exit; with all, all options."


class _Formatter(argparse.HelpFormatter):
    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:  # noqa: ARG002
        return str(action.metavar)

    def _split_lines(self, text: str, width: int) -> list[str]:
        # Names with hyphens are copied from here, so they stay in one piece.
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _of_files(cls: type[Any], name: str) -> bool:
    """Whether an option of a group is one that only files give."""
    group, _, rest = name.partition(".")
    return _is_among(rest, getattr(field_types(cls)[group].inner, "for_files", ()))


def _is_unlisted(cls: type[Any], name: str) -> bool:
    """Whether no help lists an option."""
    return _of_files(cls, name) or _is_among(name, getattr(cls, "unlisted", ()))


def _is_among(name: str, names: Sequence[str]) -> bool:
    """Whether an option is one of some, or in one of their groups."""
    return any(name == other or name.startswith(f"{other}.") for other in names)


class _Parser(argparse.ArgumentParser):
    """A verb's options for argparse, which splits the words and formats the help.

    A switch may stand alone (``--from_scratch``), a list takes all words up to the next option
    (``--seeds 1 2 3``), ``-`` and ``_`` in names are the same, ``--`` ends the options.

    Args:
        cls: dataclass of the options.
        prog: program and verb, for the help.
        positional: options that are given by place.
        recipes: recipes that go by name.
        explain: ``help`` if that is wanted, which takes a while to prepare, of the first options;
            ``help all``, of all.
    """

    def __init__(
        self,
        cls: type[Any],
        prog: str,
        positional: Sequence[str],
        recipes: Mapping[str, Path],
        *,
        explain: str = "",
    ) -> None:
        super().__init__(
            prog,
            add_help=False,
            allow_abbrev=False,
            formatter_class=_Formatter,
            argument_default=argparse.SUPPRESS,
        )
        self.cls, self.positional, self.recipes = cls, positional, recipes
        self.types = option_types(cls)
        self.short: Mapping[str, str] = getattr(cls, "short_names", {})
        first: tuple[str, ...] = getattr(cls, "first", ()) or tuple(self.types)
        self.hidden = [n for n in self.types if n not in first] if explain == "help" else []
        self.hidden = [n for n in self.hidden if not _is_unlisted(cls, n)]
        recipe = "NAME | RECIPE.yaml" if self.recipes else "RECIPE.yaml"
        places = (
            [] if positional or not (self.recipes or explain == "help all") else [f"[{recipe}]"]
        )
        groups: dict[str, Any] = {"": self.add_argument_group("options")}
        listed = list(options_of(cls))
        if explain == "help":
            order = {name: place for place, name in enumerate(first)}
            listed = sorted((o for o in listed if o.name in order), key=lambda o: order[o.name])
        for option in listed:
            name, kind = option.name, option.kind
            if explain and _is_unlisted(cls, name):
                continue
            head = name.partition(".")[0] if "." in name and explain != "help" else ""
            if head not in groups:
                title = field_texts(cls)[head].rstrip(".") if explain else None
                groups[head] = self.add_argument_group(title)
            add = groups[head].add_argument
            text = self._help(option) if explain else ""
            shorts = [f"--{short}" for short, full in self.short.items() if full == name]
            if name in positional and explain:
                add(name, metavar=name.upper(), help=text)
                place = name.upper() + " ..." * kind.is_list
                places.append(place if option.default is dataclasses.MISSING else f"[{place}]")
            elif shorts or name not in positional:  # what has a place may have a name, too
                names = shorts[:1] if shorts and explain == "help" else [*shorts, f"--{name}"]
                count, look = "+" if kind.is_list else None, kind.metavar
                if len(look) > _WIDEST:  # its text says what there is
                    look = name.rpartition(".")[2].upper()
                add(*names, action="append", dest=name, nargs=count, metavar=look, help=text)
            for part in options_of(kind.inner) if kind.is_group and explain else ():
                add(f"{name}.{part.name}", metavar=f"  {part.name}", help=self._help(part))
        if explain != "help":
            self._add_general(groups[""].add_argument, recipe)
        self.usage = " ".join(["%(prog)s", *places, "[--OPTION VALUE ...]"])

    def _add_general(self, add: Callable[..., Any], recipe: str) -> None:
        same = "" if self.positional else "; the same as naming it without --config"
        text = f"Recipe with values for these options{same}. Options of the command line override "
        text += "it; null on the command line takes a value back."
        add("--config", action="append", metavar=recipe, help=text)
        text = "Print the values of all options as a recipe and exit."
        add("--print_config", action="store_true", help=text)
        add("-h", "--help", action="append", nargs="?", const="", metavar="[all]", help=_ON_HELP)

    def shown(self, name: str) -> str:
        """An option as it is written on the command line."""
        return on_command_line(self.cls)(name)

    def _help(self, option: Option) -> str:
        """An option's text for argparse, with its default."""
        text = getattr(self.cls, "own_texts", {}).get(option.name, option.text)
        text = respelt(text, self.cls, on_command_line(self.cls))
        default = option.shown_default and f"default: {option.shown_default}"
        default = "" if "Default" in text else default  # the text says what it stands for
        shown = "required" if option.default is dataclasses.MISSING else default
        return (f"{text} ({shown})" if shown else text).replace("%", "%%")

    def left_out(self) -> str:
        """Where the options are that the help does not list; empty if it lists all."""
        others = [n for n in self.types if _of_files(self.cls, n)]
        others = [n for n in others if not _is_among(n, getattr(self.cls, "unlisted", ()))]
        if others and not self.hidden:
            names = ", ".join(dict.fromkeys(".".join(name.split(".")[:2]) for name in others))
            return f"  A recipe may also give {names}."
        if not self.hidden:
            return ""
        return f"  {self.prog} --help all   lists the other {len(self.hidden)} options, too"

    def error(self, message: str) -> NoReturn:
        """Called by argparse."""
        problem = re.sub(r"argument (\S+): expected .*", r"\1 needs a value", message)
        raise UsageError(f"{problem}; see '{self.prog} --help'.")

    def read(self, argv: Sequence[str]) -> tuple[dict[str, Any], Path | None, str]:
        """The values that are given, the recipe, and what to do instead of running: nothing,
        ``print_config`` or ``help``."""
        end = argv.index("--") if "--" in argv else len(argv)
        found, operands = self.parse_known_args(self._spelt(argv[:end]))
        given = vars(found)
        if wanted := given.pop("help", []):
            return {}, None, "help all" if "all" in wanted else "help"
        action = "print_config" if given.pop("print_config", False) else ""
        if unknown := [word for word in operands if re.match(r"--|-[A-Za-z]\w*$", word)]:
            self._refuse_unknown(unknown[0])
        operands += argv[end + 1 :]
        places, recipes = (operands, []) if self.positional else ([], operands)
        recipe = self._recipe([*given.pop("config", []), *recipes])
        values = self._by_place(places)
        for name, occurrences in given.items():
            kind, last = self.types[name], occurrences[-1]
            if kind.is_list and not kind.is_group and len(occurrences) > 1:
                self.error(f"--{name} is given twice; write all its values after one --{name}")
            texts = _separated(last, kind) if kind.is_list else [last]
            nodes = [_node(None if t == "null" else t) for t in texts]
            whole = yaml.SequenceNode(_SEQ, nodes) if kind.is_list else nodes[0]
            listed = _sequence(last[0]) if kind.is_list else None
            values[name] = _Reader(error=UsageError).value(listed or whole, kind, name)
        return values, recipe, action

    def _spelt(self, argv: Sequence[str]) -> Iterator[str]:
        """The words as argparse takes them: names with ``_``, and ``--NAME=VALUE`` where one value
        belongs to an option, which may begin with ``-``; a switch that stands alone is true."""
        words, known = deque(argv), {*self.types, "config", "print_config"}
        while words:
            word = words.popleft()
            name, equals, value = word.removeprefix("--").partition("=")
            name = self.short.get(name := name.replace("-", "_"), name)
            if word in ("-h", "--help"):
                yield "--help=all" if words and words[0] == "all" and words.popleft() else word
                continue
            if not word.startswith("--") or name not in known:
                yield word
                continue
            kind = self.types.get(name)
            if kind and not equals:
                if kind.is_list:
                    is_value = bool(words and _sequence(words[0]))
                elif kind.inner is bool:
                    switch = ("true", "false", "null") if kind.optional else ("true", "false")
                    is_value, equals, value = (
                        bool(words) and words[0].lower() in switch,
                        "=",
                        "true",
                    )
                else:
                    is_value = bool(words and not words[0].startswith("--"))
                if is_value:
                    equals, value = "=", words.popleft()
            yield f"--{name}{equals}{value}"

    def _by_place(self, words: list[Any]) -> dict[str, Any]:
        """Values by place. The last takes all remaining words if it is a list."""
        last = len(self.positional) - 1
        if len(words) > last >= 0 and self.types[self.positional[last]].is_list:
            words = [*words[:last], tuple(words[last:])]
        if len(words) > last + 1:
            self.error(f"unexpected {words[last + 1]!r}")
        return dict(zip(self.positional, words, strict=False))

    def _recipe(self, words: Sequence[str]) -> Path | None:
        if not words:
            return None
        if not self.recipes and not words[0].endswith(SUFFIXES):
            self.error(
                f"unexpected {words[0]!r}: the one word without a name is the recipe, a .yaml file"
                f"{self._as_data(words[0])}"
            )
        if self._as_data(words[0]) and words[0].endswith(_DATA):
            self.error(f"{words[0]} is no recipe{self._as_data(words[0])}")
        try:
            recipe = find_recipe(words[0], self.recipes)
        except ConfigError as error:
            raise UsageError(str(error)) from None
        if len(words) > 1:
            raise UsageError(f"unexpected {words[1]!r}: the recipe is {recipe} already.")
        return recipe

    def _as_data(self, word: str) -> str:
        """The option that takes a file or folder of data, if there is one of this name."""
        options = [name for name in ("train", "files") if name in (*self.short, *self.types)]
        return f"; data go by --{options[0]} {word}" if options and Path(word).exists() else ""

    def _refuse_unknown(self, word: str) -> NoReturn:
        word = word.partition("=")[0]
        name = word.lstrip("-").replace("-", "_")
        if name in self.positional:
            places = " ".join(place.upper() for place in self.positional)
            hint = f"it is given by its place: {self.prog} {places}."
        elif name == "text" and "texts" in self.positional:
            hint = "texts stand by themselves after the model."
        else:
            known = [*self.short, *(other for other in self.types if other not in self.positional)]
            hint = hint_for(name, known, lambda n: f"'--{n}'") or f"see '{self.prog} --help'."
        raise UsageError(f"unknown option {word!r}; {hint}")
