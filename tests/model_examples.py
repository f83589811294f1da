"""Small random models and batches that the tests of the model floor share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bothways.families.config import ModelConfig
from bothways.model.batch import Inputs, collate
from bothways.model.model import EncoderModel
from bothways.runtime.stored import Stored
from bothways.runtime.weights import account_for
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer

# Layers, hidden, heads, intermediate, vocabulary: one head, several, sizes that are no multiple of
# anything, a vocabulary that is a multiple of 64 and two that are not.
SHAPES = [(1, 16, 2, 64, 97), (2, 32, 4, 50, 128), (3, 24, 1, 96, 1001)]
POSITIONS = 40
LENGTHS = (9, 40, 1, 23, 2, 17)
BOTH_HEADS: dict[str, Any] = {"masked_lm": True, "next_sentence": True}


def small_config(
    shape: Sequence[int] = SHAPES[0], dropout: float = 0.1, *, left_to_right: bool = False
) -> ModelConfig:
    layers, hidden, heads, intermediate, vocab_size = shape
    return ModelConfig(
        vocab_size=vocab_size,
        layers=layers,
        hidden=hidden,
        heads=heads,
        intermediate=intermediate,
        positions=POSITIONS,
        dropout=dropout,
        attention_dropout=dropout,
        left_to_right=left_to_right,
    )


def stored(theirs: Mapping[str, Tensor]) -> dict[str, Stored]:
    """Tensors as weights in a file."""
    bits = {n: v.view(torch.uint16) if v.dtype == torch.bfloat16 else v for n, v in theirs.items()}
    kinds = {name: str(value.dtype).removeprefix("torch.") for name, value in theirs.items()}
    return {name: Stored(value.detach().numpy(), kinds[name]) for name, value in bits.items()}


def from_theirs(
    theirs: Mapping[str, Tensor], config: ModelConfig, where: str
) -> tuple[dict[str, Tensor], list[str]]:
    """A file's weights under our names and in our shapes, and those that are not used."""
    weights = account_for(stored(theirs), config, where=where)
    state = {name: torch.from_numpy(value) for name, value in weights.items()}
    assert {name: tuple(value.shape) for name, value in state.items()} == weights.shapes
    return state, weights.unused


def small_tokenizer(vocab_size: int) -> Tokenizer:
    words = [f"w{i}" for i in range(vocab_size - len(SPECIAL_PIECES))]
    return Tokenizer.from_pieces([*SPECIAL_PIECES, *words], lowercase=True)


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Values of order one everywhere, biases and LayerNorms too, so that no swap stays hidden."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if not parameter.requires_grad:  # a constant, such as a table of sinusoids
                continue
            if parameter.ndim == 2:
                parameter.copy_(noise / math.sqrt(parameter.shape[1]))
            elif "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(0.3 * noise)


def small_bert(config: ModelConfig | None = None, *, seed: int = 0, **heads: Any) -> EncoderModel:
    """In evaluation mode, randomised, with padding rows 0 as they always are."""
    config = config or small_config()
    model = EncoderModel(config, seed=seed, **heads)
    randomise(model, seed)
    with torch.no_grad():
        model.embedding_VH[config.vocab_size :] = 0
    return model.eval()


def random_rows(
    vocab_size: int, lengths: Sequence[int] = LENGTHS, seed: int = 0
) -> tuple[list[list[int]], list[list[int]]]:
    """Ids and segments, one list a sequence; segment 1 starts somewhere in each."""
    rng = np.random.default_rng(seed)
    tokens = [rng.integers(0, vocab_size, n).tolist() for n in lengths]
    segments = [(np.arange(n) >= rng.integers(0, n + 1)).astype(int).tolist() for n in lengths]
    return tokens, segments


def random_inputs(
    vocab_size: int, lengths: Sequence[int] = LENGTHS, seed: int = 0, limit: int = POSITIONS
) -> Inputs:
    return collate(*random_rows(vocab_size, lengths, seed), max_positions=limit)


def padded(tokens: Sequence[Sequence[int]], segments: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """The same rows in the form of transformers, padded on the right."""
    longest = max(map(len, tokens))

    def fill(rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])

    return {
        "input_ids": fill(tokens),
        "token_type_ids": fill(segments),
        "attention_mask": fill([[1] * len(row) for row in tokens]),
    }
