"""The labels of a model and those of a task, which may be spelt or ordered differently."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
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
_QUOTES = (('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019"), ('="', '"'))
_PRINTED = re.compile(
    r"""b(['"]).*\1|(?:\w+\.)?(?:array|tensor|u?int\d+|float\d+|bool_|str_|Tensor)\(.*\)"""
)
_MARKS_BETWEEN = "|;,#/+ "
_VARIANTS = ("\ufe0e", "\ufe0f")
"""Of one emoji: as text, or as a picture."""
_TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
_RANGE = re.compile(r"\d{1,2}\s*[-/]\s*\d{1,2}")
_MONTH = "(?:jan|feb|m[aä]r|apr|ma[iy]|mrz|jun|jul|aug|sept?|o[ck]t|nov|de[cz])"
_DATE = re.compile(
    rf"\d{{4}}-\d\d-\d\d|\d{{1,2}}[-. ]{{1,2}}{_MONTH}|{_MONTH}[-. ]{{1,2}}\d{{1,2}}"
    r"|\d{1,2}\uc6d4 \d{1,2}\uc77c",
    re.IGNORECASE,
)
"""What a spreadsheet makes of a range such as 1-2."""
_UNSURE = frozenset("-?_.")
"""How files of several annotators write that they did not agree, or that nothing is known."""

_LATIN = {
    "\u0410\u0412\u0415\u0405\u0406\u0408\u041a\u041c\u041d\u041e": "ABESIJKMHO",
    "\u0420\u0421\u0422\u0423\u0425\u0430\u0435\u0455\u0456\u0458": "PCTYXaesij",
    "\u043e\u0440\u0441\u0443\u0445\u0475\u0391\u0392\u0395\u0396": "opcyxvABEZ",
    "\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf": "HIKMNOPTYXo",
    "\u2010\u2011\u2012\u2013\u2014\u2212": "------",
    "\u2018\u2019\u02bc\u201c\u201d": "'''\"\"",
}
_ALIKE = {ord(a): b for those, latin in _LATIN.items() for a, b in zip(those, latin, strict=True)}
"""Letters of Cyrillic and Greek, dashes and quotation marks -> what looks alike in ASCII."""


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
            "file and task.labels, or in id2label of the model's config.json (and in labels of its "
            "bothways.json, if it has one)."
        )
    pairs = ", ".join(f"{o!r} as {w!r}" for o, w in zip(outputs, wanted, strict=True))
    return tuple(wanted), (f"label names do not match; matched by position: {pairs}",)


def check_spellings(path: Path, labels: Iterable[tuple[int, str]]) -> None:
    """Refuse labels that would become classes of their own by an accident of their spelling.

    Args:
        path: the file.
        labels: the line and the label of each example, where nothing else says what labels there
            are.

    Raises:
        InputError: a label stands for a missing value; or two differ in case, spaces, Unicode
            form or invisible characters only, or are the same number, such as ``1`` and ``1.0``,
            or truth value.
    """
    first: dict[str, int] = {}
    for line, label in labels:
        first.setdefault(label, line)
    seen: dict[str | float, str] = {}
    truth = _mixes_truth_values(first)
    for label, line in first.items():
        problem = (
            _if_missing(label, first)
            or _if_printed(label)
            or _if_quoted(label)
            or _if_made_a_date(label, first)
            or _if_joined(label, first)
        )
        for key in _keys_of(label, truth=truth):
            if (other := seen.setdefault(key, label)) != label and not problem:
                problem = (
                    f"the labels {label!r} here and {other!r} on line {first[other]} differ in "
                    f"their spelling only{_letters_told(label, other)}; write one of them "
                    "everywhere (or name all labels in task.labels, if both are meant)."
                )
        if problem:
            raise InputError(problem, place=Place(path, line))


# What is wrong with a label, and what to do; empty if nothing is.


def _if_missing(label: str, first: Mapping[str, int]) -> str:
    if label in MISSING:
        return (
            f"the label {label!r} is how programs write a missing value; fill it in, or leave the "
            "line out (or name all labels in task.labels, if it is one of them)."
        )
    if label in _UNSURE and any(map(str.isalnum, "".join(first))):
        return (
            f"the label {label!r} is how some files say that there is none; leave such lines out "
            "(or name all labels in task.labels, if it is one of them)."
        )
    return ""


def _if_printed(label: str) -> str:
    if not _PRINTED.fullmatch(label):
        return ""
    return (
        f"the label {label} is how Python prints a value; write the value alone, such as "
        "label.item() or text.decode() (or name all labels in task.labels, if it is one)."
    )


def _if_quoted(label: str) -> str:
    for begin, end in _QUOTES:
        if len(label) > len(begin + end) and label.startswith(begin) and label.endswith(end):
            return (
                f"the label {label} stands in quotation marks; remove them (or name all labels in "
                "task.labels, if they belong to it)."
            )
    return ""


def _if_made_a_date(label: str, first: Mapping[str, int]) -> str:
    other = next(filter(_RANGE.fullmatch, first), None) if _DATE.fullmatch(label) else None
    if other is None:
        return ""
    return (
        f"the label {label!r} is a date, and others are such as {other!r} (line {first[other]}), "
        "of which a spreadsheet program makes dates; write it again as text (or name all labels in "
        "task.labels, if it is one of them)."
    )


def _if_joined(label: str, first: Mapping[str, int]) -> str:
    for mark in _MARKS_BETWEEN:
        parts = [part.strip() for part in label.split(mark)]
        if len(set(parts)) > 1 and set(parts) <= first.keys():
            return (
                f"the label {label!r} is {listed(parts, 4)} with {mark!r} between, which are "
                "labels, too. For several labels of a text: --kind multilabel "
                f"--task.label_separator {mark!r}, and {mark!r} between them everywhere (or name "
                "all labels in task.labels, if it is one of them)."
            )
    return ""


def _mixes_truth_values(labels: Iterable[str]) -> bool:
    """Whether labels that may be truth values are written in several ways: as true, yes or 1."""
    folded = {label.casefold() for label in labels}
    numbers = {number for label in folded if (number := _number(label)) is not None}
    ways = ({"true", "false"} & folded, {"yes", "no"} & folded, numbers)
    return numbers <= {0.0, 1.0} and sum(map(bool, ways)) > 1


def _keys_of(label: str, *, truth: bool) -> list[str] | list[float]:
    """What labels that differ by an accident of their spelling have in common: a number, or the
    letters with and without regard to those that look alike.

    Args:
        label: the label.
        truth: whether words for truth values are numbers.
    """
    number = _number(label)
    if number is None and truth:
        number = _TRUTH.get(label.casefold())
    if number is not None:
        return [number]
    kept = (c for c in label if unicodedata.category(c) != "Cf" and c not in _VARIANTS)
    plain = unicodedata.normalize("NFKC", "".join(kept))
    return sorted({" ".join(p.casefold().split()) for p in (plain, plain.translate(_ALIKE))})


def _letters_told(label: str, other: str) -> str:
    """The first letters that look alike and differ, in words; empty if only case or spaces do."""
    for pair in zip(label, other, strict=False):
        one, two = (letter.translate(_ALIKE) for letter in pair)
        if pair[0] != pair[1] and one == two:
            return f" ({' and '.join(unicodedata.name(letter).lower() for letter in pair)})"
    return ""


def _number(label: str) -> float | None:
    label = label.translate(_ALIKE)
    try:
        return int(label)
    except ValueError:
        pass
    try:
        return float(label)
    except ValueError:
        return None
