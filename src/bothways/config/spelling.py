"""How options are written by those who give them, so that errors name what they wrote.

Messages name options by their dotted path, as recipes do: ``task.dev`` is ``--dev`` on the command
line and ``dev`` in a call from Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from bothways.config.fields import option_types
from bothways.errors import BothwaysError, InputError

Spelling = Callable[[str], str]
"""How an option is written, by its dotted path."""

# A name with dots, or behind two dashes; not a part of a path, of what is quoted, or of a call.
_OPTION = re.compile(r"(?<![\w./'\"-])(--)?([a-z_][a-z_0-9]*(?:\.[a-z_0-9]+)*)(?![\w(/]|\.\w)")
# A line about a place in a recipe, or one of a list of a recipe's values: both have its names.
_OF_RECIPE = re.compile(r"\S+\.ya?ml:\d|  ")


def on_command_line(cls: type[Any]) -> Spelling:
    """Options of a class as they are written on the command line, by short names if they have
    some."""
    short = {full: name for name, full in reversed(getattr(cls, "short_names", {}).items())}
    return lambda name: f"--{short.get(name, name)}"


def as_keyword(cls: type[Any], short: Mapping[str, str] = MappingProxyType({})) -> Spelling:
    """Options of a class as keywords of Python: short names, or the last part if no other option
    has the same.

    Args:
        cls: the class.
        short: further names of a call.
    """
    names = {full: name for name, full in {**short, **getattr(cls, "short_names", {})}.items()}
    last = [name.rpartition(".")[2] for name in option_types(cls)]

    def spelt(name: str) -> str:
        end = name.rpartition(".")[2]
        return names.get(name) or (end if last.count(end) == 1 else name)

    return spelt


@contextmanager
def options_named(cls: type[Any], spelling: Spelling) -> Iterator[None]:
    """Within, errors name the options of a class as they are written. What is in backticks, a
    command, stays, and so does what is said of a line of a recipe, or listed as in one."""
    try:
        yield
    except BothwaysError as error:
        if isinstance(error, InputError) and error.option is not None:
            error.option = spelling(error.option)
        error.reword(lambda text: respelt(text, cls, spelling))
        raise


def respelt(text: str, cls: type[Any], spelling: Spelling) -> str:
    """A message with its options as they are written."""
    short, known = getattr(cls, "short_names", {}), option_types(cls)

    def renamed(found: re.Match[str]) -> str:
        name = short.get(found[2], found[2]) if found[1] else found[2]
        # Without dashes or a dot it may be any word: "epochs", "seed".
        return spelling(name) if name in known and (found[1] or "." in name) else found[0]

    def renamed_in(line: str) -> str:
        if _OF_RECIPE.match(line):
            return line
        parts = line.split("`")  # every other one is a command
        return "`".join(p if n % 2 else _OPTION.sub(renamed, p) for n, p in enumerate(parts))

    return "\n".join(map(renamed_in, text.split("\n")))
