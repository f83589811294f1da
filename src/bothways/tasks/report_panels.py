"""What a report shows about a model's predictions in addition to the scores, as plain data.

Each kind of task provides it (:meth:`Task.panels`, :meth:`Task.errors`,
:meth:`Task.example_scores`). It is saved with each seed (``dev_report.json``) and drawn by
:mod:`bothways.finetuning.report`.

N examples, L labels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bothways.io.html import shorten

Cell = str | int | float
MarkedSpan = tuple[int, int, str]
"""Start, end and name of an entity or answer in a text."""

SHOWN_ERRORS = 50
"""How many errors are kept for a report."""
_SHOWN_TEXT = 600
_SHOWN_PIECE = 300
_SHOWN_LABELS = 20
_SHOWN_POINTS = 2000
_BINS = 5  # of lengths


@dataclass(frozen=True)
class Panel:
    """A table of a report, and how it is drawn.

    Attributes:
        title: above the table.
        header: names of the columns.
        rows: the cells, texts or numbers.
        note: a sentence below the table; may be empty.
        chart: ``table``; ``heat``: a table whose numbers are shaded within their row; ``scatter``:
            the second column over the first, as a picture instead of a table.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    chart: Literal["table", "heat", "scatter"] = "table"


@dataclass(frozen=True)
class Mistake:
    """An example that was predicted wrongly, as a report shows it.

    Attributes:
        example: its index in the file, from 0, as in the file of predictions.
        texts: (name, text) of its inputs.
        gold: the gold label or answer.
        predicted: the predicted one.
        weight: how bad the error is; the worst are shown first.
        shown: the weight in words, such as ``probability 0.98``.
        marked: the last text with the gold and predicted places in it, as of :func:`marked_text`;
            empty if the texts have no places.
    """

    example: int
    texts: tuple[tuple[str, str], ...]
    gold: str
    predicted: str
    weight: float
    shown: str
    marked: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class ExampleScores:
    """A metric per example, which a report averages by length.

    Attributes:
        name: of its mean, such as ``accuracy`` or ``mean absolute error``.
        values: float [N].
    """

    name: str
    values: NDArray[np.float64]


def worst(mistakes: Sequence[Mistake], limit: int = SHOWN_ERRORS) -> list[dict[str, Any]]:
    """The worst mistakes as JSON-able data, worst first, long texts shortened."""
    ranked = sorted(mistakes, key=lambda m: (-m.weight, m.example))[:limit]
    shown = [asdict(mistake) for mistake in ranked]
    for record in shown:
        record["texts"] = [[name, shorten(text, _SHOWN_TEXT)] for name, text in record["texts"]]
        record["weight"] = float(record["weight"])
        record["marked"] = [
            [shorten(piece, _SHOWN_PIECE), mark, note] for piece, mark, note in record["marked"]
        ]
    return shown


def marked_text(
    text: str, gold: Collection[MarkedSpan], predicted: Collection[MarkedSpan]
) -> tuple[tuple[str, str, str], ...]:
    """A text in pieces, each with its mark and a note.

    Args:
        text: the text.
        gold: start, end and name of each gold entity or answer.
        predicted: the same, predicted.

    Returns:
        For each piece its text; ``right`` in a predicted place that is a gold one of the same name,
        ``wrong`` in another predicted one, ``missed`` in a gold one that was not predicted, or an
        empty mark; and at the end of a place what it is, with the text of a gold one of which only
        a part was predicted, or more.
    """
    right, wrong, missed = (
        {(start, end, name) for start, end, name in places if start < end}
        for places in (
            set(gold) & set(predicted),
            set(predicted) - set(gold),
            set(gold) - set(predicted),
        )
    )
    marks = [("wrong", "predicted", wrong), ("missed", "gold", missed), ("right", "", right)]
    cuts = {place for _, _, places in marks for start, end, _ in places for place in (start, end)}
    ends = sorted({0, len(text), *cuts})
    pieces = []
    for start, end in pairwise(ends):
        mark, notes = "", []
        for kind, word, places in marks:
            inside = sorted(p for p in places if p[0] <= start and end <= p[1])
            mark = mark or (kind if inside else "")
            for place in inside:
                if place[1] == end:
                    others = wrong | right if kind == "missed" else ()
                    partly = any(_differ(place, other) for other in others)
                    whole = f" “{text[place[0] : place[1]]}”" if partly else ""
                    notes.append(f"{word} {place[2]}{whole}".strip())
        if not notes and not text[start:end].strip():
            mark = mark if mark == "wrong" else ""  # between the predicted words of a gold place
        pieces.append((text[start:end], mark, ", ".join(notes)))
    return tuple(pieces)


def _differ(one: MarkedSpan, other: MarkedSpan) -> bool:
    """Whether two places overlap, and are not the same."""
    return one[0] < other[1] and other[0] < one[1] and one[:2] != other[:2]


def labels_panel(
    parts: Mapping[str, Mapping[str, float]],
    predicted: Sequence[int],
    thresholds: Sequence[float] | None,
    note: str,
) -> Panel:
    """The measures of each label, how often it is predicted and stands in the data, and from which
    probability on it is given."""
    names = [name for name in next(iter(parts.values())) if name not in ("predicted", "support")]
    given = [()] * len(parts) if thresholds is None else [(value,) for value in thresholds]
    rows: list[tuple[Cell, ...]] = [
        (label, *(part[n] for n in names), count, int(part["support"]), *threshold)
        for (label, part), count, threshold in zip(parts.items(), predicted, given, strict=True)
    ]
    header = ("label", *(name.replace("_", " ") for name in names), "predicted", "in the data")
    more = () if thresholds is None else ("threshold",)
    return Panel("Labels", (*header, *more), tuple(rows), f"{note}." if note else "")


def parts_panel(title: str, of: str, parts: Mapping[str, Mapping[str, float]]) -> Panel:
    """The measures of each part."""
    rows: list[tuple[Cell, ...]] = [(name, *part.values()) for name, part in parts.items()]
    return Panel(title, (of, *next(iter(parts.values()))), tuple(rows))


def confusion_panel(
    predicted: NDArray[Any], gold: NDArray[Any], labels: Sequence[str], *, of: str = "examples"
) -> Panel:
    """Gold labels against predicted ones; for more than 20 labels, the most frequent confusions.

    Args:
        predicted: int [N], indices into ``labels``.
        gold: int [N].
        labels: the classes.
        of: what is counted.
    """
    counts_LL = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(counts_LL, (gold, predicted), 1)
    if len(labels) <= _SHOWN_LABELS:
        rows: list[tuple[Cell, ...]] = [
            (label, *row) for label, row in zip(labels, counts_LL.tolist(), strict=True)
        ]
        header = ("gold \\ predicted", *labels)
        note = f"Number of {of}. Gold: as labelled in the data."
        return Panel("Confusion matrix", header, tuple(rows), note, "heat")
    np.fill_diagonal(counts_LL, 0)
    order = np.argsort(-counts_LL, axis=None, kind="stable")[:_SHOWN_LABELS]
    pairs = [divmod(int(index), len(labels)) for index in order]
    confusions = tuple(
        (labels[g], labels[p], int(counts_LL[g, p])) for g, p in pairs if counts_LL[g, p]
    )
    return Panel("Most frequent confusions", ("gold", "predicted", of), confusions)


def calibration_panel(probabilities: NDArray[np.float64], right: NDArray[np.bool_]) -> Panel:
    """How often the predicted label is right, by its probability, in ten bins.

    Args:
        probabilities: of the predicted labels, [N].
        right: whether they are right, [N].
    """
    bins = np.minimum((probabilities * 10).astype(np.int64), 9)
    rows: list[tuple[Cell, ...]] = []
    error = 0.0
    for i in np.unique(bins).tolist():
        inside = bins == i
        confidence, accuracy = float(probabilities[inside].mean()), float(right[inside].mean())
        error += abs(confidence - accuracy) * float(inside.mean())
        rows.append(
            (f"{i / 10:.1f} to {(i + 1) / 10:.1f}", int(inside.sum()), confidence, accuracy)
        )
    header = ("predicted probability", "examples", "mean probability", "accuracy")
    note = (
        f"Expected calibration error {error:.4f} (0 if labels with probability 80 % are right in "
        "80 % of cases)."
    )
    return Panel("Calibration", header, tuple(rows), note)


def scatter_panel(predicted: NDArray[Any], gold: NDArray[Any]) -> Panel:
    """Predicted against gold scores; a regular sample of at most 2,000 examples.

    Args:
        predicted: float [N].
        gold: float [N].
    """
    every = -(-len(gold) // _SHOWN_POINTS) or 1
    points = zip(gold[::every].tolist(), predicted[::every].tolist(), strict=True)
    rows = tuple((round(g, 6), round(p, 6)) for g, p in points)
    note = f"One example in {every}." if every > 1 else ""
    return Panel("Predicted against gold scores", ("gold", "predicted"), rows, note, "scatter")


def length_panel(lengths: NDArray[np.int64], scores: ExampleScores) -> Panel:
    """The mean of a metric by the length of the examples, in bins of about equal size; examples of
    equal length share one.

    Args:
        lengths: tokens of each example as the model read it, [N].
        scores: the metric.
    """
    ends = np.unique(np.quantile(lengths, np.arange(1, _BINS + 1) / _BINS, method="lower"))
    bin_of = np.searchsorted(ends, lengths)
    rows: list[tuple[Cell, ...]] = []
    for i in range(len(ends)):
        inside = lengths[bin_of == i]
        low, high = inside.min(), inside.max()
        tokens = f"{low:,} to {high:,}" if low < high else f"{low:,}"
        rows.append((tokens, len(inside), float(scores.values[bin_of == i].mean())))
    return Panel(
        f"{scores.name.capitalize()} by length", ("tokens", "examples", scores.name), tuple(rows)
    )


def panel_record(panel: Panel) -> dict[str, Any]:
    """A panel as JSON-able data; NumPy scalars become Python numbers."""
    rows = [[c.item() if isinstance(c, np.generic) else c for c in row] for row in panel.rows]
    return {**asdict(panel), "rows": rows}


def panel_from_record(record: dict[str, Any]) -> Panel:
    """The inverse of :func:`panel_record`, also after JSON.

    Raises:
        KeyError, TypeError: the record is damaged.
    """
    rows = tuple(tuple(row) for row in record["rows"])
    return Panel(**{**record, "header": tuple(record["header"]), "rows": rows})
