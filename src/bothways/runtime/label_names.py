"""What a config.json made elsewhere calls the outputs of a task head.

``id2label`` and ``label2id`` are written by hand as often as not. Names that do not fit the
outputs one to one say nothing: which output is meant is not guessed, it is numbered, and the reason
is told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bothways.io.text import SURROGATES

_UNNAMED = "LABEL_{}"
_TAG = re.compile(r"O|(B|I|E|S|L|U|M|W|END|SINGLE|WHOLE)[-_].+|.+[-_](B|I|E|S)", re.IGNORECASE)
# The universal parts of speech; a model of texts has no such labels.
_PARTS_OF_SPEECH = frozenset(
    "ADJ ADP ADV AUX CCONJ CONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X _".split()
)
_LEAST_TAGS = 3
_BREAKS = re.compile(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # ends of columns and lines


def label_names(values: Mapping[str, Any], outputs: int) -> tuple[list[str], list[str]]:
    """The names of outputs, and what a user should know of them, as sentences.

    Args:
        values: of config.json.
        outputs: of the head.
    """
    given, reverse = values.get("id2label"), values.get("label2id")
    names = _by_id(given)
    by_name = _by_name(reverse)
    problem = ""
    if given is None and reverse is None:
        names = {}
    elif given is None:
        names, problem = by_name, _misfit(by_name, outputs, "label2id")
    else:
        problem = _misfit(names, outputs, "id2label")
        usual = reverse is None or _is_unnamed(by_name)
        same = _as_texts(by_name) == _as_texts(names)
        if not problem and not usual and not same:
            problem = "id2label and label2id contradict each other"
    number = values.get("num_labels")
    notes = []
    if isinstance(number, int) and number != outputs:
        notes.append(f"config.json says num_labels {number}, but the head has {outputs} outputs")
    if problem:
        notes.append(
            f"config.json's names do not fit the head's {outputs} outputs: {problem}; the outputs "
            f"are called {_UNNAMED.format(0)} and so on. Write one distinct name for each output "
            "into id2label, numbered from 0, to have names."
        )
        names = {}
    found = [str((names or {}).get(i, _UNNAMED.format(i))) for i in range(outputs)]
    if broken := [name for name in found if _BREAKS.search(name)]:
        notes.append(
            f"config.json's label {broken[0]!r} holds a tab or a line break, which predictions "
            f"(.tsv) cannot; it is called {_on_a_line(broken[0])!r}"
        )
    return [_on_a_line(name) for name in found], notes


def are_tags(values: Mapping[str, Any]) -> bool:
    """Whether the labels of a config.json are tags of words: all by a scheme (B-, I-, O), or all
    parts of speech."""
    names = _by_id(values.get("id2label")) or _by_name(values.get("label2id")) or {}
    labels = {str(name) for name in names.values()}
    if len(labels) < _LEAST_TAGS:
        return labels == {"O"} or (len(labels) > 1 and _in_scheme(labels))
    return _in_scheme(labels) or len(labels & _PARTS_OF_SPEECH) > len(labels) / 2


def _in_scheme(labels: set[str]) -> bool:
    inside = [label for label in labels if _TAG.fullmatch(label)]
    marked = [label for label in inside if label.upper() != "O"]
    # Beside a scheme's tags there may be some of a tokenizer's, such as [CLS] or X.
    return (
        bool(marked)
        and "O" in {label.upper() for label in labels}
        and 2 * len(inside) > len(labels)
    )


def _by_id(given: Any) -> dict[int, Any] | None:
    """The names by the number of the output; None if they are no such map."""
    if isinstance(given, list):
        return dict(enumerate(given))
    if not isinstance(given, Mapping):
        return None
    try:
        found = {int(key): name for key, name in given.items()}
    except (TypeError, ValueError):
        return None
    return found if len(found) == len(given) else None  # "1" and "01"


def _by_name(given: Any) -> dict[int, Any] | None:
    if not isinstance(given, Mapping):
        return None
    if not all(isinstance(id, int) and not isinstance(id, bool) for id in given.values()):
        return None
    found = {id: name for name, id in given.items()}
    return found if len(found) == len(given) else None


def _on_a_line(name: str) -> str:
    """A name without tabs and line breaks, each run of which is a space."""
    return " ".join(name.split()) if _BREAKS.search(name) else name


def _as_texts(names: dict[int, Any] | None) -> dict[int, str]:
    return {id: str(name) for id, name in (names or {}).items()}


def _is_unnamed(names: dict[int, Any] | None) -> bool:
    return names is not None and all(n == _UNNAMED.format(i) for i, n in names.items())


def _misfit(names: dict[int, Any] | None, outputs: int, key: str) -> str:
    """Why names are not those of the outputs; empty if they are."""
    if names is None:
        return f"{key} is no map from numbers to distinct names"
    if not all(
        isinstance(name, str | int | float)
        and str(name).strip()
        and not SURROGATES.search(str(name))  # half a character, which no file can hold
        for name in names.values()
    ):
        return f"{key} has a name that is none"
    if len({_on_a_line(str(name)) for name in names.values()}) < len(names):
        return f"{key} has a name twice"
    if set(names) == set(range(outputs)):
        return ""
    if _is_unnamed(names):  # what transformers writes by itself
        return ""
    if set(names) == set(range(1, outputs + 1)):
        return f"{key} counts from 1"
    return f"{key} has the numbers {', '.join(map(str, sorted(names)[:6]))}"
