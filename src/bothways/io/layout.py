"""How text lies on its lines: whether it is hard-wrapped; and wrapped lines joined again.

Books of Project Gutenberg, e-mail and text exported from PDF break paragraphs into lines that end
below one limit. What tells them from lines that are short by themselves (verse, titles, posts) is
that the next word would not have fitted. Everything is decided by the beginning of a file, so it
is the same however the file is cut and resumed.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Lines = Literal["auto", "keep", "join"]

SAMPLE = 2**18
"""Bytes of a file that are looked at."""
_NARROWEST, _WIDEST = 28, 200
_BREAKS = 20  # at least so many lines that end in the middle of a paragraph
_FULL = 0.75  # share of such lines after which the next word would not have fitted
_SLACK = 0.82  # of the width: lines wrapped by hand, or between words of a justified page
_ENDING = 0.35  # at most so many of them end like a sentence
_LOWER = 0.35  # of the lines after them, where letters have case, at least so many begin in lower
# The last lines of paragraphs end anywhere; if hardly one is less than half full, these are no
# paragraphs but lines of one length.
_LASTS, _SHORT, _SHORT_LASTS = 5, 0.4, 0.12
_HYPHENS = 5
_LINES = 200

_END = re.compile(r"[.!?…。！？।։؟:;][\"'”’»)\]]*\Z")
_ITEM = re.compile(r"(?:[-*•·–—]|\(?(?:\d{1,3}|[a-zA-Z])[.)])[ \t]")
_HYPHENATED = re.compile(r"([^\W\d_]{2,})[-\u2010\u00ad]\Z")
_TAIL = 1000  # characters at the end of a text that say how it goes on
# After these a hyphen stands for what is left out: pre- and post-war, Vor- und Nachteile.
_AFTER_A_HYPHEN = frozenset("and or to und oder bis et ou y o e od en of och eller og".split())
_DASH = re.compile(r"\w(?:--|[—])\Z")
_WORD = re.compile(r"[^\W\d_]+")
_NO_SPACES = re.compile("[\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uff60]")


@dataclass(frozen=True)
class Layout:
    """How the text of a file lies on its lines.

    Attributes:
        width: the limit below which lines end, in columns, East Asian characters having two; 0 if
            lines are not hard-wrapped.
        hyphens: whether words are broken at line ends.
        indented: whether the first lines of paragraphs, and only these, are indented.
        single: whether there is no blank line, so that the file is one document.
    """

    width: int = 0
    hyphens: bool = False
    indented: bool = False
    single: bool = False

    @property
    def wrapped(self) -> bool:
        """Whether lines are hard-wrapped."""
        return self.width > 0

    def joins(self, lines: Lines) -> bool:
        """Whether lines are joined, by an option."""
        return lines == "join" or (lines == "auto" and self.wrapped)

    def notes(self, lines: Lines, documents: str, *, records: bool = False) -> dict[str, str]:
        """What is to be said about it, as sentences, by what they are about.

        Args:
            lines: the option.
            documents: what separates documents: ``blank`` lines, ``line`` or ``file``.
            records: whether each text is a document, whatever separates others.
        """
        notes = {}
        are_joined = self.joins(lines)
        whole = documents == "blank" and not records
        if self.wrapped:
            what = "joined to paragraphs" if are_joined else "taken as paragraphs (see lines)"
            notes["wrapped"] = f"its lines are hard-wrapped at {self.width} characters and {what}"
            if whole:
                notes["wrapped"] += (
                    "; where a file is one document, and blank lines separate paragraphs, give "
                    "--documents file"
                )
        if self.single and whole and not are_joined:
            notes["single"] = "it has no blank line, so it is one document (see documents)"
        return notes


# Letters and signs, all but these, take a column each.
_NOT_ONE = re.compile("[^\x00-\u02ff\u0370-\u0482\u048a-\u0590\u1e00-\u20cf\u2100-\u22ff]")


def columns(text: str) -> int:
    """How wide a text is: East Asian characters take two columns, marks none."""
    others = _NOT_ONE.findall(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in others)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in others)


def look(lines: Sequence[str]) -> Layout:
    """The layout of a file, from its first lines.

    Args:
        lines: without line ends, but with the space before and after their text.
    """
    texts = [line.strip() for line in lines]
    full = sum(map(bool, texts))
    indented = _indents(lines)
    width = _width(lines, indented)
    return Layout(
        width,
        hyphens=width > 0 and _hyphenates(texts),
        indented=indented,
        single=not width and _LINES <= full == len(texts),
    )


def _indents(lines: Sequence[str]) -> bool:
    depths = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    first = sum(depth >= 2 for depth in depths)
    again = sum(a == b >= 2 for a, b in pairwise(depths))
    return first >= _BREAKS and again < 0.5 * first < 0.4 * len(depths)


def _width(lines: Sequence[str], indented: bool) -> int:
    """The limit below which lines end; 0 if they are not hard-wrapped."""
    widths = sorted(columns(line.rstrip()) for line in lines if line.strip())
    if not widths:
        return 0
    width = widths[min(int(0.97 * len(widths)), len(widths) - 1)]
    if _begin_alike(lines):
        return 0
    if not _NARROWEST <= width <= _WIDEST or widths[int(0.995 * (len(widths) - 1))] > 1.25 * width:
        return 0
    breaks = forced = ends = cased = lower = lasts = short = 0
    within = False  # a paragraph of several lines
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if not line.strip():
            within = False
        elif not following.strip() or _begins_anew(line, following, indented):
            lasts += within
            short += within and columns(line.strip()) < _SHORT * width
            within = False
        else:
            within = True
            breaks += 1
            if _is_full(line, following, width):
                forced += 1
                ends += _END.search(line.rstrip()) is not None
                first = following.lstrip(" \t\"'“‘«(")[:1]
                cased += first.lower() != first.upper()
                lower += first != first.upper()
    return (
        width
        if forced >= _BREAKS
        and forced >= _FULL * breaks
        and ends <= _ENDING * forced
        and (2 * cased < forced or lower >= _LOWER * cased)
        and (lasts < _LASTS or short >= _SHORT_LASTS * lasts)
        else 0
    )


def _begin_alike(lines: Sequence[str]) -> bool:
    """Whether most lines begin with the same characters, as dates and addresses do, or have tabs
    inside: each is what it is, however long."""
    texts = [text for line in lines if (text := line.strip())]
    begins = Counter(text[:3] for text in texts).most_common(1)
    tabs = sum("\t" in text for text in texts)
    return 2 * max(tabs, *(count for _, count in begins)) > len(texts)


def _is_full(line: str, following: str, width: int) -> bool:
    """Whether the next line's first word would not have fitted, or hardly."""
    first = following.split(maxsplit=1)[0] if following.strip() else ""
    if _NO_SPACES.match(first):  # may be broken anywhere
        first = first[0]
    return columns(line.rstrip()) + 1 + columns(first) > _SLACK * width


def _begins_anew(line: str, following: str, indented: bool) -> bool:
    """Whether a line begins a paragraph by itself: indented otherwise, or an item of a list."""
    text = following.lstrip()
    depth = len(following) - len(text)
    before, own = (
        len(one.expandtabs()) - len(one.expandtabs().lstrip()) for one in (line, following)
    )
    return (indented and depth >= 2) or own - before >= 2 or _ITEM.match(text) is not None


def _hyphenates(texts: Sequence[str]) -> bool:
    """Whether more words are broken at line ends than have a hyphen of their own there."""
    broken = whole = 0
    words = {word for text in texts for word in _WORD.findall(text.lower())}
    for text, following in pairwise(texts):
        found, rest = _hyphenated(text), _WORD.match(following)
        if found and rest and rest[0][0].islower():
            joined = (found[1] + rest[0]).lower() in words
            broken += joined
            whole += not joined
    return broken >= _HYPHENS and 2 * broken >= whole


def joined(lines: Iterable[str], layout: Layout) -> Iterator[str]:
    """The paragraphs of hard-wrapped lines.

    A line is joined to the next if that one's first word would not have fitted; so verse, headings
    and items of lists stay as they are.

    Args:
        lines: whole paragraphs; in order.
        layout: of the file. Lines that are not hard-wrapped are joined up to every blank line.

    Yields:
        Paragraphs, and an empty text for each blank line.
    """
    lines = [*lines]
    known = _known_words(lines) if layout.hyphens else frozenset[str]()
    parts: list[str] = []  # of a paragraph: lines, and what comes between them
    last = ""
    for line in lines:
        text = line.strip()
        if parts and not (text and _joins(last, line, layout)):
            yield "".join(parts)
            parts = []
        if not text:
            yield ""
        elif parts:
            parts[-1], between = _seam(parts[-1], text, layout, known)
            parts += [between, text]
        else:
            parts = [text]
        last = line
    if parts:
        yield "".join(parts)


def _joins(line: str, following: str, layout: Layout) -> bool:
    if _begins_anew(line, following, layout.indented):
        return False
    width = layout.width
    return (
        not width
        or _is_full(line, following, width)
        or (layout.hyphens and _hyphenated(line.rstrip()) is not None)
    )


def _hyphenated(text: str) -> re.Match[str] | None:
    """The part of a word, and the hyphen, that a text ends in."""
    return _HYPHENATED.search(text, max(0, len(text) - _TAIL))


def _seam(before: str, text: str, layout: Layout, known: frozenset[str]) -> tuple[str, str]:
    """A line as it stands before the next one, and what comes between them."""
    if before.endswith("\u00ad"):
        return before[:-1], ""
    found, rest = _hyphenated(before), _WORD.match(text)
    if found and rest and rest[0].lower() not in _AFTER_A_HYPHEN:
        left, right = found[1].lower(), rest[0].lower()
        is_broken = layout.hyphens and rest[0][0].islower() and f"{left}-{right}" not in known
        return before[:-1] if is_broken else before, ""
    is_dash = _DASH.search(before[-3:]) or (before[-1].isalnum() and text.startswith(("--", "—")))
    is_unspaced = _NO_SPACES.match(before[-1]) and _NO_SPACES.match(text)
    return before, "" if is_dash or (is_unspaced and not _hangul(text[0])) else " "


def _hangul(character: str) -> bool:
    return "\uac00" <= character <= "\ud7ff"


def _known_words(lines: Sequence[str]) -> frozenset[str]:
    """Words that a hyphen joins within lines."""
    found = re.findall(r"[^\W\d_]+-[^\W\d_]+", "\n".join(line.strip().lower() for line in lines))
    return frozenset(found)
