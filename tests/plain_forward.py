"""A model in plain NumPy and float64, with which every engine is compared.

T tokens of the flat batch, L of one sequence, H hidden size, A heads, D = H / A.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.batch import Batch
from bothways.families.config import ModelConfig
from bothways.families.heads import HEADS, form_of
from bothways.runtime.engine import NONE, layer_name

Array = NDArray[np.float64]


class PlainForward:
    """Computes as an engine does, one operation of the definition after the other.

    Args:
        config: the shape; a BiLSTM under the head is not computed.
        state: the weights by our names.
    """

    name, precision = "NumPy", "float64"

    def __init__(self, config: ModelConfig, state: Mapping[str, NDArray[Any]]):
        self.config, self.state = config, state

    def compute(
        self,
        batch: Batch,
        heads: Mapping[str, NDArray[np.int64]] = NONE,
        layers: Sequence[int] = (),
    ) -> dict[str, NDArray[np.float32]]:
        """As :meth:`bothways.runtime.engine.Engine.compute`."""
        config, found = self.config, {}
        x = self._embeddings(batch)
        found[layer_name(0)] = x
        for number in range(config.layers):
            x = self._layer(x, batch, number)
            if number + 1 == config.layers and config.final_norm:
                x = self._norm(x, "encoder.final_norm")
            found[layer_name(number + 1)] = x
        found |= {name: self._head(name, x, batch, at) for name, at in heads.items()}
        wanted = {*heads, *map(layer_name, layers)}
        return {name: value.astype(np.float32) for name, value in found.items() if name in wanted}

    def _embeddings(self, batch: Batch) -> Array:
        config, own = self.config, "encoder.embeddings"
        x = self._weight(f"{own}.tokens.weight")[batch.tokens]
        if config.place == "learned":
            x = x + self._weight(f"{own}.positions.weight")[batch.table_rows(config.place_offset)]
        if config.segments:
            segments = batch.segments if config.segments > 1 else np.zeros_like(batch.segments)
            x = x + self._weight(f"{own}.segments.weight")[segments]
        if config.embedding_norm:
            x = self._norm(x, f"{own}.norm")
        return self._linear(x, f"{own}.project") if config.projects else x

    def _layer(self, x: Array, batch: Batch, number: int) -> Array:
        config = self.config
        own, pre = f"encoder.layers.{config.group_of(number)}", config.norm_at == "pre"
        first = f"{own}.attention_norm"
        read = self._norm(x, first) if pre and f"{first}.weight" in self.state else x
        x = x + self._linear(self._attention(read, own, batch, number), f"{own}.attention.output")
        x = x if pre else self._norm(x, first)
        inner = self._linear(self._norm(x, f"{own}.norm") if pre else x, f"{own}.expand")
        if config.gated:
            inner, gate = np.split(inner, 2, -1)
            inner = activate(config.activation, inner) * gate
        else:
            inner = activate(config.activation, inner)
        x = x + self._linear(inner, f"{own}.contract")
        return x if pre else self._norm(x, f"{own}.norm")

    def _attention(self, x: Array, own: str, batch: Batch, number: int) -> Array:
        config, spec = self.config, self.config.layer(number)
        parts = np.split(self._linear(x, f"{own}.attention.qkv"), 3, -1)
        q, k, v = (part.reshape(len(x), config.heads, config.head_size) for part in parts)
        if spec.rotary:
            adjacent = config.rotary_pairs == "adjacent"
            q, k = (
                _rotate(part, batch.positions, spec.rotary, adjacent=adjacent) for part in (q, k)
            )
        mixed = np.zeros((len(x), config.hidden))
        for start, end in zip(batch.bounds[:-1], batch.bounds[1:], strict=True):
            scores = np.einsum("qad,kad->aqk", q[start:end], k[start:end]) / math.sqrt(
                config.head_size
            )
            places = np.arange(end - start)
            distance = places[None] - places[:, None]
            if spec.causal:
                scores = np.where(distance > 0, -np.inf, scores)
            if spec.window:
                scores = np.where(np.abs(distance) > spec.window, -np.inf, scores)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            own_mixed = np.einsum("aqk,kad->qad", weights, v[start:end])
            mixed[start:end] = own_mixed.reshape(end - start, -1)
        return mixed

    def _head(self, name: str, x: Array, batch: Batch, at: NDArray[np.int64]) -> Array:
        config, form = self.config, form_of(name, self.config)
        x = self._sequences(x, batch) if HEADS[name].reads == "sequence" else x[at]
        if form.pooled:
            x = np.tanh(self._linear(x, "encoder.pooler"))
        masked = HEADS[name].reads == "masked"
        if form.dense or masked:
            kind = config.head_activation if form.activation == "own" else form.activation
            x = activate(kind or config.activation, self._linear(x, f"{name}.dense"))
        if form.norm or masked:
            x = self._norm(x, f"{name}.norm")
        if not masked:
            return self._linear(x, f"{name}.output")
        logits = x @ self._weight("encoder.embeddings.tokens.weight")[: config.vocab_size].T
        return logits + self._weight(f"{name}.bias") if f"{name}.bias" in self.state else logits

    def _sequences(self, x: Array, batch: Batch) -> Array:
        """What stands for each sequence: its first token, its last, or the mean of all."""
        if self.config.left_to_right:
            return x[batch.bounds[1:] - 1]
        if self.config.pooling == "mean":
            pairs = zip(batch.bounds[:-1], batch.bounds[1:], strict=True)
            return np.stack([x[start:end].mean(0) for start, end in pairs])
        return x[batch.bounds[:-1]]

    def _weight(self, name: str) -> Array:
        return self.state[name].astype(np.float64)

    def _linear(self, x: Array, name: str) -> Array:
        y = x @ self._weight(f"{name}.weight").T
        return y + self._weight(f"{name}.bias") if f"{name}.bias" in self.state else y

    def _norm(self, x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_eps)
        x = x * self._weight(f"{name}.weight")
        return x + self._weight(f"{name}.bias") if f"{name}.bias" in self.state else x


def activate(kind: str, x: Array) -> Array:
    """An activation of :data:`bothways.families.config.Activation`, element by element."""
    if kind == "gelu":
        return x * (1 + _erf(x / math.sqrt(2))) / 2
    if kind == "gelu_tanh":
        inner: Array = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        tanh: Array = np.tanh(inner)
        return x * (1 + tanh) / 2
    found: Array
    if kind == "relu":
        found = np.maximum(x, 0)
    else:
        found = np.tanh(x) if kind == "tanh" else x / (1 + np.exp(-x))
    return found


def _erf(x: Array) -> Array:
    """The error function to 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    sums = np.polyval([1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592], t) * t
    found: Array = np.sign(x) * (1 - sums * np.exp(-x * x))
    return found


def _rotate(x: Array, positions: NDArray[np.int64], base: float, *, adjacent: bool) -> Array:
    """[T, A, D] -> [T, A, D]."""
    steps = base ** -(np.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = positions[:, None, None] * steps
    first, second = (x[..., ::2], x[..., 1::2]) if adjacent else np.split(x, 2, -1)
    turned = (
        first * np.cos(angles) - second * np.sin(angles),
        second * np.cos(angles) + first * np.sin(angles),
    )
    return np.stack(turned, -1).reshape(x.shape) if adjacent else np.concatenate(turned, -1)
