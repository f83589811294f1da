"""The torch engine: the outputs of a model for the batches of :mod:`bothways.batch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.batch import Batch, TaskBatch
from bothways.model.batch import Inputs, TaskInputs
from bothways.model.model import EncoderModel


class TorchEngine:
    """Computes a model's outputs with torch, dropout off.

    Args:
        model: any mode; it is the same afterwards.
        dtype: arithmetic of the layers.
    """

    name = "torch"

    def __init__(self, model: EncoderModel, dtype: torch.dtype = torch.float32):
        self.model, self.dtype = model, dtype

    def task_outputs(self, batch: TaskBatch) -> NDArray[np.float32]:
        """The task head's outputs for the tokens that it reads, float32 [R, C]."""
        with evaluating(self.model), exact_fp32(), torch.inference_mode():
            inputs = TaskInputs.of(batch).to(self.model.device)
            outputs: NDArray[np.float32] = (
                read_outputs(self.model, inputs, self.dtype).float().cpu().numpy()
            )
        return outputs

    def hidden_states(self, batch: Batch, layers: Sequence[int]) -> list[NDArray[np.float32]]:
        """The outputs of some layers, float32 [T, H] each; layer 0 is the embeddings'."""
        with evaluating(self.model), exact_fp32(), torch.inference_mode():
            inputs = Inputs.of(batch).to(self.model.device)
            if list(layers) == [self.model.config.layers]:
                states = {layers[0]: self.model.encoder(inputs, dtype=self.dtype)}
            else:
                found = self.model.encoder.hidden_states(inputs, dtype=self.dtype)
                states = {layer: found[layer] for layer in layers}
        return [states[layer].float().cpu().numpy() for layer in layers]


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Dropout off inside the block; afterwards each module of the model is in the mode that it was
    in, also after an error.

    Threads may be in such blocks of one model at the same time; the last to leave puts the modes
    back. (A thread that trains the model meanwhile would do so without dropout.)
    """

    def change() -> Callable[[], None]:
        training = [module for module in model.modules() if module.training]

        def set_all(mode: bool) -> None:
            for module in training:
                module.training = mode

        set_all(False)
        return lambda: set_all(True)

    with _held(model, "mode", change):
        yield


@contextmanager
def fast_kernels(model: EncoderModel) -> Iterator[None]:
    """The kernels of prediction inside the block, whatever those of training are; threads as for
    :func:`evaluating`."""
    shared = model.shared

    def change() -> Callable[[], None]:
        before, shared.fast = shared.fast, True
        return lambda: setattr(shared, "fast", before)

    with _held(model, "kernels", change):
        yield


@contextmanager
def exact_fp32() -> Iterator[None]:
    """Inside the block a GPU's LSTM computes fp32 as fp32, not as TF32, which is the library's
    default; threads as for :func:`evaluating`."""
    library = torch.backends.cudnn
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield
        return

    def change() -> Callable[[], None]:
        before, library.allow_tf32 = library.allow_tf32, False
        return lambda: setattr(library, "allow_tf32", before)

    with _held(library, "allow_tf32", change):
        yield


# How many threads hold what of a model, and what undoes it.
_Holds = dict[str, tuple[int, Callable[[], None]]]
_HELD: WeakKeyDictionary[object, _Holds] = WeakKeyDictionary()
_LOCK = Lock()


@contextmanager
def _held(owner: object, what: str, change: Callable[[], Callable[[], None]]) -> Iterator[None]:
    """Keep something of a model changed for as long as any thread is in such a block.

    Args:
        owner: whose it is: a model, or the library.
        what: a name for it.
        change: changes it, and returns what undoes that.
    """
    with _LOCK:
        held = _HELD.setdefault(owner, {})
        count, undo = held.get(what) or (0, change())
        held[what] = count + 1, undo
    try:
        yield
    finally:
        with _LOCK:
            count, undo = held.pop(what)
            if count > 1:
                held[what] = count - 1, undo
            else:
                undo()
            if not held:
                _HELD.pop(owner, None)


def read_outputs(model: EncoderModel, batch: TaskInputs, dtype: torch.dtype) -> Tensor:
    """The outputs [R, C] of the task head."""
    x_RH = model.task_vectors(
        batch.inputs, batch.read_positions, dtype=dtype, selected=batch.selected
    )
    return model.task_logits(x_RH)
