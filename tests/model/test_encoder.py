"""The encoder: limits, independence of sequences, precision, initial weights, sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bothways.errors import LengthError, ModelError
from bothways.families.config import ModelConfig
from bothways.families.heads import MASKED_LM, NEXT_SENTENCE, parameter_count
from bothways.families.options import SIZES, SizeOptions
from bothways.families.parameters import encoder_parameters
from bothways.model.batch import Inputs, collate
from bothways.model.encoder import Encoder, init_weights
from bothways.model.model import EncoderModel
from bothways.randomness import Purpose
from model_examples import (
    BOTH_HEADS,
    LENGTHS,
    POSITIONS,
    SHAPES,
    random_inputs,
    random_rows,
    randomise,
    small_config,
)

pytestmark = pytest.mark.usefixtures("several_tiles")


def _encoder(
    shape: tuple[int, ...] = SHAPES[1], dropout: float = 0.1, *, left_to_right: bool = False
) -> Encoder:
    encoder = Encoder(small_config(shape, dropout, left_to_right=left_to_right))
    randomise(encoder)
    return encoder.eval()


def _per_sequence(flat: Tensor, inputs: Inputs) -> list[Tensor]:
    return list(flat[: int(inputs.bounds[-1])].split(inputs.lengths.tolist()))


# -------------------------------------------------------------------- what a result may depend on


@pytest.mark.parametrize("lengths", [LENGTHS, (1,), (40, 1, 39, 2, 38, 3), (32, 32), (5,) * 7])
def test_a_batch_gives_what_one_sequence_at_a_time_gives(lengths: tuple[int, ...]) -> None:
    encoder = _encoder()
    tokens, segments = random_rows(128, lengths)
    inputs = collate(tokens, segments, max_positions=POSITIONS)
    together = _per_sequence(encoder(inputs), inputs)
    for t, s, batched in zip(tokens, segments, together, strict=True):
        alone = encoder(collate([t], [s], max_positions=POSITIONS))[: len(t)]
        torch.testing.assert_close(batched, alone, atol=1e-5, rtol=0)


def test_the_tail_does_not_matter() -> None:
    encoder = _encoder()
    inputs = random_inputs(128)
    total = int(inputs.bounds[-1])
    other = Inputs(
        torch.cat([inputs.tokens[:total], torch.full((99,), 127)]),
        torch.cat([inputs.segments[:total], torch.ones(99, dtype=torch.int64)]),
        torch.cat([inputs.positions[:total], torch.full((99,), 39)]),
        inputs.bounds,
    )
    torch.testing.assert_close(encoder(inputs)[:total], encoder(other)[:total], atol=1e-5, rtol=0)


def test_gradients_of_a_batch_are_the_sum_of_its_sequences_gradients() -> None:
    encoder = _encoder().double()
    tokens, segments = random_rows(128)
    weigh = torch.randn(POSITIONS, 32, dtype=torch.float64)

    def gradients(t: list[list[int]], s: list[list[int]]) -> list[Tensor]:
        inputs = collate(t, s, max_positions=POSITIONS)
        states = encoder(inputs, dtype=torch.float64)
        parts = _per_sequence(states, inputs)
        loss = torch.stack([(part * weigh[: len(part)]).sum() for part in parts]).sum()
        loss = loss + encoder.pool(states[inputs.starts]).sum()
        return list(torch.autograd.grad(loss, list(encoder.parameters())))

    together = gradients(tokens, segments)
    alone = [gradients([t], [s]) for t, s in zip(tokens, segments, strict=True)]
    for (name, _), whole, *parts in zip(encoder.named_parameters(), together, *alone, strict=True):
        torch.testing.assert_close(
            whole, torch.stack(parts).sum(0), msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("lengths", [LENGTHS, (32, 32)])
def test_left_to_right_no_place_sees_the_future(lengths: tuple[int, ...]) -> None:
    encoder, two_way = _encoder(left_to_right=True), _encoder()
    tokens, segments = random_rows(128, lengths)
    inputs = collate(tokens, segments, max_positions=POSITIONS)
    before = _per_sequence(encoder(inputs), inputs)
    for t, s, whole in zip(tokens, segments, before, strict=True):
        for stop in {1, len(t) // 2, len(t)} - {0}:  # what stands after it is not there at all
            part = collate([t[:stop]], [s[:stop]], max_positions=POSITIONS)
            torch.testing.assert_close(whole[:stop], encoder(part)[:stop], atol=1e-5, rtol=0)
    both_ways = two_way(inputs)[: inputs.bounds[-1]]
    seen = (both_ways - torch.cat(before)).abs().amax(-1)
    last = inputs.lengths.cumsum() - 1
    assert (seen > 1e-3).sum() >= len(seen) - len(lengths), "elsewhere both ways differ"
    # One layer alone lets the last place see all, as both ways do.
    ends = [_encoder((1, 32, 4, 50, 128), left_to_right=one)(inputs)[last] for one in (True, False)]
    torch.testing.assert_close(*ends, atol=1e-5, rtol=0)


def test_order_and_segments_do_matter() -> None:
    encoder = _encoder()
    tokens, segments = random_rows(128, (12,))
    plain = encoder(collate(tokens, segments, max_positions=POSITIONS))[:12]
    swapped = [[*tokens[0][:5], tokens[0][6], tokens[0][5], *tokens[0][7:]]]
    others = [[1 - s for s in segments[0]]]
    for t, s in ((swapped, segments), (tokens, others)):
        changed = encoder(collate(t, s, max_positions=POSITIONS))[:12]
        assert (changed - plain).abs().mean() > 0.01


def test_dropout_masks_are_keyed_by_the_seed_alone() -> None:
    encoder = _encoder().train()
    inputs = random_inputs(128)
    encoder.shared.dropout.reseed(5)
    first = encoder(inputs)
    encoder(random_inputs(128, (30, 30)))
    encoder.shared.dropout.reseed(5)
    assert torch.equal(encoder(inputs), first)
    encoder.shared.dropout.reseed(6)
    assert not torch.allclose(encoder(inputs), first, atol=0.1)


# ----------------------------------------------------------------------------------------- limits


def test_a_sequence_over_the_positions_is_refused() -> None:
    inputs = random_inputs(128, (41,), limit=100)
    with pytest.raises(LengthError, match=r"41 tokens.*positions for 40"):
        _encoder()(inputs)


@pytest.mark.parametrize("wrong", [97, 127, 128, -1])
def test_an_id_beyond_the_vocabulary_is_named_also_where_padding_rows_exist(wrong: int) -> None:
    """The matrix has 128 rows for 97 pieces: rows 97 to 127 are no pieces."""
    encoder = _encoder(SHAPES[0])
    inputs = collate([[5, wrong]], [[0, 0]], max_positions=POSITIONS)
    with pytest.raises(ModelError, match=rf"token id {wrong} .*97 pieces"):
        encoder(inputs)


@pytest.mark.parametrize("wrong", [2, -1])
def test_a_segment_beyond_the_segments_is_named(wrong: int) -> None:
    inputs = collate([[5, 6]], [[0, wrong]], max_positions=POSITIONS)
    with pytest.raises(ModelError, match=rf"segment id {wrong} .*2 segments"):
        _encoder()(inputs)


# -------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_stays_close_to_fp32(shape: tuple[int, ...]) -> None:
    """Outputs are of order one; bf16 has 8 bits, so an error of some 2^-8 a layer is its own."""
    encoder = _encoder(shape)
    inputs = random_inputs(shape[4])
    total = int(inputs.bounds[-1])
    exact, rounded = encoder(inputs)[:total], encoder(inputs, dtype=torch.bfloat16)[:total]
    assert rounded.dtype == torch.bfloat16
    error = (rounded.float() - exact).pow(2).mean().sqrt()
    assert 2**-12 < error < 4 * shape[0] * 2**-8 * exact.pow(2).mean().sqrt()


def test_fp32_is_within_its_rounding_of_float64() -> None:
    encoder = _encoder(SHAPES[2])
    inputs = random_inputs(1001)
    single = encoder(inputs)
    double = encoder.double()(inputs, dtype=torch.float64)
    total = int(inputs.bounds[-1])
    assert (single[:total].double() - double[:total]).abs().max() < 32 * 2**-24 * 4


def test_hidden_states_are_the_embeddings_and_every_layer() -> None:
    encoder = _encoder(SHAPES[2])
    inputs = random_inputs(1001)
    weights: list[list[Tensor]] = []
    states = encoder.hidden_states(inputs, weights=weights)
    assert len(states) == 4
    assert len(weights) == 3
    with torch.no_grad():  # library operations here too
        assert torch.equal(states[-1], encoder(inputs))
    assert torch.equal(states[0], encoder.embeddings(inputs, torch.float32))


# ---------------------------------------------------------------------------------- initial weights


@pytest.mark.parametrize("std", [0.02, 0.1])
def test_initial_weights_are_a_truncated_normal_within_two_deviations(std: float) -> None:
    size = SizeOptions(layers=1, hidden=128, heads=2, intermediate=256)
    config = replace(size.resolve(997), init_std=std)
    encoder = EncoderModel(config, seed=1).encoder
    for name, parameter in encoder.state_dict().items():
        if parameter.ndim == 2:
            values = parameter[:997] if name.endswith("tokens.weight") else parameter
            assert values.abs().max() <= 2 * std, name
            # A normal cut at two deviations keeps 0.8796 of its deviation.
            spread = 0.8796 * std
            tolerance = 4 / np.sqrt(2 * values.numel())
            assert values.std() == pytest.approx(spread, rel=tolerance), name
            assert abs(values.mean()) < 4 * spread / np.sqrt(values.numel()), name
        else:
            expected = 1 if name.endswith("norm.weight") else 0
            assert (parameter == expected).all(), name
    assert (encoder.embeddings.tokens.weight[997:] == 0).all()


def test_initial_weights_are_a_function_of_the_seed() -> None:
    config = small_config()

    def state(seed: int) -> dict[str, Tensor]:
        torch.randn(seed + 3)  # the global generator must not matter
        return EncoderModel(config, **BOTH_HEADS, classes=2, seed=seed).state_dict()

    one, again, other = state(1), state(1), state(2)
    assert all(torch.equal(one[name], again[name]) for name in one)
    same = [name for name in one if one[name].ndim == 2 and torch.equal(one[name], other[name])]
    assert not same


def test_two_heads_do_not_share_their_draws() -> None:
    model = EncoderModel(small_config(), **BOTH_HEADS, classes=2)
    assert model.masked_lm is not None
    assert model.next_sentence is not None
    assert model.classifier is not None
    draws = [
        model.masked_lm.dense.weight.flatten()[:32],
        model.next_sentence.output.weight.flatten(),
        model.classifier.output.weight.flatten(),
    ]
    assert len({tuple(draw.tolist()) for draw in draws}) == 3


def test_an_index_separates_modules_of_one_purpose() -> None:
    config = small_config()
    one, two = Encoder(config), Encoder(config)
    table = encoder_parameters(config)
    init_weights(one, table, 0.02, seed=0, purpose=Purpose.WEIGHTS)
    init_weights(two, table, 0.02, seed=0, purpose=Purpose.WEIGHTS, index=1)
    assert not torch.equal(one.pooler.weight, two.pooler.weight)


# ------------------------------------------------------------------------------------------- sizes


_PRETRAINED = {MASKED_LM: 1, NEXT_SENTENCE: 2}


def _real_parameters(config: ModelConfig, heads: dict[str, int]) -> int:
    model = EncoderModel(config, heads=heads)
    padding = (config.padded_vocab - config.vocab_size) * config.hidden
    return sum(parameter.numel() for parameter in model.parameters()) - padding


@pytest.mark.parametrize("heads", [{}, _PRETRAINED])
@pytest.mark.parametrize("size", ["tiny", "mini", "small"])
def test_the_real_weights_of_presets_are_counted(size: str, heads: dict[str, int]) -> None:
    config = SizeOptions(size=size).resolve(1001)  # type: ignore[arg-type]
    assert parameter_count(config, heads) == _real_parameters(config, heads)


@pytest.mark.parametrize("heads", [{}, _PRETRAINED])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_real_weights_of_other_shapes_are_counted(
    shape: tuple[int, ...], heads: dict[str, int]
) -> None:
    config = small_config(shape)
    assert parameter_count(config, heads) == _real_parameters(config, heads)


# Encoder with pooler at BERT's 30,522 pieces (Devlin et al. 2019; Turc et al. 2019 give millions).
PUBLISHED = {
    "tiny": 4_385_920,
    "mini": 11_170_560,
    "small": 28_763_648,
    "medium": 41_373_184,
    "base": 109_482_240,
    "large": 335_141_888,
}


@pytest.mark.parametrize("size", SIZES)
def test_presets_have_the_published_sizes(size: str) -> None:
    config = SizeOptions(size=size).resolve(30_522)  # type: ignore[arg-type]
    assert parameter_count(config) == PUBLISHED[size]
