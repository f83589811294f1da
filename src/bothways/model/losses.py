"""Losses, as sums: the caller divides by the step's global counts, not a micro-batch's.

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

from bothways.batch import IGNORE
from bothways.model.kernels.compiled import exact

# Bytes of logits in fp32 that are processed at once: few enough for a processor's cache; on a GPU
# enough to keep it busy, but few compared with all logits.
_CHUNK_BYTES = 2**21
_CHUNK_BYTES_GPU = 2**28


def masked_lm_loss(logits_MV: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy over the targets, and the number of correct predictions.

    Args:
        logits_MV: [M, V].
        ids: int64 [M]; :data:`IGNORE` is not counted.
    """
    loss = F.cross_entropy(logits_MV.float(), ids, ignore_index=IGNORE, reduction="sum")
    return loss, (logits_MV.detach().argmax(-1) == ids).sum()


def fused_cross_entropy(
    x_MH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`masked_lm_loss` of ``x @ weight.T + bias``, with the softmax computed in cache-sized
    chunks.

    The forward pass computes the gradient of the logits and overwrites them with it, so that only
    one such tensor is kept, in the dtype of the layers; the statistics are fp32 as in the plain
    form.
    """
    loss, correct = _FusedCrossEntropy.apply(x_MH, weight_VH, bias_V, ids)  # type: ignore[no-untyped-call]
    return loss, correct


class _FusedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_MH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = F.linear(x_MH, weight_VH, bias_V)
        statistics = exact(logits)
        loss = torch.zeros((), dtype=statistics, device=logits.device)
        correct = torch.zeros((), dtype=torch.int64, device=logits.device)
        chunk_bytes = _CHUNK_BYTES if logits.device.type == "cpu" else _CHUNK_BYTES_GPU
        size = max(1, chunk_bytes // (4 * logits.shape[1]))
        for chunk, targets in zip(torch.split(logits, size), torch.split(ids, size), strict=True):
            chunk_loss, chunk_correct = _softmax_in_place(
                chunk, targets, statistics, gradient=any(ctx.needs_input_grad)
            )
            loss += chunk_loss
            correct += chunk_correct
        ctx.save_for_backward(x_MH, weight_VH, logits)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x_MH, weight_VH, d_logits = ctx.saved_tensors
        dx = _scaled(d_logits @ weight_VH, grads[0])
        d_weight = d_logits.t() @ _scaled(x_MH, grads[0])
        return dx, d_weight, _scaled(d_logits.sum(0), grads[0]), None


def _scaled(values: Tensor, scale: Tensor) -> Tensor:
    """``values`` times an fp32 scalar, which is not rounded to their dtype first. On a CPU torch
    does that by itself; on a GPU it rounds a scalar that is a tensor."""
    if values.device.type == "cpu":
        return values * scale
    return (values.to(torch.promote_types(values.dtype, scale.dtype)) * scale).to(values.dtype)


def _softmax_in_place(
    logits: Tensor, ids: Tensor, statistics: torch.dtype, *, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Loss and correct predictions of some rows; overwrites the logits with their gradient."""
    z = logits.to(statistics)
    real = ids != IGNORE
    columns = ids.clamp(min=0).unsqueeze(1)
    best = _argmax(z).unsqueeze(1)
    p = z.softmax(-1)
    # The best has p of at least 1 / V: unlike the target's, its logarithm is always exact.
    log_p = z.gather(1, columns) - z.gather(1, best) + p.gather(1, best).log()
    loss = -(log_p.squeeze(1) * real).sum()
    if gradient:
        d = p.scatter_add_(1, columns, p.new_full(columns.shape, -1.0))
        if d.device.type != "cpu" or not real.all():  # asking a GPU would make the host wait
            d.mul_(real.unsqueeze(1))
        logits.copy_(d)
    return loss, (best.squeeze(1) == ids).sum()


def _argmax(rows: Tensor) -> Tensor:
    """The first column with the maximum of each row. NumPy's is ten times as fast on a CPU."""
    if rows.device.type != "cpu":
        return rows.argmax(1)
    return torch.from_numpy(rows.numpy().argmax(1))


def class_loss(
    logits_RC: Tensor, labels: Tensor, weights_C: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy over the rows, times the weights of their classes, and the number of
    correct predictions."""
    loss = F.cross_entropy(logits_RC.float(), labels, weights_C, reduction="sum")
    return loss, (logits_RC.detach().argmax(-1) == labels).sum()


def labels_loss(
    logits_RC: Tensor, labels_RC: Tensor, weights_C: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Binary cross-entropy of each label, times its weight where a row has it: mean over the
    labels, summed over the rows; and the same of the labels that are right at probability 0.5."""
    loss = F.binary_cross_entropy_with_logits(
        logits_RC.float(), labels_RC, reduction="sum", pos_weight=weights_C
    )
    right = (logits_RC.detach() > 0) == (labels_RC > 0.5)
    return loss / logits_RC.shape[1], right.sum() / logits_RC.shape[1]


def scores_loss(logits_RC: Tensor, scores_RC: Tensor) -> tuple[Tensor, Tensor]:
    """Squared error of a score or several: mean over the scores, summed over the rows; and the same
    of the absolute error."""
    difference = logits_RC.float() - scores_RC
    outputs = logits_RC.shape[1]
    return (difference**2).sum() / outputs, difference.detach().abs().sum() / outputs


def place_loss(
    logits_RC: Tensor, places_NC: Tensor, bounds: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of choosing one of an item's rows, for each output (the start and the end of an
    answer, the correct choice): mean over the outputs, summed over the items.

    Args:
        logits_RC: rows of all items.
        places_NC: int64; the target row, counted from the item's first.
        bounds: int64 [N + 1]; item n has the rows ``bounds[n]:bounds[n + 1]``.

    Returns:
        The loss, and the number of items with every output correct.
    """
    items = torch.split(logits_RC.float(), np.diff(bounds).tolist())
    logits_NRC = pad_sequence(list(items), batch_first=True, padding_value=-math.inf)
    loss = F.cross_entropy(logits_NRC, places_NC, reduction="sum") / logits_RC.shape[1]
    return loss, (logits_NRC.detach().argmax(1) == places_NC).all(-1).sum()
