"""Learning a WordPiece vocabulary from text.

The learner merges the most frequent pair of neighbouring pieces until the vocabulary is full
(Sennrich et al. 2016), over words counted once, with pair counts kept up to date. Ties go to the
older pieces, so that the same text gives the same vocabulary in every process; the trainer of the
``tokenizers`` library does not, which is why it is not used here.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from bothways.errors import ConfigError, InputError
from bothways.tokenization.normalization import normalizer, word_splitter
from bothways.tokenization.tokenizer import (
    CONTINUES,
    LONGEST_WORD,
    SPECIAL_PIECES,
    Tokenizer,
    explain_unreadable,
)

Pair = tuple[int, int]


def learn_vocabulary(
    lines: Iterable[str],
    *,
    size: int,
    lowercase: bool = True,
    min_count: int = 2,
    alphabet: int = 1000,
) -> Tokenizer:
    """Learn a vocabulary; a function of the text alone, not of its order or of the process.

    Args:
        lines: the text, in pieces that end at the end of a word.
        size: number of pieces, the five special ones included. Text too small to fill it gives
            fewer: see ``vocab_size`` of the result.
        lowercase: lower-case and strip accents, as BERT uncased does.
        min_count: pieces of several characters that occur less often are not learned.
        alphabet: number of distinct characters kept, the most frequent ones; a word with any
            other character becomes [UNK].

    Raises:
        InputError: the text has no word in it.
        ConfigError: ``size`` has no room for the special pieces and the alphabet.
    """
    words = count_words(lines, lowercase=lowercase)
    if not words:
        raise InputError("the text has no word in it; a vocabulary needs some text to learn from.")
    characters = _most_frequent_characters(words, alphabet)
    kept = {
        word: count
        for word, count in words.items()
        if len(word) <= LONGEST_WORD and characters.issuperset(word)
    }
    continuing = {character for word in kept for character in word[1:]}
    pieces = [*SPECIAL_PIECES, *sorted(characters), *(CONTINUES + c for c in sorted(continuing))]
    if size < len(pieces):
        raise ConfigError(
            f"size is {size}, but {len(SPECIAL_PIECES)} special pieces and the alphabet of this "
            f"text ({len(characters)} characters, {len(continuing)} of them also inside words) "
            f"need {len(pieces)}. Ask for a larger size or a smaller alphabet (now {alphabet})."
        )
    _merge(kept, pieces, size=size, min_count=max(min_count, 1))
    return Tokenizer.from_pieces(pieces, lowercase=lowercase)


def count_words(lines: Iterable[str], *, lowercase: bool) -> Counter[str]:
    """How often each word (as the tokenizer splits them) occurs."""
    clean, split = normalizer(lowercase=lowercase), word_splitter()
    # No rule of normalisation reaches across a plain space, so what stands between spaces is
    # counted first and each such chunk is normalised once.
    chunks: Counter[str] = Counter()
    for line in lines:
        chunks.update(line.split(" "))
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        try:
            found = split.pre_tokenize_str(clean.normalize_str(chunk))
        except (TypeError, UnicodeEncodeError) as error:
            raise explain_unreadable([chunk]) from error
        for word, _ in found:
            words[word] += count
    return words


def _most_frequent_characters(words: Counter[str], limit: int) -> set[str]:
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    return set(sorted(counts, key=lambda character: (-counts[character], character))[:limit])


def _merge(words: dict[str, int], pieces: list[str], *, size: int, min_count: int) -> None:
    """Append merged pieces to ``pieces`` until there are ``size`` or no pair is frequent enough."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    spelled = [[ids[word[0]], *(ids[CONTINUES + c] for c in word[1:])] for word in words]
    weights = list(words.values())
    counts: defaultdict[Pair, int] = defaultdict(int)
    places: defaultdict[Pair, list[int]] = defaultdict(list)  # words that have or had the pair
    for place, (symbols, weight) in enumerate(zip(spelled, weights, strict=True)):
        for pair in pairwise(symbols):
            counts[pair] += weight
            places[pair].append(place)
    # The heap may hold outdated counts, never too small a largest one: a count that grew is pushed
    # anew, one that shrank is put back with its present value when it comes up.
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    while heap and len(pieces) < size:
        negative, pair = heapq.heappop(heap)
        count = counts.get(pair, 0)
        if count < min_count:
            continue
        if count != -negative:
            heapq.heappush(heap, (-count, pair))
            continue
        joined = pieces[pair[0]] + pieces[pair[1]].removeprefix(CONTINUES)
        # Two ways of cutting a word can lead to one piece: it keeps its first id.
        new = ids.setdefault(joined, len(pieces))
        if new == len(pieces):
            pieces.append(joined)
        grown: set[Pair] = set()
        for place in places.pop(pair):
            for present in _join(spelled[place], pair, new, weights[place], counts):
                places[present].append(place)
                grown.add(present)
        del counts[pair]
        for present in grown:
            heapq.heappush(heap, (-counts[present], present))


def _join(
    symbols: list[int], pair: Pair, new: int, weight: int, counts: defaultdict[Pair, int]
) -> list[Pair]:
    """Replace ``pair`` in one word by ``new``, from the left, and update the neighbours' counts.

    Returns:
        The pairs with ``new`` in them that arose.
    """
    left, right = pair
    arose: list[Pair] = []
    at = 0
    while left in symbols[at:-1]:
        at = symbols.index(left, at)
        if symbols[at + 1] == right:
            if at > 0:
                counts[symbols[at - 1], left] -= weight
                arose.append((symbols[at - 1], new))
            if at + 2 < len(symbols):
                counts[right, symbols[at + 2]] -= weight
                arose.append((new, symbols[at + 2]))
            symbols[at : at + 2] = [new]
        at += 1
    for present in arose:
        counts[present] += weight
    return arose
