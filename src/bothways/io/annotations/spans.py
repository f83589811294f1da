"""Labelled stretches of texts, as doccano, Label Studio, Prodigy, spaCy and brat export them.

==============  ==================================================================================
doccano         ``{"text", "label": [[start, end, label]]}``, or ``{"text", "entities":
                [{"start_offset", "end_offset", "label"}]}``
label-studio    ``{"data": {"text"}, "annotations": [{"result": [{"value": {"start", "end",
                "labels"}}]}]}``
prodigy         ``{"text", "spans": [{"start", "end", "label"}], "answer"}``
spacy           ``[text, {"entities": [[start, end, label]]}]``, or ``{"text", "entities"}``
==============  ==================================================================================

An end is the character after the last one. Tools in browsers count UTF-16 code units, two for an
emoji; offsets are read so if only that agrees with the text that the file repeats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.annotations.choices import finished_annotations
from bothways.io.columns import checked_text
from bothways.io.lines import listed
from bothways.io.rows import first_value, shown, whole_number

_TEXT = ("text", "data")
_SPANS = ("spans", "entities", "label", "labels")
_START, _END = ("start", "start_offset"), ("end", "end_offset")
_LABEL = ("label", "labels", "hypertextlabels")
_BRAT = re.compile(r"T\d+\t(\S+) (\d+)(?: [\d; ]*)? (\d+)(?:\t(.*))?")


@dataclass(frozen=True)
class CharacterSpan:
    """A labelled stretch of a text.

    Attributes:
        start, end: its first character, and the one after its last.
        label: such as PER.
    """

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class SpanText:
    """A text with its spans.

    Attributes:
        text: as in the file.
        spans: in the order of the file; None if nobody annotated the text.
        line: of the file, from 1.
        id: as in the file; None if it has none.
        path: the file, where each text has its own.
    """

    text: str
    spans: list[CharacterSpan] | None
    line: int
    id: str | int | None = None
    path: Path | None = None


def format_of_item(item: Any) -> str:
    """The tool whose form a text with spans has."""
    if isinstance(item, Mapping) and isinstance(item.get("data"), Mapping):
        return "label-studio"
    entities = item.get("entities") if isinstance(item, Mapping) else None
    if isinstance(item, list) or (entities and isinstance(entities[0], list)):
        return "spacy"
    return "prodigy" if isinstance(item, Mapping) and "spans" in item else "doccano"


def text_with_spans(item: Any, line: int) -> SpanText:
    """The text and the spans of an object.

    Returns:
        Without spans (None) if the annotator rejected or skipped the text, or nobody annotated it.

    Raises:
        InputError: the object has none of the forms, or a span is not in its text.
    """
    if isinstance(item, list) and len(item) == 2:
        about = item[1]
        item = {
            "text": item[0],
            "spans": about.get("entities") if isinstance(about, dict) else about,
        }
    if not isinstance(item, Mapping):
        raise InputError(f"expected an object with a text and spans, found {shown(item)}.")
    if isinstance(item.get("data"), Mapping):
        return _of_label_studio(item, line)
    text, id = checked_text(first_value(item, _TEXT), "text"), first_value(item, ("id",))
    lists = {name: item[name] for name in _SPANS if isinstance(item.get(name), list)}
    full = {name: value for name, value in lists.items() if value} or lists
    skipped = item.get("answer", "accept") != "accept"  # Prodigy
    if skipped or not (lists or "answer" in item):
        return SpanText(text, None, line, id)
    if len({shown(value, 10_000) for value in full.values()}) > 1:
        raise InputError(f"expected one list of spans, found {listed(list(full))}.")
    values: list[Any] = next(iter(full.values()), [])
    rejected = ("reject", "ignore")
    kept = [v for v in values if not (isinstance(v, dict) and v.get("answer") in rejected)]
    return SpanText(text, [_span(value, text) for value in kept], line, id)


def _of_label_studio(item: Mapping[str, Any], line: int) -> SpanText:
    done = finished_annotations(item)
    results = [r for r in (done[0].get("result") or [] if done else []) if isinstance(r, dict)]
    values = [(r, r["value"]) for r in results if isinstance(r.get("value"), dict)]
    marked = [(r, value) for r, value in values if first_value(value, _LABEL) is not None]
    sources = {str(result.get("to_name")) for result, _ in marked}
    texts = {name: value for name, value in item["data"].items() if isinstance(value, str)}
    name = next((name for name in (*sources, "text") if name in texts), None)
    if name is None and len(texts) == 1:
        (name,) = texts
    if name is None or len(sources) > 1:
        raise InputError(f"expected spans in one text; the data are {listed(list(item['data']))}.")
    text = checked_text(texts[name], name)
    spans = [_span({**value, **(value.get("globalOffsets") or {})}, text) for _, value in marked]
    return SpanText(text, spans if done else None, line, item.get("id"))


def _span(value: Any, text: str) -> CharacterSpan:
    """A span of a text, however it is written."""
    start, end, label, written = None, None, None, None
    if isinstance(value, list) and len(value) == 3:
        start, end, label = value
    elif isinstance(value, Mapping):
        start, end, label = (first_value(value, names) for names in (_START, _END, _LABEL))
        written = value.get("text")
    if isinstance(label, list) and len(label) == 1:
        (label,) = label
    start, end = whole_number(start), whole_number(end)
    if start is None or end is None or not isinstance(label, str) or not label.strip():
        raise InputError(f"expected a span (start, end, label), found {shown(value, 60)}.")
    return span_in(text, start, end, label.strip(), written if isinstance(written, str) else None)


def span_in(text: str, start: int, end: int, label: str, written: str | None) -> CharacterSpan:
    """A span without white space at its ends.

    Args:
        text: that it is in.
        start, end, label: of the span.
        written: what the file says stands there; None if it does not.

    Raises:
        InputError: the span is not in the text, or the text has something else there.
    """
    if written is not None and text[start:end] != written and not text.isascii() and start >= 0:
        units = text.encode("utf-16-le")
        before = units[: 2 * start].decode("utf-16-le", "replace")
        inside = units[2 * start : 2 * end].decode("utf-16-le", "replace")
        if inside == written:
            start, end = len(before), len(before) + len(inside)
    found = text[max(0, start) : max(0, end)]
    if not 0 <= start < end <= len(text) or not found.strip():
        raise InputError(f"the span {start} to {end} ({label}) holds no character of the text.")
    if written is not None and found.split() != written.split():
        raise InputError(
            f"the text has {found[:40]!r} at {start} to {end}, the span says {written[:40]!r}."
        )
    start += len(found) - len(found.lstrip())
    return CharacterSpan(start, start + len(found.strip()), label)


def read_brat(path: Path, text: str, lines: Iterable[tuple[int, str]]) -> SpanText:
    """A document of brat: a text, and the lines of its ``.ann`` file.

    Only entities (``T1``, tab, type and offsets, tab, text) are read. A discontinuous one is taken
    from its first to its last character.

    Raises:
        InputError: a line that begins with T is none, or not in the text.
    """
    spans = []
    for number, line in lines:
        if not line.startswith("T"):
            continue
        try:
            found = _BRAT.fullmatch(line)
            if found is None:
                raise InputError(f"expected ID, type, offsets and text, found {line[:60]!r}.")
            written = None if ";" in line.split("\t")[1] else found[4]
            spans.append(span_in(text, int(found[2]), int(found[3]), found[1], written))
        except InputError as error:
            error.place = error.place or Place(path, number)
            raise
    return SpanText(text, spans, 1, path=path)
