"""LAMB, for large batches (You et al. 2020, "Large Batch Optimization for Deep Learning")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from bothways.training.shards import divided_as, whole


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of the paper, with its phi the identity.

    The direction is Adam's plus the decay, r = m / (sqrt(v) + eps) + weight_decay * p, and each
    parameter tensor moves by lr * |p| / |r| * r. Where one of the norms is 0 the ratio is 1, and
    also in groups of ``parts`` 0: biases and LayerNorm, which Google's code (``LAMBOptimizer`` of
    google-research/albert) leaves out together with the decay. The bias corrections are the
    paper's; a counter that starts far up makes them 1, as in that code.

    Args:
        groups: parameter groups, each with ``weight_decay`` and ``parts``: how many matrices, each
            with a ratio of its own, lie on top of each other in one parameter.
        lr: the peak rate; the group's ``lr`` is read at every step.
        betas: decay of the gradient's and of the squared gradient's running means.
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
        """Update every parameter that has a gradient; nothing is waited for on a GPU."""
        assert closure is None, "no closure is called"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        # In fp64: 1 - 0.999 ** 1 has few digits left in fp32.
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
    """The ratio of the matrix that each row belongs to, [rows, 1, ...], divided among processes as
    the parameter is; a part of a matrix does not know its norm."""
    both = whole(parameter).chunk(parts), whole(direction).chunk(parts)
    rows = [_trust_ratio(own, its).expand(len(own)) for own, its in zip(*both, strict=True)]
    return divided_as(parameter, torch.cat(rows).view(-1, *[1] * (parameter.ndim - 1)))


def _trust_ratio(parameter: Tensor, direction: Tensor) -> Tensor:
    own, other = parameter.norm(), direction.norm()
    return torch.where((own > 0) & (other > 0), own / other, torch.ones_like(own))
