"""Names of a task head's outputs, from a config.json made elsewhere.

Names that do not fit the outputs one to one are not guessed: the outputs are numbered, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bothways.io.text import SURROGATES

_UNNAMED = "LABEL_{}"
_TAG = re.compile(r"O|(B|I|E|S|L|U|M|W|END|SINGLE|WHOLE)[-_].+|.+[-_](B|I|E|S)", re.IGNORECASE)
_PARTS_OF_SPEECH = frozenset(
    "ADJ ADP ADV AUX CCONJ CONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X _".split()
)
"""The universal parts of speech; a model of texts has no such labels."""
_BREAKS = re.compile(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""Ends of columns and lines of a table."""


def label_names(values: Mapping[str, Any], outputs: int) -> tuple[list[str], list[str]]:
    """The names of a head's outputs, and what a user should know of them, as sentences.

    Args:
        values: of config.json.
        outputs: of the head.
    """
    names, reverse = _by_id(values.get("id2label")), _by_name(values.get("label2id"))
    problem = ""
    if values.get("id2label") is None:
        names = reverse if values.get("label2id") is not None else {}
        problem = _misfit(names, outputs) if names != {} else ""
    elif not (problem := _misfit(names, outputs)) and reverse and not _is_unnamed(reverse):
        same = {n: str(name) for n, name in reverse.items()} == {
            n: str(name) for n, name in (names or {}).items()
        }
        problem = "" if same else "id2label and label2id contradict each other"
    notes = []
    number = values.get("num_labels")
    if isinstance(number, int) and number != outputs:
        notes.append(f"config.json says num_labels {number}, but the head has {outputs} outputs")
    if problem:
        notes.append(
            f"the labels of config.json do not fit the head's {outputs} outputs: {problem}; the "
            f"outputs are called {_UNNAMED.format(0)} and so on"
        )
        names = {}
    found = [str((names or {}).get(i, _UNNAMED.format(i))) for i in range(outputs)]
    notes += [
        f"config.json's label {name!r} holds a tab or a line break, which tables cannot; it is "
        f"called {_on_a_line(name)!r}"
        for name in found
        if _BREAKS.search(name)
    ]
    return list(map(_on_a_line, found)), notes


def are_tags(values: Mapping[str, Any]) -> bool:
    """Whether the labels of a config.json are tags of words: most by a scheme (B-, I-, O), or most
    parts of speech."""
    names = _by_id(values.get("id2label")) or _by_name(values.get("label2id")) or {}
    labels = {str(name) for name in names.values()}
    tags = {label.upper() for label in labels if _TAG.fullmatch(label)}
    if "O" in tags and (len(tags) > 1 or len(labels) == 1) and 2 * len(tags) > len(labels):
        return True
    return len(labels) > 2 and len(labels & _PARTS_OF_SPEECH) > len(labels) / 2


def _by_id(given: Any) -> dict[int, Any] | None:
    """The names by the number of the output; None if they are no such map."""
    try:
        found = {int(key): name for key, name in given.items()}
    except (AttributeError, TypeError, ValueError):
        return dict(enumerate(given)) if isinstance(given, list) else None
    return found if len(found) == len(given) else None  # "1" and "01"


def _by_name(given: Any) -> dict[int, Any] | None:
    if not isinstance(given, Mapping) or not all(type(id) is int for id in given.values()):
        return None
    found = {id: name for name, id in given.items()}
    return found if len(found) == len(given) else None


def _on_a_line(name: str) -> str:
    """A name without tabs and line breaks, each run of which is a space."""
    return " ".join(name.split()) if _BREAKS.search(name) else name


def _is_unnamed(names: dict[int, Any]) -> bool:
    return all(name == _UNNAMED.format(i) for i, name in names.items())


def _misfit(names: dict[int, Any] | None, outputs: int) -> str:
    """Why names are not those of the outputs; empty if they are."""
    if names is None:
        return "they are no map from numbers to distinct names"
    if not all(
        isinstance(name, str | int | float) and str(name).strip() for name in names.values()
    ):
        return "a name is empty or no text"
    shown = {_on_a_line(str(name)) for name in names.values()}
    if len(shown) < len(names) or any(map(SURROGATES.search, shown)):
        return "a name is there twice, or no text that a file can hold"
    if set(names) == set(range(outputs)) or _is_unnamed(names):  # what transformers writes itself
        return ""
    return f"their numbers are {', '.join(map(str, sorted(names)[:6]))}"
