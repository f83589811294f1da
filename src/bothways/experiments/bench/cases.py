"""Batches for benchmarks, the same for bothways and transformers.

B sequences, L sequence length, T tokens of a flat batch, M masked positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bothways.batch import IGNORE
from bothways.corpus.store import TokenStore
from bothways.experiments.bench.options import BenchTrainConfig
from bothways.families.config import ModelConfig, SizeOptions
from bothways.model.batch import PretrainingBatch, flat_inputs, masked_targets
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.masking import max_predictions
from bothways.pretraining.options import MaskOptions, PairOptions
from bothways.training.options import PairKind, Phase

BATCHES = 4
"""Different batches, used in turn."""
_FIRST_WORD = 5  # lower ids are special in most vocabularies; which ids are drawn does not matter


@dataclass(frozen=True)
class PaddedBatch:
    """A batch as input to transformers.

    Attributes:
        input_ids, token_type_ids, attention_mask, labels: int64 [B, L]; labels are -100 at
            positions that are not masked.
        next_sentence_label: int64 [B].
    """

    input_ids: Tensor
    token_type_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    next_sentence_label: Tensor


def shape_and_batches(
    options: BenchTrainConfig,
) -> tuple[ModelConfig, list[list[PretrainingBatch]]]:
    """The network's shape, and the batches to train it on.

    Raises:
        StoreError: the corpus cannot be opened.
    """
    if options.corpus:
        store = TokenStore.open(options.corpus)
        config = _shape(options, store.tokenizer.vocab_size)
        steps = real_batches(store, batch=options.batch, length=options.length, count=BATCHES)
        return config, steps
    config = _shape(options, options.vocab_size)
    steps = full_batches(
        options.vocab_size, batch=options.batch, length=options.length, count=BATCHES
    )
    return config, steps


def _shape(options: BenchTrainConfig, vocab_size: int) -> ModelConfig:
    config = SizeOptions(size=options.size).resolve(vocab_size)
    return replace(config, attention_dropout=options.attention_dropout)


def full_batches(
    vocab_size: int,
    *,
    batch: int,
    length: int,
    count: int,
    pairs: PairKind = "next",
    masking: MaskOptions | None = None,
) -> list[list[PretrainingBatch]]:
    """Steps of ``batch`` sequences of exactly ``length`` random tokens each."""
    rng = np.random.default_rng(0)
    masking = masking or MaskOptions()
    causal, paired = masking.left_to_right, pairs in ("next", "order")
    targets = length - 1 if causal else max_predictions(length, masking.rate)
    starts = np.arange(batch)[:, None] * length
    steps = []
    for _ in range(count):
        tokens = rng.integers(_FIRST_WORD, vocab_size, batch * length)
        positions = [
            np.arange(length - 1) if causal else rng.permutation(np.arange(1, length - 1))[:targets]
            for _ in range(batch)
        ]
        at = (np.sort(positions, axis=1) + starts).ravel()
        half = length // 2 if paired else length
        segments = np.tile(np.arange(length) >= half, batch).astype(np.int64)
        bounds = np.arange(batch + 1) * length
        inputs = flat_inputs(tokens, segments, bounds, max_positions=length)
        labels = torch.from_numpy(rng.integers(0, 2, batch)) if paired else None
        steps.append([PretrainingBatch(inputs, masked_targets(at, tokens[at]), labels)])
    return steps


def real_batches(
    store: TokenStore, *, batch: int, length: int, count: int
) -> list[list[PretrainingBatch]]:
    """Steps of segment pairs of a corpus, with their real lengths."""
    source = PhaseBatches(
        store,
        Phase(length=length, batch=batch, micro_batch=batch),
        pairs=PairOptions(),
        masking=MaskOptions(),
        seed=0,
    )
    return [source.micro_batches(step) for step in range(count)]


def padded(batch: PretrainingBatch) -> PaddedBatch:
    """The same sequences, padded to the longest as transformers' collators do."""
    inputs = batch.inputs
    shape = (inputs.sequences, inputs.longest)
    real = torch.arange(inputs.longest) < torch.from_numpy(inputs.lengths)[:, None]
    total = int(inputs.bounds[-1])
    assert batch.random_next is not None  # sequences of one segment are not measured here
    flat_labels = torch.full((len(inputs.tokens),), IGNORE)
    flat_labels[batch.masked.positions[: batch.masked.count]] = batch.masked.ids[
        : batch.masked.count
    ]

    def rows(values: Tensor, fill: int) -> Tensor:
        out = torch.full(shape, fill)
        out[real] = values[:total]
        return out

    return PaddedBatch(
        input_ids=rows(inputs.tokens, 0),
        token_type_ids=rows(inputs.segments, 0),
        attention_mask=real.long(),
        labels=rows(flat_labels, IGNORE),
        next_sentence_label=batch.random_next,
    )


def real_tokens(step: list[PretrainingBatch]) -> int:
    """Tokens of a step, padding not counted."""
    return sum(int(batch.inputs.bounds[-1]) for batch in step)
