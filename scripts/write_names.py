"""Write docs/names.md, a page of the site: the verbs, options and Python names.

python scripts/write_names.py
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from sklearn.base import BaseEstimator

import bothways
from bothways.cli import VERBS, Verb
from bothways.config.fields import Options, options_of

PAGE = Path(__file__).parents[1] / "docs" / "names.md"

_HEAD = """\
# Names

The verbs, options and Python names of bothways, written by `make site` from the code. They are
stable: others may be added, and a name that changes or goes is announced in
[CHANGELOG.md](../CHANGELOG.md). This page gives the first sentence on each option;
`bothways VERB --help OPTION` gives the whole text.

An option is written `--some-name VALUE` on the command line, `some_name: value` in a recipe, and
`some_name=VALUE` in Python. Options in capitals are given by their place; those in italics are not
listed by `--help`, and the command line takes them as `--set some_name=VALUE`. Every verb also has
`--print-config`, which prints all options as a recipe, and `--help [OPTION]`. Besides the verbs
there are `bothways completion SHELL` and `bothways version`.
"""


# ------------------------------------------------------------------------- verbs and their options


def verbs() -> dict[str, Verb]:
    """All verbs, those of groups with their action."""
    found: dict[str, Verb] = {}
    for name, verb in VERBS.items():
        actions = {"": verb} if isinstance(verb, Verb) else verb.actions
        found |= {f"{name} {action}".strip(): inner for action, inner in actions.items()}
    return found


def option_lines() -> Iterator[str]:
    """The verbs, each with its options."""
    yield "## Verbs"
    for name, verb in verbs().items():
        listed = {option.name for option in verb.words(name).listed()}
        yield f"\n### {name}\n"
        yield f"{_sentence(verb.summary)}\n"
        yield "| option | value | |"
        yield "|---|---|---|"
        for option in options_of(verb.config):
            shown = f"`{option.name}`" if option.name in listed else f"*`{option.name}`*"
            shown = f"`{option.name.upper()}`" if option.name in verb.positional else shown
            value = option.kind.metavar
            if option.kind.inner is bool:  # the brackets say that it may be left out
                value = value.replace("[", "").replace("]", "")
            text = verb.config.own_texts.get(option.name, option.text)
            yield f"| {shown} | {_cell(value)} | {_cell(_sentence(text))} |"


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
