"""Initial weights with relative-offset and duplicate-token heads in the first layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bothways.config.fields import fingerprint
from bothways.errors import ConfigError
from bothways.families.config import ModelConfig
from bothways.families.options import SizeOptions
from bothways.model.model import EncoderModel
from bothways.model.priming import prime_first_layer, primed_rows
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.start import starting_model
from model_examples import BOTH_HEADS, small_tokenizer

LENGTH = 96


def shape(hidden: int, heads: int, *, left_to_right: bool = False) -> ModelConfig:
    size = SizeOptions(layers=2, hidden=hidden, heads=heads, positions=128, dropout=0.0)
    return size.resolve(2000, left_to_right=left_to_right)


def first_attention(config: ModelConfig, tokens: np.ndarray) -> Tensor:
    """Probabilities of the first layer's heads by the plain formula, [heads, L, L]."""
    encoder = EncoderModel(config, seed=3).encoder
    prime_first_layer(encoder)
    table = encoder.embeddings
    summed = table.tokens.weight[tokens] + table.positions.weight[: len(tokens)]
    x = F.layer_norm(summed + table.segments.weight[0], (config.hidden,))
    qkv = (x @ encoder.layers[0].attention.qkv.weight.T).chunk(3, -1)
    q, k = (part.unflatten(1, (config.heads, -1)).transpose(0, 1) for part in qkv[:2])
    scores = q @ k.transpose(1, 2) / config.head_size**0.5
    if config.left_to_right:
        scores += torch.full(scores.shape[1:], -torch.inf).triu(1)
    return scores.softmax(-1).detach()


@pytest.mark.parametrize(
    ("hidden", "heads", "left_to_right", "offsets"),
    [
        (256, 4, False, [-1, 1]),
        (128, 2, False, [-1]),
        (320, 5, False, [-1, 1, -2]),
        (128, 4, False, [-1, 1]),  # heads of 32
        (256, 1, False, [-1]),
        (90, 2, False, [-1]),  # heads of an odd size
        (256, 4, True, [-1, -2]),
        (384, 12, False, [-1, 1, -2, 2, -3, 3]),
    ],
)
def test_offset_heads_attend_most_to_their_offsets(
    hidden: int, heads: int, left_to_right: bool, offsets: list[int]
) -> None:
    tokens = np.random.default_rng(0).integers(5, 2000, LENGTH)
    tokens[::7] = 4  # [MASK]
    attention = first_attention(shape(hidden, heads, left_to_right=left_to_right), tokens)
    around = [o for o in range(-9, 10 if not left_to_right else 0) if o]
    for head, offset in enumerate(offsets):
        mean = {o: float(attention[head].diagonal(o)[9:-9].mean()) for o in around}
        assert max(mean, key=mean.__getitem__) == offset, (head, mean)
        # Uniform would be about 1/96; left to right 1/48 on average.
        assert mean[offset] > 0.1, (head, mean)


@pytest.mark.parametrize("left_to_right", [False, True])
@pytest.mark.parametrize(("hidden", "heads"), [(256, 4), (128, 2), (320, 5), (384, 12), (90, 2)])
def test_duplicate_token_heads_attend_to_copies_anywhere(
    hidden: int, heads: int, left_to_right: bool
) -> None:
    tokens = np.random.default_rng(1).permutation(np.arange(5, 2000))[:LENGTH]
    copies = {80: 10, 90: 89, 60: 25}  # by position, of the token at another
    for at, of in copies.items():
        tokens[at] = tokens[of]
    attention = first_attention(shape(hidden, heads, left_to_right=left_to_right), tokens)
    for head in range((heads + 1) // 2, heads):
        for at, of in copies.items():
            row = attention[head, at]
            assert sorted(row.topk(2).indices.tolist()) == sorted([at, of]), (head, at)
            assert row[[at, of]].min() > 0.05, (head, at)  # uniform would be 0.01


def test_families_with_other_positions() -> None:
    """RoBERTa's are in the rows after that of padding; some have none of the hidden size."""
    size = SizeOptions(family="roberta", layers=1, hidden=64, heads=2, positions=16, init="primed")
    config = size.resolve(100)
    assert config.place_offset
    tables = []
    for shape in (config, replace(config, place_offset=0)):
        encoder = EncoderModel(shape, seed=1).encoder
        prime_first_layer(encoder)
        tables.append(encoder.embeddings.positions.weight[shape.place_offset :])
    assert torch.equal(*tables)
    for family, hidden in (("modernbert", 64), ("albert", 64), ("electra", 256)):
        with pytest.raises(ConfigError, match=f"^init is primed, .* family {family} has"):
            replace(size, family=family, hidden=hidden).resolve(100)


def test_a_copy_in_the_other_segment_is_as_good() -> None:
    config = shape(128, 2)
    encoder = EncoderModel(config, seed=3).encoder
    prime_first_layer(encoder)
    segments = encoder.embeddings.segments.weight.detach()
    assert segments[:, :64].std() == pytest.approx(config.init_std, rel=0.2)
    assert not segments[:, 64:].any()


def test_everything_else_keeps_its_draw() -> None:
    config = shape(128, 2)
    plain, changed = (
        EncoderModel(config, **BOTH_HEADS, seed=1),
        EncoderModel(config, **BOTH_HEADS, seed=1),
    )
    prime_first_layer(changed.encoder)
    before, after = plain.state_dict(), changed.state_dict()
    differ = {name for name in before if not torch.equal(before[name], after[name])}
    qkv = "encoder.layers.0.attention.qkv.weight"
    tables = {f"encoder.embeddings.{name}.weight" for name in ("positions", "segments")}
    assert differ == {*tables, qkv}
    assert torch.equal(before[qkv][2 * 128 :], after[qkv][2 * 128 :])  # values
    positions = after["encoder.embeddings.positions.weight"]
    assert positions[:, :64].std() == pytest.approx(1.5 * config.init_std, rel=0.05)


def test_rows_are_held_while_they_are_as_primed() -> None:
    encoder = EncoderModel(shape(96, 3), seed=1).encoder
    assert not primed_rows(encoder, "encoder"), "random weights"
    prime_first_layer(encoder)
    held = primed_rows(encoder, "encoder")
    names = [f"encoder.layers.0.attention.qkv.{kind}" for kind in ("weight", "bias")]
    assert list(held) == names
    for rows in held.values():  # the third head's queries and keys
        assert rows.nonzero()[:, 0].tolist() == [*range(64, 96), *range(160, 192)]
    qkv = encoder.layers[0].attention.qkv
    with torch.no_grad():
        qkv.weight[0] += 1  # an offset head
        qkv.weight[-1] += 1  # a value
        assert primed_rows(encoder, "encoder")
        qkv.bias[64] += 1
        assert not primed_rows(encoder, "encoder")
        qkv.bias[64] -= 1
        qkv.weight[160, 3] += 1
    assert not primed_rows(encoder, "encoder")


def test_pre_training_begins_with_it_where_the_recipe_says_so() -> None:
    class Store:
        tokenizer = small_tokenizer(100)

    plain = PretrainConfig(model=SizeOptions(layers=1, hidden=32, heads=2))
    other = replace(plain, model=replace(plain.model, init="primed"))
    assert fingerprint(plain) != fingerprint(other)
    before, after = (starting_model(config, Store()) for config in (plain, other))  # type: ignore[arg-type]
    expected = EncoderModel(before.config, **BOTH_HEADS, seed=0)
    for found in (before, after):
        states = expected.state_dict()
        assert all(torch.equal(v, states[name]) for name, v in found.state_dict().items())
        prime_first_layer(expected.encoder)
