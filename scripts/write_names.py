"""Write docs/names.md, a page of the site: the verbs, options and Python names.

python scripts/write_names.py
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from sklearn.base import BaseEstimator

import bothways
from bothways.cli import VERBS, Verb
from bothways.config.fields import Option, Options, options_of

PAGE = Path(__file__).parents[1] / "docs" / "names.md"

_HEAD = """\
# Names

The verbs, options and Python names of bothways, written by `make site` from the code. They are
stable: others may be added, and a name that changes or goes is announced in
[CHANGELOG.md](../CHANGELOG.md). This page gives the first sentence on each option;
`bothways help VERB all` gives the whole text and the default.

An option is written `--NAME VALUE` on the command line, `name: value` in a recipe, and
`NAME=VALUE` in Python. One with a dot is within a group: `--optimizer.lr 1e-4`,
`optimizer: {lr: 1e-4}`, and in Python `optimizer={"lr": 1e-4}` or, where only one option is called
so, `lr=1e-4`. Options in capitals are given by their place.
Every verb also has `--config RECIPE`, `--print_config`, `--help`, which explains the first options
with examples, and `--help all`, which explains all. Besides the verbs there are
`bothways help VERB`, `bothways completion SHELL` and `bothways version`.
"""


# ------------------------------------------------------------------------- verbs and their options


def verbs() -> dict[str, Verb]:
    """All verbs, those of groups with their action."""
    found: dict[str, Verb] = {}
    for name, verb in VERBS.items():
        actions = {"": verb} if isinstance(verb, Verb) else verb.actions
        found |= {f"{name} {action}".strip(): inner for action, inner in actions.items()}
    return found


def options_by_owner(cls: type[Any]) -> dict[type[Any], list[Option]]:
    """The options of a verb by the dataclass that declares them."""
    found: dict[type[Any], list[Option]] = {}
    for option in options_of(cls):
        leaf = option.name.rpartition(".")[2]
        bases = option.owner.__mro__
        owner = next(base for base in bases if leaf in inspect.get_annotations(base))
        found.setdefault(owner, []).append(option)
        if option.kind.is_group:
            items = options_of(option.kind.inner, prefix=f"{option.name}[].")
            found.setdefault(option.kind.inner, []).extend(items)
    return found


def option_lines() -> Iterator[str]:
    """The verbs, each with its own options, and the groups that verbs have in common."""
    owned = {name: options_by_owner(verb.config) for name, verb in verbs().items()}
    users: dict[type[Any], list[str]] = {}
    options: dict[type[Any], list[Option]] = {}
    for name, owners in owned.items():
        for owner, found in owners.items():
            users.setdefault(owner, []).append(name)
            options.setdefault(owner, found)
    configs = {verb.config for verb in verbs().values()}

    def is_own(owner: type[Any]) -> bool:
        alone = len(users[owner]) == 1 and "." not in options[owner][0].name
        return alone or owner in configs

    def teller(owner: type[Any]) -> str:
        """The verb whose options they are; others have them, too."""
        whose = [name for name in users[owner] if verbs()[name].config is owner]
        return (whose or users[owner])[0]

    yield "## Verbs"
    for name, verb in verbs().items():
        yield f"\n### {name}\n"
        yield f"{_sentence(verb.summary)}\n"
        own = [owner for owner in owned[name] if is_own(owner) and teller(owner) == name]
        if own:
            yield from _table((o for owner in own for o in options[owner]), verb.positional)
        others = [owner for owner in owned[name] if owner not in own]
        titles = [_title(owner, options[owner]) for owner in others if not is_own(owner)]
        verb_names = dict.fromkeys(teller(owner) for owner in others if is_own(owner))
        if shared := [*(f"those of {name}" for name in verb_names), *dict.fromkeys(titles)]:
            yield f"\nAnd {', '.join(shared)}."
        if short := verb.config.short_names:
            listed = ", ".join(f"`{new}` ({full})" for new, full in short.items())
            yield f"\nShort names on the command line: {listed}."
    yield "\n## Groups of options"
    for owner, found in options.items():
        if not is_own(owner):
            yield f"\n### {_title(owner, found)}\n"
            yield f"{_sentence(owner.__doc__)} Of: {', '.join(users[owner])}.\n"
            yield from _table(found)


def _title(owner: type[Any], options: list[Option]) -> str:
    """The prefix of a group, or the name of the class whose options several verbs share."""
    group, dot, _ = options[0].name.rpartition(".")
    return f"`{group}.*`" if dot else f"`{owner.__name__}`"


def _table(options: Iterable[Option], positional: Iterable[str] = ()) -> Iterator[str]:
    yield "| option | value | |"
    yield "|---|---|---|"
    for option in options:
        name = option.name.upper() if option.name in positional else option.name
        value = option.kind.metavar
        if option.kind.inner is bool:  # the brackets say that it may be left out
            value = value.replace("[", "").replace("]", "")
        yield f"| `{name}` | {_cell(value)} | {_cell(_sentence(option.text))} |"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _sentence(text: str | None) -> str:
    """The first sentence of a text, as Markdown."""
    line = " ".join((text or "").split()).removesuffix(".") + "."
    first = re.split(r"(?<=\.) (?=[A-Z`'(])", line)[0]
    if line == ".":
        return ""
    marked = re.sub(r":\w+:`([^`]+)`", r"`\1`", first).replace("``", "`")
    word = marked.split()[0]
    return marked if {".", ":"} & {*word} else marked[:1].upper() + marked[1:]


# ------------------------------------------------------------------------------------ Python names


def python_lines() -> Iterator[str]:
    """What ``import bothways as bw`` offers, and the methods of the objects that it gives."""
    names = {name: getattr(bothways, name) for name in bothways.__all__}
    configs = {verb.config: name for name, verb in verbs().items()}
    yield "\n## Python\n"
    yield "`import bothways as bw` offers:\n"
    yield "| name | |"
    yield "|---|---|"
    for name, value in names.items():
        shown = f"{name}{_parameters(value)}" if inspect.isfunction(value) else name
        options = f" The options of `{configs[value]}`." if value in configs else ""
        yield f"| `{_cell(shown)}` | {_cell(_sentence(inspect.getdoc(value)))}{options} |"
    yield "\n`bw.sklearn` has estimators for scikit-learn, with its methods:\n"
    yield "| name | |"
    yield "|---|---|"
    own = bothways.sklearn
    for name, cls in vars(own).items():
        is_own = inspect.isclass(cls) and cls.__module__ == own.__name__
        if is_own and issubclass(cls, BaseEstimator) and not name.startswith("_"):
            shown = f"{name}{_parameters(cls.__init__)}"
            yield f"| `{_cell(shown)}` | {_cell(_sentence(inspect.getdoc(cls)))} |"
    functions = [value for value in names.values() if inspect.isfunction(value)]
    classes = [value for value in names.values() if inspect.isclass(value)]
    for cls in _objects(functions, classes):
        yield f"\n### {cls.__name__}\n"
        yield f"{_sentence(inspect.getdoc(cls))}\n"
        yield "| name | |"
        yield "|---|---|"
        for name, member in _members(cls):
            shown = f"{name}{_parameters(member)}" if callable(member) else name
            yield f"| `{_cell(shown)}` | {_cell(_sentence(_text(cls, name, member)))} |"


def _objects(functions: list[Callable[..., Any]], classes: list[type[Any]]) -> list[type[Any]]:
    """The public classes and those that functions and methods return; no options, no networks."""
    found: list[type[Any]] = []
    waiting = [*classes, *(kind for function in functions for kind in _returned(function))]
    while waiting:
        cls = waiting.pop(0)
        without = Exception, Options, torch.nn.Module
        if cls in found or not _is_ours(cls) or issubclass(cls, without) or not _members(cls):
            continue
        found.append(cls)
        for _, member in _members(cls):
            function = member.fget if isinstance(member, property) else member
            waiting += _returned(function) if callable(function) else []
    return found


def _is_ours(cls: type[Any]) -> bool:
    return cls.__module__.partition(".")[0] == "bothways"


def _returned(function: Callable[..., Any]) -> list[type[Any]]:
    try:
        hint = typing.get_type_hints(function).get("return")
    except NameError:  # imported for the type checker only
        return []

    def classes(hint: Any) -> Iterator[type[Any]]:
        if inspect.isclass(hint) and not isinstance(hint, types.GenericAlias):
            yield hint
        for inner in typing.get_args(hint):
            yield from classes(inner)

    return list(classes(hint))


def _members(cls: type[Any]) -> list[tuple[str, Any]]:
    """The public fields, properties and methods of a class and its bases of ours."""
    found: dict[str, Any] = {}
    for base in filter(_is_ours, reversed(cls.__mro__)):
        if dataclasses.is_dataclass(base):
            found |= dict.fromkeys(inspect.get_annotations(base))
        for name, member in vars(base).items():
            if isinstance(member, (property, classmethod, staticmethod, types.FunctionType)):
                bound = isinstance(member, (classmethod, staticmethod))
                found[name] = member.__func__ if bound else member
    return [(name, member) for name, member in found.items() if not name.startswith("_")]


def _parameters(function: Callable[..., Any]) -> str:
    parameters = inspect.signature(function).parameters.values()
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names = [
        f"{stars.get(p.kind, '')}{p.name}" for p in parameters if p.name not in ("self", "cls")
    ]
    return f"({', '.join(names)})"


def _text(cls: type[Any], name: str, member: Any) -> str:
    """The docstring of a member; of a field, what the class's ``Attributes`` say."""
    if member is not None:
        return inspect.getdoc(member) or ""
    for base in cls.__mro__:
        lines = inspect.cleandoc(base.__doc__ or "")
        place = rf"^    (?:\w+, )*{name}(?:, \w+)*: "
        found = re.search(rf"{place}(.*(?:\n     +.*)*)", lines, flags=re.MULTILINE)
        if found:
            return found[1]
        try:
            source = inspect.getsource(base) if _is_ours(base) else ""
        except OSError:
            continue
        if found := re.search(rf'^    {name}: .*\n    """((?:.|\n)*?)"""', source, re.MULTILINE):
            return found[1]
    return ""


def page() -> str:
    """The page as it should be."""
    return "\n".join([_HEAD, *option_lines(), *python_lines()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
