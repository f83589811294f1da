"""Texts with predicted spans in the forms that annotators' tools read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.io.files import write_text


@dataclass(frozen=True)
class WrittenText:
    """A text with what was predicted, to be written.

    Attributes:
        text: the text.
        spans: start, end, label.
        id: of the text in its file.
    """

    text: str
    spans: Sequence[tuple[int, int, str]]
    id: str | int | None = None

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The spans as objects."""
        return [{"start": start, "end": end, "label": label} for start, end, label in self.spans]


def _doccano(t: WrittenText) -> Any:
    known = {} if t.id is None else {"id": t.id}
    return {**known, "text": t.text, "label": [list(span) for span in t.spans]}


def _prodigy(t: WrittenText) -> Any:
    known = {} if t.id is None else {"meta": {"id": t.id}}
    return {"text": t.text, "spans": t.objects, **known}


def _spacy(t: WrittenText) -> Any:
    return [t.text, {"entities": [list(span) for span in t.spans]}]


def _label_studio(t: WrittenText) -> Any:
    known = {} if t.id is None else {"id": t.id}
    control = {"from_name": "label", "to_name": "text", "type": "labels"}
    results = [
        {**control, "id": f"span-{n}", "value": {"start": s, "end": e, "labels": [label]}}
        for n, (s, e, label) in enumerate(t.spans)
    ]
    predictions = [{"model_version": "bothways", "result": results}]
    return {**known, "data": {"text": t.text}, "predictions": predictions}


WRITERS: dict[str, tuple[Callable[[WrittenText], Any], str]] = {
    "doccano": (_doccano, ".jsonl"),
    "prodigy": (_prodigy, ".jsonl"),
    "spacy": (_spacy, ".json"),
    "label-studio": (_label_studio, ".json"),
}
"""A text as the object that a tool reads, and the suffix of the tool's files."""


def spans_text(form: str, texts: Sequence[WrittenText]) -> str:
    """The content of a file in the format of one of :data:`WRITERS`."""
    write, suffix = WRITERS[form]
    objects = [write(text) for text in texts]
    if suffix == ".json":
        return json.dumps(objects, ensure_ascii=False, indent=1) + "\n"
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in objects)


def write_brat(path: Path, texts: Sequence[WrittenText]) -> None:
    """Write an ``.ann`` file and the ``.txt`` file beside it; several texts are lines of it.

    Raises:
        DiskError: a file cannot be written.
    """
    lines: list[str] = []
    start = 0
    for t in texts:
        for first, end, label in t.spans:
            words = t.text[first:end].replace("\n", " ")
            lines.append(f"T{len(lines) + 1}\t{label} {start + first} {start + end}\t{words}\n")
        start += len(t.text) + 1
    write_text(path.with_suffix(".txt"), "\n".join(t.text for t in texts) + "\n")
    write_text(path, "".join(lines))
