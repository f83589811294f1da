"""The words of running text, and the tags that character spans give them.

Character spans of every format become tags here, and nowhere else.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from bothways.io.annotations.spans import CharacterSpan
from bothways.tasks.schemes import EntitySpan
from bothways.tokenization.tokenizer import Tokenizer

WordSpan = tuple[int, int]
"""The first character of a word, and the one after its last."""
RunningText = tuple[str, list[WordSpan]]
"""A text, and the places of its words."""

# Kinds of characters: a letter, w other in a word, p punctuation, . period, m combining mark,
# i ideograph, s white space, n nothing. A mark belongs to the character before it.
_MARKS = "(?:[mn]*m)?"
_WORD = re.compile(f"(?:i|[awm](?:[^si]*[aw])?|[p.]){_MARKS}")
_PERIOD = re.compile(rf"\.{_MARKS}")
# Ideographs, as the tokenizers of BERT set them off.
_IDEOGRAPHS = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")


def split_words(tokenizer: Tokenizer, text: str) -> list[WordSpan]:
    """Words of running text, cut as in the CoNLL files that taggers are trained on.

    Words end at white space. Punctuation before and after a word is cut off, each mark a word of
    its own; inside a word it stays (O'Neil, well-known), and so does a period after letters with
    another period among them (U.S.), and after an initial (J. Smith). Ideographs are words of their
    own, as in the tokenizer.

    Args:
        tokenizer: its normalisation decides what is an ideograph, and what is nothing at all.
        text: any text.

    Returns:
        The first character of each word and the one after its last. They are in order, and leave
        out only white space and characters of which normalisation leaves nothing.

    Raises:
        InputError: it is not a text.
    """
    if not tokenizer.normalize(text).strip():
        return []
    spans = _cut(text, lambda character: _normalized_kind(tokenizer, character))
    ids = tokenizer.encode_plain([text[start:end] for start, end in spans])
    return [span for span, pieces in zip(spans, ids, strict=True) if pieces]


def words_of_text(text: str, *, spaces: bool = True) -> list[WordSpan]:
    """:func:`split_words` for a text that is read before there is a tokenizer.

    Args:
        text: any text.
        spaces: words are separated by spaces; if not, each character but white space is one.
    """
    if not spaces:
        return [(n, n + 1) for n, character in enumerate(text) if not character.isspace()]
    return _cut(text, _plain_kind)


def join_words(words: Sequence[str], space: str) -> RunningText:
    """Words as a text, and their places in it.

    Args:
        words: in order.
        space: between two words.
    """
    starts = accumulate((len(word) + len(space) for word in words), initial=0)
    places = [(start, start + len(word)) for start, word in zip(starts, words, strict=False)]
    return space.join(words), places


def _cut(text: str, kind: Callable[[str], str]) -> list[WordSpan]:
    kind_of = {character: kind(character) for character in set(text)}
    kinds = "".join(map(kind_of.__getitem__, text))
    spans, end = [], 0
    while match := _WORD.search(kinds, end):
        start, end = match.span()
        letters = kinds[start:end].rstrip("mn")
        abbreviation = letters.endswith("a") and "." in letters
        initial = letters == "a" and text[start].isupper()
        if (abbreviation or initial) and (period := _PERIOD.match(kinds, end)):
            # At its end, a period is that of the text.
            end = end if initial and not text[period.end() :].strip() else period.end()
        spans.append((start, end))
    return spans


def _normalized_kind(tokenizer: Tokenizer, character: str) -> str:
    """The kind of a character, as a letter of the pattern of a word."""
    if character.isspace() or character == "." or unicodedata.category(character)[0] == "M":
        return _plain_kind(character)
    normalized = tokenizer.normalize(character)
    if not normalized.strip():
        return "n"
    if normalized[0] == " ":  # the normaliser sets off ideographs with spaces
        return "i"
    return _visible_kind(character)


def _plain_kind(character: str) -> str:
    if character.isspace():
        return "s"
    if character == ".":
        return "."
    category = unicodedata.category(character)
    if category[0] == "M":
        return "m"
    if category[0] == "C":
        return "n"
    return "i" if _IDEOGRAPHS.match(character) else _visible_kind(character)


def _visible_kind(character: str) -> str:
    if unicodedata.category(character)[0] == "P" or character in string.punctuation:
        return "p"
    return "a" if character.isalpha() else "w"


@dataclass
class Alignment:
    """How the spans of a file fit its words.

    Attributes:
        spans: all that were given.
        cut: spans that begin or end inside a word, which is then taken as a whole.
        begun: those of them that begin inside one.
        short: those of them that end one character before the word does.
        overlapping: spans that share a word with a longer one (or an earlier one as long), and are
            left out.
        lost: spans that hold no word, and are left out.
    """

    spans: int = 0
    cut: int = 0
    begun: int = 0
    short: int = 0
    overlapping: int = 0
    lost: int = 0

    def notes(self) -> list[str]:
        """As sentences."""
        of = f"of {self.spans:,} spans"
        cut = "begin or end inside a word; the whole word is taken"
        if 2 * self.begun > self.spans:  # words have endings, but no beginnings of their own
            cut += " (most begin there: do the offsets count from 1, or bytes?)"
        elif 2 * self.short > self.spans:
            cut += " (most lack its last character: is it within the span? An end is the next one)"
        return [
            f"{count:,} {of} {what}"
            for count, what in (
                (self.cut, cut),
                (self.overlapping, "share a word with a longer one and are left out"),
                (self.lost, "hold no word and are left out"),
            )
            if count
        ]


def spans_over_words(
    words: Sequence[WordSpan], spans: Sequence[CharacterSpan], found: Alignment
) -> list[EntitySpan]:
    """Character spans of a text as entities over its words, in order, without overlaps.

    Args:
        words: in order.
        spans: within the text, in any order.
        found: what does not fit is counted here.
    """
    found.spans += len(spans)
    taken: dict[int, EntitySpan] = {}
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        inside = [n for n, (a, b) in enumerate(words) if a < span.end and span.start < b]
        if not inside:
            found.lost += 1
        elif any(n in taken for n in inside):
            found.overlapping += 1
        else:
            first, last = inside[0], inside[-1]
            found.begun += words[first][0] < span.start
            found.short += words[last][1] == span.end + 1
            found.cut += words[first][0] < span.start or words[last][1] > span.end
            entity = EntitySpan(span.label, first, last + 1)
            taken.update(dict.fromkeys(inside, entity))
    return sorted(set(taken.values()), key=lambda entity: entity.start)
