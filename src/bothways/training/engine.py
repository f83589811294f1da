"""One optimizer step: micro-batches, sum over the ranks, clipping, schedule, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from bothways.config import OptimizerOptions
from bothways.errors import RunError
from bothways.model.heads import Bert
from bothways.randomness import Purpose, derived_seed
from bothways.training.optimizer import make_optimizer
from bothways.training.ranks import ALONE, Ranks
from bothways.training.schedules import learning_rate
from bothways.training.shards import shard, whole

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
        ranks: the processes that share each step's work.
        parallel: what each of several processes holds: ``ddp`` all weights, ``fsdp`` a shard.
    """

    def __init__(
        self,
        model: Bert,
        options: OptimizerOptions,
        *,
        total_steps: int,
        seed: int,
        dtype: torch.dtype,
        ranks: Ranks = ALONE,
        parallel: Literal["ddp", "fsdp"] = "ddp",
    ):
        self.ranks = ranks
        self._sharded = ranks.size > 1 and parallel == "fsdp"
        if self._sharded:
            shard(model, ranks)
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
            micro_batches: this process's parts of the global batch, at least one: of all parts, in
                their order, those at ``ranks.share``. The gradients of all add up.
            loss: computes a part's share of the step's loss.

        Returns:
            The sums that ``loss`` gave, over all parts of all processes, with ``lr`` and
            ``grad_norm`` (before clipping).

        Raises:
            RunError: the gradient is not finite; nothing was updated.
        """
        sums = self._add_gradients(step, micro_batches, loss)
        norm = self._clip()
        if not torch.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise RunError(
                f"step {step + 1}: the gradient is {norm.item()}; training diverged. Lower "
                "optimizer.lr or lengthen optimizer.warmup, in a new run folder (--run)."
            )
        lr = learning_rate(step, self.total_steps, self.options)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {**sums, "lr": lr, "grad_norm": float(norm)}

    def _add_gradients(
        self, step: int, micro_batches: Sequence[M], loss: Loss[M]
    ) -> dict[str, float]:
        """Forward and backward of all parts, summed over the processes; the summed statistics."""
        self.model.train()
        sums: dict[str, Tensor] = {}
        # The layers of a sharded model are gathered by all processes at once: one that has no part
        # left repeats its last for nothing, while the others compute theirs.
        rounds = self.ranks.most(len(micro_batches)) if self._sharded else len(micro_batches)
        for i in range(rounds):
            part = self.ranks.rank + i * self.ranks.size
            self.model.shared.dropout.reseed(derived_seed(self._seed, Purpose.DROPOUT, step, part))
            own = i < len(micro_batches)
            value, stats = self.model(loss, micro_batches[i if own else -1], self.dtype)
            (value if own else value * 0).backward()
            for name, stat in stats.items() if own else ():
                sums[name] = sums[name] + stat if name in sums else stat
        if not self._sharded:
            self.ranks.sum_gradients(self._parameters)
        totals = self.ranks.sum(torch.stack([s.float() for s in sums.values()]))
        return dict(zip(sums, totals.tolist(), strict=True))

    def _clip(self) -> Tensor:
        """Scale the gradient down to its largest norm; the norm before."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(self._parameters, self.options.clip, norm)
        return norm
