"""Labels of whole texts, as annotators choose them in Label Studio and Prodigy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def finished_annotations(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The annotations of a task of Label Studio, but those that were skipped; that which is marked
    as the truth first."""
    done = [a for a in item.get("annotations") or [] if isinstance(a, dict)]
    done = [annotation for annotation in done if not annotation.get("was_cancelled")]
    return sorted(done, key=lambda annotation: annotation.get("ground_truth") is not True)


def chosen_row(item: dict[str, Any], *, labelled: bool) -> dict[str, Any] | None:
    """The columns of an object that may be a task of an annotation tool.

    Of a task of Label Studio: its data, and what was chosen for the text, under the name of the
    control and, if that is the only one, as ``label``. Of one of Prodigy: ``accept`` as ``label``.
    Of other objects: themselves.

    Args:
        item: the object.
        labelled: labels are needed; if not, what nobody annotated has its columns, too.

    Returns:
        None if the annotator rejected or skipped it.
    """
    if isinstance(item.get("data"), dict) and (
        "annotations" in item or item.keys() <= {"id", "data"}
    ):
        done = finished_annotations(item)
        if not done:
            return None if labelled else {"id": item.get("id"), **item["data"]}
        chosen: dict[str, list[Any]] = {}
        for result in done[0].get("result") or []:
            value = result.get("value") if isinstance(result, dict) else None
            if isinstance(value, dict) and isinstance(value.get("choices"), list):
                chosen.setdefault(str(result.get("from_name")), []).extend(value["choices"])
        row = {"id": item.get("id"), **item["data"]}
        row.pop("label", None)  # of the data, which nobody chose
        return row | chosen | ({"label": next(iter(chosen.values()))} if len(chosen) == 1 else {})
    if labelled and item.get("answer") in ("reject", "ignore"):
        return None
    if "label" not in item and isinstance(item.get("accept"), list):
        return {**item, "label": item["accept"]}
    return item
