"""How attention finds the sequences of a flat batch.

B sequences, T tokens, R rows of all tiles together, b and L sequences and length of one tile,
N tokens whose last hidden state is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.model.batch import ROUND_TARGETS, Inputs, move, round_up

# A tile takes in sequences down to this share of its longest one.
TILE_FILL = 0.8


@dataclass(frozen=True)
class Tile:
    """Sequences of similar length, padded to the longest of them.

    Attributes:
        start: first of its rows among the R rows of all tiles.
        sequences: b.
        length: L.
        bias: [b, 1, 1, L] added to the scores: 0 for tokens, -inf for padding; None without
            padding. Left to right [1, 1, L, L]: -inf for later tokens, and so for padding.
        members: int64 [b]; which sequences of the batch, on the CPU.
    """

    start: int
    sequences: int
    length: int
    bias: Tensor | None
    members: NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Rows of a flat array rearranged into padded tiles, and back.

    Attributes:
        rows: int64 [R]; the flat row that each tile row shows (padding shows row 0).
        places: int64 [T]; the tile row of each flat row (an unowned one shows row 0).
        padding: int64; the tile rows that are padding.
        tail: int64; the flat rows that are in no tile.
        identity: tile rows are the flat rows in order, nothing to move.
    """

    rows: Tensor
    places: Tensor
    padding: Tensor
    tail: Tensor
    identity: bool

    def gather(self, x: Tensor) -> Tensor:
        """[T, ...] -> [R, ...]."""
        if self.identity:
            return x
        out: Tensor = _Move.apply(x, self.rows, self.places, self.tail)  # type: ignore[no-untyped-call]
        return out

    def scatter(self, x: Tensor) -> Tensor:
        """[R, ...] -> [T, ...]."""
        if self.identity:
            return x
        out: Tensor = _Move.apply(x, self.places, self.rows, self.padding)  # type: ignore[no-untyped-call]
        return out


class _Move(torch.autograd.Function):
    """Rows moved by an index whose inverse is known, so that the backward is a move as well.

    ``unowned`` rows of the input are read by no real output; their gradient is zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor, unowned: Tensor) -> Tensor:
        ctx.save_for_backward(inverse, unowned)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        inverse, unowned = ctx.saved_tensors
        return grads[0].index_select(0, inverse).index_fill_(0, unowned, 0), None, None, None


@dataclass(frozen=True)
class Tiles(Layout):
    """Where each sequence of a flat batch is; built once a batch.

    Attributes:
        tiles: longest first.
    """

    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Reading(Layout):
    """The N tokens whose last hidden state is read, arranged as queries beside the tiles' keys.

    Attributes:
        at: int64 [N]; places in the flat batch.
        spans: of each tile, first row and queries a sequence.
    """

    at: Tensor
    spans: tuple[tuple[int, int], ...]


def make_tiles(inputs: Inputs, dtype: torch.dtype, *, causal: bool = False) -> Tiles:
    """Group the sequences of a batch into padded tiles of similar length.

    Args:
        inputs: the batch.
        dtype: of the biases.
        causal: a token sees itself and those before it, not those after.
    """
    T, device, lengths = len(inputs.tokens), inputs.tokens.device, inputs.lengths
    order = np.argsort(-lengths, kind="stable")
    tiles, rows, start, at = [], [], 0, 0
    while at < len(order):
        longest = max(1, int(lengths[order[at]]))
        end = at + int(np.count_nonzero(lengths[order[at:]] >= TILE_FILL * longest))
        end = max(end, at + 1)
        own = order[at:end]
        column = np.arange(longest)
        real = column < lengths[own, None]
        rows.append(np.where(real, inputs.bounds[own, None] + column, -1).ravel())
        hidden = ~np.tri(longest, dtype=bool)[None] if causal else ~real[:, None]
        tiles.append(Tile(start, len(own), longest, _bias(hidden, dtype, device), own))
        start, at = start + len(own) * longest, end
    return Tiles(*_layout(rows, T, device), tiles=tuple(tiles))


def make_reading(inputs: Inputs, tiles: Tiles, at: NDArray[np.int64]) -> Reading:
    """Arrange the tokens at ``at`` as the queries of the last layer.

    Args:
        inputs: the flat batch.
        tiles: its tiles.
        at: int64 [N]; increasing places in the flat batch, each once; N is rounded up by a tail
            that shows place 0.
    """
    owner = np.searchsorted(inputs.bounds, at, side="right") - 1
    counts = np.bincount(owner, minlength=inputs.sequences)
    first = np.cumsum(counts) - counts
    rows, spans, start = [], [], 0
    for tile in tiles.tiles:
        most = max(1, int(counts[tile.members].max()))
        column = np.arange(most)
        real = column < counts[tile.members, None]
        rows.append(np.where(real, first[tile.members, None] + column, -1).ravel())
        spans.append((start, most))
        start += tile.sequences * most
    padded = np.zeros(round_up(len(at), ROUND_TARGETS), np.int64)
    padded[: len(at)] = at
    device = inputs.tokens.device
    places = move(torch.from_numpy(padded), device)
    return Reading(*_layout(rows, len(padded), device), at=places, spans=tuple(spans))


def _layout(
    parts: list[NDArray[np.int64]], size: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
    """The fields of a :class:`Layout` from the flat row of each tile row, -1 for padding."""
    flat = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    places = np.full(size, -1)
    real_rows = np.flatnonzero(flat >= 0)
    places[flat[real_rows]] = real_rows

    def on_device(values: NDArray[np.int64]) -> Tensor:
        return move(torch.from_numpy(values), device)

    return (
        on_device(np.maximum(flat, 0)),
        on_device(np.maximum(places, 0)),
        on_device(np.flatnonzero(flat < 0)),
        on_device(np.flatnonzero(places < 0)),
        len(flat) == size and bool((flat == np.arange(size)).all()),
    )


def _bias(hidden: NDArray[np.bool_], dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """What a query ([..., queries, keys]) does not see, as a bias."""
    if not hidden.any():
        return None
    bias = torch.zeros(hidden.shape, dtype=dtype)
    return move(bias.masked_fill_(torch.from_numpy(hidden), -math.inf)[:, None], device)
