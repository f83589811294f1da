"""BERT's Adam on torch's fused AdamW."""

from __future__ import annotations

import torch
from torch import nn

from bothways.config import OptimizerOptions

# From this step on both bias corrections of Adam are 1 to the last bit, up to a beta of 0.999995.
# The counter is fp32 and stops at 2 ** 24, which changes nothing.
_NO_CORRECTION = 2.0**23


def make_optimizer(model: nn.Module, options: OptimizerOptions) -> torch.optim.AdamW:
    """AdamW with decoupled decay on matrices and embeddings, none on LayerNorm and biases.

    The original leaves Adam's bias correction out; a step counter that starts at a large number
    computes just that. Its decay is ``lr * weight_decay * p`` beside the update, as AdamW's.

    Args:
        model: whose parameters are trained.
        options: rates; the learning rate itself is set at every step.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=options.lr, betas=(options.beta1, options.beta2), eps=options.eps, fused=True
    )
    start = 0.0 if options.bias_correction else _NO_CORRECTION
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.tensor(start, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
