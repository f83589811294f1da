"""Padded tiles: the sequences of a flat batch rearranged for attention.

B sequences, T tokens, R rows of all tiles together, b and L sequences and length of one tile,
N selected positions, Q queries per sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.model.batch import Inputs, SelectedPositions, move
from bothways.model.places import PlaceScores
from bothways.model.rotary import Rotation

# What a tile costs in itself, in scores of one head: its calls take as long as that many. Measured
# on fine-tuning (small batches of short texts), where a step has few scores and many calls.
TILE_COST = 10_000
ROUND_LENGTH = 8
"""In bf16 on a CPU the length of a tile is a multiple of this: preparing products of a new shape
takes longer than computing the padding."""


@dataclass(frozen=True)
class Tile:
    """Some sequences of a batch, padded to the longest of them.

    Attributes:
        start: its first row among the R rows of all tiles.
        sequences: b.
        length: L.
        bias: [b, 1, 1, L] added to the scores: 0 for tokens, -inf for padding; None without
            padding. Left to right [1, 1, L, L]: -inf for later tokens, and so for padding. With a
            window [b, 1, L, L]: -inf for tokens outside it too.
        members: int64 [b]; which sequences of the batch, on the CPU.
        rows: int64 [b * L]; the flat row of each of the tile's rows, -1 for padding, on the CPU.
        lengths: int64 [b]; tokens of each sequence, on the CPU.
    """

    start: int
    sequences: int
    length: int
    bias: Tensor | None
    members: NDArray[np.int64]
    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class RowMap:
    """Moves the rows of a flat array into padded tiles, and back.

    Attributes:
        flat_rows: int64 [R]; the flat row in each tile row (0 for padding).
        tile_rows: int64 [T]; the tile row of each flat row (0 for the tail).
        padding: int64; the tile rows that are padding.
        tail: int64; the flat rows that are in no tile.
        identity: tile rows are the flat rows in order; nothing is moved.
    """

    flat_rows: Tensor
    tile_rows: Tensor
    padding: Tensor
    tail: Tensor
    identity: bool

    def gather(self, x: Tensor) -> Tensor:
        """[T, ...] -> [R, ...]."""
        if self.identity:
            return x
        out: Tensor = _Move.apply(x, self.flat_rows, self.tile_rows, self.tail)  # type: ignore[no-untyped-call]
        return out

    def scatter(self, x: Tensor) -> Tensor:
        """[R, ...] -> [T, ...]."""
        if self.identity:
            return x
        out: Tensor = _Move.apply(x, self.tile_rows, self.flat_rows, self.padding)  # type: ignore[no-untyped-call]
        return out


class _Move(torch.autograd.Function):
    """Moves rows by an index whose inverse is known, so that the backward is a gather as well.

    The ``unused`` rows of the input reach no output that counts; their gradient is zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor, unused: Tensor) -> Tensor:
        ctx.save_for_backward(inverse, unused)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        inverse, unused = ctx.saved_tensors
        return grads[0].index_select(0, inverse).index_fill_(0, unused, 0), None, None, None


@dataclass(frozen=True)
class Tiles(RowMap):
    """The sequences of a flat batch in padded tiles; built once per batch.

    Attributes:
        tiles: longest first.
        rotation: of the queries and keys of all T tokens; None if they are not rotated.
        places: what adds to the scores; None if nothing does.
    """

    tiles: tuple[Tile, ...]
    rotation: Rotation | None = None
    places: PlaceScores | None = None

    def select(self, inputs: Inputs, selected: SelectedPositions) -> QueryTiles:
        """Queries at the selected positions only, keys and values at all.

        Args:
            inputs: the batch that these tiles were made from.
            selected: N positions.
        """
        at = selected.unique
        owner = np.searchsorted(inputs.bounds, at, side="right") - 1
        counts = np.bincount(owner, minlength=inputs.sequences)
        first = np.cumsum(counts) - counts
        rows, queries, start = [], [], 0
        for tile in self.tiles:
            most = max(1, int(counts[tile.members].max()))
            column = np.arange(most)
            real = column < counts[tile.members, None]
            rows.append(np.where(real, first[tile.members, None] + column, -1).ravel())
            queries.append(QueryTile(start, most, rows[-1]))
            start += tile.sequences * most
        row_map = _row_map(rows, len(selected.positions), inputs.tokens.device)
        rotation = None if self.rotation is None else self.rotation.at(selected.positions)
        return QueryTiles(*row_map, queries=tuple(queries), keys=self, rotation=rotation)


@dataclass(frozen=True)
class QueryTile:
    """The queries of a tile.

    Attributes:
        start: the first query row of the tile.
        queries: Q, of each sequence.
        rows: int64 [b * Q]; which of the N selected positions each row is, -1 for padding.
    """

    start: int
    queries: int
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class QueryTiles(RowMap):
    """Selected positions as queries in tiles of their own, over the tiles of all keys and values.

    The flat rows that this maps are the N selected positions.

    Attributes:
        queries: for each tile of ``keys``.
        keys: the tiles of the whole batch; without a window.
        rotation: of the queries of the N positions; None if they are not rotated.
    """

    queries: tuple[QueryTile, ...]
    keys: Tiles
    rotation: Rotation | None = None

    @property
    def key_rotation(self) -> Rotation | None:
        """Of the keys of all tokens; None if they are not rotated."""
        return self.keys.rotation


def make_tiles(
    inputs: Inputs,
    dtype: torch.dtype,
    *,
    causal: bool = False,
    window: int = 0,
    rotation: Rotation | None = None,
    places: PlaceScores | None = None,
) -> Tiles:
    """Group the sequences of a batch into padded tiles, for the least work.

    Args:
        inputs: the batch.
        dtype: of the biases.
        causal: a token attends to itself and earlier tokens only.
        window: a token attends to so many tokens before and after itself only; 0: to all.
        rotation: of queries and keys.
        places: what adds to the scores.
    """
    T, device, lengths = len(inputs.tokens), inputs.tokens.device, inputs.lengths
    multiple = ROUND_LENGTH if dtype == torch.bfloat16 and device.type == "cpu" else 1
    rounded = (lengths + multiple - 1) // multiple * multiple
    order = np.argsort(-lengths, kind="stable")
    tiles, rows, start = [], [], 0
    for members in np.split(order, _cuts(rounded[order])):
        longest = max(1, int(rounded[members[0]]))
        column = np.arange(longest)
        real = column < lengths[members, None]
        rows.append(np.where(real, inputs.bounds[members, None] + column, -1).ravel())
        hidden = ~np.tri(longest, dtype=bool)[None] if causal else ~real[:, None]
        if window:
            far = np.abs(column - column[:, None]) > window
            # Rows of padding see all tokens: without any, they would have no probabilities.
            hidden = hidden | (far & real[:, :, None])
        bias = _bias(hidden, dtype, device)
        tile = (start, len(members), longest, bias, members, rows[-1], lengths[members])
        tiles.append(Tile(*tile))
        start += len(members) * longest
    return Tiles(*_row_map(rows, T, device), tiles=tuple(tiles), rotation=rotation, places=places)


def _cuts(lengths: NDArray[np.int64]) -> list[int]:
    """Where to cut sequences, longest first, into tiles: least total of scores and tiles' costs.

    The shortest path through the places where the length changes, whose edges are tiles.
    """
    starts = np.flatnonzero(np.diff(lengths, prepend=-1))
    ends = np.append(starts[1:], len(lengths))
    scores = lengths[starts] ** 2  # of each sequence of a tile that begins there
    total = np.zeros(len(starts) + 1)
    previous = np.zeros(len(starts) + 1, np.int64)
    for i, end in enumerate(ends, start=1):
        totals = total[:i] + (end - starts[:i]) * scores[:i] + TILE_COST
        previous[i] = totals.argmin()
        total[i] = totals[previous[i]]
    cuts: list[int] = []
    at = int(previous[-1])
    while at > 0:
        cuts.append(int(starts[at]))
        at = int(previous[at])
    return cuts[::-1]


def _row_map(
    parts: list[NDArray[np.int64]], size: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
    """The fields of a :class:`RowMap` from the flat row in each tile row, -1 for padding."""
    flat_rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    tile_rows = np.full(size, -1)
    real_rows = np.flatnonzero(flat_rows >= 0)
    tile_rows[flat_rows[real_rows]] = real_rows

    def on_device(values: NDArray[np.int64]) -> Tensor:
        return move(torch.from_numpy(values), device)

    return (
        on_device(np.maximum(flat_rows, 0)),
        on_device(np.maximum(tile_rows, 0)),
        on_device(np.flatnonzero(flat_rows < 0)),
        on_device(np.flatnonzero(tile_rows < 0)),
        len(flat_rows) == size and bool((flat_rows == np.arange(size)).all()),
    )


def _bias(hidden: NDArray[np.bool_], dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """A mask of hidden keys, [..., queries, keys], as a bias to the scores."""
    if not hidden.any():
        return None
    bias = torch.zeros(hidden.shape, dtype=dtype)
    return move(bias.masked_fill_(torch.from_numpy(hidden), -math.inf)[:, None], device)
