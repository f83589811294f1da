"""Sentences cut into words, encoded for a tagger: pieces, windows and surrounding context.

A word is read at its first piece (Devlin et al. 2019, 5.3). A window holds a sentence in its middle
and fills both sides with the sentence's document as far as it reaches. A sentence longer than the
window is read in several, each word in the one with the most context around it.

S sentences, W words of a sentence, K of them read, P pieces of a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import bounds
from bothways.tasks.examples import CHUNK, Examples, SequenceBuilder, check_room
from bothways.tasks.windows import best_window, cut_windows
from bothways.tokenization.offsets import include_trailing_marks
from bothways.tokenization.tokenizer import Encoding, Tokenizer

Indices = NDArray[np.int64]


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


@dataclass(frozen=True)
class EncodedSentences:
    """Sentences as the model reads them.

    Attributes:
        sentences: their pieces.
        examples: one item per window; one row per word that is read, in order.
        unreadable: words of which normalisation leaves nothing; they are read as [UNK].
        skipped: words that begin inside a piece of another word and are not read.
        long: sentences that are read in several windows.
    """

    sentences: list[WordPieces]
    examples: Examples
    unreadable: int
    skipped: int
    long: int

    @cached_property
    def output_bounds(self) -> Indices:
        """int64 [S + 1]; a model's outputs for sentence s are its rows ``output_bounds[s]`` to
        ``output_bounds[s + 1]``."""
        return bounds([len(s.first_piece) for s in self.sentences])


@dataclass(frozen=True)
class _Window:
    """A stretch of a document.

    Attributes:
        first, end: its first piece in the document, and the one after its last.
        read: int64; the pieces of the document at which words are read in this window.
    """

    first: int
    end: int
    read: Indices


def encode_sentences(
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    documents: Sequence[int] | None,
    *,
    length: int,
    spaces: bool = True,
) -> EncodedSentences:
    """Encode sentences that are cut into words.

    Args:
        tokenizer: the model's.
        sentences: the words of each, at least one.
        documents: the number of each sentence's document, which fills both sides of its window;
            None if sentences are read without their documents.
        length: of a window in tokens, [CLS] and [SEP] included.
        spaces: words are separated by spaces. If not, they are joined without spaces, and a word
            that begins inside a piece of another is not read.

    Raises:
        LengthError: no room for a piece.
        InputError: something that is not a text.
    """
    check_room(length, pair=False)
    encode = _encode_words if spaces else _encode_characters
    encoded, unreadable = encode(tokenizer, sentences)
    document_of = range(len(sentences)) if documents is None else documents
    sequences = SequenceBuilder(tokenizer)
    read_positions: list[Indices] = []
    owners: list[int] = []
    long = 0
    for _, group in groupby(range(len(sentences)), key=document_of.__getitem__):
        numbers = [*group]
        document = np.concatenate([encoded[s].ids for s in numbers])
        starts = accumulate((len(encoded[s].ids) for s in numbers), initial=0)
        for s, start in zip(numbers, starts, strict=False):
            windows = [*_windows(encoded[s], start, len(document), length - 2)]
            for window in windows:
                cls = sequences.add(document[window.first : window.end])
                read_positions.append(cls + 1 + window.read - window.first)
                owners.append(s)
            long += len(windows) > 1
    return EncodedSentences(
        encoded,
        sequences.examples(
            read_positions=np.concatenate(read_positions), owners=np.array(owners, dtype=np.int64)
        ),
        unreadable=unreadable,
        skipped=sum(map(len, sentences)) - sum(len(s.word) for s in encoded),
        long=long,
    )


def _windows(sentence: WordPieces, start: int, document_size: int, room: int) -> Iterator[_Window]:
    """The windows in which a sentence is read; only those in which some word is.

    Args:
        sentence: its pieces.
        start: its first piece in the document.
        document_size: pieces of the document.
        room: pieces that a window holds.
    """
    size = len(sentence.ids)
    if size <= room:
        # In the middle of the window, or off it where the document ends on one side.
        spare = room - size
        available_right = document_size - start - size
        centered = spare // 2
        min_left_to_fill = spare - available_right
        left = min(start, max(centered, min_left_to_fill))
        first = start - left
        yield _Window(first, min(first + room, document_size), start + sentence.first_piece)
        return
    cuts = cut_windows(size, room, max(1, room // 2))
    window_of = best_window(cuts, size)[sentence.first_piece]
    assert (np.diff(window_of) >= 0).all(), "rows are in the order of words"
    for number, (first, end) in enumerate(cuts):
        read = sentence.first_piece[window_of == number]
        if len(read):
            yield _Window(start + first, start + end, start + read)


def _encode_words(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]
) -> tuple[list[WordPieces], int]:
    """Encode each word by itself, as the tokenizer does with words between spaces.

    Returns:
        The pieces of each sentence, and how many words were unreadable.
    """
    vocabulary = sorted({word for words in sentences for word in words})
    ids_of = dict(zip(vocabulary, tokenizer.encode_plain(vocabulary), strict=True))
    encoded, unreadable = [], 0
    for words in sentences:
        unreadable += sum(not ids_of[word] for word in words)
        word_ids = [ids_of[word] or [tokenizer.unk_id] for word in words]
        first_piece = np.array([0, *accumulate(map(len, word_ids))], dtype=np.int64)[:-1]
        word = np.arange(len(words))
        ids = np.fromiter((id for ids in word_ids for id in ids), np.int32)
        encoded.append(WordPieces(ids, first_piece, word, word + 1))
    return encoded, unreadable


def _encode_characters(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]
) -> tuple[list[WordPieces], int]:
    """Encode sentences as running text, their words (often single characters) joined.

    Returns:
        The pieces of each sentence, and of how many sentences nothing was left.
    """
    encoded, unreadable = [], 0
    for start in range(0, len(sentences), CHUNK):
        chunk = sentences[start : start + CHUNK]
        encodings = tokenizer.encode_batch(["".join(words) for words in chunk])
        for words, encoding in zip(chunk, encodings, strict=True):
            unreadable += len(encoding.tokens) == 2
            encoded.append(_locate_words(words, encoding, tokenizer.unk_id))
    return encoded, unreadable


def _locate_words(words: Sequence[str], encoding: Encoding, unk_id: int) -> WordPieces:
    """The words of a joined sentence, found by the character offsets of its pieces."""
    word_starts = np.array([0, *accumulate(map(len, words))])[:-1]
    ids = np.array(encoding.tokens[1:-1], dtype=np.int32)
    offsets = np.array(encoding.offsets[1:-1], dtype=np.int64).reshape(-1, 2)
    if not len(ids):  # normalisation left nothing, but the sentence still needs a tag
        ids, offsets = np.array([unk_id], np.int32), np.array([[0, 1]])
    starts, ends = offsets[:, 0].copy(), offsets[:, 1].copy()
    include_trailing_marks("".join(words), starts, ends)
    # The words that each piece's first and last character belong to.
    first_word = np.searchsorted(word_starts, starts, side="right") - 1
    last_word = np.searchsorted(word_starts, ends - 1, side="right") - 1
    word, first_piece = np.unique(first_word, return_index=True)
    word_end = np.maximum.reduceat(last_word, first_piece) + 1
    return WordPieces(ids, first_piece.astype(np.int64), word, np.maximum(word_end, word + 1))
