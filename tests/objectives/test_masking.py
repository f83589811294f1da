"""Masked-LM targets: how many, which, what is shown, and on what they depend."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bothways.objectives import masking
from bothways.objectives.masking import (
    Vocabulary,
    mask_tokens,
    max_predictions,
    next_tokens,
    unspaced,
)
from bothways.objectives.objective import Draw
from bothways.pretraining.options import MaskOptions
from bothways.randomness import Purpose, bits
from bothways.tokenization.tokenizer import Tokenizer
from pretraining_examples import ORDINARY, SPECIALS, TOKENIZER

VOCABULARY = Vocabulary.of(TOKENIZER)
Ints = NDArray[np.int64]


def flat(lengths: list[int], seed: int = 0, specials: float = 0.0) -> tuple[Ints, Ints]:
    """Random sequences with [CLS] first and [SEP] last, and specials strewn into the text."""
    rng = np.random.default_rng(seed)
    tokens = rng.choice(ORDINARY, sum(lengths))
    strewn = rng.random(len(tokens)) < specials
    tokens[strewn] = rng.choice(TOKENIZER.special_ids, strewn.sum())
    bounds = np.cumsum([0, *lengths]).astype(np.int64)
    tokens[bounds[:-1]], tokens[bounds[1:] - 1] = TOKENIZER.cls_id, TOKENIZER.sep_id
    return tokens, bounds


def mask(
    tokens: Ints,
    bounds: Ints,
    *,
    options: MaskOptions | None = None,
    vocabulary: Vocabulary = VOCABULARY,
    budget: int = 20,
    seed: int = 1,
    epoch: int | Ints = 0,
    index: Ints | None = None,
) -> tuple[Ints, Ints, Ints]:
    count = len(bounds) - 1
    return mask_tokens(
        tokens,
        bounds,
        Draw(
            seed,
            np.broadcast_to(np.asarray(epoch), count),
            np.arange(count) if index is None else index,
        ),
        vocabulary=vocabulary,
        options=options or MaskOptions(),
        budget=budget,
    )[:3]


def per_sequence(at: Ints, bounds: Ints) -> list[int]:
    return np.histogram(at, bounds)[0].tolist() if len(at) else [0] * (len(bounds) - 1)


def test_budgets() -> None:
    assert max_predictions(128, 0.15) == 20
    assert max_predictions(512, 0.15) == 77
    assert max_predictions(100, 0.15) == 15  # exact, not 16 by rounding error
    assert max_predictions(20, 0.07) == 2


def test_the_vocabulary() -> None:
    assert VOCABULARY.special.sum() == 5
    assert VOCABULARY.special[TOKENIZER.special_ids].all()
    assert VOCABULARY.ordinary.tolist() == ORDINARY.tolist()
    assert VOCABULARY.mask_id == TOKENIZER.id("[MASK]")


def test_numbers_of_targets() -> None:
    lengths = [3, 4, 5, 10, 20, 24, 60, 127, 128, 512]
    tokens, bounds = flat(lengths)
    _, at, _ = mask(tokens, bounds, budget=77)
    # round(0.15 * length): 0.45, 0.6, 0.75, 1.5, 3, 3.6, 9, 19.05, 19.2, 76.8
    assert per_sequence(at, bounds) == [1, 1, 1, 2, 3, 4, 9, 19, 19, 77]
    _, at, _ = mask(tokens, bounds, budget=20)
    assert per_sequence(at, bounds)[-1] == 20
    _, at, _ = mask(tokens, bounds, options=MaskOptions(rate=0.5), budget=1000)
    assert per_sequence(at, bounds) == [1, 2, 2, 5, 10, 12, 30, 64, 64, 256]


@given(
    st.lists(st.integers(2, 60), min_size=1, max_size=10),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.integers(0, 2**62),
)
def test_what_may_change(lengths: list[int], specials: float, seed: int) -> None:
    tokens, bounds = flat(lengths, seed % 1000, specials)
    before = tokens.copy()
    shown, at, ids = mask(tokens, bounds, seed=seed)
    assert (tokens == before).all(), "the argument is left alone"
    assert (np.diff(at) > 0).all()
    assert (ids == before[at]).all()
    assert not np.isin(ids, TOKENIZER.special_ids).any()
    rest = np.setdiff1d(np.arange(len(tokens)), at)
    assert (shown[rest] == before[rest]).all()
    put_in = shown[at][shown[at] != VOCABULARY.mask_id]
    assert np.isin(put_in, ORDINARY).all()
    wanted = np.clip(np.rint(np.array(lengths) * 0.15), 1, 20)
    free = per_sequence(np.flatnonzero(~VOCABULARY.special[before]), bounds)
    assert per_sequence(at, bounds) == np.minimum(wanted, free).tolist()


@given(st.lists(st.integers(3, 60), min_size=2, max_size=8), st.data())
def test_neighbours_and_place_in_the_batch_do_not_matter(
    lengths: list[int], data: st.DataObject
) -> None:
    tokens, bounds = flat(lengths)
    epochs = np.array(data.draw(st.lists(st.integers(0, 3), min_size=8, max_size=8)))
    epochs = epochs[: len(lengths)]
    index = np.arange(len(lengths)) * 7
    shown, _, _ = mask(tokens, bounds, epoch=epochs, index=index)
    order = data.draw(st.permutations(range(len(lengths))))
    order = order[: data.draw(st.integers(1, len(order)))]
    moved = np.concatenate([tokens[bounds[i] : bounds[i + 1]] for i in order])
    edges = np.cumsum([0, *(lengths[i] for i in order)]).astype(np.int64)
    shown_moved, _, _ = mask(moved, edges, epoch=epochs[order], index=index[order])
    expected = np.concatenate([shown[bounds[i] : bounds[i + 1]] for i in order])
    assert (shown_moved == expected).all()


@pytest.mark.parametrize("kind", ["pieces", "words"])
def test_a_batch_without_sequences_has_no_targets(kind: Literal["pieces", "words"]) -> None:
    nothing = np.zeros(0, np.int64)
    found = mask(nothing, np.zeros(1, np.int64), options=MaskOptions(kind=kind))
    assert [values.tolist() for values in found] == [[], [], []]


def test_seed_epoch_and_index_each_change_the_mask() -> None:
    tokens, bounds = flat([128] * 4)
    first = mask(tokens, bounds)[1].tolist()
    assert first == mask(tokens, bounds)[1].tolist()
    assert first != mask(tokens, bounds, epoch=1)[1].tolist()
    assert first != mask(tokens, bounds, seed=2)[1].tolist()
    assert first != mask(tokens, bounds, index=np.arange(4) + 1)[1].tolist()


def test_seed_epoch_and_index_each_change_what_is_shown() -> None:
    tokens, bounds = flat([128] * 4)
    for mix in (MaskOptions(0.99, 0.5, 0.0), MaskOptions(0.99, 0.0, 1.0)):
        shown, at, _ = mask(tokens, bounds, options=mix, budget=1000)
        for change in ({"epoch": 1}, {"seed": 2}, {"index": np.arange(4) + 1}):
            again, at_again, _ = mask(tokens, bounds, options=mix, budget=1000, **change)  # type: ignore[arg-type]
            assert (at == at_again).all(), "everything is a target"
            assert (shown != again).any()


@pytest.fixture(scope="module")
def many() -> tuple[Ints, Ints, Ints, Ints]:
    """6000 sequences of 128: 114,000 targets."""
    tokens, bounds = flat([128] * 6000)
    return (tokens, *mask(tokens, bounds))


def within_four_sigma(hits: int, tries: int, share: float) -> bool:
    return abs(hits - tries * share) < 4 * np.sqrt(tries * share * (1 - share))


def test_what_is_shown(many: tuple[Ints, Ints, Ints, Ints]) -> None:
    _, shown, at, ids = many
    assert len(at) == 6000 * 19
    masked = shown[at] == VOCABULARY.mask_id
    same = shown[at] == ids
    assert within_four_sigma(int(masked.sum()), len(at), 0.8)
    # A random word is the original itself once in a while.
    kept = 0.1 + 0.1 / len(ORDINARY)
    assert within_four_sigma(int(same.sum()), len(at), kept)
    assert within_four_sigma(int((~masked & ~same).sum()), len(at), 0.2 - kept)


@pytest.mark.parametrize(("share_mask", "share_random"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_other_shares(share_mask: float, share_random: float) -> None:
    tokens, bounds = flat([128] * 100)
    shown, at, ids = mask(tokens, bounds, options=MaskOptions(mask=share_mask, random=share_random))
    if share_mask:
        assert (shown[at] == VOCABULARY.mask_id).all()
    elif share_random:
        assert 0 < (shown[at] == ids).mean() < 0.1
    else:
        assert (shown == tokens).all()


def test_random_words_are_even_over_the_ordinary_ones(many: tuple[Ints, Ints, Ints, Ints]) -> None:
    _, shown, at, ids = many
    replaced = (shown[at] != VOCABULARY.mask_id) & (shown[at] != ids)
    counts = np.bincount(shown[at][replaced], minlength=TOKENIZER.vocab_size)
    assert counts[TOKENIZER.special_ids].sum() == 0
    drawn = counts[ORDINARY]
    assert drawn.min() > 0, "every ordinary word can be drawn, the last ones too"
    assert ((drawn - drawn.mean()) ** 2 / drawn.mean()).sum() < 70  # chi-square of 32, p < 1e-4


def test_places_are_even(many: tuple[Ints, Ints, Ints, Ints]) -> None:
    _, _, at, _ = many
    counts = np.bincount(at % 128, minlength=128)
    assert counts[0] == counts[127] == 0
    inner = counts[1:127]
    # Each of 126 places is chosen with 19 / 126, without replacement.
    variance = inner.mean() * (1 - 19 / 126)
    assert ((inner - inner.mean()) ** 2 / variance).sum() < 195  # of 125, p < 1e-4


def test_what_is_shown_does_not_depend_on_the_place(many: tuple[Ints, Ints, Ints, Ints]) -> None:
    _, shown, at, _ = many
    masked = shown[at] == VOCABULARY.mask_id
    for half in (at % 128 < 64, at % 128 >= 64):
        assert within_four_sigma(int(masked[half].sum()), int(half.sum()), 0.8)
    neighbours = (np.diff(at) == 1) & (at[1:] // 128 == at[:-1] // 128)
    assert within_four_sigma(int(masked[1:][neighbours].sum()), int(neighbours.sum()), 0.8)


def test_places_beyond_the_tie_break_are_chosen_too() -> None:
    tokens, bounds = flat([5000])
    _, at, _ = mask(tokens, bounds, budget=10_000)
    assert len(at) == 750
    assert at.max() > 4500


# ------------------------------------------------------------------------------------ whole words

# Words of one to five pieces: a piece with ## continues.
WORDS = Tokenizer.from_pieces([*SPECIALS, *"abcdefgh", *(f"##{c}" for c in "abcdefgh"), ",", "."])
WORD_VOCABULARY = Vocabulary.of(WORDS)
WHOLE = MaskOptions(kind="words")


def words_of(tokens: Ints, start: int, stop: int) -> list[list[int]]:
    """Places of each word of a sequence, told piece by piece."""
    found: list[list[int]] = []
    before_special = True
    for at in range(start, stop):
        special = tokens[at] in WORDS.special_ids
        if not special:
            if before_special or not WORDS.pieces[tokens[at]].startswith("##"):
                found.append([])
            found[-1].append(at)
        before_special = special
    return found


def literal_words(tokens: Ints, bounds: Ints, wanted: list[int], seed: int) -> list[int]:
    """The original's loop: words in random order, those that do not fit passed over."""
    chosen: list[int] = []
    for row in range(len(bounds) - 1):
        words = words_of(tokens, int(bounds[row]), int(bounds[row + 1]))
        fitting = [w for w in words if len(w) <= wanted[row]]
        fitting += [[at] for w in words if len(w) > wanted[row] for at in w]
        keys = {w[0]: bits(seed, Purpose.MASK, 0, row, w[0] - bounds[row]) for w in fitting}
        left = wanted[row]
        for word in sorted(fitting, key=lambda w: int(keys[w[0]])):
            if len(word) <= left:
                chosen += word
                left -= len(word)
    return sorted(chosen)


def word_text(lengths: list[int], seed: int, specials: float) -> tuple[Ints, Ints]:
    rng = np.random.default_rng(seed)
    ordinary = np.setdiff1d(np.arange(WORDS.vocab_size), WORDS.special_ids)
    tokens = rng.choice(ordinary, sum(lengths))
    strewn = rng.random(len(tokens)) < specials
    tokens[strewn] = rng.choice(WORDS.special_ids, strewn.sum())
    bounds = np.cumsum([0, *lengths]).astype(np.int64)
    tokens[bounds[:-1]], tokens[bounds[1:] - 1] = WORDS.cls_id, WORDS.sep_id
    return tokens, bounds


@given(
    st.lists(st.integers(2, 70), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([0.05, 0.15, 0.6, 0.99]),
    st.integers(0, 2**62),
)
def test_whole_words_equal_the_rule_told_literally(
    lengths: list[int], specials: float, rate: float, seed: int
) -> None:
    tokens, bounds = word_text(lengths, seed % 1000, specials)
    options = MaskOptions(kind="words", rate=rate)
    shown, at, ids = mask(
        tokens, bounds, options=options, vocabulary=WORD_VOCABULARY, budget=20, seed=seed
    )
    wanted = np.clip(np.rint(np.array(lengths) * rate), 1, 20).astype(int).tolist()
    assert at.tolist() == literal_words(tokens, bounds, wanted, seed)
    assert (np.array(per_sequence(at, bounds)) <= wanted).all(), "the budget is never exceeded"
    rest = np.setdiff1d(np.arange(len(tokens)), at)
    assert (shown[rest] == tokens[rest]).all()
    assert (ids == tokens[at]).all()


def test_words_that_touch_punctuation() -> None:
    # ab,c.d stands as a ##b , c . d: five words, and each is chosen alone or not at all.
    text = [WORDS.id(p) for p in ("[CLS]", "a", "##b", ",", "c", ".", "d", "[SEP]")]
    tokens, bounds = np.array(text * 500), np.arange(0, 501 * 8, 8)
    _, at, _ = mask(
        tokens,
        bounds,
        options=MaskOptions(kind="words", rate=0.25),
        vocabulary=WORD_VOCABULARY,
    )
    place = np.zeros(len(tokens), dtype=bool)
    place[at] = True
    chosen = place.reshape(-1, 8)
    assert (chosen[:, 1] == chosen[:, 2]).all()
    assert (chosen.sum(1) == 2).all()
    assert (chosen.sum(0)[1:7] > 50).all(), "every word has its turn"
    assert {tuple(np.flatnonzero(row)) for row in chosen} >= {(1, 2), (3, 4), (4, 5), (3, 6)}


def test_each_piece_of_a_word_is_shown_by_its_own_draw() -> None:
    tokens, bounds = word_text([128] * 3000, 1, 0.0)
    shown, at, _ = mask(tokens, bounds, options=WHOLE, vocabulary=WORD_VOCABULARY)
    masked = shown[at] == WORDS.mask_id
    assert within_four_sigma(int(masked.sum()), len(at), 0.8)
    within = (np.diff(at) == 1) & ~WORD_VOCABULARY.starts_word[tokens[at[1:]]]
    assert within.sum() > 10_000
    assert within_four_sigma(int((masked[1:] & masked[:-1])[within].sum()), within.sum(), 0.64)


def test_a_word_longer_than_the_budget_is_taken_apart() -> None:
    # Left whole, it could never be chosen: the sequence would have no target.
    tokens = np.array([WORDS.id(p) for p in ("[CLS]", "a", *["##b"] * 28, "[SEP]")])
    _, at, _ = mask(tokens, np.array([0, 31]), options=WHOLE, vocabulary=WORD_VOCABULARY)
    assert len(at) == 5


def test_pieces_of_text_without_spaces_are_words() -> None:
    # Kana and Thai run on without spaces; a Hangul word takes its endings with it; marks, small
    # kana and the prolonged sound belong to the letter before them.
    begin = ["##の", "##カ", "##ｶ", "##ㄅ", "##ที่", "##中", "##ກ", "##ក", "##က"]
    continued = ["##입니다", "##ing", "##่", "##ゃ", "##ー", "##1", "##é", "##\uff9e", "##า"]
    assert unspaced(begin).all()
    assert not unspaced(continued).any()
    assert not unspaced(["word", "", "[MASK]", ","]).any()
    tokenizer = Tokenizer.from_pieces([*SPECIALS, "こ", "한", *begin, *continued])
    starts = Vocabulary.of(tokenizer).starts_word
    assert [p for p in tokenizer.pieces if not starts[tokenizer.id(p)]] == continued
    # A segmenter's spaces are taken at their word.
    starts = Vocabulary.of(tokenizer, segmented=True).starts_word
    assert [p for p in tokenizer.pieces if not starts[tokenizer.id(p)]] == begin + continued


# --------------------------------------------------------------------------------- left to right


@given(st.lists(st.integers(2, 60), min_size=1, max_size=10))
def test_next_tokens(lengths: list[int]) -> None:
    tokens, bounds = flat(lengths)
    shown, at, ids, _ = next_tokens(tokens, bounds, Draw(0, bounds[1:], bounds[1:]))
    assert shown is tokens
    expected = [
        (i, int(tokens[i + 1]))
        for start, stop in itertools.pairwise(bounds)
        for i in range(start, stop - 1)
    ]
    assert list(zip(at.tolist(), ids.tolist(), strict=True)) == expected


# ----------------------------------------------------------------------------------- exact choices


@given(
    st.lists(st.integers(2, 70), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.2]),
    st.integers(0, 2**62),
)
def test_pieces_equal_the_rule_told_literally(
    lengths: list[int], specials: float, seed: int
) -> None:
    # Of text whose words have several pieces: each piece is chosen for itself.
    tokens, bounds = word_text(lengths, seed % 1000, specials)
    _, at, _ = mask(tokens, bounds, vocabulary=WORD_VOCABULARY, seed=seed)
    expected: list[int] = []
    for row, (start, stop) in enumerate(itertools.pairwise(bounds.tolist())):
        ordinary = [i for i in range(start, stop) if tokens[i] not in WORDS.special_ids]
        keys = {i: int(bits(seed, Purpose.MASK, 0, row, np.int64(i - start))) for i in ordinary}
        wanted = min(max(round((stop - start) * 0.15), 1), 20)
        expected += sorted(ordinary, key=keys.__getitem__)[:wanted]
    assert at.tolist() == sorted(expected)


def test_equal_draws_are_told_apart_by_their_places() -> None:
    places = np.arange(2048)
    for draws in (np.zeros(2048, np.uint64), np.full(2048, 2**64 - 1, np.uint64)):
        priorities = masking._priorities(draws, places)
        assert (priorities & np.uint64(2047)).tolist() == places.tolist()
        assert len(set((priorities >> np.uint64(11)).tolist())) == 1


def test_rates_just_above_a_whole_number_are_rounded_up() -> None:
    assert max_predictions(20, 0.15 + 1e-8) == 4
