"""The labels of a model and those of a task, which may be spelt or ordered differently."""

from __future__ import annotations

from collections.abc import Sequence

from bothways.errors import ModelError
from bothways.io.lines import listed


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
