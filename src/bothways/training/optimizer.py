"""The learning rate of each step; BERT's Adam, by a compiled loop or torch's fused AdamW, LAMB, and
other optimizers of torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bothways.model.device import CPU
from bothways.model.kernels import compiled
from bothways.model.kernels.compiled import why_not_compiled
from bothways.model.kernels.rounded import RoundedWeights
from bothways.model.shared import Trainable
from bothways.training.fsdp import divided_as, whole
from bothways.training.options import OptimizerOptions

COOLDOWN = 0.2
"""The last share of the steps in which the trapezoid's rate falls to 0 (Hägele et al. 2024)."""


def learning_rate(step: int, total: int, options: OptimizerOptions) -> float:
    """Linear warm-up to the peak rate, then the schedule's curve.

    With W warm-up steps, the rate is ``lr * (step + 1) / W`` up to the peak ``lr`` at step W - 1.
    The original's first step has rate 0 and trains nothing; here it has ``lr / W``.

    From step W on it is, by ``schedule``:

    * linear: ``lr * (total - step) / total``, as in the original code. This is the line from ``lr``
      at step 0, so right after the peak the rate drops to ``(1 - warmup) * lr``.
    * inverse_sqrt: ``lr * sqrt(W / (step + 1))`` (Vaswani et al. 2017, 5.3, where ``lr`` is
      1 / sqrt(hidden * W)).
    * cosine: half a cosine from ``lr`` to 0 at ``total``.
    * constant: ``lr``.
    * trapezoid: ``lr``, and in the last :data:`COOLDOWN` of the steps a line to 0.

    Args:
        step: from 0.
        total: steps of the run.
        options: the peak rate ``lr``; ``warmup``, a fraction of all steps; ``schedule``.
    """
    warmup = math.ceil(options.warmup * total - 1e-9)  # 0.07 * 100 is slightly above 7
    lr = options.lr
    if step < warmup:
        return lr * (step + 1) / warmup
    match options.schedule:
        case "linear":
            return lr * (total - step) / total
        case "inverse_sqrt":
            return lr * math.sqrt(max(1, warmup) / (step + 1))
        case "cosine":
            return lr * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2
        case "constant":
            return lr
        case "trapezoid":
            return lr * min(1, (total - step) / math.ceil(COOLDOWN * total))


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
_EMBEDDINGS, _LAYER = "encoder.embeddings.", re.compile(r"encoder\.layers\.(\d+)\.")


def make_optimizer(
    model: nn.Module, options: OptimizerOptions, *, rounded: RoundedWeights | None = None
) -> Optimizer:
    """The optimizer of a model, with weight decay on matrices and embeddings, not on LayerNorm and
    biases.

    The original code omits Adam's bias correction. Starting the step counter at a large number has
    the same effect. Its decay, ``lr * weight_decay * p`` in addition to the update, is AdamW's.

    Args:
        model: its parameters are trained.
        options: the optimizer and its rates; the learning rate itself is set at every step, to
            ``scale`` times that of the schedule for groups that have one.
        rounded: copies of the weights for Adam's compiled loop to keep up to date; None for library
            operations.
    """
    by_name = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters, name = list(by_name.values()), options.optimizer
    groups = _groups(model, by_name, options)
    shared: dict[str, Any] = {"lr": options.lr}
    if name not in ("sgd", "adafactor"):
        shared |= {"betas": (options.beta1, options.beta2), "eps": options.eps}
    optimizer: Optimizer
    if name == "lamb":
        optimizer = Lamb(groups, **shared)
    elif name == "radam":
        optimizer = torch.optim.RAdam(groups, **shared, decoupled_weight_decay=True)
    elif name == "adamax":
        optimizer = torch.optim.Adamax(groups, **shared)
    elif name == "sgd":
        optimizer = torch.optim.SGD(groups, **shared, momentum=options.beta1)
    elif name == "adafactor":
        optimizer = torch.optim.Adafactor(groups, **shared)
    elif rounded is not None and all(map(_compiles, parameters)) and why_not_compiled() is None:
        optimizer = CompiledAdam(groups, **shared, rounded=rounded)
    else:
        optimizer = torch.optim.AdamW(groups, **shared, fused=True)
    for parameter in parameters:
        optimizer.state[parameter] = _initial_state(parameter, options)
    return optimizer


def layer_depths(names: Iterable[str]) -> dict[str, int]:
    """How deep each parameter of a model stands: 0 for embeddings, 1 for the first layer, and the
    largest for what is above the last: pooler, heads, and what has no encoder."""
    layers = {name: _LAYER.match(name) for name in names}
    last = 1 + max((int(found[1]) for found in layers.values() if found), default=-1)
    return {
        name: int(found[1]) + 1 if found else 0 if name.startswith(_EMBEDDINGS) else last + 1
        for name, found in layers.items()
    }


def frozen_below(step: int, total: int, depths: int, options: OptimizerOptions) -> int:
    """The depth below which nothing is trained in a step (Howard and Ruder 2018, 3.3): from only
    what is above the last layer, one depth more at equal intervals.

    Args:
        step: from 0.
        total: steps of the run.
        depths: the largest depth of :func:`layer_depths`.
        options: ``unfreeze``, the share of the steps after which everything is trained.
    """
    if not options.unfreeze:
        return 0
    return max(0, depths - int(step * depths / (options.unfreeze * total)))


def _groups(
    model: nn.Module, by_name: Mapping[str, nn.Parameter], options: OptimizerOptions
) -> list[dict[str, Any]]:
    """Groups by decay, by LAMB's stacked matrices, and with ``layer_decay`` by depth."""
    decay, depths = options.weight_decay, layer_depths(by_name)
    matrices = [name for name, p in by_name.items() if p.ndim > 1]
    vectors = [name for name, p in by_name.items() if p.ndim <= 1]
    kinds: list[tuple[dict[str, Any], list[str]]] = [
        ({"weight_decay": decay}, matrices),
        ({"weight_decay": 0.0}, vectors),
    ]
    if options.optimizer == "lamb":
        stacked = model.stacked() if isinstance(model, Trainable) else {}
        by_rows: dict[tuple[int, ...], list[str]] = {}
        for name in matrices:
            by_rows.setdefault(stacked.get(name, (-1,)), []).append(name)
        kinds = [({"weight_decay": decay, "rows": rows}, own) for rows, own in by_rows.items()]
        kinds.append(({"weight_decay": 0.0, "rows": ()}, vectors))
    if options.layer_decay == 1:
        return [{"params": [by_name[name] for name in own], **fixed} for fixed, own in kinds]
    top, groups = max(depths.values(), default=0), []
    for fixed, named in kinds:
        for depth in sorted({depths[name] for name in named}):
            own = [by_name[name] for name in named if depths[name] == depth]
            groups.append({"params": own, **fixed, "scale": options.layer_decay ** (top - depth)})
    return groups


def _initial_state(parameter: nn.Parameter, options: OptimizerOptions) -> dict[str, Tensor]:
    """What the optimizer keeps of a parameter, as before the first step: checkpoints are read into
    it."""
    corrected = options.bias_correction or options.optimizer not in ("adam", "lamb")
    device = parameter.device if options.optimizer in ("adam", "lamb") else CPU
    step = torch.tensor(0.0 if corrected else _NO_CORRECTION, device=device)
    moments = {"adamax": ("exp_avg", "exp_inf"), "sgd": ("momentum_buffer",)}
    if options.optimizer != "adafactor":
        names = moments.get(options.optimizer, ("exp_avg", "exp_avg_sq"))
        state = {name: torch.zeros_like(parameter) for name in names}
        return state if options.optimizer == "sgd" else {"step": step, **state}
    if parameter.ndim <= 1:
        return {"step": step, "variance": torch.zeros_like(parameter)}
    rows, columns = parameter.detach()[..., :1], parameter.detach()[..., :1, :]
    return {"step": step, "row_var": torch.zeros_like(rows), "col_var": torch.zeros_like(columns)}


def _compiles(parameter: nn.Parameter) -> bool:
    """Whether the compiled loop can update a parameter: not if it is sharded."""
    plain = not hasattr(parameter, "full_tensor") and parameter.is_contiguous()
    return plain and parameter.device.type == "cpu" and parameter.dtype == torch.float32
