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
        words: first character of each word, and the one after its last.
        spans: start, end, label.
        id: of the text in its file.
    """

    text: str
    words: Sequence[tuple[int, int]]
    spans: Sequence[tuple[int, int, str]]
    id: str | int | None = None


def _json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def write_doccano(texts: Sequence[WrittenText]) -> str:
    """Texts with spans as doccano's JSON lines."""
    return "".join(
        _json_line(
            {
                **({} if t.id is None else {"id": t.id}),
                "text": t.text,
                "label": [list(span) for span in t.spans],
            }
        )
        for t in texts
    )


def write_spacy(texts: Sequence[WrittenText]) -> str:
    """Texts with spans as spaCy's pairs."""
    pairs = [[t.text, {"entities": [list(span) for span in t.spans]}] for t in texts]
    return json.dumps(pairs, ensure_ascii=False, indent=1) + "\n"


def write_prodigy(texts: Sequence[WrittenText]) -> str:
    """Texts with spans as Prodigy's JSON lines."""
    lines = []
    for t in texts:
        tokens = [
            {
                "text": t.text[start:end],
                "start": start,
                "end": end,
                "id": n,
                "ws": t.text[end : end + 1].isspace(),
            }
            for n, (start, end) in enumerate(t.words)
        ]
        first = {start: n for n, (start, _) in enumerate(t.words)}
        last = {end: n for n, (_, end) in enumerate(t.words)}
        spans = [
            {
                "start": start,
                "end": end,
                "label": label,
                **({"token_start": first[start]} if start in first else {}),
                **({"token_end": last[end]} if end in last else {}),
            }
            for start, end, label in t.spans
        ]
        meta = {} if t.id is None else {"meta": {"id": t.id}}
        lines.append(_json_line({"text": t.text, "tokens": tokens, "spans": spans, **meta}))
    return "".join(lines)


def write_label_studio(texts: Sequence[WrittenText]) -> str:
    """Texts with spans as Label Studio's tasks, with predictions."""
    tasks = []
    for t in texts:
        results = [
            {
                "id": f"span-{n}",
                "from_name": "label",
                "to_name": "text",
                "type": "labels",
                "value": {"start": s, "end": e, "text": t.text[s:e], "labels": [label]},
            }
            for n, (s, e, label) in enumerate(t.spans)
        ]
        known = {} if t.id is None else {"id": t.id}
        predictions = [{"model_version": "bothways", "result": results}]
        tasks.append({**known, "data": {"text": t.text}, "predictions": predictions})
    return json.dumps(tasks, ensure_ascii=False, indent=1) + "\n"


def write_brat(path: Path, texts: Sequence[WrittenText]) -> None:
    """Write an ``.ann`` file and the ``.txt`` file beside it; several texts are lines of it.

    Raises:
        DiskError: a file cannot be written.
    """
    lines: list[str] = []
    start = 0
    for t in texts:
        for first, end, label in t.spans:
            words = " ".join(t.text[first:end].split("\n"))
            lines.append(f"T{len(lines) + 1}\t{label} {start + first} {start + end}\t{words}\n")
        start += len(t.text) + 1
    write_text(path.with_suffix(".txt"), "\n".join(t.text for t in texts) + "\n")
    write_text(path, "".join(lines))


WRITERS: dict[str, tuple[Callable[[Sequence[WrittenText]], str], str]] = {
    "doccano": (write_doccano, ".jsonl"),
    "prodigy": (write_prodigy, ".jsonl"),
    "spacy": (write_spacy, ".json"),
    "label-studio": (write_label_studio, ".json"),
}
"""The content of a file with predictions in the format of a tool, and the suffix of its files."""
