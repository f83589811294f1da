"""Training a task head on labelled examples.

R rows of outputs, C outputs of the head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bothways.model.batch import TaskInputs
from bothways.model.engine import read_outputs
from bothways.model.losses import (
    class_loss,
    labels_loss,
    place_loss,
    regression_loss,
    scores_loss,
)
from bothways.model.model import EncoderModel
from bothways.tasks.task import LossKind
from bothways.training.trainer import Loss


def task_loss(kind: LossKind, targets: int) -> Loss[TaskInputs]:
    """The loss of a micro-batch, as its share of a step.

    Args:
        kind: what a row of outputs is trained to predict.
        targets: number of targets in the whole step.
    """

    def loss(
        model: EncoderModel, batch: TaskInputs, dtype: torch.dtype
    ) -> tuple[Tensor, dict[str, Tensor]]:
        outputs_RC = read_outputs(model, batch, dtype)
        if kind == "place":
            total, count = place_loss(outputs_RC, batch.targets, batch.bounds)
        else:
            scores = regression_loss if batch.targets.ndim == 1 else scores_loss
            measure = {"class": class_loss, "labels": labels_loss, "score": scores}[kind]
            total, count = measure(outputs_RC, batch.targets)
        mean = total / targets
        name = "abs_error" if kind == "score" else "accuracy"
        return mean, {"loss": mean.detach(), name: count / targets}

    return loss
