"""The layers of the encoder, on flat batches.

B sequences, T tokens, H hidden size, A attention heads, D = H / A, I feed-forward size,
R rows of all tiles together, b and L sequences and length of one tile.

Every layer computes in the dtype of its input; parameters stay fp32 and are cast at use, so the
precision of a forward pass is decided once, at the embeddings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.config import ModelConfig
from bothways.model.batch import Inputs

# A tile takes in sequences down to this share of its longest one.
TILE_FILL = 0.8


class Linear(nn.Linear):
    """A linear layer in its input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation in its input's dtype; the statistics are fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return F.layer_norm(
            x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps
        )


class _DropMasked(torch.autograd.Function):
    """x * keep * scale, remembering only the mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return torch.where(keep, x, 0).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return torch.where(keep, grads[0], 0).mul_(ctx.scale), None, None


class KeyedDropout(nn.Module):
    """Dropout whose masks depend on the micro-batch's key and the place in the network alone.

    One instance serves a whole model. :meth:`reseed` before each forward pass makes the masks of
    that pass reproducible whatever ran before it. Thresholds have 16 bits: probabilities are exact
    to 1/65536.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        """Start the masks of one forward pass."""
        self._seed = seed
        self._numpy = np.random.Generator(np.random.SFC64(seed))
        self._torch: torch.Generator | None = None

    def forward(self, x: Tensor, probability: float) -> Tensor:
        """Zero each element with this probability and scale the rest, while training."""
        if not self.training or probability == 0:
            return x
        keep = self._keep(x.numel(), probability, x.device).view(x.shape)
        dropped: Tensor = _DropMasked.apply(x, keep, 1 / (1 - probability))  # type: ignore[no-untyped-call]
        return dropped

    def _keep(self, size: int, probability: float, device: torch.device) -> Tensor:
        threshold = round(probability * 65536) - 32768  # against the full int16 range
        words = -(-size // 4)
        if device.type == "cpu":
            # NumPy's SFC64 costs a fraction of torch's own generator on a CPU.
            raw = torch.from_numpy(self._numpy.integers(-(2**63), 2**63, words, dtype=np.int64))
        else:
            if self._torch is None:
                self._torch = torch.Generator(device).manual_seed(self._seed)
            raw = torch.empty(words, dtype=torch.int64, device=device)
            raw.random_(-(2**63), None, generator=self._torch)
        return raw.view(torch.int16)[:size] >= threshold


@dataclass(frozen=True)
class Tile:
    """Sequences of similar length, padded to the longest of them.

    Attributes:
        start: first of its rows among the R rows of all tiles.
        sequences: b.
        length: L.
        bias: [b, 1, 1, L] added to the scores: 0 for tokens, -inf for padding; None without
            padding. Left to right [1, 1, L, L]: -inf for later tokens, and so for padding.
    """

    start: int
    sequences: int
    length: int
    bias: Tensor | None


@dataclass(frozen=True)
class Tiles:
    """How attention finds the sequences of a flat batch; built once a batch.

    Attributes:
        tiles: the tiles, longest first.
        rows: int64 [R]; the flat token each tile row shows (padding shows token 0).
        places: int64 [T]; the tile row of each flat token (the tail shows row 0).
        padding: int64; the tile rows that are padding.
        tail: int64; the flat tokens that no sequence owns.
        identity: rows are the flat tokens in order, nothing to move.
    """

    tiles: tuple[Tile, ...]
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


def make_tiles(inputs: Inputs, dtype: torch.dtype) -> Tiles:
    """Group the sequences of a batch into padded tiles of similar length."""
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
        hidden = ~np.tri(longest, dtype=bool)[None] if inputs.causal else ~real[:, None]
        tiles.append(Tile(start, len(own), longest, _bias(hidden, dtype, device)))
        start, at = start + len(own) * longest, end
    flat = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    places = np.full(T, -1)
    real_rows = np.flatnonzero(flat >= 0)
    places[flat[real_rows]] = real_rows

    def move(values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(device)

    return Tiles(
        tiles=tuple(tiles),
        rows=move(np.maximum(flat, 0)),
        places=move(np.maximum(places, 0)),
        padding=move(np.flatnonzero(flat < 0)),
        tail=move(np.flatnonzero(places < 0)),
        identity=len(flat) == T and bool((flat == np.arange(T)).all()),
    )


def _bias(hidden: NDArray[np.bool_], dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """What a query ([..., queries, keys]) does not see, as a bias."""
    if not hidden.any():
        return None
    bias = torch.zeros(hidden.shape, dtype=dtype)
    return bias.masked_fill_(torch.from_numpy(hidden), -math.inf)[:, None].to(device)


class Attention(nn.Module):
    """Multi-head self-attention inside each sequence, with one fused projection."""

    def __init__(self, config: ModelConfig, dropout: KeyedDropout):
        super().__init__()
        self.qkv = Linear(config.hidden, 3 * config.hidden)
        self.output = Linear(config.hidden, config.hidden)
        self._heads, self._head_size = config.heads, config.head_size
        self._dropout, self._probability = dropout, config.attention_dropout

    def forward(self, x_TH: Tensor, tiles: Tiles, weights: list[Tensor] | None = None) -> Tensor:
        """[T, H] -> [T, H].

        Args:
            x_TH: hidden states.
            tiles: where the sequences are.
            weights: if given, receives one [b, A, L, L] of probabilities for each tile.
        """
        qkv = tiles.gather(self.qkv(x_TH))
        contexts = [self._attend(qkv, tile, weights) for tile in tiles.tiles]
        context = contexts[0] if len(contexts) == 1 else torch.cat(contexts)
        mixed: Tensor = self.output(tiles.scatter(context))
        return mixed

    def _attend(self, qkv: Tensor, tile: Tile, weights: list[Tensor] | None) -> Tensor:
        b, L, A, D = tile.sequences, tile.length, self._heads, self._head_size
        own = qkv[tile.start : tile.start + b * L].view(b, L, 3, A, D).permute(2, 0, 3, 1, 4)
        q_bALD, k_bALD, v_bALD = own.unbind(0)
        scores = (q_bALD * D**-0.5) @ k_bALD.transpose(-1, -2)
        if tile.bias is not None:
            scores = scores + tile.bias
        probabilities = scores.softmax(-1)
        if weights is not None:
            weights.append(probabilities)
        context = self._dropout(probabilities, self._probability) @ v_bALD
        context_RH: Tensor = context.transpose(1, 2).reshape(b * L, A * D)
        return context_RH


class Layer(nn.Module):
    """One post-LN transformer layer (Vaswani et al. 2017; Devlin et al. 2019, section 3)."""

    def __init__(self, config: ModelConfig, dropout: KeyedDropout):
        super().__init__()
        self.attention = Attention(config, dropout)
        self.attention_norm = LayerNorm(config.hidden, config.norm_eps)
        self.expand = Linear(config.hidden, config.intermediate)
        self.contract = Linear(config.intermediate, config.hidden)
        self.norm = LayerNorm(config.hidden, config.norm_eps)
        self._dropout, self._probability = dropout, config.dropout

    def forward(self, x_TH: Tensor, tiles: Tiles, weights: list[Tensor] | None = None) -> Tensor:
        """[T, H] -> [T, H]."""
        mixed = self.attention(x_TH, tiles, weights)
        x_TH = self.attention_norm(x_TH + self._dropout(mixed, self._probability))
        fed = self.contract(F.gelu(self.expand(x_TH)))
        out: Tensor = self.norm(x_TH + self._dropout(fed, self._probability))
        return out


class Embedding(nn.Embedding):
    """A table of vectors that starts at zero; ``init_weights`` draws it.

    The library's own normal draw, on the meta device, imports its compiler: 3 seconds a process.
    """

    def reset_parameters(self) -> None:
        """All zeros."""
        nn.init.zeros_(self.weight)


class Embeddings(nn.Module):
    """Token + learned position + segment embeddings, normalised (Devlin et al. 2019, figure 2)."""

    def __init__(self, config: ModelConfig, dropout: KeyedDropout):
        super().__init__()
        self.tokens = Embedding(config.padded_vocab, config.hidden)
        self.positions = Embedding(config.positions, config.hidden)
        self.segments = Embedding(config.segments, config.hidden)
        self.norm = LayerNorm(config.hidden, config.norm_eps)
        self._dropout, self._probability = dropout, config.dropout

    def forward(self, inputs: Inputs, dtype: torch.dtype) -> Tensor:
        """A flat batch -> [T, H] in ``dtype``."""
        summed = (
            self.tokens(inputs.tokens)
            + self.positions(inputs.positions)
            + self.segments(inputs.segments)
        )
        out: Tensor = self._dropout(self.norm(summed.to(dtype)), self._probability)
        return out
