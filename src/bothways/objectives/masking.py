"""Targets of language models, drawn when a batch is made (Devlin et al. 2019, 3.1 and A.1).

T tokens, B sequences, L tokens of the longest one, M targets, C candidates, N words, W words of the
sequence with the most, V pieces of the vocabulary.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.objectives.objective import Draw, Ints, Targets
from bothways.pretraining.options import MaskOptions
from bothways.randomness import Purpose, below, bits, uniform
from bothways.tokenization.pieces import CONTINUES
from bothways.tokenization.tokenizer import Tokenizer

Flags = NDArray[np.bool_]

# Scripts without spaces between words: how the Unicode names of their letters begin.
_UNSPACED = (
    *("CJK ", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "BOPOMOFO"),
    *("THAI ", "LAO ", "KHMER", "MYANMAR"),
)
# Their signs that belong to the letter before: small kana, the prolonged sound mark, half-width
# voicing marks, and the vowels of Thai and Lao that are letters of their own.
_JOINED = ("SMALL", "PROLONGED", "VOICED SOUND MARK")
_JOINED_VOWELS = frozenset("\u0e30\u0e32\u0e33\u0eb0\u0eb2\u0eb3")
# A priority behind all others; targets are the candidates with the lowest priorities.
_LAST = np.uint64(2**64 - 1)
_POSITION_BITS = np.uint64(0x7FF)


def max_predictions(length: int, rate: float) -> int:
    """The most targets a sequence of this length may have: for 15 %, 20 of 128 and 77 of 512."""
    return math.ceil(length * rate - 1e-9)


@dataclass(frozen=True)
class Vocabulary:
    """What masking needs to know of a vocabulary.

    Attributes:
        mask_id: id of [MASK].
        special: bool [V]; ids that are never masked, and never used as random words.
        ordinary: int64; the other ids.
        starts_word: bool [V]; pieces that begin a word.
    """

    mask_id: int
    special: Flags
    ordinary: Ints
    starts_word: Flags

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, segmented: bool = False) -> Vocabulary:
        """That of a tokenizer.

        Args:
            tokenizer: of the corpus.
            segmented: text has spaces between words in every script.

        Raises:
            ModelError: the tokenizer has no piece that hides tokens.
        """
        special = np.zeros(tokenizer.vocab_size, dtype=bool)
        special[tokenizer.special_ids] = True
        starts_word = tokenizer.starts_word.copy()
        if not segmented:
            starts_word |= unspaced([tokenizer.text_of(i) for i in range(tokenizer.vocab_size)])
        mask_id = tokenizer.mask_id
        assert mask_id is not None
        return cls(mask_id, special, np.flatnonzero(~special), starts_word)


def unspaced(pieces: list[str]) -> Flags:
    """Which pieces begin with a letter of a script without spaces between words, bool [V].

    In such scripts a run of letters is a clause, not a word, and would be masked as a whole. Marks,
    small kana and the prolonged sound mark belong to the letter before them and do not count.
    """
    return np.array([_is_unspaced(piece.removeprefix(CONTINUES)[:1] or " ") for piece in pieces])


def _is_unspaced(letter: str) -> bool:
    name = unicodedata.name(letter, "")
    joined = unicodedata.category(letter).startswith("M") or any(n in name for n in _JOINED)
    return name.startswith(_UNSPACED) and not joined and letter not in _JOINED_VOWELS


def mask_tokens(
    tokens: Ints,
    bounds: Ints,
    draw: Draw,
    *,
    vocabulary: Vocabulary,
    options: MaskOptions,
    budget: int,
) -> Targets:
    """Choose the targets of a flat batch and hide them.

    Each sequence gets round(rate x its tokens) targets, at least one and at most ``budget``;
    special tokens count in the length but are never chosen. With the paper's rates, 80 % of the
    targets are shown as [MASK], 10 % as a random word and 10 % unchanged. As in the original this
    is decided for each piece separately, even within a whole word.

    Two differences from the original: it draws random words from the whole vocabulary, special
    tokens included, and we draw them uniformly from the ordinary pieces; and it may choose an [UNK]
    of the text as a target, which counts as special here.

    Args:
        tokens: int64 [T]; not changed.
        bounds: int64 [B + 1].
        draw: keys the draws, together with the position in the sequence.
        vocabulary: which ids are special, and which begin a word.
        options: the rates, and what is chosen.
        budget: the most targets of one sequence.
    """
    seed, epoch, index = draw
    lengths = np.diff(bounds)
    wanted = np.clip(np.rint(lengths * options.rate), 1, budget).astype(np.int64)
    position_L = np.arange(lengths.max(initial=0))
    inside_BL = position_L < lengths[:, None]
    # Hash a [B, L] grid, so that epoch and index are mixed once per row and not once per token.
    draws_BL = bits(seed, Purpose.MASK, epoch[:, None], index[:, None], position_L)
    priority_BL = _priorities(draws_BL, position_L)
    if options.kind == "words":
        words = _find_words(tokens, lengths, wanted, vocabulary)
        chosen = _choose_words(words, priority_BL[inside_BL], wanted)
    else:
        candidates_BL = inside_BL.copy()
        candidates_BL[inside_BL] = ~vocabulary.special[tokens]
        chosen = _choose_pieces(priority_BL, candidates_BL, wanted)[inside_BL]
    at = np.flatnonzero(chosen)
    row = np.searchsorted(bounds, at, side="right") - 1
    key = (epoch[row], index[row], at - bounds[:-1][row])
    return Targets(_hide(tokens, at, vocabulary, options, seed, key), at, tokens[at])


def next_tokens(tokens: Ints, bounds: Ints, draw: Draw) -> Targets:  # noqa: ARG001
    """Targets of a left-to-right model: at every position but a sequence's last, the next token."""
    last = np.zeros(len(tokens), dtype=bool)
    last[bounds[1:] - 1] = True
    at = np.flatnonzero(~last)
    return Targets(tokens, at, tokens[at + 1])


def _priorities(draws: NDArray[np.uint64], position: Ints) -> NDArray[np.uint64]:
    """Random priorities that differ between all tokens of a sequence (of up to 2,048).

    The upper 53 bits are random; the lower 11 hold the position and so break ties.
    """
    return (draws & ~_POSITION_BITS) | (position.astype(np.uint64) & _POSITION_BITS)


def _choose_pieces(priority: NDArray[np.uint64], candidates: Flags, wanted: Ints) -> Flags:
    """The candidates of each sequence with the lowest priorities.

    Args:
        priority: uint64 [B, L].
        candidates: bool [B, L]; the tokens that may be chosen.
        wanted: int64 [B]; how many to choose, or all candidates if there are fewer.

    Returns:
        bool [B, L].
    """
    priority = np.where(candidates, priority, _LAST)
    most = int(wanted.max(initial=1))
    lowest = priority
    if most < priority.shape[1]:
        lowest = np.partition(priority, most - 1, axis=1)[:, :most]
    lowest = np.sort(lowest, axis=1)
    limit = lowest[np.arange(len(lowest)), np.minimum(wanted, lowest.shape[1]) - 1]
    chosen: Flags = candidates & (priority <= limit[:, None])
    return chosen


@dataclass(frozen=True)
class _Words:
    """The words of a flat batch.

    Attributes:
        candidates: int64 [C]; the pieces that may be chosen, as indices into the batch.
        starts: int64 [N]; each word's first piece, as an index into the candidates.
        sizes: int64 [N]; how many pieces each word has.
        row: int64 [N]; each word's sequence.
    """

    candidates: Ints
    starts: Ints
    sizes: Ints
    row: Ints


def _find_words(tokens: Ints, lengths: Ints, wanted: Ints, vocabulary: Vocabulary) -> _Words:
    """Group the pieces of words.

    A word with more pieces than its sequence has targets could never be chosen, so each of its
    pieces counts as a word.
    """
    candidates = np.flatnonzero(~vocabulary.special[tokens])
    row = np.repeat(np.arange(len(lengths)), lengths)[candidates]
    # A word begins after every special token, even if truncation has cut off its first pieces.
    begins = vocabulary.starts_word[tokens[candidates]] | (np.diff(candidates, prepend=-2) > 1)
    sizes = np.diff(np.append(np.flatnonzero(begins), len(candidates)))
    too_long = sizes > wanted[row[begins]]
    begins |= np.repeat(too_long, sizes)
    starts = np.flatnonzero(begins)
    return _Words(candidates, starts, np.diff(np.append(starts, len(candidates))), row[starts])


def _choose_words(words: _Words, priority: NDArray[np.uint64], wanted: Ints) -> Flags:
    """The words of each sequence in order of priority; a word that no longer fits is skipped.

    Args:
        words: of the batch.
        priority: uint64 [T]; a word has that of its first piece.
        wanted: int64 [B]; how many pieces to choose at most.

    Returns:
        bool [T].
    """
    counts = np.bincount(words.row, minlength=len(wanted))
    is_word_BW = np.arange(counts.max(initial=0)) < counts[:, None]
    priority_BW = np.full(is_word_BW.shape, _LAST)
    priority_BW[is_word_BW] = priority[words.candidates[words.starts]]
    word_BW = np.zeros(is_word_BW.shape, dtype=np.int64)
    word_BW[is_word_BW] = np.arange(len(words.starts))
    order_BW = np.argsort(priority_BW, axis=1)
    word_BW = np.take_along_axis(word_BW, order_BW, axis=1)
    is_word_BW = np.take_along_axis(is_word_BW, order_BW, axis=1)
    size_BW = np.where(is_word_BW, words.sizes[word_BW], len(priority) + 1)  # padding never fits
    remaining, taken = wanted.copy(), np.zeros(len(words.starts), dtype=bool)
    for word, size in zip(word_BW.T, size_BW.T, strict=True):
        fits = size <= remaining
        remaining -= np.where(fits, size, 0)
        taken[word[fits]] = True
        if not remaining.any():
            break
    chosen = np.zeros(len(priority), dtype=bool)
    chosen[words.candidates] = np.repeat(taken, words.sizes)
    return chosen


def _hide(
    tokens: Ints,
    at: Ints,
    vocabulary: Vocabulary,
    options: MaskOptions,
    seed: int,
    key: tuple[Ints, Ints, Ints],
) -> Ints:
    """The tokens to show: each target becomes [MASK] or a random word, or stays."""
    draw = uniform(seed, Purpose.REPLACE, *key)
    word = below(len(vocabulary.ordinary), seed, Purpose.RANDOM_WORD, *key)
    as_mask = draw < options.mask
    as_random = ~as_mask & (draw < options.mask + options.random)
    shown = tokens.copy()
    shown[at[as_mask]] = vocabulary.mask_id
    shown[at[as_random]] = vocabulary.ordinary[word[as_random]]
    return shown
