"""Masked-LM targets, drawn when a batch is made (Devlin et al. 2019, 3.1 and Appendix A.1).

T tokens, B sequences, M targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.config import MaskOptions
from bothways.randomness import Purpose, below, uniform
from bothways.tokenization.tokenizer import Tokenizer


def max_predictions(length: int, rate: float) -> int:
    """Most targets of a sequence of this length: 20 at 128 and 77 at 512 for 15 %."""
    return math.ceil(length * rate - 1e-9)


@dataclass(frozen=True)
class Vocabulary:
    """What masking needs to know of a vocabulary.

    Attributes:
        mask_id: id of [MASK].
        special: bool [V]; ids that are never predicted and never put in.
        ordinary: int64; the other ids, which random words are drawn from.
    """

    mask_id: int
    special: NDArray[np.bool_]
    ordinary: NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """From a tokenizer."""
        special = np.zeros(tokenizer.vocab_size, dtype=bool)
        special[tokenizer.special_ids] = True
        return cls(tokenizer.mask_id, special, np.flatnonzero(~special))


def mask_tokens(
    tokens: NDArray[np.int64],
    bounds: NDArray[np.int64],
    vocabulary: Vocabulary,
    options: MaskOptions,
    *,
    budget: int,
    seed: int,
    epoch: NDArray[np.int64],
    index: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Choose the targets of a flat batch and hide them.

    For each sequence round(rate x its tokens) targets, at least one and at most ``budget``; special
    tokens count in the length and are never chosen. Of the chosen, 80 % are shown as [MASK], 10 %
    as a random word, 10 % as they are. Two differences from the original: it draws random words
    over the whole vocabulary, specials included, where here they are uniform over the ordinary
    pieces; and it may choose an [UNK] of the text as a target, which here counts as special.

    Args:
        tokens: int64 [T]; not changed.
        bounds: int64 [B + 1].
        vocabulary: which ids are special.
        options: the rates.
        budget: most targets of one sequence.
        seed: of the phase.
        epoch: int64 [B]; keys the draws, with index and the place in the sequence.
        index: int64 [B]; the instances' rows in the plan.

    Returns:
        The tokens to show, int64 [T]; places of the targets, int64 [M], increasing; their ids.
    """
    lengths = np.diff(bounds)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(tokens)) - bounds[:-1][sequence]
    candidates = np.flatnonzero(~vocabulary.special[tokens])
    owner = sequence[candidates]
    keys = (epoch[owner], index[owner], place[candidates])
    # Rank the candidates of each sequence by a random number; the first n are the targets.
    order = np.lexsort((uniform(seed, Purpose.MASK, *keys), owner))
    counts = np.bincount(owner, minlength=len(lengths))
    first = np.cumsum(counts) - counts
    rank = np.arange(len(order)) - first[owner[order]]
    wanted = np.clip(np.rint(lengths * options.rate), 1, budget)
    chosen = np.sort(order[rank < wanted[owner[order]]])
    at = candidates[chosen]
    keys = (epoch[sequence[at]], index[sequence[at]], place[at])
    shown = tokens.copy()
    draw = uniform(seed, Purpose.REPLACE, *keys)
    word = below(len(vocabulary.ordinary), seed, Purpose.RANDOM_WORD, *keys)
    as_mask = draw < options.mask
    as_random = ~as_mask & (draw < options.mask + options.random)
    shown[at[as_mask]] = vocabulary.mask_id
    shown[at[as_random]] = vocabulary.ordinary[word[as_random]]
    return shown, at, tokens[at]
