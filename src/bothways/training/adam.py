"""Adam on a CPU, in one pass over weights, moments and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.model import compiled
from bothways.model.rounded import RoundedWeights


class CompiledAdam(torch.optim.Optimizer):
    """The update of ``torch.optim.AdamW``, by a compiled loop.

    Library operations read and write weights and moments once as well. But around them stand a cast
    of each gradient, one of each weight, and the norm's own pass. This loop reads gradients in the
    dtype in which they were computed, and writes the weights rounded for the next step beside them.

    Args:
        groups: parameter groups, each with ``weight_decay``; fp32 parameters on a CPU.
        lr: the peak rate; the group's ``lr`` is used at every step.
        betas: decay rates of the running means of gradient and squared gradient.
        eps: added to the root of the second moment.
        rounded: copies of the weights, which are kept up to date.

    Attributes:
        divisor: what gradients are divided by in the next step, so that they are clipped.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        rounded: RoundedWeights,
    ):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})
        self.divisor = 1.0
        self._rounded = rounded
        self._pieces: tuple[tuple[int, ...], NDArray[np.int64]] = ((), pieces_of([]))

    def norm(self) -> Tensor:
        """The norm of all gradients together."""
        gradients = [p.grad for _, p in self._parameters() if p.grad is not None]
        pieces = self._cut(gradients)
        sums = np.empty(len(pieces), np.float32)
        compiled.run("sum_squares", pieces, *_described(gradients), sums)
        return torch.tensor(math.sqrt(sums.sum(dtype=np.float64)))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, of fp32 or bf16."""
        assert closure is None, "closures are not supported"
        updated = [(group, p) for group, p in self._parameters() if p.grad is not None]
        if not updated:
            return
        gradients = [p.grad for _, p in updated if p.grad is not None]
        states = [self.state[p] for _, p in updated]
        torch._foreach_add_([state["step"] for state in states], 1)
        counts = torch.stack([state["step"] for state in states]).double().numpy()
        group = self.param_groups[0]  # betas and eps are those of all
        (beta1, beta2), eps = group["betas"], group["eps"]
        lr = np.array([group["lr"] for group, _ in updated])
        decay = np.array([group["weight_decay"] for group, _ in updated])
        rates = [1 - lr * decay, lr / (1 - beta1**counts), (1 - beta2**counts) ** -0.5]
        copies = [self._rounded.kept(p) for _, p in updated]
        arrays = [
            (p, state["exp_avg"], state["exp_avg_sq"])
            for (_, p), state in zip(updated, states, strict=True)
        ]
        compiled.run(
            "adam",
            self._cut(gradients),
            *_described(gradients),
            np.array(
                [
                    [*(x.data_ptr() for x in own), 0 if copy is None else copy.data_ptr()]
                    for own, copy in zip(arrays, copies, strict=True)
                ]
            ),
            np.stack(rates, 1).astype(np.float32),
            (np.float32(beta1), np.float32(beta2)),
            (np.float32(1 - beta1), np.float32(1 - beta2)),
            np.float32(eps),
            np.float32(1 / self.divisor),
        )
        for _, parameter in updated:
            self._rounded.written(parameter)

    def _parameters(self) -> Iterable[tuple[dict[str, Any], Tensor]]:
        return ((group, p) for group in self.param_groups for p in group["params"])

    def _cut(self, gradients: list[Tensor]) -> NDArray[np.int64]:
        sizes = tuple(gradient.numel() for gradient in gradients)
        if sizes != self._pieces[0]:
            self._pieces = sizes, pieces_of(sizes)
        return self._pieces[1]


def pieces_of(sizes: Iterable[int]) -> NDArray[np.int64]:
    """Parameters in pieces: int64 [pieces, 3], which one, its first element and how many."""
    chunk = compiled.chunk_size()
    rows = [
        (number, start, min(chunk, size - start))
        for number, size in enumerate(sizes)
        for start in range(0, size, chunk)
    ]
    return np.array(rows, np.int64).reshape(-1, 3)


def _described(gradients: list[Tensor]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Addresses, and which are in bf16."""
    assert all(gradient.is_contiguous() for gradient in gradients)
    addresses = np.array([gradient.data_ptr() for gradient in gradients], np.int64)
    return addresses, np.array([gradient.dtype == torch.bfloat16 for gradient in gradients])
