"""The torch engine: the outputs of a model for the batches of :mod:`bothways.batch`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.batch import Batch, TaskBatch
from bothways.model.batch import Inputs, TaskInputs
from bothways.model.bert import Bert


class TorchEngine:
    """Computes a model's outputs with torch, dropout off.

    Args:
        model: any mode; it is the same afterwards.
        dtype: arithmetic of the layers.
    """

    name = "torch"

    def __init__(self, model: Bert, dtype: torch.dtype = torch.float32):
        self.model, self.dtype = model, dtype

    def task_outputs(self, batch: TaskBatch) -> NDArray[np.float32]:
        """The task head's outputs for the tokens that it reads, float32 [R, C]."""
        with evaluating(self.model), torch.inference_mode():
            inputs = TaskInputs.of(batch).to(self.model.device)
            outputs: NDArray[np.float32] = (
                read_outputs(self.model, inputs, self.dtype).float().cpu().numpy()
            )
        return outputs

    def hidden_states(self, batch: Batch, layers: Sequence[int]) -> list[NDArray[np.float32]]:
        """The outputs of some layers, float32 [T, H] each; layer 0 is the embeddings'."""
        with evaluating(self.model), torch.inference_mode():
            inputs = Inputs.of(batch).to(self.model.device)
            if list(layers) == [self.model.config.layers]:
                states = {layers[0]: self.model.encoder(inputs, dtype=self.dtype)}
            else:
                found = self.model.encoder.hidden_states(inputs, dtype=self.dtype)
                states = {layer: found[layer] for layer in layers}
        return [states[layer].float().cpu().numpy() for layer in layers]


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Dropout off inside the block; afterwards the model is in the mode that it was in, also after
    an error."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def read_outputs(model: Bert, batch: TaskInputs, dtype: torch.dtype) -> Tensor:
    """The outputs [R, C] of the task head."""
    x_RH = model.task_vectors(
        batch.inputs, batch.read_positions, dtype=dtype, selected=batch.selected
    )
    return model.task_logits(x_RH)
