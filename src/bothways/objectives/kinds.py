"""The objectives of pre-training by name, and those of users as MODULE:CLASS."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

from bothways.errors import ConfigError, nearest
from bothways.objectives.masked import LeftToRight, MaskedLM
from bothways.objectives.objective import PretrainingObjective
from bothways.objectives.replaced import ReplacedTokens
from bothways.training.options import PairKind

Kind = Callable[..., PretrainingObjective]
OBJECTIVES: Mapping[str, Kind] = MappingProxyType(
    {"masked": MaskedLM, "left_to_right": LeftToRight, "replaced": ReplacedTokens}
)


def make_objective(words: Sequence[str], pairs: PairKind) -> PretrainingObjective:
    """The objective that a recipe names.

    Args:
        words: a name of :data:`OBJECTIVES` or MODULE:CLASS, then the options of its constructor, as
            NAME=VALUE.
        pairs: how sequences are made.

    Raises:
        ConfigError: there is no such objective or option, or it does not go with the pairs.
    """
    name, *given = words or ("masked",)
    kind = OBJECTIVES.get(name) or _imported(name)
    known = dict(list(inspect.signature(kind).parameters.items())[1:])
    options: dict[str, Any] = {}
    for item in given:
        key, _, value = item.partition("=")
        if key not in known:
            close = nearest(key, list(known)) or ", ".join(known) or "no options"
            raise ConfigError(f"objective {name} has no option {key!r}; it has {close}.")
        read = type(known[key].default)
        try:
            options[key] = read(value)
        except ValueError:
            raise ConfigError(
                f"objective: {key} is {value!r}; it must be of type {read.__name__}."
            ) from None
    return kind(pairs, **options)


def language_model(pairs: PairKind, *, causal: bool) -> PretrainingObjective:
    """The objective that measures a model of this direction."""
    return (LeftToRight if causal else MaskedLM)(pairs)


def _imported(name: str) -> Kind:
    module, _, class_name = name.partition(":")
    if not class_name:
        known = ", ".join(OBJECTIVES)
        raise ConfigError(f"objective is {name!r}; choose from {known}, or give MODULE:CLASS.")
    try:
        found: Kind = getattr(import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"objective: {name} cannot be imported ({error}); put its folder on PYTHONPATH."
        ) from None
    return found
