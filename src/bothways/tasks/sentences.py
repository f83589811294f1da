"""The sentences of a CoNLL file, with the scheme of their tags."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from bothways.errors import InputError
from bothways.io.conll import ConllFormat, read_conll
from bothways.tasks.options import Scheme, TaggingOptions
from bothways.tasks.schemes import OUTSIDE, find_scheme, parse_tag, scheme_violations, standard_tag


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

    def __len__(self) -> int:
        return len(self.words)

    @property
    def has_documents(self) -> bool:
        """Whether -DOCSTART- lines mark where documents begin."""
        return bool(self.documents) and self.documents[-1] > 0


def read_sentences(path: Path, options: TaggingOptions, *, labelled: bool) -> Sentences:
    """Read a file, and find or check the scheme of its tags.

    Args:
        path: plain or compressed text.
        options: columns, scheme, what to do with tags that break it.
        labelled: the tags are needed; if not, the file may lack their column.

    Raises:
        InputError: what :func:`bothways.io.conll.read_conll` refuses, or a tag that breaks the
            scheme; file and line are named.
    """
    layout = ConllFormat(options.word, options.tag, options.comment)
    file = read_conll(path, layout, labelled=labelled)
    sentences = Sentences(
        path,
        file.words,
        file.lines,
        tags=file.tags if labelled else None,
        unchecked_tags=None if labelled else file.tags,
        documents=file.documents,
        separator=file.separator,
    )
    return _with_scheme(sentences, options) if labelled else sentences


def _with_scheme(sentences: Sentences, options: TaggingOptions) -> Sentences:
    """The same sentences with the scheme of their tags, and a count of the tags that break it."""
    assert sentences.tags is not None
    scheme: Scheme = find_scheme(sentences.tags) if options.scheme == "auto" else options.scheme
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
                path=sentences.path,
                line=lines[word],
            )
    standard = [[standard_tag(tag) for tag in tags] for tags in sentences.tags]
    return replace(sentences, tags=standard, scheme=scheme, broken=broken)


def _refuse_unknown_prefixes(sentences: Sentences) -> None:
    """Refuse tags that would count as outside of entities although they are not O."""
    assert sentences.tags is not None
    for tags, lines in zip(sentences.tags, sentences.lines, strict=True):
        for tag, line in zip(tags, lines, strict=True):
            if tag != OUTSIDE and parse_tag(tag)[0] == OUTSIDE:
                raise InputError(
                    f"the tag {tag!r} has no prefix that says where its entity begins; the known "
                    "ones are B, I, E and S, and L, U and M for E, S and I. Correct it, or set "
                    "task.tagging.scheme to none if the tags are independent labels.",
                    path=sentences.path,
                    line=line,
                )
