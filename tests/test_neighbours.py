"""Initial weights whose first heads look at the tokens beside their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bothways.config import ModelConfig, PretrainConfig, SizeOptions
from bothways.config.fields import fingerprint
from bothways.model.batch import collate
from bothways.model.heads import Bert
from bothways.model.neighbours import look_at_neighbours
from bothways.pretraining.start import starting_model
from model_examples import small_tokenizer

LENGTH = 96


def shape(hidden: int, heads: int, *, left_to_right: bool = False) -> ModelConfig:
    size = SizeOptions(layers=2, hidden=hidden, heads=heads, positions=128, dropout=0.0)
    return size.resolve(2000, left_to_right=left_to_right)


def first_attention(config: ModelConfig, tokens: np.ndarray) -> Tensor:
    """Probabilities of the first layer's heads by the plain formula, [heads, L, L]."""
    encoder = Bert(config, seed=3).encoder
    look_at_neighbours(encoder)
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
        (256, 4, False, [-1, 1, -2, 2]),
        (128, 2, False, [-1, 1]),
        (320, 5, False, [-1, 1, -2, 2, -3]),
        (128, 4, False, [-1, 1, -2, 2]),  # heads of 32
        (256, 1, False, [-1]),
        (90, 2, False, [-1, 1]),  # heads of an odd size
        (256, 4, True, [-1, -2, -3, -4]),
    ],
)
def test_each_first_head_looks_most_at_its_offset(
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


def test_everything_else_keeps_its_draw() -> None:
    config = shape(128, 2)
    plain, changed = Bert(config, pretraining=True, seed=1), Bert(config, pretraining=True, seed=1)
    look_at_neighbours(changed.encoder)
    before, after = plain.state_dict(), changed.state_dict()
    differ = {name for name in before if not torch.equal(before[name], after[name])}
    qkv = "encoder.layers.0.attention.qkv.weight"
    assert differ == {"encoder.embeddings.positions.weight", qkv}
    assert torch.equal(before[qkv][2 * 128 :], after[qkv][2 * 128 :])  # values
    positions = after["encoder.embeddings.positions.weight"]
    assert positions.std() == pytest.approx(1.5 * config.init_std, rel=0.05)


def test_the_model_is_an_ordinary_one() -> None:
    """Same batch through the encoder: finite, and its gradients reach the first heads."""
    model = Bert(shape(128, 2), pretraining=True, seed=0)
    look_at_neighbours(model.encoder)
    inputs = collate([[2, 7, 8, 4, 9, 3], [2, 4, 3]], [[0] * 6, [0] * 3], max_positions=128)
    model.encoder(inputs).square().sum().backward()
    gradient = model.encoder.layers[0].attention.qkv.weight.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert (gradient[: 2 * 128].abs().sum(1) > 0).all()


def test_pre_training_begins_with_it_where_the_recipe_says_so() -> None:
    class Store:
        tokenizer = small_tokenizer(100)

    plain = PretrainConfig(model=SizeOptions(layers=1, hidden=32, heads=2))
    other = replace(plain, model=replace(plain.model, init="neighbours"))
    assert fingerprint(plain) != fingerprint(other)
    before, after = (starting_model(config, Store()) for config in (plain, other))  # type: ignore[arg-type]
    expected = Bert(before.config, pretraining=True, seed=0)
    for found in (before, after):
        states = expected.state_dict()
        assert all(torch.equal(v, states[name]) for name, v in found.state_dict().items())
        look_at_neighbours(expected.encoder)
