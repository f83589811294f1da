"""The words of sentences as a tagger reads them: pieces, windows, and what stands around.

A word is read at its first piece (Devlin et al. 2019, 5.3). A sentence stands in the middle of a
window and its document fills both sides, as far as it goes; one that is longer than the window is
read in several, each word in the one that shows the most around it.

W words of a sentence, K of them read, P pieces, S sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

import numpy as np
from numpy.typing import NDArray

from bothways.errors import LengthError
from bothways.tasks.examples import Examples
from bothways.tasks.windows import best_window, cut_windows
from bothways.tokenization.tokenizer import Tokenizer

Numbers = NDArray[np.int64]
# Texts encoded at once: an encoding holds offsets too, many times the size of its ids.
_CHUNK = 2048


@dataclass(frozen=True)
class Pieces:
    """A sentence's pieces, and the words that are read.

    Attributes:
        ids: int32 [P].
        at: int64 [K], increasing; the first piece of each word that is read.
        words: int64 [K]; which words these are.
        ends: int64 [K]; the word after the last one that stands in the pieces from there on, up to
            the next word that is read.
    """

    ids: NDArray[np.int32]
    at: Numbers
    words: Numbers
    ends: Numbers


@dataclass(frozen=True)
class Reading:
    """Sentences as the model reads them.

    Attributes:
        sentences: their pieces.
        examples: an item for each window; a row for each word read, in order.
        unreadable: words that normalisation leaves nothing of, read as [UNK].
        joined: words that begin within the piece of another, and are not read.
        long: sentences that are read in several windows.
    """

    sentences: list[Pieces]
    examples: Examples
    unreadable: int
    joined: int
    long: int

    @cached_property
    def rows(self) -> Numbers:
        """int64 [S + 1]; sentence s has the rows ``rows[s]:rows[s + 1]``."""
        return np.cumsum([0, *(len(own.at) for own in self.sentences)], dtype=np.int64)


def read_words(
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    documents: Sequence[int] | None,
    *,
    length: int,
    spaces: bool = True,
) -> Reading:
    """Encode sentences that are cut into words.

    Args:
        tokenizer: the model's.
        sentences: the words of each, at least one.
        documents: the number of each sentence's document, from which both sides are filled; None
            where a sentence stands by itself.
        length: of a window in tokens, [CLS] and [SEP] included.
        spaces: words are apart; otherwise they stand side by side, and one that begins within the
            piece of another is not read.

    Raises:
        LengthError: no room for a piece.
        InputError: something that is no text.
    """
    if length < 3:
        raise LengthError(
            f"a length of {length} tokens leaves no room for text beside [CLS] and [SEP]; it must "
            "be at least 3."
        )
    pieces, unreadable = (_word_by_word if spaces else _side_by_side)(tokenizer, sentences)
    groups = range(len(sentences)) if documents is None else documents
    room, long = length - 2, 0
    tokens: list[NDArray[np.int32]] = []
    places: list[Numbers] = []
    owners: list[int] = []
    lengths: list[int] = []
    for _, group in groupby(range(len(sentences)), key=groups.__getitem__):
        own = [*group]
        document = np.concatenate([pieces[s].ids for s in own])
        bounds = np.cumsum([0, *(len(pieces[s].ids) for s in own)])
        for s, start in zip(own, bounds, strict=False):
            before = len(lengths)
            for first, end, at in _windows(pieces[s], int(start), len(document), room):
                places.append(at - first + 1)
                tokens.append(document[first:end])
                lengths.append(end - first + 2)
                owners.append(s)
            long += len(lengths) - before > 1
    return Reading(
        pieces,
        _examples(tokenizer, tokens, places, owners, lengths),
        unreadable=unreadable,
        joined=sum(len(w) for w in sentences) - sum(len(p.at) for p in pieces),
        long=long,
    )


def _windows(own: Pieces, start: int, total: int, room: int) -> Iterator[tuple[int, int, Numbers]]:
    """Windows of a document for a sentence: their first piece and the one after the last, and the
    pieces that are read in each, all counted in the document.

    Args:
        own: the sentence.
        start: its first piece in the document.
        total: pieces of the document.
        room: pieces of a window.
    """
    size = len(own.ids)
    if size <= room:
        left = min(start, max((room - size) // 2, room - size - (total - start - size)))
        yield start - left, min(start - left + room, total), own.at + start
        return
    windows = cut_windows(size, room, max(1, room // 2))
    chosen = best_window(windows, size)[own.at]
    assert (np.diff(chosen) >= 0).all(), "rows are in the order of words"
    for number, (first, end) in enumerate(windows):
        at = own.at[chosen == number]
        if len(at):
            yield start + first, start + end, at + start


def _examples(
    tokenizer: Tokenizer,
    tokens: list[NDArray[np.int32]],
    places: list[Numbers],
    owners: list[int],
    lengths: list[int],
) -> Examples:
    """[CLS] before and [SEP] behind each window; ``places`` are counted from its [CLS]."""
    bounds = np.cumsum([0, *lengths], dtype=np.int64)
    whole = np.zeros(bounds[-1], dtype=np.int32)
    for start, end, own in zip(bounds, bounds[1:], tokens, strict=False):
        whole[start], whole[end - 1] = tokenizer.cls_id, tokenizer.sep_id
        whole[start + 1 : end - 1] = own
    return Examples.of_sequences(
        whole,
        np.zeros(len(whole), dtype=np.int8),
        bounds,
        places=np.concatenate([at + b for at, b in zip(places, bounds, strict=False)]),
        owners=np.array(owners, dtype=np.int64),
    )


def _word_by_word(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]
) -> tuple[list[Pieces], int]:
    """Each word encoded by itself, which is what the tokenizer does with words between spaces."""
    unique = sorted({word for words in sentences for word in words})
    known = dict(zip(unique, tokenizer.encode_plain(unique), strict=True))
    found, unreadable = [], 0
    for words in sentences:
        ids = [known[word] or [tokenizer.unk_id] for word in words]
        unreadable += sum(not known[word] for word in words)
        at = np.array([0, *accumulate(map(len, ids))], dtype=np.int64)[:-1]
        numbers = np.arange(len(words))
        flat = np.fromiter((i for own in ids for i in own), np.int32)
        found.append(Pieces(flat, at, numbers, numbers + 1))
    return found, unreadable


def _side_by_side(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]
) -> tuple[list[Pieces], int]:
    """Sentences encoded as running text; the words of a piece are found by its offsets."""
    found, unreadable = [], 0
    for chunk in range(0, len(sentences), _CHUNK):
        part = sentences[chunk : chunk + _CHUNK]
        encodings = tokenizer.encode_batch(["".join(words) for words in part])
        for words, encoding in zip(part, encodings, strict=True):
            starts = np.array([0, *accumulate(map(len, words))])[:-1]
            ids = np.array(encoding.tokens[1:-1], dtype=np.int32)
            offsets = np.array(encoding.offsets[1:-1], dtype=np.int64).reshape(-1, 2)
            if not len(ids):  # nothing is left of the sentence, and it still needs a tag
                unreadable += 1
                ids, offsets = np.array([tokenizer.unk_id], np.int32), np.array([[0, 1]])
            first = np.searchsorted(starts, offsets[:, 0], side="right") - 1
            last = np.searchsorted(starts, offsets[:, 1] - 1, side="right") - 1
            numbers, at = np.unique(first, return_index=True)
            ends = np.maximum.reduceat(last, at) + 1
            found.append(Pieces(ids, at.astype(np.int64), numbers, np.maximum(ends, numbers + 1)))
    return found, unreadable
