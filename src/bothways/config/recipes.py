"""Recipes as files: those that come with the package, and YAML as a tree of nodes, which know their
lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from bothways.errors import ConfigError, InputError, nearest
from bothways.io.pipes import open_file

_SHIPPED = Path(__file__).parents[1] / "recipes"
_MOST_BYTES = 2**20
SUFFIXES = (".yaml", ".yml")
"""How the name of a recipe's file ends."""


def shipped_recipes() -> dict[str, Path]:
    """The pre-training recipes that come with the package, by name."""
    found = {path.stem: path for path in _SHIPPED.glob("*.yaml")}
    return dict(sorted(found.items()))


def list_of_recipes(recipes: Mapping[str, Path]) -> str:
    """A line for each recipe, with its name and the first line of its comment."""
    width = max(map(len, recipes))
    return "\n".join(f"  {name:<{width}}  {_summary(path)}" for name, path in recipes.items())


def recipes_with(line: str, recipes: Mapping[str, Path]) -> dict[str, Path]:
    """The recipes whose files have a line, which is told much sooner than what their YAML says."""
    return {
        name: path
        for name, path in recipes.items()
        if line in path.read_text(encoding="utf-8").splitlines()
    }


def _summary(path: Path) -> str:
    first, _, _ = path.read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("# ")


def find_recipe(recipe: str | Path, named: Mapping[str, Path], kind: str = "recipe") -> Path:
    """The file of a recipe that is given by path or by name.

    Args:
        recipe: a ``Path``, a text with a separator of folders, or one that ends in ``.yaml`` or
            ``.yml`` is a path; every other text is a name.
        named: the recipes that can be named, with their files; if there are none, everything is a
            path.
        kind: what they are, for messages.

    Raises:
        ConfigError: no recipe has this name.
    """
    path, word = Path(recipe), str(recipe)
    if not named or isinstance(recipe, Path) or path.name != word or word.endswith(SUFFIXES):
        return path
    if word not in named:
        close = nearest(word, list(named))
        hint = f"; did you mean {close!r}?" if close else "."
        raise ConfigError(
            f"there is no {kind} {word!r}{hint} The names are {', '.join(named)}; a file's path "
            "ends in .yaml."
        )
    return named[word]


def compose(path: Path) -> yaml.Node:
    """The node tree of a YAML file.

    Raises:
        ConfigError: the file cannot be read, is empty, or is not YAML.
    """
    try:
        with open_file(path) as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"{path}: this is no recipe: it has more than 1 MiB.")
        text = data.decode("utf-8-sig")
    except InputError as error:
        raise ConfigError(str(error)) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8; save the recipe as UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path}: the recipe cannot be read: {error.strerror}.") from None
    node = compose_text(text, str(path))
    if node is None:
        raise ConfigError(
            f"{path}: the recipe is empty; give 'name: value' lines, or leave it out."
        )
    return node


def compose_text(text: str, source: str) -> yaml.Node | None:
    """The node tree of YAML text; None for an empty one.

    Args:
        text: the text.
        source: where it comes from, for messages.

    Raises:
        ConfigError: the text is not YAML.
    """
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
