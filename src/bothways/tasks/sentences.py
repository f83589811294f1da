"""The sentences of a file with tags, with the scheme of their tags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bothways.errors import InputError, Place
from bothways.io.annotations.conll import ConllFormat, TaggedFile
from bothways.io.annotations.spans import SpanText
from bothways.io.annotations.tagged import read_tagged
from bothways.io.rows import Format
from bothways.tasks.labels import MISSING, check_spellings
from bothways.tasks.options import Scheme, TaggingOptions
from bothways.tasks.schemes import (
    OUTSIDE,
    allows,
    find_scheme,
    is_other_spelling,
    parse_tag,
    scheme_violations,
    standard_tag,
    tag_pairs,
    without_prefixes,
    write_tags,
)
from bothways.tasks.words import (
    Alignment,
    RunningText,
    WordSpan,
    join_words,
    spans_over_words,
    words_of_text,
)


@dataclass(frozen=True)
class Sentences:
    """The sentences of a file.

    Attributes:
        path: the file.
        words: of each sentence, at least one.
        lines: the line of each word, from 1.
        tags: of each word, those of entities in the letters of BIOES; None if the file was read
            without tags.
        unchecked_tags: the tag column of a file read without labels, as it is, to be written next
            to predictions; None if the file has no such column.
        documents: the number of each sentence's document, not decreasing.
        scheme: of the tags; None if there are none.
        separator: between columns.
        broken: how many tags break the scheme; they are read as by conlleval.
        format: of the file, one of :data:`bothways.io.annotations.tagged.NAMES`.
        texts: of each sentence, in files of running text; None in those that are cut into words.
        places: of each word in its text, in such files.
        notes: how the file was read, as sentences.
    """

    path: Path
    words: list[list[str]] = field(default_factory=list)
    lines: list[list[int]] = field(default_factory=list)
    tags: list[list[str]] | None = None
    unchecked_tags: list[list[str]] | None = None
    documents: list[int] = field(default_factory=list)
    scheme: Scheme | None = None
    separator: str = " "
    broken: int = 0
    format: str = "conll"
    texts: list[SpanText] | None = None
    places: list[list[WordSpan]] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @property
    def has_spaces(self) -> bool:
        """Whether words are white space, such as those between the characters of a text."""
        return any(word.isspace() for words in self.words for word in words)

    def running_texts(self, *, spaces: bool) -> list[RunningText]:
        """Each sentence as a text, and the places of its words: as the file has it, or the words
        joined by one space each (without ``spaces`` by nothing)."""
        if self.texts is None:
            return [join_words(words, " " * spaces) for words in self.words]
        return [(text.text, own) for text, own in zip(self.texts, self.places, strict=True)]

    def __len__(self) -> int:
        return len(self.words)

    @property
    def has_documents(self) -> bool:
        """Whether -DOCSTART- lines mark where documents begin."""
        return bool(self.documents) and self.documents[-1] > 0


def read_sentences(
    path: Path,
    options: TaggingOptions,
    *,
    labelled: bool,
    labels: Sequence[str] = (),
    form: Format | None = None,
) -> Sentences:
    """Read a file, and find or check the scheme of its tags.

    Args:
        path: in any format of :data:`bothways.io.annotations.tagged.NAMES`; plain or compressed
            text.
        options: columns, scheme, what to do with tags that break it.
        labelled: the tags are needed; if not, the file may lack their column.
        labels: the tags of the task, if they are known.
        form: how the file is written.

    Raises:
        InputError: what :func:`bothways.io.annotations.tagged.read_tagged` refuses, or a tag that
            breaks the scheme; file and line are named.
    """
    layout = ConllFormat(options.word, options.tag, options.comment)
    file = read_tagged(path, layout, labelled=labelled, names=tuple(labels), form=form)
    notes = tuple(f"{path.name}: {remark}" for remark in file.remarks)
    if file.texts:
        return _from_texts(path, file, options, notes, labels, labelled=labelled)
    sentences = Sentences(
        path,
        file.words,
        file.lines,
        tags=file.tags if labelled else None,
        unchecked_tags=None if labelled else file.tags,
        documents=file.documents,
        separator=file.separator,
        format=file.format,
        notes=notes,
    )
    if not labelled:
        return sentences
    places = _first_places(sentences)
    if not labels:
        _refuse_missing(places)
        _refuse_two_tags(places)
    sentences = _with_scheme(sentences, options, labels, places)
    if not labels and sentences.scheme != "none":
        _refuse_spellings(sentences)
    return sentences


def _from_texts(
    path: Path,
    file: TaggedFile,
    options: TaggingOptions,
    notes: tuple[str, ...],
    labels: Sequence[str],
    *,
    labelled: bool,
) -> Sentences:
    """Texts as sentences of words, each a document of its own; their spans as tags in IOB2."""
    places = [words_of_text(text.text, spaces=options.spaces) for text in file.texts]
    kept = [n for n, own in enumerate(places) if own]
    if len(kept) < len(places):
        notes += (f"{path.name}: {len(places) - len(kept):,} texts without words are left out",)
    if not kept:
        raise InputError("no text has a word.", place=Place(path))
    texts = [file.texts[n] for n in kept]
    places = [places[n] for n in kept]
    words = [[t.text[a:b] for a, b in own] for t, own in zip(texts, places, strict=True)]
    tags = None
    if all(text.spans is not None for text in texts):
        found = Alignment()
        entities = [
            spans_over_words(own, text.spans or (), found)
            for text, own in zip(texts, places, strict=True)
        ]
        tags = [write_tags(e, len(own), "iob2") for e, own in zip(entities, places, strict=True)]
        notes += tuple(f"{path.name}: {note}" for note in found.notes())
    sentences = Sentences(
        path,
        words,
        [[text.line] * len(own) for text, own in zip(texts, words, strict=True)],
        tags=tags if labelled else None,
        unchecked_tags=None if labelled else tags,
        documents=list(range(1, len(words) + 1)),
        scheme="iob2" if labelled else None,
        separator="\t",
        format=file.format,
        texts=texts,
        places=places,
        notes=notes,
    )
    if labelled and not labels:
        _refuse_spellings(sentences)
    return sentences


def _first_places(sentences: Sentences) -> dict[str, Place]:
    """The line that each tag of a file is first on."""
    places: dict[str, Place] = {}
    for tags, lines in zip(sentences.tags or (), sentences.lines, strict=True):
        if places.keys() >= {*tags}:
            continue
        for tag, line in zip(tags, lines, strict=True):
            places.setdefault(tag, Place(sentences.path, line))
    return places


def _refuse_spellings(sentences: Sentences) -> None:
    """Refuse types of entities that differ by an accident of their spelling.

    Raises:
        InputError: naming both.
    """
    types: dict[str, int] = {}
    for tag, place in _first_places(sentences).items():
        if tag != OUTSIDE:
            types.setdefault(parse_tag(tag)[1], place.row or 0)
    check_spellings(sentences.path, ((line, name) for name, line in types.items()))


def _with_scheme(
    sentences: Sentences,
    options: TaggingOptions,
    labels: Sequence[str],
    places: dict[str, Place],
) -> Sentences:
    """The same sentences with the scheme of their tags, and a count of the tags that break it."""
    assert sentences.tags is not None
    marks_entities = not labels or any(parse_tag(label)[0] != OUTSIDE for label in labels)
    if options.scheme == "auto" and marks_entities:
        counts = Counter(tag for tags in sentences.tags for tag in tags)
        if types := without_prefixes(counts):
            note = (
                f"{sentences.path.name}: its tags have no prefix, such as {types[0]!r} beside O; "
                f"every run of one is read as an entity (tagging_scheme none: tags of single "
                "words)"
            )
            sentences = replace(
                sentences,
                tags=[[t if t == OUTSIDE else f"I-{t}" for t in tags] for tags in sentences.tags],
                notes=(*sentences.notes, note),
            )
            places = {t if t == OUTSIDE else f"I-{t}": place for t, place in places.items()}
    assert sentences.tags is not None
    pairs = tag_pairs(sentences.tags)
    scheme: Scheme = find_scheme(pairs) if options.scheme == "auto" else options.scheme
    if scheme == "none" != options.scheme and not labels:
        _refuse_other_spelling(places)
    if scheme == "none":
        return replace(sentences, scheme=scheme)
    _refuse_unknown_prefixes(places)
    broken = 0
    if not all(allows(scheme, *pair) for pair in pairs):
        for tags, lines in zip(sentences.tags, sentences.lines, strict=True):
            breaking = scheme_violations(tags, scheme)
            broken += len(breaking)
            if breaking and options.broken == "refuse":
                word = breaking[0]
                before = f"after {tags[word - 1]!r}" if word else "at the start of a sentence"
                origin = (
                    "which most of the file uses" if options.scheme == "auto" else "as requested"
                )
                raise InputError(
                    f"the tag {tags[word]!r} {before} breaks the scheme {scheme.upper()}, {origin} "
                    "(tagging_scheme). Correct it, or set tagging_broken to repair, "
                    "which reads such tags as conlleval does.",
                    place=Place(sentences.path, lines[word]),
                )
    spelling = {tag: standard_tag(tag) for tag in places}
    standard = sentences.tags
    if any(tag != own for tag, own in spelling.items()):
        standard = [[spelling[tag] for tag in tags] for tags in standard]
    return replace(sentences, tags=standard, scheme=scheme, broken=broken)


def _refuse_other_spelling(places: dict[str, Place]) -> None:
    """Refuse tags that would be learned as labels of single words: numbers without names, and
    those of a scheme that is spelt otherwise."""
    example = max(places, key=lambda tag: (len(tag), tag))
    if all(map(str.isdecimal, places)):
        raise InputError(
            f"its tags are numbers, such as {example}; name them in their order with labels "
            "(if they mean no entities, set tagging_scheme to none).",
            place=places[example],
            option="labels",
        )
    if is_other_spelling(places):
        raise InputError(
            f"the tag {example!r} is that of a scheme in another spelling; write B-TYPE, I-TYPE "
            "and O (if tags mean no entities, set tagging_scheme to none).",
            place=places[example],
        )


_TWO_TAGS = re.compile(r"[|,;/+&\s](?:[BIESLUMW]-|O$)|[^\w.]\d?\.\d+\)?$")
"""Several tags of a word, or a score behind its tag."""
_NONE = MISSING - {"NA"}  # which may be a part of speech


def _refuse_missing(places: dict[str, Place]) -> None:
    """Refuse tags that say that there is none, as programs write it."""
    for tag in [tag for tag in places if tag in _NONE]:
        raise InputError(
            f"missing tag ({tag!r}); write O for a word of no entity.", place=places[tag]
        )


def _refuse_two_tags(places: dict[str, Place]) -> None:
    """Refuse tags that would be types of their own."""
    for tag, place in places.items():
        if _TWO_TAGS.search(tag):
            raise InputError(f"expected one tag per word, found {tag!r}.", place=place)


def _refuse_unknown_prefixes(places: dict[str, Place]) -> None:
    """Refuse tags that would count as outside of entities although they are not O."""
    for tag, place in places.items():
        if tag.endswith("-") and parse_tag(tag)[0] != OUTSIDE:
            raise InputError(f"the tag {tag!r} has no type behind its prefix.", place=place)
        if tag != OUTSIDE and parse_tag(tag)[0] == OUTSIDE:
            raise InputError(
                f"the tag {tag!r} has no prefix (B, I, E, S; or L, U, M, W) that says where its "
                "entity begins. Correct it, or set tagging_scheme to none if the tags are "
                "independent labels.",
                place=place,
            )
