"""One optimizer step: micro-batches, sum over the ranks, clipping, schedule, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor

from bothways.errors import ConfigError, DivergenceError
from bothways.model.model import EncoderModel
from bothways.model.shared import Trainable
from bothways.objectives.objective import Objective
from bothways.randomness import Purpose, derived_seed
from bothways.training.frozen_rows import FrozenRows
from bothways.training.fsdp import shard, whole
from bothways.training.optimizer import (
    CompiledAdam,
    frozen_below,
    layer_depths,
    learning_rate,
    make_optimizer,
)
from bothways.training.options import OptimizerOptions
from bothways.training.ranks import SINGLE_PROCESS, Ranks

M = TypeVar("M")

# Statistics of a step: numbers, or on a GPU scalar tensors that may not be computed yet.
Stats = dict[str, float | Tensor]
# Returns a scalar, already divided by the step's global counts, and detached sums for the log.
Loss = Callable[[Any, M, torch.dtype], tuple[Tensor, dict[str, Tensor]]]


def step_loss(
    micro_batches: Sequence[M], objective: Objective[M], ranks: Ranks = SINGLE_PROCESS
) -> Loss[M]:
    """The weighed sum of an objective's mean losses.

    Means are over the step's global batch: the sum of each micro-batch is divided by the counts of
    all micro-batches, of all processes.

    Args:
        micro_batches: those of the step that this process computes.
        objective: computes the losses.
        ranks: the processes, all of which must call this.
    """
    counts = total_counts(objective, micro_batches, ranks)

    def loss(model: Any, batch: M, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        found = objective.sums(model, batch, dtype)
        stats: dict[str, Tensor] = {}
        shares = []
        for term in objective.terms:
            if (sums := found.get(term.key)) is None:
                continue
            count = max(1, counts[term.key])  # 0: all text is [UNK]
            mean = sums.loss / count
            stats[term.metric("loss")] = mean.detach()
            stats[term.metric(term.measure)] = sums.right / count
            shares.append(mean if term.weight == 1 else term.weight * mean)
        value = shares[0]
        for share in shares[1:]:
            value = value + share
        return value, stats

    return loss


def total_counts(
    objective: Objective[M], batches: Sequence[M], ranks: Ranks = SINGLE_PROCESS
) -> dict[str, int]:
    """How many targets each loss has in all batches of all processes."""
    own = [objective.counts(batch) for batch in batches]
    sums = ranks.sum_counts(*(sum(c.get(t.key, 0) for c in own) for t in objective.terms))
    return {term.key: count for term, count in zip(objective.terms, sums, strict=True)}


class Trainer(Generic[M]):
    """A model with its optimizer and learning-rate schedule.

    On a GPU a step does not synchronise with the device. If a gradient is not finite, the device
    skips the update, and :meth:`check` raises the error later.

    Args:
        model: trained in place; its parameters stay fp32.
        options: optimizer and schedule.
        total_steps: length of the schedule.
        seed: keys the dropout masks, with step and micro-batch.
        dtype: arithmetic of the layers.
        ranks: the processes that share each step's work.
        parallel: what each of several processes holds: ``ddp`` all weights, ``fsdp`` a shard.
        frozen_rows: rows excluded from training, bool [rows] by name of the parameter.
        clips_apart: clip gradients by an operation of its own, not within the update, which rounds
            differently.

    Attributes:
        before_update: called in each step before the weights are updated.
    """

    def __init__(
        self,
        model: Trainable,
        options: OptimizerOptions,
        *,
        total_steps: int,
        seed: int,
        dtype: torch.dtype,
        ranks: Ranks = SINGLE_PROCESS,
        parallel: Literal["ddp", "fsdp"] = "ddp",
        frozen_rows: Mapping[str, Tensor] | None = None,
        clips_apart: bool = False,
    ):
        self.ranks = ranks
        self._sharded = ranks.size > 1 and parallel == "fsdp"
        if self._sharded:
            if options.optimizer == "adafactor":
                raise ConfigError(
                    "optimizer adafactor with parallel fsdp: its moments are of whole rows "
                    "and columns; choose parallel ddp."
                )
            shard(cast(EncoderModel, model), ranks)
        self.model = model
        self.options = options
        self.total_steps = total_steps
        self.dtype = dtype
        rounded = model.shared.rounded if model.shared.fast and not self._sharded else None
        self.optimizer = make_optimizer(model, options, rounded=rounded)
        self.before_update: Callable[[], None] = lambda: None
        self._frozen_rows = FrozenRows(model, frozen_rows or {})
        self._seed = seed
        by_name = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._parameters = list(by_name.values())
        depths = layer_depths(by_name)
        self._depths = [depths[name] for name in by_name]
        self._reused = {id(p) for p in model.reused_parameters()}
        # Its kernel can also clip while it updates, and skip an update on the device.
        adam = isinstance(self.optimizer, torch.optim.AdamW)
        self._fused = adam and not self._sharded and not clips_apart
        self._checks_every_step = model.device.type == "cpu" or not self._fused
        self._first_nonfinite = torch.full((), -1, dtype=torch.int64, device=model.device)

    def step(self, step: int, micro_batches: Sequence[M], loss: Loss[M]) -> Stats:
        """Train on one global batch.

        Args:
            step: from 0; decides the learning rate and keys the dropout.
            micro_batches: this process's micro-batches of the global batch, those that
                ``ranks.micro_batch_slice`` selects; at least one, on the model's device.
            loss: computes a micro-batch's contribution to the step's loss.

        Returns:
            The statistics that ``loss`` returned, summed over all micro-batches of all processes,
            with ``lr`` and ``grad_norm`` (before clipping).

        Raises:
            DivergenceError: the gradient is not finite; nothing was updated. On a GPU
                :meth:`check` raises it.
        """
        sums = self._accumulate_gradients(step, micro_batches, loss)
        self._frozen_rows.clear_gradients()
        below = frozen_below(step, self.total_steps, max(self._depths, default=0), self.options)
        self._clear_gradients(below)
        norm = self._clip()
        if not self._checks_every_step:
            self._skip_nonfinite_update(step, norm)
        elif not torch.isfinite(norm):
            self._clear_gradients()
            raise _diverged(step, f"{norm.item()}")
        lr = learning_rate(step, self.total_steps, self.options)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("scale", 1.0)
        self.before_update()
        with self._frozen_rows.preserved():
            self.optimizer.step()
        self._clear_gradients()
        if not self._checks_every_step:
            return {**sums, "lr": lr, "grad_norm": norm}
        return {**{k: float(v) for k, v in sums.items()}, "lr": lr, "grad_norm": float(norm)}

    def check(self) -> None:
        """Wait for the steps so far; call it before their statistics are read or saved.

        Raises:
            DivergenceError: a gradient was not finite; that step's update was skipped.
        """
        if not self._checks_every_step and (first := int(self._first_nonfinite)) >= 0:
            self._first_nonfinite.fill_(-1)
            raise _diverged(first, "not finite")

    def _skip_nonfinite_update(self, step: int, norm: Tensor) -> None:
        """Make the optimizer's kernel do nothing if the norm is not finite, as a gradient scaler
        does, and record the first such step; all on the device."""
        nonfinite = ~torch.isfinite(norm)
        self.optimizer.found_inf = nonfinite.float()  # type: ignore[union-attr]
        self._first_nonfinite.masked_fill_(nonfinite & (self._first_nonfinite < 0), step)

    def _accumulate_gradients(
        self, step: int, micro_batches: Sequence[M], loss: Loss[M]
    ) -> dict[str, Tensor]:
        """Forward and backward of every micro-batch; gradients and statistics are summed over the
        processes. Returns the statistics."""
        self.model.train()
        count = len(micro_batches)
        self._choose_gradient_dtype(count)
        rounds = self.ranks.max_over_ranks(count) if self._sharded else count
        sums: dict[str, Tensor] = {}
        for number, micro_batch in enumerate(micro_batches):
            value, stats = self._forward(step, number, micro_batch, loss)
            value.backward()  # type: ignore[no-untyped-call]
            for name, stat in stats.items():
                sums[name] = sums[name] + stat if name in sums else stat
        # All ranks gather a sharded layer together, in forward and backward. A rank that has run
        # out of micro-batches takes part by repeating its last one with zero gradients.
        for number in range(count, rounds):
            value, _ = self._forward(step, number, micro_batches[-1], loss)
            (value * 0).backward()  # type: ignore[no-untyped-call]
        if not self._sharded:
            self.ranks.sum_gradients(self._parameters)
        totals = self.ranks.sum(torch.stack([s.float() for s in sums.values()]))
        return dict(zip(sums, totals.unbind(), strict=True))

    def _choose_gradient_dtype(self, micro_batches: int) -> None:
        """Let gradients stay in the dtype in which they are computed if they are not summed over
        micro-batches, processes or several uses, and the optimizer reads them so."""
        compiled = isinstance(self.optimizer, CompiledAdam)
        stay = compiled and micro_batches == 1 and self.ranks.size == 1
        for parameter in self._parameters:
            once = stay and id(parameter) not in self._reused
            parameter.grad_dtype = None if once else parameter.dtype

    def _clear_gradients(self, below: int | None = None) -> None:
        """Forget the gradients of all depths or those below one; gradients that are not in the
        parameter's dtype are the pool's."""
        for parameter, depth in zip(self._parameters, self._depths, strict=True):
            if below is not None and depth >= below:
                continue
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None and gradient.dtype != parameter.dtype:
                self.model.shared.pool.give(gradient)

    def _forward(
        self, step: int, number: int, micro_batch: M, loss: Loss[M]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of this process's micro-batch ``number``, with its own dropout masks."""
        index = self.ranks.rank + number * self.ranks.size  # in the global batch
        self.model.shared.dropout.reseed(derived_seed(self._seed, Purpose.DROPOUT, step, index))
        return self.model.compute(loss, micro_batch, self.dtype)

    def _clip(self) -> Tensor:
        """Clip the gradient to the largest norm allowed; returns the norm before clipping."""
        if isinstance(self.optimizer, CompiledAdam):
            norm = self.optimizer.norm()
            self.optimizer.divisor = max(1.0, (float(norm) + 1e-6) / self.options.clip)
            return norm
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        if self._fused:
            divisor = ((norm + 1e-6) / self.options.clip).clamp(min=1)
            self.optimizer.grad_scale = divisor  # type: ignore[attr-defined]
        else:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self.options.clip, norm)
        return norm


def _diverged(step: int, gradient: str) -> DivergenceError:
    return DivergenceError(
        f"step {step + 1}: the gradient is {gradient}; training diverged. Lower the learning rate "
        "(lr) or lengthen the warm-up, in a new folder."
    )
