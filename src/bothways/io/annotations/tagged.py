"""Files with tags for words, whatever their format: the registry, and what a file is."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bothways.errors import InputError, Place
from bothways.io.annotations.annotators import (
    ANNOTATED_TWICE,
    FORMATS,
    TaggedWords,
    beside_spans,
    chosen_names,
    controls,
    is_accepted_as_empty,
    is_annotated_twice,
    is_of_one_span,
    read_brat,
    recognised,
    rejected_spans,
    text_alone,
    values_of_controls,
    word_keys,
)
from bothways.io.annotations.column_forms import TAG
from bothways.io.annotations.conll import (
    ConllFile,
    ConllFormat,
    read_conll,
)
from bothways.io.annotations.spans import CharacterSpan, SpanChecks, SpanText, checked_spans
from bothways.io.annotations.word_rows import (
    has_word_columns,
    have_words,
    read_word_rows,
    words_of_objects,
)
from bothways.io.broken import Broken
from bothways.io.frames import is_dataset, is_frame
from bothways.io.json_files import json_objects, json_text
from bothways.io.lines import as_json, listed
from bothways.io.terminal import counted
from bothways.io.text import COMPRESSED, beginning, read_texts, read_whole

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
TABLE, COLUMNS, BRAT = "csv", "conll", "brat"
NAMES = (COLUMNS, TABLE, BRAT, *FORMATS)
"""The formats of files with tags."""
_LOOKED_AT = 100  # items
_LABEL_STUDIO = re.compile(r'"type"\s*:\s*"(?:hypertext)?labels"')


@dataclass(frozen=True)
class TaggedFile:
    """A file with tags for its words, or spans of its texts.

    Attributes:
        format: one of :data:`NAMES`.
        sentences: of a file that is cut into words; None of one with texts.
        texts: of a file with texts.
        spans: of each text, within it; None if the file was read without them or has none.
        remarks: what was recognised or left out, as sentences.
    """

    format: str
    sentences: ConllFile | None = None
    texts: tuple[SpanText, ...] = ()
    spans: tuple[list[CharacterSpan], ...] | None = None
    remarks: tuple[str, ...] = ()


def format_of(path: Path) -> str:
    """The format of a file with tags, as far as its name and its first line tell; of JSON, the
    empty text."""
    names = [s.lower() for s in path.suffixes]
    if names and names[-1] in COMPRESSED:
        names.pop()
    suffix = names[-1] if names else ""
    if suffix in JSON_SUFFIXES or is_frame(path):
        return ""
    if suffix == ".ann" or brat_files(path):
        return BRAT
    if suffix == ".csv" or has_word_columns(path):
        return TABLE
    return COLUMNS


def brat_files(path: Path) -> list[Path]:
    """The ``.ann`` files of a folder, by their names, or the one that is named."""
    if path.is_dir():
        return sorted(one for one in path.glob("*.ann") if not one.name.startswith("._"))
    return [path] if path.suffix.lower() == ".ann" else []


def holds_examples(folder: Path) -> bool:
    """Whether a folder is a labelled file's equal: a data set, or documents of brat."""
    return is_dataset(folder) or bool(brat_files(folder))


def likely_kind(path: Path) -> str:
    """What a file that no row was read from seems to hold instead of rows: ``questions``, ``tags``
    of words, or neither, the empty text."""
    lines = beginning(path).split("\n")
    if re.search(r'"paragraphs"\s*:', head := "\n".join(lines)) and re.search(r'"qas"\s*:', head):
        return "questions"
    if _LABEL_STUDIO.search(head):
        return "tags"
    columns = {name.strip(' "\ufeff').lower() for name in re.split(r"[,;\t]", lines[0])}
    if {"question", "context"} <= columns:
        return "questions"
    try:
        if recognised([json.loads(line) for line in lines[:-1][:_LOOKED_AT] if line.strip()]):
            return "tags"
    except (ValueError, RecursionError):
        pass
    words = [line.split() for line in lines[:-1] if line.strip() and not line.startswith("#")]
    as_tags = [len(own) > 1 and TAG.fullmatch(own[-1]) is not None for own in words]
    return "tags" if len(as_tags) > 1 and sum(as_tags) > 0.9 * len(as_tags) else ""


def read_tagged(
    path: Path, layout: ConllFormat, *, labelled: bool, names: tuple[str, ...] = ()
) -> TaggedFile:
    """Read a file, in whatever format it is.

    Args:
        path: CoNLL columns, CoNLL-U, CSV with a word per row, brat's ``.ann`` (with the ``.txt`` of
            the same name beside it) or a folder of them, or JSON of any entry of
            :data:`bothways.io.annotations.annotators.FORMATS`.
        layout: of columns.
        labelled: tags or spans are needed.
        names: of tags, for JSON that has their numbers.

    Raises:
        InputError: it cannot be read, is of none of these formats, or lacks tags that are needed;
            file and line are named.
    """
    form = format_of(path)
    if path.is_dir() and not is_frame(path) and form != BRAT:
        raise InputError(
            "is a folder without brat's files (.ann, each with its .txt beside it); name a file.",
            place=Place(path),
        )
    if form in (COLUMNS, TABLE):
        read = read_conll if form == COLUMNS else read_word_rows
        found = read(path, layout, labelled=labelled)
        return _of_columns(form, found, found.remarks, names, path, labelled=labelled)
    if form == BRAT:
        beside: Counter[str] = Counter()
        texts = [_brat_document(one, beside) for one in brat_files(path)]
        own = "it is brat's" if path.is_file() else f"it is brat's, {len(texts):,} documents"
        remarks = [own, *_left_out_of_folder(path)]
        if beside:
            counted = (f"{count:,} {_OF_BRAT[kind]}" for kind, count in sorted(beside.items()))
            remarks.append(f"{', '.join(counted)} are not read")
        return _with_texts(form, texts, remarks, path, labelled=labelled)
    return _read_json(path, layout, labelled=labelled, names=names)


def _of_columns(
    form: str,
    file: ConllFile,
    remarks: Sequence[str],
    names: tuple[str, ...],
    path: Path,
    *,
    labelled: bool,
) -> TaggedFile:
    """A file of words in columns; what stands behind words without tags may be anything."""
    found, named = _named(file, names, path, labelled=True) if labelled else (file, [])
    return TaggedFile(form, found, remarks=(*remarks, *named))


def _left_out_of_folder(path: Path) -> list[str]:
    """Remarks on what a folder of brat has beside its annotated documents."""
    if path.is_file():
        return []
    alone = [t for t in path.glob("*.txt") if not t.with_suffix(".ann").is_file()]
    folders = [inner.name for inner in path.iterdir() if inner.is_dir() and brat_files(inner)]
    return [
        f"{len(left):,} {what}"
        for left, what in (
            (alone, "texts without an .ann file are left out"),
            (folders, f"folders in it are not read: {listed(sorted(folders))}"),
        )
        if left
    ]


_OF_BRAT = {
    "R": "relations",
    "*": "equivalences",
    "E": "events",
    "A": "attributes",
    "M": "attributes",
}


def _brat_document(path: Path, beside: Counter[str]) -> SpanText:
    """A document; counts what it has beside spans."""
    text = path.with_suffix(".txt")
    if not text.is_file():
        raise InputError(
            f"the text that it annotates is not beside it: {text.name} is missing.",
            place=Place(path),
        )
    lines = [*read_texts(path)] if path.stat().st_size else []
    beside.update(line[0] for _, line in lines if line[:1] in _OF_BRAT)
    return read_brat(path, read_whole(text, as_it_is=True), lines)


def _read_json(
    path: Path, layout: ConllFormat, *, labelled: bool, names: tuple[str, ...]
) -> TaggedFile:
    broken = Broken()
    items = list(json_objects(path, broken))
    if len(items) == 1 and isinstance(items[0][1], list):  # a list of pairs on one line
        number, inner = items[0]
        items = [(number, item) for item in inner] if _are_items(inner) else items
    if not items:
        raise InputError("has no examples.", place=Place(path))
    if have_words([item for _, item in items[:_LOOKED_AT]]):
        for number, item in items:
            if not isinstance(item, dict):
                raise _no_object(item, Place(path, number))
        rows = words_of_objects(path, items, layout, labelled=labelled)
        said = (*broken.remarks, *rows.remarks)
        return _of_columns(TABLE, rows, said, names, path, labelled=labelled)
    form = _form_of(items, path, labelled=labelled)
    found = [_record(form, item, path, number, labelled=labelled) for number, item in items]
    remarks = [*broken.remarks, f"it is {FORMATS[form].title}{_keys_of_words(form, items)}"]
    every = [item for _, item in items]
    remarks += _about_answers(every, found)
    if any(isinstance(record, SpanText) and record.spans for record in found):
        found = _accepted_as_empty(every, found, remarks)
    if labelled and form.startswith("label-studio"):
        _refuse_choices_alone(every, found, path)
    kept = [record for record in found if record is not None]
    if not kept:
        raise InputError(
            "has no examples that were annotated; predictions of a tool, and what the annotator "
            "rejected or skipped, are not read.",
            place=Place(path),
        )
    words = [record for record in kept if isinstance(record, TaggedWords)]
    if words:
        full = [record for record in words if record.words]
        if len(full) < len(words):
            remarks.append(f"{len(words) - len(full):,} examples without words are left out")
        if not full:
            raise InputError("no example has a word.", place=Place(path))
        sentences = _sentences(full, path, names, labelled=labelled)
        sentences, named = _named(sentences, names, path, labelled=labelled)
        return TaggedFile(form, sentences, remarks=(*remarks, *named))
    texts = [record for record in kept if isinstance(record, SpanText)]
    return _with_texts(form, texts, remarks, path, labelled=labelled)


def _refuse_choices_alone(
    items: Sequence[object], found: Sequence[SpanText | TaggedWords | None], path: Path
) -> None:
    """Refuse tasks of Label Studio in which no span is, and something was chosen for whole texts.

    Raises:
        InputError: naming the controls.
    """
    if any(isinstance(record, SpanText) and record.spans for record in found):
        return
    chosen: set[str] = set()
    for item in items:
        if isinstance(item, dict):
            chosen |= chosen_names(item) or {*values_of_controls(item)}
    if chosen:
        name = min(chosen)
        raise InputError(
            f"no task has a span; what was chosen, for whole texts, stands under "
            f"{listed(sorted(chosen))}: --kind classification --label {name}.",
            place=Place(path),
        )


def _form_of(items: Sequence[tuple[int, object]], path: Path, *, labelled: bool) -> str:
    """The name of the format that the items have.

    Raises:
        InputError: it is none.
    """
    form = recognised([item for _, item in items[:_LOOKED_AT]])
    if form is not None:
        return form
    if not labelled and all(isinstance(item, dict) for _, item in items):
        return "doccano"  # texts without spans are read in any of these forms
    line, first = items[0]
    keys = f"the keys {listed(list(first))}" if isinstance(first, dict) else repr(first)[:40]
    raise InputError(
        f"has {keys}, which no known format of tags has: "
        f"{', '.join(dict.fromkeys(f.title for f in FORMATS.values()))}. {_PLAIN}",
        place=Place(path, line),
    )


def _about_answers(
    items: Sequence[object], found: Sequence[SpanText | TaggedWords | None]
) -> list[str]:
    """What the annotators' answers mean, as sentences."""
    remarks = []
    if rejected := sum(record is None for record in found):
        remarks.append(
            f"{counted(rejected, 'example')} that the annotator rejected or skipped: left out"
        )
    if several := sum(map(is_annotated_twice, items)):
        remarks.append(f"{several:,} {ANNOTATED_TWICE}")
    if left_out := sum(map(rejected_spans, items)):
        remarks.append(f"{left_out:,} spans that the annotator rejected are left out")
    if len(together := sorted(set().union(*map(controls, items)))) > 1:
        remarks.append(f"spans of several controls ({listed(together)}) are read together")
    if beside := sorted(set().union(*map(beside_spans, items))):
        remarks.append(f"what stands under {listed(beside)} is not read")
    if single := sum(map(is_of_one_span, items)):
        remarks.append(
            f"{single:,} answers are about one span each (_is_binary), so other entities of their "
            "texts are read as O; merge the answers first, as Prodigy's data-to-spacy does"
        )
    return remarks


def _accepted_as_empty(
    items: Sequence[object], found: list[SpanText | TaggedWords | None], remarks: list[str]
) -> list[SpanText | TaggedWords | None]:
    """The records, those that were accepted without a mark with no spans; adds to the remarks."""
    empty = [*map(is_accepted_as_empty, items)]
    if any(empty):
        remarks.append(f"{sum(empty):,} accepted examples have no spans, so no entities")
    return [
        replace(record, spans=[]) if own and isinstance(record, SpanText) else record
        for record, own in zip(found, empty, strict=True)
    ]


_PLAIN = (
    'Write texts as {"text": ..., "spans": [{"start": 0, "end": 4, "label": "PER"}]}, or words as '
    '{"tokens": [...], "tags": [...]}, one object per line.'
)


def _keys_of_words(form: str, items: Sequence[tuple[int, object]]) -> str:
    """Which keys are read, if a list is as long as that of the tags; empty if there is none."""
    keys = next((found for _, item in items if (found := word_keys(item))), None)
    if form != "words" or keys is None or not keys[2]:
        return ""
    return f", with words in {keys[0]!r} and tags in {keys[1]!r}, not in {listed(keys[2])}"


def _record(
    form: str, item: object, path: Path, number: int, *, labelled: bool
) -> SpanText | TaggedWords | None:
    """What an item has; None if it was rejected or skipped, as some tools write by null."""
    if item is None:
        return None
    try:
        if not isinstance(item, dict) and not (form == "spacy" and isinstance(item, list)):
            raise _no_object(item, Place(path, number))
        record = FORMATS[form].read(item, number)
        return text_alone(item, number) if record is None and not labelled else record
    except InputError as error:
        error.place = error.place or Place(path, number)
        raise


def _no_object(item: object, place: Place) -> InputError:
    return InputError(f"{as_json(item)} is no object, as others of this file are.", place=place)


def _are_items(values: list[object]) -> bool:
    return bool(values) and all(isinstance(value, dict | list) for value in values)


def _with_texts(
    form: str, texts: list[SpanText], remarks: list[str], path: Path, *, labelled: bool
) -> TaggedFile:
    for text in texts:
        try:
            json_text(text.text, "text")
            if labelled and text.spans is None:
                raise InputError(
                    "the text has no list of spans; leave out texts that nobody annotated, or give "
                    "an empty list to those without entities."
                )
        except InputError as error:
            error.place = error.place or Place(text.path or path, text.line)
            raise
    remarks = [*remarks, *_odd_labels(texts, path)]
    kept = [text for text in texts if text.text.strip()]
    if len(kept) < len(texts):
        remarks.append(f"{len(texts) - len(kept):,} empty texts are left out")
    if not kept:
        raise InputError("every text is empty.", place=Place(path))
    if any(text.spans is None for text in kept):
        return TaggedFile(form, None, tuple(kept), None, tuple(remarks))
    checks = SpanChecks()
    spans = tuple(checked_spans(text, path, checks) for text in kept)
    remarks += checks.remarks
    if differing := _annotated_otherwise(kept, spans):
        remarks.append(
            f"{differing:,} texts occur again with other spans (of several annotators?); each is "
            "an example of its own"
        )
    return TaggedFile(form, None, tuple(kept), spans, tuple(remarks))


def _odd_labels(texts: Sequence[SpanText], path: Path) -> list[str]:
    """Refuse labels of spans that are tags of words; a remark on those that are numbers."""
    first: dict[str, SpanText] = {}
    for text in texts:
        for span in text.spans or ():
            first.setdefault(span.label, text)
    if "O" in first:
        raise InputError(
            "a span has the label O, which says that there is no entity; remove such spans.",
            place=Place(first["O"].path or path, first["O"].line),
        )
    if first and all(map(TAG.fullmatch, first)):
        label, text = next(iter(first.items()))
        raise InputError(
            f"the label of a span is {label!r}, a tag of a word; give one span to each entity, "
            "with its type alone (transformers' pipeline does so with "
            "aggregation_strategy='simple').",
            place=Place(text.path or path, text.line),
        )
    if first and all(map(str.isdigit, first)):
        return [
            f"its labels are numbers, such as {next(iter(first))}, whose names the file does not "
            "have; the tool's own list of labels has them"
        ]
    return []


def _annotated_otherwise(
    texts: Sequence[SpanText], spans: Sequence[Sequence[CharacterSpan]]
) -> int:
    """How many texts occur again with other spans."""
    seen: dict[str, set[frozenset[tuple[int, int, str]]]] = {}
    for text, own in zip(texts, spans, strict=True):
        found = frozenset((span.start, span.end, span.label) for span in own)
        seen.setdefault(text.text, set()).add(found)
    return sum(len(found) > 1 for found in seen.values())


def _sentences(
    records: list[TaggedWords], path: Path, names: tuple[str, ...], *, labelled: bool
) -> ConllFile:
    words, lines, tags = [], [], []
    for record in records:
        own = record.tags
        try:
            if own is None and labelled:
                raise InputError(f"the words have no tags. {_PLAIN}")
            for word in record.words:
                json_text(word, "tokens")
                if not word:
                    raise InputError("a word is empty.")
            tags.append([_tag(tag, names, labelled=labelled) for tag in own or []])
        except InputError as error:
            error.place = error.place or Place(path, record.line)
            raise
        words.append(record.words)
        lines.append([record.line] * len(record.words))
    has_tags = all(record.tags is not None for record in records)
    return ConllFile(words, lines, tags if has_tags else None, [0] * len(words), "\t")


def _tag(tag: str | int, names: tuple[str, ...], *, labelled: bool) -> str:
    """A tag as text, a number too: :func:`_named` has the names."""
    if isinstance(tag, str):
        return tag.strip()
    if labelled and not names:
        raise _no_name(str(tag), names)
    return str(tag)


_NUMBER = re.compile(r"-?[0-9]+(?:\.0+)?")


def _named(
    file: ConllFile, names: tuple[str, ...], path: Path, *, labelled: bool
) -> tuple[ConllFile, list[str]]:
    """The sentences with the names of tags that are written as their numbers, and a remark on it.

    Raises:
        InputError: a number that has no name, if tags are needed.
    """
    if file.tags is None or not names or any(map(_NUMBER.fullmatch, names)):
        return file, []
    if not all(_NUMBER.fullmatch(tag) for tags in file.tags for tag in tags):
        return file, []
    by_number = {tag: int(float(tag)) for tags in file.tags for tag in tags}
    known = {tag: names[n] for tag, n in by_number.items() if 0 <= n < len(names)}
    for tags, lines in zip(file.tags, file.lines, strict=True):
        for tag, line in zip(tags, lines, strict=True):
            if labelled and tag not in known:
                raise _no_name(tag, names, Place(path, line))
    if not known:
        return file, []
    tag = max(known, key=by_number.__getitem__)
    remark = f"its tags are numbers, read as the names of the task's labels: {tag} is {known[tag]}"
    return replace(file, tags=[[known.get(t, t) for t in tags] for tags in file.tags]), [remark]


def _no_name(tag: str, names: tuple[str, ...], place: Place | None = None) -> InputError:
    if tag.startswith("-"):
        return InputError(
            f"the tag is the number {tag}, and tags count from 0; -100 is what training leaves "
            "out in data that were cut into pieces already: take the words and tags from before.",
            place=place,
        )
    known = f"task.labels has {len(names)} names" if names else "the file does not name them"
    return InputError(
        f"the tag is the number {tag}, and {known}; name all tags in the order of their numbers: "
        "--task.labels O B-PER I-PER ...",
        place=place,
    )
