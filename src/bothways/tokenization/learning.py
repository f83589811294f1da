"""Learning a vocabulary from text: WordPiece, BPE, byte-level BPE and Unigram.

The first three split text into the same words (BERT's) and merge adjacent pieces within words, as
defined in ``merging``. They differ in the initial pieces and in how the tokenizer segments a word:

wordpiece  starts from characters and merges the pair that raises the likelihood of the text most
           (other scores on request); a word is segmented by the longest matching piece, from the
           left (Schuster and Nakajima 2012; Devlin et al. 2019, whose learner was not published).
bpe        starts from characters and merges the most frequent pair; a word is segmented by applying
           the merges in order (Sennrich et al. 2016).
byte-bpe   the same on the bytes of a space and the word (Radford et al. 2019), so that nothing is
           ever unknown. Unlike there, words are split around every punctuation mark and each gets a
           space of its own, so that whole words mean the same as in the other two.
gpt2-bpe   Radford et al.'s own: the same on words that are split as there, and hold the space
           before them if there is one. Case and spaces are kept, as in RoBERTa.
unigram    ALBERT's, by the package sentencepiece: see ``unigram``.

A vocabulary is a function of the text alone; it depends neither on the number of processes nor,
Unigram aside, on the order of the text.
"""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

from bothways.arrays import bounds
from bothways.errors import ConfigError, InputError, check_installed
from bothways.io.files import write_json, write_text
from bothways.tokenization.counting import (
    Progress,
    at_white_space,
    by_rules,
    count_chunks,
    count_words,
    split_chunks,
    with_spaces,
)
from bothways.tokenization.merging import SegmentedWords, merge_pairs
from bothways.tokenization.normalization import (
    LetterCounts,
    Normalization,
    Rules,
    code_points,
    count_letters,
)
from bothways.tokenization.options import LearningOptions
from bothways.tokenization.pieces import CONTINUES, SPECIAL_PIECES
from bothways.tokenization.reading import LONGEST_WORD, SETTINGS_FILE
from bothways.tokenization.segmenter import Segmenter
from bothways.tokenization.tokenizer import Tokenizer
from bothways.tokenization.tokenizer_classes import BYTE_PAIRS
from bothways.tokenization.unigram import learn_unigram, uncovered

ALPHABET, WIDE_ALPHABET = 1000, 4000
"""Default sizes of the alphabet; the second is for text that is mainly East Asian."""

_CODE_POINTS = 0x110000


@dataclass(frozen=True)
class LearnedVocabulary:
    """A vocabulary, and statistics of the text it was learned from."""

    tokenizer: Tokenizer
    words: dict[str, int]
    """The distinct words with counts, sorted; at most ``counting.MAX_WORDS``."""
    letters: LetterCounts
    dropped: dict[str, int]
    """Characters too rare for the alphabet, most frequent first, with counts."""


def learn_vocabulary(
    lines: Iterable[str], *, size: int, progress: Progress | None = None, **options: Any
) -> Tokenizer:
    """Learn a vocabulary; :func:`learn` also returns statistics of the text.

    Args:
        lines: the text, in parts that end at the end of a word.
        size: number of pieces, including the special ones. A small text may give fewer: see
            ``vocab_size`` of the result.
        progress: called from time to time with the number of pieces so far, and ``size``.
        **options: other fields of :class:`bothways.tokenization.options.LearningOptions`, by
            name. Unlike there, the default is one process (``workers=1``).

    Raises:
        InputError: the text has no words, or is not Unicode.
        ConfigError: ``size`` is too small for the special pieces and the alphabet, or options are
            out of range or incompatible.
    """
    return learn(lines, LearningOptions(size=size, **{"workers": 1, **options}), progress).tokenizer


def learn(
    lines: Iterable[str],
    options: LearningOptions,
    progress: Progress | None = None,
    counting: Callable[[str, int, int], None] | None = None,
) -> LearnedVocabulary:
    """:func:`learn_vocabulary`, with the words, letters and dropped characters of the text.

    Args:
        lines, options, progress: see :func:`learn_vocabulary`.
        counting: called with what is counted, how much of it is done, and all.
    """
    workers = options.workers

    def counted(what: str) -> Progress | None:
        return partial(counting, what) if counting else None

    if options.segmenter is not None:
        segmenter = Segmenter(options.segmenter)
        plain = replace(options, segmenter=None)
        learned = learn(segmenter.divided(lines), plain, progress, counting)
        return replace(learned, tokenizer=learned.tokenizer.with_segmenter(segmenter))
    if options.algorithm == "unigram":
        check_installed("the algorithm unigram", "sentencepiece")
        lines = [*lines]
    with count_chunks(lines, workers=workers) as chunks:
        letters = count_letters(chunks.batches(counted("counting letters")))
        normalization = _normalization(options, letters)
        text_rules: Rules = {"lowercase": options.lowercase, "normalization": normalization}
        split = partial(split_chunks, splitter=by_rules, rules=text_rules)
        if options.algorithm == "unigram":
            split = partial(split_chunks, splitter=at_white_space, lowercase=options.lowercase)
        elif options.algorithm == "gpt2-bpe":
            composes = options.normalization != "bert"
            split = partial(split_chunks, splitter=with_spaces, composes=composes)
        words = count_words(chunks, split, workers=workers, progress=counted("counting words"))
    if not words:
        raise InputError("the text has no words; a vocabulary needs some text to learn from.")
    if options.algorithm == "unigram":
        tokenizer = learn_unigram(lines, options)
        return LearnedVocabulary(tokenizer, words, letters, uncovered(tokenizer, words))
    return _learn_by_merging(words, letters, text_rules, options, progress)


def _normalization(options: LearningOptions, letters: LetterCounts) -> Normalization:
    """The preset: that of the text, or as asked for."""
    if options.normalization == "auto" and options.lowercase:
        return letters.normalization
    return "bert" if options.normalization == "bert" else letters.composed


def _learn_by_merging(
    words: dict[str, int],
    letters: LetterCounts,
    rules: Rules,
    options: LearningOptions,
    progress: Progress | None,
) -> LearnedVocabulary:
    specials = [*SPECIAL_PIECES, *(f"[unused{i}]" for i in range(options.unused))]
    if options.algorithm == "gpt2-bpe":
        # With the ids that they have in RoBERTa, where positions depend on that of padding.
        roles = BYTE_PAIRS.roles
        ordered = (roles.cls, roles.pad, roles.sep, roles.unk, roles.mask)
        specials = [piece for piece in ordered if piece is not None]
    byte_level = options.algorithm in ("byte-bpe", "gpt2-bpe")
    if byte_level:
        start = _from_bytes(words, specials, before=" " if options.algorithm == "byte-bpe" else "")
    else:
        start = _from_characters(words, specials, _alphabet_limit(options, letters))
    if options.size < len(start.pieces):
        raise ConfigError(
            f"size is {options.size}, but the special pieces and the alphabet of this text need "
            f"{len(start.pieces)}. Choose a larger size or a smaller alphabet."
        )
    pieces = [*start.pieces]
    by_likelihood = options.algorithm == "wordpiece" and options.score is None
    merged = merge_pairs(
        start.words,
        pieces,
        size=options.size,
        score="likelihood" if by_likelihood else options.score or "frequency",
        min_count=min_pair_count(options),
        join=operator.add if byte_level else _join_characters,
        progress=progress,
    )
    merges = [(pieces[left], pieces[right]) for left, right in merged]
    case, form = rules["lowercase"], rules["normalization"]
    if options.algorithm == "wordpiece":
        tokenizer = Tokenizer.from_pieces(pieces, lowercase=case, normalization=form)
    elif options.algorithm == "gpt2-bpe":
        tokenizer = _with_spaces(pieces, merges, composes=options.normalization != "bert")
    else:
        tokenizer = Tokenizer.from_merges(
            pieces, merges, byte_level=byte_level, lowercase=case, normalization=form
        )
    return LearnedVocabulary(tokenizer, words, letters, start.dropped)


def _with_spaces(pieces: list[str], merges: list[tuple[str, str]], *, composes: bool) -> Tokenizer:
    """Byte-level BPE of words that hold the space before them, as read from RoBERTa's files."""
    with tempfile.TemporaryDirectory(prefix="bothways-bpe-") as name:
        vocabulary, merged = (Path(name) / file for file in BYTE_PAIRS.files)
        write_json(vocabulary, {piece: id for id, piece in enumerate(pieces)})
        lines = "".join(f"{left} {right}\n" for left, right in merges)
        write_text(merged, "#version: 0.2\n" + lines)
        if composes:
            write_json(Path(name) / SETTINGS_FILE, {"normalization": "composed"})
        return Tokenizer.from_folder(name)


@dataclass(frozen=True)
class _InitialPieces:
    """The pieces, and the words segmented into them, before merging."""

    pieces: list[str]
    words: SegmentedWords
    dropped: dict[str, int]


def min_pair_count(options: LearningOptions) -> int:
    """How often a pair must occur to be merged."""
    if options.score == "ratio":
        return max(options.min_count, options.min_pair_count)
    return options.min_count


def _alphabet_limit(options: LearningOptions, letters: LetterCounts) -> int:
    if options.alphabet is not None:
        return options.alphabet
    return WIDE_ALPHABET if letters.mainly_east_asian else ALPHABET


def _from_characters(words: dict[str, int], specials: list[str], limit: int) -> _InitialPieces:
    """A piece for each character, and one with ``##`` if it occurs inside words."""
    kept, dropped = _alphabet(words, limit)
    known = np.zeros(_CODE_POINTS, dtype=bool)
    known[[ord(character) for character in kept]] = True
    flat = _flatten([word for word in words if len(word) <= LONGEST_WORD], words)
    if len(flat.weights):
        flat = _select(flat, np.logical_and.reduceat(known[flat.symbols], flat.bounds[:-1]))
    initial = np.zeros(len(flat.symbols), dtype=bool)
    initial[flat.bounds[:-1]] = True
    continuing = sorted(map(chr, np.unique(flat.symbols[~initial]).tolist()))
    pieces = [*specials, *kept, *(CONTINUES + character for character in continuing)]
    ids = np.zeros((2, _CODE_POINTS), dtype=np.int32)
    for row, characters, first in (
        (1, kept, len(specials)),
        (0, continuing, len(specials) + len(kept)),
    ):
        codes = [ord(character) for character in characters]
        ids[row, codes] = np.arange(first, first + len(codes))
    symbols = ids[initial.astype(np.int8), flat.symbols]
    return _InitialPieces(pieces, SegmentedWords(symbols, flat.bounds, flat.weights), dropped)


def _from_bytes(words: dict[str, int], specials: list[str], *, before: str = "") -> _InitialPieces:
    """A piece for each byte, spelled in the usual visible characters.

    Args:
        words: with counts.
        specials: the first pieces.
        before: what every word starts with, besides.
    """
    visible = sorted(ByteLevel.alphabet())
    kept = [word for word in words if len(word) <= LONGEST_WORD]
    if not kept:
        raise InputError(
            f"every word of the text is longer than {LONGEST_WORD} characters, so there is nothing "
            "to learn from; put spaces between words."
        )
    spelled = [(before + word).encode() for word in kept]
    text = np.frombuffer(b"".join(spelled), dtype=np.uint8)
    word_bounds = bounds([len(word) for word in spelled])
    ids = np.zeros(256, dtype=np.int32)
    for byte, character in _visible_bytes().items():
        ids[byte] = len(specials) + visible.index(character)
    weights = np.fromiter((words[word] for word in kept), np.int64, count=len(kept))
    return _InitialPieces(
        [*specials, *visible], SegmentedWords(ids[text], word_bounds, weights), {}
    )


def _visible_bytes() -> dict[int, str]:
    """The character that stands for each byte: itself if it is visible, else one from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    characters = map(chr, [*shown, *range(256, 256 + len(hidden))])
    return dict(zip([*shown, *hidden], characters, strict=True))


def _alphabet(words: dict[str, int], limit: int) -> tuple[list[str], dict[str, int]]:
    """The ``limit`` most frequent characters in sorted order, and the others with counts."""
    counts = np.zeros(_CODE_POINTS, dtype=np.int64)
    flat = _flatten(list(words), words)
    np.add.at(counts, flat.symbols, np.repeat(flat.weights, np.diff(flat.bounds)))
    found = np.flatnonzero(counts)
    ordered = found[np.argsort(-counts[found], kind="stable")].tolist()
    dropped = {chr(code): int(counts[code]) for code in ordered[limit:]}
    return sorted(map(chr, ordered[:limit])), dropped


def _flatten(chosen: list[str], words: dict[str, int]) -> SegmentedWords:
    """Some of the words, as code points end to end."""
    lengths = np.fromiter(map(len, chosen), np.int64, count=len(chosen))
    weights = np.fromiter((words[word] for word in chosen), np.int64, count=len(chosen))
    symbols = code_points("".join(chosen)).astype(np.int32)
    return SegmentedWords(symbols, bounds(lengths), weights)


def _select(flat: SegmentedWords, chosen: NDArray[np.bool_]) -> SegmentedWords:
    lengths = np.diff(flat.bounds)
    symbols = flat.symbols[np.repeat(chosen, lengths)]
    return SegmentedWords(symbols, bounds(lengths[chosen]), flat.weights[chosen])


def _join_characters(left: str, right: str) -> str:
    return left + right.removeprefix(CONTINUES)
