"""LAMB, for large batches (You et al. 2020, "Large Batch Optimization for Deep Learning")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from bothways.training.fsdp import divided_as, whole


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of the paper, with its phi the identity.

    The direction is Adam's plus the decay, r = m / (sqrt(v) + eps) + weight_decay * p, and each
    parameter tensor moves by lr * |p| / |r| * r. The trust ratio |p| / |r| is replaced by 1 if one
    of the norms is 0, and in groups with ``parts`` 0: biases and LayerNorm, which Google's code
    (``LAMBOptimizer`` of google-research/albert) excludes from ratio and decay. The bias
    corrections are the paper's; a step counter that starts at a large number makes them 1, as in
    that code.

    Args:
        groups: parameter groups, each with ``weight_decay`` and ``parts``: how many matrices, each
            with its own trust ratio, are stacked in one parameter.
        lr: the peak rate; the group's ``lr`` is used at every step.
        betas: decay rates of the running means of gradient and squared gradient.
        eps: added to the root of the second moment.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; does not synchronise with a GPU."""
        assert closure is None, "closures are not supported"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        # In fp64: 1 - 0.999 ** 1 has too few digits in fp32.
        count = state["step"].add_(1).double()
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m.lerp_(gradient, 1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (v / (1 - beta2**count)).sqrt_().add_(group["eps"])
        direction = (m / (1 - beta1**count)).div_(root)
        direction.add_(parameter, alpha=group["weight_decay"])
        if group["parts"]:
            direction.mul_(_trust_ratios(parameter, direction, group["parts"]))
        parameter.add_(direction, alpha=-group["lr"])


def _trust_ratios(parameter: Tensor, direction: Tensor, parts: int) -> Tensor:
    """The trust ratio of the matrix that each row belongs to, [rows, 1, ...], sharded like the
    parameter. Norms need the whole matrix, so shards are gathered first."""
    matrices = zip(whole(parameter).chunk(parts), whole(direction).chunk(parts), strict=True)
    rows = [_trust_ratio(p, r).expand(len(p)) for p, r in matrices]
    return divided_as(parameter, torch.cat(rows).view(-1, *[1] * (parameter.ndim - 1)))


def _trust_ratio(parameter: Tensor, direction: Tensor) -> Tensor:
    p, r = parameter.norm(), direction.norm()
    return torch.where((p > 0) & (r > 0), p / r, torch.ones_like(p))
