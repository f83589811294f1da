"""Masked-LM targets: how many, which, what is shown, and on what they depend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bothways.config import MaskOptions
from bothways.pretraining.masking import Vocabulary, mask_tokens, max_predictions
from pretraining_examples import ORDINARY, TOKENIZER

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
    budget: int = 20,
    seed: int = 1,
    epoch: int | Ints = 0,
    index: Ints | None = None,
) -> tuple[Ints, Ints, Ints]:
    count = len(bounds) - 1
    return mask_tokens(
        tokens,
        bounds,
        VOCABULARY,
        options or MaskOptions(),
        budget=budget,
        seed=seed,
        epoch=np.broadcast_to(np.asarray(epoch), count),
        index=np.arange(count) if index is None else index,
    )


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


def test_seed_epoch_and_index_each_change_the_mask() -> None:
    tokens, bounds = flat([128] * 4)
    first = mask(tokens, bounds)[1].tolist()
    assert first == mask(tokens, bounds)[1].tolist()
    assert first != mask(tokens, bounds, epoch=1)[1].tolist()
    assert first != mask(tokens, bounds, seed=2)[1].tolist()
    assert first != mask(tokens, bounds, index=np.arange(4) + 1)[1].tolist()


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
