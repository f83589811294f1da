"""Encoded examples, and flat batches of them.

N items, Q sequences, S tokens of all sequences, R tokens that the task head reads, C its outputs.

An item is the unit that batches are made of: one sequence, or the sequences of one example's
choices. The head reads some tokens of each sequence and has one row of outputs per token read:
the first ([CLS]) for a class or score, the first piece of each word for tags, every token for an
answer.

All texts are encoded once, up front. An optimizer step is a random batch, never one chosen by
length, so the gradient is unbiased; a flat batch has no padding between its sequences and attention
groups them by length itself, so mixed lengths cost nothing. For prediction, where order does not
matter, items are sorted by length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways import arrays
from bothways.batch import IGNORE, Batch, TaskBatch, flat_batch
from bothways.errors import LengthError
from bothways.randomness import Purpose, permutation
from bothways.tokenization.normalization import check_texts
from bothways.tokenization.tokenizer import Tokenizer

# Texts tokenized at once: an encoding also holds offsets and words, many times the size of its ids.
CHUNK = 2048
# Tokens per forward pass. A step of 32 x 128 tokens is one micro-batch; memory stays bounded for
# larger batches, and the split depends on the data alone, so results do not depend on the machine.
TRAIN_TOKENS = 8192
PREDICT_TOKENS = 4096
PADDED = 1.15
"""Times the tokens of a batch. Of 100 questions and passages 25 % were padding without this limit,
and onnxruntime computed 144 texts a second instead of 165 (Zen 3)."""


@dataclass(frozen=True)
class Examples:
    """Encoded examples laid end to end.

    Attributes:
        tokens: int32 [S].
        segments: int8 [S].
        bounds: int64 [Q + 1]; sequence q is ``tokens[bounds[q]:bounds[q + 1]]``.
        items: int64 [N + 1]; item n is the sequences ``items[n]:items[n + 1]``.
        read_positions: int64 [R], increasing; the tokens read, by their positions in ``tokens``.
        owners: int64 [N], not decreasing; the example that each item belongs to. An example has
            several items if it is read in several windows.
        cut: how many examples lost tokens to the length limit.
        targets: int64 or float32 [R] or [N], float32 [N, C], or int64 [N, C], as in
            :class:`TaskBatch`; None for unlabelled examples.
        whole: tokens of each example as one sequence without a limit, int64 [examples], if some
            have several items, which overlap.
    """

    tokens: NDArray[np.int32]
    segments: NDArray[np.int8]
    bounds: NDArray[np.int64]
    items: NDArray[np.int64]
    read_positions: NDArray[np.int64]
    owners: NDArray[np.int64]
    cut: int = 0
    targets: NDArray[Any] | None = None
    whole: NDArray[np.int64] | None = None

    @staticmethod
    def of_sequences(
        tokens: NDArray[np.int32],
        segments: NDArray[np.int8],
        bounds: NDArray[np.int64],
        *,
        read_positions: NDArray[np.int64] | None = None,
        owners: NDArray[np.int64] | None = None,
        cut: int = 0,
    ) -> Examples:
        """One item per sequence. By default only its first token is read, and it is an example of
        its own."""
        return Examples(
            tokens,
            segments,
            bounds,
            items=np.arange(len(bounds)),
            read_positions=bounds[:-1] if read_positions is None else read_positions,
            owners=np.arange(len(bounds) - 1) if owners is None else owners,
            cut=cut,
        )

    def __len__(self) -> int:
        return len(self.items) - 1

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each item, int64 [N]."""
        edges = self.bounds[self.items]
        return edges[1:] - edges[:-1]

    @cached_property
    def output_bounds(self) -> NDArray[np.int64]:
        """int64 [N + 1]; a model's outputs for item n are its rows ``output_bounds[n]`` to
        ``output_bounds[n + 1]``, one for each of the item's ``read_positions``."""
        return np.searchsorted(self.read_positions, self.bounds[self.items]).astype(np.int64)

    @cached_property
    def first_items(self) -> NDArray[np.int64]:
        """The first item of each example, int64 [examples]."""
        if len(self) and self.owners[-1] + 1 == len(self):  # each example is an item
            return np.arange(len(self))
        return np.flatnonzero(np.diff(self.owners, prepend=-1)).astype(np.int64)

    @property
    def windowed(self) -> int:
        """How many examples have more than one item."""
        if len(self.first_items) == len(self):
            return 0
        return int((np.diff([*self.first_items, len(self)]) > 1).sum())

    @property
    def gold(self) -> NDArray[Any]:
        """The targets of labelled examples."""
        assert self.targets is not None, "the examples are unlabelled"
        return self.targets

    def with_whole_lengths(self, lengths: Sequence[int]) -> Examples:
        """The same examples, which say how long each is as one sequence."""
        return replace(self, whole=np.array(lengths, dtype=np.int64))

    def with_targets(self, targets: NDArray[Any]) -> Examples:
        """The same examples, labelled."""
        return replace(self, targets=targets)

    def inputs(self, indices: NDArray[np.int64], *, max_positions: int) -> Batch:
        """The sequences of these items, in this order, as a flat batch."""
        if len(self) == len(indices) == 1:  # one text, where every microsecond shows
            return flat_batch(self.tokens, self.segments, self.bounds, max_positions=max_positions)
        sequences = arrays.ranges(self.items[indices], self.items[indices + 1])
        lengths = self.bounds[sequences + 1] - self.bounds[sequences]
        at = arrays.ranges(self.bounds[sequences], self.bounds[sequences + 1])
        return flat_batch(
            self.tokens[at], self.segments[at], arrays.bounds(lengths), max_positions=max_positions
        )

    def batch(self, indices: NDArray[np.int64], *, max_positions: int) -> TaskBatch:
        """These items with the tokens that are read, and their targets if they have any."""
        if len(self) == len(indices) == 1 and self.targets is None:
            inputs = self.inputs(indices, max_positions=max_positions)
            at = self.read_positions
            return TaskBatch(inputs, at, np.array([0, len(at)]), np.zeros(0))
        starts, ends = self.output_bounds[indices], self.output_bounds[indices + 1]
        rows, counts = arrays.ranges(starts, ends), ends - starts
        shift = np.cumsum([0, *self.lengths[indices][:-1]]) - self.bounds[self.items[indices]]
        at = self.read_positions[rows] + np.repeat(shift, counts)
        targets = np.zeros(0)
        if self.targets is not None:
            targets = self.targets[indices if self._targets_of_items else rows]
        return TaskBatch(
            self.inputs(indices, max_positions=max_positions),
            at,
            arrays.bounds(counts),
            targets,
        )

    @property
    def _targets_of_items(self) -> bool:
        """Whether items have targets, and not each of the tokens that are read of them."""
        return self.gold.ndim == 2 or len(self.gold) != len(self.read_positions)

    @cached_property
    def trainable(self) -> NDArray[np.int64]:
        """The items to train on: all but those whose answer was not found."""
        if self.gold.ndim < 2 or self.gold.dtype.kind == "f":
            return np.arange(len(self))
        return np.flatnonzero((self.gold != IGNORE).all(-1))

    def count_targets(self, indices: NDArray[np.int64]) -> int:
        """How many targets these items have; a step's loss is divided by this number."""
        if self._targets_of_items:
            return len(indices)
        return int((self.output_bounds[indices + 1] - self.output_bounds[indices]).sum())


def encode_examples(
    tokenizer: Tokenizer,
    a: Sequence[str],
    b: Sequence[str] | None,
    *,
    length: int,
    items: NDArray[np.int64] | None = None,
) -> Examples:
    """Encode texts or pairs; the longer text of a pair is cut first.

    Args:
        tokenizer: the model's.
        a: the (first) texts.
        b: the second texts, as many; None for single texts.
        length: limit in tokens, special tokens included.
        items: int64 [N + 1]; item n is the texts ``items[n]:items[n + 1]``. If not given, each text
            is an item.

    Raises:
        LengthError: the limit leaves no room for a text.
        InputError: something that is not a text, a single text instead of a list, or different
            numbers of first and second texts.
    """
    check_texts(a, b)
    check_room(tokenizer, length, pair=b is not None)
    template = tokenizer.template
    tokens = [np.zeros(0, np.int32)]
    segments = [np.zeros(0, np.int8)]
    lengths: list[int] = []
    cut: list[bool] = []
    for start in range(0, len(a), CHUNK):
        chunk = slice(start, start + CHUNK)
        parts = [tokenizer.encode_plain(texts[chunk]) for texts in ([a] if b is None else [a, b])]
        wrapped = []
        for own in zip(*parts, strict=True):
            sizes = [*map(len, own)]
            keep = template.kept(sizes, length)
            wrapped.append(template.wrap_lists([p[:k] for p, k in zip(own, keep, strict=True)]))
            cut.append(keep != sizes)
        tokens.append(_flatten([ids for ids, _ in wrapped], np.int32))
        segments.append(_flatten([own for _, own in wrapped], np.int8))
        lengths.extend(len(ids) for ids, _ in wrapped)
    bounds = arrays.bounds(lengths)
    if items is None:
        items, shortened = np.arange(len(a) + 1), sum(cut)
    else:
        shortened = int((np.diff(np.cumsum([0, *cut])[items]) > 0).sum())
    return Examples(
        np.concatenate(tokens),
        np.concatenate(segments),
        bounds,
        items=items,
        read_positions=bounds[:-1],
        owners=np.arange(len(items) - 1),
        cut=shortened,
    )


class SequenceBuilder:
    """Token sequences of a text or a pair each, laid end to end.

    Args:
        tokenizer: knows how texts become sequences.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._template = tokenizer.template
        self._tokens = [np.zeros(0, np.int32)]
        self._segments = [np.zeros(0, np.int8)]
        self._bounds = [0]

    def add(self, *texts: Sequence[int] | NDArray[np.int32]) -> tuple[int, ...]:
        """Append a sequence of one text or two, given as ids of pieces.

        Returns:
            The place of each text's first piece among all tokens.
        """
        start = self._bounds[-1]
        tokens, segments = self._template.wrap(*texts)
        self._tokens.append(tokens)
        self._segments.append(segments)
        self._bounds.append(start + len(tokens))
        return tuple(start + text.start for text in self._template.content(*map(len, texts)))

    def examples(
        self,
        *,
        read_positions: NDArray[np.int64] | None = None,
        owners: NDArray[np.int64] | None = None,
        cut: int = 0,
    ) -> Examples:
        """All sequences, one item each; arguments as for :meth:`Examples.of_sequences`."""
        return Examples.of_sequences(
            np.concatenate(self._tokens),
            np.concatenate(self._segments),
            np.array(self._bounds, dtype=np.int64),
            read_positions=read_positions,
            owners=owners,
            cut=cut,
        )


def check_room(tokenizer: Tokenizer, length: int, *, pair: bool) -> None:
    """Refuse a length that special tokens fill up.

    Raises:
        LengthError: no token of a text, or of one of a pair, would fit.
    """
    template = tokenizer.template
    shortest = template.shortest(2 if pair else 1)
    if length < shortest:
        raise LengthError(
            f"a length of {length} tokens leaves no room for text between {template.names}; it "
            f"must be at least {shortest}."
        )


def step_batches(items: int, batch: int, *, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """The items of each step of an epoch: every item once, in an order that depends only on the
    seed and the epoch.

    The last batch holds the remaining items, so it may be smaller.
    """
    order = permutation(items, seed, Purpose.SHUFFLE, epoch)
    return [order[i : i + batch] for i in range(0, items, batch)]


def length_batches(
    lengths: NDArray[np.int64], limit: int, *, padded: bool = False
) -> list[NDArray[np.int64]]:
    """All items sorted by length, longest first, in batches of at most ``limit`` tokens.

    Args:
        lengths: of all items in tokens, int64 [N].
        limit: tokens per batch.
        padded: they will be rows as long as the longest: a batch of half the limit or more does not
            take in what would be a seventh padding (:data:`PADDED`).
    """
    most = PADDED if padded else math.inf
    sizes = lengths.tolist()
    order = sorted(range(len(sizes)), key=lambda n: -sizes[n])
    return cut_by_tokens(np.array(order, np.int64), lengths, limit, most_padded=most)


def cut_by_tokens(
    indices: NDArray[np.int64],
    lengths: NDArray[np.int64],
    limit: int,
    *,
    most_padded: float = math.inf,
) -> list[NDArray[np.int64]]:
    """Cut a list of items, in order, into parts of at most ``limit`` tokens, or of one item.

    Args:
        indices: items, int64 [B].
        lengths: of all items in tokens, int64 [N].
        limit: tokens per part.
        most_padded: how many times its tokens a part may have as rows as long as its first item,
            once it has half the limit.
    """
    parts, start, total, longest = [], 0, 0, 0
    for i, size in enumerate(lengths[indices].tolist()):
        padding = longest * (i - start + 1) > most_padded * (total + size) and 2 * total >= limit
        if i > start and (total + size > limit or padding):
            parts.append(indices[start:i])
            start, total = i, 0
        if i == start:
            longest = size
        total += size
    if start < len(indices):
        parts.append(indices[start:])
    return parts


def _flatten(lists: list[list[int]], dtype: Any) -> NDArray[Any]:
    """The values of all lists, end to end."""
    return np.fromiter(chain.from_iterable(lists), dtype, sum(map(len, lists)))
