"""The sentences of a file with tags, with the scheme of their tags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bothways.errors import InputError, Place
from bothways.io.annotations.column_forms import TAG
from bothways.io.annotations.conll import ConllFormat
from bothways.io.annotations.spans import SpanText
from bothways.io.annotations.tagged import COLUMNS, TaggedFile, read_tagged
from bothways.tasks.labels import MISSING, check_spellings
from bothways.tasks.options import Scheme, TaggingOptions
from bothways.tasks.schemes import (
    OUTSIDE,
    find_scheme,
    parse_tag,
    scheme_violations,
    standard_spelling,
    standard_tag,
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
    path: Path, options: TaggingOptions, *, labelled: bool, labels: Sequence[str] = ()
) -> Sentences:
    """Read a file, and find or check the scheme of its tags.

    Args:
        path: in any format of :data:`bothways.io.annotations.tagged.NAMES`; plain or compressed
            text.
        options: columns, scheme, what to do with tags that break it.
        labelled: the tags are needed; if not, the file may lack their column.
        labels: the tags of the task, if they are known.

    Raises:
        InputError: what :func:`bothways.io.annotations.tagged.read_tagged` refuses, or a tag that
            breaks the scheme; file and line are named.
    """
    layout = ConllFormat(options.word, options.tag, options.comment)
    file = read_tagged(path, layout, labelled=labelled, names=tuple(labels))
    notes = tuple(f"{path.name}: {remark}" for remark in file.remarks)
    if file.sentences is None:
        return _from_texts(path, file, options, notes, labels, labelled=labelled)
    found = file.sentences
    sentences = Sentences(
        path,
        found.words,
        found.lines,
        tags=found.tags if labelled else None,
        unchecked_tags=None if labelled else found.tags,
        documents=found.documents,
        separator=found.separator,
        format=file.format,
        notes=notes,
    )
    if not labelled:
        return _with_words_noted(sentences, labels)
    if not labels:
        _refuse_missing(sentences)
    sentences = _with_scheme(sentences, options, labels)
    if not labels:
        _refuse_spellings(sentences)
    return sentences


def _with_words_noted(sentences: Sentences, labels: Sequence[str]) -> Sentences:
    """The same with a note if what stands behind the words are no tags: sentences in lines, all
    with as many words, look so."""
    found = {tag for tags in sentences.unchecked_tags or () for tag in tags}
    if sentences.format != COLUMNS or not found:
        return sentences
    if any(tag in labels or tag == "_" or TAG.fullmatch(tag) for tag in found):
        return sentences
    note = (
        f"{sentences.path.name}: its words are read from one column, such as "
        f"{sentences.words[0][0]!r}, and behind them stand no tags known here, but such as "
        f"{min(found)!r} (if each line is a sentence: bothways predict MODEL < FILE)"
    )
    return replace(sentences, notes=(*sentences.notes, note))


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
    if file.spans is not None:
        found = Alignment()
        entities = [
            spans_over_words(own, file.spans[n], found) for n, own in zip(kept, places, strict=True)
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


def _refuse_spellings(sentences: Sentences) -> None:
    """Refuse types of entities that differ by an accident of their spelling.

    Raises:
        InputError: naming both.
    """
    if sentences.tags is None or sentences.scheme == "none":
        return
    types: dict[str, int] = {}
    for tags, lines in zip(sentences.tags, sentences.lines, strict=True):
        for tag, line in zip(tags, lines, strict=True):
            if tag != OUTSIDE:
                types.setdefault(parse_tag(tag)[1], line)
    check_spellings(sentences.path, ((line, name) for name, line in types.items()))


def _with_scheme(sentences: Sentences, options: TaggingOptions, labels: Sequence[str]) -> Sentences:
    """The same sentences with the scheme of their tags, and a count of the tags that break it."""
    assert sentences.tags is not None
    known_as_entities = not labels or any(parse_tag(label)[0] != OUTSIDE for label in labels)
    if options.scheme != "none" and not labels:
        _refuse_wrapped(sentences)
    if options.scheme != "none" and known_as_entities:
        counts = Counter(tag for tags in sentences.tags for tag in tags)
        # A scheme that is named is one with letters.
        spelling, note = standard_spelling(counts, without_letters=options.scheme == "auto")
        if spelling:
            respelt = [[spelling[tag] for tag in tags] for tags in sentences.tags]
            notes = (*sentences.notes, f"{sentences.path.name}: {note}")
            sentences = replace(sentences, tags=respelt, notes=notes)
    assert sentences.tags is not None
    scheme: Scheme = find_scheme(sentences.tags) if options.scheme == "auto" else options.scheme
    if scheme == "none" != options.scheme and not labels:
        _refuse_numbers(sentences)
    if scheme == "none":
        return replace(sentences, scheme=scheme)
    _refuse_unknown_prefixes(sentences)
    broken = 0
    for tags, lines in zip(sentences.tags, sentences.lines, strict=True):
        breaking = scheme_violations(tags, scheme)
        broken += len(breaking)
        if breaking and options.broken == "refuse":
            word = breaking[0]
            before = f"after {tags[word - 1]!r}" if word else "at the start of a sentence"
            origin = "which most of the file uses" if options.scheme == "auto" else "as requested"
            raise InputError(
                f"the tag {tags[word]!r} {before} breaks the scheme {scheme.upper()}, {origin} "
                "(task.tagging.scheme). Correct it, name the scheme, or set task.tagging.broken to "
                "repair, which reads such tags as conlleval does.",
                place=Place(sentences.path, lines[word]),
            )
    standard = [[standard_tag(tag) for tag in tags] for tags in sentences.tags]
    return replace(sentences, tags=standard, scheme=scheme, broken=broken)


def _refuse_numbers(sentences: Sentences) -> None:
    """Refuse tags all of which are whole numbers, whose names the file does not have."""
    assert sentences.tags is not None
    found = {tag for tags in sentences.tags for tag in tags}
    if all(map(str.isdecimal, found)):
        raise InputError(
            f"its tags are numbers, such as {max(found)}, whose names it does not have; name all "
            "tags in the order of their numbers: --task.labels O B-PER I-PER ... (if they mean no "
            "entities: --task.tagging.scheme none).",
            place=Place(sentences.path, sentences.lines[0][0]),
        )


_PLAIN = r"O|[BIESLUMW][-_][^]\s:\"'\[]+"
_WRAPPED = {  # where a program writes more than the tag: how such tags are, and sed's rule
    "quotation marks": (re.compile(f'"({_PLAIN})"'), r"s/\"([BIESLUMW][-_][^\" \t]+|O)\"/\1/g"),
    "apostrophes": (re.compile(f"'({_PLAIN})'"), r"s/\x27([BIESLUMW][-_][^\x27 \t]+|O)\x27/\1/g"),
    "brackets": (re.compile(rf"\[({_PLAIN})\]"), r"s/\[([BIESLUMW][-_][^] \t]+|O)\]/\1/g"),
    "angle brackets": (re.compile(rf"<({_PLAIN})>"), r"s/<([BIESLUMW][-_][^> \t]+|O)>/\1/g"),
    "a comma": (re.compile(rf"({_PLAIN}),"), r"s/,([ \t]*)$/\1/"),
    "a score": (
        re.compile(rf"({_PLAIN}):\d?\.\d+(?:[Ee]-?\d+)?"),
        r"s/([ \t]([BIESLUMW][-_][^ \t:]+|O)):[0-9]?\.[0-9]+([Ee]-?[0-9]+)?/\1/g",
    ),
}


def _refuse_wrapped(sentences: Sentences) -> None:
    """Refuse tags in quotation marks or brackets, or with their scores."""
    assert sentences.tags is not None
    found = {tag for tags in sentences.tags for tag in tags if tag != OUTSIDE}
    for what, (pattern, rule) in _WRAPPED.items():
        plain = [(tag, match[1]) for tag in sorted(found) if (match := pattern.fullmatch(tag))]
        if plain and len(plain) == len(found) and plain[0][1] != OUTSIDE:
            first, meant = plain[0]
            tags_and_lines = zip(sentences.tags, sentences.lines, strict=True)
            line = next(lines[tags.index(first)] for tags, lines in tags_and_lines if first in tags)
            command = f": sed -E '{rule}' OLD > NEW" if sentences.format == COLUMNS else ""
            raise InputError(
                f"the tag {first} has {what} around or behind it. Write {meant}, and the others "
                f"like it{command} (if they mean no entities: --task.tagging.scheme none).",
                place=Place(sentences.path, line),
            )


_TWO_TAGS = re.compile("[|,;/+&][BIESLUMW]-")
_A_COMMENT = " (Is it a comment? task.tagging.comment names how such lines begin.)"


_NONE = MISSING - {"NA"}  # which may be a part of speech


def _refuse_missing(sentences: Sentences) -> None:
    """Refuse tags that say that there is none, as programs write it."""
    of_sentences = zip(sentences.tags or (), sentences.lines, strict=True)
    for tag, line in (one for own in of_sentences for one in zip(*own, strict=True)):
        if tag in _NONE:
            raise InputError(
                f"the tag {tag!r} is how programs write a missing value; write the tag, O for a "
                "word of no entity.",
                place=Place(sentences.path, line),
            )


def _refuse_unknown_prefixes(sentences: Sentences) -> None:
    """Refuse tags that would count as outside of entities although they are not O."""
    assert sentences.tags is not None
    of_sentences = zip(sentences.tags, sentences.lines, sentences.words, strict=True)
    for tag, line, word in (one for own in of_sentences for one in zip(*own, strict=True)):
        if _TWO_TAGS.search(tag):
            raise InputError(
                f"the tag {tag!r} is two, and a word has one. Keep one of them.",
                place=Place(sentences.path, line),
            )
        if tag.endswith("-") and parse_tag(tag)[0] != OUTSIDE:
            raise InputError(
                f"the tag {tag!r} has no type behind its prefix. Correct it.",
                place=Place(sentences.path, line),
            )
        if tag != OUTSIDE and parse_tag(tag)[0] == OUTSIDE:
            comment = _A_COMMENT if word.startswith("#") else ""
            raise InputError(
                f"the tag {tag!r} has no prefix that says where its entity begins; the known "
                "ones are B, I, E and S, and L, U and M for E, S and I. Correct it, or set "
                f"task.tagging.scheme to none if the tags are independent labels.{comment}",
                place=Place(sentences.path, line),
            )
