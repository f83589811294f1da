"""BERT's Adam, by a compiled loop or torch's fused AdamW, and LAMB."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bothways.config import OptimizerOptions
from bothways.model.compiled import why_not_compiled
from bothways.model.rounded import RoundedWeights
from bothways.training.adam import CompiledAdam
from bothways.training.lamb import Lamb

# From this step on both bias corrections of Adam are exactly 1, for betas up to
# LARGEST_UNCORRECTED_BETA. The counter is fp32 and stops at 2 ** 24, which does not matter.
_NO_CORRECTION = 2.0**23
# Parameters in which the query, key and value matrices are stacked.
_FUSED = ".qkv.weight"


def make_optimizer(
    model: nn.Module, options: OptimizerOptions, *, rounded: RoundedWeights | None = None
) -> torch.optim.Optimizer:
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
    optimizer: torch.optim.Optimizer
    if options.name == "lamb":
        fused = [p for name, p in by_name.items() if name.endswith(_FUSED)]
        single = [p for p in matrices if all(p is not f for f in fused)]
        groups[0] = {**groups[0], "params": single, "parts": 1}
        groups[1]["parts"] = 0
        groups.append({**groups[0], "params": fused, "parts": 3})
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
