"""Training an embedding pruned to the rows in use: the same table in the end."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from bothways.model.batch import Inputs, collate
from bothways.model.model import EncoderModel
from bothways.training.frozen_rows import PrunedEmbedding
from bothways.training.options import OptimizerOptions
from bothways.training.trainer import Trainer
from model_examples import small_config

STEPS, EPOCHS = 12, 3
OPTIONS = OptimizerOptions(lr=3e-3, warmup=0.1, weight_decay=0.1, bias_correction=True)
USED = np.array([5, 2, 9, 9, 40, 3])


def batch(step: int) -> Inputs:
    rng = np.random.default_rng(step)
    tokens = [[2, *rng.choice(USED, 6)] for _ in range(4)]
    return collate(tokens, [[0] * len(row) for row in tokens], max_positions=16)


def loss(
    model: EncoderModel, inputs: Inputs, dtype: torch.dtype
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    value = (
        model.encoder(inputs, dtype=dtype)
        .float()
        .square()[: int(inputs.bounds[-1])]
        .mean(0)[:7]
        .sum()
    )
    return value, {"loss": value.detach()}


def trained(
    *, pruned: bool, options: OptimizerOptions = OPTIONS
) -> tuple[EncoderModel, list[torch.Tensor]]:
    """A model after some epochs, and what the whole table was after each."""
    model = EncoderModel(small_config(), seed=3)
    model.shared.dropout.eval()
    table, total = model.encoder.embeddings.tokens, STEPS * EPOCHS
    rows = PrunedEmbedding(table, USED, options, total) if pruned else None
    if rows:
        assert len(table.weight) == 6  # with 0, which is in the tail, and 2
    trainer: Trainer[Inputs] = Trainer(
        model, options, total_steps=total, seed=0, dtype=torch.float32
    )
    tables = []
    for epoch in range(EPOCHS):
        for step in range(epoch * STEPS, (epoch + 1) * STEPS):
            trainer.step(step, [batch(step)], loss)
        with rows.full_table((epoch + 1) * STEPS) if rows else nullcontext():
            tables.append(table.weight.detach().clone())
    if rows:
        rows.restore_table(total)
    return model, tables


@pytest.mark.parametrize("changes", [{}, {"weight_decay": 0.0}, {"bias_correction": False}])
def test_the_same_table(changes: dict[str, float]) -> None:
    options = replace(OPTIONS, **changes)  # type: ignore[arg-type]
    ours, our_tables = trained(pruned=True, options=options)
    theirs, their_tables = trained(pruned=False, options=options)
    for own, whole in zip(our_tables, their_tables, strict=True):
        torch.testing.assert_close(own, whole, rtol=2e-5, atol=2e-6)
    for (name, value), (_, wanted) in zip(
        ours.state_dict().items(), theirs.state_dict().items(), strict=True
    ):
        torch.testing.assert_close(value, wanted, rtol=2e-5, atol=2e-6, msg=name)
    start = EncoderModel(small_config(), seed=3).encoder.embeddings.tokens.weight
    other = 17
    moved = not torch.equal(our_tables[-1][other], start[other])
    assert moved == (options.weight_decay > 0)
    assert (our_tables[-1][USED] - start[USED]).abs().mean(1).min() > 1e-3


def test_whole_tables_read_any_row() -> None:
    model, _ = trained(pruned=True)
    other = collate([[2, 17, 60]], [[0] * 3], max_positions=16)
    assert model.encoder(other).isfinite().all()
    assert len(model.encoder.embeddings.tokens.weight) == model.config.padded_vocab
    assert set(model.state_dict()) == set(EncoderModel(small_config(), seed=3).state_dict())
