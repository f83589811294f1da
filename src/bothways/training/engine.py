"""One optimizer step: micro-batches, sum over the ranks, clipping, schedule, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from bothways.config import OptimizerOptions
from bothways.errors import DivergenceError
from bothways.model.heads import Bert
from bothways.randomness import Purpose, derived_seed
from bothways.training.held import HeldRows
from bothways.training.optimizer import make_optimizer
from bothways.training.ranks import SINGLE_PROCESS, Ranks
from bothways.training.schedules import learning_rate
from bothways.training.shards import shard, whole

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
        ranks: the processes that share each step's work.
        parallel: what each of several processes holds: ``ddp`` all weights, ``fsdp`` a shard.
        held: rows that stay as they are, bool [rows] by name of the parameter.

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
        ranks: Ranks = SINGLE_PROCESS,
        parallel: Literal["ddp", "fsdp"] = "ddp",
        held: Mapping[str, Tensor] | None = None,
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
        self._held = HeldRows(model, held or {})
        self._seed = seed
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        # Only the fused kernel can leave an update out by itself.
        fused = isinstance(self.optimizer, torch.optim.AdamW) and not self._sharded
        self._waits = model.device.type == "cpu" or not fused
        self._first_bad = torch.full((), -1, dtype=torch.int64, device=model.device)

    def step(self, step: int, micro_batches: Sequence[M], loss: Loss[M]) -> Stats:
        """Train on one global batch.

        Args:
            step: from 0; decides the learning rate and keys the dropout.
            micro_batches: this process's parts of the global batch, at least one, on the model's
                device: of all parts, in their order, those at ``ranks.micro_batch_slice``. The gradients of
                all add up.
            loss: computes a part's share of the step's loss.

        Returns:
            The sums that ``loss`` gave, over all parts of all processes, with ``lr`` and
            ``grad_norm`` (before clipping).

        Raises:
            DivergenceError: the gradient is not finite; nothing was updated. On a GPU
                :meth:`check` tells.
        """
        sums = self._add_gradients(step, micro_batches, loss)
        self._held.clear_gradients()
        norm = self._clip()
        if not self._waits:
            self._leave_out_if_bad(step, norm)
        elif not torch.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise _diverged(step, f"{norm.item()}")
        lr = learning_rate(step, self.total_steps, self.options)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with self._held.kept():
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not self._waits:
            return {**sums, "lr": lr, "grad_norm": norm}
        return {**{k: float(v) for k, v in sums.items()}, "lr": lr, "grad_norm": float(norm)}

    def check(self) -> None:
        """Wait for the steps so far; call it wherever their numbers are read or kept.

        Raises:
            DivergenceError: a gradient was not finite. That step's update was left out.
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

    def _add_gradients(
        self, step: int, micro_batches: Sequence[M], loss: Loss[M]
    ) -> dict[str, Tensor]:
        """Forward and backward of all parts, summed over the processes; the summed statistics."""
        self.model.train()
        sums: dict[str, Tensor] = {}
        # The layers of a sharded model are gathered by all processes at once: one that has no part
        # left repeats its last for nothing, while the others compute theirs.
        rounds = (
            self.ranks.max_over_ranks(len(micro_batches)) if self._sharded else len(micro_batches)
        )
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
        return dict(zip(sums, totals.unbind(), strict=True))

    def _clip(self) -> Tensor:
        """Scale the gradient down to its largest norm; the norm before."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(self._parameters, self.options.clip, norm)
        return norm


def _diverged(step: int, gradient: str) -> DivergenceError:
    return DivergenceError(
        f"step {step + 1}: the gradient is {gradient}; training diverged. Lower "
        "optimizer.lr or lengthen optimizer.warmup, in a new run folder (--run)."
    )
