"""The words of running text, their pieces, and the tags that character spans give them.

Character spans of every format become tags here, and nowhere else.

W words of a sentence, K of them read, P pieces of a sentence.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import bounds
from bothways.io.annotations.spans import CharacterSpan
from bothways.tasks.schemes import EntitySpan
from bothways.tokenization.offsets import fit_to_characters
from bothways.tokenization.tokenizer import Tokenizer

WordSpan = tuple[int, int]
"""The first character of a word, and the one after its last."""
Indices = NDArray[np.int64]
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


@dataclass(frozen=True)
class WordPieces:
    """A sentence's pieces, and the words that are read at them.

    In text without spaces one piece may hold several words. Only the word that it begins in is
    read; a word that begins later in the piece is not.

    Attributes:
        ids: int32 [P].
        first_piece: int64 [K], increasing; the first piece of each word that is read.
        word: int64 [K]; the word's place in the sentence.
        word_end: int64 [K]; the place after the last word that the pieces reach into, from this
            word's first piece to before the next one's.
    """

    ids: NDArray[np.int32]
    first_piece: Indices
    word: Indices
    word_end: Indices

    def row_of_words(self, words: int) -> Indices:
        """For each of a sentence's W words the row, from 0, that decides its tag: its own, or that
        of the last word read before it (the first row if there is none)."""
        return np.maximum(np.searchsorted(self.word, np.arange(words), side="right") - 1, 0)


def locate_words(
    tokenizer: Tokenizer, sentences: Sequence[RunningText], *, spaces: bool
) -> tuple[list[WordPieces], int]:
    """Encode texts, and find their words by the character offsets of the pieces.

    Returns:
        The pieces of each text, and how many words are read as [UNK]: those of which normalisation
        leaves nothing, and the first of a text of which none is read.
    """
    texts = [text for text, _ in sentences]
    encodings = [(e.ids[e.parts[0]], e.offsets[e.parts[0]]) for e in tokenizer.encode_batch(texts)]
    ids = np.fromiter(chain.from_iterable(own for own, _ in encodings), np.int32)
    # Characters, pieces and words of all texts are counted as of one, with a line end between two.
    whole, begins = "\n".join(texts), bounds([len(text) + 1 for text in texts])[:-1]
    text_of = np.repeat(np.arange(len(texts)), [len(own) for own, _ in encodings])
    offsets = _pairs(own for _, own in encodings) + begins[text_of, None]
    word_bounds = bounds([len(words) for _, words in sentences])
    text_of_word = np.repeat(np.arange(len(texts)), np.diff(word_bounds))
    places = _pairs(words for _, words in sentences) + begins[text_of_word, None]

    first, last = _words_of_pieces(tokenizer, whole, ids, offsets, places)
    read = first <= last
    changes = np.zeros(len(places) + 1, dtype=np.int64)
    np.add.at(changes, first[read], 1)
    np.add.at(changes, last[read] + 1, -1)
    covered = changes.cumsum()[:-1] > 0
    unreadable = np.zeros_like(covered)
    if spaces:
        without = np.flatnonzero(~covered)
        words = [whole[start:end] for start, end in places[without].tolist()]
        unreadable[without] = [not own for own in tokenizer.encode_plain(words)]
    unread = ~np.logical_or.reduceat(covered | unreadable, word_bounds[:-1])
    unreadable[word_bounds[:-1][unread]] = True  # a text still needs a tag
    blank = np.flatnonzero(unreadable)
    at = np.searchsorted(first, blank, side="right")
    ids = np.insert(ids, at, tokenizer.blank_id)
    text_of = np.insert(text_of, at, text_of_word[blank])
    first, last = np.insert(first, at, blank), np.insert(last, at, blank)

    pieces = np.flatnonzero(first <= last)
    word, rows = np.unique(first[pieces], return_index=True)
    word_end = np.maximum.reduceat(last[pieces], rows) + 1
    word_end = np.minimum(word_end, np.append(word[1:], len(places)))
    piece_bounds = pairwise(np.searchsorted(text_of, np.arange(len(texts) + 1)))
    row_bounds = pairwise(np.searchsorted(word, word_bounds))
    encoded = [
        WordPieces(ids[a:b], pieces[rows[r:s]] - a, word[r:s] - w, word_end[r:s] - w)
        for (a, b), (r, s), w in zip(piece_bounds, row_bounds, word_bounds[:-1], strict=True)
    ]
    return encoded, len(blank)


def _words_of_pieces(
    tokenizer: Tokenizer,
    text: str,
    ids: NDArray[np.int32],
    offsets: Indices,
    places: Indices,
) -> tuple[Indices, Indices]:
    """The words that each piece's first and last character belong to; if to none, those after and
    before it, so that last < first.

    A piece of nothing but the space before a word belongs to the word, as where each word is
    encoded by itself.
    """
    starts, ends = offsets[:, 0].copy(), offsets[:, 1].copy()
    fit_to_characters(text, starts, ends)
    first = np.searchsorted(places[:, 1], starts, side="right")
    last = np.searchsorted(places[:, 0], ends - 1, side="right") - 1
    before = tokenizer.starts_word[ids] & (np.append(places[:, 0], -1)[first] == ends)
    last[before] = first[before]
    return first, last


def _pairs(spans: Iterable[Sequence[tuple[int, int]]]) -> Indices:
    """Starts and ends, int64 [N, 2]."""
    numbers = chain.from_iterable(chain.from_iterable(spans))
    return np.fromiter(numbers, np.int64).reshape(-1, 2)


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
