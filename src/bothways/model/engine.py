"""The torch engine: the outputs of a model for the batches of :mod:`bothways.batch`.

It alone sets torch's modes for inference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.batch import Batch
from bothways.errors import ConfigError, ModelError
from bothways.families.heads import HEADS
from bothways.model.batch import Inputs, SelectedPositions, move
from bothways.model.device import (
    DTYPES,
    borrowed_process,
    choose_device,
    set_threads,
    synchronize,
)
from bothways.model.encoder import HiddenStates
from bothways.model.folder import describe, make_network
from bothways.model.inference import PreparedEncoder, Product, prepare
from bothways.model.model import EncoderModel
from bothways.runtime.engine import NONE, Inside, UnsuitedError, check_precision, layer_name
from bothways.runtime.folder import LoadedModel, has_graph_alone, load_model, no_weights
from bothways.runtime.speed import PRODUCT, least_seconds
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.options import DeviceName


class TorchEngine:
    """Computes a model's outputs with torch, dropout off.

    Args:
        network: any mode; it is the same afterwards.
        dtype: arithmetic of the layers.
        own: nobody else computes with the network: its weights may be laid out for inference.
        fast: with the form of the encoder for inference; otherwise with the one that trains, for
            states that a training is to find as they were.
    """

    name = "torch"
    precisions = ("fp32", "bf16")

    def __init__(
        self,
        network: EncoderModel,
        dtype: torch.dtype = torch.float32,
        *,
        own: bool = False,
        fast: bool = True,
    ):
        self.network, self.dtype, self._own, self._fast = network, dtype, own, fast
        self._modules = list(network.modules())
        self._prepared: HiddenStates | None = None
        self._lock = Lock()

    @classmethod
    def open(cls, loaded: LoadedModel) -> TorchEngine:
        """The engine of a model folder, on the device and in the precision of its options.

        Raises:
            ConfigError: a GPU is requested but torch finds none; or a precision that this engine
                does not have.
        """
        if loaded.weights is None:
            raise UnsuitedError(
                f"the engine {cls.name} does not compute a graph, and the folder has no weights; "
                "choose another engine"
            )
        check_precision(cls.name, cls.precisions, loaded.options.precision)
        with borrowed_process():
            device = choose_device(loaded.options.device).torch  # fails before weights are read
            network = make_network(loaded).to(device)
            return cls(network, DTYPES[loaded.options.precision], own=True)

    @classmethod
    def product_seconds(cls, device: DeviceName) -> dict[str, float]:
        """Seconds of a product, by precision, on the device that a model would be computed on."""
        rows, inner, columns = PRODUCT
        actions = []
        with borrowed_process(), torch.inference_mode():
            place = choose_device(device).torch
            set_threads(0)
            for name in cls.precisions:
                dtype = DTYPES[name]
                x = torch.ones(rows, inner, dtype=dtype, device=place)
                product = Product(torch.ones(columns, inner, device=place), dtype)

                def compute(x: Tensor = x, product: Product = product) -> None:
                    product(x)
                    synchronize(x.device)

                actions.append(compute)
            return dict(zip(cls.precisions, least_seconds(*actions), strict=True))

    @property
    def precision(self) -> str:
        """``fp32`` or ``bf16``."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)

    @contextmanager
    def working(self) -> Iterator[None]:
        """As :meth:`bothways.runtime.engine.Engine.working`."""
        with borrowed_process():
            set_threads(0)
            yield

    def compute(
        self,
        batch: Batch,
        heads: Mapping[str, NDArray[np.int64]] = NONE,
        layers: Sequence[int] = (),
    ) -> dict[str, NDArray[np.float32]]:
        """As :meth:`bothways.runtime.engine.Engine.compute`; each head and the layers together take
        a forward pass of their own."""
        found: dict[str, Tensor] = {}
        with self._modes(), exact_fp32(), torch.inference_mode():
            inputs = Inputs.of(batch).to(self.network.device)
            for head, at in heads.items():
                found[head] = self._head(head, inputs, at)
            if layers:
                states = self._layers(inputs, layers)
                found |= {layer_name(layer): states[layer] for layer in layers}
            return {name: value.float().cpu().numpy() for name, value in found.items()}

    def inspect(self, batch: Batch) -> Inside:
        """As :class:`bothways.runtime.engine.Engine` has it, in the form that trains, which has the
        probabilities."""
        count, weights = batch.longest, list[list[Tensor]]()
        with self._modes(), exact_fp32(), torch.inference_mode():
            inputs = Inputs.of(batch).to(self.network.device)
            states = self.network.encoder.hidden_states(inputs, dtype=self.dtype, weights=weights)
            found = (
                torch.stack([state[:count] for state in states]),
                torch.stack([tiles[0][0, :, :count, :count] for tiles in weights]),
            )
            hidden, attentions = (value.float().cpu().numpy() for value in found)
        return hidden, attentions

    def _modes(self) -> AbstractContextManager[None]:
        """:func:`evaluating`, which would take longer than a short text where nothing trains."""
        trains = any(module.training for module in self._modules)
        return evaluating(self.network) if trains else nullcontext()

    def _encoder(self) -> HiddenStates:
        """The encoder in its form for inference; anew if weights have changed since."""
        if not self._fast:
            return self.network.encoder
        with self._lock:
            form = self._prepared
            if form is None or (isinstance(form, PreparedEncoder) and not form.is_current):
                # Weights made in inference mode could never be trained: `bw.pretraining_step`.
                with torch.inference_mode(mode=False), torch.no_grad():
                    form = prepare(self.network.encoder, self.dtype, share=self._own)
                self._prepared = form
            return form

    def _head(self, head: str, inputs: Inputs, at: NDArray[np.int64]) -> Tensor:
        network = self.network
        positions = move(torch.from_numpy(at), network.device)
        every = len(at) == int(inputs.bounds[-1])
        if HEADS[head].task:
            selected = None if every else SelectedPositions.of(inputs, torch.from_numpy(at))
            x_RH = network.task_vectors(
                inputs, positions, dtype=self.dtype, selected=selected, encoder=self._encoder()
            )
        else:
            selected = SelectedPositions.of(inputs, torch.from_numpy(at))
            (x_RH,) = self._encoder().hidden_at(inputs, selected, dtype=self.dtype)
        if HEADS[head].reads == "masked":
            return network.masked_lm_logits(x_RH)[:, : network.config.vocab_size]
        return network.logits(head, x_RH)

    def _layers(self, inputs: Inputs, layers: Sequence[int]) -> Mapping[int, Tensor]:
        encoder, last = self._encoder(), self.network.config.layers
        if set(layers) == {last}:
            return {last: encoder(inputs, dtype=self.dtype)}
        return dict(enumerate(encoder.hidden_states(inputs, dtype=self.dtype)))


def network_of(loaded: LoadedModel) -> EncoderModel:
    """A model folder's network in evaluation mode: the one that its engine computes with.

    Raises:
        ConfigError: another engine computes the model.
        ModelError: the folder has a graph and no weights.
    """
    engine = loaded.engine
    if not isinstance(engine, TorchEngine):
        if loaded.folder is not None and has_graph_alone(loaded.folder):
            raise ModelError(no_weights(loaded.folder))
        raise ConfigError(
            f"the engine {engine.name} has no network of torch; load the folder with engine "
            f"{TorchEngine.name}."
        )
    return engine.network


def load_network(folder: str | Path) -> EncoderModel:
    """The network of a model folder, in evaluation mode, on the CPU, fp32.

    Raises:
        ModelError: as :func:`bothways.runtime.folder.load_model`; or it has a graph alone.
    """
    loaded = load_model(folder)
    if loaded.weights is None:
        raise ModelError(no_weights(Path(folder)))
    return make_network(loaded)


def as_loaded(
    network: EncoderModel, tokenizer: Tokenizer, about: dict[str, Any] | None = None
) -> LoadedModel:
    """A network in memory as a model folder that holds it would be opened."""
    loaded = describe(network, tokenizer, about or {})
    loaded.use(TorchEngine(network))
    return loaded


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
