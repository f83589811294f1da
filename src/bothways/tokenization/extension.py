"""Adding whole words to a WordPiece vocabulary that is in use."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tokenizers

from bothways.errors import InputError, ModelError
from bothways.tokenization.normalization import word_splitter
from bothways.tokenization.tokenizer import LONGEST_WORD, Tokenizer


@dataclass(frozen=True)
class Extension:
    """A vocabulary with more words."""

    tokenizer: Tokenizer
    words: list[str]
    """The new pieces, in order; the first has the id that the old ``vocab_size`` was."""
    parts: list[list[int]]
    """The pieces that each new word was cut into before."""


def extend_vocabulary(tokenizer: Tokenizer, words: Sequence[str]) -> Extension:
    """Add words as pieces; the ids of the old ones stay.

    WordPiece takes the longest piece that fits from the left, so a new word changes the ids of
    texts in which some word begins with it ("angio" those of "angioplasty"), and of no others.

    Args:
        tokenizer: a WordPiece tokenizer.
        words: single words, in any case; what is a piece already is left out.

    Raises:
        ModelError: not a WordPiece vocabulary.
        InputError: an entry that is not exactly one word by the tokenizer's rules, or longer than
            the longest word it cuts.
    """
    if tokenizer.kind != "wordpiece":
        raise ModelError(
            f"the vocabulary is {tokenizer.kind}, and only wordpiece can take in whole words; "
            "learn a new vocabulary on text that has them."
        )
    known = set(tokenizer.pieces)
    added: list[str] = []
    for number, given in enumerate(words, start=1):
        word = _one_word(tokenizer, given, number)
        if word not in known:
            known.add(word)
            added.append(word)
    parts = tokenizer.encode_plain(added)
    settings = json.loads(tokenizer.to_json())
    for i, word in enumerate(added):
        settings["model"]["vocab"][word] = tokenizer.vocab_size + i
    library = tokenizers.Tokenizer.from_str(json.dumps(settings))
    return Extension(Tokenizer(library), added, parts)


def choose_words(
    tokenizer: Tokenizer, counts: Mapping[str, int], *, most: int, min_pieces: int, min_count: int
) -> list[str]:
    """The most frequent words that a tokenizer cuts into many pieces or does not know.

    Args:
        tokenizer: whose rules the words were cut by.
        counts: words with how often they occur.
        most: number of words at most; of equals the first in sorted order.
        min_pieces: words of fewer pieces are not chosen, [UNK] excepted.
        min_count: rarer words are not chosen, nor are words without a letter.
    """
    frequent = sorted(
        (-count, word)
        for word, count in counts.items()
        if count >= min_count and len(word) <= LONGEST_WORD and any(map(str.isalpha, word))
    )
    words = [word for _, word in frequent]
    encoded = tokenizer.encode_plain(words)
    chosen = [
        word
        for word, ids in zip(words, encoded, strict=True)
        if len(ids) >= min_pieces or tokenizer.unk_id in ids
    ]
    return chosen[:most]


def _one_word(tokenizer: Tokenizer, given: str, number: int) -> str:
    found = [word for word, _ in word_splitter().pre_tokenize_str(tokenizer.normalize(given))]
    if len(found) != 1:
        what = f"is {len(found)} words ({' | '.join(found)})" if found else "has no word in it"
        raise InputError(
            f"word {number}, {given!r}, {what} by this vocabulary's rules, which cut at spaces and "
            "punctuation; a piece can only be one. Give its words one by one, or remove it."
        )
    if len(found[0]) > LONGEST_WORD:
        raise InputError(
            f"word {number}, {given[:20]!r}..., has {len(found[0])} characters; words over "
            f"{LONGEST_WORD} are [UNK] whatever the vocabulary. Remove it."
        )
    return found[0]
