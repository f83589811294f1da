"""BERT's Adam, by a compiled loop or torch's fused AdamW, and LAMB; the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.model.kernels import compiled
from bothways.model.kernels.compiled import why_not_compiled
from bothways.model.kernels.rounded import RoundedWeights
from bothways.model.shared import Trainable
from bothways.training.fsdp import divided_as, whole
from bothways.training.options import OptimizerOptions


def learning_rate(step: int, total: int, options: OptimizerOptions) -> float:
    """Linear warm-up, then linear decay to 0 at ``total``, as in the original code.

    With W warm-up steps, the rate is ``lr * (step + 1) / W`` up to the peak ``lr`` at step W - 1,
    and from step W on ``lr * (total - step) / total``. The decay is the line from ``lr`` at step 0,
    so right after the peak the rate drops to ``(1 - warmup) * lr``.

    The original's warm-up is ``lr * step / W``, whose first step has rate 0 and trains nothing;
    here it starts at ``lr / W``.

    Args:
        step: from 0.
        total: steps of the run.
        options: the peak rate ``lr`` and ``warmup``, a fraction of all steps.
    """
    warmup = math.ceil(options.warmup * total - 1e-9)  # 0.07 * 100 is slightly above 7
    if step < warmup:
        return options.lr * (step + 1) / warmup
    return options.lr * (total - step) / total


# --------------------------------------------------------------------------------
# LAMB, for large batches (You et al. 2020, "Large Batch Optimization for Deep Learning").


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of the paper, with its phi the identity.

    The direction is Adam's plus the decay, r = m / (sqrt(v) + eps) + weight_decay * p, and each
    parameter tensor moves by lr * |p| / |r| * r. The trust ratio |p| / |r| is replaced by 1 if one
    of the norms is 0, and in groups without ``rows``: biases and LayerNorm, which Google's code
    (``LAMBOptimizer`` of google-research/albert) excludes from ratio and decay. The bias
    corrections are the paper's; a step counter that starts at a large number makes them 1, as in
    that code.

    Args:
        groups: parameter groups, each with ``weight_decay`` and ``rows``: those of each matrix
            (with a trust ratio of its own) that is stacked in a parameter; -1: all.
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
        if group["rows"]:
            direction.mul_(_trust_ratios(parameter, direction, group["rows"]))
        parameter.add_(direction, alpha=-group["lr"])


def _trust_ratios(parameter: Tensor, direction: Tensor, rows: tuple[int, ...]) -> Tensor:
    """The trust ratio of the matrix that each row belongs to, [rows, 1, ...], sharded like the
    parameter. Norms need the whole matrix, so shards are gathered first."""
    p, r = whole(parameter), whole(direction)
    counts = [len(p)] if rows == (-1,) else list(rows)
    matrices = zip(torch.split(p, counts), torch.split(r, counts), strict=True)
    ratios = [_trust_ratio(*own).expand(len(own[0])) for own in matrices]
    return divided_as(parameter, torch.cat(ratios).view(-1, *[1] * (parameter.ndim - 1)))


def _trust_ratio(parameter: Tensor, direction: Tensor) -> Tensor:
    p, r = parameter.norm(), direction.norm()
    return torch.where((p > 0) & (r > 0), p / r, torch.ones_like(p))


# --------------------------------------------------------------------------------
# Adam on a CPU, in one pass over weights, moments and gradients.


class CompiledAdam:
    """The update of ``torch.optim.AdamW``, by a compiled loop.

    Library operations read and write weights and moments once as well. But around them stand a cast
    of each gradient, one of each weight, and the norm's own pass. This loop reads gradients in the
    dtype in which they were computed, and writes the weights rounded for the next step beside them.

    It is none of ``torch.optim.Optimizer``: making one of these imports torch's compiler, which
    takes as long as torch itself.

    Args:
        groups: parameter groups, each with ``weight_decay``; fp32 parameters on a CPU.
        lr: the peak rate; the group's ``lr`` is used at every step.
        betas: decay rates of the running means of gradient and squared gradient.
        eps: added to the root of the second moment.
        rounded: copies of the weights, which are kept up to date.

    Attributes:
        param_groups: the groups, each with its ``lr``.
        state: of each parameter, the count of its steps and its moments.
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
        self.param_groups = [{**group, "lr": lr} for group in groups]
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self.divisor = 1.0
        self._betas, self._eps = betas, eps
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
    def step(self) -> None:
        """Update every parameter that has a gradient, of fp32 or bf16."""
        updated = [(group, p) for group, p in self._parameters() if p.grad is not None]
        if not updated:
            return
        gradients = [p.grad for _, p in updated if p.grad is not None]
        states = [self.state[p] for _, p in updated]
        torch._foreach_add_([state["step"] for state in states], 1)
        counts = torch.stack([state["step"] for state in states]).double().numpy()
        (beta1, beta2), eps = self._betas, self._eps
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


Optimizer: TypeAlias = CompiledAdam | torch.optim.Optimizer

# From this step on both bias corrections of Adam are exactly 1, for betas up to
# LARGEST_UNCORRECTED_BETA. The counter is fp32 and stops at 2 ** 24, which does not matter.
_NO_CORRECTION = 2.0**23


def make_optimizer(
    model: nn.Module, options: OptimizerOptions, *, rounded: RoundedWeights | None = None
) -> Optimizer:
    """Adam or LAMB with decoupled weight decay on matrices and embeddings, not on LayerNorm and
    biases.

    The original code omits Adam's bias correction. Starting the step counter at a large number has
    the same effect. Its decay, ``lr * weight_decay * p`` in addition to the update, is AdamW's.

    Args:
        model: its parameters are trained.
        options: the optimizer and its rates; the learning rate itself is set at every step.
        rounded: copies of the weights for the compiled loop to keep up to date; None for library
            operations.
    """
    by_name = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters = list(by_name.values())
    matrices = [p for p in parameters if p.ndim > 1]
    others = [p for p in parameters if p.ndim <= 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    betas = (options.beta1, options.beta2)
    optimizer: Optimizer
    if options.name == "lamb":
        stacked = model.stacked() if isinstance(model, Trainable) else {}
        by_rows: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for name, parameter in by_name.items():
            if parameter.ndim > 1:
                by_rows.setdefault(stacked.get(name, (-1,)), []).append(parameter)
        decayed = [{**groups[0], "params": own, "rows": rows} for rows, own in by_rows.items()]
        groups = [*decayed, {**groups[1], "rows": ()}]
        optimizer = Lamb(groups, lr=options.lr, betas=betas, eps=options.eps)
    elif rounded is not None and all(map(_compiles, parameters)) and why_not_compiled() is None:
        optimizer = CompiledAdam(
            groups, lr=options.lr, betas=betas, eps=options.eps, rounded=rounded
        )
    else:
        optimizer = torch.optim.AdamW(
            groups, lr=options.lr, betas=betas, eps=options.eps, fused=True
        )
    start = 0.0 if options.bias_correction else _NO_CORRECTION
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.tensor(start, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def _compiles(parameter: nn.Parameter) -> bool:
    """Whether the compiled loop can update a parameter: not if it is sharded."""
    plain = not hasattr(parameter, "full_tensor") and parameter.is_contiguous()
    return plain and parameter.device.type == "cpu" and parameter.dtype == torch.float32
