"""One optimizer step: micro-batches, clipping, schedule, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from bothways.config import OptimizerOptions
from bothways.errors import RunError
from bothways.model.heads import Bert
from bothways.randomness import Purpose, derived_seed
from bothways.training.optimizer import make_optimizer
from bothways.training.schedules import learning_rate

M = TypeVar("M")

# What a step tells: numbers, or on a GPU tensors of one number that nobody has waited for yet.
Stats = dict[str, float | Tensor]
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

    On a GPU nothing is waited for within a step. A gradient that is not finite then leaves the
    update out on the device, and :meth:`check` tells.
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
        # Only the fused kernel can leave an update out by itself.
        fused = isinstance(self.optimizer, torch.optim.AdamW)
        self._waits = model.device.type == "cpu" or not fused
        self._first_bad = torch.full((), -1, dtype=torch.int64, device=model.device)

    def step(self, step: int, micro_batches: Sequence[M], loss: Loss[M]) -> Stats:
        """Train on one global batch.

        Args:
            step: from 0; decides the learning rate and keys the dropout.
            micro_batches: parts of the global batch, on the model's device; their gradients add up.
            loss: computes a part's share of the step's loss.

        Returns:
            The sums that ``loss`` gave, over all parts, with ``lr`` and ``grad_norm`` (before
            clipping).

        Raises:
            RunError: the gradient is not finite; nothing was updated. On a GPU :meth:`check` tells.
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
        if not self._waits:
            self._leave_out_if_bad(step, norm)
        elif not torch.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise _diverged(step, f"{norm.item()}")
        lr = learning_rate(step, self.total_steps, self.options)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not self._waits:
            return {**sums, "lr": lr, "grad_norm": norm}
        return {**{k: float(v) for k, v in sums.items()}, "lr": lr, "grad_norm": float(norm)}

    def check(self) -> None:
        """Wait for the steps so far; call it wherever their numbers are read or kept.

        Raises:
            RunError: a gradient was not finite. That step's update was left out.
        """
        if not self._waits and (first := int(self._first_bad)) >= 0:
            self._first_bad.fill_(-1)
            raise _diverged(first, "not finite")

    def _leave_out_if_bad(self, step: int, norm: Tensor) -> None:
        """Have the optimizer's kernel do nothing if the norm is not finite, as for a scaler of
        gradients, and note the first such step; all on the device."""
        bad = ~torch.isfinite(norm)
        self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        self._first_bad.masked_fill_(bad & (self._first_bad < 0), step)


def _diverged(step: int, gradient: str) -> RunError:
    return RunError(
        f"step {step + 1}: the gradient is {gradient}; training diverged. Lower "
        "optimizer.lr or lengthen optimizer.warmup, in a new run folder (--run)."
    )
