"""What annotators of Label Studio chose for whole texts, and why a label is missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.annotations.annotators import (
    chosen_names,
    kind_of_control,
    said_by,
    values_of_controls,
)
from bothways.io.broken import Broken
from bothways.io.frames import SPREADSHEET
from bothways.io.lines import Layout, MissingColumnError, listed


@dataclass
class Choices:
    """What annotators of Label Studio chose for the columns of labels. Where they did for one, what
    other tasks hold under its name in their own data is no label.

    Attributes:
        path: the file.
        labels: the columns.
        chosen: those of them for which something was chosen so far.
        others: further names for which something was chosen, or spans were marked.
        of_data: those that were given from a task's data -> the line of the first such task.
    """

    path: Path
    labels: frozenset[str]
    chosen: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    of_data: dict[str, int] = field(default_factory=dict)

    def take(self, item: Any) -> None:
        """Add what was chosen for an example.

        Raises:
            InputError: an earlier one was given with what its data hold; it cannot be left out.
        """
        own = chosen_names(item) or set()
        self.chosen |= self.labels & own
        self.others |= said_by(item) - self.labels
        if mistaken := sorted(self.chosen & self.of_data.keys()):
            raise self._error(mistaken[0], self.of_data[mistaken[0]])

    def check(self, item: dict[str, Any], row: dict[str, Any], number: int) -> None:
        """Refuse an example that has a label from its data where others were chosen.

        Raises:
            InputError: naming the label.
        """
        if (own := chosen_names(item)) is None:
            return  # of another tool
        for name in sorted(self.labels.intersection(row) - own):
            if name in self.chosen:
                raise self._error(name, number)
            if own:
                raise InputError(
                    f"the {name!r} of this task is of its own data, and what was chosen stands "
                    f"under {listed(sorted(own))}: --label {min(own)} (if the {name!r} of the data "
                    "is meant, rename it there).",
                    place=Place(self.path, number),
                )
            self.of_data.setdefault(name, number)

    @property
    def remarks(self) -> list[str]:
        """On what was chosen and is not read."""
        if not (self.labels and self.others):
            return []
        own, others = listed(sorted(self.labels)), listed(sorted(self.others))
        return [f"annotators answered {others}, too; the labels are those of {own}"]

    def _error(self, name: str, number: int) -> InputError:
        return InputError(
            f"nothing was chosen for {name!r}, as in other tasks, and the {name!r} that the task's "
            "own data hold is no annotation; leave the task out, or rename it in the data.",
            place=Place(self.path, number),
        )


def explain_missing(
    error: MissingColumnError, item: dict[str, Any], layout: Layout, path: Path, broken: Broken
) -> None:
    """Add what may be the reason why a column is missing."""
    if path.suffix.lower() == SPREADSHEET:
        for remark in broken.remarks:
            error.problem += f" ({path.name}: {remark}.)"
    of_label_studio = "annotation_id" in item or chosen_names(item) is not None
    if kind := kind_of_control(item, error.missing):
        error.problem += f" In this task of Label Studio it is a {kind}, which is read as no label."
    if error.missing in layout.labels and (own := sorted(chosen_names(item) or ())):
        error.problem += (
            f" What was chosen in this task stands under {listed(own)}: --label {own[0]}."
        )
    elif kind:
        return
    elif error.missing in layout.labels and (own := values_of_controls(item)):
        error.problem += (
            f" If a control of Label Studio has another name, such as {own[0]!r}: --label {own[0]}."
        )
    elif error.missing in layout.labels and of_label_studio:
        error.problem += (
            " Nothing was chosen for it in this task of Label Studio; leave such tasks out."
        )
