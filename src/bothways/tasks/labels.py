"""The labels of a model and those of a task, which may be spelt or ordered differently."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from bothways.errors import InputError, ModelError, Place
from bothways.io.lines import listed

MISSING = frozenset(
    (
        *("nan", "NaN", "NAN", "NaT", "n/a", "N/A", "NA", "<NA>", "None", "null", "NULL", r"\N"),
        *("(null)", "<null>", "[null]", "undefined", "#N/A", "#REF!", "#NAME?", "#VALUE!"),
        *("#DIV/0!", "#NUM!", "#NULL!", "#N/A N/A", "-nan", "1.#QNAN", "-1.#IND", "1.#IND"),
    )
)
"""How programs, databases and the errors of spreadsheets write that there is no value."""
_NO_GOLD = frozenset("-?")  # among words: no agreement (SNLI), an unknown value (UCI)
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?")


def match_labels(
    outputs: Sequence[str], wanted: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The task's labels in the order of a model's outputs, which may be another than the task's.

    The model may use other names. Labels are matched by name, ignoring case; if no name matches, by
    position, and a note says so.

    Args:
        outputs: the model's labels, in the order of its outputs.
        wanted: the task's labels; the model's own if empty.

    Returns:
        The labels in the order of the outputs, and notes.

    Raises:
        ModelError: the numbers of labels differ, or only some names match.
    """
    if not wanted or set(wanted) == set(outputs):
        return tuple(outputs), ()
    if len(wanted) != len(outputs):
        raise ModelError(
            f"the model has {len(outputs)} labels ({listed(outputs)}), the task {len(wanted)} "
            f"({listed(wanted)})."
        )
    folded = {label.casefold(): label for label in wanted}
    if {label.casefold() for label in outputs} == folded.keys() and len(folded) == len(wanted):
        return tuple(folded[label.casefold()] for label in outputs), ()
    if len(folded) == len(wanted) and any(label.casefold() in folded for label in outputs):
        raise ModelError(
            f"the model's labels are {listed(outputs)}, the task's {listed(wanted)}: some are the "
            "same, so the others cannot be matched by position. Give them one spelling, in the "
            "file and labels, or in id2label of the model's config.json (and in labels of its "
            "bothways.json, if it has one)."
        )
    pairs = ", ".join(f"{o!r} as {w!r}" for o, w in zip(outputs, wanted, strict=True))
    return tuple(wanted), (f"label names do not match; matched by position: {pairs}",)


def check_spellings(path: Path, labels: Iterable[tuple[int, str]]) -> None:
    """Refuse labels that would become classes of their own by an accident.

    Args:
        path: the file.
        labels: the line and the label of each example, where nothing else says what labels there
            are.

    Raises:
        InputError: a label stands for a missing value; or two differ in case, white space or
            Unicode form alone, or are the same number, such as ``1`` and ``1.0``.
    """
    first: dict[str, int] = {}
    for line, label in labels:
        first.setdefault(label, line)
    seen: dict[str | float, str] = {}
    for label, line in first.items():
        problem = ""
        if label in MISSING or (label in _NO_GOLD and any(map(str.isalnum, "".join(first)))):
            problem = f"missing label ({label!r}); add it to labels if it is a class."
        elif (other := seen.setdefault(_key(label), label)) != label:
            problem = (
                f"the labels {label!r} here and {other!r} are one label in two spellings; add both "
                "to labels if they are two."
            )
        if problem:
            raise InputError(problem, place=Place(path, line))


def _key(label: str) -> str | float:
    """What labels that differ by an accident of their spelling have in common."""
    visible = "".join(c for c in label if unicodedata.category(c) != "Cf")
    plain = " ".join(unicodedata.normalize("NFKC", visible).casefold().split())
    return float(plain) if _NUMBER.fullmatch(plain) else plain
