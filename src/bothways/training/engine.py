"""One optimizer step: micro-batches, clipping, schedule, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from bothways.config import OptimizerOptions
from bothways.errors import DivergenceError
from bothways.model.heads import Bert
from bothways.randomness import Purpose, derived_seed
from bothways.training.optimizer import make_optimizer
from bothways.training.schedules import learning_rate

M = TypeVar("M")

# A scalar already divided by the global counts of the step, and detached sums for the log.
Loss = Callable[[Bert, M, torch.dtype], tuple[Tensor, dict[str, Tensor]]]


class Trainer(Generic[M]):
    """A model with its optimizer and clock.

    Args:
        model: trained in place; its parameters stay fp32.
        options: optimizer and schedule.
        total_steps: length of the schedule.
        seed: keys the dropout masks, with step and micro-batch.
        dtype: arithmetic of the layers.
    """

    def __init__(
        self,
        model: Bert,
        options: OptimizerOptions,
        *,
        total_steps: int,
        seed: int,
        dtype: torch.dtype,
    ):
        self.model = model
        self.options = options
        self.total_steps = total_steps
        self.dtype = dtype
        self.optimizer = make_optimizer(model, options)
        self._seed = seed
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    def step(self, step: int, micro_batches: Sequence[M], loss: Loss[M]) -> dict[str, float]:
        """Train on one global batch.

        Args:
            step: from 0; decides the learning rate and keys the dropout.
            micro_batches: parts of the global batch; their gradients add up.
            loss: computes a part's share of the step's loss.

        Returns:
            The sums that ``loss`` gave, over all parts, with ``lr`` and ``grad_norm`` (before
            clipping).

        Raises:
            DivergenceError: the gradient is not finite; nothing was updated.
        """
        self.model.train()
        sums: dict[str, Tensor] = {}
        for part, micro_batch in enumerate(micro_batches):
            self.model.shared.dropout.reseed(derived_seed(self._seed, Purpose.DROPOUT, step, part))
            value, stats = loss(self.model, micro_batch, self.dtype)
            value.backward()  # type: ignore[no-untyped-call]
            for name, stat in stats.items():
                sums[name] = sums[name] + stat if name in sums else stat
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.options.clip)
        if not torch.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise DivergenceError(
                f"step {step + 1}: the gradient is {norm.item()}; training diverged. Lower "
                "optimizer.lr or lengthen optimizer.warmup, in a new run folder (--run)."
            )
        lr = learning_rate(step, self.total_steps, self.options)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {**{k: float(v) for k, v in sums.items()}, "lr": lr, "grad_norm": float(norm)}
