"""Losses, as sums: the caller divides by the global counts of the step, never by a part's own.

M masked positions, H hidden size, V vocabulary; of a task head: R rows, C outputs, N items.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bothways.model.batch import IGNORE

# Rows of logits worked on at once, in fp32: few enough for a processor's cache; on a GPU enough to
# keep it busy, and few beside the logits themselves.
_ROWS_BYTES = 2**20
_ROWS_BYTES_GPU = 2**28


def masked_lm_loss(logits_MV: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy over the real targets, and how many were predicted right.

    Args:
        logits_MV: [M, V].
        ids: int64 [M]; :data:`IGNORE` does not count.
    """
    loss = F.cross_entropy(logits_MV.float(), ids, ignore_index=IGNORE, reduction="sum")
    return loss, (logits_MV.detach().argmax(-1) == ids).sum()


def fused_cross_entropy(
    x_MH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`masked_lm_loss` of ``x @ weight.T + bias`` with the softmax made in the cache.

    The gradient of the logits is made in the forward pass and written over them, so that they are
    held once, in the dtype of the layers; the statistics are fp32 as in the plain form.
    """
    loss, right = _FusedCrossEntropy.apply(x_MH, weight_VH, bias_V, ids)  # type: ignore[no-untyped-call]
    return loss, right


class _FusedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_MH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = F.linear(x_MH, weight_VH, bias_V)
        exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
        loss = torch.zeros((), dtype=exact, device=logits.device)
        right = torch.zeros((), dtype=torch.int64, device=logits.device)
        room = _ROWS_BYTES if logits.device.type == "cpu" else _ROWS_BYTES_GPU
        size = max(1, room // (4 * logits.shape[1]))
        for rows, own in zip(_cut(logits, size), _cut(ids, size), strict=True):
            lost, found = _softmax_rows(rows, own, exact, gradient=any(ctx.needs_input_grad))
            loss += lost
            right += found
        ctx.save_for_backward(x_MH, weight_VH, logits)
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x_MH, weight_VH, d_logits = ctx.saved_tensors
        share = grads[0]  # one number, in fp32: as a factor it is not rounded to the others' dtype
        dx = (d_logits @ weight_VH).mul_(share)
        d_weight = d_logits.t() @ (x_MH * share)
        return dx, d_weight, d_logits.sum(0).mul_(share), None


def _cut(x: Tensor, size: int) -> list[Tensor]:
    return [x[at : at + size] for at in range(0, len(x), size)]


def _softmax_rows(
    rows: Tensor, ids: Tensor, exact: torch.dtype, *, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Loss and right predictions of some rows of logits, which become their gradient."""
    log_p = rows.to(exact).log_softmax(-1)
    real = ids != IGNORE
    at = ids.clamp(min=0).unsqueeze(1)
    own = log_p.gather(1, at).squeeze(1)
    loss = -(own * real).sum()
    right = _count_right(log_p, own, ids)
    if gradient:
        d = log_p.exp_()
        d.scatter_add_(1, at, d.new_full(at.shape, -1.0))
        rows.copy_(d.mul_(real.unsqueeze(1)))
    return loss, right


def _count_right(log_p: Tensor, own: Tensor, ids: Tensor) -> Tensor:
    """How many of the real targets, whose values are ``own``, are the first of the largest."""
    if log_p.device.type != "cpu":  # a choice of rows would have to be waited for
        return (log_p.argmax(1) == ids).sum()
    # Only where the target's value is the largest can it be the first of them.
    could = ((ids != IGNORE) & (own == log_p.amax(1))).nonzero().squeeze(1)
    return (log_p[could].argmax(1) == ids[could]).sum()


def class_loss(logits_RC: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy over the rows, and how many were predicted right."""
    loss = F.cross_entropy(logits_RC.float(), labels, reduction="sum")
    return loss, (logits_RC.detach().argmax(-1) == labels).sum()


def regression_loss(logits_R1: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Summed squared error, and the summed absolute error."""
    difference = logits_R1.float().squeeze(-1) - scores
    return (difference**2).sum(), difference.detach().abs().sum()


def place_loss(
    logits_RC: Tensor, places_NC: Tensor, bounds: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of one row among an item's, for each output (the start and the end of an
    answer, the right choice): mean over the outputs, summed over the items.

    Args:
        logits_RC: rows of all items.
        places_NC: int64; the row meant, counted from the item's first.
        bounds: int64 [N + 1]; item n has the rows ``bounds[n]:bounds[n + 1]``.

    Returns:
        The loss, and for how many items every output is right.
    """
    parts = torch.split(logits_RC.float(), np.diff(bounds).tolist())
    logits_NRC = pad_sequence(list(parts), batch_first=True, padding_value=-math.inf)
    loss = F.cross_entropy(logits_NRC, places_NC, reduction="sum") / logits_RC.shape[1]
    return loss, (logits_NRC.detach().argmax(1) == places_NC).all(-1).sum()
