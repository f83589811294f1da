"""Encoded examples, and how they become flat batches.

N examples, S tokens of all of them, B examples of a batch.

All texts are encoded once, up front. An optimizer step is a random batch, never one chosen by
length, so the gradient is unbiased; a flat batch has no padding between its sequences and attention
groups them by length itself, so mixed lengths cost nothing. For prediction, where order is free,
examples are sorted by length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import LengthError
from bothways.model.batch import Inputs, Reads, flat_inputs, move
from bothways.randomness import Purpose, permutation
from bothways.tokenization.tokenizer import Tokenizer

# Texts encoded at once: an encoding holds offsets and words too, many times the size of its ids.
_CHUNK = 2048
# Tokens computed at once. A step of 32 x 128 tokens is one micro-batch; memory stays bounded for
# larger batches, and the cut depends on the data alone, so results do not depend on the machine.
TRAIN_TOKENS = 8192
PREDICT_TOKENS = 4096


@dataclass(frozen=True)
class TaskBatch:
    """Some examples as the encoder reads them.

    Attributes:
        inputs: B sequences.
        targets: classes, int64 [B], or scores, float32 [B].
        found: what is read, for a batch that was moved.
    """

    inputs: Inputs
    targets: Tensor
    found: Reads | None = None

    @property
    def reads(self) -> Reads:
        """The places that the loss reads: each [CLS]."""
        return self.found or Reads.of(self.inputs, self.inputs.starts)

    def to(self, device: torch.device) -> TaskBatch:
        """The same on another device, with all that a GPU's kernels ask for."""
        inputs = self.inputs.to(device)
        return TaskBatch(inputs, move(self.targets, device), Reads.of(inputs, self.inputs.starts))


@dataclass(frozen=True)
class Examples:
    """Encoded examples laid end to end.

    Attributes:
        tokens: int32 [S].
        segments: int8 [S].
        bounds: int64 [N + 1]; example n is ``tokens[bounds[n]:bounds[n + 1]]``.
        cut: how many examples lost tokens to the length limit.
        targets: int64 or float32 [N]; None for unlabelled examples.
    """

    tokens: NDArray[np.int32]
    segments: NDArray[np.int8]
    bounds: NDArray[np.int64]
    cut: int
    targets: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example, int64 [N]."""
        return np.diff(self.bounds)

    @property
    def gold(self) -> NDArray[Any]:
        """The targets of examples that have them."""
        assert self.targets is not None, "the examples are unlabelled"
        return self.targets

    def with_targets(self, targets: NDArray[Any]) -> Examples:
        """The same examples, labelled."""
        return replace(self, targets=targets)

    def inputs(self, indices: NDArray[np.int64], *, max_positions: int) -> Inputs:
        """These examples, in this order, as a flat batch."""
        lengths = self.lengths[indices]
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        at = np.arange(bounds[-1]) + np.repeat(self.bounds[indices] - bounds[:-1], lengths)
        return flat_inputs(self.tokens[at], self.segments[at], bounds, max_positions=max_positions)

    def batch(self, indices: NDArray[np.int64], *, max_positions: int) -> TaskBatch:
        """These examples with their targets."""
        targets = torch.from_numpy(self.gold[indices])
        return TaskBatch(self.inputs(indices, max_positions=max_positions), targets)


def encode_examples(
    tokenizer: Tokenizer, a: Sequence[str], b: Sequence[str] | None, *, length: int
) -> Examples:
    """Encode texts or pairs; the longer text of a pair is cut first.

    Args:
        tokenizer: the model's.
        a: the (first) texts.
        b: the second texts, as many; None for single texts.
        length: limit in tokens, [CLS] and [SEP] included.

    Raises:
        LengthError: the limit leaves no room for a text.
        InputError: something that is no text.
    """
    least = 3 if b is None else 5
    if length < least:
        raise LengthError(
            f"a length of {length} tokens leaves no room for text beside [CLS] and [SEP]; it must "
            f"be at least {least}."
        )
    tokens: list[NDArray[np.int32]] = []
    segments: list[NDArray[np.int8]] = []
    lengths: list[int] = []
    cut = 0
    for start in range(0, len(a), _CHUNK):
        part = slice(start, start + _CHUNK)
        found = tokenizer.encode_batch(a[part], None if b is None else b[part], max_length=length)
        tokens.append(_joined([e.tokens for e in found], np.int32))
        segments.append(_joined([e.segments for e in found], np.int8))
        lengths.extend(len(e.tokens) for e in found)
        cut += sum(e.cut > 0 for e in found)
    return Examples(
        np.concatenate([np.zeros(0, np.int32), *tokens]),
        np.concatenate([np.zeros(0, np.int8), *segments]),
        np.cumsum([0, *lengths], dtype=np.int64),
        cut,
    )


def step_batches(examples: int, batch: int, *, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """The examples of each step of an epoch: every one once, in an order drawn by key.

    The last batch holds what is left, so it may be smaller.
    """
    order = permutation(examples, seed, Purpose.SHUFFLE, epoch)
    return [order[i : i + batch] for i in range(0, examples, batch)]


def length_batches(lengths: NDArray[np.int64], limit: int) -> list[NDArray[np.int64]]:
    """All examples sorted by length, longest first, in batches of at most ``limit`` tokens."""
    return cut_by_tokens(np.argsort(-lengths, kind="stable"), lengths, limit)


def cut_by_tokens(
    indices: NDArray[np.int64], lengths: NDArray[np.int64], limit: int
) -> list[NDArray[np.int64]]:
    """Cut a list of examples, order kept, into parts of at most ``limit`` tokens (or one example).

    Args:
        indices: examples, int64 [B].
        lengths: tokens of every example, int64 [N].
        limit: tokens of a part.
    """
    parts, start, total = [], 0, 0
    for i, size in enumerate(lengths[indices].tolist()):
        if i > start and total + size > limit:
            parts.append(indices[start:i])
            start, total = i, 0
        total += size
    if start < len(indices):
        parts.append(indices[start:])
    return parts


def _joined(rows: list[list[int]], dtype: Any) -> NDArray[Any]:
    return np.fromiter((value for row in rows for value in row), dtype, sum(map(len, rows)))
