"""Annotations as tools export them in JSON: character spans, tagged words, labels of texts.

:data:`FORMATS` has one entry for each form; what an object is is recognised by its keys. The
shapes are those that the tools document:

doccano            ``{"text", "label": [[start, end, label]]}``, or with relations ``{"text",
                   "entities": [{"start_offset", "end_offset", "label"}]}``
label-studio       tasks: ``{"data": {"text"}, "annotations": [{"result": [{"value": {"start",
                   "end", "labels"}}]}]}``, and its short form, JSON_MIN
prodigy            ``{"text", "spans": [{"start", "end", "label"}], "answer"}``
spacy              ``[text, {"entities": [[start, end, label]]}]``, or ``{"text", "entities"}``
dataturks          ``{"content", "annotation": [{"label": [...], "points": [{"start", "end",
                   "text"}]}]}``, whose ends are within
cluener            ``{"text", "label": {"name": {"Mary": [[0, 3]]}}}``, whose ends are within
words              ``{"tokens": [...], "ner_tags": [...]}``, as on the Hub

Ends are exclusive, and count Unicode characters. Tools that run in a browser may count UTF-16 code
units, two for an emoji, and others line ends as one or two characters; where that alone agrees with
the texts that a file repeats, or with the ends of words, it is read so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place
from bothways.io.annotations.spans import CharacterSpan, SpanText, differs
from bothways.io.annotations.written_spans import (
    WrittenText,
    write_doccano,
    write_label_studio,
    write_prodigy,
    write_spacy,
)
from bothways.io.lines import as_json, listed

Item = Any
"""A JSON value: what a file has for one text."""


@dataclass(frozen=True)
class TaggedWords:
    """A sentence cut into words.

    Attributes:
        words: none in an example that is left out.
        tags: of each; numbers are the places of tags in a list that the file lacks; None if there
            are none.
        line: of the file, from 1.
    """

    words: list[str]
    tags: list[str | int] | None
    line: int


@dataclass(frozen=True)
class AnnotatorFormat:
    """A form of annotations.

    Attributes:
        title: in messages.
        recognise: whether an item has this form.
        read: an item's text and spans, or words and tags, given its line; None if the annotator
            rejected or skipped it.
        write: the content of a file with predictions; None if it cannot be written.
        suffix: of the files that are written.
    """

    title: str
    recognise: Callable[[Item], bool]
    read: Callable[[Item, int], SpanText | TaggedWords | None]
    write: Callable[[Sequence[WrittenText]], str] | None = None
    suffix: str = ".jsonl"


# ---------------------------------------------------------------------------------- reading spans

_START = ("start", "start_offset", "begin", "startOffset", "start_char")
_END = ("end", "end_offset", "stop", "endOffset", "end_char")
_OF_TOKENS = ("token_start", "token_end")  # Prodigy's; the last token is within the span
_LABEL = (
    *("label", "labels", "tag", "type", "entity", "entity_group", "hypertextlabels"),
    *("displayName", "entityLabel"),
)
_TEXT = ("text", "data", "content", "sentence", "document", "textContent")
_ID = ("id", "doc_id", "uid", "_id")
_SPANS = (
    *("spans", "entities", "label", "labels", "ents", "annotations", "annotation"),
    "textSegmentAnnotations",  # of Vertex AI
)
_WORDS = ("tokens", "words", "token", "word")
_TAGS = (
    *("ner_tags", "ner_labels", "bio_tags", "tags", "ner", "labels", "label", "pos_tags", "pos"),
    *("ner_tag", "upos"),
)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _place(value: Any) -> int | None:
    """A whole number, also as tables hold it (``12.0``, ``"12"``); None if it is none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return value if _whole(value) else None


def _is_triple(value: Any) -> bool:
    return _triple(value) is not None


def _is_label(value: Any) -> bool:
    """Whether a label stands there: a name, or a list of names."""
    names = value if isinstance(value, list) and value else [value]
    return all(isinstance(name, str) for name in names)


def _triple(value: Any) -> tuple[Any, Any, Any, str | None] | None:
    """Start, end, label and text of a list: those three in this order, or the label first, or the
    text and the label; None if it is none of these."""
    kinds = [
        "n" if _place(one) is not None else "s" if isinstance(one, str) else "?"
        for one in (value if isinstance(value, list) and len(value) in (3, 4) else ())
    ]
    if len(kinds) > 2 and "".join(kinds[:2]) == "nn" and _is_label(value[2]):
        return value[0], value[1], value[2], None
    if "".join(kinds[:3]) == "snn":
        return value[1], value[2], value[0], None
    return (value[2], value[3], value[1], value[0]) if "".join(kinds) == "ssnn" else None


def _is_span(value: Any) -> bool:
    if isinstance(value, dict):
        of_text = any(k in value for k in _START) and any(k in value for k in _END)
        return of_text or all(name in value for name in _OF_TOKENS)
    return _is_triple(value)


def _first(item: dict[str, Any], names: Sequence[str], kinds: type | tuple[type, ...]) -> Any:
    """The first of these keys' values that has one of these types, or None."""
    return next((item[n] for n in names if isinstance(item.get(n), kinds)), None)


def _spans_key(item: dict[str, Any]) -> str | None:
    """The key of a text's spans: a list of them, or the only one that could be, if it is empty."""
    lists = [name for name in _SPANS if isinstance(item.get(name), list)]
    full = [name for name in lists if item[name]]
    known = [name for name in full if all(map(_is_span, item[name]))]
    return known[0] if known else (lists[0] if lists and not full else None)


def _span(value: Any) -> CharacterSpan:
    """One span, however it is written.

    Raises:
        InputError: it has no whole numbers as start and end, or no label.
    """
    start: Any
    end: Any
    label: Any
    text: Any
    if triple := _triple(value):
        start, end, label, text = triple
    elif isinstance(value, list) and len(value) in (3, 4):
        start, end, label = value[:3]
        text = None
    elif isinstance(value, dict):
        start, end, label = (
            next((value[n] for n in names if value.get(n) is not None), None)
            for names in (_START, _END, _LABEL)
        )
        text = value.get("text")
    else:
        start = end = label = text = None
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    if isinstance(label, list) and len(label) > 1:
        raise InputError(
            f"the span {as_json(value, 60)} has {len(label)} labels; a word has one tag. Keep "
            "one of them."
        )
    if _whole(label):
        label = str(label)
    start, end = _place(start), _place(end)
    if start is None or end is None or not (isinstance(label, str) and label.strip()):
        raise InputError(
            f"{as_json(value, 60)} is no span; it needs a first character, the character after "
            "the last (whole numbers), and a label."
        )
    return CharacterSpan(start, end, label.strip(), text if isinstance(text, str) else None)


def _text_of(item: dict[str, Any]) -> str:
    text = _first(item, _TEXT, str)
    if text is None:
        raise InputError(
            f"has no text ({', '.join(_TEXT[:3])}); its keys are {listed(list(item))}."
        )
    return str(text)


def _id_of(item: dict[str, Any]) -> str | int | None:
    found = _first(item, _ID, (str, int))
    return None if isinstance(found, bool) else found


def _has_spans(item: Item) -> bool:
    """Whether an object is a text with spans, even with none of them."""
    return (
        isinstance(item, dict)
        and _first(item, _TEXT, str) is not None
        and _spans_key(item) is not None
    )


def _read_spans(item: Item, line: int) -> SpanText | None:
    if _is_skipped(item):
        return None
    key = _spans_key(item) or next((n for n in _SPANS if isinstance(item.get(n), list)), None)
    groups = item["spans"] if isinstance(item.get("spans"), dict) else {}
    full = [name for name, own in groups.items() if own]
    if full and (key is None or not item[key]):
        raise InputError(
            f"has no spans but those in the groups {listed(full)} of 'spans'; write one of them as "
            "the list 'spans'."
        )
    spans = None if key is None else _spans_under(key, item)
    places = {(span.start, span.end, span.label) for span in spans or ()}
    for other in _SPANS:
        values = item.get(other)
        if other == key or not (isinstance(values, list) and values and all(map(_is_span, values))):
            continue
        others = _spans_under(other, item)
        if {(span.start, span.end, span.label) for span in others} != places:
            raise InputError(
                f"has spans under {key!r}, and others under {other!r}; keep one of the keys."
            )
    return SpanText(_text_of(item), spans, line, _id_of(item))


def _spans_under(key: str, item: dict[str, Any]) -> list[CharacterSpan]:
    """The spans under a key, but those that the annotator rejected."""
    own = [value for value in item[key] if not _is_rejected(value)]
    return [_span(_with_characters(value, item)) for value in own]


def _with_characters(value: Any, item: dict[str, Any]) -> Any:
    """A span that counts tokens alone, with the characters that the item's tokens have; any other
    as it is."""
    if not isinstance(value, dict) or any(name in value for name in _START):
        return value
    first, last = (_place(value.get(name)) for name in _OF_TOKENS)
    tokens = item.get("tokens")
    if first is None or last is None or not isinstance(tokens, list):
        return value
    if not all(
        isinstance(t, dict) and _whole(t.get("start")) and _whole(t.get("end")) for t in tokens
    ):
        return value
    if not 0 <= first <= last < len(tokens):
        raise InputError(
            f"the span of the tokens {first} to {last} is not within the text, which has "
            f"{len(tokens)}; tokens count from 0, the last is within."
        )
    return {**value, "start": tokens[first]["start"], "end": tokens[last]["end"]}


def _is_skipped(item: dict[str, Any]) -> bool:
    """Whether the annotator rejected or skipped an example, in Prodigy or in Argilla."""
    answers = [value for name, value in item.items() if name.endswith(".responses.status")]
    if any(isinstance(own, list) and own and set(own) == {"discarded"} for own in answers):
        return True  # Argilla 2
    argilla = "annotation" in item and isinstance(item.get("status"), str)
    if argilla and (item["annotation"] is None or item["status"].lower() == "discarded"):
        return True
    return bool(item.get("answer", "accept") != "accept")


def _is_rejected(span: Any) -> bool:
    return isinstance(span, dict) and span.get("answer") in ("reject", "ignore")


def rejected_spans(item: Item) -> int:
    """How many of a text's spans the annotator rejected one by one."""
    key = _spans_key(item) if isinstance(item, dict) and not _is_skipped(item) else None
    return 0 if key is None else sum(map(_is_rejected, item[key]))


def is_accepted_as_empty(item: Any) -> bool:
    """Whether Prodigy's annotator accepted a text and marked nothing, for which it has no key."""
    return (
        isinstance(item, dict)
        and item.get("answer") == "accept"
        and _is_prodigy(item)
        and not any(name in item for name in (*_SPANS, "accept"))
    )


def is_of_one_span(item: Any) -> bool:
    """Whether an answer of Prodigy is about one span, and says nothing of the other words."""
    return isinstance(item, dict) and item.get("_is_binary") is True


def _is_prodigy(item: Item) -> bool:
    if not (isinstance(item, dict) and isinstance(item.get("text"), str)):
        return False
    marks = ("answer", "_input_hash", "_task_hash", "_view_id")
    spans = item.get("spans")
    return any(name in item for name in marks) or (
        isinstance(spans, list) and bool(spans) and all(map(_is_span, spans))
    )


def _is_spacy(item: Item) -> bool:
    if isinstance(item, list):
        return (
            len(item) == 2
            and isinstance(item[0], str)
            and isinstance(item[1], dict | list)
            and (isinstance(item[1], list) or "entities" in item[1])
        )
    return (
        isinstance(item, dict)
        and isinstance(item.get("text"), str)
        and isinstance(item.get("entities"), list)
        and all(map(_is_triple, item["entities"]))
    )


def _read_spacy(item: Item, line: int) -> SpanText | None:
    if isinstance(item, dict):
        return _read_spans(item, line)
    if not _is_spacy(item):
        raise InputError(f"{as_json(item)} is not [text, {{'entities': [[start, end, label]]}}].")
    text, about = item
    values = about if isinstance(about, list) else about["entities"]
    if not isinstance(values, list):
        raise InputError(
            f"entities are {as_json(values)}; a list of [start, end, label] is needed."
        )
    return SpanText(text, [_span(value) for value in values], line)


_LABEL_STUDIO = ("annotations", "completions", "predictions", "drafts")


def _is_label_studio(item: Item) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(item.get("data"), dict)
        and (any(isinstance(item.get(name), list) for name in _LABEL_STUDIO) or _is_new(item))
    )


def _is_new(item: dict[str, Any]) -> bool:
    """Whether a task is as it is imported, before anybody has annotated it."""
    return item.keys() <= {"id", "data", "meta"}


def label_studio_results(item: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The results of one annotation of a task: of those that were not skipped, the one that is
    marked as the truth, or else the first. None if there is none."""
    for annotation in _label_studio_annotations(item):
        return [r for r in annotation.get("result") or [] if isinstance(r, dict)]
    return None


def _label_studio_annotations(item: dict[str, Any]) -> list[dict[str, Any]]:
    key = "annotations" if isinstance(item.get("annotations"), list) else "completions"
    own = [a for a in item.get(key) or [] if isinstance(a, dict) and not a.get("was_cancelled")]
    return sorted(own, key=lambda annotation: annotation.get("ground_truth") is not True)


def is_annotated_twice(item: Any) -> bool:
    """Whether several people annotated a task of Label Studio, of whom one is read."""
    return _is_label_studio(item) and len(_label_studio_annotations(item)) > 1


ANNOTATED_TWICE = (
    "examples have several annotations, of which the first is read, or that marked as the truth"
)


def _label_studio_text(data: dict[str, Any], owner: str, spans: Sequence[CharacterSpan]) -> str:
    """The text that was annotated: of several in the data, one that has what the spans say."""
    texts = {name: value for name, value in data.items() if isinstance(value, str)}
    if not texts:
        raise InputError(f"the task has no text; its data have {listed(list(data))}.")
    if any(span.text is not None for span in spans):
        fitting = {n: t for n, t in texts.items() if not any(differs(t, s) for s in spans)}
        texts = fitting or texts
    names = [name for name in (owner, "text") if name in texts]
    return texts[names[0]] if names else max(texts.values(), key=len)


_LABELS = ("labels", "hypertextlabels")


def _label_studio_spans(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of a task that are spans with a label, or should have one."""
    return [
        result
        for result in results
        if isinstance(result.get("value"), dict)
        and (result.get("type") in _LABELS or any(name in result["value"] for name in _LABELS))
    ]


def controls(item: Any) -> set[str]:
    """The controls that the spans of an example of Label Studio were marked with."""
    if _is_label_studio(item):
        spans = _label_studio_spans(label_studio_results(item) or [])
        return {str(result.get("from_name")) for result in spans}
    return set(_min_keys(item)) if isinstance(item, dict) else set()


def _read_label_studio(item: Item, line: int) -> SpanText | None:
    results = label_studio_results(item)
    if results is None:
        return None
    for result in results:
        kind = str(result.get("type"))
        if kind.endswith("labels") and kind not in _LABELS:
            raise InputError(
                f"the task has regions of the kind {kind!r}, which are no spans of a text (of an "
                "image, a sound or a dialogue?); export the tasks of texts alone."
            )
    results = _label_studio_spans(results)
    owners = [*dict.fromkeys(str(result.get("to_name")) for result in results)]
    if len(owners) > 1:
        raise InputError(
            f"the task has spans in several texts ({listed(owners)}), and an example is one text; "
            "export a task for each."
        )
    spans = []
    for result in results:
        value = result["value"]
        offsets = value.get("globalOffsets")
        spans.append(_span({**value, **(offsets if isinstance(offsets, dict) else {})}))
    data = item["data"] if isinstance(item.get("data"), dict) else {}
    text = _label_studio_text(data, owners[0] if owners else "", spans)
    return SpanText(text, spans, line, _id_of(item))


def _min_keys(item: dict[str, Any]) -> list[str]:
    """The keys of spans in Label Studio's short form, one for each control."""
    return [
        name
        for name, value in item.items()
        if isinstance(value, list)
        and value
        and all(isinstance(v, dict) for v in value)
        and all(_is_span(v) and any(name in v for name in _LABELS) for v in value)
    ]


def _is_label_studio_min(item: Item) -> bool:
    if not isinstance(item, dict):
        return False
    return bool(_min_keys(item)) or "annotation_id" in item


def _read_label_studio_min(item: Item, line: int) -> SpanText | None:
    texts = {n: v for n, v in item.items() if n not in ("created_at", "updated_at", "lead_time")}
    spans = [_span(value) for name in _min_keys(item) for value in item[name]]
    return SpanText(_label_studio_text(texts, "", spans), spans, line, _id_of(item))


def _word_keys(item: Item) -> tuple[str, str | None] | None:
    """The keys of words and tags."""
    if not isinstance(item, dict):
        return None
    words = next((n for n in _WORDS if _is_words(item.get(n))), None)
    if words is None:
        return None
    of_words = [
        n
        for n in _TAGS
        if isinstance(item.get(n), list)
        and len(item[n]) == len(item[words])
        and all(isinstance(v, str) or _tag_number(v) is not None for v in item[n])
    ]
    return words, of_words[0] if of_words else None


def word_keys(item: Item) -> tuple[str, str, list[str]] | None:
    """The keys of words and of tags, and those of other lists that could be tags as well."""
    keys = _word_keys(item)
    if keys is None or keys[1] is None:
        return None
    size = len(item[keys[0]])
    others = [
        name
        for name, value in item.items()
        if name not in keys
        and isinstance(value, list)
        and len(value) == size
        and all(isinstance(v, str) or _tag_number(v) is not None for v in value)
    ]
    return keys[0], keys[1], others


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)


def _tag_number(value: Any) -> int | None:
    return None if isinstance(value, str) else _place(value)


def _has_words(item: Item) -> bool:
    """Whether an object has a list of words, even without any, or with some that are none."""
    if not isinstance(item, dict):
        return False
    lists = [item[name] for name in _WORDS if isinstance(item.get(name), list)]
    without = _first(item, _TEXT, str) is None
    if not without and (key := _spans_key(item)) and item[key] and not any(map(item.get, _TAGS)):
        return False
    return any(any(isinstance(w, str) for w in own) or (not own and without) for own in lists)


def _read_words(item: Item, line: int) -> TaggedWords:
    keys = _word_keys(item)
    if keys is None and _has_words(item) and not any(item.get(name) for name in _WORDS):
        return TaggedWords([], [], line)
    if keys is None:
        words = next((n for n in _WORDS if n in item), None) if isinstance(item, dict) else None
        what = f"{words!r} is {as_json(item[words])}" if words else "no list of words"
        raise InputError(
            f"{what}; {listed(_WORDS)} holds a list of texts, with as many tags in "
            f"{listed(_TAGS[:3])}."
        )
    words, tags = keys
    other = next((n for n in _TAGS if isinstance(item.get(n), list)), None)
    if tags is None and other is not None and other != words:
        wrong = [t for t in item[other] if not isinstance(t, str) and _tag_number(t) is None]
        among = f", among them {as_json(wrong[0])}" if wrong else ""
        raise InputError(
            f"has {len(item[words])} words in {words!r} and {len(item[other])} tags in {other!r}"
            f"{among}; each word needs one, a text or a whole number (O outside of entities)."
        )
    if tags is None:
        return TaggedWords(item[words], None, line)
    own = [tag if isinstance(tag, str) else int(tag) for tag in item[tags]]
    return TaggedWords(item[words], own, line)


def _is_ubiai(item: Item) -> bool:
    values = item.get("tokens") if isinstance(item, dict) else None
    return (
        isinstance(values, list)
        and _first(item, _TEXT, str) is not None
        and bool(values)
        and all(isinstance(value, dict) and "entityLabel" in value for value in values)
    )


def _read_ubiai(item: Item, line: int) -> SpanText | None:
    spans = [_span(value) for value in item.get("tokens") or []]
    return SpanText(_text_of(item), spans, line, _id_of(item))


def _is_dataturks(item: Item) -> bool:
    values = item.get("annotation") if isinstance(item, dict) else None
    return (
        isinstance(values, list)
        and bool(values)
        and all(isinstance(v, dict) and isinstance(v.get("points"), list) for v in values)
        and all(v["points"] for v in values)
    )


def _read_dataturks(item: Item, line: int) -> SpanText | None:
    text, spans = _text_of(item), []
    for value in item.get("annotation") or []:
        for point in value["points"] if isinstance(value, dict) else ():
            span = _span({"label": value.get("label"), **point})
            spans.append(replace(span, end=span.end + 1))  # the last character is within
    return SpanText(text, spans, line, _id_of(item))


def _is_cluener(item: Item) -> bool:
    groups = item.get("label") if isinstance(item, dict) else None
    return (
        isinstance(groups, dict)
        and bool(groups)
        and all(isinstance(own, dict) for own in groups.values())
        and all(_are_pairs(places) for own in groups.values() for places in own.values())
    )


def _are_pairs(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(_whole, pair)) for pair in values
    )


def _read_cluener(item: Item, line: int) -> SpanText | None:
    if not (_is_cluener(item) or (isinstance(item, dict) and item.get("label") == {})):
        return _read_spans(item, line)
    spans = [
        CharacterSpan(start, end + 1, label, said)  # the last character is within
        for label, own in item["label"].items()
        for said, places in own.items()
        for start, end in places
    ]
    return SpanText(_text_of(item), spans, line, _id_of(item))


FORMATS: dict[str, AnnotatorFormat] = {
    "label-studio": AnnotatorFormat(
        "Label Studio's JSON", _is_label_studio, _read_label_studio, write_label_studio, ".json"
    ),
    "label-studio-min": AnnotatorFormat(
        "Label Studio's JSON_MIN", _is_label_studio_min, _read_label_studio_min
    ),
    "cluener": AnnotatorFormat(
        "spans by type and text, as CLUENER has them", _is_cluener, _read_cluener
    ),
    "ubiai": AnnotatorFormat("UBIAI's JSON", _is_ubiai, _read_ubiai),
    "dataturks": AnnotatorFormat("Dataturks' JSON lines", _is_dataturks, _read_dataturks),
    "words": AnnotatorFormat("words and tags in JSON", _has_words, _read_words),
    "spacy": AnnotatorFormat(
        "character spans as spaCy has them", _is_spacy, _read_spacy, write_spacy, ".json"
    ),
    "prodigy": AnnotatorFormat("Prodigy's JSON lines", _is_prodigy, _read_spans, write_prodigy),
    "doccano": AnnotatorFormat(
        "character spans as doccano has them", _has_spans, _read_spans, write_doccano
    ),
}
"""In the order in which they are tried: the more particular first."""


def recognised(items: Sequence[Item]) -> str | None:
    """The name of the format that most of some items have; None if most have none."""
    counts = {name: sum(map(form.recognise, items)) for name, form in FORMATS.items()}
    # An item without a span tells least, so the form that the most have wins, the first of equals.
    name = max(counts, key=counts.__getitem__, default="")
    return name if name and 2 * counts[name] >= len(items) > 0 else None


def _given(results: list[dict[str, Any]]) -> dict[str, Any]:
    """What results of Label Studio say of the whole text, by the name of the control."""
    given: dict[str, Any] = {}
    for result in results:
        value, name = result.get("value"), result.get("from_name")
        if not (isinstance(value, dict) and isinstance(name, str)) or "start" in value:
            continue  # of a region of the text
        if isinstance(value.get("choices"), list):
            given[name] = [*given.get(name, []), *value["choices"]]
        if result.get("type") == "textarea" and isinstance(value.get("text"), list):
            given[name] = [*given.get(name, []), *value["text"]]
        for kind in ("rating", "number"):
            given |= {name: value[kind]} if kind in value else {}
    return given


def chosen_names(item: dict[str, Any]) -> set[str] | None:
    """The controls by which the annotator of a task of Label Studio said something of the whole
    text; None of other objects."""
    return {*_given(label_studio_results(item) or [])} if _is_label_studio(item) else None


_OF_MIN = ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time")


def values_of_controls(item: dict[str, Any]) -> list[str]:
    """The keys of Label Studio's short form that may be controls of its labels: those that its
    version writes behind the task's own, with a text."""
    if "annotation_id" not in item:
        return []
    texts = (*_TEXT, *_OF_MIN)
    return [name for name, own in item.items() if name not in texts and isinstance(own, str | dict)]


def said_by(item: Item) -> set[str]:
    """The names of the controls by which the annotator of a task of Label Studio said anything, of
    whole texts or of spans; empty of other objects."""
    if _is_label_studio(item):
        results = label_studio_results(item) or []
        said = {str(one["from_name"]) for one in results if "from_name" in one}
        return said | {"relations" for one in results if one.get("type") == "relation"}
    if isinstance(item, dict) and "id" in item and "annotation_id" in item:  # its short form
        names = [*item]
        # It writes what the task holds, the id, then the controls, then who annotated and when.
        behind = names[names.index("id") + 1 :]
        own = takewhile(lambda name: name not in _OF_MIN, behind)
        return {name for name in own if item[name] not in (None, "", [])}
    return set()


_BESIDE_SPANS = ("relations", "links", "cats", "events")


def beside_spans(item: Item) -> set[str]:
    """What an object of any tool has besides spans or tags, which is not read with them."""
    if not isinstance(item, dict):
        return set()
    return (said_by(item) - controls(item)) | {name for name in _BESIDE_SPANS if item.get(name)}


def kind_of_control(item: dict[str, Any], name: str) -> str:
    """What a control of a task of Label Studio is by which the annotator said something; empty if
    nothing was said, or it is no such task."""
    results = (label_studio_results(item) or []) if _is_label_studio(item) else []
    return next((str(one.get("type")) for one in results if one.get("from_name") == name), "")


def plain_row(item: dict[str, Any], *, labelled: bool = True) -> dict[str, Any] | None:
    """The columns of an object that a tool exported with labels of whole texts.

    Of a task of Label Studio: its data, and what was chosen (or the number that was given) for the
    whole text under the name of each control. Of other objects: themselves.

    Args:
        item: the object.
        labelled: labels are needed; if not, what nobody annotated has its columns, too.

    Returns:
        None if the annotator rejected or skipped it.
    """
    if _is_label_studio(item):
        results = label_studio_results(item)
        if results is None and labelled:
            return None
        return {"id": item.get("id"), **item["data"], **_given(results or [])}
    if "annotation_id" in item:  # its short form
        return {
            name: value["choices"] if isinstance(value, dict) and [*value] == ["choices"] else value
            for name, value in item.items()
        }
    of_argilla = "annotation" in item or any(name.endswith(".responses.status") for name in item)
    if labelled and (_is_prodigy(item) or of_argilla) and _is_skipped(item):
        return None
    if "label" not in item and isinstance(item.get("accept"), list) and _is_prodigy(item):
        return {**item, "label": item["accept"]}
    return item


def text_alone(item: Item, line: int) -> SpanText:
    """The text of an example that nobody annotated, or that was rejected."""
    if _is_label_studio(item):
        return SpanText(_label_studio_text(item["data"], "", ()), None, line, _id_of(item))
    return SpanText(_text_of(item), None, line, _id_of(item))


# -------------------------------------------------------------------------------------------- brat


def read_brat(path: Path, text: str, annotations: Sequence[tuple[int, str]]) -> SpanText:
    """A document of brat: a text, and the lines of its ``.ann`` file.

    Only text-bound annotations (``T1``, tab, type and offsets, tab, text) are read; relations,
    events, attributes and notes tag no words.

    Raises:
        InputError: a line that begins with T and is none.
    """
    spans = []
    for number, line in annotations:
        if not line.startswith("T"):
            continue
        fields = line.split("\t")
        label, _, offsets = fields[1].strip().partition(" ") if len(fields) > 1 else ("", "", "")
        pieces = [piece.split() for piece in offsets.split(";")]
        if not label or any(len(p) != 2 or not all(n.isdigit() for n in p) for p in pieces):
            raise InputError(
                f"{line[:60]!r} is no annotation of a text; it must be T1, a tab, a type with the "
                "first character and the one after the last, a tab, and the text.",
                place=Place(path, number),
            )
        start, end = int(pieces[0][0]), int(pieces[-1][1])
        said = fields[2] if len(fields) > 2 else None
        spans.append(CharacterSpan(start, end, label, said, len(pieces)))
    return SpanText(text, spans, 1, path=path)
