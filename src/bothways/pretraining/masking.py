"""Targets of the language model, drawn when a batch is made (Devlin et al. 2019, 3.1 and A.1).

T tokens, B sequences, L longest of them, M targets, W words of a sequence at most, V vocabulary.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.config import MaskOptions
from bothways.randomness import Purpose, below, bits, uniform
from bothways.tokenization.tokenizer import CONTINUES, Tokenizer

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Scripts that put no spaces between words, as the names of their letters begin.
_UNSPACED = (
    *("CJK ", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "BOPOMOFO"),
    *("THAI ", "LAO ", "KHMER", "MYANMAR"),
)
# Their signs that belong to the letter before: small kana, the prolonged sound mark.
_JOINED = ("SMALL", "PROLONGED")
_LAST = np.uint64(2**64 - 1)
_PLACE_BITS = np.uint64(0x7FF)


def max_predictions(length: int, rate: float) -> int:
    """Most targets of a sequence of this length: 20 at 128 and 77 at 512 for 15 %."""
    return math.ceil(length * rate - 1e-9)


@dataclass(frozen=True)
class Vocabulary:
    """What masking needs to know of a vocabulary.

    Attributes:
        mask_id: id of [MASK].
        special: bool [V]; ids that are never masked and never put in.
        ordinary: int64; the other ids, which random words are drawn from.
        starts_word: bool [V]; pieces that begin a word.
    """

    mask_id: int
    special: Flags
    ordinary: Ints
    starts_word: Flags

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, segmented: bool = False) -> Vocabulary:
        """From a tokenizer; ``segmented``: its text has spaces between words in every script."""
        special = np.zeros(tokenizer.vocab_size, dtype=bool)
        special[tokenizer.special_ids] = True
        starts_word = tokenizer.starts_word.copy()
        if not segmented:
            starts_word |= unspaced([tokenizer.text_of(i) for i in range(tokenizer.vocab_size)])
        return cls(tokenizer.mask_id, special, np.flatnonzero(~special), starts_word)


def unspaced(pieces: list[str]) -> Flags:
    """Pieces that begin with a letter of a script without spaces between words, bool [V].

    There a run of letters is a clause, not a word, and would be hidden as a whole. Marks, small
    kana and the prolonged sound belong to the letter before them.
    """
    return np.array([_is_unspaced(piece.removeprefix(CONTINUES)[:1]) for piece in pieces])


def _is_unspaced(letter: str) -> bool:
    name = unicodedata.name(letter, "") if letter else ""
    joined = unicodedata.category(letter or " ").startswith("M") or any(n in name for n in _JOINED)
    return name.startswith(_UNSPACED) and not joined


def mask_tokens(
    tokens: Ints,
    bounds: Ints,
    vocabulary: Vocabulary,
    options: MaskOptions,
    *,
    budget: int,
    seed: int,
    epoch: Ints,
    index: Ints,
) -> tuple[Ints, Ints, Ints]:
    """Choose the targets of a flat batch and hide them.

    For each sequence round(rate x its tokens) targets, at least one and at most ``budget``; special
    tokens count in the length and are never chosen. Of the chosen, 80 % are shown as [MASK], 10 %
    as a random word, 10 % as they are, decided for each piece by itself, also within a whole word,
    as the original does. Two differences from the original: it draws random words over the whole
    vocabulary, specials included, where here they are uniform over the ordinary pieces; and it may
    choose an [UNK] of the text as a target, which here counts as special.

    Args:
        tokens: int64 [T]; not changed.
        bounds: int64 [B + 1].
        vocabulary: which ids are special, and which begin a word.
        options: the rates, and what is chosen; not ``left_to_right``.
        budget: most targets of one sequence.
        seed: of the phase.
        epoch: int64 [B]; keys the draws, with index and the place in the sequence.
        index: int64 [B]; the instances' rows in the plan.

    Returns:
        The tokens to show, int64 [T]; places of the targets, int64 [M], increasing; their ids.
    """
    lengths = np.diff(bounds)
    wanted = np.clip(np.rint(lengths * options.rate), 1, budget).astype(np.int64)
    place = np.arange(lengths.max(initial=0))
    inside = place < lengths[:, None]
    # Rows and columns in place of flat arrays: a hash costs one round for each token, not three.
    keys = _ranks(bits(seed, Purpose.MASK, epoch[:, None], index[:, None], place), place)
    if options.kind == "words":
        words = _words(tokens, lengths, wanted, vocabulary)
        chosen = _choose_words(words, keys[inside], wanted)
    else:
        keys[inside] = np.where(vocabulary.special[tokens], _LAST, keys[inside])
        keys[~inside] = _LAST
        chosen = _choose_pieces(keys, wanted)[inside]
    at = np.flatnonzero(chosen)
    row = np.searchsorted(bounds, at, side="right") - 1
    shown = _hide(
        tokens, at, vocabulary, options, seed, (epoch[row], index[row], at - bounds[:-1][row])
    )
    return shown, at, tokens[at]


def next_tokens(tokens: Ints, bounds: Ints) -> tuple[Ints, Ints]:
    """Targets of a left-to-right model: at every place but a sequence's last, the token after it.

    Args:
        tokens: int64 [T].
        bounds: int64 [B + 1].

    Returns:
        Places, int64 [T - B], increasing; the ids to predict there.
    """
    last = np.zeros(len(tokens), dtype=bool)
    last[bounds[1:] - 1] = True
    at = np.flatnonzero(~last)
    return at, tokens[at + 1]


def _ranks(draws: NDArray[np.uint64], place: Ints) -> NDArray[np.uint64]:
    """53 random bits above the place, which parts equal ones (up to 2,048 tokens)."""
    return (draws & ~_PLACE_BITS) | (place.astype(np.uint64) & _PLACE_BITS)


def _choose_pieces(keys: NDArray[np.uint64], wanted: Ints) -> Flags:
    """The ``wanted`` lowest keys of each row that are no candidates' _LAST; [B, L]."""
    most = int(wanted.max(initial=1))
    if most < keys.shape[1]:
        lowest = np.sort(np.partition(keys, most - 1, axis=1)[:, :most], axis=1)
    else:
        lowest = np.sort(keys, axis=1)
    limit = lowest[np.arange(len(keys)), np.minimum(wanted, lowest.shape[1]) - 1]
    chosen: Flags = (keys <= limit[:, None]) & (keys != _LAST)
    return chosen


@dataclass(frozen=True)
class _Words:
    """The words of a flat batch.

    Attributes:
        candidates: int64 [C]; flat places of the pieces that may be chosen.
        starts: int64; of each word, its first among the candidates.
        sizes: int64; of each word, its pieces.
        row: int64; of each word, its sequence.
    """

    candidates: Ints
    starts: Ints
    sizes: Ints
    row: Ints


def _words(tokens: Ints, lengths: Ints, wanted: Ints, vocabulary: Vocabulary) -> _Words:
    """Pieces in a row that continue each other. A word with more pieces than its sequence may have
    targets could never be chosen, so its pieces stand by themselves."""
    candidates = np.flatnonzero(~vocabulary.special[tokens])
    row = np.repeat(np.arange(len(lengths)), lengths)[candidates]
    # After a special token a word begins, even if truncation has cut off its first pieces.
    begins = vocabulary.starts_word[tokens[candidates]] | (np.diff(candidates, prepend=-2) > 1)
    sizes = np.diff(np.append(np.flatnonzero(begins), len(candidates)))
    too_long = sizes > wanted[row[begins]]
    begins |= np.repeat(too_long, sizes)
    starts = np.flatnonzero(begins)
    return _Words(candidates, starts, np.diff(np.append(starts, len(candidates))), row[starts])


def _choose_words(words: _Words, keys: NDArray[np.uint64], wanted: Ints) -> Flags:
    """Words in random order as long as they fit; one that does not is passed over.

    Args:
        words: of the batch.
        keys: uint64 [T]; a word's is that of its first piece.
        wanted: int64 [B].

    Returns:
        bool [T].
    """
    counts = np.bincount(words.row, minlength=len(wanted))
    inside = np.arange(counts.max(initial=0)) < counts[:, None]
    rank = np.full(inside.shape, _LAST)
    rank[inside] = keys[words.candidates[words.starts]]
    number = np.zeros(inside.shape, dtype=np.int64)
    number[inside] = np.arange(len(words.starts))
    order = np.argsort(rank, axis=1)
    number = np.take_along_axis(number, order, axis=1)
    size = np.where(np.take_along_axis(inside, order, axis=1), words.sizes[number], len(keys) + 1)
    left, taken = wanted.copy(), np.zeros(len(words.starts), dtype=bool)
    for column in range(size.shape[1]):
        fits = size[:, column] <= left
        left -= np.where(fits, size[:, column], 0)
        taken[number[fits, column]] = True
        if not left.any():
            break
    chosen = np.zeros(len(keys), dtype=bool)
    chosen[words.candidates] = np.repeat(taken, words.sizes)
    return chosen


def _hide(
    tokens: Ints,
    at: Ints,
    vocabulary: Vocabulary,
    options: MaskOptions,
    seed: int,
    keys: tuple[Ints, Ints, Ints],
) -> Ints:
    """What is shown: [MASK], a random word, or the token itself, for each target by its key."""
    draw = uniform(seed, Purpose.REPLACE, *keys)
    word = below(len(vocabulary.ordinary), seed, Purpose.RANDOM_WORD, *keys)
    as_mask = draw < options.mask
    as_random = ~as_mask & (draw < options.mask + options.random)
    shown = tokens.copy()
    shown[at[as_mask]] = vocabulary.mask_id
    shown[at[as_random]] = vocabulary.ordinary[word[as_random]]
    return shown
