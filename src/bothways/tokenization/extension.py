"""Extending an existing WordPiece vocabulary with whole words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tokenizers

from bothways.errors import InputError, ModelError
from bothways.tokenization.normalization import word_splitter
from bothways.tokenization.reading import LONGEST_WORD
from bothways.tokenization.tokenizer import Tokenizer

_ENCODED_AT_ONCE = 1 << 14  # words


@dataclass(frozen=True)
class ExtendedVocabulary:
    """A vocabulary with additional words."""

    tokenizer: Tokenizer
    words: list[str]
    """The new pieces, in order; the id of the first is the old ``vocab_size``."""
    parts: list[list[int]]
    """The old pieces of each new word."""


def extend_vocabulary(tokenizer: Tokenizer, words: Sequence[str]) -> ExtendedVocabulary:
    """Add words as pieces; the ids of the old pieces do not change.

    WordPiece takes the longest matching piece from the left, so a new word changes the ids of
    exactly those texts in which some word starts with it ("angio" those of "angioplasty").

    Args:
        tokenizer: a WordPiece tokenizer.
        words: single words, in any case; words that are pieces already are left out.

    Raises:
        ModelError: not a WordPiece vocabulary.
        InputError: an entry is not exactly one word by the tokenizer's rules, or is longer than
            the longest word it splits into pieces.
    """
    if tokenizer.kind != "wordpiece":
        raise ModelError(
            f"the vocabulary is {tokenizer.kind}, and only wordpiece can be extended with whole "
            "words; learn a new vocabulary on text that has them."
        )
    known = set(tokenizer.pieces)
    added: list[str] = []
    for entry in words:
        word = single_word(tokenizer, entry)
        if word not in known:
            known.add(word)
            added.append(word)
    parts = tokenizer.with_segmenter(None).encode_plain(added)
    settings = json.loads(tokenizer.to_json())
    # All of them: pieces that `add_tokens` appended are not among the model's own.
    settings["model"]["vocab"] = {p: i for i, p in enumerate([*tokenizer.pieces, *added])}
    library = tokenizers.Tokenizer.from_str(json.dumps(settings))
    extended = Tokenizer(library, declared=tokenizer.roles.items(), segmenter=tokenizer.segmenter)
    return ExtendedVocabulary(extended, added, parts)


MIN_PIECES = 3
"""Words of fewer pieces gain little from one of their own."""


def choose_words(
    tokenizer: Tokenizer, counts: Mapping[str, int], *, most: int, min_count: int
) -> list[str]:
    """The most frequent words that a tokenizer splits into at least :data:`MIN_PIECES` pieces or
    does not know.

    Args:
        tokenizer: the tokenizer whose rules split the text into these words.
        counts: words with their numbers of occurrences.
        most: maximum number of words; ties are resolved in sorted order.
        min_count: rarer words are not chosen, and neither are words without letters.
    """
    frequent = sorted(
        (-count, word)
        for word, count in counts.items()
        if count >= min_count and len(word) <= LONGEST_WORD and any(map(str.isalpha, word))
    )
    chosen: list[str] = []
    tokenizer = tokenizer.with_segmenter(None)  # these are words
    for start in range(0, len(frequent), _ENCODED_AT_ONCE):
        words = [word for _, word in frequent[start : start + _ENCODED_AT_ONCE]]
        chosen += [
            word
            for word, ids in zip(words, tokenizer.encode_plain(words), strict=True)
            if len(ids) >= MIN_PIECES or tokenizer.unk_id in ids
        ]
        if len(chosen) >= most:
            break
    return chosen[:most]


def single_word(tokenizer: Tokenizer, entry: str) -> str:
    """An entry as the piece that it becomes.

    Raises:
        InputError: it is not exactly one word by the tokenizer's rules, or too long.
    """
    words = [word for word, _ in word_splitter().pre_tokenize_str(tokenizer.normalize(entry))]
    if len(words) != 1 or len(words[0]) > LONGEST_WORD:
        raise InputError(
            f"{entry[:40]!r} is not one word of at most {LONGEST_WORD} characters by this "
            f"vocabulary's rules, which split it into {len(words)} at spaces and punctuation."
        )
    return words[0]
